"""The process's log, and a TensorFlow that starts without a word unless something is wrong."""

import faulthandler
import importlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler

_CHATTER = re.compile(
    r"""
    WARNING:\ All\ log\ messages\ before\ absl::InitializeLog\(\)   # the head of what follows
    | I\d{4}\ \d\d:\d\d:\d\d                                        # absl, level INFO
    | \d{4}-\d\d-\d\d\ [\d:.]+:\ I\                                 # TensorFlow's own, level INFO
    | To\ enable\ the\ following\ instructions:                     # goes on from the line before
    """,
    re.VERBOSE,
)


def import_tensorflow(environment: MutableMapping[str, str] = os.environ) -> None:
    """Import TensorFlow and Keras, for the first time in this process, without their greetings.

    Warnings and errors are still shown, after the import, and so is everything where the user has
    set TF_CPP_MIN_LOG_LEVEL to 0.
    """
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if environment["TF_CPP_MIN_LOG_LEVEL"] == "0" or sys.stderr is None:
        _import()
        return
    # TensorFlow logs some lines before it reads that variable, and no other variable stops them.
    with _without_chatter():
        _import()


def configure_logging(console: Console, level: int = logging.INFO) -> None:
    """Send the process's log to `console`: above a live display on a terminal, else plain lines."""
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, log_time_format="[%X]")
        form = logging.Formatter("%(message)s")
    else:
        handler = logging.StreamHandler(console.file)
        form = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    handler.setFormatter(form)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    # TensorFlow's Python side has a handler of its own, which would print every line twice and
    # through a live display.
    logging.getLogger("tensorflow").handlers.clear()
    # All say at INFO what concerns only themselves.
    for name in ("absl", "matplotlib", "tensorflow"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def printable(text: str) -> str:
    """Others' words, in one line whatever is in them."""
    return "".join(c if c.isprintable() else " " for c in text)


def _import() -> None:
    for name in ("tensorflow", "keras"):
        importlib.import_module(name)


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Hold back what the process writes to file descriptor 2, and repeat what is not chatter after.

    Native code writes there directly, so replacing `sys.stderr` would not do. If the process dies
    inside the block (an illegal instruction, say), what was held back is lost, and faulthandler
    says where it died.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    watched = faulthandler.is_enabled()
    if not watched:
        faulthandler.enable(saved)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            if not watched:
                faulthandler.disable()
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            kept = [text for text in held if not _CHATTER.match(text.decode(errors="replace"))]
            os.write(2, b"".join(kept))
