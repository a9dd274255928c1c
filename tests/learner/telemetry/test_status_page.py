"""The status page in a real browser: what a person sees, and what a hostile client cannot do to them."""

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from learner.telemetry.evaluations import Evaluation
from learner.telemetry.http_server import HttpServer
from learner.telemetry.learning_curve import LearningCurve
from learner.telemetry.problems import Problems
from learner.telemetry.report import Report
from learner.telemetry.status import Status
from learner.telemetry.status_page import status_page
from protos import inference_pb2 as pb
from tests.fakes import PATIENCE_SECONDS, FakeLearner
from tests.learner.serving.wire import Stream, opening, refused, step

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

HOSTILE = "<img src=x onerror='window.pwned = 1'><script>window.pwned = 1</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        why = "no Chromium here: Debian's package is `chromium`"
        # Where all tests have to have run, one that did not is no success.
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    expect.set_options(timeout=1000 * PATIENCE_SECONDS)
    # Chromium's sandbox refuses to work for root, as whom containers run tests.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


class Window:
    """A browser's page on the status of a made-up run, in which real clients take part."""

    def __init__(self, page: Page, address: str) -> None:
        self.now = 0.0
        self.page = page
        self.console: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.console.append(str(error)))
        self.learner = FakeLearner(address)
        self.problems = Problems()
        self.status = Status(
            env="CartPole-v1",
            agent="ppo",
            interval_seconds=2.0,
            sessions=lambda: self.learner.server.sessions(),
            problems=self.problems,
            clock=lambda: self.now,
        )
        self.http = self.serve("127.0.0.1:0")

    def serve(self, address: str) -> HttpServer:
        routes = {"/": status_page, "/status.json": self.status.response}
        server = HttpServer(address, routes, on_failure=lambda error: self.console.append(str(error)))
        server.start()
        return server

    def open(self) -> None:
        self.page.goto(f"http://127.0.0.1:{self.http.port}/")

    def show(self) -> None:
        """Report an interval of training."""
        self.now += 2.0
        report = Report(
            env_steps=12_345,
            total_steps=50_000,
            seconds=10.0,
            steps_per_second=1234.5,
            episodes=250,
            mean_return_100=187.25,
            policy_version=96,
            policy_lag=1.5,
            batch_mean=20.5,
            batch_max=32,
            actors=1,
            environments=2,
            training_busy=0.8,
            queue_depth=3,
            queue_capacity=8,
            evaluation=200.0,
            training={"loss": 0.125},
        )
        self.status.show(
            report,
            {
                "queue/depth": 3,
                "queue/capacity": 8,
                "checkpoints/saved": 1,
                "checkpoints/age_seconds": 0.0,
            },
        )

    def train(self) -> None:
        """Be in the middle of training."""
        curve = LearningCurve()
        for episode in range(250):
            curve.add(50 * episode, 0.0, float(episode))
        results = [Evaluation(10_000, 8.0, 80, 5, 200.0, 1.0, 150.0, 250.0)]
        self.status.follow(curve.snapshot, lambda: results)
        self.status.enter("training")
        self.show()

    def _note(self, message: ConsoleMessage) -> None:
        self.console.append(f"{message.type}: {message.text}")


@contextmanager
def opened(browser: Browser, folder: Path, width: int = 1100, scheme: str = "light") -> Iterator[Window]:
    viewport = {"width": width, "height": 900}
    context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
    window = Window(context.new_page(), f"unix:{folder}/learner.sock")
    with window.learner, window.problems.attached(logging.getLogger()):
        yield window
        context.close()
        window.http.close()


@pytest.fixture
def window(browser: Browser, tmp_path: Path) -> Iterator[Window]:
    """Wide and light, and without a word on the browser's console at the end."""
    with opened(browser, tmp_path) as window:
        yield window
        assert window.console == []


def row(window: Window, table: str, text: str) -> list[str]:
    """The cells of the row with `text` in it."""
    line = window.page.locator(f"#{table} tr").filter(has_text=text)
    expect(line).to_have_count(1)
    return line.locator("td").all_inner_texts()


