"""Create the report of a run or an experiment in a separate process.

`python -m labrl.trial.reporting <folder>` is the process that makes the report. While a run trains, the
process prepares the report at the lowest priority.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labrl.analysis.formats import widths_that_fit
from labrl.config.keys import ABSENT, changes
from labrl.errors import DONE, LabrlError
from labrl.processes.follower import Follower
from labrl.processes.output import doing
from labrl.processes.signals import Stopped
from labrl.processes.startup import collect_seldom
from labrl.run.atomic import write_json
from labrl.run.experiment import Experiment
from labrl.run.find import find_runs
from labrl.run.run import MARKER, Run
from labrl.trial import baseline
from labrl.trial.find import newest_folder

if TYPE_CHECKING:
    import polars as pl

LONGEST = 300.0
"""Maximum time for making a report, in seconds."""

MAKING = "making plots and report.html (Ctrl-C to skip)"
"""Message on the terminal while a report is made."""

PATIENCE = 1.0
"""Seconds to wait for work at low priority before the work is done again at normal priority."""

GO = "make the report"
"""Line on standard input that a prepared process waits for. If its input ends instead, it exits without
making a report."""

MOST_WARNINGS = 8
"""Maximum number of warnings that are printed on the terminal."""

SHORTEST_NAME = 24
"""Smallest width to which names of groups are wrapped on a narrow terminal."""

_NOT_DEFAULTS = {"seed"}
"""Keys that have no default to compare with."""

_composing = threading.Lock()
"""Lock of the thread that composes the defaults. A process has only one Hydra configuration."""


def prepare(folder: Path) -> Follower | None:
    """Start a process that prepares the report of the run in `folder` while the run trains.

    The process imports modules, compares the configuration with the defaults and measures the random policy,
    at the lowest priority. Returns the process, to be passed to `make_report` or `dismiss`; None if it cannot
    be started.
    """
    try:
        return _started(folder, "--wait")
    except OSError:
        return None


def dismiss(prepared: Follower | None) -> None:
    """End a process from `prepare` without making a report."""
    if prepared is not None:
        prepared.kill()


def make_report(folder: Path, prepared: Follower | None = None, aloud: bool = False) -> Path | None:
    """Make statistics, plots and `report.html` of the run or experiment in `folder`.

    prepared: the process from `prepare`, if there is one; aloud: whether to print which group of an
    experiment is best. Returns the path of the report. If making the report fails or is ended by Ctrl-C,
    prints a line and returns None. Raises only Stopped.
    """
    from labrl.trial.summary import how_to_report, say

    try:
        path, verdict = _in_a_process(folder, prepared)
        if aloud and verdict:
            say(verdict, words=True)
        return path
    except Stopped:
        raise  # Only Ctrl-C comes from a person who waits for the report.
    except KeyboardInterrupt:
        reason = "interrupted"
    except TimeoutError:
        reason = f"it took longer than {LONGEST:.0f} seconds"
    except Exception as error:
        reason = str(error) or type(error).__name__
    say(f"no report ({reason}); to make it: {how_to_report(folder)}")
    return None


def _started(folder: Path, *flags: str) -> Follower:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return Follower("labrl.trial.reporting", str(folder), *flags, variables=one_thread)


def _in_a_process(folder: Path, prepared: Follower | None) -> tuple[Path, str]:
    """Make the report in a process, and return its path and the verdict of a comparison. Raises RuntimeError
    with the process's last line if the process fails."""
    process = prepared or _started(folder)
    try:
        if prepared is not None:
            prepared.tell(GO)
        code, said, complaint = process.finish(LONGEST)
    finally:
        process.kill()
    if code:
        lines = complaint.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {code}")
    *_, verdict, path = said.splitlines()
    return Path(path), verdict


def changed_keys(folder: Run) -> list[dict[str, Any]] | None:
    """Return the values of a run's configuration that differ from the defaults for its agent and environment.

    The defaults are those of the installed version of labrl. Returns None if the defaults cannot be composed,
    for example because a required value or the folder of the user's groups is missing.
    """
    from labrl.config.compose import compose, to_plain

    try:
        config = folder.read_config()
        chosen = [
            f"{group}={option}" for group, option in folder.choices.items() if group in ("agent", "env")
        ]
        defaults = to_plain(compose(chosen, folder.config_dir))
    except LabrlError as error:
        logging.getLogger(__name__).info("%s: no defaults to compare with: %s", folder.path, error)
        return None
    return [
        {"key": change.key, **{name: value for name, value in pair if value is not ABSENT}}
        for change in changes(defaults, config)
        if change.key not in _NOT_DEFAULTS
        for pair in [(("default", change.old), ("value", change.new))]
    ]


