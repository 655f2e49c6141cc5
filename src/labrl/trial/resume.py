"""`labrl +resume` continues a run in its folder.

`go_back` returns the earlier run that a request names, to be resumed, repeated (`rerun.py`) or forked
(`fork.py`). `Resume.plan` decides which sessions continue; each loads its newest complete checkpoint when it
starts (`restored_session` in `labrl.session.run`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labrl.config.compose import resolve
from labrl.config.keys import Change, contradictions, written
from labrl.errors import DamagedFileError, InputError
from labrl.run import folder as folders
from labrl.run.find import is_run
from labrl.run.provenance import differences, write_provenance
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.callbacks.stop import Stop
from labrl.session.torchrun import check_resume
from labrl.trial.again import (
    Again,
    check_past,
    overrides_of,
    refusal,
    say_differences,
)
from labrl.trial.coefficients import hold_changes, refuse_idle, schedule_jumps
from labrl.trial.composed import Composed
from labrl.trial.find import find_run
from labrl.trial.fork import Fork
from labrl.trial.request import Request
from labrl.trial.rerun import Rerun
from labrl.trial.saved import SavedConfig

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.run.provenance import Repositories, Typed

# Functions below import labrl.trial.trial late: a misspelled key must not wait for PyTorch.


class FinishedError(InputError):
    """Raised if every session of the run to be resumed has used up its budget, and no file is missing."""


def go_back(request: Request, config_dir: str | os.PathLike[str] | None = None) -> Again:
    """Find the earlier run that a request names, and return it with the request's edits.

    Raises InputError if there is none, or if someone else has written it and it names code that is not part
    of labrl.

    config_dir: folder with the user's own groups; None: the folder that the run used.
    """
    file = Path(os.path.expanduser(request.which))
    past: Run
    if request.kind == "rerun" and file.is_file():
        of_run = file.name == "config.yaml" and is_run(file.parent)
        past = Run.open(file.parent) if of_run else SavedConfig(file)
    else:
        past = find_run(request.which, request.edits, request.kind)
    check_past(past, composes=True)
    if request.kind == "fork":
        return Fork.at(past, request, config_dir)
    if request.kind == "rerun":
        return Rerun(past, request.edits, request.force, config_dir)
    return Resume(past, request.edits, request.force, config_dir)


class Resume(Again):
    """An earlier run that `+resume` continues in its folder, with edits."""

    @property
    def node(self) -> dict[str, Any]:
        """Keys below `hydra`, with the existing run folder."""
        return {**super().node, "run": {"dir": str(self.past.path)}}

    @classmethod
    def on_trial(cls, run: Run, force: bool = False, overrides: Sequence[str] | None = None) -> Resume:
        """Return the resume of `run`, a trial of an experiment. overrides: all overrides that the trial has
        now; None: unchanged."""
        before = overrides_of(check_past(run))
        return cls(run, [one for one in overrides or () if one not in before], force)

    def plan(
        self,
        folder: str,
        typed: Typed,
        repositories: Repositories | None = None,
        elsewhere: bool = False,
    ) -> Run:
        """Plan the sessions that have not used up their budget, each from its newest checkpoint.

        If only the videos or the report are missing, no session is due. Raises InputError with a table if new
        values contradict the past of the run, or if nothing would be learned; BusyFolderError if the run is
        still running, and FinishedError if nothing is left to do.
        """
        from labrl.trial.summary import say
        from labrl.trial.trial import check, plan_sessions, recording_failure

        run, plain = self.past, self.edited
        with run.lock():
            reached = frames_reached(run)
            plain, contradicting = self.continued(plain, reached)
            self.check_contradictions(plain, contradicting, reached)
            changed = run.changes(plain)
            composed = self.composed(str(run.path), typed, plain, repositories, elsewhere)
            config = composed.config
            check(config, elsewhere=elsewhere)
            check_resume(run)
            left = _sessions_left(run, config)
            if not left:
                # The run was killed before it recorded its end.
                if run.recorded_status in ("waiting", "running", "interrupted"):
                    sessions = [one.read_result() for one in run.sessions]
                    run.set_status("finished", sessions=sessions, videos_due=config.meta.videos)
                if not lacks_files(run, config.meta.report):
                    raise FinishedError(_finished(run, config), code="range", key="env.max_frame")
                if changed:
                    self._record(reached, changed, composed, bool(contradicting))
                run.update(due=[])
                return run
            _check_saved(run, left, reached)
            saved = [one for one in run.sessions if one.index in left and one.index in reached]
            if saved and contradicting:
                # With forced values that do not fit, the run would be left without a usable state.
                self.check_fits(config, saved[0], contradicting)
            begins = {index: reached.get(index, 0) for index in left}
            frame = max(reached.values(), default=0)
            before = resolve(run.read_config()) if frame and changed else config
            jumps = list(schedule_jumps(before, config, frame))
            with recording_failure(run):
                differs = self._record(begins, changed, composed, bool(contradicting))
                _announce(run, begins, reached, differs)
                for line in jumps:
                    say(line)
                plan_sessions(config, run, left)
        return run

    def continued(
        self, plain: Mapping[str, Any], reached: Mapping[int, int]
    ) -> tuple[dict[str, Any], list[Change]]:
        """Return the configuration of the continued run, and the changes in it that contradict the run's
        past.

        plain: the recorded configuration with the edits applied; coefficients that an edit changes take
        effect after the furthest frame that any session has reached. reached: `frames_reached` of the run.
        Raises InputError if the new budget is already spent, or if a run with a larger budget would learn
        nothing more or needs a replay buffer that `labrl-clean` has removed, and DamagedFileError if there is
        no checkpoint to continue from.
        """
        # First, because a budget that contradicts other keys would be refused with one that is spent, too.
        _check_budget(self.past, plain, reached)
        run, config = self.past, resolve(plain)
        run.check_buffers(reached.keys() & _sessions_left(run, config), f"+resume={run.path}")
        frame = max(reached.values(), default=0)
        if not frame and config.env.config.max_frame > run.config["env"]["max_frame"]:
            for session in run.sessions:
                _check_saved(run, [session.index], reached)
        held, keys = hold_changes(run.read_config(), plain, config, frame) if frame else (dict(plain), [])
        prefixes = tuple(f"{key}." for key in keys)
        found = [one for one in contradictions(run.changes(held)) if not f"{one.key}.".startswith(prefixes)]
        if not (found or self.force):
            again = shlex.join(["labrl", *self.overrides])
            refuse_idle(resolve(held), frame, run.config["env"]["max_frame"], again)
        return held, found

    def check_contradictions(
        self, plain: Mapping[str, Any], contradicting: Sequence[Change], reached: Mapping[int, int]
    ) -> None:
        """Raise InputError, with a table, for changes that contradict the run's past, unless they are forced.

        plain, contradicting: result of `continued`; reached: `frames_reached` of the run.
        """
        if contradicting and not self.force:
            decisive = (one.key == "agent._target_" or ".network." in one.key for one in contradicting)
            if reached and any(decisive):
                self.check_fits(resolve(plain), self.past.session(min(reached)), contradicting)
            raise refusal(contradicting, f"+resume={self.past.path}")

    def _record(
        self, begins: Mapping[int, int], changed: Sequence[Change], composed: Composed, contradicts: bool
    ) -> list[str]:
        """Write the provenance of this resume, and add an entry to `run.json`.

        begins: frame from which each session continues, by index; changed: changes of the configuration;
        contradicts: whether the changes contradict the past of the run. Returns the differences in machine,
        code and packages since the earlier run.
        """
        run = self.past
        resumes = list(run.read_info().get("resumes", []))
        number = max((int(path.name) for path in run.resumes.glob("[0-9]*")), default=0) + 1
        before = run.read_provenance()
        now = write_provenance(run, composed.plain, composed.command, number)
        differs = differences(before, now)
        entry = {
            "time": folders.now(),
            "frames": {str(index): frame for index, frame in begins.items()},
            "edits": self.edits,
            "changed": [change.as_json() for change in changed],
            "forced": self.force and contradicts,
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
