"""`labrl +fork=<run> at=<frame>` starts a new run from a checkpoint of another run, with edits.

A fork is a resume in a new folder: its sessions have the checkpoint, the rows and the episodes of the other
run up to that frame. Edits are refused only if the checkpoint cannot be loaded with them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from labrl.config.compose import resolve
from labrl.config.keys import Change, contradictions, is_hydras, split_override
from labrl.errors import DamagedFileError, InputError
from labrl.processes.output import doing
from labrl.run.atomic import copy_synced
from labrl.run.checkpoint import REPLAY, CheckpointStore, copy_replay
from labrl.run.provenance import differences, write_provenance
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.torchrun import check_resume
from labrl.trial.coefficients import schedule_jumps
from labrl.trial.command import frame_of
from labrl.trial.configuration import Configuration, edit_run, overrides_of
from labrl.trial.past import check_fits, check_past, configure_again, described, say_differences

if TYPE_CHECKING:
    from labrl.run.provenance import Repositories, Typed

_FIXED = {
    "seed": "the random streams of the other run continue",
    "env.num_envs": "the checkpoint contains the state of that many environments",
    "agent._target_": "the checkpoint belongs to another agent",
    "start_from.run": "the fork starts from the weights of the checkpoint",
}
"""Keys that a fork cannot change, each with the reason."""

_SHOWN = 12
"""Maximum number of frames that a message lists."""


@dataclass(frozen=True)
class ForkPoint:
    """The checkpoint of a run from which a fork starts, and edits of its configuration."""

    past: Run
    frame: int
    edits: list[str]
    config_dir: str | None = None
    """Folder with the user's own groups; None: the folder that the run used."""

    @classmethod
    def find(cls, past: Run, at: str | None, edits: Sequence[str], config_dir: str | None) -> ForkPoint:
        """Return the point at the requested frame. Raises InputError if there is no checkpoint there."""
        given = [value for key, value in map(split_override, edits) if key == "meta.max_session"]
        count = int(given[-1]) if given and given[-1].isdigit() else past.config["meta"]["max_session"]
        keep = [f"meta.keep_every={frame}"] if (frame := frame_of(at)) else []
        past.check_buffers(range(count), f"+fork={past.path}", keep)
        own = [one for one in edits if not is_hydras(one)]
        return cls(past, _frame_of(past, at, count), own, config_dir)

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> ForkPoint | None:
        """Return the point that all trials of an experiment start from; None if `facts`, the recorded data
        of the experiment, contain none."""
        said = facts.get("fork")
        if not isinstance(said, dict):
            return None
        return cls(check_past(Run.open(said["folder"])), said["frame"], said["edits"])

    def as_json(self) -> dict[str, Any]:
        """Return the point as plain data, from which `recorded` restores it."""
        return {"folder": str(self.past.path), "frame": self.frame, "edits": self.edits}

    def of_trial(self, overrides: Sequence[str]) -> ForkPoint:
        """Return the point for a trial of an experiment. overrides: all overrides of the trial."""
        before = overrides_of(self.past)
        return replace(self, edits=[one for one in overrides if one not in before])


def fork(
    point: ForkPoint,
    folder: str,
    typed: Typed,
    repositories: Repositories | None = None,
    elsewhere: bool = False,
) -> Run:
    """Create a run in a new folder that starts from a checkpoint of another run.

    Raises InputError, and leaves no folder, if the checkpoint cannot be loaded with the edits.
    """
    # Imported late: a misspelled override must not wait for PyTorch.
    from labrl.trial.create import create

    plain, origin = edit_run(point.past, point.edits, point.config_dir, typed, repositories)
    changed = check_fork(point, plain)
    check_resume(point.past)
    configuration = configure_again(point.past, plain, origin)
    return create(configuration, folder, elsewhere, partial(_copy_past, point, changed))


def check_fork(point: ForkPoint, plain: Mapping[str, Any]) -> list[Change]:
    """Return the changes from the configuration of the forked run to `plain`, the resolved configuration of
    the fork.

    Raises InputError for values that contradict the checkpoint. The checkpoint is not loaded.
    """
    past, frame = point.past, point.frame
    changed = past.changes(plain)
    for change in changed:
        if change.key in _FIXED:
            why = f"{past.path} cannot be continued with this change, because {_FIXED[change.key]}"
            raise InputError.about(described(change), why, code="changed-past", key=change.key)
    sessions, budget = plain["meta"]["max_session"], plain["env"]["max_frame"]
    past.check_buffers(range(sessions), f"+fork={past.path}", [f"meta.keep_every={frame}"])
    if sessions > past.config["meta"]["max_session"]:
        allowed = f"be at most {past.config['meta']['max_session']}"
        why = f"{past.path} has no checkpoints for further sessions to start from"
        raise InputError.value("meta.max_session", sessions, allowed, why=why)
    if budget <= frame:
        allowed = f"be more than {frame}, the frame that the fork starts from"
        raise InputError.value("env.max_frame", f"{int(budget)}", allowed)
    return changed


