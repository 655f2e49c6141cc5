"""A headless browser for the tests of the report: the installed Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


RECORDER = """
const draw = CanvasRenderingContext2D.prototype, {fillText, clearRect} = draw, {lineTo} = Path2D.prototype;
draw.fillText = function (text, ...at) {
  (this.canvas.texts ??= []).push([text, this.textAlign]);
  return fillText.call(this, text, ...at);
};
draw.clearRect = function (...area) { this.canvas.texts = []; return clearRect.call(this, ...area); };
window.segments = 0;
Path2D.prototype.lineTo = function (...at) { window.segments++; return lineTo.call(this, ...at); };
"""
"""Script that records the texts on each canvas with their alignment, and counts the segments of curves."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the installed Chromium; skip the test where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        try:
            # Chromium's sandbox does not start for root in a container.
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"{found} does not start here: {error}")
        yield browser
        browser.close()


@dataclass
class Opened:
    """A loaded page, with its console messages and script errors, and the addresses that it requested."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Browser, path: Path, scheme: str = "light", width: int = 1200) -> Iterator[Opened]:
    """Load a file, without network, in a new window `width` pixels wide; scheme: `light` or `dark`."""
    context = browser.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": 900},
        offline=True,
    )
    context.set_default_timeout(60_000)  # milliseconds, enough for a busy machine
    context.add_init_script(RECORDER)
    page = context.new_page()
    result = Opened(page)
    page.on("console", lambda message: result.errors.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: result.errors.append(str(error)))
    page.on("request", lambda request: result.requests.append(request.url))
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("figure canvas", state="attached", timeout=60_000)
    yield result
    context.close()


def texts(figure: Locator, align: str | None = None) -> list[str]:
    """Return the texts on the canvas of a chart. align: only texts with this alignment, such as the values of
    the vertical axis (right)."""
    found = figure.locator("canvas").evaluate("canvas => canvas.texts")
    return [text for text, side in found if align in (None, side) and text]
