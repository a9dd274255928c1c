"""What is done again and again in a run of days leaves nothing behind."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from learner.agents.build import make_agent
from learner.config import LearnerOptions
from learner.planning.ready import random_unrolls, ready_batch
from learner.serving.policy_call import PolicyFunction
from learner.telemetry.tensorboard import TensorBoardWriter
from learner.training.update import TracedUpdate, to_device
from learner.training.weights import PublishedWeights, variable_copier
from tests.fakes import SPEC

CALLS = 300
MANY_CALLS = 3000

MOST_BYTES_A_CALL = 300
"""TensorFlow's threads and their caches make up to 80 of 300 calls. A scalar that is kept takes 640."""

ROWS = 8


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int:
    """Bytes of malloc that are in use, in all arenas; of resident memory a part is free, and not given
    back."""
    gc.collect()
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = MallocInfo
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def bytes_a_call(call: Callable[[int], object], calls: int = CALLS) -> float:
    """Growth of the heap by each of so many calls, which get their number; a tenth more go before."""
    warm = calls // 10
    for number in range(warm):
        call(number)
    before = heap_bytes()
    for number in range(warm, warm + calls):
        call(number)
    return (heap_bytes() - before) / calls


def test_a_scalar_that_tensorflow_keeps_is_found() -> None:
    """Why the others convert numbers as they do; and that they could fail."""
    assert bytes_a_call(lambda number: tf.constant(number + 0.5)) > MOST_BYTES_A_CALL
    assert bytes_a_call(lambda number: tf.constant(np.float32(number))) < MOST_BYTES_A_CALL


@pytest.mark.parametrize(
    ("agent", "calls"),
    [
        ("vtrace", CALLS),
        *(
            pytest.param(agent, MANY_CALLS, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])
            for agent in ("vtrace", "ppo", "a2c", "r2d2", "sac")
        ),
    ],
)
def test_acting_and_learning_leave_nothing_behind(agent: str, calls: int) -> None:
    options = LearnerOptions(agent=agent, hidden_sizes=(4,), unroll_length=4, batch_size=2)
    learner = make_agent(options, SPEC, seed=1)
    acting = learner.make_policy()
    policy = PolicyFunction(acting, SPEC.observation, num_slots=ROWS, max_rows=ROWS, seed=1)
    weights = PublishedWeights(variable_copier(learner.policy.variables, acting.variables))
    update = TracedUpdate(learner, policy.layout, options.sample_length, options.batch_size)
    unrolls = random_unrolls(policy.layout, SPEC, options)
    requests = [ready_batch(SPEC, rows, ROWS, ROWS) for rows in range(1, ROWS + 1)]

    def turn(number: int) -> None:
        policy(requests[number % ROWS])
        scalars = update(to_device(unrolls), (number + 0.5) / 1e6)
        assert all(np.isfinite(value).all() for value in scalars.values())
        weights.publish(number)

    assert bytes_a_call(turn, calls) < MOST_BYTES_A_CALL


def test_tensorboard_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    # Other numbers in each call, as of a run.
    grown = bytes_a_call(
        lambda number: writer.write(10**9 + number, {"loss": number + 0.25, "steps": 10**6 + number})
    )
    writer.close()
    assert grown < MOST_BYTES_A_CALL
