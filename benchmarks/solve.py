"""Time to a solved CartPole: labrl's default beside Stable-Baselines3 with the Zoo's tuned values."""

from __future__ import annotations

import math
import time

from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.report import Report, Row

SOLVED = 475.0
"""Mean return of the last 100 episodes."""
WINDOW = 100
BUDGET = 100_000
"""Frames of the Zoo's run; labrl's default has a smaller budget of its own."""


def run(repeats: int, quick: bool) -> Report:
    """Each side until its last 100 episodes have a mean return of 475, a new seed each round."""
    budget = 4096 if quick else BUDGET
    results = take_turns(
        {
            "labrl": lambda i: alone("benchmarks.solve", side="labrl", seed=i, budget=budget),
            "sb3": lambda i: alone("benchmarks.solve", side="sb3", seed=i, budget=budget),
        },
        repeats,
        "Solve",
    )
    rows = []
    for name, title in (
        ("labrl", "**labrl**, default"),
        ("sb3", "Stable-Baselines3, Zoo's values, 1 thread"),
    ):
        for key, unit in (("seconds", "s"), ("frames", "frames"), ("whole", "s for the whole budget")):
            rows.append(Row(f"{title}: {key}", [m[key] for m in results[name]], unit))
    return Report("solve", f"CartPole to a mean return of {SOLVED:g}", rows)


def measure(side: str, seed: int, budget: int) -> Measured:
    """Frames and seconds until solved, infinity where that was not reached; seconds of the whole budget."""
    return _labrl(seed, budget) if side == "labrl" else _sb3(seed, budget)


def _labrl(seed: int, budget: int) -> Measured:
    from benchmarks.labrl_side import train

    words = [f"seed={seed}", "meta.log_frequency=1000", "meta.device=cpu"]
    if budget < BUDGET:
        words.append(f"env.max_frame={budget}")
    _, rows = train(words)
    solved = [row for row in rows if row["return_mean"] >= SOLVED and row["episode"] >= WINDOW]
    first = solved[0] if solved else {"frame": math.inf, "wall": math.inf}
    return {"frames": first["frame"], "seconds": first["wall"], "whole": rows[-1]["wall"]}


def _sb3(seed: int, budget: int) -> Measured:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    measured: Measured = {"frames": math.inf, "seconds": math.inf, "whole": math.inf}

    class UntilSolved(BaseCallback):
        def _on_training_start(self) -> None:
            self.began = time.perf_counter()

        def _on_rollout_end(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            solved = len(returns) == WINDOW and sum(returns) / WINDOW >= SOLVED
            if solved and math.isinf(measured["frames"]):
                measured.update(frames=self.num_timesteps, seconds=time.perf_counter() - self.began)

        def _on_training_end(self) -> None:
            measured["whole"] = time.perf_counter() - self.began

        def _on_step(self) -> bool:
            return True

    # RL Baselines3 Zoo, hyperparams/ppo.yml, CartPole-v1.
    agent = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    agent.learn(budget, callback=UntilSolved())
    return measured


if __name__ == "__main__":
    answer(measure)