def record_changes(folder: Run) -> None:
    """Write the result of `changed_keys` to `changed.json`, unless it is None.

    A `changed.json` that is newer than `config.yaml` is kept; a resume may have changed `config.yaml`.
    """
    with _composing:
        with contextlib.suppress(OSError):
            if folder.changed_json.stat().st_mtime >= folder.config_yaml.stat().st_mtime:
                return
        if (entries := changed_keys(folder)) is not None:
            write_json(folder.changed_json, entries)


def finish_experiment(folder: Path, report: bool) -> None:
    """Make the videos that killed trials have not made and, if requested, the report of the experiment."""
    from labrl.trial.summary import say

    _make_videos(folder)
    if report:
        doing(MAKING)
        made = make_report(folder, aloud=True)
        if made is not None:
            say(f"report: {made}")


def _make_videos(folder: Path) -> None:
    """Make the videos that killed runs or trials in `folder` have not made."""
    for marker in (*folder.glob(MARKER), *folder.glob(f"*/{MARKER}")):
        with contextlib.suppress(LabrlError, OSError):
            run = Run.open(marker.parent)
            if run.read_info().get("videos_due"):
                # Imported late: environments take a second to import.
                from labrl.trial.videos import make_videos

                with run.lock():
                    make_videos(run)


def wants_report(folder: Path) -> bool:
    """Return whether any trial of the experiment in `folder` has `meta.report=true`."""
    try:
        runs = Experiment.load(folder).runs
    except LabrlError:
        return False
    return any(run.config["meta"].get("report", True) for run in runs if run.config)


def report_on(
    places: Sequence[str],
    out: str | None,
    by: str | None,
    form: str | None,
    stages: bool = False,
) -> None:
    """Make the report, and print its table and its path, as `labrl-report` does.

    places: folders, globs or `latest`; out: folder for the files; by: see `group_runs`; form: format of the
    table (`md` or `csv`; only the table is then printed on standard output); stages: whether to print only
    the comparison in stages. Raises InputError.
    """
    places = [str(newest_folder()) if place == "latest" else place for place in places]
    if stages:
        from labrl.analysis.groups import group_runs
        from labrl.analysis.stages import describe, planned_stages

        runs = find_runs(places)
        print("\n".join(describe(group_runs(runs, by), None if by else planned_stages(runs))))
        return
    from labrl.analysis.report.build import build, build_comparison
    from labrl.analysis.tables import (
        as_csv,
        as_markdown,
        comparison_rows,
        differences,
        legend,
        markdown_lines,
    )

    target = Path(os.path.expanduser(out)) if out else None
    if len(places) == 1 and by is None and Path(os.path.expanduser(places[0])).is_dir():
        folder = Path(os.path.expanduser(places[0]))
        if (folder / MARKER).exists():
            with contextlib.suppress(OSError):  # another user's run, or a full disk
                record_changes(Run.open(folder))
        _make_videos(folder)
        built = build(folder, target)
    else:
        built = build_comparison(find_runs(places), target or Path("comparison"), by)
    rows = comparison_rows(built.statistics)
    envs = built.statistics["envs"]
    keys = {}
    for env in envs:
        if lines := differences(env):
            where = f" on {env['env']}" if len(envs) > 1 else ""
            keys[f"Keys in which the groups differ{where}"] = lines
    if form is None:
        of_groups = built.compares_groups or "search" in built.statistics
        _print(rows, keys, built.warnings, built.verdict if of_groups else "")
    else:
        # A CSV file has no comments, but a column for each key.
        text = {"csv": as_csv(rows), "md": as_markdown(rows)}
        text["md"] += "".join(f"\n{line}\n" for line in legend(rows))
        for caption, lines in keys.items():
            text["md"] += f"\n{caption}:\n\n{markdown_lines(lines, texts=len(lines[0]))}"
        print(text[form], end="")
    print(f"report: {built.path.resolve()}", file=sys.stderr if form else sys.stdout)


