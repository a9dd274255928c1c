"""Every message of docs/errors.md is asserted by a test."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.test_docs import documented, template

TESTS = Path(__file__).parent

WORDS = 3
"""So many words in a row, which no other message has, tell a message."""


def texts(folder: Path) -> Iterator[str]:
    """All texts in the tests, without the backslashes of patterns."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.expr) and (text := template(node)) is not None:
                yield " ".join(re.sub(r"\\(.)", r"\1", text).split())


def telling(message: str, others: Sequence[str]) -> list[str]:
    """What a test may look for to have found this message and no other."""
    pieces = [piece for part in message.split("…") if (piece := part.strip(" :;,.()"))]
    runs = [
        " ".join(words[start : start + WORDS])
        for words in (piece.split() for piece in pieces)
        for start in range(max(1, len(words) - WORDS + 1))
    ]
    own = [run for run in runs if len(run) > 5 and not any(run in other for other in others)]
    # Where every run is another's too, the longest piece must be there in full.
    return own or [max(pieces, key=len)]


def unasserted(messages: Sequence[str], said: str) -> list[str]:
    """The messages of which no text in `said` tells."""
    return [
        message
        for message in messages
        if not any(run in said for run in telling(message, [o for o in messages if o != message]))
    ]


def test_every_documented_message_is_asserted() -> None:
    said = "\n".join(texts(TESTS))
    assert unasserted(documented(), said) == [], "assert these messages in a test"


def test_a_message_that_no_test_asserts_would_be_noticed() -> None:
    messages = ["--out …: expected a folder that is new", "--in …: expected a folder that is old"]
    assert unasserted(messages, "expected a folder that is") == messages
    assert unasserted(messages, "a folder that is new") == messages[1:]
    assert unasserted(messages, "--in x: expected a folder that is old") == messages[:1]
