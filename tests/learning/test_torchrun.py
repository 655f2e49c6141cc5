"""Tests of one session trained by several ranks of torchrun: equal updates, one record, and exact resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import run_ranks
from exact_cases import differences, newest_checkpoint, rows, small, unequal
from refusals import refused

from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.run.checkpoint import CheckpointStore
from labrl.session.torchrun import Launch, refuse_torchrun
from labrl.trial.create import check

pytestmark = pytest.mark.extended

RANK_0 = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def torchrun(*overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "labrl", *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def saved_once(run: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start training with two ranks in the folder `run`, and return after its first checkpoint."""
    process = torchrun(*overrides, f"hydra.run.dir={run}")
    while process.poll() is None and not newest_checkpoint(run):
        time.sleep(0.05)
    return process


def states_of_ranks(folder: Path) -> list[Any]:
    """Return the states of all ranks but the first from the newest checkpoint."""
    checkpoint = CheckpointStore(folder / "session_0" / "checkpoints", keep_last=1).latest()
    assert checkpoint is not None
    return checkpoint.state["ranks"]


def test_ranks_average_gradients_and_detect_weights_that_differ() -> None:
    for code, output in run_ranks(module="ranks_program"):
        assert code == 0, output
        assert "the ranks work as one" in output


def test_two_ranks_train_one_session_and_write_one_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    overrides = [*small("ppo", "cartpole"), "meta.report=false"]
    ended = run_ranks(*overrides, "env.max_frame=1200", f"hydra.run.dir={run}")
    assert [code for code, _ in ended] == [0, 0], ended
    # Gloo prints that the ranks are connected in older versions of torch.
    printed = [line for line in ended[1][1].splitlines() if not line.startswith("[Gloo] ")]
    assert not printed, "a rank other than the first printed something"
    info = json.loads((run / "run.json").read_text())
    assert (info["status"], info["ranks"]) == ("finished", 2)
    assert [path.name for path in run.glob("session_*")] == ["session_0"]
    session = run / "session_0"
    table = rows(session / "train.csv")
    assert [int(row["frame"]) for row in table] == [*range(200, 1201, 200)]
    assert [int(row["opt_step"]) for row in table][-1] == 1200 // 128 * 8
    checkpoint = CheckpointStore(session / "checkpoints", keep_last=1).latest()
    assert checkpoint is not None
    own, (other,) = checkpoint.state, checkpoint.state["ranks"]
    assert unequal(own["agent"]["network"], other["agent"]["network"]) == []
    assert unequal(own["env"]["observation"], other["env"]["observation"])
    played = own["env"]["episode"].sum() + other["env"]["episode"].sum()
    assert int(played) == int(table[-1]["episode"]), "episodes of some rank are not counted"

    assert main([f"+resume={run}", "env.max_frame=2400", "+force=true"]) == 2
    assert {str(run), "torchrun"} <= set(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("overrides", "ranks", "key", "remedy"),
    [
        (["meta.distributed=shared", "meta.max_session=2"], 2, "meta.distributed", "torchrun"),
        (["meta.max_session=3"], 2, "meta.max_session", "torchrun"),
        (["agent=dqn", "meta/async_unroll=on"], 2, "meta.async_unroll", "torchrun"),
        (["env.num_envs=6"], 4, "env.num_envs", "env.num_envs=4"),
        (["env.num_envs=6", "agent.batch_size=64"], 3, "agent.batch_size", "agent.batch_size=63"),
        (["agent=dqn", "env.num_envs=6", "agent.batch_size=66"], 3, "agent.memory.capacity", "3"),
        (["agent=reinforce"], 2, "agent", "agent=ppo"),
        (["agent=sil_ppo"], 2, "agent.self_imitation", "agent"),
    ],
)
def test_session_that_ranks_cannot_train_together_is_refused(
    overrides: list[str], ranks: int, key: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {**RANK_0, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as error:
        check(resolve(compose(["env=cartpole", *overrides])))
    assert error.value.key == key
    assert remedy in str(error.value)
    with refused("contradiction", "-m"):
        refuse_torchrun("-m")


def test_process_without_torchrun_is_not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Launch.here() is None
    monkeypatch.setenv("WORLD_SIZE", "4")  # some clusters set it for every process
    assert Launch.here() is None


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "a2c", "sarsa", "pqn", "dqn", "td3", "sac", "tqc"])
def test_run_of_torchrun_stopped_and_resumed_equals_an_uninterrupted_one(agent: str, tmp_path: Path) -> None:
    env = "pendulum" if agent in ("td3", "tqc") else "cartpole"
    overrides = [*small(agent, env), "meta.report=false", "env.num_envs=4"]
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    assert torchrun(*overrides, f"hydra.run.dir={uninterrupted}").wait(300) == 0
    process = saved_once(resumed, *overrides)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert "torchrun --nproc-per-node 2 -m labrl" in output, output
    assert torchrun(f"+resume={resumed}").wait(300) == 0
    assert differences(uninterrupted, resumed) == []
    assert unequal(states_of_ranks(uninterrupted), states_of_ranks(resumed)) == []
    assert main([f"+enjoy={resumed}", "episodes=1", "videos=0"]) == 0, "the checkpoint cannot be played"


@pytest.mark.slow
def test_ranks_save_and_end_when_torchrun_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [*small("ppo", "cartpole"), "meta.report=false", "env.max_frame=1e7"]
    process = saved_once(run, *overrides)
    process.kill()
    for _ in range(600):
        if json.loads((run / "run.json").read_text())["status"] != "running":
            break
        time.sleep(0.1)
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_death_of_a_rank_ends_the_run_with_an_error(tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [*small("ppo", "cartpole"), "meta.report=false", "env.max_frame=1e6"]
    process = saved_once(run, *overrides)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {_environment(int(pid)).get("RANK"): int(pid) for pid in children}
    os.kill(ranks["1"], signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "failed"
    assert info["sessions"][0]["error"] in output


def _environment(pid: int) -> dict[str, str]:
    """Return the environment variables of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
        return dict(one.split("=", 1) for one in pairs if "=" in one)
    return {}
