"""Environment 0's first episode as a video file."""

import importlib.util
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from actor.timestep import TimeStep
from protos.errors import ConfigError, EnvironmentFailure
from protos.words import text_of


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
        self._is_gif = path.suffix.lower() == ".gif"
        _require("imageio" if self._is_gif else "imageio_ffmpeg", path)
        self._path = path
        self._partial = path.with_name(f".{path.stem}.partial{path.suffix.lower()}")
        self._frames_per_second = frames_per_second
        self._writer: Any = None
        self._gif = io.BytesIO()
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
            ConfigError: the file cannot be written.
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
        with self._writing():
            self._append(frame)
        if timestep.terminated[0] or timestep.truncated[0]:
            self.close()

    def close(self) -> None:
        """Complete the file. Idempotent; without a frame there is no file.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._finished = True
        if self._writer is not None:
            with self._writing():
                writer, self._writer = self._writer, None
                writer.close()
                self._complete()
                self._partial.replace(self._path)

    def _complete(self) -> None:
        if self._is_gif:
            self._partial.write_bytes(self._gif.getvalue())
        # imageio does not tell of an ffmpeg that could not write the end, where the index stands.
        elif b"moov" not in self._partial.read_bytes():
            raise OSError("ffmpeg could not finish it; is the disk full?")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Where it fails, nothing is left, and nothing more is tried."""
        try:
            yield
        except OSError as error:
            self._finished = True
            writer, self._writer = self._writer, None
            with suppress(OSError):
                if writer is not None:
                    writer.close()
            with suppress(OSError):
                self._partial.unlink(missing_ok=True)
            # Where ffmpeg failed, its own words follow.
            reason = error.strerror or text_of(error)
            raise ConfigError(f"--video {self._path} cannot be written: {reason}") from None

    def _append(self, frame: np.ndarray) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._partial.touch()
            self._writer = self._open()
        # H.264 wants even sides.
        height, width = frame.shape[0] & ~1, frame.shape[1] & ~1
        self._writer.append_data(frame[:height, :width])

    def _open(self) -> Any:
        import imageio

        if self._is_gif:
            milliseconds = 1000 / self._frames_per_second
            # Into memory, where the frames are anyway: a writer that the disk has failed tries again
            # when it is forgotten, and complains.
            return imageio.get_writer(self._gif, format=".gif", mode="I", duration=milliseconds, loop=0)
        return imageio.get_writer(
            self._partial,
            fps=self._frames_per_second,
            macro_block_size=2,
            ffmpeg_log_level="error",
        )


def _require(module: str, path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"--video {path} needs {module}: pip install 'seedbed[video]'")
