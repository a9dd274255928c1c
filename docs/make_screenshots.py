"""Makes the pictures of a run, its terminal and its status page: `python docs/make_screenshots.py`.

It trains on CartPole in a terminal of its own, and looks at it in Chromium when the policy is good.
It needs the `dev` extra, and Debian's package `chromium`.
"""

import fcntl
import html
import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"

COMMAND = """\
seedbed train --preset cartpole-ppo --eval-interval 10000 \\
    --checkpoint-interval-seconds 5 --metrics-listen 127.0.0.1:0 --logdir runs/cartpole"""

GOOD_RETURN = 350.0
"""Mean return at which the pictures are taken: the curve has risen, and the run still goes on."""

COLUMNS, ROWS = 96, 32

PATIENCE_SECONDS = 600.0

COLOURS = {
    "default": "#d7dde4", "black": "#5c6773", "red": "#ff8f8b", "green": "#8fd18a", "brown": "#e6c07b",
    "blue": "#7cb7ff", "magenta": "#e39bf0", "cyan": "#6fd3d9", "white": "#ffffff",
}  # fmt: skip

PAGE = """<!doctype html><style>
  body {{ margin: 0; background: #0f1318; }}
  pre {{
    display: inline-block; margin: 0; padding: 16px 18px; color: {default};
    font: 14px/1.4 "DejaVu Sans Mono", monospace;
  }}
</style><pre>{text}</pre>"""


class Terminal:
    """A command in a terminal that nobody sees, and what is on its screen."""

    def __init__(self, command: str, folder: Path) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.said = ""
        self.ended = False
        self._feed(f"$ {command}\n".replace("\n", "\r\n").encode())
        program, *arguments = shlex.split(command.replace("\\\n", ""))
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name(program)), *arguments],
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def read(self, seconds: float) -> None:
        """Take in what the command says within so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                try:
                    self._feed(os.read(self._master, 65536))
                except OSError:  # Linux's word for a terminal that nobody writes to any more.
                    self.ended = True
                    return

    def close(self) -> None:
        """End the command as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        while self._process.poll() is None:
            self.read(0.1)
        os.close(self._master)

    def html(self) -> str:
        """The screen, up to its last line that is not empty."""
        lines = ["".join(self._spans(row)).rstrip() for row in range(ROWS)]
        while not re.sub("<[^>]*>", "", lines[-1]).strip():
            lines.pop()
        return PAGE.format(text="\n".join(lines), default=COLOURS["default"])

    def _feed(self, data: bytes) -> None:
        self._stream.feed(data)
        self.said += data.decode(errors="replace")

    def _spans(self, row: int) -> Iterator[str]:
        for column in range(COLUMNS):
            character = self._screen.buffer[row][column]
            # The 256 colours come as hexadecimal digits, the first 8 as names.
            colour = COLOURS.get(character.fg, f"#{character.fg}")
            weight = ";font-weight:bold" if character.bold else ""
            yield f'<span style="color:{colour}{weight}">{html.escape(character.data)}</span>'


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder, browser() as chromium:
        terminal = Terminal(COMMAND, Path(folder))
        try:
            address = wait_until_good(terminal)
            picture_of_page(chromium, address)
            # Its display, and what it has said since.
            terminal.read(0.1)
            picture_of_terminal(chromium, terminal.html())
        finally:
            terminal.close()


@contextmanager
def browser() -> Iterator[Browser]:
    # Chromium's sandbox refuses to work for root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield browser
        browser.close()


def wait_until_good(terminal: Terminal) -> str:
    """Wait for a good policy; the status page's address."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and not terminal.ended:
        terminal.read(0.5)
        # Without colours; and the line may have been broken.
        said = re.sub(r"\x1b\[[\d;]*m", "", terminal.said)
        port = re.search(r"\(port\s+(\d+)\)", said)
        if port is not None and is_good(read_json(f"http://127.0.0.1:{port[1]}/status.json")):
            return f"http://127.0.0.1:{port[1]}/"
    raise SystemExit(f"expected a return of {GOOD_RETURN} before the end, found:\n{terminal.said}")


def is_good(status: dict[str, Any]) -> bool:
    mean_return = status.get("report", {}).get("mean_return_100") or 0.0
    training = status["run"]["phase"] == "training"
    return training and mean_return >= GOOD_RETURN and len(status["evaluations"]) > 1


def read_json(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(address, timeout=60) as answer:
        value: dict[str, Any] = json.load(answer)
        return value


def picture_of_page(chromium: Browser, address: str) -> None:
    page = chromium.new_page(viewport={"width": 1040, "height": 700})
    page.goto(address)
    page.wait_for_selector("#actor-rows tr")
    save(page.screenshot(full_page=True), "status-page.png")


def picture_of_terminal(chromium: Browser, document: str) -> None:
    page = chromium.new_page(device_scale_factor=1.5)
    page.set_content(document)
    save(page.locator("pre").screenshot(), "terminal.png")


def save(png: bytes, name: str) -> None:
    """Keep a picture, small: text on plain ground needs few colours, but rare ones count too."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(128, Image.Quantize.MAXCOVERAGE).save(IMAGES / name, optimize=True)


if __name__ == "__main__":
    main()
