"""labrl: a laboratory for deep reinforcement learning."""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False  # typing is slow to import, and the commands import this before they handle Ctrl-C
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from labrl.experiment.result import SweepResult
    from labrl.play.policy import Evaluation, LoadedPolicy
    from labrl.run.run import Run
    from labrl.trial.result import TrialError, TrialResult

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "Evaluation",
    "LoadedPolicy",
    "Run",
    "SweepResult",
    "TrialError",
    "TrialResult",
    "load",
    "runs",
    "sweep",
    "train",
]

_HOMES = {
    "Evaluation": "labrl.play.policy",
    "LoadedPolicy": "labrl.play.policy",
    "Run": "labrl.run.run",
    "SweepResult": "labrl.experiment.result",
    "TrialError": "labrl.trial.result",
    "TrialResult": "labrl.trial.result",
}
"""Module of each lazily imported class."""


def __getattr__(name: str) -> object:
    """Import the classes of `__all__` when they are first used."""
    if name in _HOMES:
        import importlib

        return vars(importlib.import_module(_HOMES[name]))[name]
    raise AttributeError(f"module 'labrl' has no attribute {name!r}")


def _concise(function: F) -> F:
    """Wrap `function` so that it raises a LabrlError as a single exception, without its cause and labrl's
    frames.

    The cause and the frames are kept if the user's own code failed, and if HYDRA_FULL_ERROR=1.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        from labrl.errors import LabrlError, answer_to
        from labrl.processes.output import full_error

        try:
            return function(*args, **kwargs)
        except Exception as error:
            answer = answer_to(error)
            if answer is None or (answer is not error and answer.code == "target"):
                raise
            own = answer.code in ("target", "environment") and not isinstance(error.__cause__, LabrlError)
            if own or full_error():
                raise answer from (error.__cause__ if answer is error else error)
            answer.__context__ = None
            raise answer.with_traceback(None) from None

    return call  # type: ignore[return-value]


@_concise
def train(
    overrides: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
    *,
    raise_on_failure: bool = False,
) -> TrialResult:
    """Run one trial, like the command `labrl <overrides>`, and return its result.

        result = labrl.train(["env=cartpole", "agent=ppo", "seed=7"])
        result.folder, result.exit_code

    The overrides may contain `+resume=...`, `+rerun=...`, `+fork=...` and `+trust=true`. config_dir: folder
    with your configuration groups, as for --config-dir; raise_on_failure: whether to raise
    `labrl.TrialError`, which has the attribute `result`, if a session fails or is interrupted. Otherwise
    failures are printed and described in `result.error`. Raises `labrl.errors.InputError` for wrong input,
    before anything is written.
    """
    from labrl import commands

    return commands.train(overrides, config_dir, raise_on_failure)


@_concise
def sweep(
    overrides: Sequence[str],
    config_dir: str | os.PathLike[str] | None = None,
    *,
    raise_on_failure: bool = False,
) -> SweepResult:
    """Run an experiment of several trials, like the command `labrl -m <overrides>`, and return its result.

        result = labrl.sweep(["env=cartpole", "agent.lr=1e-4,1e-3", "seed=0,1,2,3"])
        result.groups, result.to_polars()

    A grid runs every combination of the values; with `hydra/sweeper=optuna` and a search space, it is a
    search. The overrides may contain `+resume=...`, `+fork=...` and `+trust=true`. config_dir: folder with
    your configuration groups, as for --config-dir; raise_on_failure: whether to raise `labrl.TrialError`,
    which has the attribute `result`, if a trial fails or is interrupted. Otherwise failures are printed and
    described in `result.error`. Raises `labrl.errors.InputError` for wrong input, before any trial starts.
    """
    from labrl import cli

    return cli.sweep(overrides, config_dir, raise_on_failure)


@_concise
def load(
    run: str | os.PathLike[str],
    session: int | None = 0,
    checkpoint: str | int = "best",
    *,
    trust: bool = False,
) -> LoadedPolicy:
    """Load the policy of a run, for acting, evaluation and inspection.

        policy = labrl.load("runs/mine")
        env = policy.env()
        observation, info = env.reset(seed=0)
        action = policy.act(observation, greedy=True)
        policy.evaluate(episodes=10).return_mean

    run: a run folder (which may have been moved), or `latest`; session: index of the session, None for the
    one with the highest evaluation score; checkpoint: best, latest or a frame; trust: whether to import
    whatever the run names, even if someone else has written its folder. Your own networks and environments
    must be importable, or defined in the script or notebook. Raises `labrl.errors.InputError` if there is no
    such run, session or checkpoint, if the checkpoint does not fit the configuration, or if someone else has
    written the run folder, it names code that is not part of labrl, and `trust` is False.
    """
    from labrl.processes.startup import let_threads_sleep, name_user_and_home

    let_threads_sleep()
    name_user_and_home()
    from labrl.play.policy import LoadedPolicy
    from labrl.run.signature import Trust, trusting

    with trusting(Trust(trust)):
        return LoadedPolicy.load(run, session, checkpoint)


@_concise
def runs(
    places: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "runs", *filters: str
) -> list[Run]:
    """Return the runs in one or several folders, oldest first, with their records.

        for run in labrl.runs("runs", "env=pong", "status=finished"):
            print(run.name, run.config["agent"]["lr"], run.table("eval"))

    places: a run folder, a folder that contains runs, a glob, or a list of such places; filters: conditions
    as for `labrl-runs`. Raises `labrl.errors.InputError` if there is no run, or if a filter cannot match any
    run.
    """
    from pathlib import Path

    from labrl.analysis.groups import filter_runs
    from labrl.run.find import find_runs

    found = find_runs([places] if isinstance(places, str | os.PathLike) else places)
    return filter_runs(found, filters, Path())
