"""Tests of exit codes and run folders: wrong input writes nothing, and no run is ever overwritten."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import pytest
from one_process import ONE_PROCESS
from run_cases import files_of

import labrl
from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.errors import WRONG_INPUT, InputError
from labrl.trial.train import high_rates, ignores_precision

QUICK = ["agent=random", "env.max_frame=64", "meta.progress=false", "meta.tensorboard=false", "seed=1"]


pytestmark = pytest.mark.usefixtures("own_folder")


def files() -> list[Path]:
    return [path for path in Path("runs").rglob("*") if path.is_file()]


def test_sessions_that_do_not_fit_into_memory_are_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check memory before starting: a thousand processes once made the system kill those of other users."""
    monkeypatch.setattr("labrl.trial.create.memory_available", lambda: 1 << 30)
    assert main(["meta.max_session=7", *QUICK]) == WRONG_INPUT
    output = capsys.readouterr().err
    assert "meta.max_session" in output
    assert re.search(r"\b6\b", output)
    assert files() == []
    assert main(["meta.max_session=1", *QUICK]) == 0


def test_hydra_full_error_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main(["env=ponk"]) == WRONG_INPUT
    output = capsys.readouterr().err
    assert "Traceback" in output
    assert "env=pong?" in output
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


def test_run_folder_is_named_by_time_agent_env_and_unique_suffix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    assert main(QUICK) == 0
    output = capsys.readouterr().out
    folders = list(Path("runs").iterdir())
    assert len(folders) == 2, "two runs that began in the same second share a folder"
    for folder in folders:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d{6}_random_cartpole_[0-9a-f]{6}", folder.name)
        assert not (folder / ".hydra").exists()
        assert not list(folder.glob("*.log"))
        assert f"run folder: {folder.resolve()}" in output
    before = files_of(folders[0])
    assert main([*QUICK, f"hydra.run.dir={folders[0]}"]) == WRONG_INPUT, "a run was overwritten"
    assert files_of(folders[0]) == before


@pytest.mark.parametrize("existing", ["config.yaml", "session_0/train.csv"])
def test_existing_files_are_not_overwritten(existing: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("project", existing)
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    assert main([*QUICK, "hydra.run.dir=project"]) == WRONG_INPUT
    output = capsys.readouterr().err
    assert str(Path("project").resolve()) in output
    assert existing.split("/")[0] in output
    assert [path for path in Path("project").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "precious"


def test_output_folder_that_cannot_be_created_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("in the way")
    assert main([*QUICK, "hydra.run.dir=file/run"]) == WRONG_INPUT
    output = capsys.readouterr().err
    assert str(Path("file").resolve()) in output
    assert "hydra.run.dir=<folder>" in output


@pytest.mark.extended
def test_other_trials_run_when_one_is_rejected_and_worst_exit_code_wins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Whether a network suits the observations is checked when its trial begins, so the others still run.
    small = ["env.max_frame=128", "agent.learning_starts=64", "agent.batch_size=32"]
    networks = ["agent=dqn", "agent/network=nature_cnn,mlp", ONE_PROCESS]
    assert main(["-m", *QUICK[1:], *small, *networks]) == WRONG_INPUT
    (experiment,) = Path("runs").iterdir()
    assert "_experiment_" in experiment.name
    assert [folder.name for folder in experiment.iterdir() if folder.is_dir()] == ["1_dqn_cartpole"]
    assert "nature_cnn" in capsys.readouterr().err


ERRORS: list[BaseException | None] = []


def calls_back() -> gym.Env:
    """Make an environment. The first time, train in another thread, and keep the error of each call."""
    if not ERRORS:
        for call, overrides in ((labrl.train, QUICK), (labrl.sweep, [*QUICK[:-1], "seed=1,2"])):
            with ThreadPoolExecutor(1) as other:
                ERRORS.append(other.submit(call, overrides).exception())
    return gym.make("CartPole-v1")


def test_second_thread_that_trains_is_refused_before_writing_files() -> None:
    ERRORS.clear()
    own = ["env=gymnasium", "env.id=null", "env.name=own", f"env.make={{_target_: {__name__}.calls_back}}"]
    assert labrl.train([*QUICK, *own, "hydra.run.dir=runs/first"]).exit_code == 0
    for error, caller in zip(ERRORS, ("labrl.train", "labrl.sweep"), strict=True):
        assert isinstance(error, InputError)
        assert (error.code, error.key) == ("usage", caller)
    assert [path.name for path in Path("runs").iterdir()] == ["first"]
    with ThreadPoolExecutor(1) as other:
        assert other.submit(labrl.train, [*QUICK, "hydra.run.dir=runs/second"]).result().exit_code == 0


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ("agent.lr=1", set()),
        ("agent.lr=linear:0:2", {"agent.lr"}),
        ("agent=sac env=pendulum agent.critic_lr=1.5", {"agent.critic_lr"}),
        ("agent=random", set()),
    ],
)
def test_learning_rate_above_1_is_known(overrides: str, keys: set[str]) -> None:
    assert set(high_rates(resolve(compose(overrides.split())).agent)) == keys


@pytest.mark.parametrize(
    ("overrides", "ignored"),
    [
        ("agent=ppo env=cartpole", True),
        ("agent=random env=pong", True),
        ("agent=dqn env=pong", False),
        ("agent=random agent._target_=own_parts.Refuses", False),  # may use it in its own way
    ],
)
def test_precision_that_nothing_uses_is_known(overrides: str, ignored: bool) -> None:
    assert ignores_precision(resolve(compose([*overrides.split(), "meta.precision=bf16"]))) == ignored
    assert not ignores_precision(resolve(compose(overrides.split())))


def test_start_warns_of_a_learning_rate_above_1_and_a_precision_that_nothing_uses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["agent.horizon=8", "agent.batch_size=64", "env.num_envs=8", "agent.network.torso.mlp.hidden=[8]"]
    assert main([*QUICK[1:], "agent.lr=100", "meta.precision=bf16", *small]) == 0
    first = "".join(capsys.readouterr().out.splitlines()[:2])
    assert "agent.lr" in first
    assert "meta.precision=bf16" in first
