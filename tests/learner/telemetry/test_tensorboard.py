"""TensorBoard events are a copy: losing them costs nothing else."""

from pathlib import Path

import pytest
import tensorflow as tf

from learner.telemetry.tensorboard import TensorBoardWriter
from tests.learner.telemetry.disk import full_at


def test_failing_events_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = TensorBoardWriter(tmp_path)
    with full_at(10):
        writer.write(1, {"loss": 0.5})
        writer.write(2, {"loss": 0.5})
    writer.close()
    assert caplog.text.count("cannot be written") == 1
    assert "File too large" in caplog.text
    assert "training goes on without them" in caplog.text


def test_a_folder_that_cannot_be_made_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    writer = TensorBoardWriter(tmp_path / "file" / "tensorboard")
    writer.write(1, {"loss": 0.5})
    writer.write(2, {"loss": 0.5})
    writer.close()
    assert caplog.text.count("cannot be written") == 1


def test_what_was_written_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    for step in (10, 2**40):
        writer.write(step, {"loss": 0.5, "steps": 10**6, "infinite": float("inf"), "none": None})
    (path,) = tmp_path.iterdir()
    events = [
        tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))
    ]
    assert [event.step for event in events] == [0, 10, 2**40]
    for event in events[1:]:
        assert {each.tag: each.simple_value for each in event.summary.value} == {
            "loss": 0.5,
            "steps": 1e6,
        }
    writer.close()


def test_close_twice_is_fine(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.write(1, {"loss": 0.5})
    writer.close()
    writer.close()
