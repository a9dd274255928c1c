"""Leases: which slots a client's environments occupy, and which stream carries them for now."""

import asyncio
import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from learner.flags import LeaseEnd
from learner.serving.batcher import Request
from learner.serving.sessions import Session
from learner.serving.slots import Slots
from learner.telemetry.report import SessionReport
from learner.telemetry.statistics import ThreadCpu
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest, NotServing, RequestError
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

CPU_NOTE_SECONDS = 0.01
"""How old what is known of the event loop's CPU time may be while it works."""


class Outbox(Protocol):
    """The way out of one stream."""

    def send(self, message: pb.ServerMessage) -> None:
        """Send after all that was sent before. Dropped if the stream is over."""
        ...

    def end(self, error: RequestError | None) -> None:
        """End the stream after that, with an error or well. Only the first end counts."""
        ...

    def listen(self) -> None:
        """Let the next message come, if it is not asked for yet."""
        ...


@dataclass(frozen=True, eq=False)
class Lane:
    """Where the sessions of one mode go: all that the streams know of the rest of the learner."""

    spec: EnvironmentSpec
    """of the environments that the policy acts in"""
    slots: Slots
    """the places that its sessions occupy"""
    max_rows: int
    """most environments in one message, and so in a session"""
    submit: Callable[[Request], None]
    """takes a checked step"""
    hand_over: Callable[[], None]
    """lets the steps that were submitted be answered; maybe at once, by the caller's thread"""
    version: Callable[[], int]
    """training version that acts now"""
    drop: Callable[[np.ndarray, LeaseEnd], None]
    """called with a lease's slots, and why it ended, once all its steps are answered"""
    clip_observations: float = 0.0
    """limit that floats of observations are clipped to; 0 to refuse what is not finite"""
    trains: bool = True
    """whether its sessions make training data: what they do is counted then"""


@dataclass(eq=False)
class Lease:
    """One client's environments, for as long as the learner keeps their place."""

    lane: Lane
    number: int
    """counts the learner's leases, from 1"""
    client_version: str
    """of the program that brings the environments; empty if it does not say"""
    session: Session = field(init=False)
    outbox: Outbox | None = None
    """of the stream that carries it; None while it waits to be resumed"""
    expiry: asyncio.TimerHandle | None = None
    ended: LeaseEnd | None = None
    """why it is over; None while it is not"""
    asked_at: dict[int, float] = field(default_factory=dict)
    """when the steps in flight came, by sequence"""
    answered_at: float | None = None
    steps: int = 0
    """environment steps that were taken in"""


