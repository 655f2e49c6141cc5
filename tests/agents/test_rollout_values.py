"""Tests of Sarsa and PQN: their targets are lambda-returns, and each step is used once in an epoch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from agent_cases import Noise, Recorded, build, minibatches, play
from numpy.typing import NDArray

from labrl.agents.agent import Observation

SMALL = ("agent.network.torso.mlp.hidden=[32]", "agent.exploration.epsilon=0.5", "agent.epochs=1")


@pytest.mark.parametrize("kind", ["sarsa", "expected sarsa", "pqn"])
def test_targets_are_lambda_returns(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*SMALL, "agent.horizon=6", "agent.trace_decay=0.7", "agent.gamma=0.9"]
    overrides += ["agent.batch_size=6"] if kind == "pqn" else [f"agent.expected={kind != 'sarsa'}"]
    agent, clock, _ = build("pqn" if kind == "pqn" else "sarsa", *overrides, num_envs=1)
    world, network = Recorded(Noise(num_envs=1, seed=2)), copy.deepcopy(agent.modules()["q_network"])
    batches = minibatches(monkeypatch)
    play(agent, clock, world, 6)
    (batch,) = batches
    actions = [int(action[0]) for action in (*world.actions, agent.state_dict().get("next_action", [0]))]
    # The rows of PQN are in random order, so each is identified by its observation.
    rows = [
        next(i for i, row in enumerate(batch.observation.numpy()) if (row == seen[0]).all())
        for seen in world.seen
    ]
    assert batch.action[rows].tolist() == actions[:6]

    def worth(observation: NDArray, action: int | None) -> float | None:
        with torch.no_grad():
            values = network(torch.from_numpy(observation)).outputs[0, :, 0].numpy()
        if kind == "sarsa":  # which action it draws for a truncated state is unknown here
            return None if action is None else float(values[action])
        return float(values.max() if kind == "pqn" else 0.5 * values.max() + 0.5 * values.mean())

    target, kinds = None, set()
    for t in reversed(range(6)):
        step = world.steps[t]
        kinds.add((bool(step.terminated[0]), bool(step.truncated[0])))
        over = bool(step.episode_over[0])
        after = worth(step.next_observation, None if over else actions[t + 1])
        if step.terminated[0]:
            after = 0.0
        elif target is not None and not over:
            assert after is not None
            after = 0.3 * after + 0.7 * target
        found = float(batch.value_target[rows[t]])
        target = found if after is None else float(step.reward[0]) + 0.9 * after
        assert found == pytest.approx(target, abs=1e-4)
    assert len(kinds) > 1, "no episode ends"


def test_action_of_sarsa_after_an_update_was_chosen_before_it() -> None:
    agent, clock, _ = build("sarsa", "agent.horizon=4", *SMALL)
    play(agent, clock, Noise(), 3)
    assert agent.state_dict()["next_action"] is None
    play(agent, clock, Noise(), 1)
    chosen = agent.state_dict()["next_action"].copy()
    np.testing.assert_array_equal(agent.act(Observation(Noise().observation)), chosen)
    assert agent.state_dict()["next_action"] is None


def test_epoch_of_pqn_uses_every_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build("pqn", *SMALL[:2], "agent.batch_size=8", "agent.horizon=8", "agent.epochs=3")
    batches = minibatches(monkeypatch)
    assert play(agent, clock, Noise(), 8) == len(batches) == 3 * 4
    for epoch in (batches[:4], batches[4:8], batches[8:]):
        rows = np.concatenate([batch.observation.numpy() for batch in epoch])
        assert len(np.unique(rows, axis=0)) == 32
