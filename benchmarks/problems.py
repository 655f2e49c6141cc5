"""The learning problems that both libraries are timed on, with one set of hyperparameters for both."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """PPO on one environment."""

    env: str
    """Name of the labrl environment."""
    title: str
    atari: bool
    lr: float
    clip: float
    entropy_coef: float
    rows: int
    """Rows of labrl's training table that are timed, after a first one that warms up."""
    frames_per_row: int
    """A multiple of the rollout, so that every row ends behind the same amount of learning."""
    rollouts: int
    """Rollouts of Stable-Baselines3 that are timed, after a first one that warms up."""
    num_envs: int = 8
    horizon: int = 128
    epochs: int = 4
    batch_size: int = 256
    discount: float = 0.99
    gae_lambda: float = 0.95
    value_coef: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def rollout(self) -> int:
        """Frames between two phases of learning."""
        return self.num_envs * self.horizon

    def overrides(self) -> list[str]:
        """The same as words of labrl's command line; `preset=none` keeps labrl's own tuning out."""
        return [
            "agent=ppo",
            f"env={self.env}",
            "preset=none",
            f"env.num_envs={self.num_envs}",
            f"agent.horizon={self.horizon}",
            f"agent.epochs={self.epochs}",
            f"agent.batch_size={self.batch_size}",
            f"agent.discount={self.discount}",
            f"agent.gae_lambda={self.gae_lambda}",
            f"agent.lr={self.lr}",
            f"agent.clip={self.clip}",
            f"agent.entropy_coef={self.entropy_coef}",
            f"agent.value_coef={self.value_coef}",
            f"agent.max_grad_norm={self.max_grad_norm}",
            "meta.device=cpu",
        ]


PROBLEMS = {
    "pong": Problem(
        env="pong",
        title="PPO on Pong (v5 protocol)",
        atari=True,
        lr=2.5e-4,
        clip=0.1,
        entropy_coef=0.01,
        rows=3,
        frames_per_row=5120,
        rollouts=5,
    ),
    "cartpole": Problem(
        env="cartpole",
        title="PPO on CartPole",
        atari=False,
        lr=3e-4,
        clip=0.2,
        entropy_coef=0.0,
        rows=10,
        frames_per_row=10240,
        rollouts=50,
    ),
}
