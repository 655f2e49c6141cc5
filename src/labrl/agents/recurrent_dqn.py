"""DQN with a memory, learned from in sequences: the replay of R2D2 (Kapturowski et al., ICLR 2019)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.dqn import DQN, DQNConfig
from labrl.agents.value_learning import chosen
from labrl.errors import InputError
from labrl.memory.sequence_replay import Rows, SequenceSample
from labrl.networks.gradient import joined
from labrl.networks.q_network import QNetwork
from labrl.networks.recurrent import Pieces, forgotten
from labrl.step import Step


class RecurrentDQN(DQN):
    """Each sequence is replayed from the state that acting began it with.

    Over the burn-in, it is brought up to date without a gradient, for both networks apart (section 3).
    Left out of R2D2: its rescaled values, the last action and reward as inputs, and many actors.
    """

    NAME = "recurrent_dqn"
    REMEMBERS = True
    _state: NDArray | None = None  # before the next observation [num_envs, state_size]
    _evaluation_state: NDArray | None = None

    @classmethod
    def share(cls, config: DQNConfig, ranks: int) -> DQNConfig:
        """What one of several ranks learns with. Raises InputError if it has no whole sequences."""
        unit = config.memory.config.learned * ranks
        if config.batch_size % unit:
            raise InputError(
                "agent.batch_size counts the steps of all ranks together and must be a multiple of "
                f"{unit} ({ranks} ranks x {unit // ranks} steps learned from each sequence), got "
                f"{config.batch_size}. Set agent.batch_size={-(-config.batch_size // unit) * unit}.",
                code="range",
                key="agent.batch_size",
            )
        return super().share(config, ranks)

    def act(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """Exploring actions for the environments, among the valid ones. [num_envs]"""
        count = len(observation)
        if self._state is None:
            self._state = np.zeros((count, self.network.state_size), np.float32)
        self._before = self._state
        # Whoever acts by chance remembers too.
        values, self._state = self._carried(observation, self._state, self._noise(count), mask)
        self._observation, self._mask = observation, mask
        self._action = self._explore(lambda: values, count, mask)
        return self._to_env(self._action)

    def evaluation_action(  # type: ignore[override]  # sessions tell `start` to those who take it
        self,
        observation: NDArray,
        generator: np.random.Generator,
        mask: NDArray[np.bool_] | None = None,
        *,
        start: NDArray[np.bool_],
    ) -> NDArray:
        """The best actions; start: which observations are the first of their episodes, [num_envs]."""
        return self.greedy_action(observation, mask, start=start)

    def greedy_action(  # type: ignore[override]
        self, observation: NDArray, mask: NDArray[np.bool_] | None = None, *, start: NDArray[np.bool_]
    ) -> NDArray:
        """The best actions; start: which observations are the first of their episodes, [num_envs]."""
        return self._to_env(self._evaluated(observation, mask, start).argmax(1))

    def observe(self, step: Step) -> None:
        """Remember the outcome of the last actions, and forget the episodes that are over."""
        self._experience.add(self._observation, self._action, step, self._mask, self._before)
        # A lost life ends no episode: what has been seen before it is still of use.
        self._state = forgotten(self._state, step.episode_over, self.network.state_size)

    def decision(self) -> dict[str, NDArray]:
        """Actions, masks where there are some, and what was remembered before them."""
        return {**super().decision(), "state": self._before}

    def adopt(self, observation: NDArray, decision: Mapping[str, NDArray]) -> None:
        """As if it had acted so itself."""
        super().adopt(observation, decision)
        self._before = decision["state"]

    def state_dict(self) -> dict[str, Any]:
        """As DQN, and what is remembered of the episodes under way."""
        return {**super().state_dict(), "state": self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        super().load_state_dict(state)
        self._state = state["state"]

    def _evaluated(
        self, observation: NDArray, mask: NDArray[np.bool_] | None, start: NDArray[np.bool_]
    ) -> NDArray:
        """Expected returns, [num_envs, actions], by the mean weights; evaluation's own state goes on."""
        state = forgotten(self._evaluation_state, start, self.network.state_size)
        values, self._evaluation_state = self._carried(observation, state, None, mask)
        return values

    def _carried(
        self, observation: NDArray, state: NDArray, noise: Tensor | None, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray, NDArray]:
        """Expected returns, [n, actions], of what is not valid minus infinity; and the state carried on."""

        def work(network: QNetwork, share: slice) -> tuple[Tensor, Tensor]:
            part = None if noise is None else noise[share]
            inputs = self._compute.tensor(network.layout(observation[share]))
            with torch.inference_mode():
                with self._compute.autocast():
                    outputs, after = network.unroll(inputs, self._compute.tensor(state[share]), None, part)
                return self._value.expected(outputs), after

        shares = self._trained.map(work, len(observation))
        values, after = (joined(parts) for parts in zip(*shares, strict=True))
        return values if mask is None else np.where(mask, values, -np.inf), after

    def _gradient(self, sample: SequenceSample) -> None:  # type: ignore[override]  # as its memory samples
        """Gradient of the weighted mean loss into the flat vector, and ROWS of each step."""
        noise = self._noise(2)
        online, delayed = (None, None) if noise is None else noise.unbind(0)
        learned = sample.at.shape[1]

        def loss(network: QNetwork, share: slice) -> tuple[Tensor, Tensor]:
            steps = slice(share.start * learned, share.stop * learned)
            rows, begin = sample.rows.part(share), sample.rows.part(share).begin[:-1, None]
            at, following = (
                torch.from_numpy((index[share] + begin).ravel()).to(self._compute.device)
                for index in (sample.at, sample.following)
            )
            state = self._compute.tensor(sample.state[share])
            fresh, before = sample.fresh[share], sample.burn_in.part(share)
            with torch.no_grad():
                warmed = self._burnt_in(self.target.network, before, state)
                outputs = self._unrolled(self.target.network, rows, warmed, fresh, delayed)[following]
                warmed = self._burnt_in(network, before, state)
            own = self._unrolled(network, rows, warmed, fresh, online)
            with torch.no_grad():
                expected = self._value.expected(own[following] if self._config.double else outputs)
                if sample.next_mask is not None:
                    valid = torch.from_numpy(sample.next_mask[steps]).to(expected.device)
                    expected = expected.masked_fill(~valid, -math.inf)
                reward = self._compute.tensor(sample.reward[steps])
                discount = self._compute.tensor(sample.discount[steps])
                target = self._value.target(chosen(outputs, expected.argmax(1)), reward, discount)
            taken = chosen(own[at], self._compute.tensor(sample.action[steps]))
            losses, errors = self._value.loss(taken, target)
            with torch.no_grad():
                torch.stack((losses, errors, self._value.expected(taken)), out=self._rows[:, steps])
            weight = self._compute.tensor(sample.weight[share]).repeat_interleave(learned)
            mean = torch.dot(losses, weight / len(losses))
            return mean, mean.detach()

        self._trained.backward(loss, len(sample.index), samples=learned)

    def _burnt_in(self, network: QNetwork, before: Rows, state: Tensor) -> Tensor:
        """What the network remembers after the steps of the burn-in. [sequences, state_size]"""
        if not len(before.observation):
            return state
        pieces = Pieces.of(before.start.reshape(len(state), -1))
        inputs, memory = self._compute.tensor(network.layout(before.observation)), network.torso
        with self._compute.autocast():
            after = memory.unroll(inputs, pieces.states(state), pieces.lengths)[1]  # type: ignore[operator]
        return after[torch.from_numpy(pieces.last).to(after.device)]

    def _unrolled(
        self, network: QNetwork, rows: Rows, state: Tensor, fresh: NDArray[np.bool_], noise: Tensor | None
    ) -> Tensor:
        """state: before the first row of each sequence, where none is `fresh`. [rows, actions, outputs]"""
        start = rows.start.copy()
        start[rows.begin[:-1]] = fresh
        pieces = Pieces.of_rows(start, rows.begin)
        inputs = self._compute.tensor(network.layout(rows.observation))
        with self._compute.autocast():
            return network.unroll(inputs, pieces.states(state), pieces.lengths, noise)[0]
