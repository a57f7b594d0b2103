"""The live page in a real browser: Debian's Chromium, driven by Playwright.

With ROLLART_SCREENSHOTS=DIR it writes the pictures of the documentation there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from rollart_hpc.observe.metrics import MetricsLog
from rollart_hpc.rundir import RunDir
from rollart_hpc.serve.server import Server
from tests.serve.scene import make_run, recorder, serving, write_play

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or importlib.util.find_spec("playwright") is None,
        reason="Chromium or playwright is not installed: the live page is not tested in a browser (.ci/install dev)",
    ),
]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE_MS = 60_000.0
WIDE, PHONE = {"width": 1240, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "quickstart-1", steps=16, created_s=time.time() - 4000)
    make_run(tmp_path / "runs" / "quickstart-2", steps=24, created_s=time.time() - 600)
    return tmp_path / "runs"


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    with serving(root) as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """It must ask no other server, and no page may have an error."""
    page = opened(browser, color_scheme="light", viewport=WIDE)
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(server.url)
    yield page
    page.context.close()
    assert asked and all(url.startswith((server.url, "data:")) for url in asked), asked
    assert not errors


def opened(browser: Browser, **settings: object) -> Page:
    page = browser.new_context(**settings).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    return page


def picture(page: Page, name: str) -> None:
    directory = os.environ.get("ROLLART_SCREENSHOTS")
    if directory:
        hide = "document.querySelectorAll('.sub').forEach(p => p.textContent = p.textContent.split(' · /')[0])"
        page.evaluate(hide)  # the path of the test's directory
        page.screenshot(path=Path(directory) / f"{name}.png")


def test_a_failed_trajectory_in_three_clicks(page: Page) -> None:
    page.get_by_role("link", name="quickstart-2").click()
    picture(page, "live")
    page.get_by_role("link", name="Trajectories").click()
    page.locator("tr", has_text="failed").nth(1).get_by_role("link").click()
    page.locator("h1", has_text="a1.g23.m").wait_for()
    assert page.locator("header .badge").inner_text() == "failed"
    assert page.locator(".beside section").count() == 4
    token = page.locator(".tok").nth(3)
    colours = set()
    for way in ("log-prob", "version", "advantage"):
        page.get_by_label(way).check()
        colours.add(token.evaluate("element => getComputedStyle(element).backgroundColor"))
    assert len(colours) == 3
    token.hover()
    assert "log-prob -6.000" in page.locator("#tip").inner_text()
    page.mouse.move(0, 0)
    page.get_by_label("log-prob").check()
    picture(page, "live-trajectory")


def test_the_page_follows_the_run(page: Page, root: Path) -> None:
    run = RunDir(root / "quickstart-2")
    page.get_by_role("link", name="quickstart-2").click()
    page.locator("#pulse", has_text="live").wait_for()
    page.locator("summary", has_text="Resolved configuration").click()
    status = msgspec.json.decode(run.status.read_bytes())
    run.status.write_bytes(msgspec.json.encode({**status, "state": "running", "step": 24, "steps": 30}))
    log = MetricsLog(run.metrics)
    log.validation(
        {"version": 29, "task": "a new task", "plays": 2, "success": 0.5, "reward": 0.5, "versions": [29, 29]}
    )
    log.close()
    page.locator(".progress", has_text="24 of 30 steps").wait_for()
    page.locator("section", has_text="a new task").first.wait_for()
    assert page.locator("details", has_text="Resolved configuration").get_attribute("open") is not None
    plays = recorder(run, "reward-7-new")
    page.get_by_role("link", name="Trajectories").click()
    page.locator("#pulse", has_text="live").wait_for()
    write_play(plays, "a1.g777.m0", 0.0, 25)
    plays.close()
    run.status.write_bytes(msgspec.json.encode({**status, "step": 25}))
    page.get_by_role("link", name="a1.g777.m0").wait_for()


def test_two_runs_compared(page: Page) -> None:
    for name in ("quickstart-1", "quickstart-2"):
        page.get_by_label(f"compare {name}").check()
    page.get_by_role("button", name="Compare").click()
    page.locator("h2", has_text="Paired validations").wait_for()
    assert page.locator(".legend", has_text="quickstart-1").first.is_visible()
    picture(page, "live-comparison")


def test_filters_and_keys(page: Page, server: Server) -> None:
    page.goto(server.url + "run/quickstart-2/plays")
    page.keyboard.press("/")
    page.keyboard.press("c")  # chooses the task that begins with it
    page.get_by_label("Outcome").select_option("failed")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**task=countdown**")
    assert page.locator("td a").all_inner_texts() == ["a1.v24.countdown.0"]
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("h1", has_text="a1.v24.countdown.0").wait_for()
    page.keyboard.press("h")
    page.locator("h1", has_text="Runs").wait_for()


def test_phone_and_dark(browser: Browser, server: Server) -> None:
    page = opened(browser, viewport=PHONE, color_scheme="dark", has_touch=True)
    for path in ("", "run/quickstart-2/", "run/quickstart-2/plays", "run/quickstart-2/play/a1.g2.m1",
                 "run/quickstart-2/logs", "compare?run=quickstart-1&run=quickstart-2"):  # fmt: skip
        page.goto(server.url + path)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"], path
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == "rgb(16, 20, 27)"
    page.goto(server.url + "run/quickstart-2/")
    picture(page, "live-phone")
    page.context.close()
