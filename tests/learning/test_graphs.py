"""Updates as functions of fixed memory: recorded operations, repeated, give the results of the functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from exact_cases import KL, QUIET, TASKS, rows, state, unequal
from learner_cases import ADAM, Rows
from recorder import record
from torch import Tensor, nn

import labrl
from labrl.learning import graphs
from labrl.learning.compute import Compute
from labrl.learning.make import make_learner
from labrl.spaces import Spaces

pytestmark = pytest.mark.extended

SCHEDULE = "{kind: linear, start: 1e-3, end: 1e-4, horizon: 240}"
ROLLOUT = ["agent.horizon=8", "agent.batch_size=8", f"agent.lr={SCHEDULE}"]
ROLLOUTS = [*ROLLOUT, "agent.epochs=2", "agent.clip_range={kind: linear, start: 0.2, end: 0.1, horizon: 240}"]
REPLAY = [
    "agent.learning_starts=40", "agent.memory.capacity=96", "agent.batch_size=8",
    "agent.updates_per_frame=0.25",
    f"agent.lr={SCHEDULE}",
]  # fmt: skip
PONG = [*TASKS["pong"], "env.image_size=44"]
SDE = "agent.sde={steps: 3, log_std_init: -2}"
ENTROPY = "agent.entropy_coef={kind: linear, start: 0.01, end: 0.0, horizon: 120}"

CASES: dict[str, list[str]] = {
    "ppo": ["agent=ppo", *TASKS["cartpole"], *ROLLOUTS, ENTROPY],
    "ppo-clipped-values": ["agent=ppo", *TASKS["pendulum"], *ROLLOUTS, f"agent.value_clip_range={SCHEDULE}"],
    "ppo-images": ["agent=ppo", *PONG, *ROLLOUTS, ENTROPY],
    "ppo-masks": ["agent=ppo", *TASKS["taxi"], *ROLLOUTS],
    "ppo-inputs": ["agent=ppo", *TASKS["lamp"], *ROLLOUTS],
    "ppo-kl": ["agent=ppo", *TASKS["cartpole"], *ROLLOUTS, "agent.target_kl=0.1", KL],
    "ppo-values": ["agent=ppo", *TASKS["pendulum"], *ROLLOUTS, "agent.normalize_value=true"],
    "a2c-values": ["agent=a2c", *TASKS["pendulum"], "agent.normalize_value=true"],
    "ppo-beta": ["agent=ppo", *TASKS["pendulum"], *ROLLOUTS, ENTROPY, "agent.action_bounds=beta"],
    "ppo-sde": ["agent=ppo", *TASKS["pendulum"], *ROLLOUTS, ENTROPY, SDE],
    "a2c-sde": ["agent=a2c", *TASKS["pendulum"], SDE, "agent.log_std_init=null"],
    "a2c": ["agent=a2c", *TASKS["cartpole"], ENTROPY, f"agent.lr={SCHEDULE}"],
    "pqn": ["agent=pqn", *TASKS["cartpole"], *ROLLOUT, "env.num_envs=4", "agent/optimizer=adam"],
    "dqn": ["agent=dqn", *TASKS["cartpole"], *REPLAY],
    "dqn-images": ["agent=double_dqn", *PONG, *REPLAY],
    "c51": ["agent=c51", *TASKS["cartpole"], *REPLAY],
    "qr-dqn": ["agent=qr_dqn", *TASKS["cartpole"], *REPLAY],
    "rainbow": ["agent=rainbow", *TASKS["cartpole"], *REPLAY],
    "sac": ["agent=sac", *TASKS["pendulum"], *REPLAY],
    "sac-fixed": ["agent=sac", *TASKS["pendulum"], *REPLAY, f"agent.temperature={SCHEDULE}"],
    "sac-discrete": ["agent=sac", *PONG, *REPLAY],
    "sac-masks": ["agent=sac", *TASKS["taxi"], *REPLAY],
    "tqc": ["agent=tqc", *TASKS["pendulum"], *REPLAY],
    "sac-sde": ["agent=sac", *TASKS["pendulum"], *REPLAY, SDE],
    "tqc-sde": ["agent=tqc", *TASKS["pendulum"], *REPLAY, SDE],
    "td3": ["agent=td3", *TASKS["pendulum"], *REPLAY],
    "ddpg": ["agent=ddpg", *TASKS["pendulum"], *REPLAY],
}
"""One configuration of every agent whose updates are recorded, with all coefficients that may change."""


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that lets sessions record their updates with a given recorder."""
    original = Compute.choose

    def use(recorder: Any) -> None:
        monkeypatch.setattr(
            Compute,
            "choose",
            lambda *args, **more: dataclasses.replace(original(*args, **more), record=recorder),
        )

    return use


def trained(folder: Path, *overrides: str) -> tuple[Any, Any]:
    """Train, and return the rows without times and the final state."""
    result = labrl.train(
        [*overrides, *QUIET, "meta.device=cpu", "meta.precision=fp32", f"hydra.run.dir={folder}"]
    )
    assert result.exit_code == 0, result.sessions
    session = folder / "session_0"
    return rows(session / "train.csv"), state(session)


@pytest.mark.parametrize("case", CASES)
def test_recorded_updates_equal_those_of_the_functions(
    case: str, choose: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*CASES[case], "env.max_frame=240", "meta.kernels=torch", "meta.log_frequency=40"]
    recorded: list[int] = []

    def counting(function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        repeat, results = record(function)

        def counted() -> None:
            recorded.append(1)
            repeat()

        return counted, results

    choose(counting)
    found = trained(tmp_path / "recorded", *overrides)
    assert len(recorded) > 20
    monkeypatch.setattr(graphs, "MAX_FUNCTIONS", 0)
    plain = trained(tmp_path / "plain", *overrides)
    assert not unequal(found, plain)


def test_parts_that_are_not_labrls_own_are_not_recorded(
    choose: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_agent.py").write_text(
        "from labrl.agents.ppo import PPO\n\n\nclass Own(PPO):\n    pass\n"
    )

    def refuse(function: Callable[[], Any]) -> Any:
        raise AssertionError("updates of a user's agent must not be recorded")

    choose(refuse)
    trained(tmp_path / "run", *CASES["ppo"], "agent._target_=own_agent.Own", "env.max_frame=240")
    log = (tmp_path / "run" / "session_0" / "session.log").read_text()
    assert "own_agent.Own" in log


def test_hook_on_a_network_that_the_loss_of_another_one_uses_is_called() -> None:
    compute = Compute(torch.device("cpu"), torch.float32, 1, record=record)
    spaces = Spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), 1)
    one, other = (make_learner(nn.Linear(3, 2), spaces, compute, ADAM, 1.0) for _ in range(2))

    def loss(network: Any, batch: Rows) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            target = other.forward_network(batch.inputs)
        error = (network(batch.inputs) - target).square().mean()
        return error, error.detach().view(1)

    for _ in range(graphs.WARM_UP + 3):
        one.update(loss, Rows(torch.ones(4, 3)), 0.01)
    calls: list[int] = []
    other.network.register_forward_hook(lambda *_: calls.append(1))
    one.update(loss, Rows(torch.ones(4, 3)), 0.01)
    assert calls == [1]
