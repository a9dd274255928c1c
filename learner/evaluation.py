"""`seedbed evaluate`: greedy episodes of a run's newest checkpoint.

Evaluation is a learner that only serves, plus an actor process: the same path as in training.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from learner.config import EvaluateOptions
from learner.local_actors import LocalActors, actor_command
from learner.serving.leases import Lane
from learner.serving.server import InferenceServer
from learner.signals import ending_signals
from learner.stored_run import StoredRun, load_policy, read_run
from learner.telemetry.episodes import Episode, EpisodeTracker
from learner.threads import Threads
from protos import inference_pb2 as pb
from protos.errors import ConfigError

if TYPE_CHECKING:
    from learner.agents.agent import Policy
    from learner.serving.acting import Acting

MAX_ENVIRONMENTS = 16
"""Environments at once where --num-envs does not say."""

ACTOR_GRACE_SECONDS = 5.0

VIDEO_GRACE_SECONDS = 120.0
"""How long the actor may take to finish writing the video."""


def evaluate(options: EvaluateOptions) -> int:
    """Play episodes and print their returns as one JSON object.

    Returns:
        Exit status: 0, or 130 after Ctrl-C.
    """
    run = read_run(options.logdir, options.checkpoint)
    env = options.env or run.options.env
    if env is None:
        raise ConfigError("--env is required: this run was started without one")
    environments = options.num_envs or min(options.episodes, MAX_ENVIRONMENTS)
    tally = Tally(options.episodes, environments)
    with ExitStack() as closing, ending_signals(tally.stop) as received:
        threads = Threads(on_failure=tally.stop)
        closing.callback(threads.join, 10.0)
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="seedbed-"))
        server = InferenceServer(
            f"unix:{folder}/learner.sock",
            lease_seconds=0.0,
            on_failure=lambda error: threads.fail("event loop", error),
        )
        server.start()
        closing.callback(server.close)
        actors = LocalActors(
            [_actor_command(options, env, environments, f"unix:{folder}/learner.sock")],
            start_thread=threads.start,
        )
        closing.callback(actors.close)
        actors.start()
        acting, lane = _serve(load_policy(run), run, environments, tally, threads)
        closing.callback(acting.stop)
        server.open_lanes({pb.EVALUATE: lane})
        tally.wait()
        threads.raise_failure()
        actors.close(VIDEO_GRACE_SECONDS if options.video else ACTOR_GRACE_SECONDS)
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
        f"--parent={os.getpid()}",
        *video,
    )


def _serve(
    policy: "Policy", run: StoredRun, environments: int, tally: Tally, threads: Threads
) -> "tuple[Acting, Lane]":
    from learner.serving.acting import Acting
    from learner.serving.inference import NoExperience
    from learner.training.weights import PublishedWeights

    acting = Acting(
        policy,
        run.spec,
        PublishedWeights(lambda: None, run.checkpoint.version),
        num_slots=environments,
        max_rows=environments,
        greedy=True,
    )
    nowhere = NoExperience()
    acting.start(threads, EpisodeTracker(environments, on_episode=tally.add), nowhere)
    return acting, acting.lane(nowhere)
