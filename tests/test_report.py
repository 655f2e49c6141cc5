"""`report.html` is one file that says what came out, what to keep in mind and where it comes from."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_cases import write_experiment, write_long_run
from run_cases import config_with, rising, rows_of, write_run, write_session

from labrl.analysis.charts import Axis, Chart, Line, View, kept
from labrl.analysis.colours import Style
from labrl.analysis.report.build import build
from labrl.analysis.report.page import SMALL_VIDEO
from labrl.analysis.runs import load_experiment, load_run
from labrl.analysis.statistics import trial_statistics
from labrl.errors import InputError
from labrl.storage.atomic import write_json
from labrl.storage.lock import FolderLock
from labrl.storage.run_folder import RunFolder

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


class Page(HTMLParser):
    """The text, the elements and the data of a report."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)
        data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', self.source)
        assert data is not None
        self.charts = json.loads(data[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = [tag]

    def handle_endtag(self, tag: str) -> None:
        self._inside = []

    def handle_data(self, data: str) -> None:
        if self._inside not in (["script"], ["style"]):
            self.words.append(data)

    def table(self, section: str) -> list[list[str]]:
        """The cells of the first table of a section, as text."""
        body = re.search(rf'<section id="{section}">.*?<tbody>(.*?)</tbody>', self.source, re.DOTALL)
        assert body is not None
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body[1], re.DOTALL)
        return [
            [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
            for row in rows
        ]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def report_of(path: Path) -> Page:
    return Page(build(path).path)


def test_the_report_of_a_trial_says_what_it_reached_and_how_sure_that_is(tmp_path: Path) -> None:
    runs = [rising(100, noise=1), rising(110, noise=2), rising(120, noise=3)]
    page = report_of(write_run(tmp_path / "a", runs, created="2026-11-21T16:25:18+00:00"))
    told = r"\b1[01]\d(\.\d)? \(\D*\b3\b\D*95 %\D*[\d.]+\D+1[12]\d"
    assert re.search(told, page.text)
    assert "2026-11-21 16:25 UTC" in page.text
    assert {"Curves", "Seeds", "Statistics", "Configuration", "Origin"} <= set(page.words)
    statistics = json.loads((tmp_path / "a" / "statistics.json").read_text())
    assert statistics["counted"] == 3
    assert statistics["warnings"]
    assert not [warning for warning in statistics["warnings"] if warning not in page.text]
    (chart,) = (chart for chart in page.charts if chart["title"] == "Return")
    assert [line["name"] for line in chart["lines"]] == [*(f"session {i}" for i in range(3)), "mean of 3"]
    assert list(chart["axes"]) == ["frame", "wall"]
    assert chart["lines"][0]["views"]["frame"]["x"] == list(range(100, 1001, 100))


def test_a_return_that_still_rises_at_the_end_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    up, level = ([50.0 + slope * step for step in range(20)] for slope in (1.0, 0.0))
    rising_run, level_run = (
        write_run(tmp_path / name, [rows_of(list(range(50, 1050, 50)), values)])
        for name, values in (("up", up), ("level", level))
    )
    assert build(rising_run).verdict.count(".") > build(level_run).verdict.count(".")


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    built = build(write_run(tmp_path / "a", [rising(100)]))
    assert "95 %" not in built.verdict
    assert "95 %" in build(write_run(tmp_path / "b", [rising(100), rising(110), rising(120)])).verdict
    text = Page(built.path).text
    assert not [warning for warning in built.statistics["warnings"] if warning not in text]


def test_nothing_in_a_report_is_fetched(tmp_path: Path) -> None:
    page = report_of(write_run(tmp_path / "a", [rising(100)]))
    for tag, attributes in page.elements:
        for name in ("src", "href"):
            address = attributes.get(name) or ""
            assert not re.match(r"(https?:)?//", address), f"<{tag} {name}={address}>"
    assert "default-src 'none'" in page.source
    assert "@import" not in page.source
    assert not re.search(r"url\((?!#)", page.source)


def test_names_and_overrides_that_hold_html_are_shown_as_text(tmp_path: Path) -> None:
    config = config_with(env__name=EVIL, agent__lr=EVIL)
    path = write_long_run(tmp_path / "a", sessions=1, rows=10, agent=EVIL, typed=[f"agent.lr={EVIL}"])
    run = RunFolder.open(path)
    run.config.write_text(json.dumps(config))  # YAML too
    write_json(run.changed, [{"key": EVIL, "default": EVIL, "value": [EVIL]}])
    write_session(run, 1, rows_of([100], [1.0]), "failed", error=EVIL)
    page = report_of(path)
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert len(scripts) == 2, "the data and the report's own"
    assert "img" not in {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert EVIL in page.text.replace("  ", " ")
    write_experiment(tmp_path, [("a", {"error": EVIL})], command=[EVIL], overrides=[EVIL])
    assert len([tag for tag, _ in report_of(tmp_path).elements if tag == "script"]) == 2


def test_a_failed_session_is_named_with_its_error_and_the_others_are_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(100), rising(120)], status="failed")
    write_session(RunFolder.open(path), 2, rising(5)[:2], "failed", error="NonFiniteError: loss_value is nan")
    page = report_of(path)
    assert "1 of 3" in page.text
    assert "session 2" in page.text
    assert "NonFiniteError: loss_value is nan" in page.text
    (left_out,) = json.loads((path / "statistics.json").read_text())["left_out"]
    assert left_out["session"] == 2
    assert left_out["reason"] in page.text
    assert ("tr", {"class": "marked"}) in page.elements


def test_values_that_are_not_finite_are_gaps_and_warned_of(tmp_path: Path) -> None:
    rows = rows_of([100, 200, 300], [1.0, 2.0, 3.0], loss=[float("inf"), float("nan"), 0.5])
    page = report_of(write_run(tmp_path / "a", [rows]))
    (chart,) = (chart for chart in page.charts if chart["title"] == "Loss")
    assert chart["lines"][0]["views"]["frame"]["y"] == [None, None, 0.5]
    warnings = json.loads((tmp_path / "a" / "statistics.json").read_text())["warnings"]
    assert any("loss" in text for text in warnings)
    assert not [warning for warning in warnings if warning not in page.text]


def test_a_run_that_goes_on_is_marked_as_such_and_a_killed_one_too(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(100)], status="running", session_status=None)
    with FolderLock(path):
        going_on = report_of(path)
    assert ("span", {"class": "status warn"}) in going_on.elements
    assert "running" in going_on.words
    assert "100 % of its 1,000 frames" in going_on.text
    killed = report_of(path)
    assert "killed" in killed.words


