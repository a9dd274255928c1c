"""The acting half of a learner, put together: from the requests of one lane to their answers."""

from collections.abc import Mapping
from functools import partial

from learner.agents.agent import Policy
from learner.experience.unrolls import Layout
from learner.serving.batcher import Batcher, InferenceBatch
from learner.serving.inference import Experience, InferenceWorker
from learner.serving.leases import Lane
from learner.serving.policy_call import PolicyEngine, PolicyFunction
from learner.serving.slots import Slots
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.statistics import BusyClock, Durations, Spread, merged
from learner.threads import Threads
from learner.training.weights import PublishedWeights
from protos.specs import EnvironmentSpec


class Acting:
    """One policy that answers one lane's sessions. Warmed up once it is made.

    Where NumPy computes the policy, the event loop's thread acts as soon as it has read what has come,
    and an inference thread only where there is no room for experience: it can wait for that.

    Args:
        policy: acts, with variables that `weights` publishes to.
        spec: of the environments.
        num_slots: environments served at once.
        max_rows: most environments in a policy call.
        num_threads: inference threads, where TensorFlow computes the policy.
        seed: of the policy's samples.
        greedy: the best action instead of a sample.
        engine: what computes the policy.
        clip_observations: limit that floats of observations are clipped to; 0 to refuse what is not
            finite.
        name: of the threads, before their number.
    """

    def __init__(
        self,
        policy: Policy,
        spec: EnvironmentSpec,
        weights: PublishedWeights,
        *,
        num_slots: int,
        max_rows: int,
        num_threads: int = 1,
        seed: int = 0,
        greedy: bool = False,
        engine: PolicyEngine = "auto",
        clip_observations: float = 0.0,
        name: str = "inference thread",
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._clip_observations = clip_observations
        self.max_rows = max_rows
        self.slots = Slots(num_slots)
        self.policy = PolicyFunction(
            policy,
            spec.observation,
            num_slots=num_slots,
            max_rows=max_rows,
            seed=seed,
            greedy=greedy,
            weights=weights,
            engine=engine,
        )
        self.policy.warm_up(InferenceBatch(spec.observation, max_rows, num_slots))
        # One is enough to wait for room.
        self._num_threads = 1 if self.policy.by_numpy else num_threads
        names = [f"{name} {index}" for index in range(self._num_threads)]
        self._event_loop = f"{name} (event loop)" if self.policy.by_numpy else None
        if self._event_loop is not None:
            names.append(self._event_loop)
        self.batcher = Batcher(
            spec.observation, max_rows=max_rows, scratch_slot=num_slots, consumers=len(names)
        )
        self.clocks = {name: BusyClock() for name in names}
        """what each thread is busy with that infers, by its name"""
        self._latencies = {name: Durations() for name in names}
        self._workers: list[InferenceWorker] = []
        self._at_once: InferenceWorker | None = None

    @property
    def computed_by(self) -> str:
        """What computes the actions, and where, for people."""
        if self._event_loop is not None:
            return "NumPy in the event loop"
        return f"TensorFlow in {self._num_threads} inference thread{'s' * (self._num_threads > 1)}"

    @property
    def layout(self) -> Layout:
        """What a step of this policy consists of."""
        return self.policy.layout

    def start(self, threads: Threads, episodes: EpisodeTracker, experience: Experience) -> None:
        """Start the inference threads; every answered step goes to both."""
        for name, clock in self.clocks.items():
            worker = InferenceWorker(self.policy, clock, self._latencies[name], episodes, experience)
            self._workers.append(worker)
            if name == self._event_loop:
                self._at_once = worker
            else:
                threads.start(name, partial(worker.run, self.batcher))

    def lane(self, experience: Experience, *, trains: bool = True) -> Lane:
        """Where the sessions go; `experience` hears of the leases that end."""
        return Lane(
            spec=self._spec,
            slots=self.slots,
            max_rows=self.max_rows,
            submit=self.batcher.submit,
            hand_over=self._hand_over,
            version=lambda: self._weights.version,
            drop=experience.drop,
            clip_observations=self._clip_observations,
            trains=trains,
        )

    def _hand_over(self) -> None:
        if self._at_once is None or not self._at_once.act_at_once(self.batcher):
            self.batcher.hand_over()

    def stop(self) -> None:
        """Make the inference threads come to their ends. Any thread may call it. Idempotent."""
        self.batcher.close()

    def busy_fraction(self) -> float:
        """Part of its time that the busiest thread infers, since the last call: 0 to 1."""
        return max(clock.busy_fraction() for clock in self.clocks.values())

    def statistics(self) -> Mapping[str, float]:
        busy = sum(clock.busy_seconds() for clock in self.clocks.values())
        # Of one thread, so that its growth a second is the load: 1 where no more rows can be inferred.
        load = sum(worker.load_seconds for worker in self._workers) / self._num_threads
        own = {"busy_seconds": busy, "load_seconds": load}
        own |= {
            "event_loop_policy_cpu_seconds": sum(worker.cpu_seconds for worker in self._workers),
            "event_loop_policy_load_seconds": sum(worker.cpu_load_seconds for worker in self._workers),
        }
        return {**self.batcher.statistics(), **self.slots.statistics(), **own}

    def spreads(self) -> Mapping[str, Spread]:
        """How batches are spread: their rows, the seconds that they waited, and those that they took."""
        return {**self.batcher.spreads(), "latency": merged(list(self._latencies.values()))}
