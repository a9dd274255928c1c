"""Figures as text, and tables on standard output."""

import math
import sys
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDTH = 100
"""Characters of a line where the output is no terminal: a file, or a pipe."""


def text(value: Any) -> str:
    """A cell: 12,345 and 12.35 and 0.01234 and -."""
    if value is None:
        return "-"
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3 if value == 0 or not math.isfinite(value) else 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(digits, 0)}f}"


def show_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table with a title; numbers to the right, with four significant digits."""
    table = Table(box=SIMPLE_HEAD)
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(text, row))
    sys.stdout.write(f"{title}\n")
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH).print(table)
