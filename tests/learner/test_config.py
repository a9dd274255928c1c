"""Options: bounds, combinations that are refused with the way out, presets, and going on with a run."""

import subprocess
import sys
import typing
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from learner import config
from learner.agent_options import AgentOptions, _check_agent
from learner.config import (
    FREE_ON_RESUME,
    EvaluateOptions,
    ExportOptions,
    LearnerOptions,
    TrainOptions,
    resume_differences,
)
from learner.planning.options import PlanOptions, TuneOptions
from learner.presets import AGENT_DEFAULTS, PRESETS, starting_values
from protos.errors import ConfigError
from protos.options import flag, option_names, parse


def test_defaults_are_accepted() -> None:
    AgentOptions()
    LearnerOptions()
    TrainOptions(env="CartPole-v1")
    EvaluateOptions(logdir="runs/x")
    ExportOptions(logdir="runs/x", out="out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unroll_length": 0}, "--unroll-length 0: expected at least 1"),
        ({"batch_size": -1}, "--batch-size -1: expected at least 1"),
        ({"discount": 1.5}, "--discount 1.5: expected at most 1"),
        ({"discount": float("nan")}, "--discount nan: expected a finite number"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0: expected more than 0"),
        ({"learning_rate": float("inf")}, "--learning-rate inf: expected a finite number"),
        ({"stop_return": float("nan")}, "--stop-return nan: expected a finite number"),
        ({"hidden_sizes": (64, 0)}, "--hidden-sizes 0: expected at least 1"),
        ({"seed": 2**31}, "--seed 2147483648: expected at most 2147483647"),
        ({"log_interval_seconds": 0.0}, "--log-interval-seconds 0.0: expected more than 0"),
        ({"keep_checkpoints": 0}, "--keep-checkpoints 0: expected at least 1"),
        ({"inference_threads": 65}, "--inference-threads 65: expected at most 64"),
        ({"lease_seconds": -1.0}, "--lease-seconds -1.0: expected at least 0"),
        ({"lease_seconds": 604_801.0}, "--lease-seconds 604801.0: expected at most 604800"),
    ],
)
def test_out_of_bounds_is_refused_with_expected_and_found(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        LearnerOptions(**change)  # type: ignore[arg-type]
    assert str(refused.value) == message


def test_every_default_is_within_its_own_bounds_and_has_help() -> None:
    for options in (TrainOptions, EvaluateOptions, ExportOptions):
        for entry in fields(options):
            assert entry.metadata["help"], entry.name
            assert "{" not in entry.metadata["help"], entry.name


def test_queue_that_never_fills_a_batch_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"--queue-capacity 8 would never fill .* at least 16"):
        LearnerOptions(queue_capacity=8, batch_size=16)
    LearnerOptions(queue_capacity=16, batch_size=16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lstm_horizon": 20}, "--lstm-horizon 20 is of an LSTM, and there is none: leave it out"),
        ({"lstm_size": 4, "lstm_horizon": 2}, "--lstm-horizon 2 is too short for memories to differ"),
        (
            {"agent": "ppo", "minibatches": 3, "lstm_size": 4},
            "--minibatches 3: a policy with a memory needs a divisor of --batch-size 8",
        ),
        (
            {"agent": "ppo", "minibatches": 3, "batch_size": 2, "unroll_length": 4},
            "--minibatches 3: expected a divisor of the batch's 8 transitions",
        ),
        ({"stop_eval_return": 1.0}, "--stop-eval-return needs evaluations: give --eval-interval"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LearnerOptions(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("env", [None, ""])
def test_train_needs_an_environment(env: str | None) -> None:
    with pytest.raises(ConfigError, match="--env is required: local actors need to know what to step"):
        TrainOptions(env=env)


def test_a_learner_without_room_for_its_own_actors_is_refused_with_the_way_out() -> None:
    few = {"env": "x", "num_actors": 3, "envs_per_actor": 4}
    with pytest.raises(ConfigError) as refused:
        TrainOptions(**few, max_environments=11)
    assert str(refused.value) == (
        "--max-environments 11 has no room for --num-actors 3 times --envs-per-actor 4: raise it to 12, "
        "or leave it out"
    )
    TrainOptions(**few, max_environments=12)


def test_a_policy_call_smaller_than_an_actors_message_is_refused_with_the_way_out() -> None:
    few = {"env": "x", "num_actors": 3, "envs_per_actor": 4}
    with pytest.raises(ConfigError) as refused:
        TrainOptions(**few, inference_batch_size=3)
    assert str(refused.value) == (
        "--inference-batch-size 3 is less than the 4 environments that come in one message "
        "(--envs-per-actor, by --threads-per-actor): raise it, or leave it out"
    )
    TrainOptions(**few, inference_batch_size=4)
    TrainOptions(**few, inference_batch_size=2, threads_per_actor=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"threads_per_actor": 5, "envs_per_actor": 4},
            "--threads-per-actor 5: expected at most one an environment, found --envs-per-actor 4",
        ),
        (
            {"threads_per_actor": 2, "reproducible": True},
            "--reproducible with --threads-per-actor 2: which of them comes first differs from run to "
            "run; say --threads-per-actor 1",
        ),
    ],
)
def test_threads_that_actors_cannot_have_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainOptions(env="x", **changes)
    assert str(refused.value) == message


@pytest.mark.parametrize(("kind", "command"), [(PlanOptions, "plan"), (TuneOptions, "tune")])
def test_what_waits_is_not_planned(kind: type[TrainOptions], command: str) -> None:
    with pytest.raises(ConfigError) as refused:
        kind(env="x", threads_per_actor=2)
    assert str(refused.value) == (
        f"--threads-per-actor 2: seedbed {command} knows what environments compute, not how long they "
        "wait: leave it out"
    )


