"""Stable-Baselines3 with the same hyperparameters, timed from rollout to rollout."""

from __future__ import annotations

import time
from typing import Any

import ale_py
import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

from benchmarks.alone import Measured, answer
from benchmarks.problems import PROBLEMS, Problem


class Stamps(BaseCallback):
    """The time at the start of each rollout, when all learning on the one before is done."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def _on_rollout_start(self) -> None:
        self.times.append(time.perf_counter())

    def _on_training_end(self) -> None:
        self.times.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def make_env(problem: Problem, seed: int) -> VecEnv:
    """DummyVecEnv; for Atari the v5 protocol (sticky actions 0.25) behind the Baselines wrappers."""
    if not problem.atari:
        return make_vec_env("CartPole-v1", problem.num_envs, seed=seed, vec_env_cls=DummyVecEnv)
    gymnasium.register_envs(ale_py)
    envs = make_atari_env(
        "ALE/Pong-v5",
        problem.num_envs,
        seed=seed,
        # The wrapper skips and takes the maximum itself, so the emulator must not; actions are sticky.
        env_kwargs={"frameskip": 1},
        vec_env_cls=DummyVecEnv,
    )
    return VecFrameStack(envs, n_stack=4)


def make_agent(problem: Problem, env: VecEnv, seed: int, **others: Any) -> PPO:
    return PPO(
        "CnnPolicy" if problem.atari else "MlpPolicy",
        env,
        n_steps=problem.horizon,
        n_epochs=problem.epochs,
        batch_size=problem.batch_size,
        gamma=problem.discount,
        gae_lambda=problem.gae_lambda,
        learning_rate=problem.lr,
        clip_range=problem.clip,
        ent_coef=problem.entropy_coef,
        vf_coef=problem.value_coef,
        max_grad_norm=problem.max_grad_norm,
        seed=seed,
        device="cpu",
        **others,
    )


def measure(problem: str, threads: int, rollouts: int, seed: int) -> Measured:
    """Frames per second over `rollouts` rollouts and their updates, after one that warms up."""
    torch.set_num_threads(threads)
    chosen, stamps = PROBLEMS[problem], Stamps()
    agent = make_agent(chosen, make_env(chosen, seed), seed)
    agent.learn((rollouts + 1) * chosen.rollout, callback=stamps)
    seconds = stamps.times[-1] - stamps.times[1]
    return {"fps": rollouts * chosen.rollout / seconds}


if __name__ == "__main__":
    answer(measure)
