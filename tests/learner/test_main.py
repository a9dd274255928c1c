"""The `seedbed` command's arguments: where they come from, what is refused, and how it is said."""

import logging
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pytest

from learner.__main__ import COMMANDS, Command, main
from learner.config import LearnerOptions, TrainOptions
from learner.presets import PRESETS
from learner.telemetry.run_directory import RunDirectory
from protos.errors import CheckpointError, ConfigError, SeedbedError, WorkerFailure
from protos.options import option_names

REQUIRED = {
    "train": ["--env=x"],
    "learner": [],
    "evaluate": ["--logdir=x"],
    "export": ["--logdir=x", "--out=y"],
    "replay": ["--file=x"],
    "plan": ["--env=x"],
    "tune": ["--env=x"],
}

TRAIN_HELP = "seedbed train --help lists all options"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the shell's environment, and the process's log as it was."""
    for name in [name for name in os.environ if name.startswith("SEEDBED_")]:
        monkeypatch.delenv(name)
    loggers = [logging.getLogger(name) for name in (None, "absl", "matplotlib", "tensorflow")]
    before = [(each, each.level, each.handlers[:]) for each in loggers]
    yield
    for each, level, handlers in before:
        each.setLevel(level)
        each.handlers[:] = handlers


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> "Executed":
    return Executed(monkeypatch)


class Executed:
    """Commands that only take note of their options; as a call, the options of a command line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: list[Any] = []

        def note(options: Any, console: Any) -> int:
            self._found.append(options)
            return 0

        for name, command in COMMANDS.items():
            monkeypatch.setitem(COMMANDS, name, command._replace(execute=note))

    def __call__(self, *argv: str) -> Any:
        assert main(argv) == 0
        return self._found.pop()


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line with which a command line is refused."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    return err.strip()


# What there is ----------------------------------------------------------------------------------


def test_no_argument_shows_the_commands_and_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    without = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == without
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.description)}$", without, re.MULTILINE)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"seedbed {metadata.version('seedbed')}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_every_option_and_imports_no_tensorflow(name: str) -> None:
    code = (
        "import atexit, sys; from learner.__main__ import main\n"
        "atexit.register(lambda: print('LOADED', *{'tensorflow', 'keras'} & set(sys.modules)))\n"
        f"main([{name!r}, '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    text, _, loaded = done.stdout.partition("LOADED")
    assert loaded.strip() == ""
    assert COMMANDS[name].description in text
    shown = {found[1]: found[0] for found in re.finditer(r"--([\w-]+)[^\n]*\n  ENV:.*\n.*", text)}
    for entry in fields(COMMANDS[name].options):
        lines = " ".join(shown[entry.name.replace("_", "-")].split())
        default = "null" if entry.default is None else entry.default
        assert entry.metadata["help"] in lines
        assert f"default: {default})" in lines
        assert f"SEEDBED_{entry.name.upper()} " in lines


def test_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "learner", "traim"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "seedbed: error: expected a command (train, learner, evaluate, export, replay, plan, tune), "
        "found 'traim'\n"
    )


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["traim", "", "--config", "-v", "--preset=none"])
def test_unknown_command(capsys: pytest.CaptureFixture[str], argument: str) -> None:
    assert refused(capsys, argument, "--env", "x") == (
        "seedbed: error: expected a command (train, learner, evaluate, export, replay, plan, tune), "
        f"found {argument!r}"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("train", "--env is required: local actors need to know what to step"),
        (
            "train --env=x --lr 1",
            f"unrecognized arguments: --lr 1; {TRAIN_HELP}",
        ),
        (
            "train --env=x --conf=a.toml",
            f"unrecognized arguments: --conf=a.toml; did you mean --config? {TRAIN_HELP}",
        ),
        (
            "train --env=x --pres=atari",
            f"unrecognized arguments: --pres=atari; did you mean --preset? {TRAIN_HELP}",
        ),
        ("train --env=x stray", f"unrecognized arguments: stray; {TRAIN_HELP}"),
        ("train --env", "argument --env: expected one argument"),
        ("train --env=x --config", "argument --config: expected one argument"),
        (
            "learner --num-actors=2",
            "unrecognized arguments: --num-actors=2; seedbed learner --help lists all options",
        ),
        ("train --env=x --unroll-length=1.5", "--unroll-length: expected int, found 1.5"),
        ("train --env=x --unroll-length=true", "--unroll-length: expected int, found True"),
        ("train --env=x --unroll-length=", "--unroll-length: expected int, found "),
        ("train --env=x --discount=high", "--discount: expected float, found high"),
        ("train --env=x --optimizer=lion", "--optimizer: expected adam or rmsprop or sgd, found lion"),
        ("train --env=x --hidden-sizes=64", "--hidden-sizes: expected tuple[int, ...], found 64"),
        ("train --env=x --hidden-sizes=[64,0]", "--hidden-sizes 0: expected at least 1"),
        ("train --env=x --stop-return=much", "--stop-return: expected float, found much"),
        ("train --env=x --stop-return=inf", "--stop-return: expected float, found inf"),
        (
            "train --env=x --preset=mujoco",
            f"--preset mujoco: expected auto or one of {', '.join(PRESETS)}",
        ),
        ("train --env=x --discount=2", "--discount 2.0: expected at most 1"),
        ("train --env=x --config=none.toml", "--config none.toml: no such file"),
        (
            "train --env=x --batch-size=16 --queue-capacity=8",
            "--queue-capacity 8 would never fill a batch of --batch-size 16 unrolls: raise it to at "
            "least 16",
        ),
        ("evaluate", "--logdir is required: the run whose policy to evaluate"),
        (
            "evaluate --logdir=x --video=a.avi",
            "--video a.avi: expected a name that ends in .mp4 or .gif",
        ),
        ("export --logdir=x", "--out is required"),
    ],
)
def test_mistakes_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], argv: str, message: str
) -> None:
    name = argv.split()[0]
    found = refused(capsys, *argv.split())
    assert found == f"seedbed {name}: error: {message}".strip()


