"""The acting half of the learner as a process of its own: the parts of `learner.app.Learner` from the
server to the unrolls, with a thread in the trainer's place that takes unrolls and throws them away."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.children import commands, raise_file_limit, with_port
from benchmarks.measure import thread_cpu_seconds
from learner.config import LearnerOptions
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import Steps, UnrollPool, UnrollWriter, pool_columns
from learner.flags import LeaseEnd
from learner.operation_threads import set_operation_threads
from learner.planning.ready import ready_batch
from learner.serving.addresses import Addresses
from learner.serving.batcher import InferenceBatch
from learner.serving.server import InferenceServer
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.logs import import_tensorflow
from learner.threads import Threads
from protos import inference_pb2 as pb
from protos.specs import EnvironmentSpec


@dataclass(frozen=True)
class Setup:
    """What the learner is to be. `options` say how many environments and how large a batch."""

    address: str
    spec: EnvironmentSpec
    options: LearnerOptions
    record: bool


@dataclass(frozen=True)
class Counters:
    """What the learner has done by now."""

    time: float
    """of `time.monotonic`; seconds where they are the difference of two"""
    rows: int
    batches: int
    thread_cpu_seconds: dict[str, float]
    """of threads that Python started; what gRPC and TensorFlow start is not in it"""


def run_learner(connection: Connection, setup: Setup) -> None:
    """The process: says its address once it serves, then answers `counters` and `policy`. Ends when the
    pipe closes."""
    raise_file_limit()
    import_tensorflow()
    set_operation_threads(setup.options.tf_threads)
    serving = ServingLearner(setup)
    connection.send(serving.start())
    for command, *arguments in commands(connection):
        connection.send(getattr(serving, command)(*arguments))
    serving.close()


def between(looks: Sequence[tuple[Counters, Counters]]) -> Counters:
    """What the learner did from the first to the second of each two looks, all of them together."""
    spent: dict[str, float] = {}
    for before, after in looks:
        for name, seconds in after.thread_cpu_seconds.items():
            since = seconds - before.thread_cpu_seconds.get(name, 0.0)
            spent[name] = spent.get(name, 0.0) + since
    return Counters(
        time=sum(after.time - before.time for before, after in looks),
        rows=sum(after.rows - before.rows for before, after in looks),
        batches=sum(after.batches - before.batches for before, after in looks),
        thread_cpu_seconds=spent,
    )


class NoExperience:
    """Stores nothing."""

    def wait_for_room(self) -> bool:
        return True

    def has_room(self) -> bool:
        return True

    def append(self, steps: Steps) -> None:
        pass

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        pass


class ServingLearner:
    """Serves, records and never trains."""

    def __init__(self, setup: Setup) -> None:
        # Imported here: everything below needs TensorFlow.
        from learner.agents.build import make_agent
        from learner.serving.acting import Acting
        from learner.training.weights import PublishedWeights

        options, spec = setup.options, setup.spec
        self._spec, self._options, self._address = spec, options, setup.address
        self._server = InferenceServer(Addresses(setup.address), lease_seconds=options.lease_seconds)
        self._threads = Threads(on_failure=lambda: None)  # `counters` raises it
        slots, capacity = options.max_environments, options.queue_capacity or options.batch_size
        self._acting = Acting(
            make_agent(options, spec, seed=options.seed).policy,
            spec,
            PublishedWeights(lambda: None),
            num_slots=slots,
            max_rows=options.inference_batch_size,
            num_threads=options.inference_threads,
            seed=options.seed,
            engine=options.policy_engine,
        )
        self._queue = UnrollQueue(capacity)
        self._pool = UnrollPool(
            self._acting.layout,
            options.unroll_length,
            pool_columns(slots, capacity, options.batch_size),
        )
        self._writer = UnrollWriter(self._pool, self._queue, slots)
        self._experience = self._writer if setup.record else NoExperience()
        self._episodes = EpisodeTracker(slots)

    def start(self) -> str:
        """Serve; returns the address to connect to."""
        self._server.start()
        self._acting.start(self._threads, self._episodes, self._experience)
        self._threads.start("consumer", self._consume)
        self._server.open_lanes({pb.TRAIN: self._acting.lane(self._experience)})
        return with_port(self._address, self._server.port)

    def close(self) -> None:
        self._queue.close()
        self._acting.stop()
        self._server.close()

    # Commands -----------------------------------------------------------------------------------

    def counters(self) -> Counters:
        self._threads.raise_failure()
        threads = {
            thread.name: thread_cpu_seconds(thread.native_id)
            for thread in threading.enumerate()
            if thread.native_id is not None
        }
        batches = self._acting.statistics()
        return Counters(time.monotonic(), int(batches["rows"]), int(batches["batches"]), threads)

    def policy(self, rows: int, seconds: float) -> tuple[int, float]:
        """Calls of the policy alone, and the seconds they took: on ready-made batches of `rows`, in as
        many threads as serve. The streams must be idle."""
        options = self._options
        batches = [
            ready_batch(self._spec, rows, self._acting.max_rows, options.max_environments)
            for _ in range(options.inference_threads)
        ]
        began = time.monotonic()
        with ThreadPoolExecutor(len(batches)) as pool:
            calls = sum(pool.map(partial(self._call, until=began + seconds), batches))
        return calls, time.monotonic() - began

    def _call(self, batch: InferenceBatch, until: float) -> int:
        calls = 0
        while time.monotonic() < until:
            self._acting.policy(batch)
            calls += 1
        return calls

    # Experience ---------------------------------------------------------------------------------

    def _consume(self) -> None:
        while (columns := self._queue.take(self._options.batch_size)) is not None:
            self._pool.release(columns)


def local_options(options: LearnerOptions, environments: int) -> LearnerOptions:
    """`options` with the slots and the batch that `seedbed train` has for so many local environments."""
    return dataclasses.replace(
        options, max_environments=2 * environments, inference_batch_size=environments
    )
