"""Figures are legible files of one look: the same bytes for the same run, the same colour for an agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from report_cases import write_long_run
from run_cases import config_with, rising, rows_of, write_run

from labrl.analysis.comparison import compare
from labrl.analysis.groups import grouped
from labrl.analysis.plots.colours import DASHES, GREY, PALETTE, Style, agent_style, group_styles, mixed
from labrl.analysis.plots.comparison import MOST_NAMED, named
from labrl.analysis.plots.figures import (
    COLUMN,
    DPI,
    ShortNumbers,
    draw_line,
    new_figure,
    short_number,
    styled,
    widen,
)
from labrl.analysis.plots.trial import draw_group, plot_trial
from labrl.analysis.report.build import build_comparison
from labrl.analysis.report.comparison import Comparison
from labrl.analysis.runs import find_runs, load_run
from labrl.analysis.series import Curve, middle, moving_average, time_unit
from labrl.config.folder import config_folder

AGENTS = ("ppo", "dqn", "sac", "rainbow", "a2c", "td3", "reinforce", "double_dqn", "c51", "random")


def test_an_agent_has_one_style_everywhere_and_no_two_share_it() -> None:
    agents = [file.stem for file in (config_folder() / "agent").glob("*.yaml")]
    styles = {agent: agent_style(agent) for agent in agents}
    assert len(set(styles.values())) == len(styles) > 20
    assert agent_style("random").colour == GREY
    assert agent_style("mine") == agent_style("mine")
    assert group_styles(["sac", "ppo"]) == [agent_style("sac"), agent_style("ppo")]


def test_groups_of_one_agent_are_told_apart_and_keep_its_hue_beside_others() -> None:
    alone = group_styles(["ppo"] * 20)
    assert alone[0] == agent_style("ppo")
    assert len(set(alone)) == 20
    both = group_styles(["ppo", "dqn", "ppo", "ppo", "ppo", "ppo", "dqn"])
    assert len(set(both)) == 7


def test_agents_of_one_hue_and_groups_of_several_agents_are_told_apart() -> None:
    """Three groups by `agent.lr` got the same blue."""
    one_hue = ["reinforce", "ppo", "sarsa", "ppo", "ppo", "ppo", "reinforce", "reinforce"]
    for agents in (one_hue, ["several", "ppo", "several", "dqn"], [f"mine {k}" for k in range(8)]):
        assert len({style.colour for style in group_styles(agents)}) == len(agents), "marks have no dash"
    assert group_styles(["reinforce", "ppo"])[1] == agent_style("ppo"), "whatever the order"
    assert group_styles(["several", "ppo"])[0].colour not in (GREY, agent_style("ppo").colour)
    assert len(set(group_styles(["ppo"] * 60))) == 60


def test_a_group_of_one_short_seed_has_its_dash_too() -> None:
    with styled():
        _, (axes,) = new_figure(COLUMN, 2)
        for agent in ("ppo", "reinforce", "sarsa"):
            draw_group(axes, [Curve(np.arange(5.0), np.arange(5.0))], agent_style(agent), agent, 1)
        assert len({str(line.get_linestyle()) + str(line._dash_pattern) for line in axes.lines}) == 3


def test_of_many_groups_the_best_share_out_the_styles_and_the_others_are_grey(tmp_path: Path) -> None:
    for index in range(30):
        rows = [rising(10 + index * 7 % 30)]
        write_run(tmp_path / "runs" / f"{index:02}", rows, config=config_with(agent__lr=1e-5 * (index + 1)))
    groups = grouped(find_runs([tmp_path / "runs"]))
    compared = Comparison("", groups, compare(groups), tmp_path).compared("cartpole")
    styles = {id(one): one.style for one in named(compared)}
    assert len(set(styles.values())) == MOST_NAMED
    assert {one.style for one in compared if id(one) not in styles} == {Style(GREY)}


def test_colours_stand_out_on_white_and_on_black_paper() -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    for colour in (*PALETTE, GREY):
        assert 1.05 / (luminance(colour) + 0.05) > 2
        assert (luminance(mixed(colour, 0.28)) + 0.05) / 0.055 > 3, "as the dark report lifts it"
    assert len(DASHES) == len(set(DASHES))


def test_a_trial_has_figures_over_frames_and_wall_time_and_one_for_each_session(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run", [rising(10, noise=1), rising(20, noise=2)]))
    written = plot_trial(run, tmp_path / "plots")
    names = {"return_frame", "return_wall", "session_0", "session_1"}
    assert {path.name for path in written} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    image = Image.open(tmp_path / "plots" / "return_frame.png")
    assert image.size[0] == round(COLUMN * DPI), "a column's width at the resolution of print"
    assert len(set(image.convert("L").tobytes())) > 10
    text = (tmp_path / "plots" / "return_frame.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for word in ("frames", "return", "cartpole", "ppo, mean of 2 seeds"):
        assert word in text, "letters stay letters"
    panels = (tmp_path / "plots" / "session_1.svg").read_text()
    assert "frames/s" in panels
    assert "session 1" in panels


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run", [rising(10)]))
    first, second = (plot_trial(run, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_session_has_a_panel_for_whatever_its_agent_reports(tmp_path: Path) -> None:
    run = load_run(write_long_run(tmp_path / "run", sessions=1, rows=60))
    plot_trial(run, tmp_path / "plots")
    text = (tmp_path / "plots" / "session_0.svg").read_text()
    for panel in ("return", "episode length", "policy loss", "entropy", "learning rate", "gradient norm"):
        assert f">{panel}<" in text


@pytest.mark.parametrize(
    "rows",
    [[], rows_of([100], [float("nan")]), rows_of([100, 200, 300], [1.0, float("inf"), 3.0])],
    ids=["no rows", "no return", "infinite"],
)
def test_a_session_with_little_or_nothing_to_show_is_no_error(rows: list[dict], tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run", [rows, rising(5)]))
    assert plot_trial(run, tmp_path / "plots")
    empty = load_run(write_run(tmp_path / "empty", [[]]))
    assert plot_trial(empty, tmp_path / "none") == []


def test_names_are_shown_as_they_are_whatever_they_hold(tmp_path: Path) -> None:
    config = config_with(env__name="a$b_{c}<d>&")
    run = load_run(write_run(tmp_path / "run", [rising(5)], config=config))
    plot_trial(run, tmp_path / "plots")
    text = (tmp_path / "plots" / "return_frame.svg").read_text()
    assert "a$b_{c}&lt;d&gt;&amp;" in text


def test_an_experiment_has_curves_scores_profile_and_each_measure_by_setting(tmp_path: Path) -> None:
    for index, lr in enumerate((1e-4, 1e-3, 1e-2)):
        for seed in range(2):
            config = config_with(agent__lr=lr, seed=seed)
            rows = [rising(10 + index, noise=10 * seed + index)]
            write_run(tmp_path / "runs" / f"{index}_{seed}", rows, config=config)
    build_comparison(find_runs([tmp_path / "runs"]), tmp_path / "out")
    plots = {path.name for path in (tmp_path / "out" / "plots").iterdir()}
    names = ("return_frame", "return_wall", "scores", "profile", "measures_agent.lr")
    assert plots == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert "lr=0.001" in (tmp_path / "out" / "plots" / "scores.svg").read_text()


def drawn(axes: Axes) -> list[tuple[str, str]]:
    """The marker and the line of all that has a value."""
    lines = [line for line in axes.lines if len(line.get_xdata())]
    return [(str(line.get_marker()), line.get_linestyle()) for line in lines]


def test_a_curve_of_one_value_is_a_mark_in_the_middle(tmp_path: Path) -> None:
    """The figures of a run with a single row were empty."""
    one = Curve(np.array([4096.0]), np.array([20.0]))
    with styled():
        _, (axes,) = new_figure(COLUMN, 2)
        draw_group(axes, [one], agent_style("ppo"), "ppo", 1)
        assert drawn(axes) == [("o", "None")], "no line in the legend either"
        widen(axes)
        assert axes.get_xlim() == (0, 8192)
        draw_group(axes, [one, Curve(one.x, one.y + 1)], agent_style("dqn"), "dqn", 1)
        assert drawn(axes)[-1] == ("o", "None")
        assert len(axes.collections) > 1, "the interval is a bar"
        gaps = Curve(np.arange(6.0), np.array([1, np.nan, 2, 3, np.nan, 4]))
        draw_line(axes, gaps, agent_style("ppo"))
        assert axes.lines[-1].get_markevery() == [0, 5]
        assert drawn(axes)[-1] == ("o", "-")
    for rows in (rows_of([4096], [20.0]), rising(9)):
        run = load_run(write_run(tmp_path / str(len(rows)), [rows, rising(5)]))
        plot_trial(run, tmp_path / "plots" / str(len(rows)))
    panels = [tmp_path / "plots" / str(rows) / "session_1.png" for rows in (1, 10)]
    assert panels[0].read_bytes() == panels[1].read_bytes(), "the sheet after a widened one is as any other"
    ticks = (tmp_path / "plots" / "1" / "session_0.svg").read_text()
    assert ">5k<" in ticks
    assert ">4.2k<" not in ticks


def test_the_middle_of_curves_begins_where_half_of_them_have_begun() -> None:
    """A group's curve began where one seed began."""
    curves = [Curve(np.arange(first, 11.0), np.arange(first, 11.0)) for first in (1, 4, 5, 6)]
    together = middle(curves)
    assert together is not None
    assert (together.x[0], together.x[-1]) == (4, 10)
    assert together.band.count.min() == 2
    apart = middle([Curve(np.arange(1.0, 4), np.ones(3)), Curve(np.arange(7.0, 10), np.ones(3))])
    assert apart is not None
    assert np.isfinite(apart.band.value).all()


