"""What agents share that learn once from each rollout, by the very weights that they have acted by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labrl.agents.batch import Batch
from labrl.agents.on_policy import OnPolicyAgent
from labrl.memory.rollout import Rollout
from labrl.networks.actor_critic import ActorCritic
from labrl.networks.kept import Kept
from labrl.schedules import value_at


class LearnsOnce(OnPolicyAgent):
    """One step down the gradient on each rollout, which is then forgotten.

    So its forward pass is that of acting, and what layers gave then is kept where that is worth it.
    """

    _kept: Kept | None = None
    _first_row: int | None = None
    """Of the rollout, to which what the network computes now belongs; None: to no row."""

    def act(self, observation: NDArray, mask: NDArray[np.bool_] | None = None) -> NDArray:
        """Sampled actions for the environments, among the valid ones. [num_envs, ...]"""
        with self._as_rows_of(0 if self._rollout is None else self._rollout.t):
            return super().act(observation, mask)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state, in the middle of a rollout too."""
        super().load_state_dict(state)
        if self._kept is None or self._rollout is None:
            return
        for t in range(self._rollout.t):
            with self._as_rows_of(t):
                self._forward(self._rollout["observation"][t])

    @contextmanager
    def _as_rows_of(self, step: int) -> Iterator[None]:
        """Within it the network computes the rows of one step of the rollout."""
        self._first_row = step * self._spaces.num_envs
        try:
            yield
        finally:
            self._first_row = None

    def _new_rollout(self, observation: NDArray) -> Rollout:
        """Room for a rollout; observation: a first one, for shape and type. [num_envs, *obs]"""
        rollout = super()._new_rollout(observation)
        if type(rollout) is Rollout:  # others have their rows in another order, or states between them
            self._kept = self._trained.room_to_keep(rollout.horizon * rollout.num_envs)
        return rollout

    def _outputs(self, network: ActorCritic, inputs: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """As the network gives them; of two separate ones the policy alone, with no values."""
        first = self._first_row
        if self._kept is None or first is None:
            return super()._outputs(network, inputs, rows)
        with self._kept.beside(network.policy_torso, slice(first + rows.start, first + rows.stop)):
            return super()._outputs(network, inputs, rows)

    def _step_along(self, batch: Batch, loss: Callable[..., tuple[Tensor, Tensor]]) -> int:
        """One update on a whole batch. Returns 1.

        loss: of distribution parameters, values, actions, columns and the entropy's weight, to the loss and
        the means named in STATISTICS.
        """
        entropy_coef = value_at(self._config.entropy_coef, self._clock.frame)

        def of_share(network: ActorCritic, share: slice) -> tuple[Tensor, Tensor]:
            parameters, value = self._evaluate_again(network, batch, share)
            return loss(parameters, value, batch.action[share], batch.columns[share], entropy_coef)

        statistics = self._backward(of_share, len(batch.action))
        self._record(statistics, self._descend())
        return 1

    def _evaluate_again(self, network: ActorCritic, batch: Batch, rows: slice) -> tuple[Tensor, Tensor]:
        """Distribution parameters and values of rows of a batch, to be differentiated."""
        if self._kept is None:
            return self._evaluate(network, batch, rows)
        with self._kept.beside(network.policy_torso, rows):
            return self._evaluate(network, batch, rows)
