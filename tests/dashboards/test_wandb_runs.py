"""Tests of whole runs with W&B: killed and resumed, without a login, without a network, and sent later."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from commands import start_labrl
from exact_cases import differences
from paced import PACED, UNPACED
from wandb_cases import API_KEY, Server, by_frame, forget_user, logs, read_log, tables

from labrl.cli import main, send_to_wandb
from labrl.errors import WRONG_INPUT
from labrl.run.run import Run

pytestmark = pytest.mark.extended

ENDLESS = ["agent=random", "env.max_frame=1e7", "meta.log_frequency=500", "meta.eval_frequency=800"]
QUIET = ["meta.progress=false", "meta.tensorboard=false", "meta.report=false", "seed=5", "wandb.wait=600"]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_user(monkeypatch, tmp_path / "home")


def test_rows_are_complete_after_a_kill_and_wandb_does_not_change_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, without = tmp_path / "run", tmp_path / "without"
    overrides = [*ENDLESS, *QUIET, PACED]
    process = start_labrl(*overrides, "wandb=offline", f"hydra.run.dir={run}", output=False)
    try:
        until = time.monotonic() + 600
        while not (reached := newest_frame_sent(run)) > 0:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    monkeypatch.setenv(UNPACED, "1")
    budget = f"env.max_frame={max(Run.open(run).session(0).checkpoint_frames()) + 2100}"
    assert main([f"+resume={run}", budget]) == 0
    (log,) = logs(run / "session_0")
    found = read_log(log)
    assert found.steps[-1] > reached
    assert by_frame(found.rows) == tables(run / "session_0")
    assert found.exit_code == 0

    assert main([*overrides, budget, "wandb=disabled", f"hydra.run.dir={without}"]) == 0
    assert differences(run, without) == []
    assert not list(without.rglob("wandb*"))


def newest_frame_sent(run: Path) -> int:
    """Return the last frame that was sent to W&B, -1 if none."""
    try:
        return max(json.loads((run / "session_0" / "wandb.json").read_text())["logs"].values(), default=-1)
    except (OSError, ValueError):
        return -1


@pytest.mark.parametrize("hangs", [False, True], ids=["no network", "hangs"])
def test_run_without_an_answer_of_the_server_finishes_and_keeps_its_log(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    run = tmp_path / "run"
    overrides = [*ENDLESS, *QUIET, "env.max_frame=2000", "wandb=online", f"hydra.run.dir={run}"]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and answers nothing
        if hangs:
            monkeypatch.setattr("labrl.dashboards.sender.GRACE_SECONDS", 0.0)
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            overrides.append("wandb.wait=5")
        else:
            monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
        assert main(overrides) == 0
    assert Run.open(run).recorded_status == "finished"
    printed = capfd.readouterr()
    assert printed.out.count("wandb.log") == 1, "not exactly one line about the missing network"
    assert f"labrl-wandb {run}" in printed.out
    assert "wandb" not in printed.err
    if not hangs:
        (log,) = logs(run / "session_0")
        assert by_frame(read_log(log).rows) == tables(run / "session_0")


def test_run_without_wandb_can_be_sent_later_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    overrides = [*ENDLESS, *QUIET, "env.max_frame=1000", "wandb=disabled", f"hydra.run.dir={run}"]
    assert main(overrides) == 0
    assert send_to_wandb([str(run)]) == WRONG_INPUT
    assert "wandb login" in capfd.readouterr().err
    with monkeypatch.context() as offline:
        offline.setenv("WANDB_API_KEY", API_KEY)
        offline.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        offline.setenv("WANDB_INIT_TIMEOUT", "1")
        assert send_to_wandb([str(run)]) == 1, "the command succeeded although no row arrived"
    capfd.readouterr()
    with Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            assert send_to_wandb([str(run), "--project", "later", "--entity", "me"]) == 0
        (name,) = server.runs
        assert by_frame(server.rows(name)) == tables(run / "session_0")
        assert server.runs[name]["project"] == "later"
    assert f"W&B: {server.environment['WANDB_BASE_URL']}/me/later/runs/" in capfd.readouterr().out


def test_online_without_a_login_is_refused_before_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["wandb=online", f"hydra.run.dir={tmp_path / 'run'}"]) == WRONG_INPUT
    message = capfd.readouterr().err
    assert "wandb.mode=online" in message
    assert "wandb=offline" in message
    assert not (tmp_path / "run").exists()
