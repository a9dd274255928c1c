"""The error tree, and the one table between errors and gRPC statuses.

SeedbedError
├── ConfigError            an option, file or combination of them is refused at start
├── CheckpointError        a checkpoint that is there cannot be used
├── EnvironmentFailure     an environment cannot be made, or misbehaved while it ran
│   └── UnsupportedSpace   an observation or action space that the wire cannot carry
├── TrainingFailure        training cannot go on: its numbers are not finite any more
├── WorkerFailure          a thread or child process of this program ended with an error
└── RequestError           what a session may be told; each has one gRPC status
    ├── InvalidRequest     the client's mistake; sending it again will not help
    ├── Unauthenticated    the learner or the client is not who it should be
    ├── NoCapacity         the learner is full for now
    ├── NotServing         the learner starts, drains or is unreachable; try again later
    ├── DeadlineExceeded   no answer in time; try again
    ├── RunEnded           the run is complete; there is nothing left to do
    └── LearnerError       the learner failed on its own; its log says why

`actor/waiting.py` adds one below `SeedbedError`, which only clients meet: `Interrupted`.
"""

import grpc


class SeedbedError(Exception):
    """Base of every error that seedbed raises on purpose."""


class ConfigError(SeedbedError):
    """An option, a configuration file or a combination of them is refused."""


class CheckpointError(SeedbedError):
    """A checkpoint is damaged, or does not fit the program that is to go on from it."""


class EnvironmentFailure(SeedbedError):
    """An environment cannot be made, or broke its own contract while it ran."""


class UnsupportedSpace(EnvironmentFailure):
    """A space that no `ArraySpec` can describe."""


class TrainingFailure(SeedbedError):
    """Training cannot go on: its numbers are not finite any more, or nothing can be drawn."""


class WorkerFailure(SeedbedError):
    """A thread or child process of this program ended with an error; its cause is `__cause__`."""


class RequestError(SeedbedError):
    """An error that travels over the wire as a gRPC status."""

    retryable = False
    """Whether a client that waits and connects again may succeed."""


class InvalidRequest(RequestError):
    """The client broke the contract: shapes, dtypes, ranges, order."""


class Unauthenticated(RequestError):
    """No token that the learner knows, or a certificate that is not trusted."""


class NoCapacity(RequestError):
    """All environment slots of the learner are leased."""

    retryable = True


class NotServing(RequestError):
    """The learner cannot be reached, is still starting, or drains before it ends."""

    retryable = True


class DeadlineExceeded(RequestError):
    """The learner did not answer in time."""

    retryable = True


class RunEnded(RequestError):
    """The learner has reached its end; an actor ends too."""


class LearnerError(RequestError):
    """Something failed inside the learner."""


_STATUS_OF: dict[type[RequestError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    NoCapacity: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotServing: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    RunEnded: grpc.StatusCode.FAILED_PRECONDITION,
    LearnerError: grpc.StatusCode.INTERNAL,
}
_ERROR_OF = {status: error for error, status in _STATUS_OF.items()}


def to_status(error: RequestError) -> grpc.StatusCode:
    """The gRPC status that carries `error`."""
    return _STATUS_OF[type(error)]


def from_status(status: grpc.StatusCode, message: str) -> RequestError:
    """The error that `status` stands for; statuses outside the table become `LearnerError`."""
    error = _ERROR_OF.get(status)
    if error is None:
        return LearnerError(f"{status.name}: {message}")
    return error(message)
