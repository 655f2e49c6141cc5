"""Table, figures and captions of `labrl-report --format latex,pdf,svg`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_cases import write_long_run

from labrl.cli import report
from labrl.errors import DONE, WRONG_INPUT


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three agents, of which ppo is clearly better than the others, and dqn and a2c are equal."""
    root = tmp_path_factory.mktemp("runs")
    for noise, (agent, to) in enumerate({"ppo": 20.0, "dqn": 12.0, "a2c": 12.0}.items()):
        write_long_run(root / agent, 5, 40, to, noise, agent)
    return root


def written(runs: Path, out: Path, *options: str) -> dict[str, str]:
    """Return the text of the files that the command writes, '' for pictures."""
    assert report([str(runs), "--out", str(out), *options]) == DONE
    texts = (".tex", ".md", ".csv", ".txt", ".svg")
    return {path.name: path.read_text() if path.suffix in texts else "" for path in sorted(out.iterdir())}


def test_paper_has_table_figures_and_captions(runs: Path, tmp_path: Path) -> None:
    options = ["--format", "latex,pdf,svg", "--name", "dqn=DQN (ours)", "--name", "ppo=PPO"]
    files = written(runs, tmp_path, *options)
    figures = ("profile", "return_frame", "scores")
    assert set(files) == {
        "captions.txt",
        "table.tex",
        *(f"{name}.{form}" for name in figures for form in ("pdf", "svg", "tex")),
    }
    rows = re.findall(r"& (DQN \(ours\)|PPO|a2c) & 5 & (\S.*?) &", files["table.tex"])
    assert [name for name, _ in rows] == ["DQN (ours)", "PPO", "a2c"]
    assert [value.startswith(r"\textbf{") for _, value in rows] == [False, True, False]
    assert re.findall(r">(DQN \(ours\)|PPO|a2c)<", files["return_frame.svg"]) == [name for name, _ in rows]
    for text in (files["table.tex"], files["return_frame.tex"], files["captions.txt"]):
        assert "5 seeds" in text
        assert "Student" in text
        assert "mean" in text.lower()
    assert r"95 \%" in files["table.tex"]
    assert "return_frame.pdf" in files["return_frame.tex"]


def test_digits_follow_the_width_of_the_interval(runs: Path, tmp_path: Path) -> None:
    table = written(runs, tmp_path, "--format", "latex,md")["table.md"]
    estimates = re.findall(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", table)
    assert estimates
    for texts in estimates:
        value, low, high = map(float, texts)
        decimals = {len(text.partition(".")[2]) for text in texts}
        assert len(decimals) == 1
        assert 10 <= round((high - low) / 2, decimals.pop()) * 10 ** len(texts[0].partition(".")[2]) <= 101
        assert low <= value <= high


def test_nothing_is_bold_if_the_seeds_do_not_decide(runs: Path, tmp_path: Path) -> None:
    assert report([f"{runs}/dqn", f"{runs}/a2c", "--out", str(tmp_path), "--format", "latex,csv"]) == DONE
    assert "textbf" not in (tmp_path / "table.tex").read_text()
    assert "true" not in (tmp_path / "table.csv").read_text()


def test_figures_have_title_axis_size_and_no_thin_lines(runs: Path, tmp_path: Path) -> None:
    options = ["--format", "svg", "--axis", "wall", "--size", "5x2.5"]
    thin = written(runs, tmp_path / "thin", *options, "--title", "Cart pole")
    bare = written(runs, tmp_path / "bare", *options, "--title", "", "--no-seeds")
    assert set(bare) == {"captions.txt", "profile.svg", "return_wall.svg", "scores.svg"}
    assert "360pt" in bare["return_wall.svg"]
    assert "180pt" in bare["return_wall.svg"]
    assert (">Cart pole<" in thin["return_wall.svg"], ">cartpole<" in bare["return_wall.svg"]) == (
        True,
        False,
    )
    assert len(bare["return_wall.svg"]) < 0.7 * len(thin["return_wall.svg"])
    assert len(bare["captions.txt"]) < len(thin["captions.txt"])


def test_equal_runs_give_equal_bytes(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(runs, tmp_path / name, "--format", "pdf,latex")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        assert b"/Type3" not in path.read_bytes()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--format", "latex,docx"], "docx"),
        (["--format", "latex,"], "--format"),
        (["--format", "pdf", "--name", "dqm=DQN"], "dqn"),
        (["--format", "pdf", "--name", "dqn"], "--name"),
        (["--format", "pdf", "--name", "dqn=ppo"], "ppo"),
        (["--format", "pdf", "--size", "huge"], "--size"),
        (["--format", "pdf", "--size", "0x3"], "--size"),
        (["--name", "dqn=DQN"], "--format"),
        (["--no-seeds"], "--no-seeds"),
        (["--format", "pdf", "--out", "/proc/none"], "/proc/none"),
    ],
)
def test_wrong_options_are_refused(
    runs: Path,
    options: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report([str(runs), *options]) == WRONG_INPUT
    said = capsys.readouterr()
    assert named in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
