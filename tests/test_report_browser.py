"""The report as a person has it: in a browser, on a telephone, in the dark, on paper."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import chromium, opened
from PIL import Image
from playwright.sync_api import Browser, Page
from report_cases import write_long_run
from run_cases import config_with, rising, rows_of, write_run, write_session

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colours import DASHES, Style
from labrl.analysis.report.build import build
from labrl.analysis.report.page import Charts, KeyFigure, Report, Section, render
from labrl.storage.atomic import write_json
from labrl.storage.run_folder import RunFolder

EVIL = "</script><img src=x onerror=\"document.title='hit'\">'\""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three sessions, one of which failed; its names hold HTML."""
    path = write_long_run(
        tmp_path_factory.mktemp("trial") / "run", sessions=2, rows=300, env__name=f"pong {EVIL}"
    )
    run = RunFolder.open(path)
    write_session(run, 2, rows_of([100, 200], [1.0, float("nan")]), "failed", error=EVIL)
    write_json(run.changed, [{"key": "agent.lr", "default": 1, "value": EVIL}])
    return build(path).path


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiment")
    for index, agent in enumerate(("ppo", "ppo", "dqn", "dqn")):
        config = config_with(agent___target_=f"labrl.{agent}", seed=index)
        write_run(
            folder / str(index), [rising(50 + 10 * index, noise=index, rows=40)], config=config, agent=agent
        )
    return build(folder).path


def curves(page: Page, key: str | None = None) -> int:
    """How many curves of a key are drawn, in all charts; key: None: of all."""
    chosen = "" if key is None else f'[data-key="{key}"]'
    return page.locator(f"svg .curve{chosen} .line").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_a_trial_opens_without_errors_and_fits_any_width(
    browser: Browser, trial: Path, scheme: str, width: int
) -> None:
    with opened(browser, trial, scheme, width) as window:
        assert curves(window.page, "session-0") > 5
        drawn = window.page.locator("svg .line").first.get_attribute("d")
        assert drawn is not None
        assert drawn.count("L") > 100
        assert window.page.evaluate("document.documentElement.scrollWidth") <= width
        assert window.page.title() != "hit"
        assert window.page.locator("img").count() == 0
        assert EVIL in window.page.inner_text("h1")
        paper = window.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert window.errors == []
    assert window.requests == [trial.as_uri()]


def test_a_run_of_one_row_shows_it_and_its_ticks_differ(browser: Browser, tmp_path: Path) -> None:
    """It was a speck of one pixel, over ticks from 4095.5 to 4096.5 and five times the same `-3e-9`."""
    rows = rows_of([4096], [20.0], loss=[-3e-9])
    path = write_run(tmp_path / "run", [rows, rows_of([4096], [30.0], loss=[-3e-9])])
    with opened(browser, build(path).path) as window:
        for figure in window.page.locator("figure").all():
            words = figure.locator("svg text:not(.empty)").all_text_contents()
            assert {"0", "8000"} <= set(words)
            levels = figure.locator("svg text[text-anchor=end]").all_text_contents()
            assert len(levels) == len(set(levels)) > 1
            dots = figure.locator("svg .dots").first
            assert dots.evaluate("node => node.getBBox().height") >= 5
        band = window.page.locator("figure").first.locator(".band")
        assert band.count() == 1, "the interval is a bar"
    assert window.errors == []


def test_values_that_stand_alone_differ_in_shape_where_lines_would_in_their_dash(
    browser: Browser, tmp_path: Path
) -> None:
    lines = [
        Line(str(dash), str(dash), Style("#000000", dash), {"x": View([0], [place])})
        for place, dash in enumerate(DASHES)
    ]
    sections = [Section("curves", "Curves", [Charts([Chart("Return", {"x": Axis("x")}, lines)])])]
    report = Report("A report", "", "finished", "", [KeyFigure("a", "1", "")], [], sections)
    (tmp_path / "report.html").write_text(render(report, tmp_path))
    with opened(browser, tmp_path / "report.html") as window:
        paths = window.page.locator("svg .dots").evaluate_all("nodes => nodes.map(n => n.getAttribute('d'))")
    shapes = {path[path.index("m") :] for path in paths}
    assert len(shapes) == len(DASHES)
    assert window.errors == []


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("count", [8, 9])
def test_key_figures_fill_their_rows_however_many_they_are(
    browser: Browser, tmp_path: Path, count: int, width: int
) -> None:
    """An eighth stood alone in a row of grey."""
    figures = [KeyFigure(f"Figure {index}", str(index), "of all") for index in range(count)]
    lines = [Line("a", "a", Style("#000000"), {"x": View([0, 1], [0, 1])})]
    sections = [Section("curves", "Curves", [Charts([Chart("Return", {"x": Axis("x")}, lines)])])]
    report = Report("A report", "", "finished", "", figures, [], sections)
    (tmp_path / "report.html").write_text(render(report, tmp_path))
    with opened(browser, tmp_path / "report.html", width=width) as window:
        boxes = window.page.locator(".figures > div").all()
        places = [box.bounding_box() for box in boxes]
        whole = window.page.locator(".figures").bounding_box()
        assert whole is not None
        rows: dict[float, list[float]] = {}
        for place in places:
            assert place is not None
            rows.setdefault(place["y"], []).append(place["width"])
        for widths in rows.values():
            assert sum(widths) == pytest.approx(whole["width"], abs=len(widths) + 3)
        numbers = [len(widths) for widths in rows.values()]
        if width == 1200:
            assert max(numbers) - min(numbers) <= 1, "none stands alone below a full row"


