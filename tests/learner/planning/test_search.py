"""The search, over settings whose rates are known and by a clock that trials move."""

import dataclasses

import pytest

from learner.planning.search import BETTER, FIRST_SECONDS, Search
from learner.planning.trials import Setting, Trial

START = Setting(1, 16, 1, 0, 0, 8)


def sized(num_actors: int) -> Setting:
    return dataclasses.replace(START, num_actors=num_actors)


class Runs:
    """Trials that take their seconds and 4 more; their rate is what `rates` says, or `num_actors`."""

    def __init__(self, rates: dict[Setting, float] | None = None) -> None:
        self.now = 0.0
        self.rates = rates or {}
        self.seen: list[tuple[Setting, float]] = []

    def measure(self, setting: Setting, seconds: float) -> Trial:
        self.now += 4 + seconds
        self.seen.append((setting, seconds))
        rate = self.rates.get(setting, float(setting.num_actors))
        return Trial(setting, seconds, rate, error="" if rate else "it failed")

    def search(self, seconds: float) -> Search:
        return Search(self.measure, seconds=seconds, clock=lambda: self.now)


def no_variants(best: Setting) -> list[Setting]:
    return []


def test_the_better_half_goes_on_for_twice_as_long() -> None:
    runs = Runs()
    search = runs.search(1000)
    search.run([sized(n) for n in (1, 2, 3, 4, 5)], no_variants)
    rounds = {
        seconds: [setting.num_actors for setting, each in runs.seen if each == seconds]
        for seconds in (FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS)
    }
    assert list(rounds.values()) == [[1, 2, 3, 4, 5], [5, 4, 3], [5, 4]]
    best = search.best()
    assert best is not None
    assert best.setting == sized(5)


def test_no_more_candidates_than_there_is_time_for() -> None:
    runs = Runs()
    search = runs.search(90)
    search.run([sized(n) for n in range(50, 0, -1)], no_variants)
    first = [setting for setting, seconds in runs.seen if seconds == FIRST_SECONDS]
    assert 3 <= len(first) < 10
    # The most promising ones, which come first.
    assert first == [sized(n) for n in range(50, 50 - len(first), -1)]
    assert runs.now <= 90
    best = search.best()
    assert best is not None
    assert best.setting == sized(50)


@pytest.mark.parametrize("seconds", [1, 10, 30, 45, 60, 300])
def test_the_time_is_kept(seconds: float) -> None:
    runs = Runs()
    search = runs.search(seconds)
    search.run([sized(n) for n in range(1, 20)], lambda best: [dataclasses.replace(best, tf_threads=1)])
    # One trial there is in any case.
    assert runs.now <= max(seconds, 4 + FIRST_SECONDS)
    assert search.best() is not None


def test_changes_of_one_option_are_kept_where_they_help() -> None:
    one_thread = dataclasses.replace(START, tf_threads=1)
    two_inference = dataclasses.replace(START, inference_threads=2)
    both = dataclasses.replace(one_thread, inference_threads=2)
    queue = dataclasses.replace(one_thread, queue_capacity=16)
    rates = {START: 100.0, one_thread: 150.0, two_inference: 1000.0, both: 90.0, queue: 200.0}
    runs = Runs(rates)
    search = runs.search(1000)
    search.run(
        [START],
        lambda best: [
            dataclasses.replace(best, tf_threads=1),
            dataclasses.replace(best, inference_threads=2),
            dataclasses.replace(best, queue_capacity=16),
        ],
    )
    best = search.best()
    assert best is not None
    assert best.setting == queue
    # The second change is tried on top of the first, which had helped; the third without the second.
    assert [setting for setting, _ in runs.seen] == [START, one_thread, both, queue]


def test_noise_is_no_reason_to_change() -> None:
    runs = Runs({sized(1): 100.0, sized(2): 100.0 * BETTER - 0.1})
    search = runs.search(1000)
    for number in (1, 2):
        search.trials.append(runs.measure(sized(number), 4.0))
    best = search.best()
    assert best is not None
    assert best.setting == sized(1)


def test_longer_trials_count_for_more() -> None:
    search = Runs().search(1000)
    search.trials = [
        Trial(sized(1), 2.0, 100.0),
        Trial(sized(2), 2.0, 300.0),
        Trial(sized(1), 4.0, 90.0),
    ]
    best = search.best()
    assert best is not None
    assert (best.setting, best.rate) == (sized(1), 90.0)


def test_what_failed_is_never_best() -> None:
    runs = Runs({sized(n): 0.0 for n in (1, 2, 3)})
    search = runs.search(1000)
    search.run([sized(n) for n in (1, 2, 3)], no_variants)
    assert search.best() is None
    # Nor is it tried again for longer.
    assert len(runs.seen) == 3
    runs.rates[sized(2)] = 5.0
    search.run([sized(n) for n in (1, 2, 3)], no_variants)
    best = search.best()
    assert best is not None
    assert best.setting == sized(2)


def test_those_that_share_a_process_come_after_each_other() -> None:
    runs = Runs()
    mixed = [dataclasses.replace(sized(n), tf_threads=n % 2) for n in (1, 2, 3, 4)]
    runs.search(1000).run(mixed, no_variants)
    assert [setting.tf_threads for setting, _ in runs.seen[:4]] == [0, 0, 1, 1]
