"""Options as frozen dataclasses, filled from the command line, the environment and a TOML file.

One precedence everywhere, the later one wins: defaults, preset, `--config` file, environment
variable, command line. Parsing happens at the process's edge; the rest of the program sees the
dataclass alone.
"""

import difflib
import glob
import math
import operator
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser

from protos.addresses import host_and_port
from protos.errors import ConfigError
from protos.version import version

Options = TypeVar("Options")

ENV_PREFIX = "SEEDBED"

_UNKNOWN = re.compile(
    r"unrecognized arguments: (?:--(?:no-)?)?([\w-]+)|Option '([\w.]+)' is not accepted"
)
"""What jsonargparse says of an option that does not exist, on the command line or in a file."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field that is an option; `help` says what it means and its unit.

    `metadata` may hold the bounds that `check_ranges` enforces: `at_least`, `at_most`, `above`; and
    `agents`, the names of those whose option it is, if not of all.
    """
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
        version=version(),
        exit_on_error=False,
        # `peek` reads full names only: an abbreviated --config or --preset would count for nothing.
        allow_abbrev=False,
        default_env=True,
        env_prefix=ENV_PREFIX,
        parser_mode="toml",
        # jsonargparse takes it for a pattern, and what matches nothing for no file.
        default_config_files=[glob.escape(config)] if config else [],
    )
    parser.add_argument(
        "--config",
        type=str | None,
        default=None,
        help="TOML file of options, one `name = value` a line; "
        "precedence: command line, environment, file, preset, default",
    )
    hints = typing.get_type_hints(options)
    for entry in _option_fields(options):
        is_flag = hints[entry.name] is bool
        parser.add_argument(
            flag(entry.name),
            default=(preset or {}).get(entry.name, entry.default),
            help=entry.metadata["help"],
            **({"action": ActionYesNo(no_prefix="no-")} if is_flag else {"type": hints[entry.name]}),
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
    if path is not None:
        _check_readable(prog, path)
    parser = build_parser(options, prog=prog, description=description, config=path, preset=preset)
    try:
        values = vars(parser.parse_args(list(argv)))
        _warn_of_misspelt(prog, options)
        return options(**{name: values[name] for name in option_names(options)})
    except ArgumentError as error:
        refuse(prog, _clear(str(error), options, prog))
    except ConfigError as error:
        refuse(prog, str(error))


def _warn_of_misspelt(prog: str, options: type) -> None:
    """Say which environment variables are nearly an option's. No error: others are for other commands,
    which this one may start."""
    known = [name.upper() for name in [*option_names(options), "config", "token"]]
    for variable in sorted(os.environ):
        prefix, _, name = variable.partition("_")
        # So close that no option of another command is, such as seed to speed.
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if prefix == ENV_PREFIX and close and name not in known:
            meant = f"{ENV_PREFIX}_{close[0]}"
            sys.stderr.write(f"{prog}: warning: {variable} sets no option; is {meant} meant?\n")


def _check_readable(prog: str, config: str) -> None:
    """Refuse a file that jsonargparse would pass over in silence, or fail on."""
    if not Path(config).is_file():
        refuse(prog, f"--config {config}: no such file")
    try:
        Path(config).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        refuse(prog, f"--config {config} cannot be read: {error}")


def check_ranges(options: Any) -> None:
    """Check the numbers of an options dataclass against the bounds in their `option()`.

    Raises:
        ConfigError: a number that is out of bounds or not finite.
    """
    for entry in _option_fields(type(options)):
        value = getattr(options, entry.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float):
                _check_range(flag(entry.name), number, entry.metadata)


def _check_range(name: str, number: float, limits: Mapping[str, Any]) -> None:
    if not math.isfinite(number):
        raise ConfigError(f"{name} {number}: expected a finite number")
    checks = (
        ("at_least", "at least", operator.ge),
        ("at_most", "at most", operator.le),
        ("above", "more than", operator.gt),
    )
    for key, words, holds in checks:
        if key in limits and not holds(number, limits[key]):
            raise ConfigError(f"{name} {number}: expected {words} {limits[key]}")


def check_server(server: str) -> None:
    """Refuse what is no address to connect to.

    Raises:
        ConfigError: it is neither HOST:PORT nor unix:PATH.
    """
    parts = host_and_port(server)
    is_network = parts is not None and parts[1] > 0
    if not (is_network or (server.startswith("unix:") and server != "unix:")):
        raise ConfigError(f"--server {server}: expected HOST:PORT or unix:PATH")


def check_listen(option: str, address: str) -> None:
    """Refuse what is no address to listen on.

    Raises:
        ConfigError: it is neither HOST:PORT nor unix:PATH.
    """
    if address == "unix:" or not (address.startswith("unix:") or host_and_port(address)):
        raise ConfigError(f"{option} {address}: expected HOST:PORT or unix:PATH")


def check_video(video: str | None) -> None:
    """Check the name of the file that --video names, if it names one.

    Raises:
        ConfigError: it ends in something else than what can be written.
    """
    if video is not None and not video.lower().endswith((".mp4", ".gif")):
        raise ConfigError(f"--video {video}: expected a name that ends in .mp4 or .gif")


def flag(name: str) -> str:
    """The command line's spelling of an option."""
    return f"--{name.replace('_', '-')}"


def config_path(argv: Sequence[str]) -> str | None:
    """What `--config` says, on the command line or in the environment."""
    return peek(argv, "config")


def peek(argv: Sequence[str], name: str) -> str | None:
    """One option's value before the full parse, as text; the same precedence as there."""
    spelling = flag(name)
    found = os.environ.get(f"{ENV_PREFIX}_{name.upper()}")
    if found is None and name != "config":
        found = _from_file(config_path(argv), name)
    for position, argument in enumerate(argv):
        if argument.startswith(f"{spelling}="):
            found = argument.removeprefix(f"{spelling}=")
        elif argument == spelling and position + 1 < len(argv):
            found = argv[position + 1]
    return found


def _from_file(path: str | None, name: str) -> str | None:
    if path is None:
        return None
    try:
        value = tomllib.loads(Path(path).read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError):
        # The full parse says what is wrong with the file.
        return None
    return None if value is None else str(value)


def refuse(prog: str, message: str) -> NoReturn:
    """End the process with status 2 and `message`, without a traceback."""
    sys.stderr.write(f"{prog}: error: {message}\n")
    raise SystemExit(2)


def _option_fields(options: type) -> list[Field[Any]]:
    return [f for f in fields(options) if "help" in f.metadata]


def _clear(message: str, options: type, prog: str) -> str:
    """jsonargparse's message in one line; a value of the wrong type as expected and found, an option
    that does not exist with what may be meant."""
    found = re.match(r'Parser key "(\w+)":.*(?:Got|Given) value: (.*)', message, re.DOTALL)
    if found is not None:
        expected = _type_text(typing.get_type_hints(options)[found[1]])
        return f"{flag(found[1])}: expected {expected}, found {found[2]}"
    text = " ".join(message.split())
    unknown = _UNKNOWN.match(text)
    if unknown is None:
        return text
    name = (unknown[1] or unknown[2].rpartition(".")[2]).replace("-", "_")
    close = difflib.get_close_matches(name, [*option_names(options), "config"], n=1, cutoff=0.7)
    if close:
        return f"{text}; did you mean {flag(close[0])}? {prog} --help lists all options"
    return f"{text}; {prog} --help lists all options"


def _type_text(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    if isinstance(hint, types.UnionType):
        return " or ".join(_type_text(kind) for kind in typing.get_args(hint) if kind is not type(None))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
