"""The search of `seedbed tune`: successive halving, then one option at a time.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization" (2016):
all candidates are tried for a short time, the better half again for twice as long, and so on.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from learner.planning.trials import Setting, Trial
from learner.telemetry.statistics import Clock

FIRST_SECONDS = 2.0
"""Measured seconds of a trial in the first round; they double with each."""

ROUNDS = 3

BETTER = 1.03
"""A rate that is higher by less than this is noise: what was there before stays."""

REFINING = 0.3
"""Part of the time that is kept for trying one option at a time."""


class Search:
    """Tries settings until the time is over; `trials` holds what came of it, whenever it is asked.

    Args:
        measure: runs a trial of a setting for so many measured seconds.
        seconds: the time that there is.
        clock: seconds.
        overhead_seconds: a first guess of what a trial takes beside its measured seconds.
        report: hears of each trial once it counts.
    """

    def __init__(
        self,
        measure: Callable[[Setting, float], Trial],
        *,
        seconds: float,
        clock: Clock,
        overhead_seconds: float = 4.0,
        report: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.trials: list[Trial] = []
        """In the order in which they were run."""
        self._measure = measure
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._overhead = overhead_seconds
        self._report = report

    def affordable(self) -> int:
        """How many candidates there is time to begin with."""
        left = (1 - REFINING) * self._seconds - (self._clock() - self._began)
        # Half as many, for twice as long, in each round.
        whole = sum((self._overhead + FIRST_SECONDS * 2**r) / 2**r for r in range(ROUNDS))
        return max(int(left / whole), 2)

    def run(self, candidates: Sequence[Setting], variants: Callable[[Setting], list[Setting]]) -> None:
        """Halve the candidates, the most promising first; then try the variants of the best."""
        survivors = list(candidates[: self.affordable()])
        for round_ in range(ROUNDS):
            seconds = FIRST_SECONDS * 2**round_
            # Those that share a process after each other: starting another takes longest.
            survivors.sort(key=lambda setting: setting.tf_threads)
            tried = list(self._try(survivors, seconds, 1 - REFINING))
            if len(tried) < len(survivors):
                break
            tried.sort(key=lambda trial: -trial.rate)
            better = tried[: (len(tried) + 1) // 2]
            survivors = [trial.setting for trial in better if trial.rate > 0]
            if len(survivors) < 2:
                break
        if (best := self.best()) is not None:
            self._refine(best, variants)

    def best(self) -> Trial | None:
        """The best of those that were tried for longest; None before the first that succeeded.

        A later one replaces an earlier one only if it is clearly better: the longest trial of each
        setting is compared.
        """
        longest: dict[Setting, Trial] = {}
        for trial in self.trials:
            known = longest.get(trial.setting)
            if known is None or trial.seconds >= known.seconds:
                longest[trial.setting] = trial
        good = [trial for trial in longest.values() if trial.rate > 0]
        if not good:
            return None
        most = max(trial.seconds for trial in good)
        # The last round alone: short trials flatter.
        final = [trial for trial in good if trial.seconds >= 0.75 * most]
        best = final[0]
        for trial in final[1:]:
            if trial.rate > BETTER * best.rate:
                best = trial
        return best

    def _refine(self, best: Trial, variants: Callable[[Setting], list[Setting]]) -> None:
        """Keep each change of one option that makes the run faster."""
        for change in variants(best.setting):
            changed = {
                name: value
                for name, value in dataclasses.asdict(change).items()
                if value != getattr(best.setting, name)
            }
            current = self.best()
            assert current is not None
            setting = dataclasses.replace(current.setting, **changed)
            if setting not in {trial.setting for trial in self.trials}:
                list(self._try([setting], current.seconds, 1.0))

    def _try(self, settings: Sequence[Setting], seconds: float, part: float) -> Iterator[Trial]:
        """Trials of the settings, as long as that part of the time lasts."""
        for setting in settings:
            began = self._clock()
            if began - self._began + self._overhead + seconds > part * self._seconds and self.trials:
                return
            trial = self._measure(setting, seconds)
            # The last one's is the best guess of the next one's.
            self._overhead = max(self._clock() - began - seconds, 0.0)
            self.trials.append(trial)
            self._report(trial)
            yield trial
