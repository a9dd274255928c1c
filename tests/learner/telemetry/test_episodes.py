"""What counts as a step and as an episode; thresholds; going on after a restart."""

import json
import threading

import numpy as np
import pytest

from learner.flags import LEASE_START
from learner.telemetry.episodes import WINDOW, Episode, EpisodeTracker
from protos import inference_pb2 as pb
from protos.errors import CheckpointError


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def observe(tracker: EpisodeTracker, *rows: tuple[int, float, str]) -> None:
    """Rows of (slot, reward, flags): F first, T terminated, U truncated, L lease start."""
    bits = {"F": pb.FIRST, "T": pb.TERMINATED, "U": pb.TRUNCATED, "L": LEASE_START}
    tracker.observe(
        slots=np.array([row[0] for row in rows], np.int32),
        reward=np.array([row[1] for row in rows], np.float32),
        flags=np.array([sum(bits[letter] for letter in row[2]) for row in rows], np.uint8),
    )


def run_episode(tracker: EpisodeTracker, slot: int, *rewards: float, begin: str = "F") -> None:
    observe(tracker, (slot, 0.0, begin))
    for reward in rewards[:-1]:
        observe(tracker, (slot, reward, ""))
    observe(tracker, (slot, rewards[-1], "T"))


def test_steps_are_rows_that_an_environment_executed() -> None:
    tracker = EpisodeTracker(4)
    observe(tracker, (0, 0, "FL"), (1, 5, "L"))
    assert tracker.env_steps == 0
    observe(tracker, (0, 1, ""), (1, 1, "T"))
    assert tracker.env_steps == 2
    observe(tracker, (0, 1, "U"), (1, 0, "F"))
    assert tracker.env_steps == 3
    observe(tracker, (0, 0, "F"), (1, 1, ""))
    assert tracker.env_steps == 4


def test_finished_episode_has_its_return_length_and_moment() -> None:
    now = FakeClock()
    seen: list[Episode] = []
    tracker = EpisodeTracker(8, clock=now, on_episode=seen.append)
    observe(tracker, (3, 0, "FL"))
    now.now += 2
    observe(tracker, (3, 1.5, ""))
    observe(tracker, (3, 2.0, "T"))
    assert seen == [Episode(3, 3.5, 2, 2, 2.0)]
    assert tracker.episodes == 1
    assert tracker.mean_return() == 3.5


def test_truncated_episodes_count() -> None:
    tracker = EpisodeTracker(1)
    observe(tracker, (0, 0, "FL"))
    observe(tracker, (0, 4, "U"))
    assert tracker.mean_return() == 4


def test_consecutive_episodes_do_not_leak_into_each_other() -> None:
    seen: list[Episode] = []
    tracker = EpisodeTracker(1, on_episode=seen.append)
    run_episode(tracker, 0, 1, 1, begin="FL")
    run_episode(tracker, 0, 10)
    assert [(e.episode_return, e.length) for e in seen] == [(2, 2), (10, 1)]


def test_an_episode_not_seen_from_its_first_row_does_not_count_but_its_steps_do() -> None:
    tracker = EpisodeTracker(1)
    observe(tracker, (0, 50, "L"))
    observe(tracker, (0, 1, ""))
    observe(tracker, (0, 1, "T"))
    assert (tracker.env_steps, tracker.episodes, tracker.mean_return()) == (2, 0, None)
    run_episode(tracker, 0, 7)
    assert (tracker.episodes, tracker.mean_return()) == (1, 7)


def test_a_new_lease_of_the_slot_drops_the_half_of_an_episode() -> None:
    tracker = EpisodeTracker(1)
    observe(tracker, (0, 0, "FL"))
    observe(tracker, (0, 99, ""))
    observe(tracker, (0, 1, "L"))
    observe(tracker, (0, 1, "T"))
    assert tracker.episodes == 0
    observe(tracker, (0, 0, "F"))
    observe(tracker, (0, 99, ""))
    run_episode(tracker, 0, 2, begin="FL")
    assert (tracker.episodes, tracker.mean_return()) == (1, 2)


def test_rows_after_an_end_without_a_first_row_do_not_count_again() -> None:
    tracker = EpisodeTracker(1)
    run_episode(tracker, 0, 1, begin="FL")
    observe(tracker, (0, 1, "T"))
    assert tracker.episodes == 1


def truth(rows: list[list[tuple[int, float, str]]]) -> tuple[int, list[tuple[int, float, int]]]:
    """Steps and episodes (slot, return, length) by the definition, one row at a time."""
    steps, ended, open_episodes = 0, [], dict[int, tuple[float, int]]()
    for batch in rows:
        for slot, reward, flags in batch:
            if "L" in flags:
                open_episodes.pop(slot, None)
            if "F" in flags:
                open_episodes[slot] = (0.0, 0)
                continue
            if "L" in flags:
                continue
            steps += 1
            if slot in open_episodes:
                total, length = open_episodes[slot]
                open_episodes[slot] = (total + reward, length + 1)
                if "T" in flags or "U" in flags:
                    ended.append((slot, *open_episodes.pop(slot)))
    return steps, ended


def random_rows(random: np.random.Generator, batches: int) -> list[list[tuple[int, float, str]]]:
    ended = dict.fromkeys(range(6), True)
    rows = []
    for _ in range(batches):
        batch = []
        for slot in random.permutation(6)[: random.integers(1, 7)].tolist():
            lease = "L" if random.random() < 0.05 else ""
            first = ended[slot] or (lease and random.random() < 0.5)
            end = "" if first or lease else random.choice(["", "", "", "T", "U"])
            batch.append(
                (slot, float(random.integers(-3, 4)) * (not first), f"{lease}{'F' * bool(first)}{end}")
            )
            ended[slot] = bool(end)
        rows.append(batch)
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_random_rows_agree_with_the_slow_truth(seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 400)
    seen: list[Episode] = []
    tracker = EpisodeTracker(6, on_episode=seen.append)
    for batch in rows:
        observe(tracker, *batch)
    steps, ended = truth(rows)
    assert tracker.env_steps == steps
    assert [(e.slot, e.episode_return, e.length) for e in seen] == ended
    assert len(ended) > 50
    assert tracker.mean_return() == pytest.approx(np.mean([e[1] for e in ended[-WINDOW:]]))


