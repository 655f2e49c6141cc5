"""Run one session: load it from its run folder, train it, and write its result."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from labrl.agents.agent import NonFiniteError
from labrl.config.compose import resolve
from labrl.config.schema import TrialConfig
from labrl.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    WRONG_INPUT,
    BusyFolderError,
    LabrlError,
    described,
    with_notes,
)
from labrl.learning.compute import use_one_thread
from labrl.learning.ranks import ALONE, RankLostError, Ranks
from labrl.networks.building import count, summary
from labrl.processes.output import print_error
from labrl.processes.script import take_surroundings
from labrl.processes.signals import signals_raise, when_the_parent_ends
from labrl.run import session_log
from labrl.run.checkpoint import loading
from labrl.run.run import Run
from labrl.run.session import RunSession, SessionResult
from labrl.seeding import session_seed
from labrl.session.devices import available_cpus, threads_per_session
from labrl.session.session import Session
from labrl.session.torchrun import Group, Launch, leading
from labrl.session.transfer import read_beginning

_log = logging.getLogger(__name__)

Begin = Callable[[int | None], Ranks]
"""Function that starts the session on the other ranks and returns the ranks. Its argument is the frame of the
checkpoint to start from; None for a new session."""


def run(folder: Run, index: int) -> tuple[int, SessionResult]:
    """Run session `index` of a run, from its newest checkpoint if there is one, and write its result.

    The folder contains everything else: the recorded configuration and, for a fork or a start from another
    run, the files to start from. Under torchrun, the other ranks train with this one. Returns an exit code
    and the result. The exit code is 0 after success, 1 if the session failed or a file is incomplete, and 130
    or 143 if a signal ended the session. Raises LabrlError if wrong input is found while building or in the
    first step, if all checkpoints are damaged, or if another process runs the session.
    """
    plain = folder.read_config()
    config, session = resolve(plain, plain), folder.session(index)
    meta, group, begin = config.meta, leading(), None
    if group is not None:
        begin = partial(group.begin, folder.path)
    # Even if few sessions remain, because the last bits depend on the number of threads.
    sessions = meta.max_session if group is None else group.ranks.local_size
    num_threads = threads_per_session(meta.num_cpus, sessions)
    # Output of several sessions would disturb the panel; the trial prints the contents of the logs.
    aloud = meta.max_session == 1 or not meta.progress
    with session.lock():
        return _run(config, index, session, num_threads, aloud, begin)


def carry_out(order: Mapping[str, Any]) -> tuple[int, None]:
    """Run a session, as the only work of this process, and return its exit code. order: `folder` of the run,
    and `index` of the session. A result is written even if the session is refused."""
    try:
        folder, index = Run.open(order["folder"]), order["index"]
    except LabrlError as error:  # there is no run to which a result belongs
        return print_error(error), None
    try:
        return run(folder, index)[0], None
    except BusyFolderError as error:  # another process writes the result
        return print_error(error), None
    except LabrlError as error:
        seed = session_seed(folder.read_config()["seed"], index)
        result = SessionResult(index=index, seed=seed, status="failed", error=str(error))
        folder.session(index).write_result(result)
        return error.exit_code, None


def _run(
    config: TrialConfig,
    index: int,
    folder: RunSession,
    num_threads: int,
    aloud: bool,
    begin: Begin | None,
) -> tuple[int, SessionResult]:
    """Run a session in the way that `run` describes.

    num_threads: number of cores for a new session; aloud: whether to print warnings; begin: function that
    starts the session on the other ranks of torchrun.
    """
    assert config.seed is not None
    result = SessionResult(index=index, seed=session_seed(config.seed, index), status="failed")
    errors = folder.errors
    session: Session | None = None
    restore_threads = use_one_thread()
    deterministic_before = torch.get_deterministic_debug_mode()
    code = FAILED
    try:
        with session_log.warnings_logged(folder.log, aloud, errors):
            session = restored_session(config, index, folder, num_threads, begin)
            with errors.tolerated(folder.networks):
                folder.networks.write_text(summary(session.agent.modules()), encoding="utf-8")
            _warn_of_another_scale(session)
            session.run()
            _warn_of_updates(session, index)
        if session.stop is not None:
            session_log.append(folder.log, f"ended at frame {session.clock.frame:,}: {session.stop.why}")
        if session.pruned:
            result.status, code = "pruned", DONE
        elif session.interrupted:
            result.status, code = "interrupted", session.interruption.exit_code
        else:
            result.status, code = "finished", DONE
    except LabrlError as error:
        if error.exit_code == WRONG_INPUT and (session is None or session.clock.frame == 0):
            raise
        group = leading() if isinstance(error, RankLostError) else None
        result.error = with_notes(error, str(error)) if group is None else group.why_lost()
        session_log.append(folder.log, traceback.format_exc() if error.__cause__ else result.error)
    except NonFiniteError as error:
        result.error = str(error)
        if session is not None and session.env.saw_not_finite:
            result.error += " An observation of this session was not finite (see the warning above)."
        session_log.append(folder.log, result.error)
    except (Exception, SystemExit) as error:  # A user's environment may call sys.exit.
        result.error = _described(error)
        session_log.append(folder.log, traceback.format_exc())
    finally:
        restore_threads()
        torch.set_deterministic_debug_mode(deterministic_before)
    if session is not None:
        _fill(result, session)
    if result.error is None and errors.lacking:
        result.status, result.error = "failed", errors.summary(folder.path)
    folder.write_result(result)
    return FAILED if errors.lacking else code, result


def _described(error: BaseException) -> str:
    """Return the type and the text of an error, or the line of code that raised it if it has no text."""
    text = str(error)
    if "does not have a deterministic implementation" in text:  # PyTorch's words under meta.deterministic
        return (
            f"{text.split()[0]} has no deterministic algorithm on a GPU: to accept runs that are not "
            "reproducible, set meta.deterministic=false; or set meta.device=cpu"
        )
    return described(error)


def _warn_of_another_scale(session: Session) -> None:
    drifting = session.transforms.drifting
    if not drifting:
        return
    # Imported late: most sessions have no replay buffer.
    from labrl.agents.parts.experience import ExperienceConfig

    if isinstance(session.config.agent.config, ExperienceConfig):
        _log.warning(
            "transforms.%s: its statistics change, but the replay buffer keeps transitions on the scale at "
            "which they were played, so old and new ones differ in scale. For rewards, use a fixed "
            "scale instead: transforms/reward=scale or transforms/reward=clip",
            drifting[0],
        )


def _warn_of_updates(session: Session, index: int) -> None:
    """Warn if the session made no update, or more updates than it was allowed to make."""
    clock, limit = session.clock, session.config.meta.max_opt_step
    at_its_end = not (session.interrupted or session.pruned)
    if at_its_end and clock.opt_step == 0 and clock.frame > 0 and session.agent.modules():
        _log.warning(
            "session %d has learned nothing: its agent made no update in %s frames. Increase env.max_frame, "
            "or reduce the number of steps or episodes per update",
            index,
            f"{clock.frame:,}",
        )
    if limit is not None and clock.opt_step > limit:
        _log.warning(
            "session %d ended with %d updates, more than meta.max_opt_step=%d, because the last rollout was "
            "used completely",
            *(index, clock.opt_step, limit),
        )


def restored_session(
    config: TrialConfig, index: int, folder: RunSession, num_threads: int, begin: Begin | None = None
) -> Session:
    """Return a session restored from its newest undamaged checkpoint, or a new one if there is no checkpoint.

    A restored session keeps its number of threads if the machine has that many, because the last bits of
    results depend on it. begin: function that starts the session on other ranks. Raises DamagedFileError if
    there are checkpoints but all are damaged.
    """
    store = folder.store(config.meta.keep_last)
    checkpoint = store.latest()
    store.refuse_broken(checkpoint)
    state = None if checkpoint is None else checkpoint.state
    if state is None:  # a power failure may have damaged files that no checkpoint needs
        shutil.rmtree(folder.replay, ignore_errors=True)
    ranks = ALONE if begin is None else begin(None if checkpoint is None else checkpoint.frame)
    if store.broken and checkpoint is not None:
        _log.warning("session %d continues from frame %d", index, checkpoint.frame)
    session = _session(config, index, folder, num_threads, ranks, state)
    if checkpoint is not None:
        store.discard_after(checkpoint.frame)
    return session


def check_restores(config: TrialConfig, folder: RunSession) -> None:
    """Raise LabrlError if a session cannot load its newest checkpoint with the values of `config`.

    Sessions that train together are not checked, because they can load their checkpoints only together.
    """
    if not config.meta.distributed and Launch.here() is None:
        restored_session(config, folder.index, folder, num_threads=1).close()


@signals_raise()
def follow(launch: Launch) -> int:
    """Train the session that rank 0 names, on a rank other than 0. Return the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's handlers do not run while ranks wait.
    group = None
    when_the_parent_ends()
    try:
        group = Group(launch)
        order = group.ranks.scatter_from_rank0(None)
        if order is None:
            return DONE
        take_surroundings(order)
        run = Run.open(order["folder"])
        plain = run.read_config()
        config, folder, state = resolve(plain, plain), run.session(0), None
        if order["frame"] is not None:
            checkpoint = folder.store().at(order["frame"])
            if checkpoint is None:
                raise RankLostError(f"{folder.checkpoints} has no checkpoint at frame {order['frame']}")
            saved = checkpoint.state
            common = {name: saved[name] for name in ("clock", "episodes", "timers")}
            state = {**common, **saved["ranks"][group.ranks.rank - 1], "callbacks": {}}
        use_one_thread()
        num_threads = threads_per_session(config.meta.num_cpus, group.ranks.local_size)
        session = _session(config, 0, folder, num_threads, group.ranks, state)
        session.run()
        return DONE if session.interruption.signal is None else session.interruption.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if group is None or isinstance(error, RankLostError):
            return FAILED
        if not isinstance(error, LabrlError):
            traceback.print_exc()
        print(f"labrl: rank {launch.rank} failed: {type(error).__name__}: {error}", file=sys.stderr)
        group.fail(error)
        return FAILED
    finally:
        if group is not None:
            group.leave()


