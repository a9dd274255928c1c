"""What is kept of the log's warnings and errors."""

import logging
from collections.abc import Iterator
from itertools import count

import pytest

from learner.telemetry.problems import MAX_KINDS, MAX_TEXT, Problem, Problems

logger = logging.getLogger(__name__)


@pytest.fixture
def problems() -> Iterator[Problems]:
    """Kept with the times 0, 1, 2, ..."""
    times = count()
    problems = Problems(clock=lambda: float(next(times)))
    with problems.attached(logger):
        yield problems


def test_warnings_and_errors_are_kept_the_latest_first(problems: Problems) -> None:
    logger.info("all is well")
    logger.warning("%s: lease expired", "an actor")
    logger.error("disk full")
    assert problems.recent() == [
        Problem("ERROR", "disk full", 1, 1.0, 1.0),
        Problem("WARNING", "an actor: lease expired", 1, 0.0, 0.0),
    ]


def test_what_differs_in_numbers_only_is_counted(problems: Problems) -> None:
    logger.warning("127.0.0.1:4711: refused")
    logger.warning("something else")
    logger.warning("127.0.0.1:42: refused")
    assert problems.recent() == [
        Problem("WARNING", "127.0.0.1:42: refused", 2, 0.0, 2.0),
        Problem("WARNING", "something else", 1, 1.0, 1.0),
    ]


def test_a_flood_of_warnings_is_bounded_and_pushes_out_no_error(problems: Problems) -> None:
    logger.error("the one that matters")
    for index in range(3 * MAX_KINDS):
        logger.warning("a client called %s", "x" * index)
    kept = problems.recent()
    assert len(kept) == MAX_KINDS + 1
    assert kept[0].text == f"a client called {'x' * (3 * MAX_KINDS - 1)}"
    assert kept[-1].text == "the one that matters"


def test_texts_are_short_and_printable(problems: Problems) -> None:
    logger.warning("a\nb\x1b[31m\u202e%s", "c" * 10_000)
    (problem,) = problems.recent()
    assert problem.text.startswith("a b [31m ccc")
    assert problem.text == problem.text[:MAX_TEXT] + "..."


def test_an_error_says_what_was_raised(problems: Problems) -> None:
    try:
        raise ZeroDivisionError("no rate")
    except ZeroDivisionError as error:
        logger.error("unexpected failure", exc_info=error)
    assert problems.recent()[0].text == "unexpected failure: ZeroDivisionError: no rate"


def test_a_message_that_cannot_be_formatted_raises_nothing(
    problems: Problems, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", False)
    logger.warning("%d", "no number")
    assert problems.recent() == []
    assert "--- Logging error ---" in capsys.readouterr().err


def test_nothing_is_heard_after_the_context(problems: Problems) -> None:
    other = Problems()
    with other.attached(logger):
        pass
    logger.warning("later")
    assert other.recent() == []
