"""Tests of `labrl.sweep`, of what a notebook shows of results, and of errors in a notebook."""

from __future__ import annotations

import base64
import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from one_process import ONE_PROCESS
from refusals import refused

import labrl
from labrl.analysis.report.build import build
from labrl.errors import DONE, WRONG_INPUT, Code, InputError

QUICK = [
    *("env=cartpole", "env.num_envs=1", "env.max_frame=256", ONE_PROCESS),
    *("meta.log_frequency=128", "meta.progress=false", "meta.tensorboard=false"),
]
OF_A_JOB = "hydra.launcher.trials_per_job"
PIXEL = base64.b64encode(b"\x89PNG").decode()[:5]


def sources(tag: str, page: str) -> list[str]:
    """Return the sources of the images or videos of HTML."""
    return re.findall(rf'<{tag}[^>]* src="([^"]*)"', page)


def cells(tag: str, page: str) -> list[str]:
    """Return the text of the cells of a table of HTML."""
    return re.findall(rf"<{tag}[^>]*>([^<]*)</{tag}>", page)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> labrl.SweepResult:
    """Return the result of a grid of two values and three seeds."""
    folder = tmp_path_factory.mktemp("sweep") / "grid"
    swept = ["agent=random", "env.max_episode_steps=10,20", "seed=1,2,3"]
    return labrl.sweep([*QUICK, *swept, f"hydra.sweep.dir={folder}"])


def test_result_has_every_trial_with_its_values(grid: labrl.SweepResult) -> None:
    assert grid.exit_code == DONE
    assert grid.error is None
    assert [(one["trial"], one["env.max_episode_steps"], one["seed"]) for one in grid.trials] == [
        *((number, 10, number + 1) for number in range(3)),
        *((number, 20, number - 2) for number in range(3, 6)),
    ]
    for trial in grid.trials:
        (run,) = labrl.runs(trial["folder"])
        assert (run.seed, run.config["env"]["max_episode_steps"]) == (
            trial["seed"],
            trial["env.max_episode_steps"],
        )
        assert (trial["status"], trial["frames"]) == ("finished", 256)
        assert trial["final_return"] == pytest.approx(run.sessions[0].final_values()["final_return"])


def test_result_has_the_statistics_of_the_report(grid: labrl.SweepResult, tmp_path: Path) -> None:
    build(grid.folder, tmp_path)
    assert json.loads(json.dumps(grid.statistics)) == json.loads((tmp_path / "statistics.json").read_text())
    assert [group["counted"] for group in grid.groups] == [3, 3]
    for group in grid.groups:
        mean = group["estimates"]["final_return"]["mean"]
        assert mean["low"] <= mean["value"] <= mean["high"]
        assert group["name"] in repr(grid)


def test_result_as_data_frames(grid: labrl.SweepResult) -> None:
    trials, groups = grid.to_polars(), grid.to_polars("groups")
    assert trials.schema["env.max_episode_steps"] == pl.Int64
    assert trials["seed"].to_list() == [1, 2, 3, 1, 2, 3]
    assert groups["group"].to_list() == [group["name"] for group in grid.groups]
    assert set(trials["group"]) == set(groups["group"])
    with refused("unknown-option", "rows"):
        grid.to_polars("sessions")


