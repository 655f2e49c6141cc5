"""`labrl +resume` continues a run in its folder.

`resume` decides which sessions continue; each loads its newest complete checkpoint when it starts
(`restored_session` in `labrl.session.main`).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labrl.config.compose import resolve
from labrl.config.keys import Change, contradictions, is_hydras, written
from labrl.errors import DamagedFileError, InputError
from labrl.run import folder as folders
from labrl.run.provenance import differences, write_provenance
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.callbacks.stop import Stop
from labrl.session.torchrun import check_resume
from labrl.trial.coefficients import hold_changes, refuse_idle, schedule_jumps
from labrl.trial.configuration import Configuration, edit_run
from labrl.trial.past import check_fits, configure_again, refusal, say_differences

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.run.provenance import Origin, Repositories, Typed


class FinishedError(InputError):
    """Raised if every session of the run to be resumed has used up its budget, and no file is missing."""


def resume(
    run: Run,
    edits: Sequence[str],
    typed: Typed,
    *,
    force: bool = False,
    config_dir: str | None = None,
    repositories: Repositories | None = None,
    elsewhere: bool = False,
) -> Run:
    """Continue a run in its folder with edits: mark the sessions that have not used up their budget as due,
    each from its newest checkpoint.

    force: whether the edits may contradict the past of the run; elsewhere: whether another machine will train
    the run; for the other arguments, see `edit_run`. If only the videos or the report are missing, no session
    is due. Raises InputError with a table if new values contradict the past of the run, or if nothing would
    be learned; BusyFolderError if the run is still running, and FinishedError if nothing is left to do.
    """
    # Imported late: a misspelled key must not wait for PyTorch.
    from labrl.trial.create import check, mark_due, recording_failure
    from labrl.trial.summary import say

    plain, origin = edit_run(run, edits, config_dir, typed, repositories)
    with run.lock():
        reached = frames_reached(run)
        plain, contradicting = continue_config(run, plain, origin, reached, force)
        changed = run.changes(plain)
        configuration = configure_again(run, plain, origin)
        config = configuration.config
        check(config, origin.choices.get("agent", ""), elsewhere)
        check_resume(run)
        left = _sessions_left(run, config)
        forced = force and bool(contradicting)
        if not left:
            # The run was killed before it recorded its end.
            if run.recorded_status in ("waiting", "running", "interrupted"):
                sessions = [one.read_result() for one in run.sessions]
                run.set_status("finished", sessions=sessions, videos_due=config.meta.videos)
            if not lacks_files(run, config.meta.report):
                raise FinishedError(_finished(run, config), code="range", key="env.max_frame")
            if changed:
                _record(run, edits, reached, changed, configuration, forced)
            run.update(due=[])
            return run
        _check_saved(run, left, reached)
        saved = [one for one in run.sessions if one.index in left and one.index in reached]
        if saved and contradicting:
            # With forced values that do not fit, the run would be left without a usable state.
            check_fits(run, origin, config, saved[0], contradicting)
        begins = {index: reached.get(index, 0) for index in left}
        frame = max(reached.values(), default=0)
        before = resolve(run.read_config()) if frame and changed else config
        jumps = list(schedule_jumps(before, config, frame))
        with recording_failure(run):
            differs = _record(run, edits, begins, changed, configuration, forced)
            _announce(run, begins, reached, differs)
            for line in jumps:
                say(line)
            mark_due(config, run, left)
    return run


def continue_config(
    run: Run, plain: Mapping[str, Any], origin: Origin, reached: Mapping[int, int], force: bool = False
) -> tuple[dict[str, Any], list[Change]]:
    """Return the configuration of the continued run, and the changes in it that contradict the run's past and
    are forced.

    plain, origin: result of `edit_run`; coefficients that an edit changes take effect after the furthest
    frame that any session has reached. reached: `frames_reached` of the run. Raises InputError, with a table,
    for changes that contradict the past and are not forced; also if the new budget is already spent, or if a
    run with a larger budget would learn nothing more or needs a replay buffer that `labrl-clean` has removed.
    Raises DamagedFileError if there is no checkpoint to continue from.
    """
    # First, because a budget that contradicts other keys would be refused with one that is spent, too.
    _check_budget(run, plain, reached)
    config = resolve(plain)
    run.check_buffers(reached.keys() & _sessions_left(run, config), f"+resume={run.path}")
    frame = max(reached.values(), default=0)
    if not frame and config.env.config.max_frame > run.config["env"]["max_frame"]:
        for session in run.sessions:
            _check_saved(run, [session.index], reached)
    held, keys = hold_changes(run.read_config(), plain, config, frame) if frame else (dict(plain), [])
    prefixes = tuple(f"{key}." for key in keys)
    found = [one for one in contradictions(run.changes(held)) if not f"{one.key}.".startswith(prefixes)]
    if found and not force:
        decisive = (one.key == "agent._target_" or ".network." in one.key for one in found)
        if reached and any(decisive):
            check_fits(run, origin, resolve(held), run.session(min(reached)), found)
        raise refusal(found, f"+resume={run.path}")
    if not found and not force:
        again = shlex.join(["labrl", *origin.overrides])
        refuse_idle(resolve(held), frame, int(run.config["env"]["max_frame"]), again)
    return held, found


def _record(
    run: Run,
    edits: Sequence[str],
    begins: Mapping[int, int],
    changed: Sequence[Change],
    configuration: Configuration,
    forced: bool,
) -> list[str]:
    """Write the provenance of this resume, and add an entry to `run.json`.

    begins: frame from which each session continues, by index; changed: changes of the configuration;
    forced: whether the changes contradict the past of the run, and were forced. Returns the differences in
    machine, code and packages since the earlier run.
    """
    resumes = list(run.read_info().get("resumes", []))
    number = max((int(path.name) for path in run.resumes.glob("[0-9]*")), default=0) + 1
    before = run.read_provenance()
    now = write_provenance(run, configuration.plain, configuration.origin, number)
    differs = differences(before, now)
    entry = {
        "time": folders.now(),
        "frames": {str(index): frame for index, frame in begins.items()},
        "edits": [one for one in edits if not is_hydras(one)],
        "changed": [change.as_json() for change in changed],
        "forced": forced,
        "differs": differs,
        "command": now["command"],
        "labrl": now["packages"].get("labrl"),
        "commits": {name: facts.get("commit") for name, facts in now["git"].items()},
    }
    run.update(resumes=[*resumes, entry])
    return differs


def frames_reached(run: Run) -> dict[int, int]:
    """Return the frame of each session's newest complete checkpoint, by index, for sessions that have one."""
    frames = {session.index: session.store().newest_whole_frame() for session in run.sessions}
    return {index: newest for index, newest in frames.items() if newest is not None}


