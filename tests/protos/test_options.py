"""Options: precedence, types, flags, bounds; refusals with status 2 in one line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from protos.errors import ConfigError
from protos.options import check_ranges, option, option_names, parse, peek


@dataclass(frozen=True)
class Toy:
    count: int = option(1, "how many", at_least=0, at_most=9)
    rate: float = option(0.5, "100 % means all", above=0)
    kind: Literal["slow", "fast"] = option("slow", "how")
    limit_seconds: float | None = option(None, "in seconds")
    sizes: tuple[int, ...] = option((4, 4), "widths", at_least=1)
    dry_run: bool = option(False, "do nothing")
    place: str | None = option(None, "where")
    computed: int = 7

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.count == 5:
            raise ConfigError("--count 5 and --kind slow exclude each other")


def parsed(*argv: str, **more: Any) -> Toy:
    return parse(Toy, argv, prog="toy", description="A toy.", **more)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text("count = 3\nsizes = [8, 2]\nlimit_seconds = 2.5\ndry_run = true\nrate = 2\n")
    return path


def test_defaults() -> None:
    assert parsed() == Toy()


def test_names_are_those_of_options_alone() -> None:
    assert option_names(Toy) == [
        "count", "rate", "kind", "limit_seconds", "sizes", "dry_run", "place",
    ]  # fmt: skip


def test_precedence(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = {"count": 2, "kind": "fast"}
    assert parsed(preset=preset).count == 2
    assert parsed(preset=preset).kind == "fast"
    assert parsed("--config", str(file), preset=preset).count == 3
    monkeypatch.setenv("SEEDBED_COUNT", "4")
    assert parsed("--config", str(file), preset=preset).count == 4
    assert parsed("--config", str(file), "--count", "6", preset=preset).count == 6


def test_types_from_the_file(file: Path) -> None:
    expected = Toy(count=3, sizes=(8, 2), limit_seconds=2.5, dry_run=True, rate=2.0)
    assert parsed(f"--config={file}") == expected


def test_the_file_may_be_named_in_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDBED_CONFIG", str(file))
    assert parsed().count == 3


def test_types_from_the_command_line() -> None:
    argv = "--count 2 --rate 1e-3 --kind fast --limit-seconds 3 --sizes [1,2,3] --place here"
    assert parsed(*argv.split()) == Toy(2, 1e-3, "fast", 3.0, (1, 2, 3), False, "here")


def test_text_stays_text() -> None:
    assert parsed("--place", "3").place == "3"
    assert parsed("--place", "module:make").place == "module:make"


def test_none_can_be_said(file: Path) -> None:
    assert parsed("--config", str(file), "--limit-seconds", "null").limit_seconds is None


def test_flags_stand_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("--dry-run").dry_run is True
    assert parsed("--config", str(file), "--no-dry-run").dry_run is False
    monkeypatch.setenv("SEEDBED_DRY_RUN", "true")
    assert parsed().dry_run is True


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--count", "x"], "--count: expected int, found x"),
        (["--count", "1.5"], "--count: expected int, found 1.5"),
        (["--kind", "odd"], "--kind: expected slow or fast, found odd"),
        (["--limit-seconds", "x"], "--limit-seconds: expected float, found x"),
        (["--sizes", "[1,x]"], "--sizes: expected tuple[int, ...], found [1,x]"),
        (["--count"], "argument --count: expected one argument"),
        (
            ["--cuont", "1"],
            "unrecognized arguments: --cuont 1; did you mean --count? toy --help lists all options",
        ),
        (
            ["--no-dyr-run"],
            "unrecognized arguments: --no-dyr-run; did you mean --dry-run? toy --help lists all options",
        ),
        (["--zzz=1"], "unrecognized arguments: --zzz=1; toy --help lists all options"),
        (["stray"], "unrecognized arguments: stray; toy --help lists all options"),
        (["--count", "10"], "--count 10: expected at most 9"),
        (["--count", "-1"], "--count -1: expected at least 0"),
        (["--rate", "0"], "--rate 0.0: expected more than 0"),
        (["--sizes", "[1,0]"], "--sizes 0: expected at least 1"),
        (["--count", "5"], "--count 5 and --kind slow exclude each other"),
        (["--config", "none.toml"], "--config none.toml: no such file"),
    ],
)
def test_refusals(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*argv)
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"toy: error: {message}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('count = "x"', "--count: expected int, found x"),
        ("cuont = 1", "'cuont' is not accepted; did you mean --count? toy --help lists all options"),
        ("count =", "Problems parsing config"),
        ('kind = "odd"', "--kind: expected slow or fast, found odd"),
    ],
)
def test_refusals_of_a_file(
    file: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    with pytest.raises(SystemExit) as caught:
        parsed("--config", str(file))
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_refusal_of_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEEDBED_COUNT", "x")
    with pytest.raises(SystemExit) as caught:
        parsed()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "toy: error: --count: expected int, found x\n"


def test_bounds_need_finite_numbers() -> None:
    with pytest.raises(ConfigError, match="--rate inf: expected a finite number"):
        Toy(rate=float("inf"))


def test_help_and_version_end_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, expected in (("--help", "100 % means all"), ("--version", "toy ")):
        with pytest.raises(SystemExit) as caught:
            parsed(argument)
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["--place", "here"], "here"),
        (["--place=here"], "here"),
        (["--place", "here", "--place", "there"], "there"),
        (["--place"], None),
        (["--placement", "here"], None),
    ],
)
def test_peek_at_the_command_line(argv: list[str], expected: str | None) -> None:
    assert peek(argv, "place") == expected


def test_peek_has_the_precedence_of_the_full_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "toy.toml"
    file.write_text('place = "file"')
    argv = ["--config", str(file)]
    assert peek(argv, "place") == "file"
    monkeypatch.setenv("SEEDBED_PLACE", "environment")
    assert peek(argv, "place") == "environment"
    assert peek([*argv, "--place", "argv"], "place") == "argv"


def test_peek_leaves_a_broken_file_to_the_full_parse(tmp_path: Path) -> None:
    file = tmp_path / "toy.toml"
    file.write_text("place =")
    assert peek(["--config", str(file)], "place") is None


def test_a_misspelt_environment_variable_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SEEDBED_LIMIT_SECOND", "SEEDBED_COUNT", "SEEDBED_TOKEN", "SEEDBED_OF_ANOTHER_COMMAND"):
        monkeypatch.setenv(name, "4")
    assert parsed().count == 4
    assert capsys.readouterr().err == (
        "toy: warning: SEEDBED_LIMIT_SECOND sets no option; is SEEDBED_LIMIT_SECONDS meant?\n"
    )
