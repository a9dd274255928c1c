"""Sums and means over the learners that train together, by `tf.distribute.MultiWorkerMirroredStrategy`.

Every learner of a group makes the same collective calls in the same order: each call waits for the
others' own. What is the same in all of them (weights, optimizer, running moments) are plain variables
of each, which stay equal since each changes them by the same numbers: the strategy brings the
collectives, and finds out whether the others live. Mirrored variables would add nothing but
Keras's own sum over replicas, in which gradients are clipped too early.
"""

import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from learner.cluster import Cluster
from protos.errors import WorkerFailure

Tensor = Any
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# What a collective ends with where another process, or the way to it, is gone.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


class Learners(Protocol):
    """Those that train together, as an agent's update sees them. Every learner's batch is as large."""

    @property
    def size(self) -> int:
        """How many they are."""
        ...

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """float32 tensors of static shapes, element by element the mean over all learners, and the
        same in each of them. Part of a graph."""
        ...


class Alone:
    """One learner, which is its own mean."""

    size = 1

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)


ALONE = Alone()


class Group:
    """The learners of a cluster, all of which have joined.

    The methods that take arrays are called by the main thread, and hear signals while they wait.
    """

    def __init__(self, cluster: Cluster, strategy: Any) -> None:
        self.size = len(cluster.addresses)
        self.index = cluster.index
        """of this learner; that of the first one is 0"""
        self._strategy = strategy
        self._summed = functools.cache(self._trace_sum)

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        # One message between learners, however many tensors there are.
        flat = self._reduced("MEAN", tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0))
        parts = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
        return [tf.reshape(part, each.shape) for part, each in zip(parts, tensors, strict=True)]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over all learners of each one's `values`, of one shape and dtype in all.

        Raises:
            WorkerFailure: another learner is gone.
        """
        traced = self._summed(values.shape, values.dtype)
        reduce = self.guarded(lambda: traced(tf.constant(values)).numpy())
        summed: np.ndarray = _in_thread(reduce).result()
        return summed

    def from_first(self, values: np.ndarray) -> np.ndarray:
        """The first learner's `values`, bit by bit; those of the others count by shape and dtype.

        Raises:
            WorkerFailure: another learner is gone.
        """
        kind = np.int32 if values.dtype == np.bool_ or values.dtype == np.uint8 else values.dtype
        sent = values.astype(kind)
        return self.sum(np.zeros_like(sent) if self.index else sent).astype(values.dtype)

    def text_from_first(self, text: str) -> str:
        """The first learner's `text`.

        Raises:
            WorkerFailure: another learner is gone.
        """
        encoded = np.frombuffer(text.encode(), np.uint8)
        length = int(self.from_first(np.array([len(encoded)], np.int64))[0])
        return self.from_first(np.resize(encoded, length)).tobytes().decode()

    def share(self, variables: Sequence[Any]) -> None:
        """Give every learner the first one's values of its tf.Variables, in one message a dtype.

        Raises:
            WorkerFailure: another learner is gone.
        """
        for dtype in sorted({variable.dtype.name for variable in variables}):
            alike = [variable for variable in variables if variable.dtype.name == dtype]
            flat = self.from_first(np.concatenate([np.ravel(each.numpy()) for each in alike]))
            ends = np.cumsum([each.shape.num_elements() for each in alike])
            for variable, part in zip(alike, np.split(flat, ends[:-1]), strict=True):
                variable.assign(part.reshape(variable.shape))

    def guarded(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """`function`, which makes collective calls, with an error that says what the loss of another
        learner means."""

        def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            with _loss_explained():
                return function(*arguments, **named)

        return call

    def _trace_sum(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        traced = tf.function(lambda x: self._reduced("SUM", x), autograph=False)
        return traced.get_concrete_function(tf.TensorSpec(shape, dtype))

    def _reduced(self, how: str, x: Tensor) -> Tensor:
        def reduce(x: Tensor) -> Tensor:
            # The identity lies on the replica's device, which a tensor of a graph need not.
            return tf.distribute.get_replica_context().all_reduce(how, tf.identity(x))

        return self._strategy.run(reduce, args=(x,))


def join(cluster: Cluster) -> Group:
    """The group of a cluster's learners, all of which do the same at about the same time. By the main
    thread, before anything else is done with TensorFlow.

    Raises:
        WorkerFailure: TensorFlow cannot connect them.
    """
    # One device a learner, as without a group; the strategy would take all.
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:1], "GPU")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.index,
        rpc_layer="grpc",
    )
    # Python does not know that TensorFlow puts a handler of its own in this one's place, to tell other
    # learners of a preemption, after which SIGTERM would end nothing.
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return Group(cluster, tf.distribute.MultiWorkerMirroredStrategy(resolver))
    except tf.errors.OpError as error:
        raise WorkerFailure(
            f"learner {cluster.index} of the group cannot join the others at "
            f"{cluster.addresses[cluster.index]}: {error.message}"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _loss_explained() -> Iterator[None]:
    try:
        yield
    except _LOST as error:
        # Around the reason stands where in the graph it was met.
        lines = error.message.strip().splitlines()
        reason = next((line for line in lines if "aborted by" in line), lines[0])
        raise WorkerFailure(
            "another learner of the group is gone, so that this one ends too: start them all again, and "
            f"they go on from the last checkpoint ({reason})"
        ) from error


def _in_thread(function: Callable[[], Result]) -> Future[Result]:
    """Its result to be: TensorFlow's waits would keep the main thread from hearing signals.

    Daemon: where the others are gone for good, the process ends all the same.
    """
    future: Future[Result] = Future()

    def body() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result meets it
            future.set_exception(error)

    threading.Thread(target=body, name="group", daemon=True).start()
    return future
