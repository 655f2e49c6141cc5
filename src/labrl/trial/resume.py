"""`labrl +resume` continues a run in its folder.

`go_back` returns the earlier run of a request: to be resumed, repeated (`rerun.py`) or forked (`fork.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from labrl.config.compose import compose, resolve, to_plain
from labrl.config.keys import ABSENT, Change, changes, contradictions, override_of, quoted, split_override
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.run import folder as folders
from labrl.run.provenance import differences, write_provenance
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.secrets import note_typed, origins
from labrl.session.callbacks.stop import Stop
from labrl.steady_output import doing
from labrl.trial.composed import Again, Composed
from labrl.trial.find import find_run
from labrl.trial.fork import Fork
from labrl.trial.past import (
    check_changes,
    check_past,
    described,
    edited_config,
    overrides_of,
    say_differences,
)
from labrl.trial.request import Request
from labrl.trial.rerun import Rerun
from labrl.trial.torchrun import check_resume

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.trial.result import TrialResult

# Functions below import labrl.trial.trial late: a misspelled key must not wait for PyTorch.


class FinishedError(InputError):
    """Raised if every session of the run to resume has used up its budget."""


def go_back(request: Request, config_dir: str | os.PathLike[str] | None = None) -> Again:
    """Return the earlier run that a request names.

    Raises InputError if there is none, or if someone else has written it and it names code that is not part
    of labrl.

    config_dir: folder with the user's own groups; None: that of the run.
    """
    if request.kind == "fork":
        return Fork.at(request)
    past = check_past(find_run(request.which, request.edits, request.kind), composes=True)
    if request.kind == "rerun":
        return Rerun(past, request.edits, request.force)
    in_file, edited = _changes_in_file(past, config_dir or past.config_dir)
    return Resume(past, request.edits, request.force, in_file, edited)


class Resume(Again):
    """A run that `+resume` continues in its folder."""

    def __init__(
        self,
        past: Run,
        edits: Sequence[str],
        force: bool,
        in_file: Sequence[str] = (),
        edited: Collection[str] = (),
    ) -> None:
        """in_file: overrides for the changes in its `config.yaml`; edited: the changed keys."""
        super().__init__(past, [*in_file, *edits], force)
        note_typed(edits)
        self._edited = frozenset(edited) - {split_override(one)[0] for one in edits}

    @classmethod
    def on_trial(cls, run: Run, force: bool, overrides: Sequence[str]) -> Resume:
        """Return the resume of `run`, a trial of an experiment that now has these overrides."""
        before = overrides_of(check_past(run))
        return cls(run, [one for one in overrides if one not in before], force)

    @property
    def overrides(self) -> list[str]:
        """The overrides of the run, changes in its `config.yaml`, edits typed now, and its folder."""
        return [*super().overrides, f"hydra.run.dir={quoted(str(self.past.path))}"]

    def run(self, composed: Composed) -> TrialResult:
        """Run the sessions that have not used up their budget, each from its newest checkpoint.

        Before anything runs, raises InputError with a table if new values contradict the past of the run,
        BusyFolderError if the run is still running, and FinishedError if nothing is left to do.
        """
        from labrl.envs.probe import keeping_spares
        from labrl.trial.playback import make_videos
        from labrl.trial.summary import say
        from labrl.trial.trial import check, recording_failure, run_sessions
        from labrl.trial.worker import check_restores

        run, config = self.past, composed.config
        if not self.force:
            check_changes(run, composed.cfg, composed.plain, f"+resume={run.path}", self._edited)
        changed = self.past.changes(composed.plain)
        with keeping_spares():
            check(config)
            with run.lock():
                check_resume(run)
                reached = frames_reached(run)
                check_budget(self.past, config, lambda: reached)
                left = _sessions_left(run, config)
                if not left:
                    if run.recorded_status in ("running", "interrupted"):  # killed before it recorded its end
                        sessions = [one.read_result() for one in run.sessions]
                        run.set_status("finished", sessions=sessions, videos_due=config.meta.videos)
                    make_videos(run)
                    raise FinishedError(_finished(run, config), code="range", key="env.max_frame")
                _check_saved(run, left, reached)
                saved = [one for one in run.sessions if one.index in left and one.index in reached]
                if saved and contradictions(changed):
                    # With forced values that do not fit, the run would be left without a usable state.
                    check_restores(config, saved[0])
                begins = {index: reached.get(index, 0) for index in left}
                with recording_failure(run):
                    differs = self._record(begins, changed, composed)
                    for line in origins() if run.experiment is None else ():
                        say(line)
                    edited = [one for one in changed if one.key in self._edited]
                    _announce(run, begins, reached, edited, differs)
                    doing("restoring the run")
                    return run_sessions(config, composed.plain, run, left)

    def _record(self, begins: Mapping[int, int], changed: Sequence[Change], composed: Composed) -> list[str]:
        """Write the provenance of this resume, and an entry in `run.json`.

        begins: first frame by number of the session; changed: keys whose values have changed. Returns the
        differences in machine, code and packages since the earlier run.
        """
        run = self.past
        run.update(format_version=run.FORMAT_VERSION)  # also restores what a power failure has left empty
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
            "forced": self.force and bool(contradictions(changed)),
            "differs": differs,
            "command": now["command"],
            "labrl": now["packages"].get("labrl"),
            "commits": {name: facts.get("commit") for name, facts in now["git"].items()},
            "edited_in_config_yaml": sorted(self._edited),
        }
        run.set_status("running", resumes=[*resumes, entry])
        return differs


def _changes_in_file(past: Run, config_dir: str | os.PathLike[str] | None) -> tuple[list[str], list[str]]:
    """Return the changes in a run's `config.yaml` as overrides, and the changed keys.

    Keys that follow a changed key, as schedules follow `env.max_frame`, keep the value in the file. Raises
    DamagedFileError if the file is damaged, and InputError for wrong values.
    """
    file = edited_config(past)
    found = past.changes(file)
    overrides = [
        ("++" if change.old is ABSENT else "") + override_of(change.key, change.new) for change in found
    ]
    if not found:
        return [], []
    try:
        cfg = compose([*overrides_of(past), *overrides], config_dir)
        for change in changes(to_plain(cfg), file):
            parent, _, name = change.key.rpartition(".")
            node = OmegaConf.select(cfg, parent) if parent else cfg
            if isinstance(node, DictConfig) and OmegaConf.is_interpolation(node, name):
                overrides.append(override_of(change.key, change.new))
        cfg = compose([*overrides_of(past), *overrides], config_dir)
        resolve(cfg)
    except LabrlError as error:
        raise error.within(f"{past.config_yaml} was edited and cannot be used") from error
    return overrides, [change.key for change in found]


def frames_reached(run: Run) -> dict[int, int]:
    """Return the frame of the newest whole checkpoint of each session that has one, by number."""
    frames = {session.index: session.store().newest_whole_frame() for session in run.sessions}
    return {index: newest for index, newest in frames.items() if newest is not None}


def check_budget(past: Run, config: TrialConfig, reached: Callable[[], Mapping[int, int]]) -> None:
    """Raise InputError for a budget or a number of sessions below what the run already has.

    reached: returns the frame of each session.
    """
    sessions, budget = config.meta.max_session, config.env.config.max_frame
    then = past.config["meta"]["max_session"]
    if sessions < then:
        raise InputError(
            f"meta.max_session={sessions}: the run already has {then} sessions. Set meta.max_session to "
            f"{then} or more.",
            code="range",
            key="meta.max_session",
        )
    if sessions > then and "fork" in past.read_info():
        raise InputError(
            f"meta.max_session={sessions}: {past.path} is a fork with {then} sessions, and "
            f"further sessions would have no past. Set meta.max_session={then}.",
            code="range",
            key="meta.max_session",
        )
    frames = reached() if budget < past.config["env"]["max_frame"] else {}
    furthest = max(frames, key=lambda index: frames[index], default=None)
    if furthest is not None and frames[furthest] >= budget:
        raise InputError(
            f"env.max_frame={budget} must be more than the {frames[furthest]} frames that session "
            f"{furthest} has already played",
            code="range",
            key="env.max_frame",
        )


def _check_saved(run: Run, left: Sequence[int], reached: Mapping[int, int]) -> None:
    """Raise DamagedFileError if a saved session has lost all its checkpoints, because its rows would be lost
    too, or if the only remaining session has no whole checkpoint."""
    for session in run.sessions:
        if list(left) == [session.index] and session.index not in reached and session.checkpoint_frames():
            store = session.store()
            store.refuse_broken(store.latest())
        result = session.read_result()  # empty for one that was killed, perhaps before its first checkpoint
        was_saved = (
            result.get("status") in ("finished", "pruned", "interrupted") and result.get("frame", 0) > 0
        )
        if session.index in left and not session.checkpoint_frames() and was_saved:
            raise DamagedFileError(
                f"session {session.index} was saved, but {session.checkpoints} no longer contains a "
                f"checkpoint. Restore its checkpoints, or delete {session.path} to restart the session from "
                "frame 0.",
                key=str(session.checkpoints),
            )


def _budgets(config: TrialConfig) -> dict[str, tuple[str, float]]:
    """Return the key and the value of each budget, by the name in results of what it limits."""
    meta, frames = config.meta, config.env.config.max_frame
    limits = {
        "frame": ("env.max_frame", frames),
        "opt_step": ("meta.max_opt_step", meta.max_opt_step),
        "wall": ("meta.max_wall", meta.max_wall),
    }
    return {name: (key, limit) for name, (key, limit) in limits.items() if limit is not None}


def _sessions_left(run: Run, config: TrialConfig) -> list[int]:
    """Return the numbers of the sessions that have not reached a budget."""

    def is_done(session: RunSession) -> bool:
        result = session.read_result()
        spent = any(result.get(name, 0) >= limit for name, (_, limit) in _budgets(config).items())
        stop = Stop.recorded(result)
        stopped = stop is not None and stop.holds(config.meta)
        return result.get("status") == "finished" and (spent or stopped)

    done = {session.index for session in run.sessions if is_done(session)}
    return [index for index in range(config.meta.max_session) if index not in done]


def _finished(run: Run, config: TrialConfig) -> str:
    """Return a message that nothing is left to do, with what to type to do more."""
    from labrl.trial.summary import how_to_report

    sessions, budget = config.meta.max_session, config.env.config.max_frame
    all_of_them = f"its {sessions} sessions have" if sessions > 1 else "it has"
    budgets = list(_budgets(config).values())
    found = [stop for session in run.sessions if (stop := Stop.recorded(session.read_result()))]
    stops = {stop.key: max(one.value for one in found if one.key == stop.key) for stop in found}
    larger = " ".join(f"{key}=<more than {limit:.16g}>" for key, limit in [*budgets, *stops.items()])
    or_spent = "".join(f" or reached {key}={limit:g}" for key, limit in budgets[1:])
    or_spent += "".join(f" or ended early: {stop.why}" for stop in found)
    lacks_report = config.meta.report and not run.report.exists()
    report = f"\nTo make its report: {how_to_report(run.path)}" if lacks_report else ""
    return (
        f"{run.path} has finished: {all_of_them} played all {budget} frames of the budget{or_spent}.\n"
        f"To continue, set a larger budget: {larger}\n"
        f"To add sessions with other seeds: meta.max_session=<more than {sessions}>{report}"
    )


def _announce(
    run: Run,
    begins: Collection[int],
    reached: Mapping[int, int],
    edited: Sequence[Change],
    differs: Sequence[str],
) -> None:
    """Print the frame from which each session continues, and why the continuation may not be exact."""
    from labrl.trial.summary import say

    saved = {session.index for session in run.sessions if session.checkpoint_frames()}

    def where(index: int) -> str:
        if index in reached:
            return f"frame {reached[index]:,}"
        return "the start, because no checkpoint is whole" if index in saved else "the start"

    for change in edited:
        say(f"From {run.config_yaml}, which was edited: {described(change)}")
    alone = list(begins) == [0] and len(run.sessions) <= 1
    places = [where(index) if alone else f"session {index} from {where(index)}" for index in begins]
    say(f"Resuming {run.path}{' from' if alone else ':'} {', '.join(places)}")
    say_differences(differs)
