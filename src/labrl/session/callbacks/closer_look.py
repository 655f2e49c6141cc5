"""What `meta.log` looks at besides scalars: weights, gradients, outputs of layers, actions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from labrl.agents.agent import Agent, Observation
from labrl.seeding import derived_seed
from labrl.session.callbacks.callback import SessionView


def weights(agent: Agent) -> Iterator[tuple[str, NDArray]]:
    """Each tensor of weights, by the name of its network and its own."""
    for network, module in agent.modules().items():
        for name, parameter in module.named_parameters():
            yield f"{network}/{name}", _array(parameter)


def gradients(agent: Agent) -> Iterator[tuple[str, NDArray]]:
    """Those of the last update, as the optimizer had them: cut to the largest norm."""
    for network, module in agent.modules().items():
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                yield f"{network}/{name}", _array(parameter.grad)


def norms(agent: Agent) -> dict[str, float]:
    """Columns `weight_norm/<network>/<name>` and `grad_norm/...`: Euclidean norms."""
    return {
        f"{what}_norm/{name}": float(np.linalg.norm(values))
        for what, found in (("weight", weights(agent)), ("grad", gradients(agent)))
        for name, values in found
    }


class LastGradients:
    """The gradients' norms of the last update, over a resume too: a checkpoint holds no gradients."""

    def __init__(self) -> None:
        self._opt_step = -1
        self._norms: dict[str, float] = {}

    def norms(self, session: SessionView) -> dict[str, float]:
        """As `norms`, also where no update has been made since the session came back."""
        now = norms(session.agent)
        return {**now, **self._norms} if session.clock.opt_step == self._opt_step else now

    def state_dict(self, session: SessionView) -> dict[str, Any]:
        """Those of this update."""
        kept = {name: norm for name, norm in self.norms(session).items() if name.startswith("grad_norm/")}
        return {"opt_step": session.clock.opt_step, "norms": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._opt_step, self._norms = int(state["opt_step"]), dict(state["norms"])


class CloserLook:
    """Everything that becomes a histogram with a training row."""

    def __init__(self) -> None:
        self._actions: list[NDArray] = []

    def step(self, session: SessionView) -> None:
        """Remember what was done."""
        if session.env.actions is not None:
            self._actions.append(session.env.actions)

    def values(self, session: SessionView) -> Iterator[tuple[str, NDArray, NDArray | None]]:
        """Name, numbers, and the edges of their bins where they are choices; None: whatever fits."""
        for kind, found in (("weights", weights(session.agent)), ("gradients", gradients(session.agent))):
            for name, values in found:
                yield f"{kind}/{name}", values, None
        actions, self._actions = self._actions, []
        if actions:
            yield from _of_actions(session.env.action_space, np.concatenate(actions))
        for name, values in outputs(session).items():
            yield name, values, None


def _of_actions(space: gym.Space[Any], actions: NDArray) -> Iterator[tuple[str, NDArray, NDArray | None]]:
    """actions: since the row before, [n, *action]. One histogram for each number of an action."""
    columns = actions.reshape(len(actions), -1).T
    if isinstance(space, gym.spaces.Discrete):
        counts = [int(space.n)]
        first = [int(space.start)]
    elif isinstance(space, gym.spaces.MultiDiscrete):
        counts, first = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
    elif isinstance(space, gym.spaces.MultiBinary):
        counts, first = [2] * len(columns), [0] * len(columns)
    else:
        counts, first = [0] * len(columns), [0] * len(columns)
    for number, column in enumerate(columns):
        name = "actions" if len(columns) == 1 else f"actions/{number}"
        count, begin = counts[number], first[number]
        yield name, column, np.arange(count + 1) + begin - 0.5 if count else None


def outputs(session: SessionView) -> dict[str, NDArray]:
    """What torsos and heads give for the present observations, `outputs/<network>/<part>`: features, logits.

    `policy/...` is what actions are drawn by, of agents with the trait `policy_numbers`. The policy
    is asked as in evaluation, with a stream that nobody else draws from.
    """
    agent, present = session.agent, session.observation
    if present is None:
        return {}
    start = np.ones(session.env.num_envs, np.bool_)
    observation = Observation(present, session.env.action_mask, start)
    found: dict[str, NDArray] = {}
    generator = np.random.default_rng(derived_seed(session.seed, "closer look", session.clock.frame))
    with contextlib.ExitStack() as undo:
        if session.config.meta.compile:  # compiled code has its layers' outputs nowhere
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        for network, module in agent.modules().items():
            for name, layer in module.named_modules():
                full = f"outputs/{network}/{name}" if name else f"outputs/{network}"
                hook = layer.register_forward_hook(functools.partial(_record, found, full))
                undo.callback(hook.remove)
        agent.evaluation_action(observation, generator)
    if agent.TRAITS.policy_numbers:
        numbers = agent.policy_numbers(observation)
        found.update({f"policy/{name}": values for name, values in numbers.items()})
    return found


def _record(
    found: dict[str, NDArray], name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any
) -> None:
    """Keep the output of a layer, or the first of several: a forward hook."""
    first = output[0] if isinstance(output, tuple) else output
    if isinstance(first, torch.Tensor):
        found[name] = _array(first)


def _array(tensor: torch.Tensor) -> NDArray:
    return tensor.detach().float().cpu().numpy().reshape(-1).copy()
