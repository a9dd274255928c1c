"""One session: what its client may send next, and what it has been answered. No I/O, no locks."""

from collections.abc import Callable
from functools import partial

import numpy as np

from learner.serving.batcher import Request
from learner.serving.row_order import RowOrder, Rows
from protos import inference_pb2 as pb
from protos import tensors
from protos.errors import InvalidRequest
from protos.specs import EnvironmentSpec

Reply = Callable[[int, np.ndarray, int], None]
"""Takes (sequence, actions, version) from an inference thread to `Session.answer`."""


class Session:
    """The lease of one client's environments, across the streams that carry it.

    A step is accepted once, however often it is sent: its answer is kept until the client shows, by
    stepping one of its environments again, that it has arrived.

    Used on the event loop only.
    """

    def __init__(
        self,
        *,
        token: bytes,
        client: str,
        slots: np.ndarray,
        spec: EnvironmentSpec,
        reply: Reply,
        clip_observations: float = 0.0,
    ) -> None:
        self.token = token
        self.client = client
        self.slots = slots
        self._spec = spec
        self._leaves = [(f"observation {leaf.name!r}", leaf) for leaf in spec.observation]
        self._clip_observations = clip_observations
        self._reply = reply
        self._deliver: Callable[[pb.ServerMessage], None] | None = None
        self._newest = 0
        self._in_flight: dict[int, Rows] = {}
        self._asked_elsewhere: set[int] = set()
        self._answers: dict[int, pb.ServerMessage] = {}
        self._order = RowOrder(len(slots))
        self._everyone = np.arange(len(slots), dtype=tensors.INDEX).tobytes()
        self._answer_of = np.zeros(len(slots), np.uint64)

    @property
    def idle(self) -> bool:
        """Whether no step waits for its answer."""
        return not self._in_flight

    @property
    def owes_nothing(self) -> bool:
        """Whether no step waits whose answer would go to the present stream."""
        return self._in_flight.keys() <= self._asked_elsewhere

    @property
    def all_wait(self) -> bool:
        """Whether a step of all environments waits for its answer: before that, the client has no other
        step to send."""
        return isinstance(self._in_flight.get(self._newest), slice)

    def attach(self, deliver: Callable[[pb.ServerMessage], None]) -> None:
        """Go on in a new stream, to which `deliver` sends.

        A step that an earlier stream brought is answered here only once it is sent again: it would
        be answered twice otherwise.
        """
        self._deliver = deliver
        self._asked_elsewhere = set(self._in_flight)

    def detach(self) -> None:
        """No stream carries the session for now: answers are kept."""
        self._deliver = None

    def accept(self, step: pb.Step) -> Request | None:
        """Check a step and take it in.

        Returns:
            What the policy has to answer; None for a step that was sent before (its answer, if there
            is one already, is delivered again).

        Raises:
            InvalidRequest: the step breaks the contract of inference.proto.
        """
        sequence = step.sequence
        if sequence <= self._newest:
            self._take_again(sequence)
            return None
        environments = step.environment
        everyone = environments == self._everyone
        count = len(self.slots) if everyone else self._count(environments)
        leaves = step.observation
        if len(leaves) != len(self._spec.observation):
            raise InvalidRequest(
                f"observation: expected {len(self._spec.observation)} leaves, found {len(leaves)}"
            )
        observation = [
            tensors.decode(data, leaf, count, name, clip=self._clip_observations)
            for data, (name, leaf) in zip(leaves, self._leaves, strict=True)
        ]
        reward = tensors.decode_rows(step.reward, tensors.REWARD, count, "reward")
        flags = tensors.decode_rows(step.flags, tensors.FLAGS, count, "flags")
        rows = slice(None) if everyone else self._rows(environments)
        self._order.check(rows, reward, flags)
        return self._take_in(sequence, rows, observation, reward, flags)

    def _take_again(self, sequence: int) -> None:
        """Take in a step that is not newer than the newest."""
        if sequence in self._in_flight:
            self._asked_elsewhere.discard(sequence)
        elif sequence in self._answers:
            self._send(self._answers[sequence])
        else:
            raise InvalidRequest(f"sequence: expected more than {self._newest}, found {sequence}")

    def answer(self, sequence: int, actions: np.ndarray, version: int) -> None:
        """Deliver the actions [n, *shape] for an accepted step; kept for a resumption."""
        rows = self._in_flight.pop(sequence)
        self._order.answered(rows)
        # Filled in place: as an argument it would be made, and copied.
        message = pb.ServerMessage()
        answer = message.actions
        answer.sequence, answer.action, answer.policy_version = sequence, actions.tobytes(), version
        self._answers[sequence] = message
        self._answer_of[rows] = sequence
        if sequence in self._asked_elsewhere:
            self._asked_elsewhere.remove(sequence)
        else:
            self._send(message)

    def _send(self, message: pb.ServerMessage) -> None:
        if self._deliver is not None:
            self._deliver(message)

    def _count(self, environments: bytes) -> int:
        """How many rows a message's `environment` names."""
        count, rest = divmod(len(environments), tensors.INDEX.itemsize)
        if rest or not 1 <= count <= len(self.slots):
            raise InvalidRequest(
                f"environment: expected 1 to {len(self.slots)} rows of int32, "
                f"found {len(environments)} bytes"
            )
        return count

    def _rows(self, environments: bytes) -> np.ndarray:
        """The rows that a message's `environment` names."""
        rows = np.frombuffer(environments, tensors.INDEX)
        if rows.min() < 0 or rows.max() >= len(self.slots):
            raise InvalidRequest(
                f"environment: expected indices of 0 to {len(self.slots) - 1}, "
                f"found {rows.min()} to {rows.max()}"
            )
        found, counts = np.unique(rows, return_counts=True)
        if len(found) < len(rows):
            several = found[counts > 1][0]
            raise InvalidRequest(f"environment {several}: expected one row in a step, found several")
        return rows

    def _forget_answers(self, rows: Rows) -> None:
        """Who steps an environment again has its last answer."""
        if isinstance(rows, slice):
            self._answers.clear()
            return
        for answered in np.unique(self._answer_of[rows]).tolist():
            self._answers.pop(answered, None)

    def _take_in(
        self,
        sequence: int,
        rows: Rows,
        observation: list[np.ndarray],
        reward: np.ndarray,
        flags: np.ndarray,
    ) -> Request:
        self._forget_answers(rows)
        self._newest = sequence
        self._in_flight[sequence] = rows
        return Request(
            slots=self.slots[rows],
            observation=observation,
            reward=reward,
            flags=self._order.take_in(rows, flags),
            reply=partial(self._reply, sequence),
        )
