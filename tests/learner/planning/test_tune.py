"""What `seedbed tune` tries and writes; trials and costs are played here."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from learner.config import TrainOptions, available_cores
from learner.planning import tune as module
from learner.planning.model import Costs, Line
from learner.planning.options import TuneOptions
from learner.planning.trials import Setting, Trial
from learner.planning.tune import Trials, acceptable, candidates, plan_options, tune, variants, write
from learner.presets import starting_values
from protos.errors import ConfigError, WorkerFailure
from protos.options import parse

MS = 1e-3

COSTS = Costs(
    environment=Line(0.0, 0.01 * MS),
    actor_message=Line(0.3 * MS, 0.0),
    learner_message=Line(0.3 * MS, 0.0),
    event_loop=Line(0.2 * MS, 0.0),
    policy_call=Line(0.4 * MS, 0.001 * MS),
    training=0.01 * MS,
    wire=Line(100.0, 30.0),
)


def options(**changes: Any) -> TuneOptions:
    return TuneOptions(**{"env": "CartPole-v1", "num_actors": 2, **changes})


class Played:
    """A trial process that answers at once: the more environments, the better."""

    started = 0
    closed = 0
    failing = False
    interrupt_at = 0

    def __init__(self) -> None:
        Played.started += 1
        self.runs = 0

    def run(self, options: TrainOptions, settle_seconds: float, seconds: float) -> Trial:
        self.runs += 1
        if self.runs == self.interrupt_at:
            raise KeyboardInterrupt
        rate = 0.0 if self.failing else float(options.num_actors * options.envs_per_actor)
        error = "no room" if self.failing else ""
        return Trial(Setting.of(options), seconds, rate, 1.5, 0.25, 0.5, error=error)

    def close(self) -> None:
        Played.closed += 1


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Played]:
    for name, value in {"started": 0, "closed": 0, "failing": False, "interrupt_at": 0}.items():
        monkeypatch.setattr(Played, name, value)
    monkeypatch.setattr(module, "Trials", lambda given: Trials(given, start=Played))  # type: ignore[arg-type]
    monkeypatch.setattr(module, "find_costs", lambda given: (COSTS, {}))
    monkeypatch.setattr(module, "available_cores", lambda: 4)
    return Played


# What to try -------------------------------------------------------------------------------------


def test_the_users_own_setting_is_tried_first() -> None:
    mine = options(num_actors=3, envs_per_actor=7)
    found = candidates(mine, COSTS, cores=4)
    assert found[0] == Setting.of(mine)
    assert len(set(found)) == len(found) > 10


def test_candidates_change_how_the_run_is_run_and_nothing_else() -> None:
    own = Setting.of(options())
    for setting in candidates(options(), COSTS, cores=4):
        same = dataclasses.replace(setting, num_actors=own.num_actors, envs_per_actor=own.envs_per_actor)
        assert same == own
    found = candidates(options(tune_batch=True), COSTS, cores=4)
    assert {setting.batch_size for setting in found} == {8, 16, 32}


def test_environments_are_bounded_by_the_lag_that_they_cause() -> None:
    for lag, most in ((4.0, 64), (8.0, 128), (0.5, 32)):
        found = candidates(options(max_lag=lag), COSTS, cores=4)
        # 32 environments are the user's own.
        assert max(each.num_actors * each.envs_per_actor for each in found) == most


def test_actors_are_bounded() -> None:
    assert {each.num_actors for each in candidates(options(), COSTS, cores=1)} == {1, 2}
    found = candidates(options(num_actors=1, max_actors=3), COSTS, cores=4)
    assert {each.num_actors for each in found} == {1, 2, 3}


def test_a_replay_knows_no_lag() -> None:
    mine = options(agent="sac", **dict(starting_values("none", "x", "sac")), num_actors=1)
    own = dataclasses.replace(Setting.of(mine), num_actors=4)
    assert acceptable(mine, own)
    assert not acceptable(mine, dataclasses.replace(own, envs_per_actor=17))


def test_the_model_ranks_the_best_of_each_number_of_actors_first() -> None:
    _, *found = candidates(options(), COSTS, cores=4)
    firsts = found[: len({each.num_actors for each in found})]
    assert len({each.num_actors for each in firsts}) == len(firsts)
    # Messages cost more than environments here: an actor has as many as it may.
    assert all(each.num_actors * each.envs_per_actor > 32 for each in firsts if each.num_actors > 1)


def test_variants_change_one_option_each() -> None:
    best = Setting.of(options())
    assert variants(options(), COSTS, best) == [
        dataclasses.replace(best, tf_threads=available_cores()),
        dataclasses.replace(best, inference_threads=2),
        dataclasses.replace(best, queue_capacity=16),
    ]


def test_inference_threads_are_not_tried_where_they_do_not_act() -> None:
    best = Setting.of(options())
    at_once = dataclasses.replace(COSTS, on_event_loop=True)
    assert {each.inference_threads for each in variants(options(), at_once, best)} == {1}
    assert len(variants(options(), at_once, best)) == 2


def test_the_model_sees_the_same_run() -> None:
    plan = plan_options(options(hidden_sizes=(32,), envs_per_actor=5, policy_engine="tensorflow"))
    assert (plan.hidden_sizes, plan.envs_per_actor, plan.num_actors) == ((32,), 5, 2)
    assert plan.policy_engine == "tensorflow"


# What comes of it --------------------------------------------------------------------------------


def test_the_file_is_one_for_train(tmp_path: Path) -> None:
    out = tmp_path / "tuned.toml"
    given = options(
        out=str(out), hidden_sizes=(32, 16), seed=5, learning_rate=1e-3, agent="ppo", minibatches=2
    )
    best = dataclasses.replace(Setting.of(given), num_actors=4, tf_threads=1)
    write(given, Trial(best, 8.0, 12345.6))
    text = out.read_text()
    assert text.startswith("# seedbed tune: 12346 environment steps/s on ")
    read = parse(
        TrainOptions,
        [f"--config={out}"],
        prog="test",
        description="",
        preset=starting_values("auto", "CartPole-v1", "ppo"),
    )
    expected = {entry.name: getattr(given, entry.name) for entry in dataclasses.fields(TrainOptions)}
    assert read == TrainOptions(**{**expected, "num_actors": 4, "tf_threads": 1})
    assert "total_steps" not in tomllib.loads(text)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    given = options(out=str(tmp_path / "none" / "tuned.toml"))
    with pytest.raises(ConfigError, match=r"--out .*tuned\.toml cannot be written"):
        write(given, Trial(Setting.of(given), 1.0, 1.0))


def test_the_best_is_written_and_all_is_shown(
    played: type[Played], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tuned.toml"
    assert tune(options(out=str(out), seconds=1000.0)) == 0
    values = tomllib.loads(out.read_text())
    assert values["num_actors"] * values["envs_per_actor"] == 64
    shown = capsys.readouterr().out
    assert f"wrote {out}: seedbed train --config {out}" in shown
    assert shown.count(" *") == 2  # the heading's and the best's
    assert "2 x 16, batch 8" in shown
    # One process for TensorFlow as it is, and one for a single thread.
    assert played.started == played.closed == 2


def test_ctrl_c_leaves_the_best_so_far(
    played: type[Played], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played.interrupt_at = 3
    out = tmp_path / "tuned.toml"
    assert tune(options(out=str(out), seconds=1000.0)) == 130
    assert tomllib.loads(out.read_text())["envs_per_actor"] >= 16
    assert played.started == played.closed == 1
    assert "wrote" in capsys.readouterr().out


def test_ctrl_c_before_the_first_trial_writes_nothing(
    played: type[Played], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played.interrupt_at = 1
    out = tmp_path / "tuned.toml"
    assert tune(options(out=str(out), seconds=1000.0)) == 130
    assert not out.exists()
    assert capsys.readouterr().out == ""


def test_if_nothing_works_the_reasons_are_said(played: type[Played], tmp_path: Path) -> None:
    played.failing = True
    out = tmp_path / "tuned.toml"
    with pytest.raises(WorkerFailure, match="no trial reached a steady state: no room"):
        tune(options(out=str(out), seconds=1000.0))
    assert not out.exists()
    assert played.started == played.closed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": 29.0}, "--seconds 29 is too short: expected at least 30"),
        ({"out": "tuned.json"}, r"--out tuned\.json: expected a name that ends in \.toml"),
        ({"env": None}, "--env is required"),
    ],
)
def test_misuse_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**change)
