"""Train missing cells of SLM Lab's published scores, shorter runs and studies, and write docs/results.md.

The page is written at the end from the runs below --root; runs that are not there are taken from the records
in docs/results/. Ctrl-C and the end of --minutes save the running cell, and the same command resumes it; the
page is written then only by --minutes 0. Nothing is trained with uncommitted changes, so that the commit of a
cell is the code that ran.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import chapters, curves, solve, studies
from benchmarks.published import (
    SESSIONS,
    Result,
    as_markdown,
    as_rows,
    cells,
    extremes,
    from_rows,
    judged,
    newer,
    summary,
)
from benchmarks.record import Records
from benchmarks.report import RESULTS
from labrl.errors import DONE, FAILED, INTERRUPTED, TERMINATED, LabrlError
from labrl.run.experiment import Experiment
from labrl.run.find import load_run
from labrl.run.folder import is_experiment
from labrl.run.run import Run

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"

README = ROOT / "README.md"
BEGIN, END = "<!-- make results -->", "<!-- end of make results -->"
"""The lines of the README between which its results stand."""

PREFACE = """## Beside SLM Lab

A cell is one agent in one environment, with the number of frames, the number of environments and the
checkpoint frequency of SLM Lab's published score (`experiment=slm_lab/<environment>`): four sessions with
labrl's preset for the agent and the environment. `make results` trains the missing cells and writes this
page and the [curves](results/curves.md). It refuses to train with uncommitted changes. `docs/results/`
contains `sessions.csv` with every session of every table on this page, `curves.csv`, and the configurations.

To check a row of any table, run its configuration, whose name is at the end of the link:

    labrl +rerun=docs/results/configs/cartpole_ppo.yaml
    labrl +rerun=docs/results/configs/cartpole_ppo.yaml seed=100    # other seeds

The first lines of each file have this command, the number of sessions, the seed and the commit. The same
seeds give other returns on another commit, because runs are [exact](explanation/exactness.md) only for one
version of labrl and its packages.

