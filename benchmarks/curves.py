"""Runs on the results page that are not compared with published scores, with their curves.

The texts and titles below appear in docs/results.md, which `python -m benchmarks.results --minutes 0` writes.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from labrl.analysis.intervals import aggregates
from labrl.analysis.report.build import build_comparison
from labrl.run.run import Run


@dataclass(frozen=True)
class Chapter:
    """A chapter of the results page about a group of runs."""

    name: str
    """Name of the file that records its numbers."""
    title: str
    text: str
    """Explanation of the runs and the columns."""
    overrides: Mapping[str, list[str]]
    """Overrides of each run, by its name `<environment>_<agent>`."""
    with_curves: bool = True
    """Whether the page shows the curve of each run."""
    evaluated: bool = False
    """Whether returns are those of evaluation episodes, as in runs that learn from data only."""


ATARI = Chapter(
    name="atari",
    title="Atari",
    text="""One session each with `experiment=atari/v5` (sticky actions), most of them stopped before the end
of their budget for lack of time: `make results ARGS="pong_ppo --minutes 120"`. A frame is one
step of the agent, four of the emulator. *Return* is the raw score, the mean over the last 100
training episodes.""",
    overrides={
        f"{game}_{agent}": ["experiment=atari/v5", f"agent={agent}", f"env={game}", "meta.max_session=1"]
        for game in ("pong", "breakout")
        for agent in ("ppo", "a2c")
    },
)

MUJOCO = Chapter(
    name="mujoco",
    title="MuJoCo",
    text="""Two sessions of a million frames each, otherwise with the settings of SLM Lab's cells (16
environments), but with two networks of 64 x 64 units instead of 256 x 256: `make results
ARGS=hopper_ppo`. *Return* is the mean over the last 100 training episodes. SLM Lab publishes,
over four million frames and four sessions, 950 for InvertedPendulum, -5.0 for Reacher, 282 for
Swimmer and 1,654 for Hopper; these runs are a quarter as long and are not compared with them.""",
    overrides={
        f"{env}_ppo": [
            *(f"experiment=slm_lab/{env}", "agent=ppo"),
            *("env.max_frame=1e6", "meta.max_session=2"),
        ]
        for env in ("inverted_pendulum", "reacher", "swimmer", "hopper")
    },
)

PAIRS = Chapter(
    name="pairs",
    title="PQN and TQC",
    text="""All agents with their presets: PQN in three sessions with the budget of DQN, whose scores are in
the first table, and TQC beside SAC with the same number of frames: `make results
ARGS=lunar_lander_pqn`. *Return* is the mean over the last 100 training episodes. On one otherwise
idle core of an AMD EPYC, PQN makes about 4,200 frames per second on LunarLander and DQN 1,330, so
300,000 frames take 72 and 225 seconds. On BipedalWalker, which is solved at a return of 300,
neither agent learns to walk within 50,000 frames.""",
    overrides={
        name: [
            f"agent={name.rpartition('_')[2]}",
            f"env={env}",
            f"env.max_frame={frames}",
            f"meta.max_session={n}",
        ]
        for name, env, frames, n in (
            ("cartpole_pqn", "cartpole", "1e5", 3),
            ("lunar_lander_pqn", "lunar_lander", "3e5", 3),
            ("pendulum_10k_sac", "pendulum", "1e4", 2),
            ("pendulum_10k_tqc", "pendulum", "1e4", 2),
            ("bipedal_walker_sac", "bipedal_walker", "5e4", 1),
            ("bipedal_walker_tqc", "bipedal_walker", "5e4", 1),
        )
    },
)

KERNELS = Chapter(
    name="kernels",
    title="Kernels and autograd",
    text="""Agents with hand-derived gradients learn as well with these kernels (`_kernel`) as with autograd
(`_autograd`, `meta.kernels=torch`). Four sessions each, with fewer frames than the usual budget:
`make results ARGS="cartpole_kernel_ppo cartpole_autograd_ppo"`. *Return* is the mean over the last 100
training episodes.""",
    overrides={
        f"{env}_{way}_{agent}": [
            *(f"agent={agent}", f"env={env}", f"env.max_frame={frames}"),
            *("meta.max_session=4", f"meta.kernels={kernels}"),
        ]
        for env, agent, frames in (
            ("cartpole", "ppo", "5e4"),
            ("cartpole", "a2c", "1e5"),
            ("cartpole", "reinforce", "1e5"),
            ("cartpole", "dqn", "4e4"),
            ("pendulum", "td3", "5e3"),
            ("pendulum", "sac", "5e3"),
        )
        for way, kernels in (("kernel", "auto"), ("autograd", "torch"))
    },
    with_curves=False,
)

COLLECTED = "pendulum_collected_sac"
"""The run from whose replay buffer the agents of OFFLINE learn."""

OFFLINE = Chapter(
    name="offline",
    title="Offline data",
    text="""IQL and TD3+BC learn from the replay buffer of a run and never act themselves. They are compared
