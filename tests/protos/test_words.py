"""What other people's errors say is shown, whatever it is."""

import pytest

from protos.words import MAX_TEXT, MAX_TRACEBACK, plain, text_of, traceback_of


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


def test_what_is_text_stays_as_it_is() -> None:
    text = "expected 3,\n\tfound 4: ä 猫 🐈"
    assert text_of(ValueError(text)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no\0NUL", "no\\x00NUL"),
        ("a lone \ud800", "a lone \\ud800"),
        ("\x1b[33mWARN\x1b[0m: \x1b]0;title\x07", "WARN: \\x1b]0;title\\x07"),
        ("one\rtwo\u2028three", "one\\rtwo\\u2028three"),
    ],
)
def test_what_is_no_text_is_escaped(text: str, shown: str) -> None:
    assert plain(text) == text_of(ValueError(text)) == shown
    text_of(ValueError(text)).encode()


@pytest.mark.parametrize("letter", ["x", "\0", "\ud800"])
def test_megabytes_are_cut_in_the_middle(letter: str) -> None:
    text = text_of(ValueError("begins" + letter * 5_000_000 + "ends"))
    assert text.startswith("begins")
    assert " characters ...] " in text
    assert text.endswith("ends")
    assert len(text) < MAX_TEXT + 100


def test_an_error_that_cannot_be_shown_is_told_of() -> None:
    assert text_of(Mute()) == "(what it says cannot be had: ZeroDivisionError)"
    assert "<exception str() failed>" in traceback_of(Mute())


def test_a_traceback_is_bounded_and_keeps_its_ends() -> None:
    with pytest.raises(ValueError, match="x") as raised:
        raise ValueError("x" * 5_000_000 + "\0 the end")
    text = traceback_of(raised.value)
    assert text.startswith("Traceback (most recent call last)")
    assert text.endswith("\\x00 the end\n")
    assert len(text) < MAX_TRACEBACK + 100
