"""`labrl +resume` continues a run in its folder.

`asked_for` returns the run that is taken up again: resumed, repeated (`rerun.py`) or forked (`fork.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from omegaconf import DictConfig, OmegaConf

from labrl.config.compose import compose, resolve, to_plain
from labrl.config.keys import ABSENT, Change, changes, contradictions, override_of, quoted, split_override
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.session.callbacks.stop import Stop
from labrl.steady_output import doing
from labrl.storage import folder as folders
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.provenance import differences, known_provenance, write_provenance
from labrl.storage.run_folder import RunFolder, SessionFolder
from labrl.trial.composed import Again, Composed
from labrl.trial.fork import Fork
from labrl.trial.past import Past, described, find, report_damages, say_differences
from labrl.trial.rerun import Rerun
from labrl.trial.torchrun import Launch, check_resume

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.trial.result import TrialResult

# Functions below import labrl.trial.trial and the checkpoints late: a misspelled key must not wait for torch.

_SWITCHES = ("force", "pin")
"""Overrides that are true or false and go with +resume or +rerun."""


class FinishedError(InputError):
    """Every session of the run to resume has spent its budget."""


@dataclass(frozen=True)
class Request:
    """`+resume=<run>`, `+rerun=<run>` or `+fork=<run>`, with what else was typed."""

    kind: Literal["resume", "rerun", "fork"]
    which: str
    """A run folder, or `latest`."""
    force: bool
    """Whether to continue although the new values contradict the run's past."""
    edits: list[str]
    """The other overrides, which change the run's own."""
    pin: bool = False
    """Whether, in an experiment, keys that follow an edit keep the value that they had in each trial."""
    at: str | None = None
    """The frame to fork at."""


def request_of(overrides: Sequence[str], multirun: bool = False) -> Request | None:
    """Return what `overrides` ask for, or None if they name no run to go back to.

    multirun: whether they come with -m. Raises InputError for overrides that contradict each other.
    """
    given, edits = own_overrides(overrides, ("resume", "rerun", "fork", "at", *_SWITCHES))
    if not given:
        return None
    for name in _SWITCHES:
        if given.get(name, "true") not in ("true", "false"):
            raise InputError(f"+{name}={given[name]}: must be true or false", code="range", key=f"+{name}")
    kinds = [name for name in given if name not in (*_SWITCHES, "at")]
    if "at" in given and "fork" not in kinds:
        raise InputError(
            f"at={given['at']} is for +fork: labrl +fork=<run folder> at={given['at']}",
            code="usage",
            key="at",
        )
    if "pin" in given and (not multirun or kinds != ["resume"]):
        raise InputError(
            "+pin=true is for a resumed experiment: labrl -m +resume=<experiment folder> +pin=true",
            code="usage",
            key="+pin",
        )
    if not kinds or ("force" in given and kinds == ["fork"]):
        raise InputError(
            "+force=true is for +resume and +rerun: labrl +resume=<run folder> +force=true",
            code="usage",
            key="+force",
        )
    if len(kinds) > 1:
        raise InputError(
            "+resume continues a run in its folder, +rerun repeats it and +fork continues it in a new one: "
            f"leave out +{' or +'.join(kinds)}",
            code="contradiction",
            key=f"+{kinds[1]}",
        )
    if multirun and kinds[0] == "rerun":
        raise InputError(
            "+rerun repeats one run, so it cannot be part of an experiment: leave out -m",
            code="contradiction",
            key="-m",
        )
    if (
        multirun
        and kinds[0] == "fork"
        and any(override.startswith("hydra/sweeper=optuna") for override in edits)
    ):
        raise InputError(
            "+fork and a search contradict each other: the trials of a search begin at frame 0. Leave out "
            "hydra/sweeper=optuna, and give the values of a grid: agent.lr=1e-4,3e-4",
            code="contradiction",
            key="+fork",
        )
    kind: Literal["resume", "rerun", "fork"] = kinds[0]  # type: ignore[assignment]  # one of these names
    of_folder = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    folder = next((override for override in edits if override.lstrip("+").startswith(f"{of_folder}=")), None)
    if kind == "resume" and folder:
        instead = "" if multirun else "; +rerun=<run> takes a new one"
        raise InputError(
            f"{folder}: {'an experiment' if multirun else 'a run'} is resumed in its own folder{instead}. "
            f"Leave out {of_folder}.",
            code="contradiction",
            key=of_folder,
        )
    flags = {name: given.get(name) == "true" for name in _SWITCHES}
    return Request(kind, given[kind], edits=edits, at=given.get("at"), **flags)