def lacks_files(run: Run, reports: bool) -> bool:
    """Return whether a run that has ended lacks its report, or was killed while it made its videos.

    reports: whether the run makes a report.
    """
    return bool(run.read_info().get("videos_due")) or (reports and not run.report.exists())


def _check_budget(past: Run, plain: Mapping[str, Any], reached: Mapping[int, int]) -> None:
    """Raise InputError if the new budget is already spent, or if the number of sessions cannot be changed to
    the new value.

    past: the run to be resumed; plain: its new configuration, which need not be valid; reached: frame of each
    session by index.
    """
    sessions, budget = plain["meta"]["max_session"], plain["env"]["max_frame"]
    if not isinstance(sessions, int) or not isinstance(budget, int | float):
        return  # validation will refuse the value
    then = past.config["meta"]["max_session"]
    if sessions < then:
        allowed = f"be at least {then}, the number of sessions that the run has"
        raise InputError.value("meta.max_session", sessions, allowed)
    if sessions > then and "fork" in past.read_info():
        why = f"{past.path} is a fork, and further sessions would have no past"
        raise InputError.value("meta.max_session", sessions, f"be {then}", why=why)
    frames = reached if budget < past.config["env"]["max_frame"] else {}
    furthest = max(frames, key=lambda index: frames[index], default=None)
    if furthest is not None and frames[furthest] >= budget:
        allowed = f"be more than {frames[furthest]}, the number of frames that session {furthest} has played"
        raise InputError.value("env.max_frame", written(budget), allowed)


