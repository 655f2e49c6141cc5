"""Tests of failing environments: errors before a run name the key, errors in a run fail the session."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path

import broken_env
import pytest
from refusals import refused

import labrl
from labrl.errors import Code

pytestmark = pytest.mark.extended

OVERRIDES = ["env=gymnasium", "env.id=null", "env.name=broken", "env.num_envs=1", "env.max_frame=128"]
OVERRIDES += ["+env.make._target_=broken_env.Broken", "agent.horizon=64", "agent.batch_size=64"]
OVERRIDES += ["preset=none", "meta=dev", "meta.max_session=1", "meta.progress=false", "wandb=disabled"]
OVERRIDES += ["env.fresh_env_per_episode=false"]


def place(line: str) -> str:
    """Return the place of the line of the broken environment that begins with `line`, as in messages."""
    lines = inspect.getsource(broken_env).splitlines()
    (number,) = (at for at, one in enumerate(lines, start=1) if one.strip().startswith(line))
    return f"broken_env.py:{number}"


@pytest.mark.parametrize(
    ("how", "code", "key", "named"),
    [
        ("make", "target", "env.make", ["broken_env.Broken", "OSError: no licence"]),
        ("close", "environment", "env.make", ["broken_env.Broken", "OSError: already closed"]),
        ("empty", "unsupported", "env", ["Box("]),
    ],
)
def test_error_before_the_run_is_an_input_error(
    how: str, code: Code, key: str, named: list[str], tmp_path: Path
) -> None:
    with refused(code, key, *named):
        labrl.train([*OVERRIDES, f"+env.make.how={how}", f"hydra.run.dir={tmp_path / 'run'}"])


def test_error_before_the_run_names_the_line_of_ones_own_code(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, "env.fresh_env_per_episode=null", f"hydra.run.dir={tmp_path / 'run'}"]
    named = "JSONDecodeError", place("json.loads"), "HYDRA_FULL_ERROR=1"
    with refused("environment", "env.make", *named):
        labrl.train([*overrides, "+env.make.how=unreadable"])


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("exit", ["SystemExit: 4", "step 10 ", "environment 0"]),
        ("asserts", ["AssertionError", "broken_env.py", "assert self._steps < 20"]),
        ("varies", ["put_", "meta.deterministic=false", "meta.device=cpu"]),
        ("not_a_number", ["broken", "environment 0", "nan", "step 10"]),
    ],
)
def test_error_during_the_run_fails_the_session(
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
    assert not recwarn.list, "there are warnings beside the error"
    text = (result.folder / "run.json").read_text()
    assert (
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not valid JSON"))["status"]
        == "failed"
    )


def test_error_in_close_is_logged_and_the_run_finishes(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, "+env.make.how=close", "env.fresh_env_per_episode=null"]
    result = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 0
    assert "OSError: already closed" in (result.folder / "session_0" / "session.log").read_text()


def test_train_raises_trial_error_with_raise_on_failure(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, "+env.make.how=exit", f"hydra.run.dir={tmp_path / 'run'}"]
    with pytest.raises(labrl.TrialError) as raised:
        labrl.train(overrides, raise_on_failure=True)
    result = pickle.loads(pickle.dumps(raised.value)).result
    assert (result.folder, result.exit_code) == (tmp_path / "run", 1)


def test_nan_observation_is_logged_with_environment_and_step(tmp_path: Path) -> None:
    result = labrl.train([*OVERRIDES, "+env.make.how=blind", f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 1
    log = (result.folder / "session_0" / "session.log").read_text()
    lines = [line for line in log.splitlines() if "environment 0" in line and "step 7" in line]
    assert len(lines) == 1, "the observation was not reported exactly once"
    assert "broken" in lines[0]
    assert "nan" in lines[0]
    assert "warning" in (result.sessions[0].error or "")


def test_diverging_loss_fails_the_session_without_numpy_warnings(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    huge = ["transforms/reward=scale", "transforms.reward.scale=1e30"]
    result = labrl.train([*OVERRIDES, "+env.make.how=never", *huge, f"hydra.run.dir={tmp_path / 'run'}"])
    assert "loss_value" in (result.sessions[0].error or "")
    assert "warning" not in (result.sessions[0].error or ""), "it refers to a warning that was not given"
    assert not recwarn.list, "NumPy warned of an overflow beside labrl's error"


def test_first_line_of_an_error_in_a_worker_names_the_place_with_its_traceback_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = [*OVERRIDES, "+env.make.how=gives_up", "env.vectorization=async"]
    result = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    error, *others = (result.sessions[0].error or "").splitlines()
    assert others == ["  after all"]
    assert error.startswith("ArithmeticError: the simulator gave up")
    for word in (place("raise ArithmeticError"), "step 10", "environment 0", "env.restarts=3"):
        assert word in error
    assert "Traceback" not in capfd.readouterr().err
    log = (result.folder / "session_0" / "session.log").read_text()
    assert 'raise ArithmeticError("the simulator gave up' in log, "the log lacks the worker's traceback"
