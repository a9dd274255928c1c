"""What errors say: those of other people's code say anything, at any length, or fail to say it."""

import re
import traceback

MAX_TEXT = 8_000
"""Most characters of what an error says."""

MAX_TRACEBACK = 32_000

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def text_of(error: BaseException) -> str:
    """What `error` says, as `plain`, in at most about `MAX_TEXT` characters."""
    try:
        text = str(error)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - it is other people's code
        return f"(what it says cannot be had: {type(failure).__name__})"
    return _bounded(text, MAX_TEXT)


def traceback_of(error: BaseException) -> str:
    """The error's traceback, with those of its causes, as `plain`, in at most about `MAX_TRACEBACK`
    characters."""
    return _bounded("".join(traceback.format_exception(error)), MAX_TRACEBACK)


def plain(text: str) -> str:
    """`text` without colours, and with escapes in the place of what is no text: control characters, NUL
    among them, and lone surrogates, which UTF-8 cannot hold."""
    text = _COLOURS.sub("", text)
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def _bounded(text: str, limit: int) -> str:
    # Cut twice: megabytes are not to be looked at one by one, and escapes take more than they stand for.
    return _cut(plain(_cut(text, limit)), limit)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    # The end is kept too: the last line of a traceback says most.
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
