"""The third step of every run: from a checked configuration to a run on disk, whose sessions are due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labrl.agents.make import for_rank
from labrl.agents.transforms import Transforms
from labrl.config.compose import check_no_search
from labrl.config.schema import TrialConfig
from labrl.dashboards.sender import resolve_mode
from labrl.envs.make import describe, gives_masks, goals_of
from labrl.errors import InputError, LabrlError, LostProcessError, sentences
from labrl.memory.workspace import memory_available
from labrl.processes.output import doing
from labrl.processes.script import refuse_main
from labrl.processes.signals import signals_raise
from labrl.run.find import is_run
from labrl.run.provenance import write_provenance
from labrl.run.run import Run
from labrl.seeding import draw_seed
from labrl.session.callbacks import check_callbacks
from labrl.session.devices import check_machine
from labrl.session.torchrun import Launch
from labrl.spaces import Spaces, sees_images
from labrl.trial.configuration import Configuration
from labrl.trial.contradictions import check_spaces
from labrl.trial.summary import how_to_report, how_to_resume

if TYPE_CHECKING:
    from labrl.trial.start_from import Beginning

SESSION_BYTES = 150 << 20
"""Minimum memory of a session's process with PyTorch, a small environment and a small network, in bytes."""


class LostFolderError(LabrlError):
    """Raised if a run folder was moved or deleted during the run. `key` is the path of the folder."""

    codes = ("not-found",)


def check(config: TrialConfig, agent: str = "", elsewhere: bool = False) -> None:
    """Raise InputError if the configuration contradicts the environment's spaces or the machine.

    The table in contradictions.yaml and the checks of the user's own components are evaluated. agent: the
    option of the group `agent`, because several options may share a class; an empty string if the option
    is unknown; elsewhere: whether another machine will train the trial, so that `train` checks the machine
    later.
    """
    check_no_search(config.search.space)
    env, meta = vars(config.env.config), config.meta
    apart = {
        f"meta.max_session={meta.max_session}": meta.max_session > 1,
        "env.vectorization=async": env.get("vectorization") == "async",
        "meta.async_eval=true": meta.async_eval,
        "meta.async_unroll": meta.async_unroll,
    }
    for asked in filter(apart.get, apart):
        refuse_main(env.get("id"), asked)
    observation_space, action_space = describe(config.env)
    images = sees_images(observation_space)
    if not elsewhere:
        check_machine(config, images)
    goals = goals_of(config.env, observation_space)
    spaces = Spaces(observation_space, action_space, config.env.config.num_envs, goals=goals)
    check_spaces(config, agent, spaces, gives_masks(config.env))
    for_rank(config.agent, 1 if (launch := Launch.here()) is None else launch.size)
    if (num_sessions := config.meta.max_session) > 1:
        asked = f"meta.max_session={num_sessions}"
        room = memory_available()
        if room is not None and num_sessions * SESSION_BYTES > room:  # the system would kill processes
            raise InputError.resources(
                asked,
                "the sessions of a trial run at the same time, each in a process that takes at least "
                f"{SESSION_BYTES >> 20} MB, but only {room / 2**30:.1f} GB are free",
                f"meta.max_session={max(room // SESSION_BYTES, 1)}, or type labrl -m seed=0,1,2 to run the "
                "seeds one after another",
            )
    Transforms.build(config.transforms, spaces)
    check_callbacks(config)
    resolve_mode(config.wandb)


def create(
    configuration: Configuration,
    folder: str,
    elsewhere: bool = False,
    begin: Callable[[Configuration, Run], None] | None = None,
) -> Run:
    """Write the folder of a new run, and return the run. Its status is `waiting` until `train` runs its
    sessions.

    elsewhere: whether another machine will train the run; begin: function that writes the provenance of a
    fork and copies its files to the folder. Raises InputError for wrong input; the folder is then deleted,
    unless the run is a trial of an experiment.
    """
    doing("making environments")
    config, origin = configuration.config, configuration.origin
    check(config, origin.choices.get("agent", ""), elsewhere)
    sessions = list(range(config.meta.max_session))
    beginning = _beginning(config, sessions) if begin is None else None
    if is_run(Path(folder)) and (before := Run.open(folder)).unrecorded:
        with before.lock():  # It was killed while it was planned.
            before.discard()
    run = Run.create(folder, status="waiting")
    plain = {**configuration.plain, "seed": draw_seed() if config.seed is None else config.seed}
    with discarding_refused(run), run.lock(), recording_failure(run):
        if begin is None:
            facts = None if beginning is None else beginning.facts()
            write_provenance(run, plain, origin, start_from=facts)
        else:
            begin(configuration, run)
        mark_due(config, run, sessions, beginning)
    return run


def mark_due(config: TrialConfig, run: Run, indices: list[int], beginning: Beginning | None = None) -> None:
    """Record which sessions `train` must run, and write the weights from which the sessions start, if there
    are any.

    indices: indices of the sessions; beginning: the initial weights, if they have been loaded already.
    """
    sessions = map(run.session, indices)
    lacking = [one.index for one in sessions if not one.start.is_dir() and not one.checkpoint_frames()]
    if (beginning := beginning or _beginning(config, lacking)) is not None:
        beginning.write(run)
    run.set_status("waiting", due=indices)


def _beginning(config: TrialConfig, indices: list[int]) -> Beginning | None:
    """Return the weights of another run from which sessions start; None without `start_from.run`, or if no
    session needs them."""
    if config.start_from.run is None or not indices:
        return None
    # Imported late: most runs start from new weights.
    from labrl.trial.start_from import find_beginning

    return find_beginning(config, indices)


@contextmanager
def discarding_refused(run: Run) -> Iterator[None]:
    """Context manager: if the run is refused before its first step, delete it, unless it is part of an
    experiment."""
    try:
        yield
    except LostProcessError as error:
        to_resume = f"To resume: {how_to_resume(run.path)}"
        raise LostProcessError(sentences(error.message, to_resume)) from error
    except LabrlError:
        if run.experiment is None:
            run.discard()
        raise


@contextmanager
def recording_failure(run: Run) -> Iterator[None]:
    """Context manager: if there is a failure or an interruption, record it as the status of the run.

    A note on how to resume is added to an interruption. If too little was written to resume, the folder is
    deleted instead. Raises LostFolderError if the folder no longer exists.
    """
    try:
        with signals_raise():
            yield
    except BaseException as error:
        if not run.path.exists():
            why = "it was moved or deleted during the run, so the run has ended"
            fix = "If it still exists, labrl +resume=<its new path> continues from its last checkpoint"
            raise LostFolderError.about(run.path, why, fix) from error
        _record_failure(run, error)
        raise


def _record_failure(run: Run, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt):
        if run.recorded_status not in ("waiting", "running"):
            error.add_note(f"training has ended; to make the report: {how_to_report(run.path)}")
        elif run.config_yaml.exists():
            run.set_status("interrupted")
            error.add_note(f"to resume: {how_to_resume(run.path)}")
        else:
            run.discard()
    elif run.recorded_status in ("waiting", "running"):
        run.set_status("failed")
