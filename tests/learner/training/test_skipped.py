"""When skipped updates end a run, and what they leave behind."""

from pathlib import Path

import numpy as np
import pytest

from learner.experience.trajectory import Batch
from learner.training.skipped import SKIPPED, SkippedUpdates, batch_arrays
from protos.errors import TrainingFailure


def batch(reward: float) -> Batch:
    """One unroll of one transition."""
    steps = np.zeros((2, 1), np.bool_)
    return Batch(
        observation=(np.full((2, 1, 3), 7, np.uint8), np.ones((2, 1), np.float32)),
        reward=np.full((2, 1), reward, np.float32),
        first=steps,
        terminated=steps,
        truncated=steps,
        record={"action": np.ones((2, 1), np.int64)},
        version=np.zeros((2, 1), np.int64),
        initial_state={"frames": np.zeros((1, 4), np.float32)},
        weight=np.ones(1, np.float32),
    )


def note(updates: SkippedUpdates, *totals: int) -> None:
    for number, total in enumerate(totals):
        updates.note(batch(float(number)), {SKIPPED: total})


def test_so_many_in_a_row_end_the_training_and_leave_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "offending_batch.npz"
    updates = SkippedUpdates(3, path)
    with pytest.raises(TrainingFailure, match=r"the last 3 updates were skipped.* is in .*offending_"):
        note(updates, 0, 1, 2, 3)
    with np.load(path, allow_pickle=False) as saved:
        assert set(saved.files) == {
            "observation/0", "observation/1", "reward", "first", "terminated", "truncated",
            "record/action", "version", "initial_state/frames", "weight",
        }  # fmt: skip
        np.testing.assert_array_equal(saved["reward"], [[3.0], [3.0]])
        assert saved["observation/0"].dtype == np.uint8


def test_a_good_update_between_them_begins_the_count_anew(tmp_path: Path) -> None:
    updates = SkippedUpdates(3, tmp_path / "batch.npz")
    note(updates, 1, 2, 2, 3, 4, 4)
    updates.check_end()
    assert updates.statistics() == {"updates": 6, "skipped": 4}
    assert not list(tmp_path.iterdir())


def test_a_run_whose_few_updates_were_all_skipped_fails_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    updates = SkippedUpdates(10, path)
    note(updates, 1, 2)
    with pytest.raises(TrainingFailure, match="the last 2 updates were skipped"):
        updates.check_end()
    assert path.exists()


def test_a_run_without_updates_ends_well(tmp_path: Path) -> None:
    SkippedUpdates(10, tmp_path / "batch.npz").check_end()


def test_what_was_skipped_before_a_resumption_is_not_counted(tmp_path: Path) -> None:
    updates = SkippedUpdates(1, tmp_path / "batch.npz", before=None)
    note(updates, 40, 40)
    assert updates.statistics()["skipped"] == 0


def test_a_full_disk_does_not_hide_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    updates = SkippedUpdates(1, tmp_path / "gone" / "batch.npz")
    with pytest.raises(TrainingFailure, match=r"not finite\. Start anew"):
        note(updates, 1)
    assert "batch.npz cannot be written" in caplog.text


def test_every_array_of_a_batch_has_a_name() -> None:
    assert len(batch_arrays(batch(0.0))) == 10
