"""A2C with a memory: the state of a GRU or LSTM is carried along, and each rollout is one sequence."""

from __future__ import annotations

from typing import Any

from labrl.agents.a2c import A2C, A2CConfig
from labrl.agents.recurrent_policy import RecurrentPolicy
from labrl.errors import InputError


class RecurrentA2C(RecurrentPolicy, A2C):
    """A gradient reaches back to the first step of the rollout, the state as far as the episode's first.

    The asynchronous original (Mnih et al., 2016, section 5.1) unrolls its LSTM over the rollout alike.
    """

    NAME = "Recurrent A2C"

    @classmethod
    def check_config(cls, config: A2CConfig, env: Any) -> None:
        """Raises InputError unless agent.horizon alone says when to learn, and within the budget."""
        if config.episodes is not None:
            raise InputError(
                f"agent.episodes must be null, got {config.episodes}: a recurrent agent learns from "
                "sequences of agent.horizon steps, not from whole episodes. Set agent.episodes=null "
                "agent.horizon=16.",
                code="unsupported",
                key="agent.episodes",
            )
        super().check_config(config, env)

    @property
    def _sequence_length(self) -> int:
        assert self._config.horizon is not None, "check_config has refused episodes"
        return self._config.horizon