def wrong_values() -> Iterator[tuple[str, str, str]]:
    """For every option of every command, a value of another type and those just out of bounds."""
    for name, command in COMMANDS.items():
        hints = typing.get_type_hints(command.options)
        for entry in fields(command.options):
            numbers = hints[entry.name] in (int, float, float | None)
            if numbers or hints[entry.name] == tuple[int, ...] or _is_literal(hints[entry.name]):
                yield name, entry.name, "nonsense"
            limits = entry.metadata
            for limit, step in (("at_least", -1), ("at_most", 1), ("above", 0)):
                if limit in limits:
                    value = limits[limit] + step
                    yield name, entry.name, str(value) if numbers else f"[{value}]"


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_refuses_other_types_and_values_out_of_bounds(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    wrong = [(option, value) for command, option, value in wrong_values() if command == name]
    for option, value in wrong:
        flag = f"--{option.replace('_', '-')}"
        said = refused(capsys, name, *REQUIRED[name], f"{flag}={value}")
        assert said.startswith(f"seedbed {name}: error: {flag}"), said
        assert re.search(r"expected .+", said), said
    assert len(wrong) > 1 or name == "export"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unroll_length = 'long'", "--unroll-length: expected int, found long"),
        ("unroll_length = true", "--unroll-length: expected int, found True"),
        (
            "unroll_lenght = 3",
            f"Option 'unroll_lenght' is not accepted; did you mean --unroll-length? {TRAIN_HELP}",
        ),
        ("unroll_length = 0", "--unroll-length 0: expected at least 1"),
        ("preset = 'mujoco'", f"--preset mujoco: expected auto or one of {', '.join(PRESETS)}"),
        ("discount = nan", "--discount nan: expected a finite number"),
        (
            "[section]\ndiscount = 1",
            f"Option 'section.discount' is not accepted; did you mean --discount? {TRAIN_HELP}",
        ),
        ("discount = = 1", "Problems parsing config: Invalid value (at line 1, column 12)"),
    ],
)
def test_mistakes_in_the_file_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    found = refused(capsys, "train", "--env=x", f"--config={config}")
    assert found == f"seedbed train: error: {message}"


