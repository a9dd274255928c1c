"""The environments of the comparison do what they are said to, in both orders of episodes."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from actor.environments import make_environment
from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.making import Pong, RecordedWorld, make_world
from benchmarks.peer_drivers.records import Record
from benchmarks.peer_drivers.worlds import (
    EPISODE_STEPS,
    CartPole,
    FreeImages,
    FreeWorld,
    Recall,
    Step,
    Straggler,
    World,
)

NUM_ENVS = 3


def test_cartpole_is_gymnasiums() -> None:
    world, rng = CartPole(1, "same", seed=3), np.random.default_rng(4)
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    for _ in range(5):
        world.reset()
        env.state = tuple(world._state[0])
        env.steps_beyond_terminated = None
        terminated = False
        while not terminated:
            action = int(rng.integers(2))
            expected, reward, terminated, *_ = env.step(action)
            step = world.step(np.array([action]))
            seen = step.observation if step.final is None else step.final
            np.testing.assert_allclose(seen[0], expected, rtol=1e-5, atol=1e-6)
            assert (step.reward[0], step.terminated[0]) == (reward, terminated)


def test_cartpole_truncates_after_500_steps() -> None:
    world = CartPole(1, "next", seed=0)
    world.reset()
    for _ in range(CartPole.MAX_STEPS):
        world._state[:] = 0  # upright for ever
        step = world.step(np.array([0]))
    assert (step.truncated[0], step.terminated[0]) == (True, False)


@pytest.mark.parametrize("kind", [FreeWorld, CartPole, Recall])
def test_next_step_shows_the_last_observation_and_then_a_reset(kind: type[World]) -> None:
    world = kind(NUM_ENVS, "next", 0)
    world.reset()
    over = np.zeros(NUM_ENVS, bool)
    resets = 0
    for _ in range(EPISODE_STEPS + 5):
        step = world.step(np.zeros(NUM_ENVS, np.int64))
        reset = np.zeros(NUM_ENVS, bool) if step.reset is None else step.reset
        assert (reset == over).all()
        assert not step.reward[reset].any()
        assert not (step.terminated | step.truncated)[reset].any()
        assert step.final is None
        over = step.terminated | step.truncated
        resets += int(reset.sum())
    assert resets >= NUM_ENVS


@pytest.mark.parametrize("kind", [FreeWorld, CartPole, Recall])
def test_same_step_keeps_the_last_observation_apart(kind: type[World]) -> None:
    same, after = kind(NUM_ENVS, "same", 0), kind(NUM_ENVS, "next", 0)
    assert (same.reset() == after.reset()).all()
    actions = np.zeros(NUM_ENVS, np.int64)
    while True:
        one, other = same.step(actions), after.step(actions)
        over = one.terminated | one.truncated
        assert (over == (other.terminated | other.truncated)).all()
        if over.any():
            break
        assert (one.observation == other.observation).all()
        assert one.final is None
    assert one.final is not None
    assert (one.final[over] == other.observation[over]).all()
    assert one.reset is None


def test_stragglers_sleep_one_after_the_other() -> None:
    slept: list[float] = []
    world = Straggler(NUM_ENVS, "next", 0, sleep=slept.append)
    world.reset()
    assert slept == [pytest.approx(0.5 * NUM_ENVS)]
    slept.clear()
    steps = 20_000
    resets = 0
    for _ in range(steps):
        step = world.step(np.zeros(NUM_ENVS, np.int64))
        resets += 0 if step.reset is None else int(step.reset.sum())
    live = steps * NUM_ENVS - resets
    assert resets == pytest.approx(steps * NUM_ENVS / EPISODE_STEPS, rel=0.1)
    assert sum(slept) - 0.5 * resets == pytest.approx(live * (0.95 * 0.005 + 0.05 * 0.1), rel=0.05)


def test_only_who_remembers_the_cue_is_rewarded() -> None:
    world = Recall(50, "same", 1)
    cue = world.reset()[:, : Recall.CUES].argmax(1)
    guesses = np.random.default_rng(2).integers(0, Recall.CUES, (Recall.DELAY + 2, 50))
    rewards = np.zeros(50)
    for row in guesses:
        step = world.step(row)
        rewards += step.reward
    assert step.terminated.all()
    # The question is seen after `DELAY` + 1 actions; the next one is the answer.
    answers = guesses[Recall.DELAY + 1]
    assert rewards.tolist() == [float(answers[i] == cue[i]) for i in range(50)]
    assert 0 < rewards.sum() < 50


@pytest.mark.parametrize("frames", [1, 4])
def test_images_are_as_many_as_asked_for(frames: int) -> None:
    for world in (FreeImages(2, "same", 0, frames), Pong(2, "same", 0, frames)):
        observation = world.reset()
        step = world.step(np.zeros(2, np.int64))
        assert observation.shape == step.observation.shape == (2, frames, 84, 84)
        assert observation.dtype == step.observation.dtype == np.uint8
        assert step.reward.dtype == np.float32


def totals_of(tmp_path: Path, world: World, steps: int, waits: list[float]) -> records.Totals:
    """What is recorded of some steps, before each of which the policy takes one of the waits."""
    times = iter(np.repeat(np.cumsum([0.0, *waits * steps]), 2)[1:].tolist())
    recorded = RecordedWorld(world, Record(tmp_path), clock=lambda: next(times))
    recorded.reset()
    for _ in range(steps):
        recorded.step(np.zeros(world.num_envs, np.int64))
    return records.read(tmp_path)


@pytest.mark.parametrize("autoreset", ["same", "next"])
def test_steps_that_begin_an_episode_do_not_count(tmp_path: Path, autoreset: Any) -> None:
    found = totals_of(tmp_path, FreeWorld(NUM_ENVS, autoreset, 0), EPISODE_STEPS + 1, [0.001])
    extra = 1 if autoreset == "same" else 0
    assert found.steps == (EPISODE_STEPS + extra) * NUM_ENVS
    assert sum(found.waits) == found.steps
    assert found.episodes == NUM_ENVS
    assert found.mean_return == EPISODE_STEPS


def test_waits_are_between_a_step_and_the_next(tmp_path: Path) -> None:
    found = totals_of(tmp_path, FreeWorld(NUM_ENVS, "same", 0), 100, [0.010])
    assert records.percentile(found.waits, 0.5) == pytest.approx(0.010, rel=0.05)


def test_percentiles_are_those_of_the_waits() -> None:
    rng = np.random.default_rng(0)
    waits = rng.lognormal(-7, 2, 5000)
    bins = [0] * records.BINS
    for wait in waits:
        bins[records.bin_of(float(wait))] += 1
    for part in (0.5, 0.99):
        expected = float(np.quantile(waits, part))
        assert records.percentile(tuple(bins), part) == pytest.approx(expected, rel=0.05)
    assert records.percentile((0,) * records.BINS, 0.5) is None
    assert records.bin_of(0.0) == 0
    assert records.bin_of(1e9) == records.BINS - 1


def test_the_last_hundred_episodes_are_those_of_all_worlds_together(tmp_path: Path) -> None:
    first, second = Record(tmp_path), Record(tmp_path)
    ends = [(float(when), float(when % 7)) for when in range(400)]
    for index, (when, value) in enumerate(ends):
        (first if index % 3 else second).finished(when, value)
    found = records.read(tmp_path)
    assert found.episodes == 400
    assert found.mean_return == pytest.approx(np.mean([value for _, value in ends[-100:]]))


@pytest.mark.parametrize("workload", ["W1", "W2", "W3", "W4", "W6"])
def test_seedbed_takes_the_worlds(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(records.FOLDER_VARIABLE, str(tmp_path))
    env = make_environment(f"benchmarks.peer_drivers.vector_env:{workload.lower()}", 2, seed=1)
    env.reset()
    for _ in range(10):
        step = env.step(np.zeros(2, np.int64))
    shape = (84, 84, 1) if workload in ("W2", "W4") else env.observation_space.shape
    assert step.observation.shape == (2, *shape)
    assert records.read(tmp_path).steps > 0
    env.close()


def test_worlds_are_made_by_their_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(records.FOLDER_VARIABLE, str(tmp_path))
    world = make_world("W6", 2, "same", seed=0)
    world.reset()
    step = world.step(np.zeros(2, np.int64))
    assert isinstance(step, Step)
    assert (world.shape, world.num_actions) == (Recall.shape, Recall.CUES)
