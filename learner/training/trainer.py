"""The training thread: batches in, better weights out."""

from collections.abc import Callable, Iterable, Mapping

from learner.agents.agent import PRIORITIES
from learner.experience.prefetch import Prepared
from learner.experience.trajectory import Batch, Tensor
from learner.telemetry.statistics import BusyClock, RunningMean
from learner.training.weights import PublishedWeights

Update = Callable[[Batch, float], Mapping[str, Tensor]]
"""Takes a batch and the run's progress (0 to 1); gives what `Agent.update` does."""


class Trainer:
    """Updates the agent batch by batch, and publishes every new version of its weights.

    `check` sees each batch with what the update returned, before the new weights are published; what it
    raises ends `run`.

    `run` is called by one thread, the process's main one; others read `version` and `statistics`.
    """

    def __init__(
        self,
        update: Update,
        batches: Iterable[Prepared],
        weights: PublishedWeights,
        clock: BusyClock,
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
        self._progress = progress
        self._check = check
        self._after_update = after_update
        self._scalars: Mapping[str, Tensor] = {}

    def run(self) -> None:
        """Train until the batches end, or `after_update` (which gets the new version) says False."""
        for batch, on_trained in self._batches:
            with self._clock.busy():
                self.policy_lag.add(self.version - float(batch.version.numpy()[:-1].mean()))
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
        return {"version": self.version}
