"""`seedbed-actor`, or `python -m actor`: the process that owns environments."""

import logging
import os
import secrets
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NoReturn

from google.protobuf.json_format import MessageToJson

from actor.client import InferenceClient, own_name
from actor.config import ActorOptions
from actor.environments import VectorEnvironment, make_environment
from actor.loading import absolute
from actor.loop import run_actor
from actor.retry import RetryPolicy
from actor.side_by_side import Making, Part, act_side_by_side, divided
from actor.standing_back import stand_back
from actor.stop_signals import LIMIT_SECONDS, StopSignals
from actor.video import VideoRecorder
from protos.addresses import located
from protos.credentials import Credentials
from protos.errors import ConfigError, EnvironmentFailure, SeedbedError
from protos.options import parse, refuse
from protos.secrets import TOKEN_VARIABLE
from protos.specs import from_spaces, to_proto
from protos.words import traceback_of

PROG = "seedbed-actor"
logger = logging.getLogger("actor")

ANSWER_TIMEOUT_SECONDS = {"train": 120.0, "evaluate": 86_400.0}
"""How long to wait for one answer, by mode: between two evaluations of a run there is none."""

VIDEO_LIMIT_SECONDS = 120.0
"""How long an actor that finishes a video may take to end after a signal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one actor; the process's exit status.

    0: the run ended; `interrupted_status`, 0 by default: SIGTERM; 130: SIGINT; 1: the environment or the
    learner failed; 2: an option was refused.
    """
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(ActorOptions, arguments, prog=PROG, description=ActorOptions.__doc__ or "")
    # The log of a learner that has started this actor has the time of day already.
    moment = "" if options.parent else "%(asctime)s "
    form = f"{moment}{PROG}: %(message)s"
    logging.basicConfig(format=form, datefmt="%H:%M:%S", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    try:
        if options.describe:
            return _describe(options)
        return _act(options)
    except ConfigError as error:
        refuse(PROG, str(error))
    except SeedbedError as error:
        _report(error)
        return 1


def process() -> NoReturn:
    """`main` as a whole process, whose end waits only so long for threads that an environment has left
    behind."""
    status = main()
    main_thread = threading.main_thread()
    left = [each for each in threading.enumerate() if not each.daemon and each is not main_thread]
    if left:
        end = threading.Timer(LIMIT_SECONDS, _end_without, (status, left))
        end.daemon = True
        end.start()
    sys.exit(status)


def _end_without(status: int, left: Sequence[threading.Thread]) -> None:
    names = ", ".join(each.name for each in left if each.is_alive())
    logger.warning("threads of the environment go on (%s): the process ends without them", names)
    os._exit(status)


def _act(options: ActorOptions) -> int:
    stand_back(options.niceness)
    stop = StopSignals(VIDEO_LIMIT_SECONDS if options.video is not None else LIMIT_SECONDS)
    if options.video is not None:
        # Frames are read, not shown: pygame needs no display for that, and complains of none.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    # Before the environment is made, which may change the current directory.
    server, credentials = located(options.server), options.credentials(os.environ.get(TOKEN_VARIABLE))
    video = None if options.video is None else Path(options.video).absolute()
    # With several threads a constructor may change the directory before the next one's turn.
    env = absolute(options.env or "") if options.num_threads > 1 else options.env or ""
    making = Making(options.num_threads)

    def act(part: Part) -> None:
        with ExitStack() as stack:
            with making.turn:
                if stop.is_set():
                    return
                environment = make_environment(
                    env, part.num_envs, seed=part.seed, render=part.first and video is not None
                )
            stack.enter_context(closing(environment))
            if not making.wait_for_others():
                return
            recorder = None
            if part.first and video is not None:
                recorder = stack.enter_context(VideoRecorder(video, environment.frames_per_second))
            client = _client(options, part, environment, server, credentials)
            stack.push(client)  # closes it; the first step opens it
            stop.on_stop(client.interrupt)
            run_actor(environment, client, stopped=stop.is_set, recorder=recorder)

    with stop:
        if options.num_threads > 1:  # Else the handler may interrupt who makes, in this thread.
            stop.on_stop(making.give_up)
        name = options.name or own_name()
        everyone = divided(name, options.num_envs, _seed(options), options.num_threads)
        act_side_by_side(everyone, act, end_others=stop.wish)
    logger.info("ended%s", f" by {stop.name}" if stop.name else "")
    return stop.exit_status or (options.interrupted_status if stop.is_set() else 0)


def _client(
    options: ActorOptions,
    part: Part,
    environment: VectorEnvironment,
    server: str,
    credentials: Credentials,
) -> InferenceClient:
    def orphaned() -> bool:
        return bool(options.parent) and os.getppid() != options.parent

    return InferenceClient(
        server,
        environment.observation_space,
        environment.action_space,
        num_environments=part.num_envs,
        credentials=credentials,
        mode=options.mode,
        answer_timeout_seconds=ANSWER_TIMEOUT_SECONDS[options.mode],
        retry=RetryPolicy(
            give_up_seconds=options.connect_timeout_seconds or None, give_up_when=orphaned
        ),
        name=part.name,
    )


def _seed(options: ActorOptions) -> int:
    if options.seed >= 0:
        return options.seed
    seed = secrets.randbelow(2**31)
    logger.info("drew --seed %d", seed)
    return seed


def _describe(options: ActorOptions) -> int:
    """Print the specs as JSON. Whatever the environment prints goes to stderr, even from C."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        with closing(make_environment(options.env or "", 1, seed=_seed(options))) as environment:
            # It refuses what is not as the spaces say, as in a run.
            environment.reset()
            spec = from_spaces(environment.observation_space, environment.action_space)
        out.write(MessageToJson(to_proto(spec)) + "\n")
    return 0


def _report(error: SeedbedError) -> None:
    """One line; before it, where an environment's own code raised, its traceback."""
    if isinstance(error, EnvironmentFailure) and error.__cause__ is not None:
        sys.stderr.write(traceback_of(error.__cause__))
    # In one line, whatever the environment's own message is: whoever reads the last line has it all.
    sys.stderr.write(f"{PROG}: error: {' '.join(str(error).split())}\n")


if __name__ == "__main__":
    process()
