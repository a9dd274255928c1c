"""Writes options.md from the option dataclasses: `python docs/make_options.py`.

A test compares the page with what this would write.
"""

import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules beside this file only

from actor.config import ActorOptions  # noqa: E402 - found by that path
from learner.agent_options import AgentOptions  # noqa: E402 - found by that path
from learner.algorithm_options import AlgorithmOptions  # noqa: E402 - found by that path
from learner.config import (  # noqa: E402 - found by that path
    FREE_ON_RESUME,
    EvaluateOptions,
    ExportOptions,
    LearnerOptions,
    ReplayOptions,
    TrainOptions,
)
from learner.planning.options import PlanOptions, TuneOptions  # noqa: E402 - found by that path
from learner.presets import AGENT_DEFAULTS, PRESETS  # noqa: E402 - found by that path
from protos.options import flag, option_names  # noqa: E402 - found by that path

PAGE = ROOT / "docs" / "options.md"

HEAD = """\
# Options

Made by `python docs/make_options.py` from the option dataclasses in `learner/algorithm_options.py`,
`learner/agent_options.py`, `learner/config.py`, `learner/planning/options.py` and `actor/config.py`.
Edit those, not this page.

An option has one name, spelt in three ways: `--batch-size 32` on the command line,
`SEEDBED_BATCH_SIZE=32` in the environment, `batch_size = 32` in a TOML file that `--config` names. The
later of these wins: default, preset, file, environment, command line. `--help` of a command lists its
options with the values that hold there. [Why so](decisions/0008-options.md).

Flags that are on or off have a negative form: `--describe`, `--no-describe`.
"""

SECTIONS = (
    (
        "The algorithm",
        "`seedbed train` and `seedbed learner`.",
        AlgorithmOptions,
        (),
    ),
    (
        "Its network",
        "`seedbed train` and `seedbed learner`.",
        AgentOptions,
        (AlgorithmOptions,),
    ),
    (
        "The learner and its run",
        "`seedbed train` and `seedbed learner`.",
        LearnerOptions,
        (AgentOptions,),
    ),
    ("Local actors", "`seedbed train`.", TrainOptions, (LearnerOptions,)),
    ("Evaluation", "`seedbed evaluate`.", EvaluateOptions, ()),
    ("Export", "`seedbed export`.", ExportOptions, ()),
    ("Replaying a recording", "`seedbed replay`.", ReplayOptions, ()),
    (
        "Planning",
        "`seedbed plan`, which takes those of `seedbed train` too.",
        PlanOptions,
        (TrainOptions,),
    ),
    (
        "Tuning",
        "`seedbed tune`, which takes those of `seedbed train` too.",
        TuneOptions,
        (TrainOptions,),
    ),
    ("Actors", "`seedbed-actor`.", ActorOptions, ()),
)


def page() -> str:
    """The text of options.md."""
    return "\n".join([HEAD, *_sections(), *_agents(), *_presets(), *_resume()])


def _sections() -> Iterator[str]:
    for title, commands, options, inherited in SECTIONS:
        known = {name for parent in inherited for name in option_names(parent)}
        hints = typing.get_type_hints(options)
        yield f"## {title}\n\n{commands}\n"
        yield "| option | default | range | what it means |\n|---|---|---|---|"
        for entry in fields(options):
            if entry.name in option_names(options) and entry.name not in known:
                yield _row(entry, hints[entry.name])
        yield ""


def _row(entry: Field[Any], hint: Any) -> str:
    help_text = entry.metadata["help"].replace("|", "\\|")
    return f"| `{flag(entry.name)}` | {_value(entry.default)} | {_range(entry, hint)} | {help_text} |"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value:_}`"


def _range(entry: Field[Any], hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    words = {"at_least": "at least", "at_most": "at most", "above": "more than"}
    bounds = [f"{text} {entry.metadata[key]:_}" for key, text in words.items() if key in entry.metadata]
    return ", ".join(bounds) if bounds else "-"


def _presets() -> Iterator[str]:
    yield "## Presets\n\nSettings that `--preset` stands for; what you say yourself goes before them.\n"
    for name, values in PRESETS.items():
        yield f"- `{name}`: {_settings(values)}"
    yield "\n`auto`, the default, takes `atari` for environments called `ALE/...`, else `none`.\n"


def _agents() -> Iterator[str]:
    yield "## Agents\n\nWhat `--agent` changes of the defaults; a preset goes before it.\n"
    for name, values in AGENT_DEFAULTS.items():
        yield f"- `{name}`: {_settings(values)}"
    yield ""


def _settings(values: Mapping[str, Any]) -> str:
    settings = [
        f"`{option} = {value:_}`" if isinstance(value, int) else f"`{option} = {value}`"
        for option, value in values.items()
    ]
    return ", ".join(settings) or "nothing; the defaults"


def _resume() -> Iterator[str]:
    free = ", ".join(f"`{flag(name)}`" for name in sorted(FREE_ON_RESUME))
    yield "## What a resumed run may change\n"
    yield f"{free}: these say how a run is run. All others say what is learned, and are refused."
    yield "See [Runs](runs.md#go-on-with-a-run).\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
