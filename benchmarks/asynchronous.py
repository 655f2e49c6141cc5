"""Measure the gain of asynchronous evaluation and acting in an environment whose step takes 5 ms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.labrl_side import train
from benchmarks.report import Ratio, Report, Row

SECONDS, LENGTH = 0.005, 200
"""Seconds of a step, and steps of an episode."""
PERIOD, PERIODS = 400, 5
"""Frames between two evaluations of one episode each, and the number of such periods.

The first period is a warm-up.
"""

ENV = [
    "env=gymnasium",
    "env.id=null",
    "env.name=slow",
    "env.num_envs=1",
    "env.fresh_env_per_episode=false",
    "env.make={_target_: benchmarks.slow_env.SlowEnv}",
    f"+env.kwargs.seconds={SECONDS}",
    f"+env.kwargs.length={LENGTH}",
]
AGENTS = {
    "PPO": ["agent=ppo", "agent.horizon=128", "agent.batch_size=64", "agent.epochs=4"],
    "DQN": [
        "agent=dqn",
        "agent.network.torso.mlp.hidden=[256,256]",
        "agent.batch_size=128",
        "agent.updates_per_frame=2",
        "agent.learning_starts=200",
        "agent.memory.capacity=10000",
    ],
}
EVALUATION, ASYNC_EVALUATION = ["meta.rigorous_eval=1"], ["meta.async_eval=true"]
ACTOR = ["meta/async_unroll=on"]
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "PPO, no evaluation": ("PPO", []),
    "PPO, evaluated in the loop": ("PPO", EVALUATION),
    "PPO, evaluated in a separate process": ("PPO", [*EVALUATION, *ASYNC_EVALUATION]),
    "DQN, no evaluation": ("DQN", []),
    "DQN, with an actor, no evaluation": ("DQN", ACTOR),
    "DQN, evaluated in the loop": ("DQN", EVALUATION),
    "DQN, with an actor, evaluated in a separate process": ("DQN", [*EVALUATION, *ASYNC_EVALUATION, *ACTOR]),
}
GAINS = {
    "evaluation in a separate process / in the loop (PPO)": (
        "PPO, evaluated in a separate process",
        "PPO, evaluated in the loop",
    ),
    "evaluation in a separate process / none (PPO)": (
        "PPO, evaluated in a separate process",
        "PPO, no evaluation",
    ),
    "with an actor / without (DQN)": ("DQN, with an actor, no evaluation", "DQN, no evaluation"),
    "both in separate processes / both in the loop (DQN)": (
        "DQN, with an actor, evaluated in a separate process",
        "DQN, evaluated in the loop",
    ),
}


def run(repeats: int, quick: bool) -> Report:
    """Measure the frames per second of all variants in turns."""
    periods = 2 if quick else PERIODS
    measures: dict[str, Callable[[int], Measured]] = {
        name: partial(_measured, agent=agent, overrides=overrides, periods=periods)
        for name, (agent, overrides) in VARIANTS.items()
    }
    results = take_turns(measures, repeats, "Asynchronous")
    fps = {name: [m["fps"] for m in measured] for name, measured in results.items()}
    return Report(
        "async",
        f"Asynchronous evaluation and acting: steps of {1000 * SECONDS:g} ms, "
        f"evaluation of an episode of {LENGTH} steps every {PERIOD} frames",
        [Row(name, values, "frames/s") for name, values in fps.items()],
        [Ratio.paired(gain, fps[with_], fps[without]) for gain, (with_, without) in GAINS.items()],
    )


def _measured(round_: int, agent: str, overrides: list[str], periods: int) -> Measured:
    return alone("benchmarks.asynchronous", agent=agent, overrides=overrides, periods=periods, seed=round_)


def measure(agent: str, overrides: list[str], periods: int, seed: int) -> Measured:
    """Measure the frames per second after the first period."""
    frequencies = [f"meta.log_frequency={PERIOD}", f"meta.eval_frequency={PERIOD}"]
    budget = [f"env.max_frame={periods * PERIOD}", f"seed={seed}", "meta.device=cpu"]
    budget += ["meta.report=false", "meta.videos=false"]
    _, rows = train([*ENV, *AGENTS[agent], *frequencies, *budget, *overrides])
    first, last = rows[0], rows[-1]
    return {"fps": (last["frame"] - first["frame"]) / (last["wall"] - first["wall"])}


if __name__ == "__main__":
    answer(measure)
