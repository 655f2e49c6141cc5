"""Searches for the values of presets: their spaces, their records and their part of the results page."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.published import Cell, cells, number
from labrl.analysis.search_result import SearchResult, importances, read_search
from labrl.config.compose import compose, to_plain
from labrl.experiment.search.space import as_override
from labrl.run.atomic import write_atomic
from labrl.run.experiment import Experiment

ROUNDED = 0.03
"""Relative difference allowed between a number of a preset and the one found, because presets are rounded."""

MATTERED = 3
"""Number of most important keys that the page names."""

KEPT_ROWS = 10
"""Number of evaluation rows of a trial that are recorded."""

_A2C = {
    "agent/optimizer": "choice(rmsprop, adam)",
    "agent.lr.start": "tag(log, interval(3e-4, 1e-2))",
    "agent.horizon": "choice(5, 8, 16, 32, 64)",
    "agent.gae_lambda": "choice(0.9, 0.95, 0.98, 1.0)",
    "agent.value_coef": "tag(log, interval(0.1, 2.0))",
    "agent.entropy_coef": "tag(log, interval(1e-5, 3e-2))",
    "agent.max_grad_norm": "choice(0.5, 1.0, 5.0)",
    "agent.normalize_advantage": "choice(true, false)",
}

_PPO = {
    "agent.lr.start": "tag(log, interval(2e-4, 2e-3))",
    "agent.horizon": "choice(64, 128, 256, 512)",
    "agent.epochs": "choice(4, 8, 10)",
    "agent.batch_size": "choice(64, 128, 256)",
    "agent.gae_lambda": "choice(0.9, 0.95, 0.98)",
    "agent.entropy_coef": "tag(log, interval(1e-4, 3e-2))",
}

_LONG = {"agent.gamma": "choice(0.98, 0.99, 0.995, 0.999)"}

_GAUSSIAN = {"agent.log_std_init": "choice(-1.0, -0.5, 0.0)"}

_NORMALIZED = (
    "{_target_:labrl.agents.transforms.NormalizeReward,gamma:${agent.gamma},clip:10.0,epsilon:1e-8,"
    "window:null}"
)

_FEW = {"meta.max_trial": "16", "search.confirm.top": "1"}
"""Settings for agents with a replay buffer, which train more slowly."""

_SHORT = {"env.max_frame": "3e4"} | _FEW
"""Settings for agents that solve the task within a tenth of the cell's frames."""

_SOFT = {
    "agent.lr": "tag(log, interval(3e-4, 3e-3))",
    "agent.batch_size": "choice(64, 128)",
    "agent.n_step": "choice(1, 3, 5)",
    "agent.target_entropy": "choice(0.02, 0.1, 0.3, 0.66)",
    "agent.initial_temperature": "choice(0.1, 1.0)",
}

_DQN = {
    "agent.lr.start": "tag(log, interval(1e-4, 3e-3))",
    "agent.batch_size": "choice(32, 64, 128)",
    "agent.n_step": "choice(1, 3, 5)",
    "agent.updates_per_frame": "choice(0.125, 0.25, 0.5)",
}

SPACES: dict[str, dict[str, str]] = {
    "acrobot_dqn": _DQN | _SHORT,
    "acrobot_sac": _SOFT | _SHORT,
    "acrobot_crossq": _SOFT | _SHORT,
    "lunar_lander_dqn": _DQN
    | {"agent.updates_per_frame": "choice(0.125, 0.25)", "agent.target.every": "choice(250, 500, 1000)"}
    | _FEW,
    "lunar_lander_ppo": _PPO | _LONG | {"transforms.reward": f"null,{_NORMALIZED}"},
    "lunar_lander_a2c": _A2C | _LONG | {"transforms.reward": f"null,{_NORMALIZED}"},
    "lunar_lander_continuous_a2c": _A2C | _LONG | _GAUSSIAN,
    "pendulum_a2c": _A2C | {"agent.gamma": "choice(0.9, 0.95, 0.98)"} | _GAUSSIAN,
}
"""Searched and fixed keys of each study, by the cell of the preset."""

HOW = {"meta.max_session": "1", "meta.max_trial": "30", "search.confirm.top": "2", "seed": "100"}
"""Default settings, which a space may replace."""

PREFACE = """## Studies

Each study searches for the values of a preset, in the environment of the cell but on other seeds: `make
results ARGS="study_lunar_lander_a2c --minutes 60"`. A trial is one session, and ASHA prunes. The best
trials and the preset as it was then (*before*) run again on four fresh seeds, which neither the search nor
the table above used. *Final return* is the mean over the last tenth of the *frames*, and *mattered most*
lists the most important keys by PED-ANOVA. A preset *keeps its own* values if the study's are not better by
more than the spread of the seeds. For A2C on LunarLanderContinuous, six more seeds (`seed=500
meta.max_session=6`) decided: the study's values reach −285, with two of six seeds below −570, and those of
the preset −154. For PPO on LunarLander, eight more seeds (`seed=500 meta.max_session=8`) decided: the study's
values reach 243, and those of the preset before 182, with four of eight seeds below 140.
`docs/results/studies/` contains command, space, trials and fresh seeds.

"""