def test_a_run_without_a_row_has_a_report_all_the_same(tmp_path: Path) -> None:
    built = build(write_run(tmp_path / "a", [[]]))
    assert built.verdict
    assert built.verdict in Page(built.path).text


def test_the_configuration_says_what_differs_from_the_defaults(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(100)])
    assert "0.0003" not in report_of(path).text
    write_json(RunFolder.open(path).changed, [{"key": "agent.lr", "default": 3e-4, "value": 1e-3}])
    page = report_of(path)
    assert "agent.lr 0.001 0.0003" in page.text
    assert "labrl seed=1" in page.text


def test_a_run_that_was_broken_off_is_told_by_the_frames_it_reached_not_by_its_last_row(
    tmp_path: Path,
) -> None:
    path = write_run(tmp_path / "a", [], status="interrupted", config=config_with(env__max_frame=300_000))
    rows = rows_of([20_000, 40_000], [1.0, 2.0])
    rows = [{**row, "env_frames": 4 * row["frame"]} for row in rows]
    write_session(RunFolder.open(path), 0, rows, "interrupted", frame=48_640, wall=500.0)
    page = report_of(path)
    assert "interrupted at 16 % of its 300,000 frames" in page.text
    assert "Frames 48,640 194,560 emulator frames Training time 8 min 20 s" in page.text
    killed = write_run(tmp_path / "b", [rows], status="running", session_status=None)
    write_json(killed / "session_0" / "progress.json", {"frame": 41_000, "wall": "of a damaged file"})
    (session,) = trial_statistics(load_run(killed))["sessions"]
    assert (session["frames"], session["wall"]) == (41_000, 400)


