"""Trials: what they are asked for, what they watch, and processes that leave nothing behind."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from learner.config import TrainOptions
from learner.planning import trials
from learner.planning.trial_process import Watcher, Window, cpu_clocks, process_cpu_seconds
from learner.planning.trials import Setting, TrialProcess, from_json, trial_options
from learner.scratch import LOCK
from protos.errors import WorkerFailure

OPTIONS = TrainOptions(env="CartPole-v1", num_actors=3, hidden_sizes=(32,), stop_return=1.0)


def line(seconds: float, steps: int, version: int, idle: float | None = 0.5) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "env_steps": steps,
        "policy_version": version,
        "policy_lag": None,
        "actors_idle": idle,
        "training_busy": 0.25,
        "acting/rows": 2.0 * steps,
        "acting/batches": steps / 4,
    }


# Settings and requests ---------------------------------------------------------------------------


def test_a_setting_is_part_of_the_options() -> None:
    setting = Setting.of(OPTIONS)
    assert setting.num_actors == 3
    changed = dataclasses.replace(setting, num_actors=5, queue_capacity=16).apply(OPTIONS)
    assert changed == dataclasses.replace(OPTIONS, num_actors=5, queue_capacity=16)


def test_a_setting_that_the_options_forbid_is_none() -> None:
    assert dataclasses.replace(Setting.of(OPTIONS), queue_capacity=1).apply(OPTIONS) is None


def test_a_trial_never_ends_by_itself_and_survives_json() -> None:
    values = json.loads(json.dumps(trial_options(OPTIONS, "/somewhere")))
    options = from_json(values)
    assert options.logdir == "/somewhere"
    assert options.stop_return is None
    assert options.total_steps == trials.FOREVER
    assert options.hidden_sizes == (32,)
    assert Setting.of(options) == Setting.of(OPTIONS)


# The window --------------------------------------------------------------------------------------


def test_the_window_begins_after_the_first_update_and_the_time_to_settle() -> None:
    clocks = iter([{"learner_cpu": 10.0}, {"learner_cpu": 17.0}])
    window = Window(settle_seconds=1.0, seconds=2.0, clocks=lambda: next(clocks))
    lines = [
        line(0.5, 100, 0),  # acting alone
        line(1.0, 200, 1),  # the first update
        line(1.9, 900, 5),
        line(2.0, 1000, 6, idle=0.9),  # the window begins
        line(3.0, 1500, 9, idle=None),
        line(4.0, 2400, 12, idle=0.1),
    ]
    assert [window.add(each) for each in lines] == [False] * 5 + [True]
    assert window.result == {
        "seconds": 2.0,
        "rate": 700.0,
        "batch": 8.0,
        "learner_cpu": 7.0 / 1400,
        "policy_lag": None,
        # What a line says is of the interval before it.
        "actors_idle": 0.1,
        "training_busy": 0.25,
    }


class Watched:
    """A watcher of a file, by a clock and a parent of the test's."""

    def __init__(self, path: Path) -> None:
        self.now, self.parent, self.ends = 0.0, 1, 0
        self.window = Window(0.0, 1.0)
        self.watcher = Watcher(
            path,
            self.window,
            1,
            end_run=self._end,
            clock=self._tick,
            get_parent=lambda: self.parent,
        )

    def _end(self) -> None:
        self.ends += 1

    def _tick(self) -> float:
        self.now += 10.0
        return self.now


def write(path: Path, lines: list[Mapping[str, Any]], rest: str = "") -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + rest)


def test_the_run_is_ended_once_enough_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [line(1.0, 0, 1), line(2.0, 50, 2), line(3.0, 150, 3)], rest='{"sec')
    watched = Watched(path)
    watched.watcher.watch()
    assert watched.ends == 1
    assert watched.window.result is not None
    assert watched.window.result["rate"] == 100.0


def test_a_run_that_never_trains_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.planning.trial_process.POLL_SECONDS", 0.0)
    watched = Watched(tmp_path / "none")
    watched.watcher.watch()
    assert watched.ends == 1
    assert watched.window.result is None


def test_a_run_ends_with_the_parent(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "none")
    watched.parent = 2
    watched.watcher.watch()
    assert watched.ends == 1


def test_no_run_is_ended_that_has_ended(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "none")
    watched.watcher.close()
    watched.watcher.watch()
    assert watched.ends == 0


# CPU time ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_cpu_time_is_that_of_the_process_and_its_children_without_those_who_watch() -> None:
    ready, done = threading.Event(), threading.Event()

    def watch() -> None:
        spend(0.2)
        ready.set()
        done.wait(30)

    watcher = threading.Thread(target=watch, name="watcher", daemon=True)
    before = cpu_clocks()
    began = time.thread_time()
    watcher.start()
    command = [sys.executable, "-c", f"import time\n{inspect.getsource(spend)}\nspend(0.2)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        ready.wait(30)
        while process_cpu_seconds(child.pid) < 0.2:
            pass
        mine = time.thread_time() - began
        after = cpu_clocks()
        done.set()
        child.communicate(b"\n")
    watcher.join()
    assert before is not None
    assert after is not None
    assert after["actor_cpu"] - before["actor_cpu"] >= 0.2
    assert after["learner_cpu"] - before["learner_cpu"] == pytest.approx(mine, abs=0.1)
    assert process_cpu_seconds(child.pid) == 0.0


def spend(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


# Processes ---------------------------------------------------------------------------------------

PLAYED = """
import json, os, sys, tempfile
tempfile.mkdtemp()
for line in sys.stdin:
    request = json.loads(line)
    if request["seconds"] == 0:
        sys.exit(3)
    print(json.dumps({"seconds": request["seconds"], "rate": float(os.getppid())}), flush=True)
"""


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without TensorFlow in the place of the one that runs trainings."""
    (tmp_path / "played_trials.py").write_text(PLAYED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(trials, "MODULE", "played_trials")


@pytest.mark.usefixtures("played")
def test_a_process_answers_and_leaves_nothing() -> None:
    with TrialProcess() as process:
        folder = Path(process.folder)
        trial = process.run(OPTIONS, 1.0, 2.0)
        assert (trial.setting, trial.seconds) == (Setting.of(OPTIONS), 2.0)
        assert trial.rate == os.getpid()
        made = {path.name for path in folder.iterdir()} - {LOCK}
        assert len(made) == 1  # what the process has made, by its TMPDIR
    assert not folder.exists()
    process.close()


@pytest.mark.usefixtures("played")
def test_a_process_that_dies_is_said() -> None:
    with TrialProcess() as process:
        with pytest.raises(WorkerFailure, match="runs trials ended with status 3"):
            process.run(OPTIONS, 1.0, 0.0)
        with pytest.raises(WorkerFailure, match="runs trials ended with status 3"):
            process.run(OPTIONS, 1.0, 1.0)


def test_the_process_ends_with_its_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", trials.MODULE, "1"], input="", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