@dataclass(frozen=True)
class Study:
    """The record of a finished search."""

    cell: Cell
    info: dict[str, Any]
    """The part of `experiment.json` that does not depend on the machine."""

    @property
    def search(self) -> SearchResult:
        """The trials of the study and their values."""
        search = read_search(self.info)
        assert search is not None, f"{self.cell.name}: no search"
        return search

    @property
    def frames(self) -> int:
        """Number of frames of a trial that is not pruned."""
        given = [
            float(override.partition("=")[2])
            for override in shlex.split(self.info["search"]["best"]["command"])
            if override.startswith("env.max_frame=")
        ]
        return int(given[-1]) if given else self.cell.frames

    def is_preset(self) -> bool:
        """Return whether the preset has the winner's values, up to the relative difference `ROUNDED`."""
        winner = self.search.winner
        assert winner is not None, f"{self.cell.name}: nothing was confirmed"
        chosen = [f"{key}={as_override(value)}" for key, value in winner.params.items()]
        overrides = list(self.cell.overrides)
        now, found = (to_plain(compose(one)) for one in (overrides, overrides + chosen))
        return _alike(now | {"meta": None}, found | {"meta": None})


def searchable() -> dict[str, Cell]:
    """Return the cells that have a study, by the name of the study."""
    return {f"study_{cell.name}": cell for cell in cells() if cell.name in SPACES}


def overrides() -> dict[str, list[str]]:
    """Return the overrides of each study, by name."""
    return {
        name: [
            *("-m", "hydra/sweeper=optuna", *cell.overrides),
            *(f"{key}={values}" for key, values in {**HOW, **SPACES[cell.name]}.items()),
        ]
        for name, cell in searchable().items()
    }


def keep(experiment: Experiment, cell: Cell, folder: Path) -> None:
    """Record a finished search in `folder`, without data that depends on the machine."""
    info, search = experiment.info, dict(experiment.info["search"])
    confirm = dict(search["confirm"])
    confirm["candidates"] = [_without(one, "folders") for one in confirm["candidates"]]
    content = {
        "kind": info["kind"],
        "command": shlex.join(["labrl", "-m", "hydra/sweeper=optuna", *info["overrides"]]),
        "commits": sorted({record.commit(run) for run in experiment.runs}),
        "search": _without(search, "storage", "study_name") | {"confirm": confirm},
        "trials": [
            {key: trial[key] for key in ("number", "params", "values", "state", "error")}
            | {"intermediate": _thinned(trial["intermediate"])}
            for trial in info["trials"]
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{cell.name}.json", json.dumps(content, indent=1) + "\n")


def read(folder: Path) -> list[Study]:
    """Return the studies recorded in `folder`, in the order of the cells."""
    files = {cell: folder / f"{cell.name}.json" for cell in cells()}
    return [Study(cell, json.loads(file.read_text())) for cell, file in files.items() if file.exists()]


def section(studies: Iterable[Study]) -> str:
    """Return the part of the page about studies, or '' if there is none."""
    lines = [
        "| cell | frames | trials | pruned | final return, fresh seeds | before | mattered most | preset |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    lines += [_line(study) for study in studies]
    return f"\n{PREFACE}" + "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _line(study: Study) -> str:
    search = study.search
    pruned = sum(trial.state == "pruned" for trial in search.trials)
    mattered = list(importances(search).items())[:MATTERED]
    taken = "has its values" if study.is_preset() else "keeps its own"
    entries = [
        study.cell.name.replace("_", r"\_"),
        f"{study.frames:,}",
        len(search.trials),
        pruned,
        *(number(one.mean if one else None) for one in (search.winner, search.default)),
        ", ".join(f"`{key}` {share:.0%}" for key, share in mattered),
        taken,
    ]
    return f"| {' | '.join(str(entry) for entry in entries)} |"


def _thinned(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return about `KEPT_ROWS` evenly spaced rows, always including the last one."""
    step = max(1, len(rows) // KEPT_ROWS)
    return [[frame, round(value, 2)] for frame, value in rows[::-1][::step][::-1]]


def _without(content: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in keys}


def _alike(one: Any, other: Any) -> bool:
    """Return whether two configurations are equal up to the relative difference `ROUNDED` of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=ROUNDED)
    return bool(one == other)