def test_train_checks_bounds_of_actors() -> None:
    with pytest.raises(ConfigError, match="--num-actors -1: expected at least 0"):
        TrainOptions(env="CartPole-v1", num_actors=-1)


@pytest.mark.parametrize(("cores", "actors"), [(1, 1), (2, 2), (6, 6), (8, 8), (64, 8)])
def test_actors_follow_the_cores(cores: int, actors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "available_cores", lambda: cores)
    options = TrainOptions(env="CartPole-v1", epsilon_environments=0)
    assert options.num_actors == actors
    assert options.exploring_environments == 16 * actors
    # What is stored of them is the number itself, and it is checked as one.
    assert asdict(options)["num_actors"] == actors
    with pytest.raises(ConfigError, match=f"raise it to {16 * actors}"):
        TrainOptions(env="CartPole-v1", max_environments=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "--logdir is required"),
        ({"logdir": "x", "episodes": 0}, "--episodes 0: expected at least 1"),
        ({"logdir": "x", "video": "out.avi"}, r"--video out.avi: expected a name that ends in .mp4"),
    ],
)
def test_evaluate_refuses(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvaluateOptions(**change)  # type: ignore[arg-type]


def test_evaluate_accepts_video_names_in_capitals() -> None:
    assert EvaluateOptions(logdir="x", video="OUT.MP4").video == "OUT.MP4"


@pytest.mark.parametrize(("change", "missing"), [({"out": "x"}, "logdir"), ({"logdir": "x"}, "out")])
def test_export_needs_both_folders(change: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"--{missing} is required"):
        ExportOptions(**change)


def test_auto_preset_goes_by_the_environment() -> None:
    assert starting_values("auto", "ALE/Pong-v5", None) == PRESETS["atari"]
    assert starting_values("auto", "CartPole-v1", None) == {}
    assert starting_values("auto", None, None) == {}
    assert starting_values("atari", "CartPole-v1", None) == PRESETS["atari"]


def test_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="--preset mujoco: expected auto or one of none, atari"):
        starting_values("mujoco", None, None)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_made_of_options_within_bounds(name: str) -> None:
    settings = starting_values(name, None, None)
    assert set(settings) <= set(option_names(TrainOptions))
    TrainOptions(**{"env": "x", **settings})


@pytest.mark.parametrize("agent", AGENT_DEFAULTS)
def test_agents_start_from_options_within_bounds(agent: str) -> None:
    settings = starting_values("none", None, agent)
    assert settings == AGENT_DEFAULTS[agent]
    TrainOptions(env="x", **{"agent": agent, **settings})


def test_every_agent_has_its_defaults() -> None:
    assert set(AGENT_DEFAULTS) == set(typing.get_args(typing.get_type_hints(AgentOptions)["agent"]))


@pytest.mark.parametrize(
    "name", [entry.name for entry in fields(AgentOptions) if "agents" in entry.metadata]
)
def test_options_of_other_agents_are_refused(name: str) -> None:
    entry = next(entry for entry in fields(AgentOptions) if entry.name == name)
    options = AgentOptions(agent=entry.metadata["agents"][0])
    object.__setattr__(options, name, object())  # another value, whatever the option's type
    for agent in set(AGENT_DEFAULTS) - set(entry.metadata["agents"]):
        object.__setattr__(options, "agent", agent)
        with pytest.raises(ConfigError, match=f"{flag(name)} is an option of"):
            _check_agent(options)


def test_free_on_resume_names_options() -> None:
    assert set(option_names(TrainOptions)) >= FREE_ON_RESUME


def test_same_settings_do_not_differ_when_read_back_from_toml() -> None:
    new = LearnerOptions(env="CartPole-v1")
    old = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(new).items()
        if value is not None
    }
    assert resume_differences(old, new) == []


def test_differences_are_named_with_both_values() -> None:
    new = LearnerOptions(env="CartPole-v1", hidden_sizes=(32,), lstm_size=8)
    old = asdict(replace(new, hidden_sizes=(64, 64), env=None))
    assert resume_differences(old, new) == [
        "hidden_sizes was [64, 64] and is now [32]",
        "env was None and is now CartPole-v1",
    ]


def test_how_a_run_is_run_may_change() -> None:
    new = TrainOptions(env="x", total_steps=1, num_actors=1, progress="none", stop_return=1.0)
    old = asdict(TrainOptions(env="x"))
    assert resume_differences(old, new) == []


def test_command_line_fills_tuples_and_nones() -> None:
    argv = ["--env", "CartPole-v1", "--hidden-sizes", "[32, 16]", "--stop-return", "475"]
    options = parse(TrainOptions, argv, prog="seedbed train", description="")
    assert options.hidden_sizes == (32, 16)
    assert options.stop_return == 475.0
    assert options.logdir is None


def test_refused_combination_ends_with_status_2_and_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(TrainOptions, ["--env", "x", "--discount", "2"], prog="seedbed train", description="")
    assert ended.value.code == 2
    assert capsys.readouterr().err == ("seedbed train: error: --discount 2.0: expected at most 1\n")


def test_importing_options_imports_no_tensorflow() -> None:
    code = "import learner.config, sys; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("option", ["listen", "health_listen"])
@pytest.mark.parametrize("address", ["7790", "localhost", "0.0.0.0:99999", "unix:", ":1"])
def test_what_is_no_address_is_refused_as_such_before_all_else(option: str, address: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LearnerOptions(**{option: address})  # type: ignore[arg-type]  # both options are text
    name = option.replace("_", "-")
    assert str(refused.value) == f"--{name} {address}: expected HOST:PORT or unix:PATH"
