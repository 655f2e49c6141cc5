"""The learning problems on which both libraries are timed, with the same hyperparameters for both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """An agent in an environment."""

    agent: str
    """Name of the labrl agent."""
    env: str
    """Name of the labrl environment."""
    gym_id: str = "CartPole-v1"
    """Id in Gymnasium; not used for Atari games."""
    title: str
    network: str
    """Name of the network that acts and learns, among the modules of labrl's agent."""
    atari: bool = False
    num_envs: int = 8
    lr: float
    discount: float = 0.99
    batch_size: int
    max_grad_norm: float | None
    warm_up: int
    """Number of frames before the timed ones, after which the agent learns."""
    frames_per_row: int
    """Number of frames between two rows of labrl's table, a multiple of the frames per update phase."""
    rows: int
    """Number of rows of labrl's training table that are timed."""
    sb3_frames: int
    """Number of frames of Stable-Baselines3 that are timed."""
    also_num_envs: tuple[int, ...] = ()
    """Other numbers of environments with which labrl is timed."""

    @property
    @abstractmethod
    def samples_per_frame(self) -> float:
        """Number of minibatch samples that are learned from per frame."""

    @property
    def bootstraps_per_sample(self) -> float:
        """Number of forward passes without gradients per such sample."""
        return 0.0

    def overrides(self) -> list[str]:
        """Return the overrides of the problem; `preset=none` excludes labrl's own tuning."""
        return [
            f"agent={self.agent}",
            f"env={self.env}",
            "preset=none",
            f"env.num_envs={self.num_envs}",
            f"agent.lr={self.lr}",
            f"agent.gamma={self.discount}",
            f"agent.batch_size={self.batch_size}",
            f"agent.max_grad_norm={self.max_grad_norm or 'null'}",
            "meta.device=cpu",
        ]


@dataclass(frozen=True, kw_only=True)
class PPOProblem(Problem):
    """PPO, which makes several epochs over each rollout."""

    agent: str = "ppo"
    network: str = "actor_critic"
    clip: float
    entropy_coef: float
    horizon: int = 128
    epochs: int = 4
    batch_size: int = 256
    gae_lambda: float = 0.95
    value_coef: float = 0.5
    max_grad_norm: float | None = 0.5

    @property
    def samples_per_frame(self) -> float:
        """Number of epochs, in each of which each frame is learned from once."""
        return self.epochs

    def overrides(self) -> list[str]:
        """Return the overrides including the options of PPO."""
        return [
            *super().overrides(),
            f"agent.horizon={self.horizon}",
            f"agent.epochs={self.epochs}",
            f"agent.gae_lambda={self.gae_lambda}",
            f"agent.clip_range={self.clip}",
            f"agent.entropy_coef={self.entropy_coef}",
            f"agent.value_coef={self.value_coef}",
        ]


@dataclass(frozen=True, kw_only=True)
class A2CProblem(Problem):
    """A2C, which makes one update on each short rollout."""

    agent: str = "a2c"
    network: str = "actor_critic"
    entropy_coef: float
    horizon: int = 5
    value_coef: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def samples_per_frame(self) -> float:
        """Return 1, because each frame is learned from once."""
        return 1

    def overrides(self) -> list[str]:
        """Return the overrides including the options of A2C, whose batch is the whole rollout."""
        return [
            *(override for override in super().overrides() if not override.startswith("agent.batch_size=")),
            f"agent.horizon={self.horizon}",
            f"agent.entropy_coef={self.entropy_coef}",
            f"agent.value_coef={self.value_coef}",
        ]


@dataclass(frozen=True, kw_only=True)
class DQNProblem(Problem):
    """DQN, which learns from a minibatch of the replay buffer every `frames_per_update` frames."""

    agent: str = "dqn"
    network: str = "q_network"
    num_envs: int = 1
    max_grad_norm: float | None = 10.0
    frames_per_update: int
    capacity: int
    epsilon: float
    """Probability of random actions; constant, so that every timed frame costs the same."""
    target_every: int
    """Number of frames between two updates of the target network."""
    hidden: tuple[int, ...] = ()
    """Units of the hidden layers, for vector observations."""

    @property
    def samples_per_frame(self) -> float:
        """Batch size divided by the number of frames per update."""
        return self.batch_size / self.frames_per_update

    @property
    def bootstraps_per_sample(self) -> float:
        """Return 1, for the target network on the next observation."""
        return 1

    def overrides(self) -> list[str]:
        """Return the overrides including the options of DQN."""
        return [
            *super().overrides(),
            f"agent.updates_per_frame=1/{self.frames_per_update}",
            f"agent.learning_starts={self.warm_up}",
            f"agent.memory.capacity={self.capacity}",
            f"agent.exploration.epsilon={self.epsilon}",
            f"agent.target.every={self.target_every}",
            *([f"agent.network.torso.mlp.hidden={list(self.hidden)}"] if self.hidden else []),
        ]


