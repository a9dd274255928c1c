"""The training thread: batches in, better weights out."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from learner.agents.agent import PRIORITIES
from learner.experience.prefetch import Prepared
from learner.experience.trajectory import Batch, Tensor
from learner.telemetry.statistics import BusyClock, Histogram, RunningMean, Spread, durations
from learner.training.weights import PublishedWeights

_LAGS = [0, *(2**power for power in range(18))]

Update = Callable[[Batch, float], Mapping[str, Tensor]]
"""Takes a batch and the run's progress (0 to 1); gives what `Agent.update` does."""


class Trainer:
    """Updates the agent batch by batch, and publishes every new version of its weights.

    `check` sees each batch with what the update returned, before the new weights are published; what it
    raises ends `run`.

    `clock` is busy with updates, `waiting` with the wait for a batch; the rest of the thread's time is
    what `after_update` does.

    `run` is called by one thread, the process's main one; others read `version` and `statistics`.
    """

    def __init__(
        self,
        update: Update,
        batches: Iterable[Prepared],
        weights: PublishedWeights,
        clock: BusyClock,
        waiting: BusyClock,
        *,
        progress: Callable[[], float] = lambda: 0.0,
        version: int = 0,
        check: Callable[[Batch, Mapping[str, Tensor]], None] = lambda batch, outputs: None,
        after_update: Callable[[int], bool] = lambda version: True,
    ) -> None:
        self.version = version
        self.policy_lag = RunningMean()
        """Versions between acting and training, by batch."""
        self._update = update
        self._batches = batches
        self._weights = weights
        self._clock = clock
        self._waiting = waiting
        self._progress = progress
        self._check = check
        self._after_update = after_update
        self._scalars: Mapping[str, Tensor] = {}
        self._durations = durations()
        self._lags = Histogram(_LAGS)

    def run(self) -> None:
        """Train until the batches end, or `after_update` (which gets the new version) says False."""
        for batch, on_trained in self._awaited():
            with self._clock.busy(), self._durations.time():
                self._note_lag(batch)
                outputs = dict(self._update(batch, self._progress()))
                self._check(batch, outputs)
                priorities = outputs.pop(PRIORITIES, None)
                self._scalars = outputs
                self.version += 1
                self._weights.publish(self.version)
                on_trained(None if priorities is None else priorities.numpy())
            if not self._after_update(self.version):
                return

    def scalars(self) -> dict[str, float]:
        """What the last update reported. Any thread may ask."""
        return {name: float(value) for name, value in self._scalars.items()}

    def statistics(self) -> Mapping[str, float]:
        return {
            "version": self.version,
            "busy_seconds": self._clock.busy_seconds(),
            "data_wait_seconds": self._waiting.busy_seconds(),
        }

    def spreads(self) -> Mapping[str, Spread]:
        """How updates are spread: seconds of each, and versions between acting and training."""
        return {"update": self._durations.spread(), "policy_lag": self._lags.spread()}

    def _awaited(self) -> Iterator[Prepared]:
        batches = iter(self._batches)
        while True:
            with self._waiting.busy():
                prepared = next(batches, None)
            if prepared is None:
                return
            yield prepared

    def _note_lag(self, batch: Batch) -> None:
        lag = self.version - float(batch.version.numpy()[:-1].mean())
        self.policy_lag.add(lag)
        self._lags.add(lag)
