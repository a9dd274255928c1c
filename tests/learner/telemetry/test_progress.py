"""What people see, in each mode; and log lines that do not tear it."""

import io
import logging
from typing import Any

import pytest
from rich.console import Console

from learner.telemetry.logs import configure_logging
from learner.telemetry.progress import LiveDisplay, NoDisplay, PlainDisplay, line, make_display
from tests.learner.telemetry.test_verdict import report

CLEAR_LINE = "\x1b[2K"


def busy_report(**values: Any) -> Any:
    given = {
        "env_steps": 120_000, "total_steps": 500_000, "steps_per_second": 8412.4, "episodes": 1032,
        "mean_return_100": 312.44, "policy_lag": 1.27, "training_busy": 0.82, "actors_idle": 0.4,
        "inference_busy": 0.3, "training": {"loss": 0.12345},
    }  # fmt: skip
    return report(**{**given, **values})


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, _environ={"TERM": "xterm"})


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_line_says_everything() -> None:
    assert line(busy_report()) == (
        "step 120,000 of 500,000 (24 %), 8,412 steps/s, "
        "1,032 episodes, mean return 312.4 of the last 100, inference batch 11.0 of 64, "
        "policy lag 1.3, 2 actors with 32 environments, 0:45 left; "
        "learner-bound: training busy 82 %, inference batch 11 of 64, actors idle 40 %"
    )


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"mean_return_100": None, "episodes": 0}, "no episode yet"),
        ({"episodes": 7}, "7 episodes, mean return 312.4 of the last 7"),
        ({"mean_return_100": 0.9123}, "mean return 0.912 of the last 100"),
        ({"mean_return_100": -21.5}, "mean return -21.50 of the last 100"),
        ({"env_steps": 1_246, "total_steps": 1_000}, "step 1,246 of 1,000 (100 %), "),
        ({"steps_per_second": 0.0}, "- left"),
        ({"steps_per_second": 100.0}, "1:03:20 left"),
        ({"policy_lag": None}, "policy lag -"),
        ({"actors": 1}, "1 actor with 32 environments"),
        ({"actors": 0}, "waiting for actors: none connected"),
    ],
)
def test_plain_line_of_a_run_that_is_not_in_full_swing(values: dict[str, Any], part: str) -> None:
    assert part in line(busy_report(**values))


def test_plain_display_writes_one_line_an_interval() -> None:
    lines: list[str] = []
    display = PlainDisplay(lines.append)
    display.show(busy_report(), {})
    display.show(busy_report(env_steps=130_000), {})
    display.close()
    assert [text[:12] for text in lines] == ["step 120,000", "step 130,000"]


def test_plain_display_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        PlainDisplay().show(busy_report(), {})
    assert [record.getMessage() for record in caplog.records] == [line(busy_report())]


def test_mode_decides() -> None:
    pipe = Console(file=io.StringIO())
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(make_display("auto", terminal()), LiveDisplay)
    assert isinstance(make_display("auto", pipe), PlainDisplay)
    assert isinstance(make_display("auto", dumb), PlainDisplay)
    assert isinstance(make_display("live", pipe), LiveDisplay)
    assert isinstance(make_display("plain", terminal()), PlainDisplay)
    assert isinstance(make_display("none", terminal()), NoDisplay)


def test_no_display_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    display = NoDisplay()
    display.show(busy_report(), {})
    display.close()
    assert capfd.readouterr() == ("", "")


def test_live_display_shows_everything_and_ends_with_the_verdict() -> None:
    console = terminal()
    display = LiveDisplay(console)
    display.show(busy_report(), {})
    display.close()
    display.close()
    text = output(console)
    for part in (
        "step 120,000 of 500,000",
        "24 %, 0:45 left",
        "8,412 steps/s",
        "1,032 episodes, mean return 312.4 of the last 100",
        "loss 0.1235",
        "2 actors with 32 environments",
        "inference batch 11.0 of 64",
        "queue 0 of 16",
        "policy lag 1.3",
        "learner-bound: training busy 82 %, inference batch 11 of 64, actors idle 40 %",
    ):
        assert part in text, part


def test_live_display_that_never_showed_anything_writes_nothing() -> None:
    console = terminal()
    LiveDisplay(console).close()
    assert output(console) == ""


def test_log_lines_appear_above_the_live_display(root_logger: logging.Logger) -> None:
    console = terminal()
    configure_logging(console)
    display = LiveDisplay(console)
    display.show(busy_report(), {})
    before = len(output(console))
    logging.getLogger("learner.anything").warning("an actor left")
    after = output(console)[before:]
    display.close()
    # The display's lines are cleared, the log line takes their place, and they are drawn again below.
    assert after.index(CLEAR_LINE) < after.index("an actor left") < after.index("learner-bound")


def test_log_is_plain_lines_where_there_is_no_terminal(root_logger: logging.Logger) -> None:
    console = Console(file=io.StringIO())
    configure_logging(console)
    logging.getLogger("learner.anything").warning("[an actor] left: %s", "a " * 100)
    logging.getLogger("learner.anything").debug("unseen")
    lines = output(console).splitlines()
    assert len(lines) == 1
    assert lines[0].split(" ", 1)[1] == "WARNING [an actor] left: " + "a " * 100


def test_configuring_twice_does_not_double_the_lines(root_logger: logging.Logger) -> None:
    console = Console(file=io.StringIO())
    configure_logging(console)
    configure_logging(console)
    logging.getLogger("learner.anything").info("once")
    assert output(console).count("once") == 1
