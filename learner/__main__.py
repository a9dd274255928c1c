"""The `seedbed` command."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from learner.config import (
    EvaluateOptions,
    ExportOptions,
    LearnerOptions,
    ReplayOptions,
    TrainOptions,
)
from learner.planning.options import PlanOptions, TuneOptions
from learner.presets import starting_values
from learner.telemetry.logs import configure_logging
from protos.errors import ConfigError, SeedbedError
from protos.options import flag, parse, peek, refuse
from protos.secrets import TOKEN_VARIABLE
from protos.version import version
from protos.words import traceback_of


class Command(NamedTuple):
    options: type[Any]
    description: str
    execute: Callable[[Any, Console], int]
    first_word: str | None = None
    """the option that a first word without a name is the value of"""


def _run(options: LearnerOptions, console: Console) -> int:
    from learner.run import run

    return run(options, console)


def _evaluate(options: EvaluateOptions, console: Console) -> int:
    from learner.evaluation import evaluate

    return evaluate(options)


def _export(options: ExportOptions, console: Console) -> int:
    from learner.stored_run import export

    return export(options)


def _replay(options: ReplayOptions, console: Console) -> int:
    from learner.replaying import replay

    return replay(options, options.credentials(os.environ.get(TOKEN_VARIABLE)))


def _plan(options: PlanOptions, console: Console) -> int:
    from learner.planning.plan import plan

    return plan(options)


def _tune(options: TuneOptions, console: Console) -> int:
    from learner.planning.tune import tune

    return tune(options)


COMMANDS = {
    "train": Command(TrainOptions, "A learner and its actors on this machine.", _run),
    "learner": Command(LearnerOptions, "The learner alone; actors come and go.", _run),
    "evaluate": Command(
        EvaluateOptions, "Greedy episodes of a run's policy; prints JSON on standard output.", _evaluate
    ),
    "export": Command(ExportOptions, "A run's policy as a TensorFlow SavedModel.", _export),
    "replay": Command(
        ReplayOptions,
        "A recording of --record, fed to a learner again; prints JSON on standard output.",
        _replay,
        first_word="file",
    ),
    "plan": Command(
        PlanOptions, "What a deployment would reach, from what its parts cost on this machine.", _plan
    ),
    "tune": Command(
        TuneOptions, "The way to run a training that is fastest on this machine, as a file.", _tune
    ),
}

USAGE = f"usage: seedbed {{{','.join(COMMANDS)}}} [options]   (seedbed COMMAND --help)\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the result is the process's exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        commands = "".join(f"  {name:10}{each.description}\n" for name, each in COMMANDS.items())
        sys.stdout.write(f"{USAGE}\n{commands}")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        sys.stdout.write(f"seedbed {version()}\n")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        refuse("seedbed", f"expected a command ({', '.join(COMMANDS)}), found {name!r}")
    return _execute(name, rest)


def _execute(name: str, argv: Sequence[str]) -> int:
    command, prog = COMMANDS[name], f"seedbed {name}"
    if command.first_word and argv and not argv[0].startswith("-"):
        argv = [f"{flag(command.first_word)}={argv[0]}", *argv[1:]]
    options = parse(
        command.options, argv, prog=prog, description=command.description, preset=_preset(prog, argv)
    )
    _check_lock_step(prog, options, argv)
    console = Console(stderr=True)
    configure_logging(console)
    try:
        return command.execute(options, console)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        refuse(prog, str(error))
    except (OSError, MemoryError) as error:
        # They say what the machine refused, and of what; where in the program says no more.
        sys.stderr.write(f"{prog}: error: {type(error).__name__}: {error}\n")
        return 1
    except SeedbedError as error:
        # Where the cause is a fault of the program's own, or of the user's code in it, its traceback
        # is what helps.
        if error.__cause__ is not None and not isinstance(error.__cause__, SeedbedError):
            sys.stderr.write(traceback_of(error.__cause__))
        sys.stderr.write(f"{prog}: error: {error}\n")
        return 1


def _check_lock_step(prog: str, options: Any, argv: Sequence[str]) -> None:
    """Refuse what would be ignored; of the command line alone: a run's own file says false for it."""
    if "--no-lock-step" in argv and not options.lock_step and options.takes_turns:
        reason = "--reproducible" if options.reproducible else f"--agent {options.agent}"
        refuse(prog, f"{reason} makes acting wait for training, always: leave --no-lock-step out")


def _preset(prog: str, argv: Sequence[str]) -> Any:
    try:
        return starting_values(peek(argv, "preset") or "auto", peek(argv, "env"), peek(argv, "agent"))
    except ConfigError as error:
        refuse(prog, str(error))


if __name__ == "__main__":
    raise SystemExit(main())