def _copy_past(point: ForkPoint, changed: Sequence[Change], configuration: Configuration, run: Run) -> None:
    """Copy the files of each session to the new run `run`, and write the provenance of `run`.

    Raises InputError if the checkpoint cannot be loaded; the copies are then removed.
    """
    from labrl.trial.summary import say

    past, frame, config = point.past, point.frame, configuration.config
    say(f"Forking {past.path} at frame {frame:,} into {run.path}")
    doing("copying and restoring the run")
    try:
        for index in range(config.meta.max_session):
            _copy_session(point, _session(past, index), run.session(index))
        check_fits(past, configuration.origin, config, run.session(0), contradictions(changed))
    except BaseException as error:
        for session in run.sessions:
            shutil.rmtree(session.path, ignore_errors=True)
        if isinstance(error, DamagedFileError) and error.key == str(run.session(0).replay):
            raise _without_replay(frame, _store(past, _session(past, 0))) from error
        raise
    entry = {**point.as_json(), "changed": [change.as_json() for change in changed]}
    run.update(fork=entry)
    now = write_provenance(run, configuration.plain, configuration.origin)
    differs = differences(past.read_provenance(), now)
    run.update(fork={**entry, "differs": differs})
    say_differences(differs)
    for line in schedule_jumps(resolve(past.read_config()), config, frame):
        say(line)


def _copy_session(point: ForkPoint, old: RunSession, new: RunSession) -> None:
    """Copy the files of a session up to the frame of the fork. Raises InputError if its checkpoint no
    longer exists."""
    frame = point.frame
    store = _store(point.past, old)
    copied = store.path_of(frame) / REPLAY
    replay = copied if copied.is_dir() else None
    if replay is None and old.replay.is_dir():
        if frame not in store.frames()[: store.keep_last]:
            raise _without_replay(frame, store)
        replay = old.replay
    try:
        store.copy_past(frame, new.checkpoints)
        for table in (old.train_csv, old.eval_csv):  # The session cuts the tables to its frame.
            if table.exists():
                copy_synced(table, new.path / table.name)
        if old.episodes.is_dir():
            # The permissions of the files are not copied, because they may be read-only in an archive.
            new.episodes.mkdir(exist_ok=True)
            for episode in sorted(old.episodes.iterdir()):
                shutil.copyfile(episode, new.episodes / episode.name)
        if replay is not None:
            copy_replay(replay, new.replay)
    except FileNotFoundError as error:  # The run is still running.
        why = f"the run replaced its checkpoint of that frame while it was copied ({error.filename})"
        fix = _kept_frames(sorted(store.whole_frames()))
        raise InputError.not_found(f"at={frame}", why, fix) from error


def _store(past: Run, old: RunSession) -> CheckpointStore:
    return old.store(past.config["meta"]["keep_last"])


def _without_replay(frame: int, store: CheckpointStore) -> InputError:
    newest = ", ".join(map(str, store.frames()[: store.keep_last]))
    return InputError.resources(
        f"at={frame}",
        f"the replay buffer of {store.folder.parent} is stored in files, and training has overwritten "
        "transitions there that the checkpoint needs",
        f"Fork at frame {newest}. With meta.keep_every, a run keeps the files of the buffer with each "
        "kept checkpoint; with agent.memory.storage=ram, the buffer is part of every checkpoint.",
    )


def _session(past: Run, index: int) -> RunSession:
    return RunSession(past.path / f"session_{index}")


def _frame_of(past: Run, at: str | None, count: int) -> int:
    """Return the frame of the checkpoint at the frame `at`, or at the end of the vector step that reaches
    `at`.

    count: number of sessions that must have the checkpoint. Raises InputError if a session does not have it.
    """
    num_envs = past.config["env"]["num_envs"]
    sessions = [_session(past, index) for index in range(min(count, past.config["meta"]["max_session"]))]
    whole = {one.index: [*one.store().whole_frames()] for one in sessions}
    shared = sorted(set.intersection(*map(set, whole.values())))
    if not any(whole.values()):
        why = "it has no complete checkpoint. The first is written after meta.log_frequency frames"
        raise InputError.not_found(f"+fork={past.path}", why)
    wanted = frame_of(at)
    if wanted is None:
        fix = f"Write at={(shared or [0])[-1]}. {_kept_frames(shared)}"
        if at is None:
            raise InputError.missing("at", "+fork needs the frame at which to fork", fix)
        raise InputError.value("at", at, "be a frame", fix=fix, code="type")
    if (found := next((frame for frame in shared if wanted <= frame < wanted + num_envs), None)) is not None:
        return found
    lacking = [str(index) for index, frames in whole.items() if wanted not in frames]
    of = f" of session {', '.join(lacking)}" if len(sessions) > 1 else ""
    why = f"{past.path} has no checkpoint{of} at that frame"
    raise InputError.not_found(f"at={wanted}", why, _kept_frames(shared, wanted))


def _kept_frames(frames: Sequence[int], wanted: int | None = None) -> str:
    """Return a message about the frames at which a run can be forked. frames: these frames, in increasing
    order; wanted: the requested frame."""
    if not frames:
        return (
            "No frame has checkpoints of all sessions. Set meta.keep_every=<frames> in the run to fork from."
        )
    nearest = ""
    if wanted is not None:
        before = [frame for frame in frames if frame < wanted]
        after = [frame for frame in frames if frame > wanted]
        nearest = f"Nearest: {', '.join(map(str, before[-1:] + after[:1]))}. "
    shown = ", ".join(map(str, frames[-_SHOWN:]))
    more = f" and {len(frames) - _SHOWN} earlier ones" if len(frames) > _SHOWN else ""
    return f"{nearest}Available: {shown}{more}. With meta.keep_every=<frames>, a run keeps more checkpoints."