def own_overrides(overrides: Sequence[str], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of the overrides `+name=value` that are labrl's own, and the other overrides.

    `at` needs no sign. Raises InputError for one without a value, with another sign than +, or given twice.
    """
    given: dict[str, str] = {}
    others = []
    for one in overrides:
        name, _, value = one.lstrip("+").partition("=")
        if name not in names:
            others.append(one)
            continue
        if not value:
            example = {"at": "<frame>", **dict.fromkeys(_SWITCHES, "true")}.get(name)
            example = example or f"latest or +{name}=<run folder>"
            raise InputError(f"{one}: needs a value, as in +{name}={example}", code="missing", key=f"+{name}")
        signs = one[: one.index(name)]
        if signs != "+" and (signs, name) != ("", "at"):
            raise InputError(f"{one}: write +{name}={value}", code="syntax", key=f"+{name}")
        if name in given:
            raise InputError(
                f"+{name} is given twice: +{name}={given[name]} and {one}. Leave one out.",
                code="contradiction",
                key=f"+{name}",
            )
        in_quotes = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
        given[name] = value[1:-1] if in_quotes else value
    return given, others


def asked_for(overrides: Sequence[str], config_dir: str | os.PathLike[str] | None = None) -> Again | None:
    """Return what `overrides` go back to, or None. Raises InputError where they contradict or no run exists.

    config_dir: with a user's own groups, where it is not the run's own.
    """
    request = request_of(overrides)
    if request is None:
        return None
    if request.kind == "fork":
        return Fork.asked_for(request.which, request.at, request.edits)
    past = Past.of(find(request.which, request.edits, request.kind))
    if request.kind == "rerun":
        return Rerun(past, request.edits, request.force)
    in_file, edited = _changes_in_file(past, config_dir or past.command.config_dir)
    return Resume(past, request.edits, request.force, in_file, edited)


class Resume(Again):
    """A run that `+resume` continues in its folder."""

    def __init__(
        self,
        past: Past,
        edits: Sequence[str],
        force: bool,
        in_file: Sequence[str] = (),
        edited: Collection[str] = (),
    ) -> None:
        """edits: overrides that change the run's own; force: whether they may contradict its past; in_file:
        what was changed in its `config.yaml`, as overrides; edited: the keys of that."""
        self.past, self._edits, self._force = past, [*in_file, *edits], force
        self._edited = frozenset(edited) - {split_override(one)[0] for one in edits}

    @classmethod
    def on_trial(cls, run: RunFolder, force: bool, overrides: Sequence[str]) -> Resume:
        """Return how to continue `run`, a trial of an experiment, which now has these overrides."""
        past = Past.of(run)
        return cls(past, [one for one in overrides if one not in past.overrides], force)

    @property
    def seed(self) -> int:
        """The seed that the run used."""
        return self.past.config["seed"]

    @property
    def num_sessions(self) -> int:
        """The sessions that the run has."""
        return self.past.config["meta"]["max_session"]

    @property
    def overrides(self) -> list[str]:
        """The run's own overrides, edits of its `config.yaml`, then those typed now."""
        return [*self.past.overrides, *self._edits, f"hydra.run.dir={quoted(str(self.past.folder.path))}"]

    def run(self, composed: Composed) -> TrialResult:
        """Run the sessions that have not spent their budget, each from its newest checkpoint.

        Raises, with nothing run, InputError with a table where the run's past would have been another one,
        BusyFolderError where the run is still alive and FinishedError where nothing is left to do.
        """
        from labrl.envs.sample import kept_for_the_run
        from labrl.trial.trial import check, recording_failure, run_sessions

        run, config = self.past.folder, composed.config
        if not self._force:
            self.past.check(composed.cfg, composed.plain, f"+resume={run.path}", self._edited)
        report_damages(run)
        changed = self.past.changes(composed.plain)
        with kept_for_the_run():
            check(config)
            with run.lock():
                check_resume(run)
                reached = frames_reached(run)
                check_budget(self.past, config, lambda: reached)
                left = _sessions_left(run, config)
                if not left:
                    if run.status in ("running", "interrupted"):  # killed before it recorded its end
                        run.set_status("finished", sessions=[one.read_result() for one in run.sessions()])
                    raise FinishedError(_finished(run, config), code="range", key="env.max_frame")
                _check_saved(run, left, reached)
                if contradictions(changed):
                    _check_fits(config, run, left, reached)
                begins = {index: reached.get(index, 0) for index in left}
                with recording_failure(run):
                    differs = self._record(begins, changed, composed)
                    edited = [one for one in changed if one.key in self._edited]
                    _announce(run, begins, reached, edited, differs)
                    doing("restoring the run")
                    return run_sessions(config, composed.plain, run, left)

    def _record(
        self, begins: Mapping[int, int], changed: Sequence[Change], composed: Composed
    ) -> list[str] | None:
        """Write the provenance of this resume, and an entry in `run.json`.

        begins: from which frame by number of the session; changed: the keys that differ from the run's own.
        Returns what differs from the machine, the code and the packages of the past; None where those are not
        known.
        """
        run = self.past.folder
        before = known_provenance(run)
        resumes = list(run.info().get("resumes", []))
        number = max((int(path.name) for path in run.resumes.glob("[0-9]*")), default=0) + 1
        now = write_provenance(run, composed.plain, composed.command, resume=number)
        differs = differences(before, now) if before else None
        entry = {
            "time": folders.now(),
            "frames": {str(index): frame for index, frame in begins.items()},
            "edits": self._edits,
            "changed": [change.as_json() for change in changed],
            "forced": self._force and bool(contradictions(changed)),
            "differs": differs or [],
            "command": now["command"],
            "labrl": now["packages"].get("labrl"),
            "commits": {name: facts.get("commit") for name, facts in now["git"].items()},
            "edited_in_config_yaml": sorted(self._edited),
        }
        run.set_status("running", resumes=[*resumes, entry])
        return differs


def _changes_in_file(past: Past, config_dir: str | os.PathLike[str] | None) -> tuple[list[str], list[str]]:
    """Return what was changed in a run's `config.yaml`, as overrides of a command line, and the changed keys.

    Keys that follow a changed one, as schedules follow `env.max_frame`, keep the value that the file has.
    Raises DamagedFileError where the file is damaged, InputError where what was changed is wrong.
    """
    file = past.edited()
    found = past.changes(file)
    overrides = [
        ("++" if change.old is ABSENT else "") + override_of(change.key, change.new) for change in found
    ]
    if not found:
        return [], []
    try:
        cfg = compose([*past.overrides, *overrides], config_dir)
        for change in changes(to_plain(cfg), file):
            parent, _, name = change.key.rpartition(".")
            node = OmegaConf.select(cfg, parent) if parent else cfg
            if isinstance(node, DictConfig) and OmegaConf.is_interpolation(node, name):
                overrides.append(override_of(change.key, change.new))
        cfg = compose([*past.overrides, *overrides], config_dir)
        resolve(cfg)
    except LabrlError as error:
        raise InputError.of(
            replace(one, message=f"{past.folder.config} was edited and cannot be used: {one.message}")
            for one in error.mistakes
        ) from error
    return overrides, [change.key for change in found]


def frames_reached(run: RunFolder) -> dict[int, int]:
    """Return the frame of the newest whole checkpoint by number of the session, if it has one."""

    frames = {
        session.index: CheckpointStore(session.checkpoints, keep_last=1).newest_whole_frame()
        for session in run.sessions()
    }
    return {index: newest for index, newest in frames.items() if newest is not None}


def check_budget(past: Past, config: TrialConfig, reached: Callable[[], Mapping[int, int]]) -> None:
    """Raise InputError for a budget or a number of sessions below what the run has done already.

    reached: returns the frames of each session.
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
    if sessions > then and "fork" in past.folder.info():
        raise InputError(
            f"meta.max_session={sessions}: {past.folder.path} is a fork with {then} sessions, and further "
            f"ones would have no past. Set meta.max_session={then}.",
            code="range",
            key="meta.max_session",
        )
    frames = reached() if budget < past.config["env"]["max_frame"] else {}
    furthest = max(frames, key=lambda index: frames[index], default=None)
    if furthest is not None and frames[furthest] >= budget:
        raise InputError(
            f"env.max_frame={budget} must be more than the {frames[furthest]} frames that session "
            f"{furthest} has played already",
            code="range",
            key="env.max_frame",
        )


def _check_saved(run: RunFolder, left: Sequence[int], reached: Mapping[int, int]) -> None:
    """Raise DamagedFileError where a saved session has lost all its checkpoints, because its rows would be
    lost too, and where the only session that is left has no whole checkpoint."""

    for session in run.sessions():
        if list(left) == [session.index] and session.index not in reached and session.checkpoint_frames():
            store = CheckpointStore(session.checkpoints, keep_last=1)
            store.refuse_broken(store.latest())
        result = session.read_result()  # empty for one that was killed, perhaps before its first checkpoint
        was_saved = (
            result.get("status") in ("finished", "pruned", "interrupted") and result.get("frame", 0) > 0
        )
        if session.index in left and not session.checkpoint_frames() and was_saved:
            raise DamagedFileError(
                f"session {session.index} was saved, but {session.checkpoints} contains no checkpoint any "
                f"more: restore its checkpoints, or delete {session.path} to begin the session again from "
                "frame 0.",
                key=str(session.checkpoints),
            )


def _check_fits(config: TrialConfig, run: RunFolder, left: Sequence[int], reached: Mapping[int, int]) -> None:
    """Raise InputError where a session cannot load its state with forced values: the run would be left with a
    configuration by which nothing of it can be loaded."""
    from labrl.trial.worker import restored_session

    saved = [session for session in run.sessions() if session.index in left and session.index in reached]
    if saved and not config.meta.distributed and Launch.here() is None:
        restored_session(config, saved[0].index, saved[0], num_threads=1).close()


def _budgets(config: TrialConfig) -> dict[str, tuple[str, float]]:
    """Key and value of each budget by the name that results have for what it limits."""
    meta, frames = config.meta, config.env.config.max_frame
    limits = {
        "frame": ("env.max_frame", frames),
        "opt_step": ("meta.max_opt_step", meta.max_opt_step),
        "wall": ("meta.max_wall", meta.max_wall),
    }
    return {name: (key, limit) for name, (key, limit) in limits.items() if limit is not None}


def _sessions_left(run: RunFolder, config: TrialConfig) -> list[int]:
    """Return the numbers of the sessions that have not spent one of the budgets."""

    def is_done(session: SessionFolder) -> bool:
        result = session.read_result()
        spent = any(result.get(name, 0) >= limit for name, (_, limit) in _budgets(config).items())
        stop = Stop.recorded(result)
        stopped = stop is not None and stop.holds(config.meta)
        return result.get("status") == "finished" and (spent or stopped)

    done = {session.index for session in run.sessions() if is_done(session)}
    return [index for index in range(config.meta.max_session) if index not in done]


def _finished(run: RunFolder, config: TrialConfig) -> str:
    """Say that nothing is left to do, and what to type to do more."""
    from labrl.trial.summary import how_to_report

    sessions, budget = config.meta.max_session, config.env.config.max_frame
    all_of_them = f"its {sessions} sessions have" if sessions > 1 else "its session has"
    budgets = list(_budgets(config).values())
    found = [stop for session in run.sessions() if (stop := Stop.recorded(session.read_result()))]
    stops = {stop.key: max(one.value for one in found if one.key == stop.key) for stop in found}
    larger = " ".join(f"{key}=<more than {limit:.16g}>" for key, limit in [*budgets, *stops.items()])
    or_spent = "".join(f" or spent {key}={limit:g}" for key, limit in budgets[1:])
    or_spent += "".join(f" or ended early: {stop.why}" for stop in found)
    lacks_report = config.meta.report and not run.report.exists()
    report = f"\nTo make its report: {how_to_report(run.path)}" if lacks_report else ""
    return (
        f"{run.path} has finished: {all_of_them} played the whole budget of {budget} frames{or_spent}.\n"
        f"To continue, give a larger budget: {larger}\n"
        f"To add sessions with other seeds: meta.max_session=<more than {sessions}>{report}"
    )


def _announce(
    run: RunFolder,
    begins: Collection[int],
    reached: Mapping[int, int],
    edited: Sequence[Change],
    differs: Sequence[str] | None,
) -> None:
    """Print from which frame each session continues, and why the rest may not be exact."""
    from labrl.trial.summary import say

    saved = {session.index for session in run.sessions() if session.checkpoint_frames()}

    def where(index: int) -> str:
        if index in reached:
            return f"frame {reached[index]:,}"
        return "no checkpoint, for none is whole" if index in saved else "the beginning"

    for change in edited:
        say(f"From {run.config}, which was edited: {described(change)}")
    alone = list(begins) == [0] and len(run.sessions()) <= 1
    places = [where(index) if alone else f"session {index} from {where(index)}" for index in begins]
    say(f"Resuming {run.path}{' from' if alone else ':'} {', '.join(places)}")
    say_differences(differs)
