"""Whole runs with Weights & Biases: killed, resumed, without a login, without a network; and without it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from commands import start_labrl
from exact_cases import differences
from refusals import refused
from wandb_cases import API_KEY, Server, logs, shown, tables, told

from labrl.cli import main, send_to_wandb
from labrl.dashboards.mirror import send
from labrl.errors import WRONG_INPUT
from labrl.storage.run_folder import RunFolder

ENDLESS = ["agent=random", "env.max_frame=1e7", "meta.log_frequency=500", "meta.eval_frequency=800"]
QUIET = ["meta.progress=false", "meta.tensorboard=false", "meta.report=false", "seed=5", "wandb.wait=600"]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a login, wherever the tests run."""
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "300")  # a machine may be busy
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def test_rows_are_whole_and_single_after_kill_9_and_resume_and_the_same_without_wandb(tmp_path: Path) -> None:
    run, without = tmp_path / "run", tmp_path / "without"
    overrides = [*ENDLESS, *QUIET]
    process = start_labrl(*overrides, "wandb=offline", f"hydra.run.dir={run}", output=False)
    try:
        until = time.monotonic() + 600
        while not (reached := shown_so_far(run)) > 0:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    budget = f"env.max_frame={newest(run) + 2100}"
    assert main([f"+resume={run}", budget]) == 0
    (log,) = logs(run / "session_0")
    found = told(log)
    assert found.steps[-1] > reached
    assert shown(found.rows) == tables(run / "session_0")
    assert found.exit_code == 0
    assert found.config["provenance"]["resumes"] == 1

    assert main([*overrides, budget, "wandb=disabled", f"hydra.run.dir={without}"]) == 0
    assert differences(run, without) == []
    assert not list(without.rglob("wandb*"))


def shown_so_far(run: Path) -> int:
    try:
        return max(json.loads((run / "session_0" / "wandb.json").read_text())["logs"].values(), default=-1)
    except (OSError, ValueError):
        return -1


def newest(run: Path) -> int:
    return max(int(path.name[6:]) for path in (run / "session_0" / "checkpoints").glob("frame_*"))


def test_without_a_network_the_run_ends_in_time_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    run = tmp_path / "run"
    overrides = [*ENDLESS, *QUIET, "env.max_frame=2000", "wandb=online", f"hydra.run.dir={run}"]
    assert main(overrides) == 0
    said = capfd.readouterr()
    assert said.out.count("wandb.log") == 1, "one line about the loss of the network"
    assert f"wandb sync {run}/session_*/wandb/offline-run-*" in said.out
    assert "wandb" not in said.err
    (log,) = logs(run / "session_0")
    assert shown(told(log).rows) == tables(run / "session_0")


def test_a_wait_that_is_over_ends_what_still_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labrl.dashboards.mirror.GRACE_SECONDS", 0.0)
    overrides = [*ENDLESS, *QUIET, "env.max_frame=1000", "wandb=offline", "wandb.wait=0"]
    assert main([*overrides, f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    assert str(tmp_path / "run" / "wandb.log") in capfd.readouterr().out


def test_a_run_without_wandb_is_sent_later_whole_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    overrides = [*ENDLESS, *QUIET, "env.max_frame=1000", "wandb=disabled", f"hydra.run.dir={run}"]
    assert main(overrides) == 0
    with refused("range", "--wait"):
        send(RunFolder.open(run), {"wait": -1.0}, print)
    assert send_to_wandb([str(run)]) == WRONG_INPUT
    assert "wandb login" in capfd.readouterr().err
    with monkeypatch.context() as offline:
        offline.setenv("WANDB_API_KEY", API_KEY)
        offline.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        offline.setenv("WANDB_INIT_TIMEOUT", "1")
        assert send_to_wandb([str(run)]) == 1, "not all has arrived"
    capfd.readouterr()
    with Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            assert send_to_wandb([str(run), "--project", "later", "--entity", "me"]) == 0
        (name,) = server.runs
        assert shown(server.rows(name)) == tables(run / "session_0")
        assert server.runs[name]["project"] == "later"
    assert f"W&B: {server.environment['WANDB_BASE_URL']}/me/later/runs/" in capfd.readouterr().out


def test_sending_what_is_no_run_is_wrong_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert send_to_wandb([str(tmp_path)]) == WRONG_INPUT
    assert str(tmp_path) in capfd.readouterr().err


def test_auto_without_a_login_says_in_one_line_how_to_switch_it_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = [*ENDLESS, *QUIET, "env.max_frame=1000", f"hydra.run.dir={tmp_path / 'run'}"]
    assert main(overrides) == 0
    told = [line for line in capfd.readouterr().out.splitlines() if line.startswith("W&B: ")]
    assert len(told) == 1
    assert "wandb login" in told[0]
    assert "wandb.log" not in os.listdir(tmp_path / "run")


def test_online_without_a_login_is_refused_before_anything_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["wandb=online", f"hydra.run.dir={tmp_path / 'run'}"]) == WRONG_INPUT
    said = capfd.readouterr().err
    assert "wandb.mode=online" in said
    assert "wandb=offline" in said
    assert not (tmp_path / "run").exists()
