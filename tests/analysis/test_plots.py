"""Tests of plots: their files, curves, ticks and colors, and identical bytes for the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pdf import texts
from PIL import Image
from report_cases import report_of
from run_cases import config_with, rising, rows_of, write_run

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colors import DASHES, GRAY, PALETTE, Style, agent_style, group_styles
from labrl.analysis.figures import Sheet, save_sheets, tick_format
from labrl.analysis.report.build import build_comparison
from labrl.analysis.report.trial import trial_report
from labrl.analysis.series import middle
from labrl.analysis.statistics import trial_statistics
from labrl.config import config_folder
from labrl.run.find import find_runs, load_run


def plot_trial(path: Path, folder: Path) -> list[Path]:
    """Draw the figures of the run in `path` and return the files written to `folder`."""
    run = load_run(path)
    return save_sheets(trial_report(run, trial_statistics(run))[1], folder)


def test_each_agent_has_its_own_style() -> None:
    agents = [file.stem for file in (config_folder() / "agent").glob("*.yaml")]
    styles = {agent: agent_style(agent) for agent in agents}
    assert len(set(styles.values())) == len(styles) > 20
    assert agent_style("random").color == GRAY
    assert group_styles(["reinforce", "ppo"])[1] == agent_style("ppo"), (
        "the style of ppo depends on the order of the groups"
    )


def test_groups_have_different_styles_even_for_the_same_agent() -> None:
    """Regression test: three groups that differed in `agent.lr` were drawn in the same blue."""
    assert len(set(group_styles(["ppo"] * 60))) == 60
    styles = group_styles(["reinforce", "ppo", "sarsa", "ppo", "ppo", "ppo", "reinforce", "reinforce"])
    assert len({style.color for style in styles}) == 8, "marks do not show dashes"


def test_trial_has_figures_by_frame_by_wall_time_and_by_session(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [rising(10, noise=1), rising(20, noise=2)])
    written = plot_trial(path, tmp_path / "plots")
    names = {"return_frame", "return_wall", "session_0", "session_1"}
    assert {path.name for path in written} == {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    image = Image.open(tmp_path / "plots" / "return_frame.png")
    assert len(set(image.convert("L").tobytes())) > 10
    text = "\n".join(texts(tmp_path / "plots" / "return_frame.pdf"))
    for word in ("frames", "return", "ppo on cartpole", "mean of 2"):
        assert word in text, "the text of the PDF was turned into paths"
    written_again = plot_trial(path, tmp_path / "again")
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in written_again]


@pytest.mark.parametrize(
    "rows",
    [[], rows_of([100], [float("nan")]), rows_of([100, 200, 300], [1.0, float("inf"), 3.0])],
    ids=["no rows", "no return", "infinite"],
)
def test_session_without_finite_returns_is_plotted_without_error(rows: list[dict], tmp_path: Path) -> None:
    assert plot_trial(write_run(tmp_path / "run", [rows, rising(5)]), tmp_path / "plots")
    assert plot_trial(write_run(tmp_path / "empty", [[]]), tmp_path / "none") == []


def test_names_with_special_characters_are_shown_unchanged(tmp_path: Path) -> None:
    config = config_with(env__name="a$b_{c}<d>&")
    plot_trial(write_run(tmp_path / "run", [rising(5)], config=config), tmp_path / "plots")
    assert "ppo on a$b_{c}<d>&" in texts(tmp_path / "plots" / "return_frame.pdf")


def test_experiment_has_figures_of_curves_scores_profile_and_measures(tmp_path: Path) -> None:
    for index, lr in enumerate((1e-4, 1e-3, 1e-2)):
        for seed in range(2):
            config = config_with(agent__lr=lr, seed=seed)
            rows = [rising(10 + index, noise=10 * seed + index)]
            write_run(tmp_path / "runs" / f"{index}_{seed}", rows, config=config)
    build_comparison(find_runs([tmp_path / "runs"]), tmp_path / "out")
    plots = {path.name for path in (tmp_path / "out" / "plots").iterdir()}
    names = ("return_frame", "return_wall", "scores", "profile", "measures_agent.lr")
    assert plots == {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    assert "ppo lr=0.001" in texts(tmp_path / "out" / "plots" / "scores.pdf")


def test_curves_use_the_rows_of_train_csv_and_eval_csv(tmp_path: Path) -> None:
    """Regression test: curves ignored the additional rows of eval.csv, so a short run was a single dot."""
    path = write_run(tmp_path / "run", [rising(10)])
    (path / "session_0" / "train.csv").write_text("frame,return_mean,wall\n1000,10,10\n")
    view = report_of(path).chart("Return")["lines"][0]["views"]["frame"]
    assert view["x"] == list(range(100, 1001, 100))
    separate = write_run(tmp_path / "apart", [rising(10)], config=config_with(meta__rigorous_eval=2))
    (separate / "session_0" / "eval.csv").write_text("frame,return_mean,wall\n550,70,5.5\n")
    page = report_of(separate)
    returns = [
        page.chart(title)["lines"][0]["views"]["frame"]["y"] for title in ("Return", "Evaluation return")
    ]
    assert returns == [list(range(1, 11)), [70]], "training and evaluation returns need a chart each"


def test_curve_with_one_value_is_a_mark_in_the_middle(tmp_path: Path) -> None:
    """Regression test: the figures of a run with a single row were empty."""
    for dash in DASHES[:2]:
        view = View([4096.0], [20.0], [19.0], [21.0])
        line = Line("a", "ppo", Style(PALETTE[0], dash), {"x": view})
        chart = Chart("Return", {"x": Axis("frames")}, [line])
        save_sheets([Sheet("chart", [chart], "x", "cartpole")], tmp_path)
        image = Image.open(tmp_path / "chart.png").convert("RGB")
        mark = image.getpixel((round(0.565 * image.width), round(0.422 * image.height)))
        assert mark == tuple(bytes.fromhex(PALETTE[0][1:])), "the single value has no mark"


@pytest.mark.parametrize(
    ("spans", "ends"),
    [
        ([(1, 11), (4, 11), (5, 11), (6, 11)], (4, 10)),
        ([(1, 11), (1, 6), (1, 6)], (1, 5)),
    ],
)
def test_middle_of_curves_spans_where_half_of_the_curves_exist(
    spans: list[tuple[int, int]], ends: tuple[int, int]
) -> None:
    """Regression test: the curve of a group began before most of its seeds had values."""
    together = middle([View(range(*span), range(*span)) for span in spans])
    assert together is not None
    assert (together.x[0], together.x[-1]) == (together.y[0], together.y[-1]) == ends


def test_ticks_have_enough_digits_to_differ() -> None:
    values = [2e6, 2500, 0.05, -20, 1.7912, 1_000_010, 0.1 + 0.2]
    texts = ["2M", "2.5k", "0.05", "-20", "1.7912", "1.00001M", "0.3"]
    assert tick_format().format_ticks(values) == texts
    assert tick_format(log=True).format_ticks([-4, -3, 0]) == ["0.0001", "0.001", "1"]