class Leases:
    """All leases of a learner.

    Everything but `statistics` and `sessions` runs on the event loop, so that no state here needs a
    lock; inference threads hand their answers over through a deque whose operations are atomic.

    The loop goes round in turns: all messages that have come by now, then what is made of them together.

    `on_failure` hears of a failure that no client has caused.
    """

    def __init__(self, lease_seconds: float, on_failure: Callable[[BaseException], None]) -> None:
        self.lease_seconds = lease_seconds
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._by_token: dict[bytes, Lease] = {}
        self._thread = threading.get_ident()
        self._submitted: list[Lease] = []
        """those with steps that were not handed over yet"""
        self._handing_over = False
        self._over: list[Lease] = []
        """those that have ended, and whose last step has been answered, but maybe not recorded"""
        self._answers: deque[tuple[Lease, int, np.ndarray, int]] = deque()
        self._wakes = False
        self._ending = False
        self._counts: Counter[str] = Counter()
        self._streams = 0
        self._environments = 0
        self._connected = 0
        self._seconds_waiting = 0.0
        self._seconds_acting = 0.0
        self._cpu = ThreadCpu(CPU_NOTE_SECONDS)

    def begin(self, lane: Lane, count: int, client: str, client_version: str) -> Lease:
        """A new lease of `count` environments.

        Raises:
            NoCapacity: too few slots are free.
            InvalidRequest: there are not as many slots at all.
        """
        if count > lane.slots.capacity:
            raise InvalidRequest(
                f"num_environments: expected at most {lane.slots.capacity} (all slots of this learner), "
                f"found {count}: open smaller sessions, or raise --max-environments"
            )
        lease = Lease(lane, self._counts["sessions_begun"] + 1, client_version)
        lease.session = Session(
            token=secrets.token_bytes(16),
            client=client,
            slots=lane.slots.lease(count),
            spec=lane.spec,
            reply=partial(self._post, lease),
            clip_observations=lane.clip_observations,
        )
        self._by_token[lease.session.token] = lease
        if lane.trains:
            self._environments += count
        self._counts["sessions_begun"] += 1
        return lease

    def find(self, token: bytes, lane: Lane, count: int) -> Lease | None:
        """The lease that `token` names, to be resumed; None if there is none (any more).

        Raises:
            InvalidRequest: it has another mode or number of environments.
        """
        lease = self._by_token.get(token)
        if lease is None:
            return None
        found = len(lease.session.slots)
        if lease.lane is not lane or found != count:
            raise InvalidRequest(
                f"resume_token: expected the mode and {found} environments of the session that it "
                f"names, found others"
            )
        self._counts["sessions_resumed"] += 1
        return lease

    def attach(self, lease: Lease, outbox: Outbox) -> None:
        """Let the stream of `outbox` carry the lease; a former stream is ended."""
        if lease.expiry is not None:
            lease.expiry.cancel()
            lease.expiry = None
        if lease.outbox is not None:
            lease.outbox.end(NotServing("the session goes on in another stream"))
        elif lease.lane.trains:
            self._streams += 1
            self._connected += len(lease.session.slots)
        lease.outbox = outbox
        lease.session.attach(outbox.send)

    def detach(self, lease: Lease, outbox: Outbox) -> None:
        """The stream of `outbox` is over. The lease lives on for a while, unless it has ended or the
        stream did not carry it any more."""
        if lease.outbox is not outbox:
            return
        lease.outbox = None
        if lease.lane.trains:
            self._streams -= 1
            self._connected -= len(lease.session.slots)
        lease.session.detach()
        if self._ending:
            self.end(lease, LeaseEnd.DRAINED)
        if not lease.ended:
            lease.expiry = self._loop.call_later(self.lease_seconds, self._expire, lease)

    def submit(self, lease: Lease, sequence: int, request: Request) -> None:
        """Note a step that was taken in, and have it answered. At the turn's end its stream listens."""
        lane = lease.lane
        now = time.monotonic()
        lease.steps += len(request.slots)
        lease.asked_at[sequence] = now
        if lease.answered_at is not None and lane.trains:
            self._seconds_acting += now - lease.answered_at
        lane.submit(request)
        # Handed over at the turn's end: the loop's callbacks follow its events.
        if not self._submitted:
            self._loop.call_soon(self._hand_over)
        self._submitted.append(lease)

    def end(self, lease: Lease, reason: LeaseEnd) -> None:
        """End the lease. Its slots are free once no inference batch holds a step of them. Idempotent."""
        if lease.ended:
            return
        lease.ended = reason
        if lease.expiry is not None:
            lease.expiry.cancel()
        del self._by_token[lease.session.token]
        if lease.session.idle:
            self._release(lease, reason)

    def end_streams(self, reason: RequestError) -> None:
        """End every stream that carries a lease with `reason`, and the leases with them."""
        self._ending = True
        for lease in self._by_token.values():
            if lease.outbox is not None:
                lease.outbox.end(reason)

    def sessions(self) -> list[SessionReport]:
        """All that there are, oldest first. Any thread may ask: what is read here is set before a lease
        is listed, or is one number or reference."""
        return [
            SessionReport(
                lease.number,
                lease.session.client,
                lease.client_version,
                len(lease.session.slots),
                lease.steps,
                lease.outbox is not None,
                lease.lane.trains,
            )
            for lease in self._by_token.copy().values()
        ]

    def statistics(self) -> Mapping[str, float]:
        """Counts since the start, and what there is now; streams, environments and actors' seconds of
        training alone. Any thread may ask."""
        return {
            "sessions": len(self._by_token),
            "streams": self._streams,
            "environments": self._environments,
            "environments_connected": self._connected,
            "actor_seconds_waiting": self._seconds_waiting,
            "actor_seconds_acting": self._seconds_acting,
            "event_loop_cpu_seconds": self._cpu.seconds,
            **{f"count_{name}": count for name, count in self._counts.copy().items()},
        }

    def _hand_over(self) -> None:
        submitted, self._submitted = self._submitted, []
        self._handing_over = True
        try:
            for lane in dict.fromkeys(lease.lane for lease in submitted):
                lane.hand_over()
            for lease in submitted:
                # What was answered at once listens already.
                if lease.outbox is not None:
                    lease.outbox.listen()
            self._release_over()
            self._cpu.note()
        except Exception as error:  # noqa: BLE001 - asyncio would only log it, and the learner hang
            self._on_failure(error)
        finally:
            self._handing_over = False

    def _expire(self, lease: Lease) -> None:
        self._counts["leases_expired"] += 1
        logger.warning("%s: lease expired", lease.session.client)
        self.end(lease, LeaseEnd.EXPIRED)

    def _release(self, lease: Lease, reason: LeaseEnd) -> None:
        slots = lease.session.slots
        lease.lane.drop(slots, reason)
        lease.lane.slots.release(slots)
        if lease.lane.trains:
            self._environments -= len(slots)

    # Answers ------------------------------------------------------------------------------------

    def _post(self, lease: Lease, sequence: int, actions: np.ndarray, version: int) -> None:
        """Bring an answer to the event loop. Called by who infers, in any thread."""
        if self._handing_over and threading.get_ident() == self._thread:
            self._answer(lease, sequence, actions, version)
            return
        self._answers.append((lease, sequence, actions, version))
        # One wake-up drains all that has come by then, so the answers of a batch share one. The flag
        # falls before the draining begins: who still saw it up is drained.
        if not self._wakes:
            self._wakes = True
            with suppress(RuntimeError):  # The loop has ended, and every stream before it.
                self._loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Hand the answers that have come by now to their streams."""
        self._wakes = False
        try:
            while self._answers:
                self._answer(*self._answers.popleft())
            self._release_over()
        except Exception as error:  # noqa: BLE001 - asyncio would only log it, and the learner hang
            self._on_failure(error)

    def _answer(self, lease: Lease, sequence: int, actions: np.ndarray, version: int) -> None:
        lease.session.answer(sequence, actions, version)
        lease.answered_at = time.monotonic()
        asked_at = lease.asked_at.pop(sequence, lease.answered_at)
        if lease.lane.trains:
            self._seconds_waiting += lease.answered_at - asked_at
        if lease.ended and lease.session.idle:
            self._over.append(lease)

    def _release_over(self) -> None:
        while self._over:
            lease = self._over.pop()
            assert lease.ended is not None
            self._release(lease, lease.ended)
