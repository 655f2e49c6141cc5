"""Measure the time to solve a task with labrl's defaults and with Stable-Baselines3 and the Zoo's values."""

from __future__ import annotations

import json
import math
import shlex
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import labrl
from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.record import commit_text
from benchmarks.report import Ratio, Report, Row, processor
from labrl.run.atomic import write_atomic
from labrl.session.callbacks.callback import Callback, SessionView

WINDOW = 100
"""Number of last episodes whose mean return must reach the goal."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """An environment and the mean return at which it counts as solved."""

    gym_id: str
    goal: float
    """Mean return at which the task is solved."""
    budget: int
    """Largest number of frames of either side."""
    overrides: tuple[str, ...]
    """Overrides of labrl's run; the rest are its defaults."""
    algorithm: str = "PPO"
    """Name of the algorithm in Stable-Baselines3."""
    num_envs: int = 1
    """Number of environments of Stable-Baselines3."""
    normalized: bool = False
    """Whether Stable-Baselines3 normalizes observations and rewards."""
    zoo: dict[str, Any] | None = None
    """Its arguments, from the Zoo's hyperparams/; None: its training would take more than 20 minutes."""
    falling: dict[str, float] = field(default_factory=dict)
    """Its arguments that decrease linearly from this value to 0."""
    peer: str = "not run"
    """What is known of Stable-Baselines3 while it is not measured."""
    known: str = "not run"
    """What is known of labrl while it is not measured."""

    @property
    def command(self) -> str:
        """The command of labrl."""
        return shlex.join(["labrl", *self.overrides])


