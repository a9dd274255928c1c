"""Every example, run as a reader would, against real learners."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from learner.flags import LAST
from learner.serving.batcher import Request
from protos.errors import RunEnded
from protos.inference_pb2 import FIRST
from protos.specs import from_spaces
from tests.fakes import FakeLearner

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PATIENCE_SECONDS = 90.0
"""Longest wait for a process: what takes longer than this is a failure."""

SHORT = ("--progress=none", "--num-actors=1", "--envs-per-actor=4")


def start(*arguments: str) -> "subprocess.Popen[str]":
    """A Python process in the repository's root, where its packages are found."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    """What the process printed, once it has ended well."""
    try:
        out, error = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, error
    return out


def summary(logdir: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((logdir / "summary.json").read_text(encoding="utf-8"))
    return result


@pytest.fixture(scope="module")
def memory_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the memory task, whose policy has a memory to export."""
    logdir = tmp_path_factory.mktemp("runs") / "memory"
    env = "--env=examples/memory_task.py:make_env"
    arguments = [env, f"--logdir={logdir}", "--lstm-size=4", "--total-steps=500", *SHORT]
    finish(start("-m", "learner", "train", *arguments))
    return logdir


@pytest.fixture
def socket() -> Iterator[str]:
    """A unix socket's address; in a folder of its own, since such paths must be short."""
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        yield f"unix:{folder}/learner.sock"


def test_custom_environment_and_ten_lines(tmp_path: Path, socket: str) -> None:
    """Two learners at a time, since most of a short run is waiting for imports."""
    env = "--env=examples/custom_environment.py:make_env"
    catch = start(
        "-m", "learner", "train", env, f"--logdir={tmp_path / 'catch'}", "--total-steps=500", *SHORT
    )
    learner = start(
        "-m", "learner", "learner", f"--listen={socket}", f"--logdir={tmp_path / 'ten'}",
        "--total-steps=300", "--progress=none",
    )  # fmt: skip
    ten_lines = start("examples/ten_lines.py", socket)
    for process in (catch, learner, ten_lines):
        finish(process)
    played = summary(tmp_path / "catch")
    assert played["env_steps"] == pytest.approx(500, abs=400)
    assert played["episodes"] == pytest.approx(500 / 9, abs=45)
    assert -1 <= float(str(played["mean_return_100"])) <= 1
    assert int(str(summary(tmp_path / "ten")["env_steps"])) >= 300


def test_several_environments(socket: str) -> None:
    """Against a learner that checks the order of rows, and whose policy lets the pole fall."""
    env = gymnasium.make("CartPole-v1")
    spec = from_spaces(env.observation_space, env.action_space)
    with FakeLearner(socket, spec=spec) as learner:

        def act(request: Request) -> None:
            request.reply(np.zeros(len(request.slots), np.int64), 7)
            learner.requests.put(request)

        learner.on_step = act
        process = start("examples/several_environments.py", socket)
        requests = [learner.next_request() for _ in range(50)]
        learner.server.end_streams(RunEnded("that is enough"))
        finish(process)
    flags = np.stack([request.flags for request in requests])
    assert flags.shape == (50, 4)
    # Every last row is followed by a first one, and both kinds have stood in one message.
    last, first = (flags & LAST) != 0, (flags & FIRST) != 0
    assert last[:-1].sum() >= 8
    np.testing.assert_array_equal(first[1:], last[:-1])
    assert any(row.any() and not row.all() for row in first)


def test_memory_task(memory_run: Path) -> None:
    result = summary(memory_run)
    assert int(str(result["env_steps"])) >= 500
    assert 0 <= float(str(result["mean_return_100"])) <= 1


def test_exported_policy_is_loaded(memory_run: Path, tmp_path: Path) -> None:
    """Without seedbed on the path: its memory task is registered by a module of this test."""
    exported = tmp_path / "exported"
    finish(start("-m", "learner", "export", f"--logdir={memory_run}", f"--out={exported}"))
    (tmp_path / "recall_env.py").write_text(
        "import sys\n"
        f"sys.path.append({str(EXAMPLES)!r})\n"
        "import gymnasium\n"
        "gymnasium.register('Recall-v0', 'memory_task:Recall', disable_env_checker=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", EXAMPLES / "load_exported_policy.py", exported, "recall_env:Recall-v0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("return 0\n", "return 1\n")
    assert "seedbed" not in (EXAMPLES / "load_exported_policy.py").read_text().partition("import")[2]


def test_minatar_breakout() -> None:
    pytest.importorskip("minatar")

    text = finish(start("-m", "actor", "--env=examples/minatar_breakout.py:make_env", "--describe"))

    described = json.loads(text)
    assert described["observation"][0]["shape"] == [10, 10, 4]
    assert described["action"]["kind"] == "CATEGORICAL"


@pytest.mark.slow
def test_memory_task_is_learned(tmp_path: Path) -> None:
    """A policy that guesses earns 0.25."""
    arguments = ["--preset=memory-r2d2", f"--logdir={tmp_path}"]
    finish(start("-m", "learner", "train", *arguments, "--stop-return=0.8", "--progress=none"))
    assert summary(tmp_path)["solved_env_steps"] is not None
