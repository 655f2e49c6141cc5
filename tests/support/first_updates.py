"""The first update of a recipe on given data for comparison with another library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Observation
from labrl.agents.parts.experience import Experience
from labrl.agents.policy_agent import PolicyAgent
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.memory import Minibatch, Transitions
from labrl.step import Step

STORED = ("observation", "action", "reward", "next_observation", "discount")


def recipe(name: str, *overrides: str) -> TrialConfig:
    """Return the configuration of `labrl experiment=<name> <overrides>`."""
    return resolve(compose([f"experiment={name}", *overrides]))


def num_parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def layers(module: nn.Module) -> list[nn.Module]:
    """Return the linear layers and convolutions of a module, in order."""
    return [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]


def random_rollout(observations: Tensor, action: Tensor) -> Minibatch:
    """Return a rollout with random values, advantages, targets and log-probabilities.

    observations: [steps, *obs], as stored; action: [steps, *action].
    """
    steps = len(action)
    old_value, advantage, target, old_log_prob = (torch.randn(steps) for _ in range(4))
    return Minibatch(
        observations=observations,
        rows=None,
        action=action,
        advantage=advantage,
        value_target=target,
        value=old_value,
        log_prob=old_log_prob - 1,
        mask=None,
        sequence_length=1,
        state=torch.zeros(steps, 0),
        start=np.zeros((steps, 1), np.bool_),
    )


def learn_from_rollout(agent: Any, rollout: Minibatch, seen: NDArray, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the agent fill its rollout of 4 steps, but update on the given one. Returns the number of updates.

    seen: observations of its environments. [num_envs, *obs]
    """
    monkeypatch.setattr(PolicyAgent, "batch", lambda *_, **__: rollout)
    no = np.zeros(len(seen), np.bool_)
    updates = []
    for _ in range(4):
        agent.act(Observation(seen))
        agent.observe(Step(seen, seen, np.zeros(len(seen), np.float32), no, no, no))
        updates.append(agent.learn())
    assert updates[:3] == [0, 0, 0]
    return updates[3]


def learn_from_transitions(agent: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent make one update on the given minibatch."""
    columns = {name: getattr(batch, name).numpy() for name in STORED}
    size = len(batch.action)
    drawn = Transitions(**columns, weight=np.ones(size, np.float32), index=np.arange(size))
    monkeypatch.setattr(Experience, "due", lambda _: 1)

    def sample(_: Experience, learner: Any, layout: Any = None) -> Transitions:
        return drawn.as_tensors(learner, layout or learner.layout)

    monkeypatch.setattr(Experience, "sample", sample)
    assert agent.learn() == 1