def test_missing_pandas_is_one_sentence_with_what_to_install(
    grid: labrl.SweepResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("not-installed", "to_pandas", "pandas", "[pandas]"):
        grid.to_pandas()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert grid.to_pandas()["seed"].tolist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.extended
def test_failed_trial_is_in_the_result_and_raised_on_request(tmp_path: Path) -> None:
    # TD3 has no discrete actions.
    swept = ["agent=random,td3", "seed=1", "env.max_frame=4000", f"hydra.sweep.dir={tmp_path / 'grid'}"]
    with pytest.raises(labrl.TrialError) as caught:
        labrl.sweep([*QUICK, *swept], raise_on_failure=True)
    result = caught.value.result
    assert result.exit_code == WRONG_INPUT
    assert [one["status"] for one in result.trials] == ["finished", "failed"]
    assert [one["agent"] for one in result.trials] == ["random", "td3"]
    assert result.trials[1]["folder"] is None
    assert "trial 1" in str(caught.value)
    assert "trial 1" in repr(result)


def test_sweep_leaves_the_caller_as_it_was(grid: labrl.SweepResult) -> None:
    before = sys.argv, sys.stdout, sys.stderr
    labrl.sweep([f"+resume={grid.folder}"])  # everything has finished
    assert (sys.argv, sys.stdout, sys.stderr) == before


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        ("seed=0,1", "usage", "labrl.sweep"),
        ([], "usage", "labrl.sweep"),
        (["env=cartpole", "seed=1"], "usage", "labrl.sweep"),
        (["+enjoy=latest"], "usage", "+enjoy"),
        (["+rerun=latest", "seed=0,1"], "contradiction", "-m"),
        (["+resume=nowhere"], "not-found", "nowhere"),
        (["pong", "seed=0,1"], "syntax", "pong"),
        (["agent.lr=-1,-2"], "range", "agent.lr"),
        (["hydra.run.dir=here", "seed=0,1"], "usage", "hydra.run.dir"),
        (["hydra/launcher=submitit_local", f"{OF_A_JOB}=0", "seed=0,1"], "range", OF_A_JOB),
        (["hydra/launcher=local", f"{OF_A_JOB}=2", "seed=0,1"], "unknown-key", OF_A_JOB),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(overrides: Any, code: Code, key: str) -> None:
    with refused(code, key):
        labrl.sweep(overrides)
    assert not list(Path().iterdir())


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(
    "call",
    [
        lambda: labrl.train(["env.max_fram=10"]),
        lambda: labrl.sweep(["agent.lr=((", "seed=0,1"]),
        lambda: labrl.load("nowhere"),
        lambda: labrl.runs("nowhere"),
    ],
)
def test_wrong_input_is_one_exception_without_frames_of_labrl(call: Callable[[], object]) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert caught.value.__suppress_context__
    files = [Path(frame.filename) for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [file for file in files if "labrl" in file.parts and file.name != "__init__.py"] == []


@pytest.mark.usefixtures("own_folder")
def test_error_of_ones_own_code_keeps_its_cause(tmp_path: Path) -> None:
    code = "class Own:\n    def __init__(self, observation_space, units):\n        raise ValueError('mine')\n"
    (tmp_path / "broken_torso.py").write_text(code)
    own = ["~agent.network.torso", "+agent.network.torso={_target_: broken_torso.Own, units: 3}"]
    with refused("target", "agent.network.torso") as caught:
        labrl.train(own)
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert traceback.extract_tb(cause.__traceback__)[-1].filename == str(tmp_path / "broken_torso.py")


def test_whole_errors_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with refused("unknown-key", "env.max_fram") as caught:
        labrl.train(["env.max_fram=10"])
    assert caught.value.__cause__ is not None


def test_notebook_shows_curve_and_groups_of_a_sweep(grid: labrl.SweepResult) -> None:
    page = grid._repr_html_()
    (image,) = sources("img", page)
    assert image.startswith(f"data:image/png;base64,{PIXEL}")
    assert {group["name"] for group in grid.groups} <= set(cells("td", page))
    assert len(cells("td", page)) == 2 * len(cells("th", page))


@pytest.mark.extended
def test_notebook_shows_curve_sessions_and_video_of_a_run(tmp_path: Path) -> None:
    overrides = [*QUICK[:3], *QUICK[4:], "meta.eval_frequency=128", "agent.horizon=32", "agent.batch_size=32"]
    result = labrl.train([*overrides, f"hydra.run.dir='{tmp_path}/a<b'"])
    video = result.folder / "session_0" / "videos" / "best_episode.mp4"
    video.parent.mkdir(exist_ok=True)
    video.write_bytes(b"film")
    policy = labrl.load(result.folder)
    for shown in (result, policy):
        page = shown._repr_html_()
        assert page is not None
        assert sources("img", page)[0].startswith(f"data:image/png;base64,{PIXEL}")
        assert sources("video", page) == [f"data:video/mp4;base64,{base64.b64encode(b'film').decode()}"]
        assert cells("td", page)[0] == "0"
        assert "a&lt;b" in page
        assert not re.search(r'(src|href)="(?!data:)', page)
    policy.close()
    result.folder.rename(tmp_path / "moved")
    assert result._repr_html_() is None  # then a notebook shows the repr