def test_the_middle_of_curves_ends_where_half_of_them_have_ended() -> None:
    long, short = np.arange(1.0, 11), np.arange(1.0, 6)
    curves = [Curve(long, long), Curve(long, long + 2), Curve(short, short)]
    together = middle(curves)
    assert together is not None
    assert (together.x[0], together.x[-1]) == (1, 10)
    assert together.band.value[-1] == pytest.approx(11)
    few = middle([curves[0], Curve(short, short), Curve(short, short + 1)])
    assert few is not None
    assert few.x[-1] == 5


def test_a_moving_average_looks_back_only_and_passes_over_gaps() -> None:
    values = np.array([1.0, 3.0, np.nan, 5.0])
    assert moving_average(values, 2).tolist() == [1.0, 2.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("seconds", "unit"), [(50, "seconds"), (500, "minutes"), (9000, "hours"), (5e5, "days")]
)
def test_wall_time_is_told_in_a_unit_that_suits_it(seconds: float, unit: str) -> None:
    assert time_unit(seconds)[0] == unit


@pytest.mark.parametrize(("value", "text"), [(2e6, "2M"), (2500, "2.5k"), (0.05, "0.05"), (-20, "-20")])
def test_ticks_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


def test_ticks_have_the_digits_that_tell_them_apart() -> None:
    labels = ShortNumbers().format_ticks
    assert labels([1.7912, 1.7914, 1.7916]) == ["1.7912", "1.7914", "1.7916"]
    assert labels([1_000_010, 1_000_020]) == ["1.00001M", "1.00002M"]
    assert labels([0, 0.5, 500_000]) == ["0", "0.5", "500k"]


def test_figures_need_no_display_and_leave_a_users_settings_alone() -> None:
    program = (
        "import sys, matplotlib\n"
        "matplotlib.rcParams['font.size'] = 31\n"
        "import labrl.analysis.report.build\n"
        "from labrl.analysis.plots.figures import styled\n"
        "with styled():\n"
        "    assert matplotlib.rcParams['font.size'] == 8\n"
        "assert matplotlib.rcParams['font.size'] == 31\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
