"""`seedbed evaluate` and `seedbed export`: what a run's newest checkpoint can do.

Evaluation is a learner that only serves, plus an actor process: the same path as in training.
"""

import json
import logging
import statistics
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from learner.config import EvaluateOptions, ExportOptions, LearnerOptions
from learner.local_actors import LocalActors, actor_command
from learner.serving.batcher import Batcher, InferenceBatch
from learner.serving.server import InferenceServer
from learner.serving.service import Lane
from learner.serving.slots import Slots
from learner.signals import ending_signals
from learner.telemetry.episodes import Episode, EpisodeTracker
from learner.telemetry.logs import import_tensorflow
from learner.telemetry.run_directory import checkpoints_folder, read_config
from learner.telemetry.statistics import BusyClock
from learner.threads import Threads
from learner.training.checkpoint import Checkpoint, Checkpoints
from protos import inference_pb2 as pb
from protos import specs
from protos.errors import ConfigError, RunEnded
from protos.specs import EnvironmentSpec

if TYPE_CHECKING:
    from learner.agents.agent import Policy
    from learner.experience.unrolls import Steps

logger = logging.getLogger(__name__)

MAX_ENVIRONMENTS = 16
"""Environments at once where --num-envs does not say."""

VIDEO_GRACE_SECONDS = 120.0
"""How long the actor may take to finish writing the video."""


@dataclass(frozen=True)
class StoredRun:
    """A run directory, read without holding it: its learner may be running."""

    options: LearnerOptions
    checkpoint: Checkpoint
    spec: EnvironmentSpec


def read_run(logdir: str) -> StoredRun:
    """The run in `logdir` with its newest checkpoint.

    Raises:
        ConfigError: there is no run, or it has no checkpoint yet.
        CheckpointError: its checkpoints are damaged.
    """
    path = Path(logdir)
    values = read_config(path)
    known = {entry.name for entry in fields(LearnerOptions)}
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in known
    }
    options = LearnerOptions(**plain)
    checkpoint = Checkpoints(checkpoints_folder(path), options.keep_checkpoints).load_latest()
    if checkpoint is None:
        raise ConfigError(f"--logdir {path}: this run has no checkpoint yet")
    message = json_format.ParseDict(checkpoint.metadata["spec"], pb.EnvironmentSpec())
    return StoredRun(options, checkpoint, specs.from_proto(message))


def load_policy(run: StoredRun) -> "Policy":
    """The run's policy with the checkpoint's weights."""
    import_tensorflow()
    from learner.agents.build import make_agent
    from learner.app import restore_agent, total_updates

    agent = make_agent(
        run.options, run.spec, total_updates=total_updates(run.options), seed=run.options.seed
    )
    restore_agent(agent, run.checkpoint)
    return agent.policy


def export(options: ExportOptions) -> int:
    """Write the policy as a SavedModel."""
    out = Path(options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: expected a new or empty folder")
    run = read_run(options.logdir)
    policy = load_policy(run)
    from learner.training.export import export_policy

    export_policy(policy, run.spec, out)
    logger.info("version %s of %s is in %s", run.checkpoint.version, options.logdir, out)
    return 0


def evaluate(options: EvaluateOptions) -> int:
    """Play episodes and print their returns as one JSON object.

    Returns:
        Exit status: 0, or 130 after Ctrl-C.
    """
    run = read_run(options.logdir)
    env = options.env or run.options.env
    if env is None:
        raise ConfigError("--env is required: this run was started without one")
    environments = options.num_envs or min(options.episodes, MAX_ENVIRONMENTS)
    tally = Tally(options.episodes, environments)
    with ExitStack() as closing, ending_signals(tally.stop) as received:
        threads = Threads(on_failure=tally.stop)
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="seedbed-"))
        server = InferenceServer(f"unix:{folder}/learner.sock", lease_seconds=0.0)
        server.start()
        closing.callback(server.close)
        actors = LocalActors(
            [_actor_command(options, env, environments, f"unix:{folder}/learner.sock")],
            start_thread=threads.start,
        )
        closing.callback(actors.close, VIDEO_GRACE_SECONDS if options.video else 5.0)
        actors.start()
        policy = load_policy(run)
        server.open_lanes({pb.EVALUATE: _serve(policy, run, environments, tally, threads)})
        tally.wait()
        threads.raise_failure()
        server.end_streams(RunEnded("the evaluation is complete"))
    if received:
        return received.status
    result = {"env": env, "agent": run.options.agent, "version": run.checkpoint.version}
    sys.stdout.write(json.dumps({**result, **tally.summary()}) + "\n")
    return 0


class Tally:
    """Counts the same number of episodes of every environment: the first to come would be the short
    ones. `_lock` guards the episodes."""

    def __init__(self, episodes: int, environments: int) -> None:
        self._episodes = episodes
        self._quota = [
            episodes // environments + (i < episodes % environments) for i in range(environments)
        ]
        self._played: list[Episode] = []
        self._count: Counter[int] = Counter()
        self._done = threading.Event()
        self._lock = threading.Lock()

    def add(self, episode: Episode) -> None:
        """Take in a finished episode, if its environment still owes one."""
        with self._lock:
            if self._count[episode.slot] < self._quota[episode.slot]:
                self._count[episode.slot] += 1
                self._played.append(episode)
            if len(self._played) == self._episodes:
                self._done.set()

    def stop(self) -> None:
        """End the waiting before all episodes are played."""
        self._done.set()

    def wait(self) -> None:
        """Block until all episodes are played, or `stop`."""
        self._done.wait()

    def summary(self) -> dict[str, Any]:
        """Counts, and statistics of the unclipped returns."""
        with self._lock:
            returns = [episode.episode_return for episode in self._played]
            lengths = [episode.length for episode in self._played]
        return {
            "episodes": len(returns),
            "mean_return": statistics.fmean(returns),
            "std_return": statistics.pstdev(returns),
            "min_return": min(returns),
            "max_return": max(returns),
            "mean_length": statistics.fmean(lengths),
            "returns": returns,
        }


def _actor_command(options: EvaluateOptions, env: str, environments: int, address: str) -> list[str]:
    video = [f"--video={options.video}"] if options.video else []
    return actor_command(
        f"--server={address}",
        f"--env={env}",
        f"--num-envs={environments}",
        f"--seed={options.seed}",
        "--mode=evaluate",
        "--name=evaluation",
        "--connect-timeout-seconds=10",
        *video,
    )


def _serve(policy: "Policy", run: StoredRun, environments: int, tally: Tally, threads: Threads) -> Lane:
    from learner.serving.inference import InferenceWorker, PolicyFunction
    from learner.training.weights import PublishedWeights

    observation = run.spec.observation
    batcher = Batcher(observation, max_rows=environments, scratch_slot=environments)
    function = PolicyFunction(
        policy, observation, num_slots=environments, max_rows=environments, seed=0, greedy=True
    )
    function.warm_up(InferenceBatch(observation, environments, environments))
    tracker = EpisodeTracker(environments, on_episode=tally.add)
    weights = PublishedWeights(lambda: None, run.checkpoint.version)

    def record(steps: "Steps") -> bool:
        tracker.observe(
            steps.slots,
            steps.reward,
            steps.first,
            steps.terminated,
            steps.truncated,
            steps.lease_start,
        )
        return True

    worker = InferenceWorker(batcher, function, weights, BusyClock(), record)
    threads.start("inference thread", worker.run)
    return Lane(
        spec=run.spec,
        slots=Slots(environments),
        max_rows=environments,
        submit=batcher.submit,
        version=lambda: weights.version,
        drop=lambda slots: None,
    )
