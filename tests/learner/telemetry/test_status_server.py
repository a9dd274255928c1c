"""What is on the address of --metrics-listen, and that without it nothing is."""

import json
import logging
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from learner.config import LearnerOptions
from learner.telemetry import http_server
from learner.telemetry.learning_curve import Curve
from learner.telemetry.statistics import Registry
from learner.telemetry.status_server import StatusServer
from tests.fakes import PATIENCE_SECONDS, LogLines
from tests.learner.telemetry.scraping import report

Get = Callable[[str], str]


def fail_test(error: BaseException) -> None:
    raise AssertionError from error


def make(**options: Any) -> StatusServer:
    chosen = LearnerOptions(env="CartPole-v1", **options)
    return StatusServer(chosen, Registry(), lambda: [], on_failure=fail_test)


@pytest.fixture
def status() -> Iterator[StatusServer]:
    status = make(metrics_listen="127.0.0.1:0")
    yield status
    status.close()


@pytest.fixture
def get(status: StatusServer) -> Get:
    """Gets a path of the status that listens."""
    with LogLines(http_server.__name__) as log:
        status.start()
    (words,) = (record.getMessage() for record in log.records)
    port = words.rpartition("(port ")[2].rstrip(")")

    def get(path: str) -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS
        ) as answer:
            return str(answer.read().decode())

    return get


def test_a_page_for_people_and_numbers_for_programs(status: StatusServer, get: Get) -> None:
    status.follow(lambda: Curve([], 1), lambda: [])
    status.enter("training")
    for sink in status.sinks():
        sink(report(env_steps=9), {"policy_lag": 3.0})
    assert "status.json" in get("/")
    state = json.loads(get("/status.json"))
    assert (state["run"]["phase"], state["report"]["env_steps"]) == ("training", 9)
    assert "seedbed_build_info" in get("/metrics")


def test_problems_are_heard_of_until_it_is_closed(status: StatusServer, get: Get) -> None:
    handlers = list(logging.getLogger().handlers)
    logging.getLogger("learner.anything").warning("the wheel came off")
    assert [each["text"] for each in json.loads(get("/status.json"))["problems"]] == [
        "the wheel came off"
    ]
    status.close()
    assert len(logging.getLogger().handlers) == len(handlers) - 1


def test_without_an_address_nothing_listens_or_is_told() -> None:
    status = make()
    before = list(logging.getLogger().handlers)
    status.start()
    status.enter("training")
    assert status.sinks() == []
    assert logging.getLogger().handlers == before
    status.close()
