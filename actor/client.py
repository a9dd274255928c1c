"""`InferenceClient`: hand in what environments show, get the policy's actions back."""

import logging
import os
import platform
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np

from actor.retry import RetryPolicy
from actor.stream import Stream
from actor.timestep import TimeStep
from actor.waiting import Waiting
from protos import PROTOCOL_MINOR, PROTOCOL_VERSION, specs, tensors
from protos import inference_pb2 as pb
from protos.credentials import Credentials
from protos.errors import DeadlineExceeded, InvalidRequest, NotServing, RequestError, SeedbedError
from protos.version import version
from protos.words import text_of

logger = logging.getLogger(__name__)

MAX_ERROR = 2_000
"""Most characters that the learner is told of what went wrong; it logs fewer."""

BOOL = np.dtype(np.bool_)

MODES = {"train": pb.TRAIN, "evaluate": pb.EVALUATE}


class InferenceClient:
    """One session with a learner. The public way to act with any environment, in any loop.

        with InferenceClient("127.0.0.1:7777", env.observation_space, env.action_space) as client:
            observation, _ = env.reset()
            action = client.act(restart(observation))
            ...

    A broken stream, a learner that restarts or is not there yet: `act` waits, connects again by
    `retry` and goes on, within the learner's lease exactly where it was.

    Used by one thread (but for `interrupt`).

    Args:
        server: the learner's address, HOST:PORT or unix:PATH.
        observation_space: Gymnasium space of one environment's observation.
        action_space: Gymnasium space of one environment's action.
        num_environments: N, for arrays with a leading dimension of N; None for a single environment
            whose arrays have none.
        credentials: TLS and the bearer token; plain text and none if not given.
        mode: "train" samples actions and makes training data; "evaluate" acts greedily.
        retry: how to wait between attempts, and when to give up.
        answer_timeout_seconds: how long to wait for one answer before connecting again. A learner
            that trains slower than actors step makes them wait; that is no fault.
        name: who this is, for the learner's log.

    Raises:
        UnsupportedSpace: a space that the wire cannot carry.
        ConfigError: the credentials cannot be used, or would be read by others.
    """

    def __init__(
        self,
        server: str,
        observation_space: Any,
        action_space: Any,
        *,
        num_environments: int | None = None,
        credentials: Credentials | None = None,
        mode: Literal["train", "evaluate"] = "train",
        retry: RetryPolicy | None = None,
        answer_timeout_seconds: float = 120.0,
        name: str = "",
    ) -> None:
        self.spec = specs.from_spaces(observation_space, action_space)
        self.num_environments = num_environments
        self.policy_version = 0
        """Training version of the policy that chose the last actions."""
        self._server = server
        self._credentials = credentials or Credentials()
        self._credentials.check(server)
        self._mode = MODES[mode]
        self._retry = retry or RetryPolicy()
        self._answer_timeout_seconds = answer_timeout_seconds
        self._name = name or own_name()
        self._flatten = specs.flattener(self.spec.observation)
        self._count = num_environments or 1
        self._everyone = np.arange(self._count, dtype=tensors.INDEX).tobytes()
        self._sequence = 0
        self._token = b""
        self._waiting = Waiting()
        self._stream: Stream | None = None
        self._abandoned = False
        self._closed = False

    def __enter__(self) -> "InferenceClient":
        """Open the session; waits for the learner by the retry policy.

        Raises:
            RequestError: the learner refused, or did not come up before the policy gave up.
            Interrupted: `interrupt` was called.
        """
        try:
            self._connect(self._attempts(), None)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, SeedbedError | KeyboardInterrupt):
            self.close()
        else:
            self.close(f"{type(error).__name__}: {text_of(error)}")

    def act(self, timestep: TimeStep, environments: Sequence[int] | None = None) -> np.ndarray:
        """The policy's actions for a step of all environments, or of those that are named.

        Args:
            timestep: arrays of [N, ...], or of [len(environments), ...].
            environments: indices of the rows' environments; None for all, in order.

        Returns:
            [N, *shape] of the action space's dtype and shape, or [*shape] for a single environment.

        Raises:
            InvalidRequest: the step does not match the spaces, or breaks the order of rows.
            RunEnded: the learner has finished its run.
            RequestError: the learner could not be reached before the retry policy gave up, or failed.
            Interrupted: `interrupt` was called.
        """
        message = self._encode(timestep, environments)
        answer = self._exchange(message)
        self.policy_version = answer.policy_version
        rows = len(message.step.flags)
        # A copy, because what was decoded is read-only and some environments change it in place.
        actions = tensors.decode(answer.action, self.spec.action, rows, "action").copy()
        return actions[0] if self.num_environments is None else actions

    def interrupt(self) -> None:
        """Make a waiting `act`, and every later one, raise `Interrupted`. For signal handlers and
        other threads."""
        self._waiting.interrupt()

    def close(self, error: str = "") -> None:
        """End the session, so that the learner waits for nothing. Idempotent.

        Args:
            error: what went wrong with the environment; the learner logs it.
        """
        self._closed = True
        try:
            self._close_stream(error)
        finally:
            self._waiting.end()

    def _close_stream(self, error: str) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close(_sendable(error[:MAX_ERROR]))

    # One step -----------------------------------------------------------------------------------

    def _encode(self, timestep: TimeStep, environments: Sequence[int] | None) -> pb.ClientMessage:
        indices = self._everyone if environments is None else self._indices(environments)
        rows = len(indices) // tensors.INDEX.itemsize
        leaves = self._flatten(timestep.observation)
        if self.num_environments is None:
            leaves = [np.asarray(leaf)[None] for leaf in leaves]
        message = pb.ClientMessage()
        step = message.step
        step.environment = indices
        step.flags = _flags(timestep, rows)
        step.reward = _column(timestep.reward, tensors.REWARD, rows, "reward").tobytes()
        step.observation.extend(
            [
                tensors.encode(leaf, spec, rows, f"observation {spec.name!r}")
                for leaf, spec in zip(leaves, self.spec.observation, strict=True)
            ]
        )
        self._sequence += 1
        step.sequence = self._sequence
        return message

    def _indices(self, environments: Sequence[int]) -> bytes:
        indices, count = np.asarray(environments), self._count
        if (
            indices.ndim != 1
            or indices.dtype.kind not in "iu"
            or not 1 <= len(indices) <= count
            or not (indices.min() >= 0 and indices.max() < count)
        ):
            raise InvalidRequest(
                f"environments: expected 1 to {count} integers of 0 to {count - 1}, found {environments}"
            )
        return indices.astype(tensors.INDEX).tobytes()

    def _exchange(self, step: pb.ClientMessage) -> pb.Actions:
        """Send a step and wait for its answer, in as many streams as it takes."""
        if self._abandoned:
            self._start_over()
        failure: RequestError | None = None
        attempts = self._attempts()
        while True:
            stream = self._stream or self._connect(attempts, failure)
            try:
                return stream.exchange(step, self._answer_timeout_seconds)
            except RequestError as error:
                self._stream = None
                stream.cancel()
                if not error.retryable:
                    raise
                logger.warning("lost the learner: %s", error)
                failure = error
                if isinstance(error, DeadlineExceeded):
                    # It is there, but slow: the time without it begins anew.
                    attempts = self._attempts()
            except KeyboardInterrupt:
                self._abandoned = True
                raise

    def _start_over(self) -> None:
        """Leave the session whose last step was given up by Ctrl-C: the next step need not follow it."""
        self._close_stream("")
        self._token = b""
        self._abandoned = False

    def _attempts(self) -> Iterator[int]:
        return self._retry.attempts(self._waiting.sleep)

    def _connect(self, attempts: Iterator[int], failure: RequestError | None) -> Stream:
        if self._closed:
            raise RuntimeError("the client is closed")
        for _ in attempts:
            try:
                stream, opened = self._dial()
            except RequestError as error:
                if not error.retryable:
                    raise
                if str(error) != str(failure):
                    logger.warning("waiting for the learner at %s: %s", self._server, error)
                failure = error
                continue
            self._stream, self._token = stream, opened.session_token
            logger.info("%s at %s", "resumed" if opened.resumed else "connected", self._server)
            return stream
        waited = self._retry.give_up_seconds
        within = "" if waited is None else f" within {waited:g} s"
        raise NotServing(f"no learner at {self._server}{within}: {failure}") from failure

    def _dial(self) -> tuple[Stream, pb.Opened]:
        stream = Stream.dial(self._server, self._credentials, self._waiting)
        try:
            return stream, stream.open(self._opening(), self._answer_timeout_seconds)
        except BaseException:
            stream.cancel()
            raise

    def _opening(self) -> pb.Open:
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            protocol_minor=PROTOCOL_MINOR,
            num_environments=self._count,
            spec=specs.to_proto(self.spec),
            mode=self._mode,
            resume_token=self._token,
            client=_sendable(self._name),
            client_version=version(),
        )


