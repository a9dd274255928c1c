"""The comparison from end to end, with a driver that costs nothing, and what it says of the missing."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from benchmarks import peer_run, peers, processes
from benchmarks.peer_drivers import drive_seedbed
from benchmarks.peer_drivers.settings import (
    LSTM_SIZE,
    Settings,
    expected_parameters,
    second_biases,
)
from benchmarks.peer_rows import Row, RowFile, row_of
from benchmarks.peer_settings import KINDS, WORKLOADS, Peer, settings_for
from benchmarks.peer_watch import Limits
from learner.agents.build import make_agent
from learner.config import TrainOptions
from protos import specs
from protos.errors import WorkerFailure
from protos.options import parse
from tests.benchmarks.running import ROOT, refused

DRIVER = """
import itertools, subprocess, sys
import numpy as np
from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.making import make_world
from benchmarks.peer_drivers.say import Readings, say

print("a system that chatters")
# It outlives the test unless it is ended, which is what is tested.
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
world = make_world("W1", 4, "same", seed=0)
world.reset()
say(parameters=9155, transport="none", helper=helper.pid)
readings = Readings(records.folder())
for round in itertools.count(1):
    for _ in range(100):
        world.step(np.zeros(4, np.int64))
    readings.add(400 * round, round, 1.0)
