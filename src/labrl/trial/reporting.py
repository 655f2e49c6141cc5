"""The report of a run or an experiment: when it is made, and what `labrl-report` prints about it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labrl.analysis.baselines import Baseline, baseline_path, random_baseline, read_cached
from labrl.analysis.formats import align_columns, shorten, widths_that_fit
from labrl.component import Component
from labrl.config.keys import ABSENT, changes
from labrl.errors import LabrlError
from labrl.processes.output import doing
from labrl.processes.signals import Stopped
from labrl.run.atomic import write_json
from labrl.run.experiment import Experiment
from labrl.run.find import find_runs
from labrl.run.run import MARKER, Run
from labrl.session.devices import available_cpus
from labrl.trial.find import newest_folder

if TYPE_CHECKING:
    import polars as pl

    from labrl.envs.vector import VectorEnv

MAKING = "making plots and report.html (Ctrl-C to skip)"
"""Message on the terminal while a report is made."""

EPISODES, SECONDS = 20, 5.0
"""Maximum number of episodes, and maximum duration, for which the random policy is played."""

MOST_WARNINGS = 8
"""Maximum number of warnings that are printed on the terminal."""

SHORTEST_NAME = 24
"""Smallest width to which names of groups are shortened on a terminal."""

_log = logging.getLogger(__name__)


def make_report(folder: Path, env: Component | None = None, aloud: bool = False) -> Path | None:
    """Make statistics, plots and `report.html` of the run or experiment in `folder`.

    env: environment of the run, in which the random policy is played if its return is unknown; None to play
    nothing; aloud: whether to print which group of an experiment is best. Returns the path of the report. If
    making the report fails or is ended by Ctrl-C, prints a line and returns None. Raises only Stopped.
    """
    from labrl.trial.summary import how_to_report, say

    doing(MAKING)
    try:
        if (folder / MARKER).exists():
            run = Run.open(folder)
            record_changes(run)
            if env is not None:
                record_random_return(run, env)
        # Imported late, because Matplotlib and Polars would delay the start of every command.
        from labrl.analysis.report.build import build

        built = build(folder)
        # A search itself prints the verdict.
        if aloud and built.compares_groups and "search" not in built.statistics:
            say(built.verdict, words=True)
        return built.path
    except Stopped:
        raise  # Only Ctrl-C comes from a person who waits for the report.
    except KeyboardInterrupt:
        reason = "interrupted"
    except Exception as error:
        _log.debug("no report of %s", folder, exc_info=True)
        reason = str(error) or type(error).__name__
    say(f"no report ({reason}); to make it: {how_to_report(folder)}")
    return None


def random_return(plain: Mapping[str, Any], env: Component) -> Baseline | None:
    """Return the return of the random policy. If it is neither published nor in the cache, play episodes.

    plain: the node `env` of the configuration. Returns None if the random policy cannot be played, because
    the actions have no uniform distribution, the environment fails, or no episode ends in time.
    """
    from labrl.envs.make import make_env

    if (known := random_baseline(plain)) is not None:
        return known
    path = baseline_path(plain)
    try:
        num_envs = min(env.config.num_envs, EPISODES)
        vector = make_env(env, seed=0, num_threads=available_cpus(), evaluation=True, num_envs=num_envs)
        try:
            returns = play_at_random(vector)
        finally:
            vector.close()
        if returns:
            std = float(np.std(returns, ddof=1)) if len(returns) > 1 else None
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"mean": float(np.mean(returns)), "std": std, "episodes": len(returns)})
    except Exception as error:  # A user's environment may fail in any way, and the cache may be read-only.
        _log.info("no return of the random policy: %s", error)
    return read_cached(plain)


def play_at_random(env: VectorEnv, seconds: float = SECONDS) -> list[float]:
    """Play complete episodes with uniformly random valid actions, and return the returns of the episodes.

    Plays at most EPISODES, or as many as `seconds` allow. Every environment contributes the same number of
    episodes, so that short episodes do not get more weight. Returns an empty list if an environment finished
    no episode.
    """
    from labrl.agents.random import uniform_actions
    from labrl.seeding import derived_seed

    generator = np.random.default_rng(derived_seed(env.seed, "random baseline"))
    returns: list[list[float]] = [[] for _ in range(env.num_envs)]
    rounds, deadline = EPISODES // env.num_envs, time.monotonic() + seconds
    env.reset()
    while min(map(len, returns)) < rounds and time.monotonic() < deadline:
        action = uniform_actions(env.action_space, env.num_envs, generator, env.action_mask)
        for episode in env.step(action).episodes:
            returns[episode.env].append(float(episode.episode_return))
    return [score for own in returns for score in own[: min(rounds, *map(len, returns))]]


def record_random_return(run: Run, env: Component) -> None:
    """Record the return of the random policy in `run.json`, unless it is known without the run."""
    found = random_return(run.read_config()["env"], env)
    if found is not None and found.source == "measured":
        run.update(random_return=dataclasses.asdict(found))


def record_changes(run: Run) -> None:
    """Write the values of a run's configuration that differ from the defaults to `changed.json`.

    The defaults are those of the installed version of labrl for the run's agent and environment. Writes
    nothing if they cannot be composed, for example because a required value or the folder of the user's
    groups is missing, or if the file is newer than `config.yaml`, which a resume may have changed.
    """
    from labrl.config.compose import compose, to_plain

    with contextlib.suppress(OSError):
        if run.changed_json.stat().st_mtime >= run.config_yaml.stat().st_mtime:
            return
    try:
        config = run.read_config()
        chosen = [f"{group}={option}" for group, option in run.choices.items() if group in ("agent", "env")]
        defaults = to_plain(compose(chosen, run.config_dir))
    except LabrlError as error:
        _log.info("%s: no defaults to compare with: %s", run.path, error)
        return
    found = [change for change in changes(defaults, config) if change.key != "seed"]
    pairs = [(one.key, {"default": one.old, "value": one.new}) for one in found]
    write_json(
        run.changed_json,
        [
            {"key": key, **{n: value for n, value in both.items() if value is not ABSENT}}
            for key, both in pairs
        ],
    )


def finish_experiment(folder: Path, report: bool) -> None:
    """Make the videos that killed trials have not made and, if requested, the report of the experiment."""
    from labrl.trial.summary import say

    _make_videos(folder)
    if report and (made := make_report(folder, aloud=True)):
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
    table (`csv` or `json`; only the table is then printed on standard output); stages: whether to
    print only the comparison in stages. Raises InputError.
    """
    places = [str(newest_folder()) if place == "latest" else place for place in places]
    if stages:
        from labrl.analysis.groups import group_runs
        from labrl.analysis.stages import describe, planned_stages

        runs = find_runs(places)
        print("\n".join(describe(group_runs(runs, by), None if by else planned_stages(runs))))
        return
    from labrl.analysis.report.build import build, build_comparison
    from labrl.analysis.tables import as_csv, comparison_rows, differences

    target = Path(os.path.expanduser(out)) if out else None
    folder = Path(os.path.expanduser(places[0]))
    if len(places) == 1 and by is None and folder.is_dir():
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
    elif form == "json":
        print(json.dumps({"verdict": built.verdict, "warnings": built.warnings, **built.statistics}))
    else:
        print(as_csv(rows), end="")  # with a column for each key
    print(f"report: {built.path.resolve()}", file=sys.stderr if form else sys.stdout)


