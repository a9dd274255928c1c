"""Checkpoints: one file each, whole or not there, never believed without a check."""

import json
import logging
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from learner.telemetry.atomic import TEMPORARY_SUFFIX, replace_file
from learner.telemetry.statistics import Clock
from protos.errors import CheckpointError

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the file's layout, in its header."""

_NAME = re.compile(r"step_(\d+)\.npz")
_HEADER = "header"
_ARRAY = "array/"

# What reading bytes that are not what was written may raise, from the zip's directory (RuntimeError:
# a flipped bit says "encrypted"; NotImplementedError: an unknown compression) to the arrays.
_DAMAGE = (
    OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """What was saved."""

    path: Path
    """the file that it was read from"""
    version: int
    """training version"""
    arrays: Mapping[str, np.ndarray]
    """the agent's variables by their stable names, each of its own shape and dtype"""
    metadata: Mapping[str, Any]
    """plain JSON values"""

    def require(self, name: str) -> Any:
        """An entry of the metadata.

        Raises:
            CheckpointError: there is none of that name.
        """
        if name not in self.metadata:
            raise CheckpointError(f"checkpoint {self.path}: expected metadata {name!r}, found none")
        return self.metadata[name]


class Expected(NamedTuple):
    """What an array must be to be restored."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Checkpoints:
    """The checkpoints in a folder, of which the newest `keep` stay.

    The version in a file's name orders them, since copies of files lose their times. One process may
    save; any number may load.

    `check` comes before a save: it raises OSError where the folder is not to be written to any more.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        clock: Clock = time.monotonic,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: expected at least 1")
        self._folder = folder
        self._keep = keep
        self._saved = 0
        self._failed = 0
        self._bytes: int | None = None
        self._clock = clock
        self._check = check
        self._since = clock()

    def save(
        self, version: int, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
    ) -> Path | None:
        """Write a checkpoint, then drop the oldest.

        Returns:
            Its file; None if the disk is full or fails or is gone, which is logged, and leaves the older
            ones.

        Raises:
            TypeError: an array or the metadata is not what the file can hold.
        """
        header = json.dumps(
            {"format": FORMAT, "version": version, "arrays": sorted(arrays), "metadata": metadata}
        )
        entries = {_HEADER: np.frombuffer(header.encode(), np.uint8)}
        entries.update((_ARRAY + name, _plain(name, array)) for name, array in arrays.items())
        path = self._folder / f"step_{version:09d}.npz"
        try:
            self._check()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            with replace_file(path) as file:
                np.savez(file, **entries)  # type: ignore[arg-type]  # the stub takes no **kwargs
            self._bytes = path.stat().st_size
        except OSError as error:
            self._failed += 1
            logger.error(
                "checkpoint %s cannot be written (%s): training goes on, and a restart would go back "
                "to the one before",
                path,
                error.strerror or error,
            )
            return None
        self._saved += 1
        self._since = self._clock()
        self._tidy(version)
        return path

    def beside(self, name: str) -> "Checkpoints":
        """Checkpoints in a folder of their own within this one, of which one stays: for what is too
        large to keep several of."""
        return Checkpoints(self._folder / name, keep=1, check=self._check)

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there are no checkpoints.

        Raises:
            CheckpointError: there are checkpoints, and none is whole.
        """
        while paths := self.paths():
            for path in reversed(paths):
                try:
                    return self.load(path)
                except CheckpointError as error:
                    logger.warning("%s; going back to the checkpoint before it", error)
            # A learner at work may have replaced all of them since they were listed.
            if self.paths() == paths:
                raise CheckpointError(
                    f"none of the {len(paths)} checkpoints in {self._folder} can be loaded. Restore one "
                    "from a backup, or give --logdir another directory to start anew"
                )
        return None

    def load(self, path: Path) -> Checkpoint:
        """The checkpoint in `path`.

        Raises:
            CheckpointError: it is damaged, or of another format.
        """
        try:
            return _read(path)
        except _DAMAGE as error:
            raise CheckpointError(
                f"checkpoint {path} is damaged: {type(error).__name__}: {error}"
            ) from error

    def paths(self) -> list[Path]:
        """Files of the checkpoints, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted((p for p in self._folder.iterdir() if _NAME.fullmatch(p.name)), key=_version)

    def statistics(self) -> Mapping[str, float]:
        """Counts of this process; `age_seconds` are those since it saved, or else since it began."""
        numbers: dict[str, float] = {
            "saved": self._saved,
            "failed": self._failed,
            "age_seconds": self._clock() - self._since,
        }
        if self._bytes is not None:
            numbers["bytes"] = self._bytes
        return numbers

    def _remove_unfinished(self) -> None:
        for path in self._folder.glob(f".step_*{TEMPORARY_SUFFIX}"):
            path.unlink(missing_ok=True)

    def _tidy(self, version: int) -> None:
        try:
            self._set_newer_aside(version)
            self._drop_oldest()
        except OSError as error:
            # What is saved is saved: only room is lost.
            logger.warning(
                "old checkpoints in %s cannot be removed (%s): they stay", self._folder, error
            )

    def _set_newer_aside(self, version: int) -> None:
        # A newer file than the one just saved could not be loaded at the start: it would be tried
        # first again, and would crowd out good ones. It may be of use to a person, so it is kept.
        for path in self.paths():
            if _version(path) > version:
                aside = path.with_name(f"{path.name}.unusable")
                path.replace(aside)
                logger.warning("%s is set aside as %s", path, aside.name)

    def _drop_oldest(self) -> None:
        for path in self.paths()[: -self._keep]:
            path.unlink(missing_ok=True)


def require_arrays(checkpoint: Checkpoint, expected: Mapping[str, Expected]) -> None:
    """Check that the checkpoint holds exactly the arrays that the program is to restore.

    Raises:
        CheckpointError: naming what differs.
    """
    found = checkpoint.arrays
    differences = [f"{name} is missing" for name in expected if name not in found]
    differences += [f"{name} is not expected" for name in found if name not in expected]
    for name in expected:
        if name in found and (found[name].shape, found[name].dtype) != expected[name]:
            differences.append(
                f"{name}: expected {_describe(*expected[name])}, "
                f"found {_describe(found[name].shape, found[name].dtype)}"
            )
    if differences:
        more = f", and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise CheckpointError(
            f"checkpoint {checkpoint.path} does not fit this program's network and optimizer: "
            f"{'; '.join(differences[:5])}{more}"
        )


def _read(path: Path) -> Checkpoint:
    # Opened once: the learner at work may remove it meanwhile.
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"the checksum of {broken} does not match")
        file.seek(0)
        with np.load(file, allow_pickle=False) as entries:
            header = json.loads(entries[_HEADER].tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"expected format {FORMAT}, found {header['format']}")
            arrays = {name: entries[_ARRAY + name] for name in header["arrays"]}
    return Checkpoint(path, int(header["version"]), arrays, header["metadata"])


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in "biufc" or array.dtype.isbuiltin != 1:
        raise TypeError(f"array {name}: expected a NumPy number or bool, found dtype {array.dtype}")
    return array


def _version(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match.group(1))


def _describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{dtype.name} {list(shape)}"
