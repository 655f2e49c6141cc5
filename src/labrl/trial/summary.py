"""The final summary of a trial on the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from labrl.analysis.formats import number, score, widths_that_fit
from labrl.analysis.returns import MEANING, collect_info, group_return
from labrl.run.disk import disk_use
from labrl.run.folder import read_json
from labrl.run.run import Run
from labrl.run.session import SessionResult
from labrl.session.callbacks.display import Display
from labrl.trial.result import TrialResult
from labrl.types import INFO

COLUMNS = ("#", "status", "frames", "episodes", "final return", "best", "seconds", "frames/s")
"""Columns of the table of sessions; `best` is the highest score of a checkpoint."""

_DISPENSABLE = ("seconds", "frames/s", "episodes", "best", "frames", "#")
"""Columns that are omitted on a narrow terminal, the first one first."""


def _row(session: SessionResult, keys: Sequence[str]) -> list[str]:
    return [
        str(session.index),
        session.status,
        f"{session.frame:,}",
        f"{session.episodes:,}",
        score(session.final_return),
        score(session.best_return),
        f"{session.wall:,.0f}" if session.wall >= 100 else f"{session.wall:,.1f}",
        f"{session.fps:,.0f}" if session.frame else "-",
        *(number(session.info.get(name), 3) for name in keys),  # a rate of 0.98 is not 1.0
    ]


def print_summary(result: TrialResult, console: Console | None = None) -> None:
    """Print a table of the sessions, failures, and the paths of the report and the run folder."""
    console = console or Display.console()
    if result.stopped_at_start:
        say(f"interrupted before the first frame; to resume: {how_to_resume(result.folder)}", console)
        return
    say(f"sessions of seed {result.seed}", console)  # the title of a table is padded to its width
    table = Table(box=None, pad_edge=False)
    evaluated = any(session.best_source == "evaluation" for session in result.sessions)
    keys = list(dict.fromkeys(name for session in result.sessions for name in session.info))
    names = [*COLUMNS, *(f"{INFO}{name}" for name in keys)]
    headings = {name: "best eval" if name == "best" and evaluated else name for name in names}
    rows = [dict(zip(headings.values(), _row(session, keys), strict=True)) for session in result.sessions]
    dispensable = [headings[name] for name in (*_DISPENSABLE, *names[len(COLUMNS) :])]
    columns = list(widths_that_fit(rows, list(headings.values()), dispensable, console.width))
    for name in columns:
        text = name in ("#", "status")
        table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=text)
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    console.print(table)
    for line in _meanings(result.sessions, columns):
        say(line, console, words=True)
    print_failures(result, console)
    for session in result.sessions:
        if session.stop is not None:
            say(f"session {session.index} ended at frame {session.frame:,}: {session.stop['why']}", console)
    # sessions with neither a training return nor an evaluation return
    ended = [one for one in result.sessions if one.status == "finished" and one.frame > 0]
    silent = [one for one in ended if one.episodes == 0 and one.best_return is None]
    if silent:
        numbers = ", ".join(str(session.index) for session in silent)
        frames = max(session.frame for session in silent)
        say(
            f"no return (session {numbers}): no episode ended within {frames:,} frames. Increase "
            "env.max_frame, or shorten the episodes with env.max_episode_steps=<steps> (Atari: "
            "env.max_episode_frames)",
            console,
        )
    networks = next((session.networks for session in result.sessions if session.networks), {})
    if networks:
        told = ", ".join(f"{name} {number:,}" for name, number in networks.items())
        say(f"parameters: {told}", console)
    sound = [session.info for session in result.sessions if session.status != "failed"]
    for name, values in {"final return": result.returns, **collect_info(sound)}.items():
        together = group_return(values)
        if together is not None and together.seeds > 1:
            say(f"{name} of {together.seeds} sessions: {together.sentence()}", console)
    if result.comparison is not None:
        say(f"rerun: {result.comparison}", console)
    saved = any(session.checkpoint_frames() for session in Run(result.folder).sessions)
    if any(session.status == "interrupted" for session in result.sessions):
        say(f"interrupted; to resume: {how_to_resume(result.folder)}", console)
    elif result.exit_code and result.comparison is None and saved:
        say(f"to resume from the last checkpoint: {how_to_resume(result.folder)}", console)
    if result.report is not None:
        say(f"report: {result.report}", console)
    if used := disk_use(Run(result.folder)):
        largest = ", ".join(f"{kind} {decimal(size)}" for kind, size in used.most_common(2))
        say(f"on disk: {decimal(used.total())} ({largest})", console)
    say(f"run folder: {result.folder}", console)


def _meanings(sessions: Sequence[SessionResult], columns: Sequence[str]) -> Iterator[str]:
    """Yield lines that explain the returns in the table of sessions."""
    if not any(session.final_return is not None for session in sessions):
        return
    yield MEANING
    if any(session.info for session in sessions):
        yield f"{INFO}...: means over the same checkpoints of numbers in info (env.info_keys)"
    if "best eval" in columns:
        yield "checkpoints: mean return of an evaluation in separate environments; best eval: the highest"
    else:
        counts = sorted({session.return_episodes for session in sessions if session.return_episodes}) or [0]
        many = f"{counts[-1]}" if len(set(counts)) == 1 else f"{counts[0]} to {counts[-1]}"
        yield f"checkpoints: mean return of the last {many} training episodes; best: the highest"


def print_failures(result: TrialResult, console: Console | None = None) -> None:
    """Print the error and the path of the log of each failed session, and which files are incomplete."""
    console = console or Display.console()
    for session in result.sessions:
        if session.failure:
            log = result.folder / f"session_{session.index}" / "session.log"
            console.print(session.failure, style="red", markup=False, highlight=False, soft_wrap=True)
            if log.exists():
                console.print(f"  log: {log}", markup=False, soft_wrap=True)
    if result.lacking is not None:
        console.print(result.lacking, style="red", markup=False, highlight=False, soft_wrap=True)


def how_to_resume(folder: Path) -> str:
    """Return the shell command that resumes a run."""
    ranks = read_json(Run(folder).marker).get("ranks", 1)
    command = "labrl" if ranks == 1 else f"torchrun --nproc-per-node {ranks} -m labrl"
    return f"{command} {shlex.quote(f'+resume={folder}')}"


def how_to_report(folder: Path) -> str:
    """Return the shell command that makes the report of a run or an experiment."""
    return f"labrl-report {shlex.quote(str(folder))}"


def say(line: str, console: Console | None = None, words: bool = False) -> None:
    """Print one line without markup. words: whether a terminal may wrap it, which would break a path or a
    command."""
    console = console or Display.console()
    console.print(line, markup=False, highlight=False, soft_wrap=not (words and console.is_terminal))
