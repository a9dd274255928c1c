"""TensorBoard events are a copy: losing them costs nothing else."""

from pathlib import Path

import pytest
import tensorflow as tf

from learner.telemetry.tensorboard import TensorBoardWriter


def test_failing_events_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        said = "{{function_node __wrapped__WriteSummary}} No space left on device\n\tFailed to flush"
        raise tf.errors.ResourceExhaustedError(None, None, said)

    writer = TensorBoardWriter(tmp_path)
    monkeypatch.setattr(tf.summary, "scalar", full)
    writer.write(1, {"loss": 0.5})
    writer.write(2, {"loss": 0.5})
    writer.close()
    assert caplog.text.count("cannot be written (No space left on device)") == 1
    assert "training goes on without them" in caplog.text


def test_close_twice_is_fine(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.close()
    writer.close()