TASKS = {
    "cartpole": Task(
        gym_id="CartPole-v1",
        goal=475.0,
        budget=100_000,
        overrides=("env=cartpole",),
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
    "acrobot": Task(
        gym_id="Acrobot-v1",
        goal=-100.0,
        budget=1_000_000,
        overrides=("env=acrobot",),
        num_envs=16,
        normalized=True,
        zoo={"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    ),
    "lunar_lander": Task(
        gym_id="LunarLander-v3",
        goal=200.0,
        budget=1_000_000,
        overrides=("env=lunar_lander",),
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
    # With PPO, neither side's training episodes reach this mean: the Zoo's trained agent has -172.
    "pendulum": Task(
        gym_id="Pendulum-v1",
        goal=-150.0,
        budget=50_000,
        overrides=("agent=sac", "env=pendulum", "env.max_frame=5e4"),
        algorithm="SAC",
        zoo={"learning_rate": 1e-3},
    ),
    "pong": Task(
        gym_id="ALE/Pong-v5",
        goal=18.0,
        budget=1_600_000,
        overrides=("experiment=atari/pong_fast",),
        peer="at most 427: 390 frames/s, 20.99 after 10,000,000 frames",
        known="not run; all sessions of `pong_fast` [below](#atari) reached it within 1,100,000 frames",
    ),
    "hopper": Task(
        gym_id="Hopper-v5",
        goal=2000.0,
        budget=1_000_000,
        overrides=("env=hopper", "env.max_frame=1e6"),
        peer="not measured; 2,410 after 1,000,000 frames",
        known="not run; both sessions of `hopper_ppo` [below](#mujoco) reached it within 1,000,000 frames",
    ),
}


def run(name: str, repeats: int, quick: bool) -> Report:
    """Train both sides until their last 100 episodes reach the goal, with a new seed in each round."""
    task = TASKS[name]
    spec: dict[str, Any] = {"name": name, "budget": 20_000 if quick else task.budget}
    sides = ("labrl", "sb3") if task.zoo is not None else ("labrl",)
    results = take_turns(
        {side: partial(_measured, side=side, **spec) for side in sides}, repeats, f"Solve {name}"
    )
    titles = {
        "labrl": "**labrl**, defaults: training",
        "sb3": "Stable-Baselines3, Zoo's values, 1 thread: training",
    }
    seconds = {side: Row(titles[side], [m["seconds"] for m in results[side]], "s") for side in sides}
    frames = [Row(f"{side}: frames", [m["frames"] for m in results[side]], "frames") for side in sides]
    report = Report(
        f"solve-{name}", f"{task.gym_id} to a mean return of {task.goal:g}", [*seconds.values(), *frames]
    )
    if "sb3" in seconds:
        ours, theirs = seconds.values()
        title = "Stable-Baselines3's seconds / labrl's"
        report.compared = ours, theirs, Ratio.of_medians(title, theirs.values, ours.values)
    return report


HEAD = """## Time to result

Minutes of training on two cores until the mean return of the last 100 training episodes reaches the goal, the
median over seeds: `make bench ARGS=solve` with labrl's defaults, and in alternating runs Stable-Baselines3
with the values of RL Baselines3 Zoo. Frames do not depend on what else the machine does, but minutes do, so
those of a shared machine are not shown. In brackets: how many seeds reached the goal within the budget.
Stable-Baselines3 was not trained on Pong and Hopper: the table has the return and the frames of the Zoo's own
trained agents, and for Pong the time that these frames take at its [measured speed](explanation/speed.md).

"""

NOT_ALONE = "not measured alone"

RECORD = "solve.json"
"""Name of the file of the recorded measurements."""


def keep(found: Path, folder: Path) -> dict[str, Any]:
    """Record the tasks measured in the file `found`, if it exists, in `folder`. Return all recorded ones."""
    file = folder / RECORD
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    present = json.loads(found.read_text()) if found.exists() else {}
    known |= {
        case: stored
        for case, stored in present.items()
        if case.removeprefix("solve-") in TASKS and not stored["setting"].get("quick")
    }
    if known:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(known, indent=1) + "\n")
    return known


def as_markdown(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all tasks as Markdown.

    measured: the stored reports by case, as `Results` writes them.
    """
    columns = [
        *("task", "goal", "minutes", "frames", "seeds", "Stable-Baselines3: minutes", "frames"),
        *("command", "commit", "machine"),
    ]
    lines = [f"| {' | '.join(columns)} |", "|---|---:|---:|---:|---:|---:|---:|---|---|---|"]
    for name, task in TASKS.items():
        case, goal = measured.get(f"solve-{name}"), f"{task.goal:,.0f}".replace("-", "−")
        ours, theirs, about = [task.known, "–", "–"], [task.peer, "–"], ["–", "–"]
        if case is not None:
            rows, setting = [row["values"] for row in case["rows"]], case["setting"]
            sides = len(rows) // 2
            found = [_cells(rows[i], rows[sides + i], setting.get("shared", False)) for i in range(sides)]
            ours = [*found[0], str(len(rows[0]))]
            theirs = found[1] if sides == 2 else theirs
            about = [commit_text(setting.get("commit", "")), processor(setting)]
        cells = [task.gym_id, goal, *ours, *theirs, f"`{task.command}`", *about]
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


def _cells(seconds: Sequence[float | None], frames: Sequence[float | None], shared: bool) -> list[str]:
    """Return the median minutes and frames of one side; None: the goal was not reached."""
    reached = sum(value is not None for value in frames)
    middle = statistics.median(math.inf if value is None else value for value in frames)
    count = f" ({reached} of {len(frames)})" if reached < len(frames) else ""
    if math.isinf(middle):
        return ["–", f"not reached{count}"]
    minutes = statistics.median(math.inf if value is None else value for value in seconds) / 60
    return [NOT_ALONE if shared else f"{minutes:.2g}", f"{middle:,.0f}{count}"]


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
    with tempfile.TemporaryDirectory(prefix="labrl-bench-") as folder:
        return _labrl_in(Path(folder), task, seed, budget)


def _labrl_in(folder: Path, task: Task, seed: int, budget: int) -> Measured:
    note = folder / "solved.json"
    overrides = [*task.overrides, f"seed={seed}", "meta.device=cpu", "meta.max_session=1", "wandb=disabled"]
    overrides += ["+callbacks.solved._target_=benchmarks.solve.UntilSolved", f"+callbacks.solved.path={note}"]
    overrides += [f"+callbacks.solved.goal={task.goal}", "meta.report=false", "meta.videos=false"]
    if budget < task.budget:
        overrides = [one for one in overrides if not one.startswith("env.max_frame=")]
        overrides.append(f"env.max_frame={budget}")
    labrl.train([*overrides, f"hydra.run.dir={folder / 'run'}"])
    return json.loads(note.read_text()) if note.exists() else {"frames": math.inf, "seconds": math.inf}


def _sb3(task: Task, seed: int, budget: int) -> Measured:
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

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

    values = {**(task.zoo or {}), **{name: partial(_scaled, start) for name, start in task.falling.items()}}
    envs = make_vec_env(task.gym_id, task.num_envs, seed=seed)
    if task.normalized:
        envs = VecNormalize(envs, gamma=values["gamma"])
    algorithm = getattr(stable_baselines3, task.algorithm)
    agent = algorithm("MlpPolicy", envs, seed=seed, device="cpu", **values)
    agent.learn(budget, callback=UntilSolvedInSB3())
    return measured


def _scaled(start: float, left: float) -> float:
    return start * left


if __name__ == "__main__":
    answer(measure)
