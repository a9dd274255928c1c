"""Checkpoints: what is saved is loaded, damage is noticed, and nothing starts anew in silence."""

import logging
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.training.checkpoint import Checkpoint, Checkpoints, Expected, require_arrays
from protos.errors import CheckpointError
from tests.learner.telemetry.disk import full_at

ARRAYS: Mapping[str, np.ndarray] = {
    "policy/torso/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "optimizer/iterations": np.array(7, np.int64),
    "file": np.zeros((0, 3), np.uint8),
    "../mask": np.array([True, False]),
    "transposed": np.arange(6, dtype=np.float64).reshape(2, 3).T,
}
METADATA = {"episodes": {"env_steps": 123, "solved": None, "curve": [[1, 2.5]]}, "name": "größe"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    path = checkpoints.save(123, ARRAYS, METADATA)
    assert path == tmp_path / "step_000000123.npz"
    assert names(tmp_path) == ["step_000000123.npz"]
    found = checkpoints.load_latest()
    assert found is not None
    assert (found.path, found.version, found.metadata) == (path, 123, METADATA)
    assert set(found.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].shape == array.shape


def test_no_checkpoints_is_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, keep=1).load_latest() is None
    assert Checkpoints(tmp_path / "not there", keep=1).load_latest() is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for version in (1, 2, 999_999_999, 1_000_000_000):
        checkpoints.save(version, ARRAYS, {})
    assert [path.name for path in checkpoints.paths()] == ["step_999999999.npz", "step_1000000000.npz"]
    assert names(tmp_path) == ["step_1000000000.npz", "step_999999999.npz"]
    latest = checkpoints.load_latest()
    assert latest is not None
    assert latest.version == 1_000_000_000


def test_saving_a_version_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, ARRAYS, {"try": 1})
    path = checkpoints.save(1, ARRAYS, {"try": 2})
    assert path is not None
    assert checkpoints.load(path).metadata == {"try": 2}
    assert len(checkpoints.paths()) == 1


def test_keep_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep=0: expected at least 1"):
        Checkpoints(tmp_path, keep=0)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def drop_array(path: Path) -> None:
    with np.load(path) as entries:
        rest = {name: entries[name] for name in entries.files if name != "array/file"}
    np.savez(path, **rest)


@pytest.mark.parametrize("harm", [damage, truncate, empty, drop_array])
def test_damage_is_noticed_and_the_one_before_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Any
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(1, ARRAYS, {})
    newest = checkpoints.save(2, ARRAYS, {})
    assert newest is not None
    harm(newest)
    found = checkpoints.load_latest()
    assert found is not None
    assert found.version == 1
    assert f"checkpoint {newest} is damaged" in caplog.text
    assert "going back to the checkpoint before it" in caplog.text


def test_if_none_is_whole_nothing_starts_anew(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for version in (1, 2):
        path = checkpoints.save(version, ARRAYS, {})
        assert path is not None
        damage(path)
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints in .* can be loaded"):
        checkpoints.load_latest()


def test_a_learner_at_work_may_replace_them_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Checkpoints(tmp_path, keep=1)
    learner.save(1, ARRAYS, METADATA)
    reader, load = Checkpoints(tmp_path, keep=1), Checkpoints.load

    def load_late(self: Checkpoints, path: Path) -> Checkpoint:
        if path.name == "step_000000001.npz":
            learner.save(2, ARRAYS, METADATA)
        return load(self, path)

    monkeypatch.setattr(Checkpoints, "load", load_late)
    found = reader.load_latest()
    assert found is not None
    assert found.version == 2


def test_a_learner_at_work_may_remove_it_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    path = checkpoints.save(1, ARRAYS, METADATA)
    assert path is not None
    monkeypatch.setattr(zipfile.ZipFile, "testzip", lambda _: path.unlink())
    assert set(checkpoints.load(path).arrays) == set(ARRAYS)


def test_no_flipped_bit_is_believed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    path = checkpoints.save(5, ARRAYS, METADATA)
    assert path is not None
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    noticed = 0
    for position in random.choice(len(whole), 300, replace=False).tolist():
        content = bytearray(whole)
        content[position] ^= 1 << int(random.integers(8))
        path.write_bytes(content)
        try:
            found = checkpoints.load(path)
        except CheckpointError:
            noticed += 1
            continue
        # Some bytes, such as a file's time, mean nothing to us; then all else must be right.
        assert (found.version, found.metadata) == (5, METADATA)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found.arrays[name], array)
    assert noticed > 150


