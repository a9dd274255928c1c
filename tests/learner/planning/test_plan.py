"""`seedbed plan`: what it prints for costs that are given, and once for real."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from learner.__main__ import main
from learner.planning.costs import NOTHING, with_given
from learner.planning.options import PlanOptions
from learner.planning.plan import deployment_of, price
from learner.planning.tables import show_table, text
from protos.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs" / "capacity.md"

ATARI = shlex.split(
    "plan --env ALE/Pong-v5 --num-actors 64 --envs-per-actor 4 --actor-cores 55 --learner-cores 8 "
    "--environment-us-per-step 3000 --actor-us-per-message 800 --learner-us-per-message 200 "
    "--inference-us-per-call 400 --inference-us-per-row 15 --training-us-per-step 40 "
    "--bytes-per-step 7056 --actor-core-price-per-hour 0.05 --learner-price-per-hour 2.5"
)


GIVEN = {
    "environment_us_per_step": 3000.0,
    "learner_us_per_message": 200.0,
    "inference_us_per_call": 400.0,
}


def options(**changes: Any) -> PlanOptions:
    return PlanOptions(**{"env": "CartPole-v1", "num_actors": 2, **changes})


def planned(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([*ATARI, *more, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_the_whole_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys)
    rate = found["env_steps_per_second"]
    # 4 environments and a message: 12.8 ms of a core for 4 steps.
    assert found["capacities"]["actor cores"] == pytest.approx(55 * 4 / 0.0128)
    assert found["capacities"]["accelerator"] == pytest.approx(1 / 55e-6)
    assert found["first_to_saturate"] == "actor cores"
    assert 0.8 * 17_188 < rate < 17_188
    assert found["frames_per_second"] == pytest.approx(4 * rate)
    assert found["mbits_per_second"] == pytest.approx(rate * 7056 * 8 / 1e6)
    hourly = 55 * 0.05 + 2.5
    assert found["price_per_billion_frames"] == pytest.approx(hourly * 1e9 / (4 * rate * 3600))
    assert found["costs"]["accelerated_row"] == pytest.approx(15e-6)
    # 200 us for a message of 4 environments.
    assert found["event_loop_busy"] == pytest.approx(rate / 4 * 200e-6, rel=0.05)
    assert found["costs"]["on_event_loop"] is False


def test_what_if_is_a_change_of_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, "--actor-cores", "200")["first_to_saturate"] == "accelerator"
    few = planned(capsys, "--actor-cores", "200", "--num-actors", "32")
    assert few["first_to_saturate"] == "actor processes"
    assert planned(capsys, "--network-mbits", "500")["first_to_saturate"] == "network"
    slow = planned(capsys, "--training-us-per-step", "100")
    assert slow["first_to_saturate"] == slow["bound_by"] == "accelerator"
    assert slow["env_steps_per_second"] <= 1 / 115e-6


def test_tables_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys)
    assert main(ATARI) == 0
    shown = capsys.readouterr().out
    first = shown.splitlines()[0]
    assert first == (
        "ALE/Pong-v5, vtrace: 64 actors x 4 environments, 55 cores for actors, 8 for the learner"
    )
    for figure in ("env_steps_per_second", "frames_per_second", "mbits_per_second"):
        assert text(found[figure]) in shown
    assert "frames/s (frame skip 4)" in shown
    assert max(map(len, shown.splitlines())) <= 105


@pytest.mark.parametrize("at_once", [False, True])
def test_the_table_says_whose_work_inference_is(
    at_once: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = dataclasses.replace(with_given(NOTHING, options(**GIVEN)), on_event_loop=at_once)
    monkeypatch.setattr("learner.planning.plan.find_costs", lambda given: (costs, {}))
    assert main(ATARI) == 0
    shown = capsys.readouterr().out
    assert "event loop busy" in shown
    assert ("of it, inference" in shown, "inference busy" in shown) == (at_once, not at_once)
    assert ("inference threads" in shown) == (not at_once)


def test_much_lag_is_said_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    # 3,200 environments and a full queue: 3,200 / (2 x 8) + 2 versions.
    many = ("--num-actors", "100", "--envs-per-actor", "32", "--actor-cores", "200")
    assert main([*ATARI, *many]) == 0
    said = capsys.readouterr().out
    assert "A policy lag of 202.0 versions is much" in said
    assert "--batch-size 64, which leaves 27.00 (in a new run" in said
    assert main([*ATARI, *many, "--batch-size", "64"]) == 0
    assert "is much" not in capsys.readouterr().out
    # Where there is a queue of a size of its own, its part shrinks with the batch.
    assert main([*ATARI, *many, "--queue-capacity", "1024"]) == 0
    assert "--batch-size 128, which leaves 21.50" in capsys.readouterr().out


def test_a_replay_is_old_on_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ATARI, "--num-actors", "1000", "--preset", "none", "--agent", "r2d2"]) == 0
    assert "is much" not in capsys.readouterr().out


def without_space(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_example_of_the_docs_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    example = page[page.index("### An example") :]
    command, shown = re.findall(r"```(?:sh|text)\n(.*?)```", example, re.DOTALL)[:2]
    _, *arguments = shlex.split(command.replace("\\\n", " "))
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert without_space(printed)[-len(without_space(shown)) :] == without_space(shown)
    rows = re.findall(r"^\| .* \| `(.*)` \| ([\d,]+) \| (.*) \|$", example, re.MULTILINE)
    assert len(rows) == 4
    for options_, rate, bound in rows:
        assert main([*arguments, *shlex.split(options_), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert text(round(found["env_steps_per_second"])) == rate
        assert found["bound_by"] == bound


def test_a_shared_machine_is_the_default() -> None:
    shared = deployment_of(options(), here=6)
    assert (shared.cores, shared.shared) == (6, True)
    assert deployment_of(options(cores=3.5), here=6).cores == 3.5


def test_machines_of_their_own() -> None:
    apart = deployment_of(options(actor_cores=12, learner_cores=4), here=6)
    assert (apart.cores, apart.actor_cores, apart.shared) == (4, 12, False)
    assert deployment_of(options(actor_cores=12), here=6).cores == 6
    assert deployment_of(options(network_mbits=10), here=6).bits_per_second == 10e6


def test_policy_calls_are_as_large_as_the_learners() -> None:
    assert deployment_of(options(), here=1).max_rows == 256
    assert deployment_of(options(num_actors=40), here=1).max_rows == 640
    assert deployment_of(options(inference_batch_size=64), here=1).max_rows == 64


def test_a2c_acts_and_trains_by_turns() -> None:
    assert deployment_of(options(agent="a2c"), here=1).lock_step
    assert deployment_of(options(reproducible=True, num_actors=1), here=1).lock_step
    assert not deployment_of(options(), here=1).lock_step


def test_prices() -> None:
    shared = options(cores=4, actor_core_price_per_hour=0.5)
    assert price(shared, deployment_of(shared, 1), 1e6) == pytest.approx(2.0 * 1000 / 3600)
    assert price(options(), deployment_of(options(), 1), 1e6) is None


@pytest.mark.parametrize(
    ("env", "given", "skip"), [("ALE/Pong-v5", 0, 4), ("CartPole-v1", 0, 1), ("CartPole-v1", 2, 2)]
)
def test_frames_of_a_step(env: str, given: int, skip: int) -> None:
    assert options(env=env, frame_skip=given).frames_per_step == skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"learner_cores": 4.0},
            "--learner-cores 4 is a machine of the learner's own: say --actor-cores",
        ),
        ({"seconds": 0.0}, "--seconds 0.0: expected more than 0"),
        ({"inference_us_per_row": 0.0}, r"--inference-us-per-row 0\.0: expected more than 0"),
        (
            {"inference_us_per_row": 5.0, "policy_engine": "numpy"},
            "--inference-us-per-row 5 is what an accelerator takes, and --policy-engine numpy uses none",
        ),
        ({"env": None}, "--env is required"),
    ],
)
def test_misuse_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**change)


def test_an_environment_that_is_not_there_ends_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--env", "NoSuch-v0"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "seedbed plan: error: --env NoSuch-v0 cannot be measured (status 1):" in said.err
    assert "Traceback" not in said.err


def test_a_table_fits_its_cells(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("Title", ("what", "how much"), [["one", 12345.6], ["two", None]])
    title, *_, first, second, _ = capsys.readouterr().out.splitlines()
    assert title == "Title"
    assert first.split() == ["one", "12,346"]
    assert second.split() == ["two", "-"]