def test_a_session_is_left_out_by_its_rows_and_told_by_what_it_reached(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(10)], status="interrupted")
    for index, frame in ((1, 450), (2, 950)):
        write_session(RunFolder.open(path), index, rising(10, frames=400), "interrupted", frame=frame)
    reasons = [entry["reason"] for entry in trial_statistics(load_run(path))["left_out"]]
    assert [re.findall(r"[\d,]+", reason) for reason in reasons] == [["450", "1,000"], ["400", "1,000"]]


def test_a_word_that_was_typed_again_at_a_resume_is_shown_once(tmp_path: Path) -> None:
    typed = ["env.max_frame=300000", "agent.lr=0.1", "agent.lr=0.2", "env.max_frame=300000"]
    page = report_of(write_long_run(tmp_path / "a", sessions=1, rows=10, typed=typed))
    assert "labrl agent.lr=0.1 agent.lr=0.2 env.max_frame=300000" in page.text
    assert page.text.count("env.max_frame=300000") == 1


def test_each_resume_is_told_with_what_was_changed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(100)])
    entry = {
        "time": "2026-11-20T10:00:00+00:00",
        "frames": {"0": 500},
        "changed": [{"key": "env.max_frame", "then": 500, "now": 1000}],
        "forced": False,
        "differs": ["torch 2.12 -> 2.13"],
        "command": ["labrl", "+resume=a", "env.max_frame=1000"],
    }
    run = RunFolder.open(path)
    run.set_status("finished", resumes=[entry])
    text = report_of(path).text
    assert "2026-11-20 10:00 UTC 500 env.max_frame: 500 → 1000 torch 2.12 -> 2.13" in text
    assert "labrl +resume=a env.max_frame=1000" in text


def test_an_experiment_shows_what_was_typed_at_first_and_at_each_resume(tmp_path: Path) -> None:
    write_long_run(tmp_path / "0_ppo", sessions=1, rows=10)
    resume = {"time": "2026-11-20T10:00:00+00:00", "command": ["labrl", "-m", "+resume=latest", "seed=0,1,2"]}
    write_experiment(tmp_path, [("0_ppo", {})], command=["labrl", "-m", "seed=0,1"], resumes=[resume])
    text = report_of(tmp_path).text
    assert text.index("labrl -m seed=0,1") < text.index(
        "2026-11-20 10:00 UTC labrl -m +resume=latest seed=0,1,2"
    )


def test_small_videos_are_embedded_and_large_ones_linked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(100)])
    videos = path / "session_0" / "videos"
    videos.mkdir()
    (videos / "best.mp4").write_bytes(b"small")
    (videos / "last #1.mp4").write_bytes(bytes(SMALL_VIDEO + 1))
    page = report_of(path)
    (video,) = (attributes for tag, attributes in page.elements if tag == "video")
    assert str(video["src"]).startswith("data:video/mp4;base64,c21hbGw")
    assert ("a", {"href": "session_0/videos/last%20%231.mp4"}) in page.elements


