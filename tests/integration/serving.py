"""The learner's own parts in this process, around an agent and an update of the test's."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from learner import app
from learner.agents.agent import Agent
from learner.config import LearnerOptions
from learner.serving.addresses import Addresses
from learner.serving.batcher import Request
from learner.serving.server import InferenceServer
from learner.telemetry.statistics import Registry
from learner.threads import Threads
from learner.training.checkpoint import Checkpoints
from protos import inference_pb2 as pb
from tests.integration.scripted import SPEC, ScriptedAgent


class ServingLearner:
    """`learner.app.Learner` with a scripted agent, behind a real server. A context manager."""

    def __init__(
        self,
        address: str,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        options: LearnerOptions,
    ) -> None:
        self.agent = ScriptedAgent()
        monkeypatch.setattr(app, "make_agent", self._make_agent)
        # Not traced: the test's update keeps what it is given.
        monkeypatch.setattr(app, "TracedUpdate", lambda agent, *shapes: agent.update)
        self.learner = app.Learner(
            options,
            SPEC,
            app.RunFiles(
                Checkpoints(folder, keep=1),
                Checkpoints(folder, keep=1),
                folder / "offending_batch.npz",
            ),
            restored=None,
            registry=Registry(),
        )
        self.listen = address
        self._threads = Threads(on_failure=self.learner.stop_training)
        self.server = InferenceServer(
            Addresses(address),
            lease_seconds=options.lease_seconds,
            on_failure=lambda error: self._threads.fail("event loop", error),
        )
        self.steps: Counter[int] = Counter()
        """Steps that came, by environment: the first number of its observations."""

    def __enter__(self) -> "ServingLearner":
        self.server.start()
        self.learner.start(self._threads)
        lane = self.learner.lanes()[pb.TRAIN]
        counted = dataclasses.replace(lane, submit=self._count(lane.submit))
        self.server.open_lanes({pb.TRAIN: counted})
        return self

    def __exit__(self, *_: object) -> None:
        self.learner.stop()
        self.server.close()
        stuck = self._threads.join(timeout_seconds=10.0)
        assert not stuck, stuck
        self._threads.raise_failure()

    @property
    def address(self) -> str:
        """Where it listens on TCP."""
        return f"127.0.0.1:{self.server.port}"

    def train(self, batches: int) -> None:
        """Train on so many batches in this thread."""
        former = self.agent.on_update

        def on_update(count: int) -> None:
            former(count)
            if count == batches:
                self.learner.stop_training()

        self.agent.on_update = on_update
        self.learner.trainer.run()
        self._threads.raise_failure()

    def train_in_background(self) -> None:
        """Train in a thread, until this is left."""
        self._threads.start("training", self.learner.trainer.run)

    def _make_agent(self, *_: object, **__: object) -> Agent:
        return self.agent

    def _count(self, submit: Callable[[Request], None]) -> Callable[[Request], None]:
        def count(request: Request) -> None:
            # On the event loop's thread alone.
            self.steps.update(request.observation[0][:, 0].astype(int).tolist())
            submit(request)

        return count
