"""Measure training on a GPU with CUDA graphs, without them, and with Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.labrl_side import QUIET, read_rows, train
from benchmarks.report import Ratio, Report, Row


@dataclass(frozen=True)
class Task:
    """An agent in an environment."""

    title: str
    overrides: tuple[str, ...]
    """Overrides of labrl's presets."""
    warm_up: int
    """Frames before those that are timed."""
    frames: int
    """Frames that are timed."""
    sb3: dict[str, Any] | None = None
    """Stable-Baselines3's agent and its arguments, with the same hyperparameters; None if it has none."""
    sb3_frames: int = 0
    num_envs: int = 8
    gym_id: str = "ALE/Pong-v5"


LEANRL = ("agent.batch_size=256", "agent.epochs=4", "agent.gae_lambda=0.95", "agent.lr=2.5e-4")
"""Hyperparameters of PPO in LeanRL: 8 environments, 128 steps, 4 epochs of 4 minibatches."""

PPO: dict[str, Any] = {"agent": "PPO", "n_steps": 128, "clip_range": 0.1, "ent_coef": 0.01}

TASKS = {
    "ppo-pong": Task(
        "PPO on Pong, labrl's preset (8 x 128 steps, 3 epochs, minibatches of 32)",
        ("agent=ppo", "env=pong"),
        warm_up=10_240,
        frames=30_720,
        sb3={**PPO, "n_epochs": 3, "batch_size": 32, "learning_rate": 2.5e-4, "gae_lambda": 0.85},
        sb3_frames=4096,
    ),
    "ppo-pong-leanrl": Task(
        "PPO on Pong, hyperparameters of LeanRL (8 x 128 steps, 4 epochs, minibatches of 256)",
        ("agent=ppo", "env=pong", *LEANRL),
        warm_up=10_240,
        frames=51_200,
        sb3={**PPO, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4, "gae_lambda": 0.95},
        sb3_frames=8192,
    ),
    "dqn-pong": Task(
        "DQN on Pong, labrl's preset (8 environments, an update of 32 transitions every 4 frames)",
        ("agent=dqn", "env=pong", "agent.learning_starts=2000", "agent.exploration.epsilon=0.05"),
        warm_up=8192,
        frames=16_384,
        sb3={
            "agent": "DQN", "buffer_size": 50_000, "learning_starts": 2000, "train_freq": 1,
            "gradient_steps": 2, "batch_size": 32, "learning_rate": 1e-4, "target_update_interval": 1000,
            "exploration_initial_eps": 0.05, "exploration_final_eps": 0.05,
        },
        sb3_frames=4096,
    ),
    "pqn-pong": Task(
        "PQN on Pong, labrl's preset (128 x 32 steps, 2 epochs, minibatches of 128)",
        ("agent=pqn", "env=pong"),
        warm_up=16_384,
        frames=65_536,
    ),
    "sac-half_cheetah": Task(
        "SAC on HalfCheetah, labrl's preset (1 environment, an update of 256 transitions every frame)",
        ("agent=sac", "env=half_cheetah", "agent.learning_starts=1000"),
        warm_up=2000,
        frames=8000,
        sb3={"agent": "SAC", "learning_starts": 1000, "batch_size": 256, "learning_rate": 3e-4},
        sb3_frames=1500,
        num_envs=1,
        gym_id="HalfCheetah-v5",
    ),
    "td3-half_cheetah": Task(
        "TD3 on HalfCheetah, labrl's preset (1 environment, an update of 256 transitions every frame)",
        ("agent=td3", "env=half_cheetah", "agent.learning_starts=1000"),
        warm_up=2000,
        frames=8000,
        sb3={"agent": "TD3", "learning_starts": 1000, "batch_size": 256, "learning_rate": 1e-3},
        sb3_frames=2000,
        num_envs=1,
        gym_id="HalfCheetah-v5",
    ),
}  # fmt: skip

GRAPHS = {"auto": "with CUDA graphs", "off": "without"}


SESSIONS = (1, 2, 4, 8)
"""Numbers of sessions that share the GPU and the cores."""


