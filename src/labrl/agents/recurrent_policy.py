"""What an agent that learns from its own rollouts does otherwise when its network remembers.

The state is carried from step to step and forgotten where an episode ends. A rollout is learned from as whole
sequences, each from the state before it, through which no gradient goes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.batch import Batch, Sequences
from labrl.agents.on_policy import OnPolicyAgent, OnPolicyConfig
from labrl.errors import InputError
from labrl.memory.rollout import Rollout
from labrl.memory.sequences import SequenceRollout
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.distributions import masked
from labrl.networks.gradient import joined
from labrl.networks.recurrent import Pieces, forgotten
from labrl.networks.spaces import Spaces
from labrl.step import Step


class RecurrentPolicy(OnPolicyAgent):
    """To be named before the agent that it changes; that agent's `_config` has a `horizon`."""

    REMEMBERS = True
    _config: Any
    _state: NDArray | None = None  # before the next observation [num_envs, state_size]
    _evaluation_state: NDArray | None = None

    @property
    @abstractmethod
    def _sequence_length(self) -> int:
        """Steps of a sequence."""

    @classmethod
    def check(cls, config: OnPolicyConfig, spaces: Spaces) -> None:
        """Raises InputError for options that have no meaning in these spaces or with sequences."""
        super().check(config, spaces)
        if config.self_imitation is not None:
            raise InputError(
                "agent.self_imitation learns from single steps, and a recurrent agent learns from sequences. "
                "Set agent/self_imitation=none.",
                code="unsupported",
                key="agent.self_imitation",
            )

    def act(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """Sampled actions for the environments, among the valid ones. [num_envs, ...]"""
        if self._state is None:
            self._state = np.zeros((len(observation), self.network.state_size), np.float32)
        before = self._state
        action = super().act(observation, mask)
        self._sequences.add_state(before)
        return action

    def evaluation_action(  # type: ignore[override]  # sessions tell `start` to those who take it
        self,
        observation: NDArray,
        generator: np.random.Generator,
        mask: NDArray[np.bool_] | None = None,
        *,
        start: NDArray[np.bool_],
    ) -> NDArray:
        """Sampled with `generator`; start: which observations are the first of their episodes, [num_envs]."""
        with self._in_evaluation(start):
            return super().evaluation_action(observation, generator, mask)

    def greedy_action(  # type: ignore[override]
        self, observation: NDArray, mask: NDArray[np.bool_] | None = None, *, start: NDArray[np.bool_]
    ) -> NDArray:
        """The most likely actions; start: which observations are the first of their episodes, [num_envs]."""
        with self._in_evaluation(start):
            return super().greedy_action(observation, mask)

    def observe(self, step: Step) -> None:
        """Store the outcome of the last actions, and forget the episodes that are over."""
        assert self._state is not None, "observe() follows act()"
        self._sequences.add_cut_states(step, self._state)
        super().observe(step)
        # A lost life ends no episode: what has been seen before it is still of use.
        self._state = forgotten(self._state, step.episode_over, self.network.state_size)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, the rollout as far as it is filled, and what is remembered."""
        return {**super().state_dict(), "state": self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state, in the middle of a rollout too."""
        super().load_state_dict(state)
        self._state = state["state"]

    @property
    def _sequences(self) -> SequenceRollout:
        assert isinstance(self._rollout, SequenceRollout)
        return self._rollout

    @contextmanager
    def _in_evaluation(self, start: NDArray[np.bool_]) -> Iterator[None]:
        """Within it, evaluation's own state is carried on."""
        training = self._state
        self._state = forgotten(self._evaluation_state, start, self.network.state_size)
        try:
            yield
        finally:
            self._evaluation_state, self._state = self._state, training

    def _new_rollout(self, observation: NDArray) -> Rollout:
        """Room for a rollout of sequences. [num_envs, *obs]"""
        length, size = self._sequence_length, self.network.state_size
        return SequenceRollout(length, size, self._config.horizon, *self._shapes(observation))

    def _forward(self, observation: NDArray) -> tuple[NDArray, NDArray | float]:
        """Distribution parameters and values, and the state carried on."""
        assert self._state is not None
        inputs, state = self._compute.tensor(observation), self._compute.tensor(self._state)

        def work(network: ActorCritic, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
            with torch.inference_mode(), self._compute.autocast():
                return network.unroll(inputs[rows], state[rows])

        shares = self._trained.map(work, len(inputs))
        parameters, value, self._state = (joined(parts) for parts in zip(*shares, strict=True))
        return parameters, value

    def _complete(self, rollout: Rollout) -> NDArray:
        """Values of what is beyond the rows, each from its state; those of the rows came with the actions."""
        assert isinstance(rollout, SequenceRollout)
        assert self._state is not None
        state = self._compute.tensor(np.concatenate([self._state, rollout.cut_state]))
        inputs = self._compute.tensor(self._beyond(rollout))

        def work(network: ActorCritic, rows: slice) -> Tensor:
            with torch.inference_mode(), self._compute.autocast():
                return network.unroll(inputs[rows], state[rows])[1]

        return joined(self._trained.map(work, len(inputs)))

    def _prepare(self, rollout: Rollout) -> Batch:
        """Advantages and value targets of a full rollout, sequence after sequence."""
        assert isinstance(rollout, SequenceRollout)
        state = self._compute.tensor(rollout.state)
        return super()._prepare(rollout)._replace(sequences=Sequences(rollout.length, state, rollout.start))

    def _backward(self, loss: Callable[[ActorCritic, slice], tuple[Tensor, Tensor]], size: int) -> Tensor:
        """Gradient of a mean loss; sequences are shared out whole."""
        length = self._sequence_length

        def of_sequences(network: ActorCritic, share: slice) -> tuple[Tensor, Tensor]:
            return loss(network, slice(share.start * length, share.stop * length))

        return self._trained.backward(of_sequences, size // length, samples=length)

    def _evaluate(self, network: ActorCritic, batch: Batch, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Distribution parameters and values of whole sequences of a batch, to be differentiated."""
        sequences = batch.sequences
        assert sequences is not None
        length = sequences.length
        if isinstance(rows, slice):
            which: Any = slice(rows.start // length, rows.stop // length)
            start = sequences.start[which]
        else:
            which = rows[::length] // length
            start = sequences.start[which.cpu().numpy()]
        pieces = Pieces.of(start)
        with self._compute.autocast():
            state = pieces.states(sequences.state[which])
            parameters, value, _ = network.unroll(batch.seen(rows), state, pieces.lengths)
        return parameters if batch.mask is None else masked(parameters, batch.mask[rows]), value
