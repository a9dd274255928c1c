"""`seedbed evaluate`: greedy episodes of a run's newest checkpoint.

Evaluation is a learner that only serves, plus an actor process: the same path as in training.
"""

import json
import logging
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from learner.config import EvaluateOptions
from learner.local_actors import LocalActors, child_actor
from learner.scratch import scratch_folder
from learner.serving.addresses import Addresses
from learner.serving.server import InferenceServer
from learner.signals import ending_signals
from learner.stored_run import StoredRun, load_policy, read_run
from learner.telemetry.episodes import Episode, EpisodeTracker
from learner.telemetry.evaluations import Evaluations
from learner.threads import Threads
from protos import inference_pb2 as pb
from protos.errors import ConfigError

if TYPE_CHECKING:
    from learner.agents.agent import Policy
    from learner.serving.acting import Acting

logger = logging.getLogger(__name__)

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
    evaluations = Evaluations(environments, options.episodes)
    evaluations.begin(0, 0.0, run.checkpoint.version, environments)

    def hear(signal: str) -> None:
        logger.info("%s: ending without a result; a second signal ends the process at once", signal)
        evaluations.close()

    with ExitStack() as closing, ending_signals(hear) as received:
        threads = Threads(on_failure=evaluations.close)
        closing.callback(threads.join, 10.0)
        folder = closing.enter_context(scratch_folder())
        address = f"unix:{folder}/learner.sock"
        server = InferenceServer(
            Addresses(address),
            lease_seconds=0.0,
            on_failure=lambda error: threads.fail("event loop", error),
        )
        server.start()
        closing.callback(server.close)
        command = _actor_command(options, env, environments, address)
        actors = LocalActors([command], start_thread=threads.start)
        closing.callback(actors.close)
        actors.start()
        acting = _start_acting(load_policy(run), run, environments, evaluations, threads)
        closing.callback(acting.stop)
        closing.callback(evaluations.close)
        server.open_lanes({pb.EVALUATE: acting.lane(evaluations, trains=False)})
        evaluations.wait_for_end()
        threads.raise_failure()
        actors.close(VIDEO_GRACE_SECONDS if options.video else ACTOR_GRACE_SECONDS)
    if received:
        return received.status
    result = {"env": env, "agent": run.options.agent, "version": run.checkpoint.version}
    sys.stdout.write(json.dumps({**result, **_summary(evaluations.played())}) + "\n")
    return 0


def _summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Counts, and statistics of the unclipped returns."""
    returns = [episode.episode_return for episode in episodes]
    return {
        "episodes": len(returns),
        "mean_return": statistics.fmean(returns),
        "std_return": statistics.pstdev(returns),
        "min_return": min(returns),
        "max_return": max(returns),
        "mean_length": statistics.fmean(episode.length for episode in episodes),
        "returns": returns,
    }


def _actor_command(options: EvaluateOptions, env: str, environments: int, address: str) -> list[str]:
    words = ["--mode=evaluate", "--name=evaluation"]
    if options.video:
        words.append(f"--video={options.video}")
    return child_actor(address, env, environments, options.seed, *words)


def _start_acting(
    policy: "Policy", run: StoredRun, environments: int, evaluations: Evaluations, threads: Threads
) -> "Acting":
    from learner.serving.acting import Acting
    from learner.training.weights import PublishedWeights

    acting = Acting(
        policy,
        run.spec,
        PublishedWeights(lambda: None, run.checkpoint.version),
        num_slots=environments,
        max_rows=environments,
        greedy=True,
        clip_observations=run.options.clip_observations,
    )
    acting.start(threads, EpisodeTracker(environments, on_episode=evaluations.add), evaluations)
    return acting
