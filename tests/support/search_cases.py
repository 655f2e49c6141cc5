"""Small searches: a study without training, and the command line of a search that trains for seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from options import options

from labrl.experiment.search.objective import Objective
from labrl.experiment.search.options import Pruner, Settings
from labrl.experiment.search.space import Space
from labrl.experiment.search.study import Study
from labrl.run.session import RunSession
from labrl.run.tables import CsvTable


def pruner(kind: str, **changed: Any) -> Pruner:
    """Return the pruner of `search/pruner=<kind>` with changed options."""
    made: Pruner = options("search.pruner", f"search/pruner={kind}", **changed)
    return made


TPE: dict[str, Any] = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 2}

SPACE = Space.of({}, ["x=interval(0.0, 1.0)", "y=choice(a, b, c)", "z=range(1, 9)"])

TOTAL, BUDGET, EVERY = 6, 40, 10

OVERRIDES = [
    *("env=cartpole", "env.max_frame=1024", "agent.horizon=32", "agent.batch_size=64", "seed=3"),
    *("meta.eval_frequency=256", "meta.log_frequency=256", "meta.tensorboard=false"),
    # Trials run in processes of their own, which the patches of conftest.py do not reach.
    *("meta.report=false", "meta.videos=false"),
    *("agent.lr=tag(log, interval(1e-4, 1e-2))", "agent.epochs=range(1, 5)", "search.confirm=null"),
]
"""Command line of a search whose trials take a second."""


def study(
    home: Path,
    url: str | None = None,
    sampler: dict[str, Any] = TPE,
    space: Space = SPACE,
    total: int = TOTAL,
    stops: Pruner | None = None,
    num_sessions: int = 1,
    direction: Any = None,
) -> Study:
    """Open a study in the folder `home`, which is created. stops: the pruner; None: median, from the first
    evaluation and the first finished trial on."""
    home.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        sampler=sampler,
        direction=direction,
        storage=url,
        study_name="shared" if url else None,
        n_trials=total,
        n_jobs=None,
        max_failure_rate=0.5,
        params=None,
    )
    stops = stops or pruner("median", n_startup_trials=1, n_warmup_steps=EVERY)
    return Study(home, settings, stops, space, Objective("final_return", num_sessions), BUDGET, EVERY, seed=7)


def next_of(one: Study) -> optuna.Trial:
    """Return the next trial of a study that must have one left."""
    trial = one.ask()
    assert trial is not None
    return trial


def folder_of(home: Path, trial: optuna.Trial) -> Path:
    """Return the run folder of a trial."""
    return home / f"trial_{trial.number}"


def write_eval(folder: Path, frame: int, value: float, session: int = 0) -> None:
    """Append an evaluation row to the table of a session of a run."""
    path = folder / f"session_{session}"
    path.mkdir(parents=True, exist_ok=True)
    CsvTable(RunSession(path).eval_csv).append({"frame": frame, "return_mean": value, "wall": frame / 10})


def worth(params: dict[str, Any]) -> float:
    """Return the final return of a trial of SPACE with these parameters."""
    return params["x"] + "abc".index(params["y"]) - abs(params["z"] - 4)


def play(
    one: Study, home: Path, trial: optuna.Trial, value: float | None = None, frames: Any = (10, 20, 40)
) -> bool:
    """Report a trial's evaluation at each of `frames` until it is pruned or finished. Return whether it was
    pruned. value: its final return, by default `worth`."""
    folder = folder_of(home, trial)
    for frame in frames:
        write_eval(folder, frame, (worth(trial.params) if value is None else value) * frame / 40)
        if one.should_prune(trial.number, folder):
            return True
    one.finish(trial.number, folder)
    return False


def states(one: Study) -> list[str]:
    """Return the state of each trial."""
    return [trial.state.name for trial in one.trials()]


def history(one: Study) -> list[Any]:
    """Return everything about the study's trials that samplers and pruners use."""
    return [
        (trial.number, trial.params, trial.state.name, trial.values, trial.intermediate_values)
        for trial in one.trials()
    ]