def run(repeats: int, quick: bool) -> Report:
    """Measure all tasks. quick: measure for a moment only, on the CPU if there is no GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    measures: dict[str, Callable[[int], Measured]] = {}
    for name, task in TASKS.items():
        for graphs in GRAPHS:
            measures[f"{name} {graphs}"] = partial(
                _alone, side="labrl", task=name, graphs=graphs, quick=quick, device=device
            )
        if task.sb3 is not None:
            measures[f"{name} sb3"] = partial(_alone, side="sb3", task=name, quick=quick, device=device)
    results = take_turns(measures, repeats, "GPU")
    rates = {name: [one["fps"] for one in measured] for name, measured in results.items()}
    rows, ratios = [], []
    for name, task in TASKS.items():
        graphed, plain, sb3 = (rates.get(f"{name} {side}") for side in ("auto", "off", "sb3"))
        assert graphed is not None
        assert plain is not None
        rows += [Row(f"**{task.title}**, with graphs", graphed, "frames/s")]
        rows += [Row(f"{name}, without graphs", plain, "frames/s")]
        ratios.append(Ratio.paired(f"{name}: with / without graphs", graphed, plain))
        if sb3 is not None:
            rows.append(Row(f"{name}, Stable-Baselines3", sb3, "frames/s"))
            ratios.append(Ratio.paired(f"{name}: with graphs / Stable-Baselines3", graphed, sb3))
    return Report("gpu", "Training on a GPU", rows, ratios)


def run_sessions(repeats: int, quick: bool) -> Report:
    """Measure PPO on Pong in several sessions at once. quick: measure for a moment only."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    titles = {count: f"{count} session{'s' * (count > 1)} at once" for count in SESSIONS}
    measures: dict[str, Callable[[int], Measured]] = {
        titles[count]: partial(
            _alone, side="labrl", task="ppo-pong", sessions=count, quick=quick, device=device
        )
        for count in SESSIONS
    }
    results = take_turns(measures, repeats, "GPU")
    rates = {name: [one["fps"] for one in measured] for name, measured in results.items()}
    title = "PPO on Pong, labrl's preset, in several sessions on one GPU: sum of their frames"
    ratios = [
        Ratio.paired(f"{titles[count]} / {titles[1]}", rates[titles[count]], rates[titles[1]])
        for count in SESSIONS[1:]
    ]
    return Report(
        "gpu-sessions", title, [Row(name, rate, "frames/s") for name, rate in rates.items()], ratios
    )


def _alone(round_: int, **spec: Any) -> Measured:
    return alone("benchmarks.gpu", seed=round_, **spec)


def measure(
    side: str, task: str, seed: int, quick: bool, device: str, graphs: str = "auto", sessions: int = 1
) -> Measured:
    """Return the frames per second of one side of a task, the sum over its sessions."""
    if side == "sb3":
        return _measure_sb3(TASKS[task], seed, quick, device)
    chosen = TASKS[task]
    warm_up, frames = (2048, 2048) if quick else (chosen.warm_up, chosen.frames)
    if graphs == "off" and not quick:  # several times as slow
        frames = warm_up
    run, _ = train(
        [
            *chosen.overrides,
            f"seed={seed}",
            f"env.max_frame={warm_up + frames}",
            f"meta.log_frequency={warm_up}",
            "meta.eval_frequency=1000000",
            f"meta.device={device}",
            f"meta.graphs={graphs}",
            *QUIET,
        ],
        sessions,
    )
    return {"fps": sum(_rate(read_rows(run.parent / f"session_{n}"), warm_up) for n in range(sessions))}


def _rate(rows: list[dict[str, float]], warm_up: int) -> float:
    """Return the frames per second of a session after its warm-up."""
    first = next(row for row in rows if row["frame"] >= warm_up)
    return (rows[-1]["frame"] - first["frame"]) / (rows[-1]["wall"] - first["wall"])


def _measure_sb3(task: Task, seed: int, quick: bool, device: str) -> Measured:
    import ale_py
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

    from benchmarks.sb3_side import Stamps

    assert task.sb3 is not None
    options = dict(task.sb3)
    images = task.gym_id.startswith("ALE")
    if images:
        gymnasium.register_envs(ale_py)
        made = make_atari_env(task.gym_id, task.num_envs, seed=seed, env_kwargs={"frameskip": 1})
        env: VecEnv = VecFrameStack(made, n_stack=4)
    else:
        env = make_vec_env(task.gym_id, task.num_envs, seed=seed)
    kind = vars(stable_baselines3)[options.pop("agent")]
    policy = "CnnPolicy" if images else "MlpPolicy"
    agent = kind(policy, env, seed=seed, device=device, **options)
    warm_up = min(task.warm_up, 2048)
    frames = 256 if quick else task.sb3_frames
    stamps = Stamps()
    agent.learn(warm_up + frames, callback=stamps)
    first = next(stamp for stamp in stamps.stamps if stamp[0] >= warm_up)
    last = stamps.stamps[-1]
    return {"fps": (last[0] - first[0]) / (last[1] - first[1])}


if __name__ == "__main__":
    answer(measure)