def own_name() -> str:
    """HOST:PID, what this process is called where it is not said."""
    return f"{platform.node()}:{os.getpid()}"


def _sendable(text: str) -> str:
    """`text` as UTF-8 can hold it: file names and arguments that are none carry lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def _flags(timestep: TimeStep, rows: int) -> bytes:
    """uint8 [rows]: the step's flags as bits."""
    terminated = _column(timestep.terminated, BOOL, rows, "terminated")
    truncated = _column(timestep.truncated, BOOL, rows, "truncated")
    first = _column(timestep.first, BOOL, rows, "first")
    none = bytes(rows)
    # Most steps have none, and bytes are compared faster than arrays are computed with.
    if terminated.tobytes() == truncated.tobytes() == first.tobytes() == none:
        return none
    flags: np.ndarray = pb.TERMINATED * terminated | pb.TRUNCATED * truncated | pb.FIRST * first
    return flags.astype(tensors.FLAGS).tobytes()


def _column(value: Any, dtype: np.dtype[Any], rows: int, what: str) -> np.ndarray:
    """`value` as [rows]; a single environment's scalar becomes [1]."""
    array = np.asarray(value, dtype)
    if array.ndim == 0 and rows == 1:
        array = array[None]
    if array.shape != (rows,):
        raise InvalidRequest(f"{what}: expected shape [{rows}], found {list(array.shape)}")
    return array
