"""TensorBoard events: the metrics once more, as curves."""

import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)


class TensorBoardWriter:
    """Writes scalars over environment steps. A full disk is warned of once and costs events only."""

    def __init__(self, folder: Path) -> None:
        # Imported here, so that reading a run directory needs no TensorFlow.
        import tensorflow as tf

        self._tf = tf
        self._folder = folder
        self._failed = False
        self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, env_steps: int, values: Mapping[str, Any]) -> None:
        """Write every finite number in `values` at `env_steps`."""
        if self._failed:
            return
        try:
            # Not numbers of Python's: of each value of those TensorFlow keeps a tensor, for ever.
            with self._writer.as_default(step=np.int64(env_steps)):
                for name, value in values.items():
                    if isinstance(value, int | float) and math.isfinite(value):
                        self._tf.summary.scalar(name, np.asarray(value))
            self._writer.flush()
        except (OSError, self._tf.errors.OpError) as error:
            self._fail(error)

    def close(self) -> None:
        """Idempotent."""
        try:
            self._writer.close()
        except (OSError, self._tf.errors.OpError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        logger.error(
            "TensorBoard events in %s cannot be written (%s): training goes on without them",
            self._folder,
            _reason(error),
        )


def _reason(error: Exception) -> str:
    """One line of the several that TensorFlow gives, without the name of its graph's node."""
    return re.sub(r"^{{.*?}} ", "", str(error)).partition("\n")[0]