def _session(
    config: TrialConfig,
    index: int,
    folder: RunSession,
    num_threads: int,
    ranks: Ranks,
    state: Mapping[str, Any] | None,
) -> Session:
    """Return a session in its saved state. It keeps its earlier number of threads if that many CPUs are
    available.

    state: None for a new session, which may start from weights of another run.
    """
    if state is None:
        start = None if config.start_from.run is None else read_beginning(folder)
        return Session(config, index, folder, num_threads, ranks, start)
    begun = state["compute"]
    if begun["num_cpus"] == config.meta.num_cpus and begun["num_threads"] <= available_cpus():
        num_threads = begun["num_threads"]
    session = Session(config, index, folder, num_threads, ranks)
    try:
        with loading(str(folder.checkpoints)):
            session.load_state_dict(state)
    except BaseException:
        session.close()
        raise
    now = session.computes_with()
    then = {"kernels": "torch", **begun}  # Old checkpoints do not name the kernels.
    changed = [f"{key} {then[key]} -> {now[key]}" for key in now if then[key] != now[key]]
    if changed:
        _log.warning(
            "session %d continues with %s, so its results may differ in the last bits",
            index,
            ", ".join(changed),
        )
    return session


def _fill(result: SessionResult, session: Session) -> None:
    """Fill in `result` with values of the session."""
    clock = session.clock
    result.frame, result.opt_step, result.wall = clock.frame, clock.opt_step, clock.wall
    result.phases = dict(session.timers.seconds)
    result.networks = {name: count(module) for name, module in session.agent.modules().items()}
    result.episodes = clock.episode
    result.stop = None if session.stop is None else dataclasses.asdict(session.stop)
    if session.episodes.latest:
        statistics = session.episodes.statistics()
        result.return_mean, result.return_episodes = statistics["return_mean"], len(session.episodes.latest)
        if result.return_episodes > 1:
            result.return_std = statistics["return_std"]
    result.final_return, result.info = session.folder.final_values().values()
    if session.evaluate is not None:
        result.best_return, result.best_source = session.evaluate.best_return, session.evaluate.best_source