with behaviour cloning of the same data by the same agents (*cloned*). The data is of mixed
quality: all transitions of SAC in its first 10,000 frames on Pendulum, from random actions to
good ones. Four sessions of 5,000 updates each: `make results ARGS="pendulum_collected_sac
pendulum_offline_iql pendulum_cloned_iql"`. *Return* is the mean over the 20 episodes of the last
evaluation.""",
    overrides={
        COLLECTED: [
            *("agent=sac", "env=pendulum", "env.max_frame=1e4", "meta.max_session=1"),
            *("meta.rigorous_eval=4", "meta.eval_episodes=5"),
        ],
        **{
            f"pendulum_{way}_{agent}": [
                *(f"agent={agent}", "env=pendulum", "env.max_frame=5e3", "meta.max_session=4", *weight),
                *("agent/offline=run", f"agent.offline.folder=runs/results/{COLLECTED}"),
                *("agent.collect_until=0", "meta.rigorous_eval=4", "meta.eval_episodes=5"),
            ]
            for agent, beside in (("iql", "inverse_temperature"), ("td3_bc", "alpha"))
            for way, weight in (("offline", ()), ("cloned", (f"agent.{beside}=0",)))
        },
    },
    with_curves=False,
    evaluated=True,
)

CHAPTERS = (ATARI, MUJOCO, PAIRS, OFFLINE, KERNELS)

MEAN = "mean [95 % interval, Student's t]"

_TEXTS = ("environment", "agent", "further overrides", "commit")
"""Columns of text, which are aligned to the left."""

OVERRIDES = {name: overrides for chapter in CHAPTERS for name, overrides in chapter.overrides.items()}
"""Overrides of each run of all chapters, by its name."""


def section(chapter: Chapter, runs: Mapping[str, Run], pictures: Path) -> str:
    """Return the text of a chapter about the given runs and those recorded in the folder `pictures`.

    Records the numbers of the given runs and draws their curves in `pictures`. Returns '' without any run.
    """
    file = pictures / f"{chapter.name}.csv"
    rows: dict[str, Mapping[str, Any]] = {**record.read(file)}
    for name, run in runs.items():
        found = _row(name, run, chapter.evaluated)
        if name not in rows or found["frames"] >= int(rows[name]["frames"]):
            rows[name] = found | record.source(run, name, pictures)
            if chapter.with_curves:
                _draw(name, run, pictures)
    if not rows:
        return ""
    ordered = [rows[name] for name in chapter.overrides if name in rows]
    record.write(file, ordered)
    table = []
    for row in ordered:
        agent = _agent_of(chapter.overrides[row["name"]])
        table.append(
            {
                "environment": row["name"].removesuffix(f"_{agent}"),
                "agent": agent,
                "frames": f"{int(row['frames']):,}",
                "of a budget of": f"{int(row['budget']):,}",
                "return": _numbers(row["return"]),
                MEAN: _mean(row["return"]),
                "best return": _numbers(row["best"]),
                "further overrides": _as_code(row["set"]),
                "commit": record.origin(row, pictures),
            }
        )
    columns = [name for name in table[0] if any(each[name] for each in table)]
    aligned = ("---" if name in _TEXTS else "---:" for name in columns)
    lines = [_line(columns), f"|{'|'.join(aligned)}|"]
    lines += [_line(each[name] for name in columns) for each in table]
    curves = [
        f"![{row['name']}]({pictures.name}/{row['name']}.svg)" for row in ordered if chapter.with_curves
    ]
    return f"\n# {chapter.title}\n\n{chapter.text}\n\n" + "\n".join(lines) + "\n\n" + "\n".join(curves) + "\n"


def _agent_of(overrides: Iterable[str]) -> str:
    return next(one.removeprefix("agent=") for one in overrides if one.startswith("agent="))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(name: str, run: Run, evaluated: bool) -> dict[str, Any]:
    tables = [session.eval if evaluated else session.train for session in run.sessions]
    return {
        "name": name,
        "frames": min(int(table["frame"][-1]) for table in tables),
        "budget": int(run.config["env"]["max_frame"]),
        "return": " ".join(str(round(float(table["return_mean"][-1]), 2)) for table in tables),
        "best": " ".join(str(round(float(np.nanmax(table["return_mean"])), 2)) for table in tables),
        "set": " ".join(
            shlex.quote(override)
            for override in run.provenance.get("overrides", ())
            if override.startswith(("agent.", "env.")) and override not in OVERRIDES[name]
        ),
    }


def _numbers(returns: str) -> str:
    """Format the returns of the sessions, '16.65 12.1', as '16.6, 12.1'."""
    return ", ".join(f"{float(each):,.1f}" for each in returns.split())


def _mean(returns: str) -> str:
    """Format the mean with its 95 % interval (Student's t); '' for fewer than three sessions."""
    scores = np.array([float(each) for each in returns.split()])
    if len(scores) < 3:
        return ""
    mean = aggregates(scores)["mean"]
    return f"{mean.value:,.1f} [{mean.low:,.1f}, {mean.high:,.1f}]"


def _as_code(overrides: str) -> str:
    return f"`{overrides}`" if overrides else ""


def _draw(name: str, run: Run, pictures: Path) -> None:
    """Draw the returns of `run` over frames as SVG in `pictures`."""
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        build_comparison([run], Path(folder))
        (drawn,) = (Path(folder) / "plots").glob("return_frame*.svg")
        shutil.copyfile(drawn, pictures / f"{name}.svg")