def test_a_seed_can_be_hidden_and_comes_back(browser: Browser, trial: Path) -> None:
    with opened(browser, trial) as window:
        page = window.page
        button = page.get_by_role("button", name="session 1")
        shown = curves(page, "session-1")
        assert shown > 5
        button.click()
        assert curves(page, "session-1") == 0
        assert curves(page, "session-0") > 5
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        assert curves(page, "session-1") == shown
    assert window.errors == []


def test_dragging_zooms_all_curves_and_a_double_click_shows_all_again(browser: Browser, trial: Path) -> None:
    with opened(browser, trial) as window:
        page = window.page
        ticks = "figure >> nth=0 >> svg text"
        before = page.locator(ticks).all_text_contents()
        box = page.locator("figure .plot").first.bounding_box()
        assert box is not None
        y = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.4, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
        page.mouse.up()
        zoomed = page.locator(ticks).all_text_contents()
        assert "10M" in before
        assert "10M" not in zoomed
        assert page.get_by_role("button", name="reset zoom").count() > 5
        page.mouse.dblclick(box["x"] + box["width"] / 2, y)
        assert page.locator(ticks).all_text_contents() == before
    assert window.errors == []


def test_hovering_tells_the_values_of_every_seed(browser: Browser, trial: Path) -> None:
    with opened(browser, trial) as window:
        window.page.locator("figure .plot").first.hover()
        said = window.page.locator(".tip").first.inner_text()
        for word in ("frames", "session 0", "session 1"):
            assert word in said
    assert window.errors == []


def test_wall_time_is_a_click_away_and_so_is_a_logarithmic_scale(browser: Browser, trial: Path) -> None:
    with opened(browser, trial) as window:
        page = window.page
        page.get_by_role("button", name="wall time").click()
        assert "wall time (hours)" in page.locator("figure svg").first.text_content()
        log = page.get_by_role("button", name="log").first
        log.click()
        assert log.get_attribute("aria-pressed") == "true"
    assert window.errors == []


def test_the_theme_can_be_chosen(browser: Browser, trial: Path) -> None:
    with opened(browser, trial, "light") as window:
        page = window.page
        page.get_by_role("button", name="Dark").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        page.get_by_role("button", name="Light").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert window.errors == []


def test_groups_of_an_experiment_are_hidden_with_their_seeds_and_tables_are_sorted(
    browser: Browser, experiment: Path
) -> None:
    with opened(browser, experiment) as window:
        page = window.page
        assert curves(page, "ppo 0") == 0
        page.get_by_role("button", name="every seed").click()
        assert curves(page, "ppo 0") == 1
        page.get_by_role("button", name="ppo").click()
        assert curves(page, "ppo 0") == curves(page, "ppo") == 0
        assert curves(page, "dqn") > 0
        head = page.locator("#trials th", has_text="final return")
        column = page.locator("#trials td:nth-child(6)")
        head.click()
        down = [float(text) for text in column.all_text_contents()]
        assert down == sorted(down, reverse=True)
        head.click()
        assert [float(text) for text in column.all_text_contents()] == down[::-1]
    assert window.errors == []


def test_it_prints_on_white_paper_with_its_curves_and_the_whole_configuration(
    browser: Browser, trial: Path, tmp_path: Path
) -> None:
    with opened(browser, trial, "dark") as window:
        page = window.page
        page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
        page.emulate_media(media="print")
        page.screenshot(path=tmp_path / "print.png")
        assert page.locator("nav").is_hidden()
        assert page.locator("details").first.evaluate("node => node.open")
    assert window.errors == []
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    image = np.asarray(Image.open(tmp_path / "print.png").convert("L"))
    assert np.median(image) > 250, "black on white, whatever the theme"
    if shutil.which("pdftotext"):
        done = subprocess.run(
            ["pdftotext", tmp_path / "report.pdf", "-"], capture_output=True, text=True, check=True
        )
        assert "log_frequency" in done.stdout, "what is folded away is printed"