@dataclass(frozen=True, kw_only=True)
class ActorCriticProblem(Problem):
    """SAC or TD3 with an update at every frame, and with policy and critics of the same size."""

    env: str = "pendulum"
    gym_id: str = "Pendulum-v1"
    network: str = "policy"
    num_envs: int = 1
    lr: float = 1e-3
    batch_size: int = 256
    max_grad_norm: float | None = None
    hidden: tuple[int, ...] = (256, 256)
    """Units of the hidden layers of every network."""
    capacity: int = 100_000
    gradients: float
    """Number of gradients of networks with respect to their weights per update."""
    forwards: float
    """Number of other passes per update: targets, critics, and the gradient of the policy's actions."""
    warm_up: int = 1000
    frames_per_row: int = 4000
    rows: int = 1
    sb3_frames: int = 4000

    @property
    def samples_per_frame(self) -> float:
        """Number of samples that a single network would process for all gradients of an update."""
        return self.batch_size * self.gradients

    @property
    def bootstraps_per_sample(self) -> float:
        """Number of other passes per gradient."""
        return self.forwards / self.gradients

    def overrides(self) -> list[str]:
        """Return the overrides including the options that SAC and TD3 share."""
        return [
            *super().overrides(),
            "agent.updates_per_frame=1",
            f"agent.learning_starts={self.warm_up}",
            f"agent.memory.capacity={self.capacity}",
            f"agent.network.torso.mlp.hidden={list(self.hidden)}",
        ]


PROBLEMS: dict[str, Problem] = {
    "ppo-pong": PPOProblem(
        env="pong",
        title="PPO on Pong (v5 protocol)",
        atari=True,
        lr=2.5e-4,
        clip=0.1,
        entropy_coef=0.01,
        warm_up=5120,
        frames_per_row=5120,
        rows=3,
        sb3_frames=5120,
    ),
    # Values of labrl's preset: with minibatches of 256, Pong does not improve in a million frames.
    "ppo-pong-preset": PPOProblem(
        env="pong",
        title="PPO on Pong (labrl's preset)",
        atari=True,
        lr=2.5e-4,
        clip=0.1,
        entropy_coef=0.01,
        epochs=3,
        batch_size=32,
        gae_lambda=0.85,
        warm_up=2048,
        frames_per_row=2048,
        rows=3,
        sb3_frames=5120,
    ),
    "ppo-cartpole": PPOProblem(
        env="cartpole",
        title="PPO on CartPole",
        lr=3e-4,
        clip=0.2,
        entropy_coef=0.0,
        warm_up=10240,
        frames_per_row=10240,
        rows=10,
        sb3_frames=51_200,
    ),
    # This problem and the next use values of the RL Baselines3 Zoo, but no state-dependent exploration.
    "ppo-lunar_lander": PPOProblem(
        env="lunar_lander",
        gym_id="LunarLander-v3",
        title="PPO on LunarLander",
        num_envs=16,
        horizon=1024,
        batch_size=64,
        lr=3e-4,
        discount=0.999,
        gae_lambda=0.98,
        clip=0.2,
        entropy_coef=0.01,
        warm_up=16_384,
        frames_per_row=16_384,
        rows=4,
        sb3_frames=49_152,
    ),
    "ppo-pendulum": PPOProblem(
        env="pendulum",
        gym_id="Pendulum-v1",
        title="PPO on Pendulum",
        num_envs=4,
        horizon=1024,
        batch_size=64,
        epochs=10,
        lr=1e-3,
        discount=0.9,
        clip=0.2,
        entropy_coef=0.0,
        warm_up=4096,
        frames_per_row=8192,
        rows=4,
        sb3_frames=16_384,
    ),
    "a2c-cartpole": A2CProblem(
        env="cartpole",
        title="A2C on CartPole",
        lr=7e-4,
        batch_size=40,
        entropy_coef=0.0,
        warm_up=4000,
        frames_per_row=20_000,
        rows=4,
        sb3_frames=40_000,
    ),
    "a2c-pong": A2CProblem(
        env="pong",
        title="A2C on Pong (v5 protocol)",
        atari=True,
        num_envs=16,
        lr=7e-4,
        batch_size=80,
        entropy_coef=0.01,
        warm_up=1600,
        frames_per_row=4800,
        rows=2,
        sb3_frames=4800,
    ),
    "dqn-pong": DQNProblem(
        env="pong",
        title="DQN on Pong (v5 protocol, 1 environment)",
        atari=True,
        lr=1e-4,
        batch_size=32,
        frames_per_update=4,
        capacity=100_000,
        epsilon=0.05,
        target_every=1000,
        warm_up=2000,
        frames_per_row=1000,
        rows=2,
        sb3_frames=2000,
        also_num_envs=(8,),
    ),
    "sac-pendulum": ActorCriticProblem(
        agent="sac", title="SAC on Pendulum (1 environment, 1 update a frame)", gradients=3, forwards=7
    ),
    # Policy and targets are updated in every second update.
    "td3-pendulum": ActorCriticProblem(
        agent="td3", title="TD3 on Pendulum (1 environment, 1 update a frame)", gradients=2.5, forwards=4
    ),
    "dqn-cartpole": DQNProblem(
        env="cartpole",
        title="DQN on CartPole (1 environment)",
        lr=2.5e-4,
        batch_size=128,
        frames_per_update=10,
        capacity=10_000,
        epsilon=0.05,
        target_every=500,
        hidden=(120, 84),
        warm_up=10_000,
        frames_per_row=10_000,
        rows=3,
        sb3_frames=30_000,
        also_num_envs=(8,),
    ),
    "dqn-acrobot": DQNProblem(
        env="acrobot",
        gym_id="Acrobot-v1",
        title="DQN on Acrobot (1 environment, 1 update a frame)",
        lr=6.3e-4,
        batch_size=128,
        frames_per_update=1,
        capacity=50_000,
        epsilon=0.1,
        target_every=250,
        hidden=(256, 256),
        warm_up=1000,
        frames_per_row=2000,
        rows=3,
        sb3_frames=4000,
    ),
}


def problem_of(case: str, num_envs: int | None = None) -> Problem:
    """Return the problem with this name, optionally with another number of environments."""
    return PROBLEMS[case] if num_envs is None else replace(PROBLEMS[case], num_envs=num_envs)
