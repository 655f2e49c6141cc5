"""Tests of asynchronous acting: an actor process plays ahead, and the learner learns from all its steps."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from exact_cases import QUIET, REPLAY, TAXI, rows
from restoring import StopAt
from trial_processes import children, needs_proc, running, wait_for

import labrl
from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.processes.worker import (
    RemoteError,
    Worker,
    WorkerError,
)
from labrl.run.checkpoint import CheckpointStore
from labrl.run.run import Run
from labrl.session import sources
from labrl.session.main import restored_session
from labrl.session.session import Session
from labrl.session.sources import Acted, ActorProcess, WeightsFile

pytestmark = pytest.mark.extended

SMALL = [*QUIET, *REPLAY, "env.num_envs=2", "env.max_frame=240", "meta.log_frequency=60"]
SMALL += ["agent.memory.capacity=400"]
SMALL += ["meta/async_unroll=on", "meta.async_unroll.queue_size=3", "meta.async_unroll.update_period=4"]
CARTPOLE = [*SMALL, "agent=dqn", "env=cartpole"]
PENDULUM = [*SMALL, "env=pendulum"]
NORMALIZED = ["transforms/observation=normalize"]


class Recording(Worker):
    """A companion that keeps all steps that it has received."""

    def __init__(self, *arguments: Any) -> None:
        self.received: list[Acted] = []
        super().__init__(*arguments)

    def receive(self) -> Any:
        message = super().receive()
        if isinstance(message, Acted):
            self.received.append(message)
        return message


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "Worker", Recording)


def play(overrides: list[str], run: Run, stop_at: int | None = None) -> Session:
    session = restored_session(resolve(compose(overrides)), 0, run.session(0), num_threads=1)
    if stop_at is not None:
        session.callbacks.insert(0, StopAt(stop_at))
    session.run()
    return session


def received(session: Session) -> list[Acted]:
    assert isinstance(session.env, ActorProcess)
    assert isinstance(session.env._worker, Recording)
    return session.env._worker.received


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize(
    "overrides",
    [
        [*CARTPOLE, *NORMALIZED, "agent/memory=prioritized", "agent.n_step=3"],
        pytest.param([*PENDULUM, "agent=crossq"], marks=pytest.mark.slow),
        [*PENDULUM, "agent=td3", "agent/noise=ornstein_uhlenbeck"],
    ],
    ids=["dqn", "crossq", "td3"],
)
def test_learner_stores_all_steps_and_keeps_its_update_ratio(overrides: list[str], tmp_path: Path) -> None:
    session = play(overrides, Run.create(tmp_path / "run"))
    assert session.clock.frame == 240
    first = max(60, 8 + 2 * session.config.agent.config.n_step)
    assert session.clock.opt_step == (240 - first) // 4
    memory = session.agent.experience.memory  # type: ignore[attr-defined]
    steps = received(session)
    assert len(steps) == 120
    stored = memory.rows
    for number, acted in enumerate(steps):
        np.testing.assert_array_equal(stored["action"][:, number], acted.decision["action"])
        np.testing.assert_array_equal(stored["terminated"][:, number], acted.step.terminated)
    table = rows(tmp_path / "run" / "session_0" / "train.csv")
    assert [row["frame"] for row in table] == ["60", "120", "180", "240"]
    assert all(float(row["step_interval"]) > 0 for row in table)
    assert all(0 <= float(row["staleness"]) <= float(row["staleness_max"]) for row in table)


@pytest.mark.usefixtures("recording")
def test_queue_size_and_update_period_bound_age_of_weights(tmp_path: Path) -> None:
    unroll = ["meta.async_unroll.queue_size=2", "meta.async_unroll.update_period=6"]
    overrides = [*CARTPOLE, "agent.updates_per_frame=2", *unroll]
    session = play(overrides, Run.create(tmp_path / "run"))
    updates = 4  # per vector step
    made = [max((2 * step - 60) * 2, 0) for step in range(120)]  # updates before the learner takes each step
    behind = [opt_step - acted.version for opt_step, acted in zip(made, received(session), strict=True)]
    assert min(behind) >= 0
    assert max(behind) <= (2 + 1) * updates + 6
    versions = sorted({acted.version for acted in received(session)})
    assert len(versions) > 10
    assert min(np.diff(versions)) >= 6


@pytest.mark.usefixtures("recording")
def test_actor_keeps_the_step_interval(tmp_path: Path) -> None:
    overrides = [*CARTPOLE, "meta.async_unroll.step_interval=0.004"]
    session = play(overrides, Run.create(tmp_path / "run"))
    ended = [acted.ended for acted in received(session)]
    assert ended[-1] - ended[0] >= 0.9 * 0.004 * 118
    assert float(rows(tmp_path / "run" / "session_0" / "train.csv")[-1]["step_interval"]) > 0.003


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("overrides", [[*CARTPOLE, *NORMALIZED], [*CARTPOLE, *TAXI]])
def test_resume_truncates_running_episodes_and_repeats_no_row(overrides: list[str], tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    overrides = [*overrides, "agent.memory.storage=mmap"]
    assert play(overrides, run, stop_at=130).interrupted
    saved = CheckpointStore(run.session(0).checkpoints, 1).latest()
    assert saved is not None
    assert saved.frame == 130
    session = play(overrides, run)
    assert session.clock.frame == 240
    assert session.clock.opt_step == (240 - 60) // 4
    first = received(session)[0].step
    assert first.truncated.all()
    assert first.episode_over.all()
    assert not first.terminated.any()
    assert not first.reward.any()
    np.testing.assert_array_equal(first.next_observation, saved.state["env"]["observation"])
    assert first.void
    assert len(session.agent.experience.memory) > 220  # type: ignore[attr-defined]
    assert [row["frame"] for row in rows(run.session(0).train_csv)] == ["60", "120", "180", "240"]


@pytest.mark.usefixtures("recording")
def test_each_resume_begins_new_episodes(tmp_path: Path) -> None:
    run, overrides = Run.create(tmp_path / "run"), [*PENDULUM, "agent=sac"]
    # No episode of Pendulum has ended at these frames.
    begun = [received(play(overrides, run, stop_at))[0].step for stop_at in (60, 120, 180)]
    assert [step.void for step in begun] == [False, True, True]
    assert not np.isin(begun[2].observation, begun[1].observation).any()


class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises an error in its 51st step, or hangs there."""

    def __init__(self, hangs: bool = False) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.hangs, self.left = hangs, 50

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            if not self.hangs:
                raise ArithmeticError("the simulator gave up")
            time.sleep(600)
        return super().step(action)


