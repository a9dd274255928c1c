"""The error tree and the table between errors and gRPC statuses."""

import inspect

import grpc
import pytest

from protos import errors
from protos.errors import (
    InvalidRequest,
    LearnerError,
    NotServing,
    RequestError,
    SeedbedError,
    from_status,
    to_status,
)

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
REQUEST_KINDS = [kind for kind in KINDS if issubclass(kind, RequestError) and kind is not RequestError]


def test_every_error_hangs_in_the_tree() -> None:
    assert all(issubclass(kind, SeedbedError) for kind in KINDS)


def test_every_error_is_drawn_in_the_tree_and_explained() -> None:
    for kind in KINDS:
        assert f" {kind.__name__} " in f" {errors.__doc__} ".replace("\n", " ")
        assert kind.__doc__


@pytest.mark.parametrize("kind", REQUEST_KINDS)
def test_request_errors_travel_as_their_own_status(kind: type[RequestError]) -> None:
    status = to_status(kind("why"))
    back = from_status(status, "why")
    assert type(back) is kind
    assert str(back) == "why"


def test_statuses_differ() -> None:
    assert len({to_status(kind("")) for kind in REQUEST_KINDS}) == len(REQUEST_KINDS)


def test_statuses_outside_the_table_are_named() -> None:
    error = from_status(grpc.StatusCode.PERMISSION_DENIED, "not you")
    assert type(error) is LearnerError
    assert str(error) == "PERMISSION_DENIED: not you"


def test_only_what_may_pass_by_itself_is_retryable() -> None:
    assert {kind.__name__ for kind in REQUEST_KINDS if kind.retryable} == {
        "NoCapacity",
        "NotServing",
        "DeadlineExceeded",
    }
    assert not InvalidRequest("").retryable
    assert NotServing("").retryable