"""
"""Steps a real world, trains on all of it at once, and has a process of its own that outlives it."""


def driver(folder: Path, text: str) -> list[str]:
    path = folder / "driver.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_a_driver_is_watched_and_ended_with_all_it_has_started(tmp_path: Path) -> None:
    observed = peer_run.observe(driver(tmp_path, DRIVER), Limits(0.0, 0.3))
    helper = observed.said["helper"]
    assert not processes.lives(helper)
    row = row_of(Row(workload="W1", kind="equal", peer="rllib", repeat=1), Settings("W1"), observed)
    assert row.figures["trained_ratio"] == pytest.approx(1.0, abs=0.2)
    assert row.figures["steps_per_second"] == pytest.approx(row.figures["trained_per_second"], rel=0.2)
    assert (row.figures["steps_per_second"] or 0) > 1000
    assert (row.figures["cpu_seconds_per_million"] or 0) > 0
    assert (row.figures["memory_mb"] or 0) > 10
    assert (row.figures["cold_start_seconds"] or 0) > 0
    assert row.transport == "none"
    assert "its network" not in row.reason


def test_a_driver_that_fails_leaves_its_last_words(tmp_path: Path) -> None:
    command = driver(tmp_path, "print('going well'); raise SystemExit('the learner is gone')")
    with pytest.raises(
        WorkerFailure, match=r"it ended with status 1:\n(?s:.*)the learner is gone"
    ) as found:
        peer_run.observe(command, Limits(0.0, 1.0))
    assert "going well" in str(found.value)


def test_a_driver_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    # Says one word and then nothing for longer than the watch waits.
    command = driver(tmp_path, "import time; print('hello', flush=True); time.sleep(600)")
    with pytest.raises(WorkerFailure, match=r"expected a reading within 0.5 s, found none:\nhello"):
        peer_run.observe(command, Limits(0.0, 1.0), silence_seconds=0.5)


def options(**values: Any) -> peers.PeersOptions:
    return peers.PeersOptions(**{"workloads": "W1,W6", "settings": "equal", "repeats": 2, **values})


def test_systems_take_turns_and_what_cannot_run_is_named() -> None:
    ran: list[tuple[str, str, int]] = []

    def run(_: peers.PeersOptions, row: Row, settings: Settings) -> Row:
        ran.append((row.workload, row.peer, row.repeat))
        assert settings.workload == row.workload
        return row

    chosen = options(
        peers="seedbed,stable-baselines3,rllib,sample-factory",
        sample_factory_python="/nowhere/python",
        rllib_python=sys.executable,
    )
    rows = peers.compare(chosen, RowFile(None), run=run, tell=lambda text: None)
    assert ran == [(w, "seedbed", r) for w in ("W1", "W6") for r in (1, 2)]
    reasons = {row.peer: row.reason for row in rows if row.status == "skipped"}
    assert reasons["stable-baselines3"] == "--stable-baselines3-python was not given"
    assert reasons["rllib"] == f"ray is not installed in {sys.executable}"
    assert reasons["sample-factory"].startswith("/nowhere/python does not run: ")
    assert rows[0].versions["seedbed"]
    assert rows[0].versions["numpy"]


def test_packages_are_found_however_they_spell_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    # typing_extensions, in its own metadata.
    monkeypatch.setattr(peers, "PEERS", {"other": Peer("drive_other", ("typing-extensions",))})
    found = peers.find("other", sys.executable)
    assert found.missing == ""
    assert found.versions["typing-extensions"]


def test_a_later_call_runs_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    asked: list[int] = []

    def run(_: peers.PeersOptions, row: Row, settings: Settings) -> Row:
        asked.append(row.repeat)
        status = "void" if len(asked) == 1 else "ok"
        return Row(**{**vars(row), "status": status})

    chosen = options(peers="seedbed", workloads="W1")
    for expected in ([1, 2], [1, 2, 1]):
        peers.compare(chosen, RowFile(path), run=run, tell=lambda text: None)
        assert asked == expected
    assert {row.status for row in RowFile(path).rows} == {"ok"}


def test_a_crash_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise WorkerFailure("it ended with status 1:\nboom")

    monkeypatch.setattr(peers, "observe", fail)
    row = peers.run_one(
        options(), Row(workload="W1", kind="equal", peer="seedbed", repeat=1), Settings("W1")
    )
    assert (row.status, row.reason) == ("crashed", "it ended with status 1:\nboom")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--workloads=W9", "--workloads W9: expected some of W1,W2,W3,W4,W5,W6"),
        ("--peers=seedbed,acme", "--peers acme: expected some of seedbed,sample-factory,"),
        ("--settings=worst", "--settings worst: expected some of equal,best"),
        ("--repeats=0", "--repeats 0: expected at least 1"),
    ],
)
def test_options_that_mean_nothing_are_refused(flags: str, words: str) -> None:
    assert words in refused("peers", flags)


def test_all_in_one_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "command", lambda *_: driver(tmp_path, DRIVER))
    monkeypatch.setattr(processes, "adopt_orphans", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    peers.main(
        ["--peers=seedbed,rllib", "--workloads=W1", "--settings=equal", "--repeats=1",
         "--warm-up-seconds=0", "--window-seconds=0.2", "--json"]
    )  # fmt: skip
    *shown, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| seedbed V-trace | none |") for line in shown)
    assert "SKIPPED rllib: --rllib-python was not given" in shown
    whole = json.loads(last)
    assert whole["benchmark"] == "peers"
    assert [row["peer"] for row in whole["rows"]] == ["seedbed", "rllib"]
    figures = whole["rows"][0]["figures"]
    assert figures["window_seconds"] >= 0.2
    # 16 bytes of observation, 4 of reward, 1 of flags, 8 of action, and a message's overhead.
    assert 29 < figures["wire_bytes_per_step"] < 29 + 400 / 8


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
def test_seedbeds_network_has_the_agreed_size(workload: str) -> None:
    settings = Settings(workload)
    values = drive_seedbed.options(settings)
    options = TrainOptions(**{**values, "hidden_sizes": tuple(values["hidden_sizes"])})
    images = spaces.Box(0, 255, (84, 84, 1), np.uint8)
    vectors = spaces.Box(-1, 1, (6,) if settings.recurrent else (4,), np.float32)
    actions: Any = spaces.Discrete(6 if settings.images else 4 if settings.recurrent else 2)
    spec = specs.from_spaces(images if settings.images else vectors, actions)
    policy = make_agent(options, spec, seed=1).policy
    found = sum(int(np.prod(variable.shape)) for variable in policy.variables)
    assert found == expected_parameters(settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_seedbeds_command_is_accepted(workload: str, kind: Any, tmp_path: Path) -> None:
    settings = settings_for("seedbed", workload, kind, seed=2)
    assert settings is not None
    _, _, _, command, *flags = drive_seedbed.command(drive_seedbed.options(settings), tmp_path)
    options = parse(TrainOptions, flags, prog="seedbed", description="")
    assert command == "train"
    assert options.hidden_sizes == (64, 64)
    assert (options.num_actors, options.envs_per_actor) == (settings.actors, settings.envs_per_actor)
    assert options.unroll_length * options.batch_size == settings.batch_steps
    assert options.logdir == str(tmp_path)


def test_rows_that_no_step_led_to_are_not_trained_steps() -> None:
    line = {"policy_version": 10, "env_steps": 700, "episodes": 100}
    # 10 updates of 4 unrolls of 20 are 800 rows, of which one in eight begins an episode.
    assert drive_seedbed.trained_steps(line, 20, 4) == pytest.approx(700)
    assert drive_seedbed.trained_steps({**line, "env_steps": 0, "episodes": 0}, 20, 4) == 0


def test_metrics_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run:
        lines = drive_seedbed.lines(run, path)
        assert next(lines) == {"a": 1}
        with path.open("a") as file:
            file.write('}\n{"a": 3}\n')
        assert [next(lines), next(lines)] == [{"a": 2}, {"a": 3}]
        run.kill()
        assert list(lines) == []


# Processes --------------------------------------------------------------------------------------


SLEEPER = (
    "import subprocess, sys; "
    "subprocess.Popen([sys.executable, '-c', 'print(flush=True); input()'], stdin=0)"
)


def test_processes_are_found_by_what_they_inherit_and_ended() -> None:
    """Even if whoever started them has ended."""
    variables = {**os.environ, "PEERS_TEST": str(os.getpid())}
    command = [sys.executable, "-c", f"{SLEEPER}; print(flush=True); input()"]
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        # A word from each: a process that is only just being started has no environment to be found by.
        parent.stdout.readline()
        parent.stdout.readline()
        found = processes.with_variable("PEERS_TEST", str(os.getpid()))
        assert len(found) == 2
        assert set(found) <= set(processes.descendants(os.getpid()))
        assert processes.memory_bytes(found) > 10**6
        parent.kill()
        processes.end_all(found)
        assert not any(map(processes.lives, found))
    assert processes.with_variable("PEERS_TEST", str(os.getpid())) == []


def test_traffic_over_loopback_is_counted() -> None:
    before = processes.loopback_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        near.sendall(b"x" * 10_000)
        assert len(far.recv(10_000, socket.MSG_WAITALL)) == 10_000
        near.close()
        far.close()
    assert processes.loopback_bytes() - before >= 10_000


def test_a_benchmark_that_is_ended_ends_what_it_has_started(tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)  # to be read from as soon as the driver says who its helper is
    text = DRIVER.replace("world =", f"open({str(told)!r}, 'w').write(str(helper.pid))\nworld =")
    code = (
        "from benchmarks import peers\n"
        f"peers.command = lambda *_: {driver(tmp_path, text)!r}\n"
        "peers.main(['--peers=seedbed', '--workloads=W1', '--warm-up-seconds=600'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as run:
        helper = int(told.read_text())
        assert processes.lives(helper)
        run.terminate()
        assert run.wait() == 128 + signal.SIGTERM
    assert not processes.lives(helper)


def test_networks_have_the_agreed_number_of_parameters() -> None:
    """Of a policy and a value tower for vectors, and one of convolutions for images."""
    mlp = 4 * 64 + 64 + 64 * 64 + 64
    assert expected_parameters(Settings("W3")) == 2 * mlp + 64 * 3 + 3
    conv = 8 * 8 * 4 * 16 + 16 + 4 * 4 * 16 * 32 + 32 + 9 * 9 * 32 * 256 + 256
    assert expected_parameters(Settings("W4")) == conv + 256 * 7 + 7
    tower = 6 * 64 + 64 + 64 * 64 + 64 + 4 * LSTM_SIZE * (64 + LSTM_SIZE + 1)
    assert expected_parameters(Settings("W6")) == 2 * tower + LSTM_SIZE * 5 + 5
    shared = Settings("W6", extra={"shared": True})
    assert expected_parameters(shared) == tower + LSTM_SIZE * 5 + 5
    assert second_biases(shared) == 4 * LSTM_SIZE
    assert second_biases(Settings("W6")) == 2 * 4 * LSTM_SIZE
    assert second_biases(Settings("W1")) == 0
    assert set(WORKLOADS) == {"W1", "W2", "W3", "W4", "W5", "W6"}
