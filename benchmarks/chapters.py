"""Chapters of the results page: Atari, MuJoCo, newer agents, offline data, and kernels beside autograd."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.record import NOT_RECORDED, Records, session_rows
from labrl.analysis.intervals import aggregates
from labrl.run.run import Run


@dataclass(frozen=True)
class Chapter:
    """A chapter of the results page about a group of runs."""

    name: str
    """Name in the file of its curves."""
    title: str
    text: str
    """Explanation of the runs and the columns."""
    overrides: Mapping[str, list[str]]
    """Overrides of each run, by its name `<environment>_<agent>`."""
    with_curves: bool = True
    """Whether the page of curves shows the runs."""
    goals: tuple[float, ...] = ()
    """Returns for which the table has the frames after which they were reached."""
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Mean and standard deviation of a score that others publish for the same number of frames."""
    publisher: str = ""
    """Who published these scores."""
    evaluated: bool = False
    """Whether returns are those of evaluation episodes, as in runs that learn from data only."""


ATARI = Chapter(
    name="atari",
    title="Atari",
    goals=(0, 10, 18),
    text="""One session each with `experiment=atari/v5` (sticky actions), most of them stopped before the end
of their budget for lack of time: `make results ARGS="pong_ppo --minutes 120"`. A frame is one
step of the agent, four of the emulator. *Return* is the raw score, the mean over the last 100
training episodes. *Minutes* are those of each session on two cores, which the sessions of a run share.

`pong_fast` is `experiment=atari/pong_fast`: PPO without sticky actions, to a return of 18 within 1.6 million
frames, in three sessions; `pong_fast_sticky` is one session of it with sticky actions, whose cores were
shared with other trainings. The values are those that rl_games documents for Pong: 64 environments, a
learning rate that follows the divergence (`agent.lr={kind: kl, rate: 3e-4, target: 0.01, max: 2e-3}`),
normalized values with the weight 1, gradients of at most 1, and ELU.
They are not the preset of Pong: with sticky actions, one seed reached 3 after a million frames, and two
seeds of the preset −2 and 10. Besides, all games have the same presets, so that scores over several games
compare agents and not values that were tuned on one of them.

`1500k` are runs of 1.5 million frames with sticky actions, one seed each: with the preset of PPO, whose
learning rate falls to 0 over the run, and with the values of `pong_fast` (`1500k_fast`). The preset, whose
minibatches have 32 steps, takes about twice as long for a frame and was stopped after 39 minutes, at two
thirds of its frames. By then its return on Breakout was almost three times the final return of the values of
`pong_fast`; on Space Invaders it rose faster, and both ended near 490. Both games keep the preset. The column
*frames to* has scores of Pong, which say little of other games.

The table below has earlier runs of PPO without sticky actions, one seed each, with a clip range of 0.2 and
`gae_lambda=0.95`: the last two with the values of `pong_fast` at commit `d38d7eee`, the two before them at
`25ea5354`, the others at `5036a2a`. *kl* is `agent.lr={kind: kl, rate: 5e-4, target: 0.02}`, whose rate rose
to its default `max` of 1e-2 within the first rollouts, which made the values constant; a `max` of 5e-4
prevents that.

| steps per update | minibatch | epochs | learning rate and entropy coefficient | return at frames |
|---|---:|---:|---|---|
| 8 x 128 | 128 | 4 | 5e-4 and 0.01, constant | 10 at 520k, 14.9 at 620k, 16.4 at 720k, 17.9 at 1.5 M |
| 8 x 128 | 128 | 4 | both falling to 0 at 1 M; another seed | −14 at 600k, −7 at 1 M |
| 16 x 128 | 256 | 3 | not recorded | −9 at 720k, 13.8 at 1.5 M |
| 64 x 128 | 2,048 | 4 | not recorded | −20 at 480k |
| 8 x 128 | 128 | 4 | kl with `max: 5e-4`, 0.01 to 0.001 | −8.5 at 490k, 4.9 at 730k, 12.4 at 1.3 M |
| 8 x 128 | 128 | 4 | kl and 0.01, with `normalize_value` | −20.4 at 310k: stopped |
| 64 x 128 | 2,048 | 4 | `pong_fast` | −11 at 500k, 14.1 at 800k, 18.1 at 909k, 18.9 at 1.4 M |
| 64 x 128 | 2,048 | 4 | `pong_fast`; another seed | −14.5 at 550k, −0.8 at 850k, 13.4 at 1.3 M: stopped |""",
    overrides={
        **{
            f"{game}_{agent}": ["experiment=atari/v5", f"agent={agent}", f"env={game}", "meta.max_session=1"]
            for game in ("pong", "breakout")
            for agent in ("ppo", "a2c")
        },
        "pong_fast_ppo": ["experiment=atari/pong_fast", "agent=ppo"],
        "pong_fast_sticky_ppo": [
            *("experiment=atari/pong_fast", "agent=ppo"),
            *("env.sticky_actions=0.25", "meta.max_session=1"),
        ],
        **{
            f"{game}_{recipe}_ppo": [
                *(f"experiment=atari/{experiment}", "agent=ppo", f"env={game}"),
                *("env.sticky_actions=0.25", "env.max_frame=1.5e6", "meta.max_session=1"),
            ]
            for game in ("breakout", "space_invaders")
            for recipe, experiment in (("1500k", "v5"), ("1500k_fast", "pong_fast"))
        },
        "pong_pqn": ["experiment=atari/v5", "agent=pqn", "env=pong", "meta.max_session=1"],
    },
)

