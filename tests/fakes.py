"""Stand-ins for the learner, the policy and the network, shared by the tests.

Importing this imports no TensorFlow: only `SumPolicy`, when it is made, does.
"""

import logging
import queue
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from benchmarks.faults.proxy import Proxy
from learner.experience.trajectory import ActInputs, ActOutputs, State, Tensor
from learner.flags import LeaseEnd
from learner.serving.addresses import Addresses
from learner.serving.batcher import Request
from learner.serving.leases import Lane
from learner.serving.recorder import Recorder
from learner.serving.security import ServerSecurity
from learner.serving.server import InferenceServer
from learner.serving.slots import Slots
from protos import inference_pb2 as pb
from protos.specs import EnvironmentSpec, from_spaces

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "ACTIONS", "OBSERVATIONS", "PATIENCE_SECONDS", "SPEC", "FakeLearner", "LogLines", "Proxy",
    "SumPolicy", "answer", "first_numbers", "observation",
]  # fmt: skip

PATIENCE_SECONDS = 20.0
"""Longest wait for what must happen: what comes later than this is a failure."""

OBSERVATIONS = spaces.Box(0, 1000, (2,), np.float32)
ACTIONS = spaces.Discrete(1000)
SPEC = from_spaces(OBSERVATIONS, ACTIONS)


def observation(*numbers: float) -> np.ndarray:
    """float32 [n, 2]: an observation of `OBSERVATIONS` for each number, which tells them apart."""
    return np.array([(number, 0) for number in numbers], np.float32)


def first_numbers(request: Request) -> np.ndarray:
    """int64 [n]: each row's first number, which is what `FakeLearner` answers."""
    return request.observation[0].reshape(len(request.slots), -1)[:, 0].astype(np.int64)


def answer(request: Request, version: int = 7) -> None:
    """Answer with the rows' own first numbers, so that a mix-up of rows or steps shows."""
    request.reply(first_numbers(request), version)


# The learner ------------------------------------------------------------------------------------


class FakeLearner:
    """A server in this process, without a policy: `on_step` meets each step on the event loop.

    It answers at once, until the test sets `on_step` to something else, such as `requests.put`.
    """

    def __init__(
        self,
        address: str,
        *,
        spec: EnvironmentSpec = SPEC,
        capacity: int = 8,
        max_rows: int = 6,
        modes: tuple[int, ...] = (pb.TRAIN,),
        lease_seconds: float = 60.0,
        open_timeout_seconds: float = 30.0,
        max_message_rate: int = 0,
        local: str | None = None,
        health_listen: str | None = None,
        security: ServerSecurity | None = None,
        recorder: Recorder | None = None,
        starting: bool = False,
    ) -> None:
        self.address = address
        self.slots = Slots(capacity)
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.dropped: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.reasons: list[LeaseEnd] = []
        self.offered: queue.SimpleQueue[EnvironmentSpec] = queue.SimpleQueue()
        self.on_step: Callable[[Request], object] = answer
        self.on_opened: Callable[[], object] = lambda: None
        self.on_offer: Callable[[], object] = lambda: None
        self.server = InferenceServer(
            Addresses(address, local=local, health=health_listen),
            lease_seconds=lease_seconds,
            offer_spec=self._offer,
            open_timeout_seconds=open_timeout_seconds,
            max_message_rate=max_message_rate,
            recorder=recorder,
            security=security,
        )
        self._starting = starting
        lane = Lane(
            spec=spec,
            slots=self.slots,
            max_rows=max_rows,
            submit=self._submit,
            hand_over=lambda: None,
            version=self._version,
            drop=self._drop,
        )
        self.lanes = dict.fromkeys(modes, lane)

    def __enter__(self) -> "FakeLearner":
        self.server.start()
        if self.address.endswith(":0"):
            self.address = f"{self.address[:-2]}:{self.server.port}"
        if not self._starting:
            self.server.open_lanes(self.lanes)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def next_request(self) -> Request:
        """The next step that `requests` holds."""
        return self.requests.get(timeout=PATIENCE_SECONDS)

    def next_dropped(self) -> list[int]:
        """Slots of the next lease that ended and was answered in full."""
        return self.dropped.get(timeout=PATIENCE_SECONDS)

    def _submit(self, request: Request) -> None:
        self.on_step(request)

    def _drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        self.reasons.append(reason)
        self.dropped.put(slots.tolist())

    def _offer(self, spec: EnvironmentSpec) -> None:
        self.on_offer()
        self.offered.put(spec)

    def _version(self) -> int:
        # Asked while a session opens: the one moment between finding it and carrying it.
        self.on_opened()
        return 7


class LogLines(logging.Handler):
    """Collects what a logger says; `wait_for` makes a log line an event."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._logger = logging.getLogger(name)
        self._former_level = self._logger.level

    def __enter__(self) -> "LogLines":
        self._logger.addHandler(self)
        self._logger.setLevel(logging.DEBUG)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._former_level)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._news.put(record.getMessage())

    def wait_for(self, text: str) -> str:
        """The next line with `text` in it."""
        while text not in (line := self._news.get(timeout=PATIENCE_SECONDS)):
            pass
        return line

    def lines(self, level: int = logging.WARNING) -> list[str]:
        """What was said at `level` or above, so far."""
        return [record.getMessage() for record in self.records if record.levelno >= level]


# The policy -------------------------------------------------------------------------------------


class SumPolicy:
    """A policy whose memory is the sum of what it saw since the reset, and which acts by it.

    The action is the sum's first number plus that of the one variable, `offset`; 1000 more if greedy.

    Args:
        counts: whether it counts its calls, which only TensorFlow can.
    """

    def __init__(self, *, counts: bool = True) -> None:
        import tensorflow as tf

        self._tf = tf
        self.offset = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.traces = 0
        self._counts = counts

    @property
    def state_specs(self) -> "Mapping[str, tf.TensorSpec]":
        tf = self._tf
        return {"sum": tf.TensorSpec((2,), tf.float32), "steps": tf.TensorSpec((), tf.int32)}

    @property
    def variables(self) -> list[Any]:
        return [self.offset]

    def act(
        self, inputs: ActInputs, state: State, *, seed: Tensor, greedy: bool
    ) -> tuple[ActOutputs, State]:
        tf = self._tf
        self.traces += 1
        if self._counts:
            self.calls.assign_add(1)
        total = state["sum"] + inputs.observation[0]
        steps = state["steps"] + 1
        rows = tf.shape(inputs.slot)[0]
        record = {
            "slot": inputs.slot,
            "reset": inputs.reset,
            "steps": steps,
            "rows": tf.fill([rows], rows),
            "seed": tf.broadcast_to(seed, [rows, 2]),
        }
        action = tf.cast(total[:, 0], tf.int64) + self.offset + (1000 if greedy else 0)
        return ActOutputs(action, record), {"sum": total, "steps": steps}
