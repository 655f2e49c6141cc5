"""Updates as functions of fixed memory: recorded operations, repeated, give the results of the functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exact_cases import KL, QUIET, TASKS, rows, state, unequal
from recorder import record

import labrl
from labrl.learning import graphs
from labrl.learning.compute import Compute

SCHEDULE = "{kind: linear, start: 1e-3, end: 1e-4, horizon: 240}"
ROLLOUT = ["agent.horizon=8", "agent.batch_size=8", f"agent.lr={SCHEDULE}"]
PPO = [*ROLLOUT, "agent.epochs=2", "agent.clip_range={kind: linear, start: 0.2, end: 0.1, horizon: 240}"]
REPLAY = [
    "agent.learning_starts=40", "agent.memory.capacity=96", "agent.batch_size=8",
    "agent.updates_per_frame=0.25",
    f"agent.lr={SCHEDULE}",
]  # fmt: skip
ENTROPY = "agent.entropy_coef={kind: linear, start: 0.01, end: 0.0, horizon: 120}"

CASES: dict[str, list[str]] = {
    "ppo": ["agent=ppo", *TASKS["cartpole"], *PPO, ENTROPY],
    "ppo-clipped-values": ["agent=ppo", *TASKS["pendulum"], *PPO, f"agent.value_clip_range={SCHEDULE}"],
    "ppo-images": ["agent=ppo", *TASKS["pong"], *PPO, ENTROPY],
    "ppo-masks": ["agent=ppo", *TASKS["taxi"], *PPO],
    "ppo-inputs": ["agent=ppo", *TASKS["lamp"], *PPO],
    "ppo-kl": ["agent=ppo", *TASKS["cartpole"], *PPO, "agent.target_kl=0.1", KL],
    "ppo-values": ["agent=ppo", *TASKS["pendulum"], *PPO, "agent.normalize_value=true"],
    "a2c-values": ["agent=a2c", *TASKS["pendulum"], "agent.normalize_value=true"],
    "ppo-beta": ["agent=ppo", *TASKS["pendulum"], *PPO, ENTROPY, "agent.action_bounds=beta"],
    "a2c": ["agent=a2c", *TASKS["cartpole"], ENTROPY, f"agent.lr={SCHEDULE}"],
    "pqn": ["agent=pqn", *TASKS["cartpole"], *ROLLOUT, "env.num_envs=4", "agent/optimizer=adam"],
    "dqn": ["agent=dqn", *TASKS["cartpole"], *REPLAY],
    "dqn-images": ["agent=double_dqn", *TASKS["pong"], *REPLAY],
    "c51": ["agent=c51", *TASKS["cartpole"], *REPLAY],
    "qr_dqn": ["agent=qr_dqn", *TASKS["cartpole"], *REPLAY],
    "rainbow": ["agent=rainbow", *TASKS["cartpole"], *REPLAY],
    "sac": ["agent=sac", *TASKS["pendulum"], *REPLAY],
    "sac-fixed": ["agent=sac", *TASKS["pendulum"], *REPLAY, f"agent.temperature={SCHEDULE}"],
    "sac-discrete": ["agent=sac", *TASKS["pong"], *REPLAY],
    "sac-masks": ["agent=sac", *TASKS["taxi"], *REPLAY],
    "tqc": ["agent=tqc", *TASKS["pendulum"], *REPLAY],
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
    monkeypatch.setattr(graphs, "MOST_FUNCTIONS", 0)
    plain = trained(tmp_path / "plain", *overrides)
    assert not unequal(found, plain)
