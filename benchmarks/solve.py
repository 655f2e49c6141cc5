"""Measure the time to solve a task with labrl's defaults and with Stable-Baselines3 and the Zoo's values."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import labrl
from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.report import Ratio, Report, Row
from labrl.session.callbacks.callback import Callback, SessionView

WINDOW = 100
"""Number of last episodes whose mean return must reach the goal."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """An environment and the mean return at which it counts as solved."""

    env: str
    """Name of the labrl environment; its agent is PPO with the preset of the pair."""
    gym_id: str
    goal: float
    """Mean return at which the task is solved."""
    budget: int
    """Number of frames of the Zoo's run."""
    num_envs: int
    zoo: dict[str, Any] = field(default_factory=dict)
    """Arguments of PPO, from the Zoo's hyperparams/ppo.yml."""
    falling: dict[str, float] = field(default_factory=dict)
    """Arguments of PPO that decrease linearly from this value to 0."""


TASKS = {
    "cartpole": Task(
        env="cartpole",
        gym_id="CartPole-v1",
        goal=475.0,
        budget=100_000,
        num_envs=8,
        zoo={
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
        },
        falling={"learning_rate": 1e-3, "clip_range": 0.2},
    ),
    "lunar_lander": Task(
        env="lunar_lander",
        gym_id="LunarLander-v3",
        goal=200.0,
        budget=1_000_000,
        num_envs=16,
        zoo={
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
    ),
}


def run(name: str, repeats: int, quick: bool) -> Report:
    """Train both sides until their last 100 episodes reach the goal, with a new seed in each round."""
    task = TASKS[name]
    spec: dict[str, Any] = {"name": name, "budget": 20_000 if quick else task.budget}
    results = take_turns(
        {side: partial(_measured, side=side, **spec) for side in ("labrl", "sb3")}, repeats, f"Solve {name}"
    )
    title = f"{task.gym_id} to a mean return of {task.goal:g}"
    seconds = {
        "labrl": Row("**labrl**, defaults: training", [m["seconds"] for m in results["labrl"]], "s"),
        "sb3": Row(
            "Stable-Baselines3, Zoo's values, 1 thread: training", [m["seconds"] for m in results["sb3"]], "s"
        ),
    }
    frames = [Row(f"{side}: frames", [m["frames"] for m in results[side]], "frames") for side in results]
    ratio = Ratio.of_medians(
        "Stable-Baselines3's seconds / labrl's", seconds["sb3"].values, seconds["labrl"].values
    )
    return Report(
        f"solve-{name}",
        title,
        [*seconds.values(), *frames],
        compared=(seconds["labrl"], seconds["sb3"], ratio),
    )


def _measured(round_: int, **spec: Any) -> Measured:
    return alone("benchmarks.solve", seed=round_, **spec)


def measure(side: str, name: str, seed: int, budget: int) -> Measured:
    """Measure frames and seconds until the task is solved; infinity if it is not within the budget."""
    return (_labrl if side == "labrl" else _sb3)(TASKS[name], seed, budget)


def solved(returns: Sequence[float], goal: float) -> bool:
    """Return whether there are WINDOW returns and their mean is at least the goal."""
    return len(returns) == WINDOW and sum(returns) / WINDOW >= goal


class UntilSolved(Callback):
    """End the session when the task is solved, and write frames and seconds as JSON to `path`."""

    def __init__(self, path: str, goal: float) -> None:
        self._path, self._goal, self._episodes = Path(path), goal, 0

    def step(self, session: SessionView) -> None:
        """Check the returns whenever an episode has ended."""
        if session.clock.episode == self._episodes:
            return
        self._episodes = session.clock.episode
        if solved([episode.episode_return for episode in session.episodes.latest], self._goal):
            reached = {"frames": session.clock.frame, "seconds": session.clock.wall}
            self._path.write_text(json.dumps(reached))
            self.gives_up = True


def _labrl(task: Task, seed: int, budget: int) -> Measured:
    folder = Path(tempfile.mkdtemp(prefix="labrl-bench-"))
    note = folder / "solved.json"
    overrides = [f"env={task.env}", f"seed={seed}", "meta.device=cpu", "meta.max_session=1", "wandb=disabled"]
    overrides += ["+callbacks.solved._target_=benchmarks.solve.UntilSolved", f"+callbacks.solved.path={note}"]
    overrides += [f"+callbacks.solved.goal={task.goal}", "meta.report=false", "meta.videos=false"]
    if budget < task.budget:
        overrides.append(f"env.max_frame={budget}")
    labrl.train([*overrides, f"hydra.run.dir={folder / 'run'}"])
    return json.loads(note.read_text()) if note.exists() else {"frames": math.inf, "seconds": math.inf}


def _sb3(task: Task, seed: int, budget: int) -> Measured:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    measured: Measured = {"frames": math.inf, "seconds": math.inf}

    class UntilSolvedInSB3(BaseCallback):
        def _on_training_start(self) -> None:
            self.began = time.perf_counter()

        def _on_step(self) -> bool:
            if not any(self.locals["dones"]):
                return True
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            if solved(returns, task.goal):
                measured.update(frames=self.num_timesteps, seconds=time.perf_counter() - self.began)
                return False
            return True

    values = {**task.zoo, **{name: partial(_scaled, start) for name, start in task.falling.items()}}
    agent = PPO(
        "MlpPolicy",
        make_vec_env(task.gym_id, task.num_envs, seed=seed),
        seed=seed,
        device="cpu",
        **values,
    )
    agent.learn(budget, callback=UntilSolvedInSB3())
    return measured


def _scaled(start: float, left: float) -> float:
    return start * left


if __name__ == "__main__":
    answer(measure)
