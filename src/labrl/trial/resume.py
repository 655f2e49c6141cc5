"""Going on with a run in its folder, as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from labrl.config.consistency import ABSENT, Change
from labrl.config.schema import TrialConfig
from labrl.errors import DamagedFileError, InputError
from labrl.storage import marker
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.differences import differences
from labrl.storage.provenance import Command, known_provenance, write_provenance
from labrl.storage.run_folder import RunFolder, SessionFolder
from labrl.trial.changed_past import told
from labrl.trial.past import Past
from labrl.trial.request import Request
from labrl.trial.result import TrialResult
from labrl.trial.summary import how_to_report, say
from labrl.trial.torchrun import Launch, check_resume
from labrl.trial.trial import check, recording_failure, run_sessions
from labrl.trial.worker import restored_session


class FinishedError(InputError):
    """There is nothing left to do in a run that is to go on."""


def resume_trial(
    past: Past,
    request: Request,
    changed: Sequence[Change],
    config: TrialConfig,
    plain: Mapping[str, Any],
    command: Command,
    edited: Collection[str] = (),
) -> TrialResult:
    """Run the sessions that are not yet where `config` wants them, each from its newest checkpoint.

    changed: the keys of the resolved configuration that differ from the run's own; what contradicts its
    past has been refused or forced by now. edited: those of them that were changed in `config.yaml`. Raises,
    with nothing run, BusyFolderError where the run is still alive and FinishedError where there is nothing
    left to do.
    """
    check(config)
    run = past.folder
    with run.lock():
        check_resume(run)
        reached = frames_reached(run)
        check_budget(past, config, lambda: reached)
        left = _sessions_left(run, config)
        if not left:
            _record_end(run)
            raise FinishedError(_finished(run, config), code="range", key="env.max_frame")
        _check_saved(run, left, reached)
        if not all(change.harmless for change in changed):
            _check_fits(config, run, left, reached)
        before = known_provenance(run)
        resumes = list(run.info().get("resumes", []))
        with recording_failure(run):
            now = write_provenance(run, plain, command, resume=_next_number(run))
            differs = differences(before, now) if before else []
            entry = _entry(request, changed, left, reached, now, differs)
            resumes.append({**entry, "edited_in_config_yaml": sorted(edited)})
            run.set_status("running", resumes=resumes)
            for change in changed:
                if change.key in edited:
                    say(f"From {run.config}, which was edited: {told(change)}")
            _announce(run, config, left, reached, differs)
            if not before:
                say("Without provenance.json nobody knows whether code, packages and machine are the same")
            return run_sessions(config, plain, run, left)


def _next_number(run: RunFolder) -> int:
    return max((int(path.name) for path in run.resumes.glob("[0-9]*")), default=0) + 1


def frames_reached(run: RunFolder) -> dict[int, int]:
    """The frame of the newest whole checkpoint by number of the session; none where nothing was saved."""
    frames = {
        session.index: CheckpointStore(session.checkpoints, keep_last=1).newest_whole_frame()
        for session in run.sessions()
    }
    return {index: newest for index, newest in frames.items() if newest is not None}


def _check_saved(run: RunFolder, left: Sequence[int], reached: Mapping[int, int]) -> None:
    """Raises DamagedFileError where a saved session has lost all its checkpoints, because its rows would be
    lost too, and where the only session that is left has no whole checkpoint."""
    for session in run.sessions():
        if list(left) == [session.index] and session.index not in reached and session.checkpoint_frames():
            store = CheckpointStore(session.checkpoints, keep_last=1)
            store.refuse_broken(store.latest())
        if session.index in left and not session.checkpoint_frames() and _was_saved(session):
            raise DamagedFileError(
                f"session {session.index} was saved, but {session.checkpoints} contains no checkpoint any "
                f"more: restore its checkpoints, or delete {session.path} to begin the session again from "
                "frame 0.",
                key=str(session.checkpoints),
            )


def _check_fits(config: TrialConfig, run: RunFolder, left: Sequence[int], reached: Mapping[int, int]) -> None:
    """Raises InputError where a session cannot take its state up again with what was forced upon it: the run
    would be left with a configuration by which nothing of it can be loaded."""
    saved = [session for session in run.sessions() if session.index in left and session.index in reached]
    if saved and not config.meta.distributed and Launch.here() is None:
        restored_session(config, saved[0].index, saved[0], num_threads=1).close()


def _was_saved(session: SessionFolder) -> bool:
    result = session.read_result()  # none of one that was killed, perhaps before its first checkpoint
    return result.get("status") in ("finished", "pruned", "interrupted") and result.get("frame", 0) > 0


def check_budget(past: Past, config: TrialConfig, reached: Callable[[], Mapping[int, int]]) -> None:
    """Raises InputError for a budget or a number of sessions below what has been done already.

    reached: gives the frames of each session, where they are asked for.
    """
    sessions, budget = config.meta.max_session, config.env.config.max_frame
    then = past.config["meta"]["max_session"]
    if sessions < then:
        raise InputError(
            f"meta.max_session={sessions}: the run has {then} sessions already. Set meta.max_session to "
            f"{then} or more.",
            code="range",
            key="meta.max_session",
        )
    if budget < past.config["env"]["max_frame"]:
        frames = reached()
        furthest = max(frames, key=lambda index: frames[index], default=None)
        if furthest is not None and frames[furthest] >= budget:
            raise InputError(
                f"env.max_frame={budget} must be more than the {frames[furthest]} frames that session "
                f"{furthest} has played already",
                code="range",
                key="env.max_frame",
            )


def _sessions_left(run: RunFolder, config: TrialConfig) -> list[int]:
    folders = {session.index: session for session in run.sessions()}
    return [
        index
        for index in range(config.meta.max_session)
        if index not in folders or not _has_finished(folders[index], config)
    ]


def _has_finished(session: SessionFolder, config: TrialConfig) -> bool:
    """Whether one of the budgets of `config` is spent."""
    limits = {"frame": config.env.config.max_frame, **_other_budgets(config)}
    result = session.read_result()  # where there is none, to be found out by its checkpoint
    spent = any(result.get(name, 0) >= limit for name, limit in limits.items())
    return result.get("status") == "finished" and spent


def _other_budgets(config: TrialConfig) -> dict[str, float]:
    """Limits by the name that results have for what is limited."""
    limits = {"opt_step": config.meta.max_opt_step, "wall": config.meta.max_wall}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _record_end(run: RunFolder) -> None:
    """Record that all sessions have finished, where the trial was ended before it could say so."""
    if run.status in ("running", "interrupted"):
        run.set_status("finished", sessions=[session.read_result() for session in run.sessions()])


def _finished(run: RunFolder, config: TrialConfig) -> str:
    sessions, budget = config.meta.max_session, config.env.config.max_frame
    all_of_them = f"its {sessions} sessions have" if sessions > 1 else "its session has"
    others = [f"meta.max_{name}={limit:g}" for name, limit in _other_budgets(config).items()]
    larger = " ".join(
        [f"env.max_frame=<more than {budget}>"]
        + [other.replace("=", "=<more than ") + ">" for other in others]
    )
    or_spent = "".join(f" or spent {other}" for other in others)
    lacks_report = config.meta.report and not run.report.exists()
    report = f"\nTo make its report: {how_to_report(run.path)}" if lacks_report else ""
    return (
        f"{run.path} has finished: {all_of_them} played the whole budget of {budget} frames{or_spent}.\n"
        f"To play on, give a larger one: {larger}\n"
        f"To add sessions with other seeds: meta.max_session=<more than {sessions}>{report}"
    )


def _entry(
    request: Request,
    changed: Sequence[Change],
    left: Sequence[int],
    reached: Mapping[int, int],
    now: Mapping[str, Any],
    differs: Sequence[str],
) -> dict[str, Any]:
    """What `run.json` says of this resume; its whole provenance lies under `resumes/<number>`."""
    return {
        "time": marker.now(),
        "frames": {str(index): reached.get(index, 0) for index in left},
        "edits": list(request.edits),
        "changed": [_as_json(change) for change in changed],
        "forced": request.force and not all(change.harmless for change in changed),
        "differs": list(differs),
        "command": now["command"],
        "labrl": now["packages"].get("labrl"),
        "commits": {name: facts.get("commit") for name, facts in now["git"].items()},
    }


def _as_json(change: Change) -> dict[str, Any]:
    values = {"then": change.old, "now": change.new}
    return {"key": change.key, **{name: value for name, value in values.items() if value is not ABSENT}}


def _announce(
    run: RunFolder,
    config: TrialConfig,
    left: Sequence[int],
    reached: Mapping[int, int],
    differs: Sequence[str],
) -> None:
    folders = {session.index: session.checkpoints for session in run.sessions()}

    def where(index: int) -> str:
        if index in reached:
            return f"frame {reached[index]:,}"
        saved = index in folders and CheckpointStore(folders[index], keep_last=1).frames()
        return "no checkpoint, for none is whole" if saved else "the beginning"

    if config.meta.max_session == 1:
        say(f"Resuming {run.path} from {where(0)}")
    else:
        say(f"Resuming {run.path}: " + ", ".join(f"session {index} from {where(index)}" for index in left))
    if differs:
        say(f"Not bit for bit as it would have been, because these differ: {'; '.join(differs)}")
