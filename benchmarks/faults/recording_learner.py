"""The real `seedbed` command, with a recorder where rows become unrolls and where batches are trained
on.

    python -m benchmarks.faults.recording_learner LEDGER learner --env ... --logdir ...

For `benchmarks.faults.world.NumberedWorld` and an agent that records the "action". Every answered row is
in the ledger before its answer leaves, and every batch before its update begins.
"""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.ledger import ROW, LedgerWriter
from benchmarks.faults.world import IDENTITY, decode
from learner.__main__ import main
from learner.experience.trajectory import Batch
from learner.experience.unrolls import Steps, UnrollWriter
from learner.flags import LeaseEnd
from learner.training.update import TracedUpdate
from protos import inference_pb2 as pb


def install(ledger: LedgerWriter) -> None:
    """Record what every unroll writer and every update of this process does from now on."""
    append, drop, update = UnrollWriter.append, UnrollWriter.drop, TracedUpdate.__call__
    # Taken before the unroll writer's own lock: so events stand in the ledger in the order in which they
    # happened, and each drop beside the counts that it led to.
    lock = threading.Lock()

    def recorded_append(writer: UnrollWriter, steps: Steps) -> None:
        with lock:
            ledger.steps(rows_of_steps(steps))
            append(writer, steps)

    def recorded_drop(writer: UnrollWriter, slots: np.ndarray, reason: LeaseEnd) -> None:
        with lock:
            drop(writer, slots, reason)
            ledger.drop(slots, writer.statistics())

    def recorded_update(traced: TracedUpdate, batch: Batch, progress: float) -> Mapping[str, Any]:
        ledger.update(rows_of_batch(batch))
        return update(traced, batch, progress)

    replacements: dict[Any, dict[str, Any]] = {
        UnrollWriter: {"append": recorded_append, "drop": recorded_drop},
        TracedUpdate: {"__call__": recorded_update},
    }
    for owner, methods in replacements.items():
        for name, method in methods.items():
            setattr(owner, name, method)


def rows_of_steps(steps: Steps) -> np.ndarray:
    """ROW [n]."""
    return _rows(
        steps.observation[0],
        steps.reward,
        steps.flags,
        steps.record["action"],
        steps.version,
        steps.slots,
    )


def rows_of_batch(batch: Batch) -> np.ndarray:
    """ROW [T+1, B] of a batch of tensors."""
    flags = (
        pb.FIRST * batch.first.numpy()
        | pb.TERMINATED * batch.terminated.numpy()
        | pb.TRUNCATED * batch.truncated.numpy()
    )
    action, version = batch.record["action"].numpy(), batch.version.numpy()
    return _rows(batch.observation[0].numpy(), batch.reward.numpy(), flags, action, version, -1)


def _rows(
    observation: np.ndarray, reward: np.ndarray, flags: np.ndarray, action: Any, version: Any, slot: Any
) -> np.ndarray:
    identity = decode(observation)
    rows = np.empty(identity.shape, ROW)
    for name in IDENTITY.names or ():
        rows[name] = identity[name]
    rows["reward"], rows["flags"], rows["action"] = reward, flags, action
    rows["version"], rows["slot"] = version, slot
    return rows


if __name__ == "__main__":
    install(LedgerWriter(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
