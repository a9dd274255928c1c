"""TensorBoard events: the metrics once more, as curves."""

import logging
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class TensorBoardWriter:
    """Writes scalars over environment steps. A full disk is warned of once and costs events only."""

    def __init__(self, folder: Path) -> None:
        # Imported here, so that reading a run directory needs no TensorFlow.
        import tensorflow as tf

        self._tf = tf
        self._folder = folder
        self._failed = False
        self._file: Any = None

    def write(self, env_steps: int, values: Mapping[str, Any]) -> None:
        """Write every finite number in `values` at `env_steps`."""
        if self._failed:
            return
        # One event for all: `tf.summary.scalar` takes half a millisecond for each, and Python's lock.
        event = self._tf.compat.v1.Event(wall_time=time.time(), step=env_steps)
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                event.summary.value.add(tag=name, simple_value=value)
        try:
            self._write(event)
        except (OSError, self._tf.errors.OpError) as error:
            self._fail(error)

    def close(self) -> None:
        """Idempotent."""
        try:
            if self._file is not None:
                self._file.close()
        except (OSError, self._tf.errors.OpError) as error:
            self._fail(error)

    def _write(self, event: Any) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # By this name TensorBoard knows such files, and their order.
            name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}"
            self._file = self._tf.io.TFRecordWriter(str(self._folder / name))
            version = self._tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")
            self._file.write(version.SerializeToString())
        self._file.write(event.SerializeToString())
        self._file.flush()

    def _fail(self, error: Exception) -> None:
        self._failed = True
        logger.error(
            "TensorBoard events in %s cannot be written (%s): training goes on without them",
            self._folder,
            _reason(error),
        )


def _reason(error: Exception) -> str:
    """One line, of the several that TensorFlow may give."""
    return str(error).partition("\n")[0]
