"""Small searches: a study without any training, and the command line of one that trains for seconds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from options import options

from labrl.experiment.search.options import Pruner
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import StudyStorage
from labrl.experiment.search.study import Assignment, Plan, Study
from labrl.storage.run_folder import SessionFolder
from labrl.storage.tables import CsvTable


def pruner(kind: str, **changed: Any) -> Pruner:
    """The pruner of `search/pruner=<kind>`, with other values."""
    made: Pruner = options("search.pruner", f"search/pruner={kind}", **changed)
    return made


TPE: dict[str, Any] = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 2}

PLAN = Plan(
    name="labrl",
    space=Space.of({}, {}, ["x=interval(0.0, 1.0)", "y=choice(a, b, c)", "z=range(1, 9)"]),
    measures=["final_return"],
    directions=["maximize"],
    pruner=pruner("asha", grace_period=10, reduction_factor=2),
    total=6,
    budget=40,
    num_sessions=1,
    seed=7,
)

OVERRIDES = [
    *("env=cartpole", "env.max_frame=1024", "agent.horizon=32", "agent.batch_size=64", "seed=3"),
    *("meta.eval_frequency=256", "meta.log_frequency=256", "meta.tensorboard=false"),
    # of the trials, whose processes the patches of tests do not reach
    *("meta.report=false", "meta.videos=false"),
    *("agent.lr=tag(log, interval(1e-4, 1e-2))", "agent.epochs=range(1, 5)", "search.confirm=null"),
]
"""Command line of a search whose trials take a second."""


def study(
    home: Path, url: str | None = None, plan: Plan = PLAN, sampler: dict[str, Any] = TPE, **changed: Any
) -> Study:
    """Of `home`, which is made; changed: fields of the plan. A journal is begun faster than a database."""
    home.mkdir(parents=True, exist_ok=True)
    url = url or f"journal:///{home / 'study.journal'}"
    return Study(StudyStorage(url, home), dataclasses.replace(plan, **changed), sampler, home)


def next_of(one: Study) -> Assignment:
    """The next trial, which there has to be."""
    assignment = one.next("trial_{number}")
    assert assignment is not None
    return assignment


def write_eval(folder: Path, frame: int, value: float, session: int = 0) -> None:
    """A row of evaluation, as a session writes it."""
    path = folder / f"session_{session}"
    path.mkdir(parents=True, exist_ok=True)
    CsvTable(SessionFolder(path).eval_csv).append({"frame": frame, "return_mean": value, "wall": frame / 10})


def worth(params: dict[str, Any]) -> float:
    """Return the value of a trial of PLAN."""
    return params["x"] + "abc".index(params["y"]) - abs(params["z"] - 4)


def play(one: Study, assignment: Assignment, frames: tuple[int, ...] = (10, 20, 40)) -> str:
    """Report at each of the frames until the trial is stopped or at its end; how it ended."""
    for frame in frames:
        write_eval(assignment.folder, frame, worth(assignment.params) * frame / 40)
        if one.report(assignment.number, assignment.folder):
            return "pruned"
    one.finish(assignment.number, assignment.folder)
    return "finished"


def history(one: Study) -> list[Any]:
    """Return what a sampler and a pruner know of the study."""
    return [
        (trial.number, trial.params, trial.state.name, trial.values, trial.intermediate_values)
        for trial in one.trials()
    ]
