"""Small searches: a study without training, and the command line of a search that trains for seconds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from options import options

from labrl.experiment.search.pruners import Pruner
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import StudyStorage
from labrl.experiment.search.study import Assignment, Plan, Study
from labrl.run.session import RunSession
from labrl.run.tables import CsvTable


def pruner(kind: str, **changed: Any) -> Pruner:
    """Return the pruner of `search/pruner=<kind>` with changed options."""
    made: Pruner = options("search.pruner", f"search/pruner={kind}", **changed)
    return made


TPE: dict[str, Any] = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 2}

PLAN = Plan(
    name="labrl",
    space=Space.of({}, {}, ["x=interval(0.0, 1.0)", "y=choice(a, b, c)", "z=range(1, 9)"]),
    measure="final_return",
    direction="maximize",
    pruner=pruner("asha", grace_period=10, reduction_factor=2, n_startup_trials=0, n_startup_rows=1),
    total=6,
    budget=40,
    num_sessions=1,
    seed=7,
)

OVERRIDES = [
    *("env=cartpole", "env.max_frame=1024", "agent.horizon=32", "agent.batch_size=64", "seed=3"),
    *("meta.eval_frequency=256", "meta.log_frequency=256", "meta.tensorboard=false"),
    # Trials run in processes of their own, which the patches of conftest.py do not reach.
    *("meta.report=false", "meta.videos=false"),
    *("agent.lr=tag(log, interval(1e-4, 1e-2))", "agent.epochs=range(1, 5)", "search.confirm=null"),
]
"""Command line of a search whose trials take a second."""


def study(
    home: Path, url: str | None = None, plan: Plan = PLAN, sampler: dict[str, Any] = TPE, **changed: Any
) -> Study:
    """Open a study in the folder `home`, which is created; changed: changed fields of the plan.

    The default storage is a journal because it is created faster than a database.
    """
    home.mkdir(parents=True, exist_ok=True)
    url = url or f"journal:///{home / 'study.journal'}"
    return Study(StudyStorage(url, home), dataclasses.replace(plan, **changed), sampler, home)


def next_of(one: Study) -> Assignment:
    """Return the next trial of a study that must have one left."""
    assignment = one.next("trial_{}".format)
    assert assignment is not None
    return assignment


def write_eval(folder: Path, frame: int, value: float, session: int = 0) -> None:
    """Append an evaluation row to the table of a session of a run."""
    path = folder / f"session_{session}"
    path.mkdir(parents=True, exist_ok=True)
    CsvTable(RunSession(path).eval_csv).append({"frame": frame, "return_mean": value, "wall": frame / 10})


def worth(params: dict[str, Any]) -> float:
    """Return the final return of a trial of PLAN with these parameters."""
    return params["x"] + "abc".index(params["y"]) - abs(params["z"] - 4)


def play(one: Study, assignment: Assignment, frames: tuple[int, ...] = (10, 20, 40)) -> str:
    """Report a trial's evaluation at each of `frames` until it is pruned or finished. Return its status."""
    for frame in frames:
        write_eval(assignment.folder, frame, worth(assignment.params) * frame / 40)
        if one.report(assignment.number, assignment.folder):
            return "pruned"
    one.finish(assignment.number, assignment.folder)
    return "finished"


def history(one: Study) -> list[Any]:
    """Return everything about the study's trials that samplers and pruners use."""
    return [
        (trial.number, trial.params, trial.state.name, trial.values, trial.intermediate_values)
        for trial in one.trials()
    ]
