"""Tests of the report in a browser: layout, dark theme, interaction, and printing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import chromium, opened, texts
from PIL import Image
from playwright.sync_api import Browser, Locator, Page
from report_cases import write_long_run
from run_cases import config_with, rising, rows_of, write_run, write_session

from labrl.analysis.report.build import build
from labrl.run.atomic import write_json
from labrl.run.run import Run

pytestmark = pytest.mark.extended

HTML = "</script><img src=x onerror=\"document.title='hit'\">'\""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a trial with three sessions, one of them failed, whose names contain HTML."""
    path = write_long_run(
        tmp_path_factory.mktemp("trial") / "run", sessions=2, rows=300, env__name=f"pong {HTML}"
    )
    run = Run.open(path)
    write_session(run, 2, rows_of([100, 200], [1.0, float("nan")]), "failed", error=HTML)
    write_json(run.changed_json, [{"key": "agent.lr", "default": 1, "value": HTML}])
    return build(path).path


def curves(page: Page, name: str) -> int:
    """Return the number of charts that show a curve with this name."""
    labels = page.locator("figure .plot").evaluate_all("all => all.map(one => one.ariaLabel)")
    return sum(name in label.partition(": ")[2].split("; ") for label in labels)


def colored(figure: Locator) -> tuple[int, int]:
    """Return the height and the width in pixels of what has a color in a chart, unlike its axes."""
    content = figure.locator(".plot").screenshot()
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    has_color = np.ptp(pixels, axis=2) > 25
    return int(has_color.any(axis=1).sum()), int(has_color.any(axis=0).sum())


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_report_has_no_errors_and_fits_any_width(
    browser: Browser, trial: Path, scheme: str, width: int
) -> None:
    with opened(browser, trial, scheme, width) as window:
        page = window.page
        assert curves(page, "session 0") > 5
        assert page.evaluate("window.segments") > 1000
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.title() != "hit"
        assert page.locator("img").count() == 0
        assert HTML in page.inner_text("h1")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert window.errors == []


def test_run_with_one_row_has_visible_points_and_distinct_ticks(browser: Browser, tmp_path: Path) -> None:
    """Regression test: a single row was drawn as one pixel, with five ticks that were all `-3e-9`."""
    rows = rows_of([4096], [20.0], loss=[-3e-9])
    path = write_run(tmp_path / "run", [rows, rows_of([4096], [30.0], loss=[-3e-9]), rows])
    with opened(browser, build(path).path) as window:
        for figure in window.page.locator("figure").all():
            assert "0" in texts(figure), "the axis of a single point must start at 0"
            levels = texts(figure, "right")
            assert len(levels) == len(set(levels)) > 1
            assert min(colored(figure)) >= 4
        height, width = colored(window.page.locator("figure").first)
        assert width >= 8, "the interval of a single point must be a bar"
        assert height > 100
    assert window.errors == []


def test_charts_zoom_together_and_buttons_change_axes_and_theme(browser: Browser, trial: Path) -> None:
    with opened(browser, trial) as window:
        page = window.page
        figure, plot = page.locator("figure").first, page.locator("figure .plot").first
        before = texts(figure)
        box = plot.bounding_box()
        assert box is not None
        y = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.4, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
        page.mouse.up()
        assert "10M" in before
        assert "10M" not in texts(figure)
        assert page.get_by_role("button", name="reset zoom").count() > 5
        page.mouse.dblclick(box["x"] + box["width"] / 2, y)
        assert texts(figure) == before
        plot.hover()
        tooltip = page.locator(".tip").first.inner_text()
        for word in ("frames", "session 0", "session 1"):
            assert word in tooltip
        page.get_by_role("button", name="wall time").click()
        assert "wall time (hours)" in texts(figure)
        log = page.get_by_role("button", name="log").first
        log.click()
        assert log.get_attribute("aria-pressed") == "true"
        backgrounds = []
        for theme in ("Dark", "Light"):
            page.get_by_role("button", name=theme).click()
            backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert backgrounds[0] != backgrounds[1] == "rgb(255, 255, 255)"
    assert window.errors == []
    assert window.requests == [trial.as_uri()], "the report loaded something else"


def test_groups_are_hidden_with_their_seeds_and_tables_are_sortable(browser: Browser, tmp_path: Path) -> None:
    for index, agent in enumerate(("ppo", "ppo", "dqn", "dqn")):
        config = config_with(agent___target_=f"labrl.{agent}", seed=index)
        rows = rising(50 + 10 * index, noise=index, rows=40)
        write_run(tmp_path / str(index), [rows], config=config, agent=agent)
    with opened(browser, build(tmp_path).path) as window:
        page = window.page
        assert curves(page, "ppo, seed 1000") == 0
        page.get_by_role("button", name="every seed").click()
        assert curves(page, "ppo, seed 1000") == 1
        button = page.get_by_role("button", name="ppo")
        button.click()
        assert curves(page, "ppo, seed 1000") == curves(page, "ppo") == 0
        assert curves(page, "dqn") > 0
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        assert curves(page, "ppo, seed 1000") == 1
        head = page.locator("#trials th", has_text="final return")
        column = page.locator("#trials td:nth-child(6)")
        head.click()
        descending = [float(text) for text in column.all_text_contents()]
        assert descending == sorted(descending, reverse=True)
        head.click()
        assert [float(text) for text in column.all_text_contents()] == descending[::-1]
    assert window.errors == []


def test_report_prints_on_white_with_all_details_open(browser: Browser, trial: Path, tmp_path: Path) -> None:
    with opened(browser, trial, "dark") as window:
        page = window.page
        page.pdf()  # the event of printing opens the details
        page.emulate_media(media="print")
        page.screenshot(path=tmp_path / "print.png")
        assert page.locator("nav").is_hidden()
        assert page.locator("details").first.evaluate("node => node.open")
    assert window.errors == []
    image = np.asarray(Image.open(tmp_path / "print.png").convert("L"))
    assert np.median(image) > 250, "the dark theme must be printed black on white"
