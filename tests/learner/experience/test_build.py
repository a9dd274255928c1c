"""The experience as options ask for it, and what does not fit together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import LearnerOptions
from learner.experience.build import Experience, make_experience, replay_columns
from learner.experience.trajectory import Batch
from learner.experience.unrolls import Layout, bytes_per_column
from learner.training.checkpoint import Checkpoints
from learner.training.restore import load_replay, restore_replay
from protos.errors import CheckpointError, ConfigError
from tests.learner.experience.worlds import LAYOUT, World

NO_MEMORY = replace(LAYOUT, state={})

REPLAYED = {
    "unroll_length": 2, "batch_size": 2, "replay_capacity": 40, "replay_min_size": 8,
    "samples_per_insert": 1.0,
}  # fmt: skip


def make(
    layout: Layout = LAYOUT, progress: float = 0.0, lock_step: bool = False, **options: Any
) -> Experience:
    return make_experience(
        LearnerOptions(**options),
        layout,
        num_slots=3,
        to_device=lambda batch: batch,
        progress=lambda: progress,
        seed=1,
        lock_step=lock_step,
    )


def fill(experience: Experience, transitions: int, length: int = 2) -> World:
    world = World(length, np.random.default_rng(0))
    for _ in range(transitions + 1):
        experience.writer.append(world.step([0, 1]))
    return world


def next_batch(experience: Experience) -> Batch:
    assert experience.replayed is not None
    prepared = experience.replayed.next_batch()
    assert prepared is not None
    return prepared.batch


def test_on_policy_agents_have_no_replay() -> None:
    experience = make(agent="vtrace")
    assert experience.replayed is None
    assert set(experience.parts()) == {"queue", "unrolls", "prefetch"}
    assert experience.queue.statistics()["capacity"] == LearnerOptions().batch_size
    assert "replay" in make(agent="r2d2", **REPLAYED).parts()


def test_r2d2_gets_sequences_and_sac_windows() -> None:
    r2d2 = make(agent="r2d2", replay_sequence_unrolls=2, **REPLAYED)
    fill(r2d2, 10)
    assert next_batch(r2d2).reward.shape == (5, 2)

    sac = make(NO_MEMORY, agent="sac", n_step=1, **REPLAYED)
    fill(sac, 10)
    assert next_batch(sac).reward.shape == (2, 2)
    assert sac.replayed is not None
    assert sac.replayed.statistics()["items"] == 2 * sac.replayed.statistics()["unrolls"]


def test_windows_for_a_policy_with_memory_are_refused_with_the_way_out() -> None:
    with pytest.raises(
        ConfigError, match=r"--agent sac replays single .* say --lstm-size 0 and --frame"
    ):
        make(agent="sac", **REPLAYED)


def test_beta_changes_linearly_over_the_run() -> None:
    for progress, beta in ((0.0, 0.2), (0.5, 0.6), (1.0, 1.0)):
        experience = make(
            agent="r2d2", progress=progress, importance_exponent=0.2, importance_exponent_end=1.0,
            **REPLAYED,
        )  # fmt: skip
        assert experience.replayed is not None
        assert experience.replayed._importance_exponent() == pytest.approx(beta)


def test_the_replay_keeps_what_the_smaller_limit_allows() -> None:
    size = bytes_per_column(LAYOUT, 2)
    options = LearnerOptions(agent="r2d2", **{**REPLAYED, "replay_capacity": 41})
    assert replay_columns(options, LAYOUT) == 20
    options = replace(options, replay_gigabytes=(7.5 * size) / 1e9)
    assert replay_columns(options, LAYOUT) == 7


def test_a_memory_limit_below_what_training_needs_is_refused_with_the_way_out() -> None:
    size = bytes_per_column(LAYOUT, 2)
    with pytest.raises(
        ConfigError, match=r"holds 3 unrolls of .* bytes, and training needs 8 transitions: raise it to"
    ) as e:
        make(agent="r2d2", **{**REPLAYED, "replay_gigabytes": 3.5 * size / 1e9})
    enough = float(str(e.value).split("raise it to ")[1].split(",")[0])
    make(agent="r2d2", **{**REPLAYED, "replay_gigabytes": enough * 1.01})


@pytest.mark.parametrize("refusal", [MemoryError(), ValueError("array is too big")])
def test_a_pool_that_the_system_refuses_says_what_it_is_for(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise refusal

    monkeypatch.setattr("learner.experience.unrolls.np.empty", refuse)
    size = bytes_per_column(LAYOUT, 1000)
    with pytest.raises(ConfigError) as refused:
        make(agent="vtrace", unroll_length=1000, batch_size=8)
    assert str(refused.value) == (
        f"22 unrolls of {size} bytes, as --max-environments 3 may need, are "
        f"{22 * size / 1e9:.3g} GB, more than the system gives: lower --max-environments, "
        "--unroll-length, or --replay-gigabytes or --queue-capacity if these are large"
    )


def test_lock_step_leaves_room_for_one_unroll() -> None:
    experience = make(agent="r2d2", lock_step=True, **REPLAYED)
    assert experience.queue.statistics()["capacity"] == 1
    fresh = make(agent="vtrace", lock_step=True)
    assert fresh.queue.statistics()["capacity"] == LearnerOptions().batch_size


def test_closing_ends_every_wait() -> None:
    experience = make(agent="r2d2", **REPLAYED)
    experience.close()
    experience.prefetcher.run()
    assert not experience.writer.wait_for_room()


@pytest.mark.parametrize("capacity", [40, 12])
def test_a_saved_replay_goes_on_where_it_was(tmp_path: Path, capacity: int) -> None:
    options = {"agent": "r2d2", "replay_sequence_unrolls": 2, "priority_exponent": 0.5, **REPLAYED}
    experience, other = make(**options), make(**{**options, "replay_capacity": capacity})
    world = fill(experience, 20)
    assert experience.replayed is not None
    assert other.replayed is not None
    prepared = experience.replayed.next_batch()
    assert prepared is not None
    prepared.on_trained(np.array([3.0, 5.0], np.float32))
    checkpoints = Checkpoints(tmp_path, keep=2).beside("replay")

    checkpoints.save(7, *experience.replayed.state())
    saved = checkpoints.load_latest()
    assert saved is not None
    restore_replay(other, saved)

    kept = min(experience.replayed.statistics()["unrolls"], capacity // 2)
    before, after = experience.replayed.statistics(), other.replayed.statistics()
    assert after["unrolls"] == kept
    assert after["inserted"] == before["inserted"]
    assert after["sampled"] == before["sampled"]
    assert after["max_priority"] == 5
    mine, its = experience.replayed._replay, other.replayed._replay
    for one, two in zip(mine.kept()[-int(kept) :], its.kept(), strict=True):
        for name, array in experience.replayed._pool.stored().items():
            found = other.replayed._pool.stored()[name][:, two]
            np.testing.assert_array_equal(array[:, one], found, err_msg=name)
    expected = mine.priorities()[0][-int(kept) :]
    np.testing.assert_array_equal(its.priorities()[0], expected)
    # Another lease's unrolls: their numbers go on, and they continue none of the saved ones.
    for _ in range(3):
        other.writer.append(world.step([2]))
    column = other.queue.poll(1)
    pool = other.replayed._pool
    assert pool.serial[column].tolist() == [int(pool.serial[its.kept()].max()) + 1]
    assert pool.continues[column].tolist() == [-1]


def draws(experience: Experience, count: int) -> list[list[float]]:
    """Rewards of so many batches, each of which is trained on."""
    assert experience.replayed is not None
    drawn = []
    for number in range(count):
        prepared = experience.replayed.next_batch()
        assert prepared is not None
        drawn.append(prepared.batch.reward.ravel().tolist())
        prepared.on_trained(np.full(2, number + 1, np.float32))
    return drawn


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_restored_replay_draws_what_the_saved_one_would_have(waiting: int) -> None:
    """A batch that was prepared and not trained on is drawn again."""
    options = {**REPLAYED, "agent": "r2d2", "replay_sequence_unrolls": 2, "priority_exponent": 0.5}
    options |= {"samples_per_insert": 1000.0, "replay_capacity": 12}
    experience, other = make(**options), make(**options)
    assert experience.replayed is not None
    assert other.replayed is not None
    for _ in range(4):
        fill(experience, 9)
        experience.replayed._insert(experience.queue.poll(100))
    # Columns are used again, so that they are in no order.
    assert (np.diff(experience.replayed._replay.kept()) < 0).any()
    draws(experience, 7)
    prepared = [experience.replayed.next_batch() for _ in range(waiting)]
    arrays, metadata = experience.replayed.state()
    other.restore(arrays, json.loads(json.dumps(metadata)))
    for each in prepared:
        assert each is not None
        first = other.replayed.next_batch()
        assert first is not None
        assert first.batch.reward.tolist() == each.batch.reward.tolist()
        each.on_trained(np.array([3.0, 5.0], np.float32))
        first.on_trained(np.array([3.0, 5.0], np.float32))
    assert draws(other, 20) == draws(experience, 20)
    assert other.replayed.statistics()["sampled"] == experience.replayed.statistics()["sampled"]


def test_a_restored_replay_takes_other_columns_where_the_pool_is_smaller() -> None:
    options = {"agent": "r2d2", **REPLAYED}
    large, small = make(**{**options, "queue_capacity": 50}), make(**options)
    fill(large, 60)
    next_batch(large)
    assert large.replayed is not None
    assert small.replayed is not None
    arrays, metadata = large.replayed.state()
    arrays["columns"] += len(small.replayed._pool.serial) - 3
    small.restore(arrays, metadata)
    np.testing.assert_array_equal(small.replayed.state()[0]["reward"], arrays["reward"])


@pytest.mark.parametrize("damage", ["columns", "generator"])
def test_a_saved_replay_that_makes_no_sense_is_refused(damage: str) -> None:
    experience, other = (make(agent="r2d2", **REPLAYED) for _ in range(2))
    fill(experience, 20)
    next_batch(experience)
    assert experience.replayed is not None
    arrays, metadata = experience.replayed.state()
    if damage == "columns":
        arrays["columns"][:] = 0
    else:
        metadata["generator"] = {"bit_generator": "MT19937"}
    with pytest.raises(CheckpointError, match="the checkpoint's replay is incomplete: "):
        other.restore(arrays, metadata)


def test_a_saved_replay_of_other_unrolls_is_refused(tmp_path: Path) -> None:
    experience = make(agent="r2d2", **REPLAYED)
    fill(experience, 20)
    next_batch(experience)
    assert experience.replayed is not None
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(7, *experience.replayed.state())
    saved = checkpoints.load_latest()
    assert saved is not None
    with pytest.raises(CheckpointError, match=r"reward: expected float32 \[4, .* found float32 \[3,"):
        restore_replay(make(agent="r2d2", **{**REPLAYED, "unroll_length": 3}), saved)


def test_a_damaged_replay_says_how_to_go_on_without_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2).beside("replay")
    assert load_replay(checkpoints) is None
    experience = make(agent="r2d2", **REPLAYED)
    fill(experience, 20)
    assert experience.replayed is not None
    path = checkpoints.save(7, *experience.replayed.state())
    assert path is not None
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"replay saved in .*replay cannot be loaded: delete this"):
        load_replay(checkpoints)


def test_the_pool_has_room_for_acting_that_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst moment: the replay is full, the prefetch thread has the whole queue in its hands and
    has not yet evicted anything for it, and acting fills the queue again."""
    experience = make(agent="r2d2", queue_capacity=3, **{**REPLAYED, "unroll_length": 1})
    assert experience.replayed is not None
    world = World(1, np.random.default_rng(0))

    def act() -> None:
        while experience.queue.statistics()["depth"] < 3:
            experience.writer.append(world.step([0, 1, 2]))

    insert = experience.replayed._replay.insert

    def insert_late(*arrays: np.ndarray) -> np.ndarray:
        act()
        return insert(*arrays)

    monkeypatch.setattr(experience.replayed._replay, "insert", insert_late)
    act()
    for _ in range(60):
        next_batch(experience)
    statistics = experience.replayed.statistics()
    assert statistics["unrolls"] == 40
    assert statistics["evicted"] > 40