def _print(
    rows: pl.DataFrame, keys: Mapping[str, list[list[str]]], warnings: Sequence[str], verdict: str
) -> None:
    """Print on the terminal the table of the groups, the tables in `keys`, the warnings and the verdict.
    keys: rows of each table, by its caption."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from labrl.analysis.tables import legend, readable
    from labrl.trial.summary import say

    console = Console(width=None if sys.stdout.isatty() else 200)
    heads, *body = readable(rows)

    def show(heads: Sequence[str], lines: Sequence[Sequence[str]], widths: Mapping[int, int]) -> None:
        table = Table(box=None, pad_edge=False)
        for place, name in enumerate(heads):
            side: Any = "right" if place in widths and name not in texts else "left"
            table.add_column(Text(name), justify=side, overflow="fold", width=widths.get(place))
        for line in lines:
            table.add_row(*map(Text, line))
        console.print(table)

    # On a narrow terminal, headings and the names of groups are wrapped, and columns are left out.
    texts = ("environment", "group")
    needed = sum(max(map(len, column)) + 2 for column in zip(heads, *body, strict=True)) - 2
    words = heads if needed <= console.width else [max(name.split(), key=len)[:14] for name in heads]
    places = [str(place) for place in range(len(heads))]
    cells = [dict(zip(places, line, strict=True)) for line in [words, *body]]
    cells = [{**line, "1": line["1"][:SHORTEST_NAME]} for line in cells]
    extra = sorted(places[4:], key=lambda place: (heads[int(place)].startswith("P("), -int(place)))
    one_env = ["0"] if len({line[0] for line in body}) == 1 else []
    widths = widths_that_fit(cells, places, [*extra[:-1], *one_env, *extra[-1:]], console.width)
    room = console.width - sum(width + 2 for place, width in widths.items() if place != "1")
    widths["1"] = min(max(len(line[1]) for line in [heads, *body]), room)
    kept = [*map(int, widths)]
    lines = ([line[place] for place in kept] for line in [heads, *body])
    show(next(lines), [*lines], dict(enumerate(widths.values())))
    if left_out := [heads[int(place)] for place in places[4:] if place not in widths]:
        say(f"the report also has {', '.join(left_out)}", console, words=True)
    for line in legend(rows):
        say(line, console, words=True)
    for caption, table in keys.items():
        say(f"{caption}:", console)
        show(table[0], table[1:], {})
    more = f"and {len(warnings) - MOST_WARNINGS} more warnings in the report"
    for line in (*warnings[:MOST_WARNINGS], more if len(warnings) > MOST_WARNINGS else "", verdict):
        if line:
            say(line, console, words=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the report of a folder, and print its verdict and its path. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m labrl.trial.reporting", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run folder or an experiment folder")
    parser.add_argument(
        "--wait", action="store_true", help="prepare the report, and make it after a line on standard input"
    )
    args = parser.parse_args(argv)
    collect_seldom()
    try:
        if args.wait:
            told = threading.Event()
            ready = threading.Thread(target=_get_ready, args=(args.folder, told), daemon=True)
            ready.start()
            if sys.stdin.readline().strip() != GO:
                return DONE
            told.set()
            ready.join(PATIENCE)
        from labrl.analysis.report.build import build

        if (args.folder / MARKER).exists():
            record_changes(Run.open(args.folder))
            baseline.ensure_baseline(args.folder)
        built = build(args.folder)
        of_search = "search" in built.statistics  # the search itself prints the verdict
        print(built.verdict if built.compares_groups and not of_search else "", built.path, sep="\n")
    except LabrlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return DONE


def _get_ready(folder: Path, told: threading.Event) -> None:
    """Measure the random policy, import modules and compose the defaults, at the lowest priority.

    The measurement runs in a separate process, because PyTorch would otherwise occupy memory during the
    training. told: event that is set when the report must be made.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # The new process inherits it.
    measure, nowhere = partial(Follower, baseline.__name__, str(folder)), Path(os.devnull)
    whole = measure("--whole", output=nowhere)
    import matplotlib.backends.backend_pdf
    import matplotlib.font_manager  # noqa: F401  (looks for fonts)

    import labrl.analysis.report.build  # noqa: F401

    if (folder / MARKER).exists():
        with contextlib.suppress(OSError):
            record_changes(Run.open(folder))
    whole.finish()
    # After this much training, the longest measurement is allowed, and runs during the training.
    if not told.wait(baseline.LONGEST / baseline.SHARE):
        measure("--seconds", f"{baseline.LONGEST}", output=nowhere).finish()


if __name__ == "__main__":
    code = main()
    gc.freeze()  # At exit, the interpreter would visit all objects of Matplotlib.
    sys.exit(code)
