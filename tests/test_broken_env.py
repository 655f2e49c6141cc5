"""An environment that breaks is told as such, with its key or its session, and never in silence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from refusals import refused

import labrl
from labrl.errors import Code

OVERRIDES = ["env=gymnasium", "env.id=null", "env.name=broken", "env.num_envs=1", "env.max_frame=128"]
OVERRIDES += ["+env.make._target_=broken_env.Broken", "agent.horizon=64", "agent.batch_size=64"]
OVERRIDES += ["preset=none", "meta=dev", "meta.max_session=1", "meta.progress=false", "wandb=disabled"]
OVERRIDES += ["env.fresh_env_per_episode=false"]


@pytest.mark.parametrize(
    ("how", "code", "key", "named"),
    [
        ("make", "target", "env.make", ["broken_env.Broken", "OSError: no licence"]),
        ("close", "environment", "env.make", ["broken_env.Broken", "OSError: already closed"]),
        ("empty", "unsupported", "env", ["Box("]),
        ("idle", "unsupported", "env", ["env.name=broken", "Box("]),
        ("nameless", "unsupported", "env", ["Dict(''"]),
    ],
)
def test_what_shows_before_a_run_is_wrong_input(
    how: str, code: Code, key: str, named: list[str], tmp_path: Path
) -> None:
    with refused(code, key, *named):
        labrl.train([*OVERRIDES, f"+env.make.how={how}", f"hydra.run.dir={tmp_path / 'run'}"])


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("exit", ["SystemExit: 4"]),
        ("asserts", ["AssertionError", "broken_env.py", "assert self._steps < 20"]),
        ("not_a_number", ["broken", "environment 0", "nan", "step 10"]),
        ("infinite", ["inf"]),
        ("too_large", ["-1e+39", "step 10"]),
    ],
)
def test_what_shows_in_a_run_fails_the_session(
    how: str,
    named: list[str],
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = labrl.train([*OVERRIDES, f"+env.make.how={how}", f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 1
    assert all(name in (result.sessions[0].error or "") for name in named)
    assert result.error == f"session 0 failed: {result.sessions[0].error}"
    assert result.error in capsys.readouterr().out.splitlines()
    assert result.error in repr(result).splitlines()[0]
    assert not recwarn.list, "numpy has nothing to add"
    text = (result.folder / "run.json").read_text()
    assert (
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["status"] == "failed"
    )


def test_a_close_that_fails_is_told_and_does_no_harm(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, "+env.make.how=close", "env.fresh_env_per_episode=null"]
    result = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 0
    assert "OSError: already closed" in (result.folder / "session_0" / "session.log").read_text()


def test_a_script_may_ask_for_an_exception_where_the_trial_fails(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, "+env.make.how=exit", f"hydra.run.dir={tmp_path / 'run'}"]
    with pytest.raises(labrl.TrialError) as raised:
        labrl.train(overrides, raise_on_failure=True)
    result = pickle.loads(pickle.dumps(raised.value)).result
    assert (result.folder, result.exit_code) == (tmp_path / "run", 1)


def test_an_environment_that_cannot_be_made_once_more_fails_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broken_env.Broken.made", 0)
    overrides = [*OVERRIDES, "+env.make.how=wears_out", "env.fresh_env_per_episode=true"]
    result = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 1
    error = result.sessions[0].error or ""
    assert "env.make" in error
    assert "OSError: no licence" in error


def test_an_observation_that_is_no_number_is_told_where_it_came_from(tmp_path: Path) -> None:
    result = labrl.train([*OVERRIDES, "+env.make.how=blind", f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 1
    log = (result.folder / "session_0" / "session.log").read_text()
    said = [line for line in log.splitlines() if "environment 0" in line and "step 7" in line]
    assert len(said) == 1, "once, and before the learner fails"
    assert "broken" in said[0]
    assert "nan" in said[0]


def test_numbers_that_grow_beyond_all_bounds_are_told_by_labrl_alone(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    huge = "transforms.reward={_target_: labrl.agents.transforms.ScaleReward, scale: 1e30}"
    result = labrl.train([*OVERRIDES, "+env.make.how=never", huge, f"hydra.run.dir={tmp_path / 'run'}"])
    assert "loss_value" in (result.sessions[0].error or "")
    assert not recwarn.list, "numpy's remark on an overflow names a line of labrl, and no way out"


def test_an_error_in_a_worker_is_one_line_and_its_traceback_is_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = [
        *OVERRIDES,
        "+env.make.how=gives_up",
        "env.vectorization=async",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    result = labrl.train(overrides)
    assert result.sessions[0].error == "ArithmeticError: the simulator gave up"
    assert "Traceback" not in capfd.readouterr().err
    log = (result.folder / "session_0" / "session.log").read_text()
    assert 'raise ArithmeticError("the simulator gave up")' in log, "where it came from"