def test_file_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_bytes(b"seed = 1\n# caf\xe9\n")
    found = refused(capsys, "train", "--env=x", f"--config={config}")
    assert found.startswith(f"seedbed train: error: --config {config} cannot be read: 'utf-8' codec")


def test_mistakes_in_the_environment_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEDBED_DISCOUNT", "high")
    found = refused(capsys, "train", "--env=x")
    assert found == "seedbed train: error: --discount: expected float, found high"


# What is taken ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults(options: Executed, name: str) -> None:
    found = options(name, *REQUIRED[name])
    assert type(found) is COMMANDS[name].options
    given = dict(argument.removeprefix("--").split("=") for argument in REQUIRED[name])
    assert found == COMMANDS[name].options(**given)


@pytest.mark.parametrize(
    "text", ["runs/lr=0.1", "123", "1e3", "true", "[1]", "{a}", "a # b", "~/x", "2024-01-01", "a b", "ü"]
)
def test_text_is_taken_as_it_is(options: Executed, text: str) -> None:
    assert options("train", "--env", text, f"--logdir={text}").logdir == text
    assert options("train", "--env", text).env == text


def test_the_later_source_wins(
    options: Executed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Default, preset, file, environment, command line."""
    config = tmp_path / "config.toml"
    config.write_text("unroll_length = 105\nbatch_size = 106\ndiscount = 0.5\n")
    argv = ["train", "--env=x"]
    default, preset = TrainOptions(env="x").unroll_length, PRESETS["atari"]["unroll_length"]
    assert default != preset
    assert options(*argv).unroll_length == default
    argv += ["--preset=atari"]
    assert options(*argv).unroll_length == preset
    argv += [f"--config={config}"]
    assert options(*argv).unroll_length == 105
    monkeypatch.setenv("SEEDBED_UNROLL_LENGTH", "107")
    monkeypatch.setenv("SEEDBED_BATCH_SIZE", "108")
    assert options(*argv).unroll_length == 107
    argv += ["--unroll-length=109"]
    found = options(*argv)
    assert (found.unroll_length, found.batch_size, found.discount) == (109, 108, 0.5)
    assert (found.frame_stack, found.torso) == (4, "shallow")


@pytest.mark.parametrize("source", ["command line", "environment", "file"])
@pytest.mark.parametrize(("name", "value"), [("preset", "atari"), ("env", "ALE/Pong-v5")])
def test_preset_is_found_wherever_it_or_the_environment_stands(
    options: Executed,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
    name: str,
    value: str,
) -> None:
    argv = ["learner"]
    if source == "command line":
        argv += [f"--{name}", value]
    elif source == "environment":
        monkeypatch.setenv(f"SEEDBED_{name.upper()}", value)
    else:
        (tmp_path / "config.toml").write_text(f'{name} = "{value}"\n')
        argv += ["--config", str(tmp_path / "config.toml")]
    assert options(*argv).frame_stack == 4


def test_preset_is_not_taken_where_it_is_declined(options: Executed) -> None:
    assert options("learner", "--env=ALE/Pong-v5", "--preset=none").frame_stack == 1


@pytest.mark.parametrize("folder", ["run[1]", "run*", "what?", "a b", "~"])
def test_file_may_lie_in_a_folder_of_any_name(options: Executed, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.toml").write_text("seed = 12\n")
    assert options("learner", "--config", str(tmp_path / folder / "config.toml")).seed == 12


def test_file_may_be_named_in_the_environment(
    options: Executed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("seed = 12\n")
    monkeypatch.setenv("SEEDBED_CONFIG", str(tmp_path / "config.toml"))
    assert options("learner").seed == 12


@pytest.mark.parametrize(
    "written",
    [
        TrainOptions(env="CartPole-v1"),
        TrainOptions(
            env="ALE/Pong-v5",
            preset="atari",
            hidden_sizes=(32,),
            learning_rate=1e-5,
            optimizer="rmsprop",
            stop_return=20.0,
            logdir='with "quotes" and \\',
            listen="unix:/tmp/s",
            seed=2**31 - 1,
        ),
        TrainOptions(env="x", hidden_sizes=()),
    ],
)
def test_config_of_a_run_is_accepted_again(
    options: Executed, tmp_path: Path, written: LearnerOptions
) -> None:
    RunDirectory(tmp_path / "run", written).close()
    assert options("train", "--config", str(tmp_path / "run" / "config.toml")) == written


def test_config_of_a_run_names_every_option(tmp_path: Path) -> None:
    given: dict[str, Any] = {"env": "x", "logdir": "l", "listen": "a:1", "stop_return": 1}
    given |= {"eval_interval": 1, "stop_eval_return": 1, "record": "r"}
    # An option that is None is not in the file; this one is SAC's.
    given |= {"agent": "sac", "target_entropy": -1.0}
    given |= dict.fromkeys(("metrics_listen", "health_listen"), "a:1")
    given |= dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca", "token_file"), "a file")
    RunDirectory(tmp_path / "run", TrainOptions(**given)).close()
    text = (tmp_path / "run" / "config.toml").read_text()
    assert set(re.findall(r"^(\w+) =", text, re.MULTILINE)) == set(option_names(TrainOptions))


# How a command ends -----------------------------------------------------------------------------


def end_with(monkeypatch: pytest.MonkeyPatch, error: Exception | int) -> int:
    """The exit status of a command that raises or returns `error`."""

    def execute(options: Any, console: Any) -> int:
        if isinstance(error, int):
            return error
        raise error

    monkeypatch.setitem(COMMANDS, "learner", Command(LearnerOptions, "", execute))
    return main(["learner"])


@pytest.mark.parametrize(
    ("argv", "reason"),
    [(["--agent", "a2c"], "--agent a2c"), (["--agent=ppo", "--reproducible"], "--reproducible")],
)
def test_a_lock_step_that_cannot_be_left_out_is_not_ignored(
    options: Executed, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        options("train", "--env=x", *argv, "--no-lock-step")
    assert ended.value.code == 2
    expected = f"{reason} makes acting wait for training, always: leave --no-lock-step out"
    assert capsys.readouterr().err == f"seedbed train: error: {expected}\n"
    assert not options("train", "--env=x", "--agent=ppo", "--no-lock-step").lock_step
    assert options("train", "--env=x", *argv, "--no-lock-step", "--lock-step").takes_turns


def test_a_run_s_own_file_goes_on_with_its_lock_step(options: Executed, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('env = "x"\nagent = "a2c"\nlock_step = false\n')
    assert options("train", f"--config={tmp_path / 'config.toml'}").takes_turns


@pytest.mark.parametrize("status", [0, 130])
def test_status_of_the_command_is_the_process_s(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    assert end_with(monkeypatch, status) == status


def test_options_that_the_command_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        end_with(monkeypatch, ConfigError("--listen :1: expected a free address"))
    assert ended.value.code == 2
    assert capsys.readouterr().err == "seedbed learner: error: --listen :1: expected a free address\n"


def chained(error: SeedbedError, cause: Exception) -> SeedbedError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error", [CheckpointError("damaged"), chained(WorkerFailure("damaged"), WorkerFailure("its words"))]
)
def test_failure_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: SeedbedError
) -> None:
    assert end_with(monkeypatch, error) == 1
    assert capsys.readouterr().err == "seedbed learner: error: damaged\n"


def test_fault_of_the_program_shows_its_traceback_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_with(monkeypatch, chained(WorkerFailure("prefetch failed"), ZeroDivisionError("oh"))) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["ZeroDivisionError: oh", "seedbed learner: error: prefetch failed"]


def test_anything_else_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        end_with(monkeypatch, ZeroDivisionError())
