"""What is made of a run's metrics, and a second of a run."""

from typing import Any

import pytest

from benchmarks.measure import Window
from benchmarks.train_run import WATCHING, command_options, rates
from benchmarks.training import TrainingOptions, is_valid
from tests.benchmarks.running import run

OPTIONS = TrainingOptions(num_actors=2, envs_per_actor=3, unroll_length=5, batch_size=4, seed=7)


def line(**values: Any) -> dict[str, Any]:
    return {
        "policy_lag": None,
        "training_busy": 0.5,
        "inference_busy": 0.5,
        "actors_idle": None,
        **values,
    }


BEFORE = line(
    seconds=3.0,
    env_steps=100,
    episodes=2,
    policy_version=10,
    **{"acting/rows": 200, "acting/batches": 50},
)
AFTER = line(
    seconds=5.0,
    env_steps=1080,
    episodes=22,
    policy_version=60,
    policy_lag=1.5,
    **{"acting/rows": 1200, "acting/batches": 300},
)
WINDOW = Window(
    began=0.0,
    seconds=4.0,
    cpu_seconds={WATCHING: 1.0},
    own_cpu_seconds=5.0,
    raw_foreign_cpu=0.0,
    steal=0.0,
)


def test_rates_are_those_between_the_first_line_and_the_last() -> None:
    found = rates(OPTIONS, [BEFORE, AFTER], WINDOW)
    assert found.steps_per_second == pytest.approx(490)
    # 50 updates of 20 rows, of 980 steps and 20 first rows of episodes.
    assert found.trained_ratio == pytest.approx(1.0)
    # One round of unrolls is 30 rows, one batch is 20.
    assert found.trained_ratio_resolution == pytest.approx(0.05)
    assert found.mean_batch == pytest.approx(4)
    assert found.policy_lag == 1.5


def test_watching_is_no_part_of_the_runs_cpu_time() -> None:
    found = rates(OPTIONS, [BEFORE, AFTER], WINDOW)
    assert found.cpu_seconds_per_million == pytest.approx(1.0 / 490 * 1e6)


@pytest.mark.parametrize(
    ("ratio", "resolution", "valid"),
    [(1.04, 0.0, True), (0.94, 0.0, False), (1.06, 0.0, False), (1.06, 0.02, True), (0.92, 0.02, False)],
)
def test_a_run_counts_if_it_trains_on_what_it_samples(
    ratio: float, resolution: float, valid: bool
) -> None:
    whole = rates(OPTIONS, [BEFORE, AFTER], WINDOW)
    found = whole._replace(trained_ratio=ratio, trained_ratio_resolution=resolution)
    assert is_valid(found) is valid


def test_the_run_gets_every_option_of_train_and_no_other() -> None:
    given = command_options(OPTIONS)
    assert (given["env"], given["num_actors"], given["unroll_length"]) == ("CartPole-v1", 2, 5)
    assert given["seed"] == 7
    assert given["hidden_sizes"] == [64, 64]
    assert not {"repeats", "seconds", "drop_seconds", "alone_seconds", "json", "logdir"} & given.keys()


@pytest.mark.slow
def test_a_run_is_compared_with_its_parts_alone() -> None:
    result = run(
        "training",
        "--repeats=1",
        "--seconds=1",
        "--drop-seconds=0",
        "--alone-seconds=0.1",
        "--num-actors=1",
        "--envs-per-actor=4",
    )
    assert [one["steps_per_second"] > 0 for one in result["runs"]] == [True]
    alone = result["alone_cpu_seconds_per_million"]
    assert alone.keys() == {"environment", "policy", "training"}
    assert all(spent > 0 for spent in alone.values())
    roofline = result["machine"]["cores"] / sum(alone.values()) * 1e6
    assert result["roofline_steps_per_second"] == pytest.approx(roofline)
    assert result["ratio"] == pytest.approx(result["steps_per_second"] / roofline)
    assert result["cpu_ratio"] == pytest.approx(sum(alone.values()) / result["cpu_seconds_per_million"])