def broken(**kwargs: Any) -> list[str]:
    overrides = ["env=gymnasium", "env.id=null", "env.name=broken", "env.fresh_env_per_episode=false"]
    overrides += [f"+env.kwargs.{name}={value}" for name, value in kwargs.items()]
    return [*CARTPOLE, *overrides, "env.make={_target_: test_async_unroll.Breaks}"]


def test_failing_actor_fails_the_run_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(WorkerError) as raised:
        play(broken(), Run.create(tmp_path / "run"))
    assert raised.value.code == "lost-process"
    assert "ArithmeticError" in str(raised.value)
    assert isinstance(raised.value.__cause__, RemoteError)
    assert "env.step(action)" in str(raised.value.__cause__)


@pytest.mark.slow
def test_hanging_actor_fails_the_run_and_logs_its_stack(tmp_path: Path) -> None:
    overrides = [*broken(hangs="true"), "meta.async_unroll.timeout=2"]
    result = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 1
    assert "meta.async_unroll.timeout" in str(result.sessions[0].error)
    log = (tmp_path / "run" / "session_0" / "session.log").read_text()
    assert "in step" in log
    assert "test_async_unroll.py" in log


def actors(folder: Path, process: Any) -> list[int]:
    return children(process) if (folder / "session_0" / "progress.json").exists() else []


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("to_all", [True, False], ids=["terminal", "kill"])
def test_signal_leaves_no_orphan_and_a_run_that_can_be_resumed(
    number: signal.Signals, to_all: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    overrides = [*CARTPOLE, "env.max_frame=1e7", "meta.rigorous_eval=1", "meta.async_eval=true"]
    overrides += ["meta.eval_frequency=300"]
    with running(folder, *overrides) as process:
        wait_for(lambda: len(actors(folder, process)) == 2, process)
        pids = children(process)
        wait_for(lambda: list(folder.glob("session_0/checkpoints/frame_*")), process)
        (os.killpg if to_all else os.kill)(process.pid, number)
        output, _ = process.communicate()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -9), output
    assert "Traceback" not in output
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} still run 60 s after the signal"
        time.sleep(0.05)
    assert not (folder / "session_0" / "acting_weights.bin").exists()
    # The exit code is 2 if the run was beyond this budget already.
    assert main([f"+resume={folder}", f"env.max_frame={20 * 10**2}"]) in (0, 2)


@needs_proc
@pytest.mark.slow
def test_killed_actor_fails_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(folder, *CARTPOLE, "env.max_frame=1e7") as process:
        wait_for(lambda: actors(folder, process), process)
        os.kill(children(process)[0], signal.SIGKILL)
        output, _ = process.communicate()
    assert process.returncode == 1
    assert "meta.async_unroll" in output
    assert "SIGKILL" in output


def test_run_with_an_actor_process_is_marked_inexact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*CARTPOLE, f"hydra.run.dir={run}"]) == 0
    assert capsys.readouterr().out.count("meta.async_unroll") == 1, (
        "the output does not say exactly once that the run is inexact"
    )
    assert json.loads((run / "run.json").read_text())["inexact"] == ["meta.async_unroll"]
    assert rows(run / "session_0" / "train.csv")[-1]["opt_step"] == str((240 - 60) // 4)


def test_reader_of_weights_never_mixes_two_versions(tmp_path: Path) -> None:
    def module() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.BatchNorm1d(100))

    published, read = {"policy": module()}, {"policy": module()}
    path = tmp_path / "weights.bin"
    writer = WeightsFile(path, published, create=True)
    reader = WeightsFile(path, read)
    path.unlink()
    with torch.no_grad():
        for number in range(40):
            for tensor in published["policy"].state_dict().values():
                tensor.fill_(number)
            if number == 0:
                writer.publish(published, 0)
                publishing = threading.Thread(
                    target=lambda: [writer.publish(published, n) for n in range(100)]
                )
                publishing.start()
            else:
                publishing.join()
                writer.publish(published, number)
            version = reader.take(read)
            values = {v for t in read["policy"].state_dict().values() for v in t.float().unique().tolist()}
            assert len(values) == 1
            assert number == 0 or (version, values) == (number, {float(number)})
