"""Norms and histograms for `meta.log`: weights, gradients, outputs of layers, actions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from labrl.agents.agent import Agent, Observation
from labrl.envs.actions import choices
from labrl.seeding import derived_seed
from labrl.session.callbacks.callback import SessionView

NamedValues = tuple[str, NDArray, NDArray | None]
"""A name, its values, and the bin edges of their histogram (None: bins of equal width)."""


def weights(agent: Agent) -> dict[str, NDArray]:
    """Return the weight tensors by name, `<network>/<parameter>`."""
    return {name: _array(parameter) for name, parameter in _parameters(agent)}


def gradients(agent: Agent) -> dict[str, NDArray]:
    """Return the gradients of the last update, after clipping to the maximum norm."""
    named = _parameters(agent)
    return {name: _array(parameter.grad) for name, parameter in named if parameter.grad is not None}


def _parameters(agent: Agent) -> Iterator[tuple[str, nn.Parameter]]:
    for network, module in agent.modules().items():
        yield from ((f"{network}/{name}", parameter) for name, parameter in module.named_parameters())


class Norms:
    """Euclidean norms of each weight tensor and of its gradient in the last update.

    Checkpoints do not contain gradients. The state therefore contains their norms, in case a row is due
    before the next update.
    """

    def __init__(self) -> None:
        self._session: SessionView | None = None
        self._saved: Mapping[str, Any] = {"opt_step": -1, "norms": {}}

    def start(self, session: SessionView) -> None:
        """Use the networks of `session` from now on."""
        self._session = session

    def columns(self) -> dict[str, float]:
        """Return the columns `weight_norm/<network>/<name>` and `grad_norm/<network>/<name>`."""
        assert self._session is not None, "call start() first"
        agent, clock = self._session.agent, self._session.clock
        norms = {
            f"{kind}_norm/{name}": float(np.linalg.norm(values))
            for kind, found in (("weight", weights(agent)), ("grad", gradients(agent)))
            for name, values in found.items()
        }
        return norms | (self._saved["norms"] if clock.opt_step == self._saved["opt_step"] else {})

    def state_dict(self) -> dict[str, Any]:
        """Return the norms of the gradients, and the optimizer update that they belong to."""
        if self._session is None:
            return dict(self._saved)
        norms = {name: norm for name, norm in self.columns().items() if name.startswith("grad_norm/")}
        return {"opt_step": self._session.clock.opt_step, "norms": norms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._saved = state


class CloserLook:
    """Weights, gradients, activations and actions whose histograms are written with each training row."""

    def __init__(self) -> None:
        self._actions: list[NDArray] = []

    def step(self, session: SessionView) -> None:
        """Collect the actions of the last step."""
        if session.env.actions is not None:
            self._actions.append(session.env.actions)

    def values(self, session: SessionView) -> Iterator[NamedValues]:
        """Yield weights, gradients, the actions since the previous row, and outputs of layers."""
        for kind, found in (("weights", weights(session.agent)), ("gradients", gradients(session.agent))):
            for name, values in found.items():
                yield f"{kind}/{name}", values, None
        if self._actions:
            yield from action_values(session.env.action_space, np.concatenate(self._actions))
            self._actions = []
        for name, values in outputs(session).items():
            yield name, values, None


def action_values(space: gym.Space[Any], actions: NDArray) -> Iterator[NamedValues]:
    """Yield each component of the actions separately; a discrete component has a bin for each choice.

    actions: [n, *action].
    """
    columns = actions.reshape(len(actions), -1).T
    edges: list[NDArray | None] = [np.arange(count + 1) + first - 0.5 for first, count in choices(space)]
    for number, (column, bins) in enumerate(zip(columns, edges or [None] * len(columns), strict=True)):
        yield "actions" if len(columns) == 1 else f"actions/{number}", column, bins


def outputs(session: SessionView) -> dict[str, NDArray]:
    """Return the outputs of all layers for the current observations, as `outputs/<network>/<part>`.

    For agents with the trait `policy_numbers`, also return the parameters of the action distribution as
    `policy/...`. The policy is called as in evaluation, but with a random stream of its own.
    """
    agent, present = session.agent, session.observation()
    if present is None:
        return {}
    observation = Observation(present, session.env.action_mask, np.ones(session.env.num_envs, np.bool_))
    generator = np.random.default_rng(derived_seed(session.seed, "closer look", session.clock.frame))
    found: dict[str, NDArray] = {}
    with contextlib.ExitStack() as undo:
        if session.config.meta.compile:  # compiled code does not call the hooks of layers
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        for network, module in agent.modules().items():
            for name, layer in module.named_modules(prefix=network):
                place = f"outputs/{name.replace('.', '/', 1)}"
                undo.callback(layer.register_forward_hook(functools.partial(_record, found, place)).remove)
        agent.evaluation_action(observation, generator)
    if agent.TRAITS.policy_numbers:
        numbers = agent.policy_numbers(observation)
        found.update({f"policy/{name}": values for name, values in numbers.items()})
    return found


def _record(
    found: dict[str, NDArray], name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any
) -> None:
    """Forward hook that keeps the output of a layer, or its first output if it has several."""
    first = output[0] if isinstance(output, tuple) else output
    if isinstance(first, torch.Tensor):
        found[name] = _array(first)


def _array(tensor: torch.Tensor) -> NDArray:
    return tensor.detach().float().cpu().numpy().reshape(-1).copy()
