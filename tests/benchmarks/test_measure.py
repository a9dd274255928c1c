"""CPU time is found where it was spent."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest

from benchmarks import measure
from benchmarks.measure import (
    Meter,
    Usage,
    Window,
    percentiles,
    thread_cpu_seconds,
    together,
    tree_cpu_seconds,
)

BUSY = """
import sys, time
while time.process_time() < 0.2:
    pass
print("done", flush=True)
sys.stdin.read()
"""
"""Works for 0.2 s of CPU time, says so, and waits."""


@contextmanager
def worker(code: str = BUSY) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        yield process
        process.stdin.close()


def usage(raw_foreign_cpu: float, steal: float) -> Usage:
    return Usage(
        seconds=1.0, cpu_seconds={}, own_cpu_seconds=0.5, raw_foreign_cpu=raw_foreign_cpu, steal=steal
    )


def window(
    began: float, seconds: float, cpu: Mapping[str, float], *, own: float, foreign: float, steal: float
) -> Window:
    return Window(
        began=began,
        seconds=seconds,
        cpu_seconds=cpu,
        own_cpu_seconds=own,
        raw_foreign_cpu=foreign,
        steal=steal,
    )


def wait_for_work(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"


def test_a_window_holds_what_watched_processes_and_all_children_spent() -> None:
    with worker() as watched, worker() as other:
        meter = Meter({"watched": [watched.pid], "none": []})
        wait_for_work(watched)
        wait_for_work(other)
        window = meter.stop()
    # Either may have begun before the window did.
    assert 0 < window.cpu_seconds["watched"] < 1
    assert window.cpu_seconds["none"] == 0
    assert window.own_cpu_seconds >= window.cpu_seconds["watched"]
    assert window.ended - window.began == window.seconds
    assert 0 <= window.foreign_cpu <= 1


def test_a_family_keeps_the_time_of_those_that_have_ended() -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}], stdin=-3)"
    before = tree_cpu_seconds(os.getpid())
    with worker(nested) as process:
        process.wait()
    assert tree_cpu_seconds(os.getpid()) - before >= 0.18  # in ticks of 10 ms


def test_a_process_spends_what_its_own_clock_says() -> None:
    before = time.process_time()
    found = measure.cpu_seconds(os.getpid())
    assert before <= found <= time.process_time()


def test_a_thread_spends_what_its_own_clock_says() -> None:
    while time.thread_time() < 0.05:
        pass
    found = thread_cpu_seconds(threading.get_native_id())
    # The kernel brings this number up to date at every tick.
    assert found == pytest.approx(time.thread_time(), abs=0.02)


@pytest.mark.parametrize(("foreign", "steal", "quiet"), [(0.04, 0.0, True), (0.04, 0.02, False)])
def test_a_window_is_quiet_while_others_take_little(foreign: float, steal: float, quiet: bool) -> None:
    found = usage(foreign, steal)
    assert found.quiet is quiet
    assert found.disturbance()["quiet"] is quiet


def test_what_ticks_have_too_little_is_not_taken_off_the_hypervisors() -> None:
    found = usage(raw_foreign_cpu=-0.02, steal=0.06)
    assert found.foreign_cpu == 0
    assert not found.quiet


def test_windows_together_are_without_what_was_between_them() -> None:
    found = together(
        [
            window(10.0, 1.0, {"a": 0.5, "b": 0.25}, own=1.0, foreign=0.2, steal=0.0),
            window(20.0, 3.0, {"a": 1.5, "b": 0.5}, own=2.0, foreign=0.0, steal=0.04),
        ]
    )
    assert found.cpu_seconds == {"a": 2.0, "b": 0.75}
    assert (found.seconds, found.own_cpu_seconds) == (4.0, 3.0)
    # Of all cores' time: the longer window counts for more.
    assert (found.foreign_cpu, found.steal) == pytest.approx((0.05, 0.03))


def test_what_ticks_miss_in_one_window_they_count_in_another() -> None:
    too_little = window(1.0, 1.0, {}, own=1.0, foreign=-0.1, steal=0.0)
    too_much = window(2.0, 1.0, {}, own=1.0, foreign=0.1, steal=0.0)
    assert (too_little.foreign_cpu, too_much.foreign_cpu) == (0, 0.1)
    assert together([too_little, too_much]).foreign_cpu == 0


def test_percentiles_are_in_milliseconds() -> None:
    found = percentiles(np.arange(101) / 1000)
    assert found == pytest.approx({"p50": 50, "p95": 95, "p99": 99})
    assert percentiles(np.zeros(0)) == {"p50": None, "p95": None, "p99": None}