MUJOCO = Chapter(
    name="mujoco",
    title="MuJoCo",
    text="""Two sessions each, with the settings of SLM Lab's cells (16 environments): a million frames of
PPO, but with two networks of 64 x 64 units instead of 256 x 256, and 200,000 frames of SAC, which updates
once per frame. For example: `make results ARGS=hopper_ppo`. *Return* is the mean over the last 100 training
episodes, and *minutes* are those of each session on two cores, which both share. SLM Lab publishes,
over four million frames and four sessions, 950 for InvertedPendulum, -5.0 for Reacher, 282 for
Swimmer and 1,654 for Hopper; these runs are shorter and are not compared with them.
CleanRL publishes the same quantity for PPO after as many frames, with its standard deviation over three
seeds, but in version 4 of the environments; labrl has version 5, so the scores stand beside each other
without a verdict. TQC was not run.""",
    overrides={
        f"{env}_{agent}": [
            *(f"experiment=slm_lab/{env}", f"agent={agent}"),
            *(f"env.max_frame={frames}", "meta.max_session=2"),
        ]
        for agent, frames, envs in (
            ("ppo", "1e6", ("inverted_pendulum", "reacher", "swimmer", "hopper", "half_cheetah", "walker2d")),
            ("sac", "2e5", ("hopper", "half_cheetah")),
        )
        for env in envs
    },
    published={
        "inverted_pendulum_ppo": (963.09, 22.20),
        "hopper_ppo": (2382.86, 271.74),
        "half_cheetah_ppo": (1442.64, 46.03),
        "walker2d_ppo": (2287.95, 571.78),
    },
    publisher="CleanRL, version 4",
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
with behavior cloning of the same data by the same agents (*cloned*). The data is of mixed
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

_TEXTS = ("environment", "agent", "further overrides", "commit", "configuration", "machine")
"""Columns of text, which are aligned to the left."""

OVERRIDES = {name: overrides for chapter in CHAPTERS for name, overrides in chapter.overrides.items()}
"""Overrides of each run of all chapters, by its name."""


def section(chapter: Chapter, runs: Mapping[str, Run], records: Records) -> str:
    """Return the text of a chapter about the given runs and those recorded. Returns '' without any run.

    Records the given runs that have at least as many frames as what is recorded of them.
    """
    for name, run in runs.items():
        rows, known = session_rows(run, chapter.evaluated, chapter.goals), records.numbers.get(name)
        if known is None or _frames(rows) >= _frames(known):
            agent = _agent_of(chapter.overrides[name])
            about = {"environment": name.removesuffix(f"_{agent}"), "agent": agent, "set": _set(name, run)}
            records.keep(name, [about | row for row in rows], run, chapter.evaluated)
    if not any(name in records.numbers for name in chapter.overrides):
        return ""
    frames_to = "frames to " + " / ".join(f"{goal:g}" for goal in chapter.goals)
    table = []
    for name, overrides in chapter.overrides.items():
        rows, agent = records.numbers.get(name, []), _agent_of(overrides)
        about = {"environment": name.removesuffix(f"_{agent}"), "agent": agent}
        if name in chapter.published:
            mean, deviation = chapter.published[name]
            beside = {chapter.publisher: f"{mean:,.1f} ± {deviation:,.1f}"}
        else:
            beside = {chapter.publisher: ""} if chapter.publisher else {}
        if not rows:
            table.append({**about, "frames": "not run", **beside})
        else:
            returns = [float(row["return"]) for row in rows]
            table.append(
                {
                    **about,
                    "frames": f"{_frames(rows):,}",
                    "of a budget of": f"{int(rows[0]['budget']):,}",
                    "return": _numbers(returns),
                    MEAN: _mean(returns),
                    **beside,
                    frames_to: _reached(row["reached"] for row in rows) if chapter.goals else "",
                    "best return": _numbers(float(row["best"]) for row in rows),
                    "minutes": ", ".join(row["minutes"] for row in rows if row["minutes"]),
                    "further overrides": f"`{rows[0]['set']}`" if rows[0]["set"] else "",
                    **records.origin(name),
                }
            )
    longest = max(table, key=len)
    columns = [name for name in longest if any(each.get(name) for each in table)]
    aligned = ("---" if name in _TEXTS else "---:" for name in columns)
    lines = [_line(columns), f"|{'|'.join(aligned)}|"]
    lines += [_line(each.get(name, "–") for name in columns) for each in table]
    return f"\n## {chapter.title}\n\n{chapter.text}\n\n" + "\n".join(lines) + "\n"


def _frames(rows: Iterable[Mapping[str, Any]]) -> int:
    return min(int(row["frames"]) for row in rows)


def _set(name: str, run: Run) -> str:
    """Return the overrides of the agent and the environment that a run had besides those of its chapter."""
    return " ".join(
        shlex.quote(override)
        for override in run.provenance.get("overrides", ())
        if override.startswith(("agent.", "env.")) and override not in OVERRIDES[name]
    )


def _agent_of(overrides: Iterable[str]) -> str:
    return next(one.removeprefix("agent=") for one in overrides if one.startswith("agent="))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _reached(frames: Iterable[str]) -> str:
    """Format the frames after which the sessions reached the goals, such as '5,000 / –, 7,000 / 9,000'."""
    sessions = [
        " / ".join(f"{int(one):,}" if one.isdigit() else one for one in each.split()) for each in frames
    ]
    return ", ".join(sessions) if all(sessions) else NOT_RECORDED


def _numbers(returns: Iterable[float]) -> str:
    """Format the returns of the sessions, such as '16.6, 12.1'."""
    return ", ".join(f"{each:,.1f}" for each in returns)


def _mean(returns: Sequence[float]) -> str:
    """Format the mean with its 95 % interval (Student's t); '' for fewer than three sessions."""
    if len(returns) < 3:
        return ""
    mean = aggregates(np.array(returns))["mean"]
    return f"{mean.value:,.1f} [{mean.low:,.1f}, {mean.high:,.1f}]"