def test_an_experiment_ranks_its_groups_and_links_its_trials(tmp_path: Path) -> None:
    trials = []
    for index, (agent, to) in enumerate([("ppo", 100), ("ppo", 104), ("dqn", 50), ("dqn", 52)]):
        config = config_with(agent___target_=f"labrl.{agent}", seed=index)
        path = write_run(tmp_path / str(index), [rising(to, noise=index)], config=config, agent=agent)
        (path / "report.html").write_text("")
        trials.append((str(index), {}))
    page = report_of(
        write_experiment(tmp_path, [*trials, ("4", {"status": "failed"}), ("5", {"status": "waiting"})])
    )
    told = page.text
    assert told.index("ppo has a final return") < told.index("dqn with") < told.index("1.00")
    (entry,) = json.loads((tmp_path / "statistics.json").read_text())["envs"]
    assert entry["best"] is None, "two seeds against two cannot tell"
    assert ("a", {"href": "2/report.html"}) in page.elements
    (warning,) = load_experiment(tmp_path).warnings
    assert re.findall(r"\d+", warning) == ["4"], "trial 5 has not begun"
    assert warning in page.text
    (chart,) = (chart for chart in page.charts if chart["title"] == "Return")
    centers = {line["name"]: line["colour"] for line in chart["lines"] if line["role"] == "center"}
    assert centers == {"ppo": "#0072B2", "dqn": "#D55E00"}
    assert len([line for line in chart["lines"] if line["role"] == "seed"]) == 4


def test_environments_are_compared_one_by_one(tmp_path: Path) -> None:
    for env in ("cartpole", "acrobot"):
        write_run(tmp_path / env, [rising(100)], config=config_with(env__name=env))
    page = report_of(tmp_path)
    (warning,) = json.loads((tmp_path / "statistics.json").read_text())["warnings"]
    assert warning in page.text
    assert {"Curves on cartpole", "Curves on acrobot"} <= set(page.words)
    assert len({path.stem for path in (tmp_path / "plots").glob("scores_*.svg")}) == 2


def test_a_warning_says_of_which_environment_it_is(tmp_path: Path) -> None:
    for env, seeds in (("cartpole", 3), ("acrobot", 2)):
        config = config_with(env__name=env)
        write_run(tmp_path / env, [rising(100 + seed) for seed in range(seeds)], config=config)
    warnings = build(tmp_path).warnings
    few = [warning for warning in warnings if re.search(r"\b[23] seeds\b", warning)]
    assert [warning.split(",")[0] for warning in few] == ["cartpole", "acrobot"]


def test_long_curves_keep_their_spikes_and_gaps_and_a_report_stays_small(tmp_path: Path) -> None:
    values = np.sin(np.arange(50_000) / 5000)
    values[[17, 31_000]] = 50, -50
    values[40_000] = np.nan
    index = kept(values, 500)
    assert len(index) <= 3 * 250 + 2
    assert {0, 17, 31_000, 40_000, 49_999} <= set(index.tolist())
    assert (np.diff(index) > 0).all()
    view = View(values, values, values - 1, values + 1)
    chart = Chart("", {"x": Axis("x")}, [Line("a", "a", Style("#000000"), {"x": view})])
    (line,) = chart.spec(500)["lines"]
    assert {len(array) for array in line["views"]["x"].values()} == {len(index)}
    path = write_long_run(tmp_path / "a", sessions=4, rows=2000)
    build(path)
    assert (path / "report.html").stat().st_size < 2_000_000


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [rising(100)])
    path.chmod(0o500)
    with pytest.raises(InputError) as refused:
        build(path)
    assert (refused.value.code, refused.value.key) == ("usage", str(path))


def test_trials_of_the_same_name_in_two_experiments_have_each_its_own_numbers(tmp_path: Path) -> None:
    for experiment, to in (("one", 500), ("two", 20)):
        config = config_with(agent__lr=to)
        write_run(tmp_path / experiment / "0_ppo_cartpole", [rising(to)], config=config)
    page = report_of(tmp_path)
    assert [row[5] for row in page.table("trials")] == ["500", "20"]


def test_an_experiment_is_told_the_same_wherever_its_report_lies(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for index in range(2):
        write_run(home / str(index), [rising(100, noise=index)], config=config_with(seed=index))
    write_experiment(home, [(str(index), {}) for index in range(2)])
    here, there = report_of(home), Page(build(home, tmp_path / "away").path)
    assert here.text == there.text.replace(str(tmp_path / "away"), str(home))
