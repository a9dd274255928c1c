"""A flood of lines fills no disk, and loses no count."""

import logging

import pytest

from learner.serving.sparing import INTERVAL_SECONDS, LIMIT, SparingLog


def test_a_flood_is_counted_and_others_are_still_heard(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = SparingLog(logging.getLogger("test"), clock=lambda: now[0])
    for number in range(10_000):
        log.log(logging.WARNING, "wrong token", "%s: refused", number)
    assert caplog.messages == [
        *(f"{number}: refused" for number in range(LIMIT)),
        "more lines like the last one (wrong token) come: they are counted for now",
    ]
    caplog.clear()
    log.log(logging.WARNING, "wrong shape", "another kind")
    assert caplog.messages == ["another kind"]
    caplog.clear()
    now[0] = INTERVAL_SECONDS
    for _ in range(2):
        log.log(logging.WARNING, "wrong token", "once more")
    assert caplog.messages == [
        f"{10_000 - LIMIT} more lines (wrong token) were left out in 60 s",
        "once more",
        "once more",
    ]
