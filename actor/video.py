"""Environment 0's first episode as a video file."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from actor.timestep import TimeStep
from protos.errors import ConfigError, EnvironmentFailure


class VideoRecorder:
    """Writes the frames of environment 0 until its first episode ends, to .mp4 or .gif.

    The file appears under its name when it is complete: at the end of the episode, or of the
    recorder where that comes first. A context manager.

    Args:
        path: where to; its folder is made if need be.
        frames_per_second: at which the video plays.

    Raises:
        ConfigError: the package that writes such files is not installed.
    """

    def __init__(self, path: Path, frames_per_second: float) -> None:
        _require("imageio" if path.suffix.lower() == ".gif" else "imageio_ffmpeg", path)
        self._path = path
        self._partial = path.with_name(f".{path.stem}.partial{path.suffix.lower()}")
        self._frames_per_second = frames_per_second
        self._writer: Any = None
        self._finished = False

    def __enter__(self) -> "VideoRecorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def record(self, timestep: TimeStep, render: Callable[[], np.ndarray | None]) -> None:
        """Add the frame that belongs to `timestep`, unless the video is complete.

        Raises:
            EnvironmentFailure: the environment shows nothing.
        """
        if self._finished:
            return
        frame = render()
        if frame is None or frame.ndim != 3 or frame.shape[2] != 3:
            found = "nothing" if frame is None else f"an array of shape {list(frame.shape)}"
            raise EnvironmentFailure(
                f"no video: expected render() to return an image [height, width, 3], found {found}; "
                "is the environment made with render_mode='rgb_array'?"
            )
        self._append(frame)
        if timestep.terminated[0] or timestep.truncated[0]:
            self.close()

    def close(self) -> None:
        """Complete the file. Idempotent; without a frame there is no file."""
        self._finished = True
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
            self._partial.replace(self._path)

    def _append(self, frame: np.ndarray) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._open()
        # H.264 wants even sides.
        height, width = frame.shape[0] & ~1, frame.shape[1] & ~1
        self._writer.append_data(frame[:height, :width])

    def _open(self) -> Any:
        import imageio

        if self._path.suffix.lower() == ".gif":
            milliseconds = 1000 / self._frames_per_second
            return imageio.get_writer(self._partial, mode="I", duration=milliseconds, loop=0)
        return imageio.get_writer(
            self._partial,
            fps=self._frames_per_second,
            macro_block_size=2,
            ffmpeg_log_level="error",
        )


def _require(module: str, path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"--video {path} needs {module}: pip install 'seedbed[video]'")
