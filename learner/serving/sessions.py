"""One session: what its client may send next, and what it has been answered. No I/O, no locks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from learner.experience.trajectory import LEASE_START
from learner.serving.batcher import Request
from protos import inference_pb2 as pb
from protos import tensors
from protos.errors import InvalidRequest
from protos.specs import EnvironmentSpec

LAST = pb.TERMINATED | pb.TRUNCATED
ALL_FLAGS = LAST | pb.FIRST

Reply = Callable[[int, np.ndarray, int], None]
"""Takes (sequence, actions, version) from an inference thread to `Session.answer`."""


@dataclass(frozen=True)
class _Rows:
    """A step message, decoded."""

    environments: np.ndarray
    observation: list[np.ndarray]
    reward: np.ndarray
    flags: np.ndarray


class Session:
    """The lease of one client's environments, across the streams that carry it.

    A step is accepted once, however often it is sent: its answer is kept until the client shows, by
    stepping one of its environments again, that it has arrived.

    Used on the event loop only.
    """

    def __init__(
        self, *, token: bytes, client: str, slots: np.ndarray, spec: EnvironmentSpec, reply: Reply
    ) -> None:
        self.token = token
        self.client = client
        self.slots = slots
        self._spec = spec
        self._reply = reply
        self._deliver: Callable[[pb.ServerMessage], None] | None = None
        self._newest = 0
        self._in_flight: dict[int, np.ndarray] = {}
        self._asked_elsewhere: set[int] = set()
        self._answers: dict[int, pb.ServerMessage] = {}
        count = len(slots)
        self._busy = np.zeros(count, bool)
        self._started = np.zeros(count, bool)
        self._between_episodes = np.zeros(count, bool)
        self._answer_of = np.zeros(count, np.uint64)

    @property
    def idle(self) -> bool:
        """Whether no step waits for its answer."""
        return not self._in_flight

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
        if step.sequence in self._in_flight:
            self._asked_elsewhere.discard(step.sequence)
            return None
        if step.sequence in self._answers:
            self._send(self._answers[step.sequence])
            return None
        if step.sequence <= self._newest:
            raise InvalidRequest(f"sequence: expected more than {self._newest}, found {step.sequence}")
        rows = self._decode(step)
        self._check_order(rows)
        return self._take_in(step.sequence, rows)

    def answer(self, sequence: int, actions: np.ndarray, version: int) -> None:
        """Deliver the actions [n, *shape] for an accepted step; kept for a resumption."""
        environments = self._in_flight.pop(sequence)
        self._busy[environments] = False
        message = pb.ServerMessage(
            actions=pb.Actions(sequence=sequence, action=actions.tobytes(), policy_version=version)
        )
        self._answers[sequence] = message
        self._answer_of[environments] = sequence
        if sequence in self._asked_elsewhere:
            self._asked_elsewhere.remove(sequence)
        else:
            self._send(message)

    def _send(self, message: pb.ServerMessage) -> None:
        if self._deliver is not None:
            self._deliver(message)

    def _decode(self, step: pb.Step) -> _Rows:
        rows, rest = divmod(len(step.environment), tensors.INDEX.itemsize)
        if rest or not 1 <= rows <= len(self.slots):
            raise InvalidRequest(
                f"environment: expected 1 to {len(self.slots)} rows of int32, "
                f"found {len(step.environment)} bytes"
            )
        if len(step.observation) != len(self._spec.observation):
            raise InvalidRequest(
                f"observation: expected {len(self._spec.observation)} leaves, "
                f"found {len(step.observation)}"
            )
        return _Rows(
            environments=np.frombuffer(step.environment, tensors.INDEX),
            observation=[
                tensors.decode(data, leaf, rows, f"observation {leaf.name!r}")
                for data, leaf in zip(step.observation, self._spec.observation, strict=True)
            ],
            reward=tensors.decode_rows(step.reward, tensors.REWARD, rows, "reward"),
            flags=tensors.decode_rows(step.flags, tensors.FLAGS, rows, "flags"),
        )

    def _check_order(self, rows: _Rows) -> None:
        environments, flags = rows.environments, rows.flags
        if environments.min() < 0 or environments.max() >= len(self.slots):
            raise InvalidRequest(
                f"environment: expected indices of 0 to {len(self.slots) - 1}, "
                f"found {environments.min()} to {environments.max()}"
            )
        first, last = (flags & pb.FIRST) != 0, (flags & LAST) != 0
        started, between = self._started[environments], self._between_episodes[environments]

        def refuse(wrong: np.ndarray, expected: str, found: str) -> None:
            if wrong.any():
                environment = environments[np.flatnonzero(wrong)[0]]
                raise InvalidRequest(f"environment {environment}: expected {expected}, found {found}")

        refuse(~np.isfinite(rows.reward), "a finite reward", "NaN or infinity")
        refuse(flags > ALL_FLAGS, f"flags of at most {ALL_FLAGS}", "others")
        refuse(first & last, "FIRST or the end of an episode", "both in one row")
        refuse(first & (rows.reward != 0), "reward 0 in a FIRST row", "another")
        refuse(between & ~first, "FIRST after the end of an episode", "a row without it")
        refuse(
            started & ~between & first,
            "TERMINATED or TRUNCATED before the next FIRST",
            "FIRST in the middle of an episode",
        )
        refuse(self._busy[environments], "to wait for the answer to its last step", "another step")
        distinct = np.bincount(environments, minlength=len(self.slots))
        refuse(distinct[environments] > 1, "one row in a step", "several")

    def _take_in(self, sequence: int, rows: _Rows) -> Request:
        environments = rows.environments
        for answered in np.unique(self._answer_of[environments]).tolist():
            self._answers.pop(answered, None)
        flags = np.where(self._started[environments], rows.flags, rows.flags | LEASE_START)
        self._newest = sequence
        self._in_flight[sequence] = environments
        self._busy[environments] = True
        self._started[environments] = True
        self._between_episodes[environments] = (rows.flags & LAST) != 0
        return Request(
            slots=self.slots[environments],
            observation=rows.observation,
            reward=rows.reward,
            flags=flags,
            reply=lambda actions, version: self._reply(sequence, actions, version),
        )