def test_a_person_sees_the_run(window: Window) -> None:
    with Stream(window.learner.address) as stream:
        stream.open(2, client="pod-7", client_version="0.1.0")
        window.train()
        stream.act(step(1, 10, 11, flags=pb.FIRST))
        window.show()
        refused(window.learner.address, opening(num_environments=0))
        window.open()
        page = window.page
        expect(page).to_have_title("CartPole-v1, ppo - seedbed")
        expect(page.get_by_role("status")).to_contain_text("training")
        expect(page.get_by_role("alert")).to_have_text("")
        expect(page.locator("#verdict")).to_have_text(
            "learner-bound: training busy 80 %, inference batch 20 of 32"
        )
        tiles = page.locator("#tiles").inner_text()
        for text in ("1,235", "12,345", "of 50,000, 25 %", "187", "of the last 100 of 250", "0.125"):
            assert text in tiles
        picture = page.get_by_role("img", name=re.compile("^Return over environment steps: from "))
        assert len((picture.locator("polyline.mean").get_attribute("points") or "").split()) == 125
        expect(picture.locator("circle")).to_have_count(1)
        assert row(window, "queue-rows", "Unrolls waiting")[2] == "3 of 8"
        assert row(window, "actor-rows", "pod-7") == ["pod-7", "1", "2", "0.1.0", "training"]
        assert row(window, "evaluation-rows", "10,000") == ["10,000", "200", "150", "250", "5"]
        assert row(window, "problem-rows", "expected at least 1, found 0")[1:3] == ["warning", "1"]


def test_what_clients_say_is_text(window: Window) -> None:
    with Stream(window.learner.address) as stream:
        stream.open(2, client=HOSTILE, client_version="<b onclick=alert(1)>1</b>")
        window.train()
        refused(window.learner.address, opening(client=HOSTILE, spec=None))
        window.open()
        name, _, _, version, _ = row(window, "actor-rows", "onerror")
        assert (name, version) == (HOSTILE, "<b onclick=alert(1)>1</b>")
        assert HOSTILE in row(window, "problem-rows", "observation spec")[3]
        assert window.page.evaluate("window.pwned") is None
        assert window.page.locator("img").count() == 0
        assert window.page.locator("script").count() == 1


def test_the_policy_lets_no_other_script_run(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as window:
        window.open()
        expect(window.page.get_by_role("status")).to_contain_text("starting")
        window.page.evaluate("text => { document.body.innerHTML = text; }", HOSTILE)
        window.page.evaluate(
            "() => { const script = document.createElement('script');"
            " script.textContent = 'window.pwned = 1'; document.body.append(script); }"
        )
        window.page.evaluate("() => fetch('data:,x').catch(() => null)")
        assert window.page.evaluate("window.pwned") is None
        assert len([line for line in window.console if "Content Security Policy" in line]) >= 3


def test_before_training_the_page_says_what_is_waited_for(window: Window) -> None:
    window.status.enter("building the agent")
    window.open()
    expect(window.page.get_by_role("status")).to_contain_text("building the agent")
    expect(window.page.get_by_text("None connected.")).to_be_visible()
    expect(window.page.get_by_text("No episode has ended yet.")).to_be_visible()


def test_a_learner_that_cannot_be_reached_is_said_until_it_can(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as window:
        window.train()
        window.open()
        alarm = window.page.get_by_role("alert")
        expect(window.page.locator("#verdict")).not_to_be_empty()
        window.http.close()
        expect(alarm).to_contain_text("The learner cannot be reached since")
        expect(window.page.locator("#verdict")).not_to_be_empty()
        again = window.serve(f"127.0.0.1:{window.http.port}")
        expect(alarm).to_have_text("")
        again.close()


def test_a_learner_that_reports_nothing_is_said(window: Window) -> None:
    window.train()
    window.now += 100.0
    window.open()
    expect(window.page.get_by_role("alert")).to_contain_text("has reported nothing for more than 16 s")


def test_a_dark_telephone_shows_all_without_scrolling_sideways(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, width=320, scheme="dark") as window:
        with Stream(window.learner.address) as stream:
            stream.open(2, client="x" * 200, client_version="y" * 100)
            window.train()
            window.open()
            row(window, "actor-rows", "xxx")
        page = window.page
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
        # The one thing that may be wider than the window can be scrolled by keys.
        page.keyboard.press("Tab")
        expect(page.get_by_role("group", name="Table of actors")).to_be_focused()
        assert window.console == []
