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
        """Raises InputError where it is not said when to learn, or that would be after the budget."""
        if config.episodes is not None:
            raise InputError(
                "agent.episodes: a recurrent agent learns from sequences of agent.horizon steps, whatever "
                f"ends in them, got {config.episodes} (set agent.episodes=null agent.horizon=16)."
            )
        super().check_config(config, env)

    @property
    def _sequence_length(self) -> int:
        assert self._config.horizon is not None, "check_config has refused episodes"
        return self._config.horizon