def test_pickles_are_refused_on_both_ways(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    with pytest.raises(TypeError, match="array x: expected a NumPy number or bool, found dtype object"):
        checkpoints.save(1, {"x": np.array([{}])}, {})
    assert names(tmp_path) == []
    path = tmp_path / "step_000000001.npz"
    np.savez(path, header=np.array([{}], object))
    with pytest.raises(CheckpointError, match="Object arrays cannot be loaded"):
        checkpoints.load(path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    Checkpoints(tmp_path, keep=1).save(1, ARRAYS, METADATA)
    found = Checkpoints(tmp_path, keep=1).load_latest()
    assert found is not None
    assert found.require("name") == "größe"
    with pytest.raises(CheckpointError, match=r"npz: expected metadata 'spec', found none"):
        found.require("spec")


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step_000000001.npz"
    np.savez(path, header=np.frombuffer(b'{"format": 9}', np.uint8))
    with pytest.raises(CheckpointError, match="expected format 1, found 9"):
        Checkpoints(tmp_path, keep=1).load(path)


def test_what_a_killed_save_left_is_ignored_and_then_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    (tmp_path / ".step_000000009.npz.tmp").write_bytes(b"half")
    assert checkpoints.load_latest() is None
    checkpoints.save(10, ARRAYS, {})
    assert names(tmp_path) == ["step_000000010.npz"]


def test_a_full_disk_costs_the_checkpoint_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    checkpoints = Checkpoints(tmp_path, keep=1, clock=lambda: now[0])
    now[0] = 102.0
    assert checkpoints.statistics() == {"saved": 0, "failed": 0, "age_seconds": 2}
    path = checkpoints.save(1, ARRAYS, {})
    assert path is not None
    size = path.stat().st_size
    now[0] = 105.0
    with full_at(1500):
        assert checkpoints.save(2, ARRAYS, {}) is None
    assert names(tmp_path) == ["step_000000001.npz"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert re.search(
        r"step_000000002.npz cannot be written \(File too large\): training goes on", caplog.text
    )
    assert checkpoints.statistics() == {"saved": 1, "failed": 1, "age_seconds": 3, "bytes": size}
    assert checkpoints.save(3, ARRAYS, {}) is not None


def test_old_ones_that_cannot_be_removed_do_not_make_a_new_one_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "step_000000001.npz").mkdir()
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.save(2, ARRAYS, METADATA) == tmp_path / "step_000000002.npz"
    assert f"old checkpoints in {tmp_path} cannot be removed" in caplog.text
    assert (checkpoints.statistics()["saved"], checkpoints.statistics()["failed"]) == (1, 0)


def test_an_unusable_newer_checkpoint_is_set_aside_once_the_run_has_gone_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for version in (100, 200):
        checkpoints.save(version, ARRAYS, {})
    damage(tmp_path / "step_000000200.npz")
    assert checkpoints.load_latest() is not None
    checkpoints.save(150, ARRAYS, {})
    assert names(tmp_path) == [
        "step_000000100.npz",
        "step_000000150.npz",
        "step_000000200.npz.unusable",
    ]
    assert "set aside as step_000000200.npz.unusable" in caplog.text


def checkpoint(arrays: Mapping[str, np.ndarray]) -> Checkpoint:
    return Checkpoint(Path("step_1.npz"), 1, arrays, {})


def test_arrays_that_fit_are_accepted() -> None:
    expected = {name: Expected(array.shape, array.dtype) for name, array in ARRAYS.items()}
    require_arrays(checkpoint(ARRAYS), expected)


def test_every_difference_is_named() -> None:
    found = {"kernel": np.zeros((4, 32), np.float32), "step": np.array(1), "old": np.zeros(2)}
    expected = {
        "kernel": Expected((4, 64), np.dtype(np.float32)),
        "step": Expected((), np.dtype(np.int32)),
        "new": Expected((2,), np.dtype(np.float32)),
    }
    with pytest.raises(CheckpointError) as refused:
        require_arrays(checkpoint(found), expected)
    assert str(refused.value) == (
        "checkpoint step_1.npz does not fit this program's network and optimizer: "
        "new is missing; old is not expected; "
        "kernel: expected float32 [4, 64], found float32 [4, 32]; "
        "step: expected int32 [], found int64 []"
    )


def test_many_differences_are_cut_short() -> None:
    expected = {f"x{i}": Expected((), np.dtype(np.int32)) for i in range(8)}
    with pytest.raises(CheckpointError, match=r"x4 is missing, and 3 more$"):
        require_arrays(checkpoint({}), expected)
