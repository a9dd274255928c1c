"""What a benchmark prints."""

import json
from dataclasses import replace

import pytest

from benchmarks import output
from benchmarks.measure import Usage

QUIET = Usage(seconds=1.0, cpu_seconds={}, own_cpu_seconds=1.0, raw_foreign_cpu=0.01, steal=0.0)
LOUD = replace(QUIET, raw_foreign_cpu=0.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345, "12,345"), (12345.6, "12,346"), (12.345678, "12.35"), (0.00123456, "0.001235"), (7, "7"),
     (None, "-"), ("name", "name"), (True, "True"), (0.0, "0.000"), (-12.345678, "-12.35")],
)  # fmt: skip
def test_cells_have_four_digits(value: object, text: str) -> None:
    assert output.text(value) == text


def test_a_table_is_markdown() -> None:
    assert output.table(("a", "b"), [[1, None]]) == "| a | b |\n| --- | --- |\n| 1 | - |"


def test_only_disturbed_windows_are_warned_of() -> None:
    warning = output.warning({"the echo": QUIET, "serving": LOUD})
    assert warning.startswith("NOT QUIET while serving was measured: other processes took 50 %")
    assert warning.count("\n") == 0
    assert output.warning({"the echo": QUIET}) == ""


def test_json_is_the_last_line_and_says_whether_all_was_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = {"figure": 1.5, "windows": {"serving": LOUD.disturbance()}}
    output.show(["a table", "", "more"], whole, as_json=True)
    *tables, last = capsys.readouterr().out.splitlines()
    assert tables == ["a table", "", "more"]
    assert json.loads(last) == whole


def test_numbers_that_are_none_do_not_pass_as_results() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        output.show(["a table"], {"figure": float("nan")}, as_json=True)
