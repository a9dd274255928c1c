"""The process: exit statuses, what is printed where, signals."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import Parse

import actor.__main__ as main_module
from actor.__main__ import main
from actor.environments import make_environment
from actor.stop_signals import LOOK_SECONDS, StopSignals
from actor.timestep import TimeStep
from actor.waiting import Interrupted
from protos import inference_pb2 as pb
from protos.errors import NotServing, RunEnded
from protos.specs import from_proto, from_spaces
from tests.certificates import TOKEN

TOYS = "tests.actor.toys"
ROOT = str(Path(__file__).parents[2])

# As the console script does it: nothing of the current directory is on the path.
CONSOLE_SCRIPT = "from actor.__main__ import process; process()"


def run(*arguments: str, cwd: Path | str = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", CONSOLE_SCRIPT, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
    )


# Describe ---------------------------------------------------------------------------------------

CHATTY = """
import os
import gymnasium
print("hello from Python")
os.system("echo hello from a child")

def make_env():
    print("hello from the constructor")
    return gymnasium.make("CartPole-v1")
"""


def test_describe_prints_the_specs_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "my_file.py").write_text(CHATTY)
    done = run("--env", "my_file:make_env", "--describe", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    spec = from_proto(Parse(done.stdout, pb.EnvironmentSpec()))
    environment = make_environment("CartPole-v1", 1, seed=1)
    assert spec == from_spaces(environment.observation_space, environment.action_space)
    assert isinstance(json.loads(done.stdout), dict)
    assert "hello from Python" in done.stderr
    assert "hello from a child" in done.stderr
    assert "hello from the constructor" in done.stderr


def test_describe_of_what_does_not_exist() -> None:
    done = run("--env", "CartPolle-v1", "--describe")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("seedbed-actor: error: environment CartPolle-v1: ")
    assert done.stderr.count("\n") == 1


def test_describe_of_what_cannot_run() -> None:
    done = run("--env", f"{TOYS}:wrong_leaf_in_reset", "--describe")
    assert (done.returncode, done.stdout) == (1, "")
    assert "reset() must return the observation 'inner/0' as int64[2]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_version_and_module_entry() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "actor", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seedbed-actor ")


# Acting -----------------------------------------------------------------------------------------


class FakeClient:
    """In the place of `InferenceClient`; class attributes say what it does."""

    acts = 5
    end: Exception = RunEnded("total steps reached")
    signal: int | None = None
    made: "FakeClient"

    def __init__(self, server: str, *_: Any, **options: Any) -> None:
        type(self).made = self
        self.server, self.options = server, options
        self.steps = 0
        self.closed: list[str] = []
        self.interrupted = False

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def act(self, timestep: TimeStep) -> np.ndarray:
        self.steps += 1
        if self.steps == self.acts:
            if self.signal is None:
                raise self.end
            os.kill(os.getpid(), self.signal)
        if self.interrupted:
            raise Interrupted("interrupted")
        return np.zeros(len(timestep.first), np.int64)

    def interrupt(self) -> None:
        self.interrupted = True

    def close(self, error: str = "") -> None:
        self.closed.append(error)


@pytest.fixture
def fake_client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    kind = type("Fake", (FakeClient,), {})
    monkeypatch.setattr(main_module, "InferenceClient", kind)
    return kind


def test_options_reach_the_client(fake_client: type[FakeClient]) -> None:
    arguments = "--server learner:80 --num-envs 3 --mode evaluate --name me --connect-timeout-seconds 7"
    assert main(["--env", f"{TOYS}:Walk", *arguments.split()]) == 0
    made = fake_client.made
    assert made.server == "learner:80"
    assert made.options["num_environments"] == 3
    assert made.options["mode"] == "evaluate"
    assert made.options["name"] == "me"
    assert made.options["retry"].give_up_seconds == 7


def test_it_stands_back_for_others_as_far_as_it_is_told(
    fake_client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(os, "nice", told.append)
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, _: told.append((pid, policy)))
    assert main(["--env", f"{TOYS}:Walk"]) == 0
    assert told == []
    assert main(["--env", f"{TOYS}:Walk", "--niceness", "7"]) == 0
    assert told == [7, (0, os.SCHED_BATCH)]


def test_it_acts_where_a_sandbox_forbids_batch_processes(
    fake_client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "nice", lambda niceness: None)
    monkeypatch.setattr(os, "sched_setscheduler", forbid)
    assert main(["--env", f"{TOYS}:Walk", "--niceness", "7"]) == 0
    assert fake_client.made.steps == 5


def test_the_end_of_the_run_is_success(fake_client: type[FakeClient]) -> None:
    assert main(["--env", f"{TOYS}:Walk"]) == 0
    assert fake_client.made.steps == 5
    assert fake_client.made.closed == [""]
    assert fake_client.made.options["retry"].give_up_seconds is None  # waits for ever


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_the_session_cleanly(
    fake_client: type[FakeClient], number: int, status: int
) -> None:
    handlers = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    fake_client.signal = number
    assert main(["--env", f"{TOYS}:Walk"]) == status
    assert fake_client.made.steps == 5
    assert fake_client.made.closed == [""]
    assert handlers == [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]


def test_a_supervisor_can_tell_an_interrupted_actor(fake_client: type[FakeClient]) -> None:
    arguments = ["--env", f"{TOYS}:Walk", "--interrupted-status=143"]
    assert main(arguments) == 0  # the run has ended
    fake_client.signal = signal.SIGTERM
    assert main(arguments) == 143
    fake_client.signal = signal.SIGINT
    assert main(arguments) == 130


def test_a_seed_is_drawn_on_demand(
    fake_client: type[FakeClient], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert main(["--env", f"{TOYS}:Walk", "--seed=-1"]) == 0
    drawn = re.findall(r"drew --seed (\d+)", caplog.text)
    assert len(set(drawn)) == 2


def test_a_failing_environment_shows_its_own_traceback(
    fake_client: type[FakeClient], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--env", f"{TOYS}:Failing"]) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert 'raise ZeroDivisionError("the wheel came off")' in error
    last = (
        f"seedbed-actor: error: environment {TOYS}:Failing failed in step(): "
        "ZeroDivisionError: the wheel came off"
    )
    assert error.splitlines()[-1] == last
    assert fake_client.made.closed == [last.removeprefix("seedbed-actor: error: "), ""]


@pytest.mark.parametrize(
    ("name", "beginning", "end"),
    [
        ("FailingMutely", "Unspeakable: (what it says cannot be had: RecursionError)", ""),
        ("FailingLoudly", "ValueError: \\x00\\ud800xxx", "xxxthe wheel came off"),
    ],
)
def test_whatever_an_environment_raises_it_is_told_in_bounds(
    fake_client: type[FakeClient],
    capsys: pytest.CaptureFixture[str],
    name: str,
    beginning: str,
    end: str,
) -> None:
    assert main(["--env", f"{TOYS}:{name}"]) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert len(error) < 100_000
    *_, last = error.splitlines()
    assert last.startswith(
        f"seedbed-actor: error: environment {TOYS}:{name} failed in step(): {beginning}"
    )
    assert last.endswith(end)
    assert fake_client.made.closed == [last.removeprefix("seedbed-actor: error: "), ""]


def test_other_errors_are_one_line(
    fake_client: type[FakeClient], capsys: pytest.CaptureFixture[str]
) -> None:
    fake_client.end = NotServing("no learner at 127.0.0.1:7777 within 7 s")
    assert main(["--env", f"{TOYS}:Walk"]) == 1
    expected = "seedbed-actor: error: no learner at 127.0.0.1:7777 within 7 s\n"
    assert capsys.readouterr().err == expected


def test_no_learner_within_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    """The real client: nobody listens on the unix socket."""
    server = "unix:/no/such/socket"
    arguments = ["--env", f"{TOYS}:Walk", "--server", server, "--connect-timeout-seconds", "0.01"]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert f"no learner at {server} within 0.01 s" in error
    assert "Traceback" not in error


def test_an_option_that_is_refused_late_ends_it_with_status_2(
    fake_client: type[FakeClient], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actor.video.importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(["--env", f"{TOYS}:Walk", "--video", "walk.gif"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"seedbed-actor: error: --video {Path('walk.gif').absolute()} needs imageio: "
        "pip install 'seedbed[video]'\n"
    )


@pytest.mark.parametrize(
    ("parent", "gives_up"), [(0, False), (os.getppid(), False), (os.getppid() + 1, True)]
)
def test_it_waits_as_long_as_its_parent_lives(
    fake_client: type[FakeClient], parent: int, gives_up: bool
) -> None:
    assert main(["--env", f"{TOYS}:Walk", "--parent", str(parent)]) == 0
    assert fake_client.made.options["retry"].give_up_when() is gives_up


def test_an_actor_whose_parent_and_learner_are_gone_ends() -> None:
    command = [
        sys.executable,
        "-m",
        "actor",
        "--env",
        f"{TOYS}:Walk",
        "--server",
        "unix:/no/such/socket",
    ]
    parent = f"import os, subprocess; subprocess.Popen([*{command}, f'--parent={{os.getpid()}}'])"
    # Returns when the last holder of its pipes has ended, which is the actor.
    done = subprocess.run(
        [sys.executable, "-c", parent], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("seedbed-actor: error: no learner at unix:/no/such/socket: "), done.stderr


def test_video(fake_client: type[FakeClient], tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio")
    video = tmp_path / "walk.gif"
    fake_client.acts = 20
    assert main(["--env", f"{TOYS}:Walk", "--video", str(video)]) == 0
    assert 4 <= len(imageio.mimread(video)) <= 7  # one episode, its first and last frames included


def test_a_stopped_video_is_complete(fake_client: type[FakeClient], tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio")
    video = tmp_path / "walk.gif"
    fake_client.acts, fake_client.signal = 2, signal.SIGTERM
    assert main(["--env", f"{TOYS}:Walk", "--video", str(video)]) == 0
    assert len(imageio.mimread(video)) == 2


def test_an_environment_may_change_the_current_directory(
    fake_client: type[FakeClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio")
    monkeypatch.chdir(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    arguments = "--server unix:learner.sock --token-file token --video walk.gif"
    assert main(["--env", f"{TOYS}:Wandering", *arguments.split()]) == 0
    assert Path.cwd() != tmp_path
    assert fake_client.made.server == f"unix:{tmp_path}/learner.sock"
    assert fake_client.made.options["credentials"].metadata()[0][1] == f"Bearer {TOKEN}"
    assert (tmp_path / "walk.gif").exists()


# Signals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parent", "moment"), [([], r"\d\d:\d\d:\d\d "), (["--parent=1"], "")])
def test_the_log_has_the_time_of_day_but_below_a_learner(parent: list[str], moment: str) -> None:
    arguments = ["--env", f"{TOYS}:Walk", "--server=unix:/no/such/socket", *parent]
    done = run(*arguments, "--seed=-1", "--connect-timeout-seconds=0.01")
    assert re.match(rf"{moment}seedbed-actor: drew --seed \d+$", done.stderr, re.MULTILINE), done.stderr


def test_the_log_says_which_signal_ended_it(
    fake_client: type[FakeClient], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        assert main(["--env", f"{TOYS}:Walk"]) == 0
        fake_client.signal = signal.SIGINT
        assert main(["--env", f"{TOYS}:Walk"]) == 130
    assert [words for words in caplog.messages if words.startswith("ended")] == [
        "ended",
        "ended by SIGINT",
    ]


def test_a_second_signal_has_its_default_effect() -> None:
    with StopSignals() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_callback_that_comes_after_the_signal_is_called_at_once() -> None:
    called: list[str] = []
    with StopSignals() as stop:
        stop.on_stop(lambda: called.append("before"))
        os.kill(os.getpid(), signal.SIGINT)
        stop.on_stop(lambda: called.append("after"))
    assert called == ["before", "after"]
    assert stop.exit_status == 130


def test_what_hangs_after_a_signal_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    with StopSignals(limit_seconds=0.0, give_up=ended.set):
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(10)
    assert "the actor did not end within 0 s of the signal" in caplog.text
    assert "in test_what_hangs_after_a_signal_is_ended" in caplog.text


def test_what_ends_in_time_is_left_alone() -> None:
    with StopSignals(limit_seconds=3600.0):
        os.kill(os.getpid(), signal.SIGTERM)
        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
        assert len(timers) == 1
    timers[0].join(10)
    assert not timers[0].is_alive()


def test_an_environment_that_takes_the_signals_gives_them_back() -> None:
    now = 0.0
    with StopSignals(clock=lambda: now) as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert not stop.is_set()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        now += LOOK_SECONDS
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()


THREADED = """
import threading
import actor.__main__ as module

def end(argv=None):
    threading.Thread(target=threading.Event().wait, name="simulator").start()
    return 3

module.main, module.LIMIT_SECONDS = end, 0.0
module.process()
"""


def test_threads_that_an_environment_leaves_do_not_hold_up_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADED], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert done.stderr == "threads of the environment go on (simulator): the process ends without them\n"


FORKING = """
import multiprocessing, signal
from actor.stop_signals import StopSignals

def body(ready):
    ready.set()
    signal.pause()

with StopSignals() as stop:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=body, args=(ready,))
    child.start()
    ready.wait()
    child.terminate()
    child.join(10)
    print(child.exitcode, stop.is_set())
    child.kill()
"""


def test_a_process_that_an_environment_forks_ends_by_its_own_signal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"-{signal.SIGTERM:d} False\n", done.stderr
