"""One session from its configuration to its result, in this process or in one of its own."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from labrl.agents.errors import NonFiniteError
from labrl.config.compose import resolve
from labrl.config.errors import ConfigError
from labrl.config.schema import TrialConfig
from labrl.lab.result import SessionResult
from labrl.seeding import session_seed
from labrl.session.session import Session
from labrl.storage.atomic import write_json
from labrl.storage.run_folder import RunFolder, SessionFolder


def run_session(
    config: TrialConfig, index: int, folder: SessionFolder, num_threads: int
) -> tuple[SessionResult, int]:
    """Run one session and write its result.

    Returns the result and an exit code: 0, 1 where it failed, 130 or 143 where a signal ended it.
    Raises ConfigError for wrong input.
    """
    assert config.seed is not None
    result = SessionResult(index=index, seed=session_seed(config.seed, index), status="failed")
    session: Session | None = None
    threads_before = torch.get_num_threads()
    # Small products are faster on one thread; large ones are shared out over gradient workers instead.
    torch.set_num_threads(1)
    code = 1
    try:
        session = Session(config, index, folder, num_threads)
        session.run()
        result.status = "interrupted" if session.interrupted else "finished"
        code = session.interruption.exit_code if session.interrupted else 0
    except ConfigError:
        raise
    except NonFiniteError as error:
        result.error = str(error)
        folder.log.write_text(f"{error}\n")
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}"
        folder.log.write_text(traceback.format_exc())
    finally:
        torch.set_num_threads(threads_before)
    if session is not None:
        _fill(result, session)
    write_json(folder.result, dataclasses.asdict(result))
    return result, code


def _fill(result: SessionResult, session: Session) -> None:
    """Take over what the session came to."""
    result.frame, result.wall = session.clock.frame, session.clock.wall
    result.episodes = session.episodes.total
    if len(session.episodes):
        statistics = session.episodes.statistics()
        result.return_mean, result.return_std = statistics["return_mean"], statistics["return_std"]
    result.best_return = session.best_return


def main(plain: Mapping[str, Any], index: int, folder: Path, num_threads: int) -> None:
    """Entry point of a session's own process; its exit code tells the trial how it ended."""
    try:
        _, code = run_session(resolve(plain), index, RunFolder.open(folder).session(index), num_threads)
    except ConfigError as error:
        seed = session_seed(plain["seed"], index)
        result = SessionResult(index=index, seed=seed, status="failed", error=str(error))
        write_json(RunFolder.open(folder).session(index).result, dataclasses.asdict(result))
        code = 2
    sys.exit(code)
