"""A learner that trains on scripted steps, saves, and goes on: `python -m tests.integration.resuming`.

The first process of a folder makes `BEFORE` updates, saves, and makes `AFTER` more; the next restores
what was saved and makes `AFTER` too. Each prints the losses of these as JSON. Of agents that replay, all
steps come before the checkpoint, so that the replay's draws decide; to the others both processes give
the same steps.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces

from learner.app import Learner, RunFiles
from learner.config import LearnerOptions
from learner.experience.unrolls import RowSpec, Steps
from learner.flags import LeaseEnd
from learner.telemetry.statistics import Registry
from learner.threads import Threads
from learner.training.checkpoint import Checkpoints
from protos import inference_pb2 as pb
from protos.specs import EnvironmentSpec, from_spaces

BEFORE, AFTER = 20, 100
SLOTS, LENGTH, BATCH_SIZE = 4, 5, 4
UNROLLS = 40
"""in the replay"""

REPLAYED: dict[str, Any] = {
    "reproducible": True, "save_replay": True, "priority_exponent": 0.6, "importance_exponent": 0.4,
    "importance_exponent_end": 1.0, "replay_capacity": 1000,
    # All of the replay comes before the first update, and its last unroll owes all updates.
    "replay_min_size": (UNROLLS - 1) * LENGTH, "samples_per_insert": 2000.0,
}  # fmt: skip

AGENTS: dict[str, dict[str, Any]] = {
    "vtrace": {"normalize_observations": True, "normalize_rewards": True, "lstm_size": 4},
    "r2d2": {**REPLAYED, "replay_sequence_unrolls": 2, "burn_in": 3, "n_step": 2, "lstm_size": 4,
             "target_period": 30},
    "sac": {**REPLAYED, "normalize_observations": True, "n_step": 2},
}  # fmt: skip


def spec_of(agent: str) -> EnvironmentSpec:
    action = spaces.Box(-1, 1, (2,), np.float32) if agent == "sac" else spaces.Discrete(3)
    return from_spaces(spaces.Box(-10, 10, (3,), np.float32), action)


class Run:
    """One process's part of a run."""

    def __init__(self, agent: str, folder: Path) -> None:
        self.options = LearnerOptions(
            agent=agent, max_environments=SLOTS, unroll_length=LENGTH, batch_size=BATCH_SIZE,
            hidden_sizes=(8,), total_steps=4000, learning_rate_schedule="linear", **AGENTS[agent],
        )  # fmt: skip
        checkpoints = Checkpoints(folder, 1)
        self.restored = checkpoints.load_latest()
        self.learner = Learner(
            self.options,
            spec_of(agent),
            RunFiles(checkpoints, Checkpoints(folder / "best", 1), folder / "offending_batch.npz"),
            restored=self.restored,
            registry=Registry(),
        )
        self._losses: list[float] = []
        self._wanted = 0
        # The run's own end would come by its environment steps.
        self.learner.trainer._after_update = self._take_loss
        self._threads = Threads(on_failure=self.learner.stop_training)
        self.learner.start(self._threads)

    def act(self, rng: np.random.Generator, unrolls: int) -> None:
        """Steps of new leases, until so many unrolls are finished."""
        slots = np.arange(SLOTS, dtype=np.int32)
        writer = self.learner._experience.writer
        writer.drop(slots, LeaseEnd.CLOSED)
        for number in range(unrolls // SLOTS * LENGTH + 1):
            steps = self._steps(rng, slots, first=number == 0)
            assert writer.wait_for_room()
            self.learner.episodes.observe(slots, steps.reward, steps.flags)
            writer.append(steps)

    def train(self, updates: int) -> list[float]:
        """The losses of so many updates."""
        self._losses, self._wanted = [], updates
        self.learner.trainer.run()
        self._threads.raise_failure()
        return self._losses

    def close(self) -> None:
        self.learner.stop()
        assert self._threads.join(20) == []

    def updates(self, rng: np.random.Generator, count: int) -> list[float]:
        """The losses of updates, by steps of now or by the replay."""
        if self.options.replays:
            return self.train(count)
        losses: list[float] = []
        for _ in range(count):
            self.act(rng, BATCH_SIZE)
            losses += self.train(1)
        return losses

    def _steps(self, rng: np.random.Generator, slots: np.ndarray, *, first: bool) -> Steps:
        layout = self.learner._acting.layout

        def some(spec: RowSpec, rows: int = SLOTS) -> np.ndarray:
            whole = spec.dtype.kind in "iub"
            values = (
                rng.integers(0, 2, (rows, *spec.shape))
                if whole
                else rng.normal(size=(rows, *spec.shape))
            )
            return np.asarray(values).astype(spec.dtype)

        return Steps(
            slots=slots,
            observation=[some(RowSpec(leaf.shape, leaf.dtype)) for leaf in layout.observation],
            reward=some(RowSpec((), np.dtype(np.float32))),
            flags=np.full(SLOTS, pb.FIRST if first else 0, np.uint8),
            record={name: some(spec) for name, spec in layout.record.items()},
            version=self.learner.trainer.version,
            state_before=lambda rows: {
                name: some(spec, len(rows)) for name, spec in layout.state.items()
            },
        )

    def _take_loss(self, version: int) -> bool:
        self._losses.append(self.learner.trainer.scalars()["loss"])
        return len(self._losses) < self._wanted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    tf.config.experimental.enable_op_determinism()
    run = Run(chosen.agent, chosen.folder)
    if run.restored is None:
        rng = np.random.default_rng(0)
        if run.options.replays:
            run.act(rng, UNROLLS)
        run.updates(rng, BEFORE)
        assert run.learner.save()
    losses = run.updates(np.random.default_rng(1), AFTER)
    run.close()
    json.dump({"version": run.learner.trainer.version, "losses": losses}, sys.stdout)


if __name__ == "__main__":
    main()
