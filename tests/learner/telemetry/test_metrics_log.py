"""metrics.jsonl: always valid JSON lines, whatever the numbers, the last crash or the disk."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.telemetry.metrics_log import MetricsLog
from tests.learner.telemetry.disk import full_at


def read(path: Path) -> list[Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"env_steps": 1, "loss": 0.5, "mean_return_100": None})
    assert read(path) == [{"env_steps": 1, "loss": 0.5, "mean_return_100": None}]
    log.write({"env_steps": 2})
    assert read(path)[1:] == [{"env_steps": 2}]
    log.close()
    log.close()


def test_what_json_cannot_hold_becomes_null_and_numpy_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    values = {"a": float("nan"), "b": np.float32("inf"), "c": np.int64(3), "d": np.array(0.5), "e": True}
    log.write(values)
    log.close()
    assert read(path) == [{"a": None, "b": None, "c": 3, "d": 0.5, "e": True}]


def test_a_resumed_run_appends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in range(3):
        log = MetricsLog(path)
        log.write({"env_steps": step})
        log.close()
    assert [line["env_steps"] for line in read(path)] == [0, 1, 2]
    assert caplog.records == []


@pytest.mark.parametrize("whole", [b"", b'{"env_steps": 1}\n', b'{"x": "' + b"y" * 9000 + b'"}\n'])
@pytest.mark.parametrize("torn", [b"{", b'{"env_steps": 2', b'{"x": "' + b"z" * 9000])
def test_a_torn_last_line_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bytes, torn: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(whole + torn)
    log = MetricsLog(path)
    log.write({"env_steps": 3})
    log.close()
    assert path.read_bytes() == whole + b'{"env_steps": 3}\n'
    assert "ended in the middle of a line" in caplog.text


def test_a_full_disk_is_warned_of_once_and_loses_only_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"env_steps": 1})
    with full_at(path.stat().st_size + 5):
        log.write({"env_steps": 2})
        log.write({"env_steps": 3})
        assert read(path) == [{"env_steps": 1}]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "training goes on, but its metrics are being lost" in errors[0].getMessage()
    log.write({"env_steps": 4})
    log.close()
    assert read(path) == [{"env_steps": 1}, {"env_steps": 4}]
    assert "can be written again" in caplog.text