def test_threads_lose_no_steps() -> None:
    tracker = EpisodeTracker(4)
    begin = threading.Barrier(4)

    def act(slot: int) -> None:
        begin.wait()
        for _ in range(50):
            run_episode(tracker, slot, 1, 1, 1)

    threads = [threading.Thread(target=act, args=(slot,)) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tracker.env_steps, tracker.episodes, tracker.mean_return()) == (600, 200, 3)


def test_the_callback_may_read_the_tracker() -> None:
    counts: list[int] = []
    tracker = EpisodeTracker(1, on_episode=lambda _: counts.append(tracker.episodes))
    run_episode(tracker, 0, 1, begin="FL")
    assert counts == [1]


def test_solved_when_the_mean_of_a_hundred_first_reaches_the_threshold() -> None:
    now = FakeClock()
    tracker = EpisodeTracker(1, stop_return=10, clock=now)
    for _ in range(99):
        now.now += 1
        run_episode(tracker, 0, 10)
    assert (tracker.solved_env_steps, tracker.solved_seconds) == (None, None)
    now.now += 1
    run_episode(tracker, 0, 10)
    assert (tracker.solved_env_steps, tracker.solved_seconds) == (100, 100)
    run_episode(tracker, 0, 10)
    assert tracker.solved_env_steps == 100


def test_not_solved_below_the_threshold_nor_without_one() -> None:
    below, without = EpisodeTracker(1, stop_return=10), EpisodeTracker(1)
    for _ in range(150):
        run_episode(below, 0, 9.5)
        run_episode(without, 0, 1000)
    assert below.solved_env_steps is None
    assert without.solved_env_steps is None


def test_state_goes_through_json_and_the_run_goes_on() -> None:
    now = FakeClock()
    before = EpisodeTracker(1, stop_return=5, clock=now)
    for _ in range(120):
        run_episode(before, 0, 2, 3)
    observe(before, (0, 0, "F"))
    observe(before, (0, 1000, ""))
    now.now += 60
    state = json.loads(json.dumps(before.state()))

    now.now += 10_000
    after = EpisodeTracker(1, stop_return=5, clock=now)
    after.restore(state)
    assert (after.env_steps, after.episodes, after.mean_return()) == (241, 120, 5)
    assert after.seconds() == pytest.approx(60)
    assert (after.solved_env_steps, after.solved_seconds) == (200, 0)
    assert after.curve() == before.curve()
    now.now += 5
    observe(after, (0, 1, "L"))
    observe(after, (0, 1, "T"))
    run_episode(after, 0, 105)
    assert (after.env_steps, after.episodes, after.mean_return()) == (243, 121, 6)
    assert after.curve().points[-1] == (243, 65.0, 105.0)


def test_another_threshold_is_not_solved_by_what_met_the_old_one() -> None:
    before = EpisodeTracker(1, stop_return=5)
    for _ in range(100):
        run_episode(before, 0, 5)
    after = EpisodeTracker(1, stop_return=6)
    after.restore(before.state())
    assert after.solved_env_steps is None


@pytest.mark.parametrize("missing", ["env_steps", "seconds", "recent_returns", "curve", "solved"])
def test_incomplete_state_is_refused(missing: str) -> None:
    state = EpisodeTracker(1).state()
    del state[missing]
    with pytest.raises(CheckpointError, match=f"count of episodes is incomplete: KeyError: '{missing}'"):
        EpisodeTracker(1).restore(state)


def test_statistics_say_how_episodes_spread() -> None:
    tracker = EpisodeTracker(1)
    assert tracker.statistics() == {
        "steps": 0, "finished": 0, "steps_since_start": 0, "finished_since_start": 0
    }  # fmt: skip
    run_episode(tracker, 0, 1, 1, 1)
    run_episode(tracker, 0, 9)
    assert tracker.statistics() == {
        "steps": 4,
        "finished": 2,
        "steps_since_start": 4,
        "finished_since_start": 2,
        "mean_length_100": 2,
        "min_return_100": 3,
        "max_return_100": 9,
    }


def test_counts_of_this_process_leave_out_those_that_were_restored() -> None:
    before, tracker = EpisodeTracker(1), EpisodeTracker(1)
    run_episode(before, 0, 1, 1)
    tracker.restore(before.state())
    run_episode(tracker, 0, 9)
    statistics = tracker.statistics()
    assert (statistics["steps"], statistics["finished"]) == (3, 2)
    assert (statistics["steps_since_start"], statistics["finished_since_start"]) == (1, 1)


def test_returns_and_lengths_are_spread_below_zero_too() -> None:
    tracker = EpisodeTracker(1)
    run_episode(tracker, 0, -3, -1)
    run_episode(tracker, 0, 1, 0, 0)
    spreads = tracker.spreads()
    returns, lengths = spreads["returns"], spreads["lengths"]
    assert returns.bounds[0] == -500_000
    assert returns.counts[returns.bounds.index(-2)] == 1  # -4: above -5, up to -2
    assert returns.counts[returns.bounds.index(1)] == 1
    assert lengths.total == 5
    assert (lengths.counts[lengths.bounds.index(2)], lengths.counts[lengths.bounds.index(5)]) == (1, 1)