def _check_saved(run: Run, left: Sequence[int], reached: Mapping[int, int]) -> None:
    """Raise DamagedFileError if a saved session has lost all its checkpoints, because a resume would also
    lose its rows. Also raise it if the only remaining session has no complete checkpoint."""
    for session in run.sessions:
        if list(left) == [session.index] and session.index not in reached and session.checkpoint_frames():
            store = session.store()
            store.refuse_broken(store.latest())
        result = session.read_result()  # empty for a killed session, perhaps without a checkpoint
        was_saved = (
            result.get("status") in ("finished", "pruned", "interrupted") and result.get("frame", 0) > 0
        )
        if session.index in left and not session.checkpoint_frames() and was_saved:
            why = f"session {session.index} was saved, but this folder no longer contains a checkpoint"
            fix = f"Restore its checkpoints, or delete {session.path} to restart the session from frame 0"
            raise DamagedFileError.about(session.checkpoints, why, fix)


def _budgets(config: TrialConfig) -> dict[str, tuple[str, float]]:
    """Return the key and the value of each budget, by the name of the limited quantity in session results."""
    meta, frames = config.meta, config.env.config.max_frame
    limits = {
        "frame": ("env.max_frame", frames),
        "opt_step": ("meta.max_opt_step", meta.max_opt_step),
        "wall": ("meta.max_wall", meta.max_wall),
    }
    return {name: (key, limit) for name, (key, limit) in limits.items() if limit is not None}


def _sessions_left(run: Run, config: TrialConfig) -> list[int]:
    """Return the indices of the sessions that have not used up any of their budgets."""

    def is_done(session: RunSession) -> bool:
        result = session.read_result()
        spent = any(result.get(name, 0) >= limit for name, (_, limit) in _budgets(config).items())
        stop = Stop.recorded(result)
        stopped = stop is not None and stop.holds(config.meta)
        return result.get("status") == "finished" and (spent or stopped)

    done = {session.index for session in run.sessions if is_done(session)}
    return [index for index in range(config.meta.max_session) if index not in done]


def _finished(run: Run, config: TrialConfig) -> str:
    """Return a message that the run has finished, with the overrides that continue it."""
    sessions, budget = config.meta.max_session, config.env.config.max_frame
    all_of_them = f"its {sessions} sessions have" if sessions > 1 else "it has"
    budgets = list(_budgets(config).values())
    found = [stop for session in run.sessions if (stop := Stop.recorded(session.read_result()))]
    stops = {stop.key: max(one.value for one in found if one.key == stop.key) for stop in found}
    larger = " ".join(f"{key}=<more than {limit:.16g}>" for key, limit in [*budgets, *stops.items()])
    or_spent = "".join(f" or reached {key}={limit:g}" for key, limit in budgets[1:])
    or_spent += "".join(f" or ended early: {stop.why}" for stop in found)
    return (
        f"{run.path} has finished: {all_of_them} played all {budget} frames of the budget{or_spent}.\n"
        f"To continue, set a larger budget: {larger}\n"
        f"To add sessions with other seeds: meta.max_session=<more than {sessions}>"
    )


def _announce(
    run: Run,
    begins: Collection[int],
    reached: Mapping[int, int],
    differs: Sequence[str],
) -> None:
    """Print the frame from which each session continues, and why the continuation may not be exact.

    begins: indices of the sessions to continue; reached: frame of each session's newest complete checkpoint;
    differs: differences since the earlier run.
    """
    from labrl.trial.summary import say

    saved = {session.index for session in run.sessions if session.checkpoint_frames()}

    def where(index: int) -> str:
        if index in reached:
            return f"frame {reached[index]:,}"
        return "the start, because no checkpoint is complete" if index in saved else "the start"

    alone = list(begins) == [0] and len(run.sessions) <= 1
    places = [where(index) if alone else f"session {index} from {where(index)}" for index in begins]
    say(f"Resuming {run.path}{' from' if alone else ':'} {', '.join(places)}")
    say_differences(differs)