SLM Lab searched for the hyperparameters of its cells. For DDQN+PER on LunarLander, labrl uses SLM Lab's.
Presets that were tuned by hand on their own cell have a [study](#studies); the others were tuned by hand
with other budgets, or not at all.

- *published* and *labrl*, both measured in SLM Lab's way: each checkpoint row has the mean return of the
  last 100 training episodes; the score of a session is the mean over its last 100 checkpoint rows, and
  the score of a cell is the mean over its sessions. In brackets is its 95 % interval (Student's t, of at
  least four sessions; [why](explanation/statistics.md#intervals)), which may reach beyond the highest
  possible score.
- *final return*: see [statistics](explanation/statistics.md).
- *equal*: labrl's whole interval is within a margin around the published score, 5 % of that score's
  distance from the random policy (a test of equivalence). *better*, *worse*: the published score is outside
  labrl's interval. *undecided*: the sessions cannot tell; `--sessions 8` trains eight of a cell. The spread
  of published scores is not known, so they count as exact. Cells in which labrl is worse are bold.
- *commit*, *configuration*, *machine*: the code that ran, its whole configuration and the processor. What was
  not recorded is not known. Cells *with changes* were trained with code that was not committed, and cannot
  be repeated exactly.

"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train missing cells and write the page. Return the exit code, which is 1 if a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    published = {cell.name: cell.overrides for cell in cells()}
    known = published | chapters.OVERRIDES | studies.overrides()
    names = (
        f"of {', '.join(published)} (the default is all of these), {', '.join([*known][len(published) :])}"
    )
    parser.add_argument("cells", nargs="*", metavar="cell", help=names)
    parser.add_argument("--root", type=Path, default=Path("runs/results"), help="folder of the runs")
    parser.add_argument(
        "--bench",
        type=Path,
        default=Path("runs/bench"),
        help="folder of make bench, whose times to a result are recorded",
    )
    parser.add_argument("--minutes", type=float, help="longest time to train; 0 only writes the page")
    parser.add_argument(
        "--sessions",
        type=int,
        default=SESSIONS,
        help=f"sessions of each of SLM Lab's cells: 8, where {SESSIONS} cannot tell (default: {SESSIONS})",
    )
    args = parser.parse_args(argv)
    if args.sessions < SESSIONS:
        parser.error(
            f"--sessions must be at least {SESSIONS}, as in the published scores, got {args.sessions}"
        )
    unknown = sorted(set(args.cells) - set(known))
    if unknown:
        parser.error(f"unknown cell {', '.join(unknown)} (choose from {', '.join(known)})")
    if args.minutes != 0 and (changes := uncommitted()):
        parser.error(
            f"no commit is the code that would run, because of uncommitted changes:\n{changes}\n"
            "Commit or stash them, or set --minutes 0 to write the page without training"
        )
    deadline = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    failed = []
    for name in args.cells or published:
        folder, sessions = args.root / name, args.sessions if name in published else None
        if _finished(folder) and (sessions is None or len(load_run(folder).sessions) >= sessions):
            continue
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        overrides = command(known[name], folder, sessions)
        print(f"{name}: {' '.join(overrides)}", flush=True)
        code = _train(overrides, left)
        if code in (INTERRUPTED, TERMINATED):
            print("Stopped; the same command goes on, and --minutes 0 writes the page")
            return code
        if code:
            failed.append(name)
    print(write_page(args.root, args.bench))
    if failed:
        print(f"not trained: {', '.join(failed)}", file=sys.stderr)
    return FAILED if failed else DONE


def uncommitted() -> str:
    """Return the uncommitted changes of the working tree as lines of text, or why they are unknown."""
    try:
        arguments = ["git", "-C", str(ROOT), "status", "--porcelain"]
        found = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (found.stderr if found.returncode else found.stdout).rstrip()


def command(overrides: Sequence[str], folder: Path, sessions: int | None = None) -> list[str]:
    """Return the arguments of `labrl` that start or resume the run or search of `overrides` in `folder`.

    sessions: number of sessions, if it is not that of the recipe.
    """
    multirun = ["-m"] if "-m" in overrides else []
    more = [] if sessions in (None, SESSIONS) else [f"meta.max_session={sessions}"]
    if _status(folder) is not None:
        return [*multirun, f"+resume={folder}", *more]
    if multirun:
        return [*overrides, f"hydra.sweep.dir={folder}"]
    return [*overrides, *more, "seed=0", f"hydra.run.dir={folder}"]


def results(root: Path, records: Records) -> list[Result]:
    """Return the result of every cell, from its run below `root` or its record, and update the records."""
    found = []
    for cell in cells():
        run, rows = _run_in(root / cell.name), records.numbers.get(cell.name)
        present = judged(cell, run)
        result = newer(from_rows(cell, rows) if rows else None, present)
        found.append(result)
        if run is not None and result is present and result.score is not None:
            records.keep(cell.name, as_rows(result, run), run)
    return found


def write_page(root: Path, bench: Path = Path("runs/bench")) -> str:
    """Write docs/results.md and the page of curves, and update the records beside them.

    root: folder of the runs. bench: folder of the results of `make bench`.
    Returns the numbers of cells with each verdict as a line of text.
    """
    records = Records(PAGE.with_suffix(""))
    found = results(root, records)
    chapter_texts = [
        chapters.section(chapter, _with_rows(root, chapter.overrides), records)
        for chapter in chapters.CHAPTERS
    ]
    page = f"# Results\n\n{solve.as_markdown(solve.keep(bench / RESULTS, records.folder))}\n"
    page += f"{PREFACE}{summary(found)}.\n\n"
    page += as_markdown(found, {name: records.origin(name) for name in records.numbers})
    page += _studies(root) + "".join(chapter_texts)
    records.write([*(cell.name for cell in cells()), *chapters.OVERRIDES])
    PAGE.write_text(page)
    if README.exists():
        before, _, rest = README.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        README.write_text(f"{before}{BEGIN}\n\n{in_readme(found)}\n{END}{after}")
    curves.write_page(records)
    return summary(found)


def in_readme(found: Sequence[Result]) -> str:
    """Return the part of the README about the results."""
    return (
        f"{len(found)} cells: {summary(found)}. The table has two of each environment: that in which labrl is"
        " furthest ahead of\nthe published score, and that in which it is furthest behind, in percent of the "
        f"score's distance from a random policy.\n\n{extremes(found)}"
    )


def _studies(root: Path) -> str:
    """Record the finished studies below `root`, and return the part of the page about all recorded ones."""
    folder = PAGE.with_suffix("") / "studies"
    for name, cell in studies.searchable().items():
        if _finished(root / name):
            studies.keep(Experiment.load(root / name), cell, folder)
    return studies.section(studies.read(folder))


def _with_rows(root: Path, names: Iterable[str]) -> dict[str, Run]:
    """Return those of the named runs of which at least one training row has a return."""
    runs = {name: _run_in(root / name) for name in names}
    return {
        name: run
        for name, run in runs.items()
        if run is not None
        and run.sessions
        and np.isfinite(np.asarray(run.sessions[0].train.get("return_mean", ()), dtype=float)).any()
    }


def _train(overrides: Sequence[str], seconds: float | None) -> int:
    """Run labrl for at most `seconds`. Return its exit code, or 143 if the time ran out."""
    process = subprocess.Popen([sys.executable, "-m", "labrl", *overrides])
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait()
        return TERMINATED
    except KeyboardInterrupt:  # the terminal has sent the signal to labrl too
        process.wait()
        return INTERRUPTED


def _run_in(folder: Path) -> Run | None:
    try:
        return load_run(folder)
    except LabrlError:
        return None


def _status(folder: Path) -> str | None:
    """Return the status of the run or experiment in `folder`, or None if there is none."""
    if is_experiment(folder):
        return Experiment.load(folder).status
    run = _run_in(folder)
    return None if run is None else run.status


def _finished(folder: Path) -> bool:
    return _status(folder) == "finished"


if __name__ == "__main__":
    sys.exit(main())
