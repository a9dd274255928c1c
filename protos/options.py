"""Options as frozen dataclasses, filled from the command line, the environment and a TOML file.

One precedence everywhere, the later one wins: defaults, preset, `--config` file, environment
variable, command line. Parsing happens at the process's edge; the rest of the program sees the
dataclass alone.
"""

import os
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jsonargparse import ArgumentParser

from protos.errors import ConfigError

Options = TypeVar("Options")

ENV_PREFIX = "SEEDBED"


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field that is an option; `help` says what it means and its unit."""
    return field(default=default, metadata={"help": help, **metadata})


def option_names(options: type) -> list[str]:
    """Names of the dataclass's options, as they stand in a configuration file."""
    return [f.name for f in _option_fields(options)]


def build_parser(
    options: type,
    *,
    prog: str,
    description: str,
    config: str | None = None,
    preset: Mapping[str, Any] | None = None,
) -> ArgumentParser:
    """A parser for the fields of the dataclass `options` made with `option()`.

    `config` is a TOML file of values, by field name; `preset` overrides the defaults.
    """
    parser = ArgumentParser(
        prog=prog,
        description=description,
        default_env=True,
        env_prefix=ENV_PREFIX,
        parser_mode="toml",
        default_config_files=[config] if config else [],
    )
    parser.add_argument(
        "--config",
        type=str | None,
        default=None,
        help="TOML file of options, one `name = value` a line; "
        "precedence: command line, environment, file, preset, default",
    )
    types = typing.get_type_hints(options)
    for entry in _option_fields(options):
        parser.add_argument(
            f"--{entry.name.replace('_', '-')}",
            type=types[entry.name],
            default=(preset or {}).get(entry.name, _default(entry)),
            help=entry.metadata["help"].replace("%", "%%"),
        )
    return parser


def parse(
    options: type[Options],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    preset: Mapping[str, Any] | None = None,
) -> Options:
    """`options` filled from `argv`, the environment and the file that `--config` names.

    Exits with status 2 and one clear message where a value is refused.
    """
    path = config_path(argv)
    if path is not None and not Path(path).is_file():
        refuse(prog, f"--config {path}: no such file")
    parser = build_parser(options, prog=prog, description=description, config=path, preset=preset)
    values = vars(parser.parse_args(list(argv)))
    try:
        return options(**{name: values[name] for name in option_names(options)})
    except ConfigError as error:
        refuse(prog, str(error))


def config_path(argv: Sequence[str]) -> str | None:
    """What `--config` says, on the command line or in the environment."""
    return peek(argv, "config")


def peek(argv: Sequence[str], name: str) -> str | None:
    """One option's value from the command line or the environment, before the full parse."""
    flag = f"--{name.replace('_', '-')}"
    found = os.environ.get(f"{ENV_PREFIX}_{name.upper()}")
    for position, argument in enumerate(argv):
        if argument.startswith(f"{flag}="):
            found = argument.removeprefix(f"{flag}=")
        elif argument == flag and position + 1 < len(argv):
            found = argv[position + 1]
    return found


def refuse(prog: str, message: str) -> NoReturn:
    """End the process with status 2 and `message`, without a traceback."""
    sys.stderr.write(f"{prog}: error: {message}\n")
    raise SystemExit(2)


def _option_fields(options: type) -> list[Field[Any]]:
    return [f for f in fields(options) if "help" in f.metadata]


def _default(entry: Field[Any]) -> Any:
    return None if entry.default is MISSING else entry.default