def _print(
    rows: pl.DataFrame, keys: Mapping[str, list[list[str]]], warnings: Sequence[str], verdict: str
) -> None:
    """Print on the terminal the table of the groups, the tables in `keys`, the warnings and the verdict.
    keys: rows of each table, by its caption."""
    from rich.console import Console

    from labrl.analysis.tables import legend, readable
    from labrl.trial.summary import say

    console = Console(width=None if sys.stdout.isatty() else 200)
    # On a narrow terminal, columns are left out and the names of groups are shortened.
    heads, *body = readable(rows)
    cells = [dict(zip(heads, line, strict=True)) for line in body]
    optional, one_env = heads[4:], len({line["environment"] for line in cells}) == 1
    dispensable = [*reversed(optional[:-1]), *["environment"] * one_env, *optional[-1:]]
    shortest = [{**line, "group": line["group"][:SHORTEST_NAME]} for line in cells]
    widths = widths_that_fit(shortest, heads, dispensable, console.width)
    room = console.width - sum(width + 2 for name, width in widths.items() if name != "group")
    table = [
        [shorten(line[name], room) if name == "group" else line[name] for name in widths] for line in cells
    ]
    right = [place for place, name in enumerate(widths) if name not in ("environment", "group")]
    for line in align_columns([list(widths), *table], right):
        say(line, console)
    if left_out := [name for name in optional if name not in widths]:
        say(f"the report also has {', '.join(left_out)}", console, words=True)
    for line in legend(rows):
        say(line, console, words=True)
    for caption, lines in keys.items():
        for line in (f"{caption}:", *align_columns(lines)):
            say(line, console)
    more = f"and {len(warnings) - MOST_WARNINGS} more warnings in the report"
    for line in (*warnings[:MOST_WARNINGS], more if len(warnings) > MOST_WARNINGS else "", verdict):
        if line:
            say(line, console, words=True)
