"""Time Stable-Baselines3 with the same hyperparameters between two update phases."""

from __future__ import annotations

import time
from typing import Any

import ale_py
import gymnasium
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

from benchmarks.alone import Measured, answer
from benchmarks.problems import A2CProblem, ActorCriticProblem, DQNProblem, PPOProblem, Problem, problem_of


class Stamps(BaseCallback):
    """Record frame and time at the start of each rollout, when learning from the previous one is done."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps: list[tuple[int, float]] = []

    def _on_rollout_start(self) -> None:
        self.stamps.append((self.num_timesteps, time.perf_counter()))

    def _on_training_end(self) -> None:
        self.stamps.append((self.num_timesteps, time.perf_counter()))

    def _on_step(self) -> bool:
        return True


def make_env(problem: Problem, seed: int) -> VecEnv:
    """Make a DummyVecEnv; for Atari with the v5 protocol (sticky actions 0.25) and the Baselines wrappers."""
    if not problem.atari:
        return make_vec_env(problem.gym_id, problem.num_envs, seed=seed, vec_env_cls=DummyVecEnv)
    gymnasium.register_envs(ale_py)
    envs = make_atari_env(
        "ALE/Pong-v5",
        problem.num_envs,
        seed=seed,
        # The wrapper skips frames and takes the maximum, so the emulator must not; its actions are sticky.
        env_kwargs={"frameskip": 1},
        vec_env_cls=DummyVecEnv,
    )
    return VecFrameStack(envs, n_stack=4)


def make_agent(problem: Problem, env: VecEnv, seed: int) -> BaseAlgorithm:
    """Make Stable-Baselines3's agent of a problem."""
    shared: dict[str, Any] = {
        "policy": "CnnPolicy" if problem.atari else "MlpPolicy",
        "env": env,
        "learning_rate": problem.lr,
        "gamma": problem.discount,
        "batch_size": problem.batch_size,
        "seed": seed,
        "device": "cpu",
    }
    if isinstance(problem, ActorCriticProblem):
        return {"sac": SAC, "td3": TD3}[problem.agent](
            **shared,
            buffer_size=problem.capacity,
            learning_starts=problem.warm_up,
            train_freq=1,
            gradient_steps=1,
            policy_kwargs={"net_arch": list(problem.hidden)},
        )
    shared["max_grad_norm"] = problem.max_grad_norm
    if isinstance(problem, PPOProblem):
        return PPO(
            **shared,
            n_steps=problem.horizon,
            n_epochs=problem.epochs,
            gae_lambda=problem.gae_lambda,
            clip_range=problem.clip,
            ent_coef=problem.entropy_coef,
            vf_coef=problem.value_coef,
        )
    if isinstance(problem, A2CProblem):
        del shared["batch_size"]
        return A2C(
            **shared,
            n_steps=problem.horizon,
            ent_coef=problem.entropy_coef,
            vf_coef=problem.value_coef / 2,  # labrl's coefficient multiplies half the squared error
        )
    assert isinstance(problem, DQNProblem)
    return DQN(
        **shared,
        buffer_size=problem.capacity,
        learning_starts=problem.warm_up,
        train_freq=problem.frames_per_update,
        gradient_steps=1,
        target_update_interval=problem.target_every,
        exploration_initial_eps=problem.epsilon,
        exploration_final_eps=problem.epsilon,
        policy_kwargs={"net_arch": list(problem.hidden)} if problem.hidden else None,
    )


def measure(problem: str, threads: int, frames: int, seed: int) -> Measured:
    """Measure the frames per second over `frames` frames and their updates, after the warm-up."""
    torch.set_num_threads(threads)
    chosen, stamps = problem_of(problem), Stamps()
    agent = make_agent(chosen, make_env(chosen, seed), seed)
    agent.learn(chosen.warm_up + frames, callback=stamps)
    first = next(stamp for stamp in stamps.stamps if stamp[0] >= chosen.warm_up)
    last = stamps.stamps[-1]
    return {"fps": (last[0] - first[0]) / (last[1] - first[1])}


if __name__ == "__main__":
    answer(measure)
