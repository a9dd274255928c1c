"""The video of the first episode."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actor.timestep import TimeStep, restart, transition
from actor.video import VideoRecorder
from protos.errors import ConfigError, EnvironmentFailure
from tests.learner.telemetry.disk import full_at

imageio = pytest.importorskip("imageio")


def frame(step: int) -> np.ndarray:
    """uint8 [21, 34, 3], of odd height; every step has its own gray."""
    return np.full((21, 34, 3), 40 * step, np.uint8)


def step(terminated: bool = False, truncated: bool = False, others: bool = False) -> TimeStep:
    """A later step of two environments; `others` ends the episode of the second."""
    return transition(np.zeros(2), np.zeros(2), [terminated, others], [truncated, False])


def frames_of(path: Path) -> list[np.ndarray]:
    return [np.asarray(image) for image in imageio.mimread(path)]


@pytest.mark.parametrize("end", [{"terminated": True}, {"truncated": True}])
def test_records_the_first_episode_with_its_last_frame(tmp_path: Path, end: dict[str, bool]) -> None:
    path = tmp_path / "made" / "walk.gif"
    timesteps = [restart(np.zeros(2), 2), step(others=True), step(**end), restart(np.zeros(2), 2)]
    with VideoRecorder(path, frames_per_second=10) as recorder:
        for number, timestep in enumerate(timesteps):
            recorder.record(timestep, lambda number=number: frame(number))
            assert path.exists() == (number >= 2)
    frames = frames_of(path)
    assert [int(image.mean()) for image in frames] == [0, 40, 80]
    assert frames[0].shape[:2] == (20, 34)
    assert [entry.name for entry in path.parent.iterdir()] == ["walk.gif"]


def test_nothing_is_rendered_after_the_first_episode(tmp_path: Path) -> None:
    recorder = VideoRecorder(tmp_path / "walk.gif", 10)
    recorder.record(step(terminated=True), lambda: frame(0))
    recorder.record(step(), lambda: pytest.fail("rendered"))


def test_a_recording_that_is_stopped_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "walk.gif"
    recorder = VideoRecorder(path, 10)
    recorder.record(restart(np.zeros(2), 2), lambda: frame(0))
    recorder.record(step(), lambda: frame(1))
    assert not path.exists()
    recorder.close()
    recorder.close()
    assert len(frames_of(path)) == 2


def test_a_former_video_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "walk.gif"
    path.write_bytes(b"former")
    with VideoRecorder(path, 10) as recorder:
        recorder.record(step(), lambda: frame(0))
        assert path.read_bytes() == b"former"
    assert path.read_bytes() != b"former"


def test_without_a_frame_there_is_no_file(tmp_path: Path) -> None:
    VideoRecorder(tmp_path / "walk.gif", 10).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shown", "found"),
    [(None, "found nothing"), (np.zeros((2, 2), np.uint8), r"found an array of shape \[2, 2\]")],
)
def test_what_shows_no_image_is_refused(tmp_path: Path, shown: Any, found: str) -> None:
    recorder = VideoRecorder(tmp_path / "walk.gif", 10)
    with pytest.raises(EnvironmentFailure, match=rf"expected render\(\) to return an image .*{found}"):
        recorder.record(step(), lambda: shown)


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recorder = VideoRecorder(tmp_path / "file" / "walk.gif", 10)
    with pytest.raises(
        ConfigError, match=r"^--video \S+walk\.gif cannot be written: (File exists|Not a dir)"
    ):
        recorder.record(step(), lambda: frame(0))
    recorder.record(step(), lambda: pytest.fail("tried again"))
    recorder.close()


def test_a_name_that_is_taken_by_a_folder_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "walk.gif"
    path.mkdir()
    recorder = VideoRecorder(path, 10)
    with pytest.raises(ConfigError, match=r"walk\.gif cannot be written: Is a directory"):
        recorder.record(step(terminated=True), lambda: frame(0))
    assert list(tmp_path.iterdir()) == [path], "nothing is left"


def test_a_full_disk_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "walk.gif"
    path.write_bytes(b"former")
    recorder = VideoRecorder(path, 10)
    with full_at(10), pytest.raises(ConfigError, match=r"walk\.gif cannot be written: File too large"):
        _record_all(recorder)
    recorder.close()
    assert [(file, file.read_bytes()) for file in tmp_path.iterdir()] == [(path, b"former")]


def _record_all(recorder: VideoRecorder) -> None:
    for number in range(4):
        recorder.record(step(), lambda number=number: frame(number))
    recorder.close()


@pytest.mark.parametrize(("name", "package"), [("a.gif", "imageio"), ("a.mp4", "imageio_ffmpeg")])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"needs {package}: pip install 'seedbed\[video\]'"):
        VideoRecorder(tmp_path / name, 10)


# imageio leaves the pipes of its ffmpeg processes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_mp4(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "walk.mp4"
    with VideoRecorder(path, 10) as recorder:
        for number in range(4):
            recorder.record(step(), lambda number=number: frame(number))
    frames = frames_of(path)
    assert [image.shape for image in frames] == [(20, 34, 3)] * 4
    assert [round(float(image.mean()), -1) for image in frames] == [0, 40, 80, 120]


# As above.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_leaves_no_mp4(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    recorder = VideoRecorder(tmp_path / "walk.mp4", 10)
    with full_at(10), pytest.raises(ConfigError, match=r"walk\.mp4 cannot be written: "):
        _record_all(recorder)
    assert list(tmp_path.iterdir()) == []


def test_mp4_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What imageio is asked for, where ffmpeg itself is not installed."""
    asked: dict[str, Any] = {}

    def get_writer(path: Path, **options: Any) -> Any:
        asked.update(options, path=path)
        path.write_bytes(b"moov")
        return SimpleNamespace(append_data=lambda _: None, close=lambda: None)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(imageio, "get_writer", get_writer)
    with VideoRecorder(tmp_path / "Walk.MP4", 12.5) as recorder:
        recorder.record(step(), lambda: frame(0))
    assert asked["fps"] == 12.5
    assert asked["path"].suffix == ".mp4"  # imageio goes by the suffix
    assert (tmp_path / "Walk.MP4").exists()
