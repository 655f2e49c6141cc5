"""`labrl-report --format latex,pdf,svg`: table and figures of a comparison for a paper, with captions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labrl.analysis.figures import COLUMN, TEXT, Sheet, save_sheets
from labrl.analysis.formats import RUNS_FOR_IQM, method_of
from labrl.analysis.groups import Group, by_env, group_runs
from labrl.analysis.intervals import (
    FEWEST_FOR_BEST,
    PAIR_METHODS,
    RUNS_FOR_INTERVAL,
    SCORE_METHOD,
)
from labrl.analysis.report.build import unwritable
from labrl.analysis.report.comparison import EnvComparison
from labrl.analysis.returns import MEANING, statistic_name
from labrl.analysis.series import AXES, TimeAxes
from labrl.analysis.statistics import compare
from labrl.analysis.tables import as_csv, as_latex, as_markdown, comparison_rows, escape_latex
from labrl.errors import InputError
from labrl.mistakes.spelling import did_you_mean
from labrl.run.atomic import write_atomic
from labrl.run.run import Run

TABLES = ("md", "csv", "latex")
FIGURES = ("pdf", "svg", "png")


def write_paper(
    runs: Sequence[Run],
    out: Path,
    formats: Sequence[str],
    by: str | None = None,
    *,
    names: Sequence[str] = (),
    title: str | None = None,
    axis: str = "frame",
    size: str = "column",
    seeds: bool = True,
) -> list[Path]:
    """Write the table, the figures and `captions.txt` of a comparison into `out`. Return their paths.

    formats: names in TABLES and FIGURES; by: see `group_runs`; names: `<group>=<name>` for each group that
    gets a new name; these groups come first, in this order; title: title of the figures, may be empty; None
    for the environment; axis: `frame` or `wall`, the horizontal axis of curves; size: `column` or `text`, the
    width of the figures in a paper with two columns, or `<width>[x<height>]` in inches; seeds: whether to
    draw each seed as a thin line. With `latex` and `pdf`, a file `<figure>.tex` includes each figure with its
    caption. Raises InputError for wrong options, or if the files cannot be written.
    """
    for form in formats:
        if form not in TABLES + FIGURES:
            allowed = f"be one or more of {', '.join(TABLES + FIGURES)}, separated by commas"
            raise InputError.value("--format", form or "nothing", allowed)
    inches = _size(size)
    groups = _renamed(group_runs(runs, by), names)
    comparison, axes = compare(groups), TimeAxes(runs)
    sheets, captions = [], {"table": _caption(comparison["envs"], "")}
    several = len(comparison["envs"]) > 1
    for entry, own in zip(comparison["envs"], by_env(groups).values(), strict=True):
        env = EnvComparison(entry, own, axes, several, by_rank=not names)
        for sheet in env.sheets():
            if sheet.axis in AXES and sheet.axis != axis:
                continue
            shown = sheet.title if title is None else title + env.where * bool(title)
            sheets.append(sheet._replace(title=shown, size=inches, seeds=seeds))
            captions[sheet.name] = _caption([entry], env.where, sheet, seeds)
    try:
        written = save_sheets(sheets, out, [form for form in formats if form in FIGURES])
        rows, texts = comparison_rows(comparison), {}
        if "csv" in formats:
            texts["table.csv"] = as_csv(rows)
        if "md" in formats:
            texts["table.md"] = f"{as_markdown(rows, for_paper=True)}\n{captions['table']}\n"
        if "latex" in formats:
            texts["table.tex"] = _float("table", as_latex(rows), captions["table"], "booktabs")
            for path in (path for path in written if path.suffix == ".pdf"):
                content = f"\\includegraphics{{{path.name}}}\n"
                texts[f"{path.stem}.tex"] = _float("figure", content, captions[path.stem], "graphicx")
        there = {"table", *(path.stem for path in written)}
        known = [f"{name}: {text}\n" for name, text in captions.items() if name in there]
        texts["captions.txt"] = "\n".join(known)
        for name, text in texts.items():
            write_atomic(out / name, text)
    except OSError as error:
        raise unwritable(out, error) from error
    return [*written, *(out / name for name in texts)]


def _size(text: str) -> tuple[float, float | None]:
    """Return the width and the height in inches; a height of None stands for the usual height."""
    known = {"column": f"{COLUMN}", "text": f"{TEXT}"}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?", known.get(text, text))
    width, height = found.groups() if found else ("0", None)
    if not (1 <= float(width) <= 50 and (height is None or 1 <= float(height) <= 50)):
        allowed = (
            f"be column ({COLUMN} inches), text ({TEXT} inches), <width> or <width>x<height>, "
            "with 1 to 50 inches each"
        )
        raise InputError.value("--size", text, allowed, fix="Set --size 5x3")
    return float(width), None if height is None else float(height)


def _renamed(groups: Sequence[Group], names: Sequence[str]) -> list[Group]:
    """Return the groups with their new names. Groups with a new name come first, in the order of `names`."""
    known = [group.name for group in groups]
    new: dict[str, str] = {}
    for text in names:
        # The names of groups contain equals signs: ppo lr=0.1
        old = max((one for one in known if text.startswith(f"{one}=")), key=len, default="")
        if not old or not text.removeprefix(f"{old}="):
            guess = did_you_mean(text.rpartition("=")[0] or text, known)
            why, groups_text = "must be <group>=<name>", f"The groups are {', '.join(known)}.{guess}"
            raise InputError.about(f"--name {text}", why, groups_text, code="unknown-option", key="--name")
        new[old] = text.removeprefix(f"{old}=")
    shown = [(group.env, new.get(group.name, group.name)) for group in groups]
    if twice := next((one for one in shown if shown.count(one) > 1), None):
        raise InputError.about("--name", f"two groups are called {twice[1]}", code="contradiction")
    ordered = sorted(groups, key=lambda one: list(new).index(one.name) if one.name in new else len(new))
    return [group._replace(name=new.get(group.name, group.name)) for group in ordered]


def _caption(
    envs: Sequence[Mapping[str, Any]], where: str, sheet: Sheet | None = None, seeds: bool = True
) -> str:
    """Return the caption of a sheet, or of the table if `sheet` is None. It says what is shown, over how many
    seeds and with which method.

    envs: entries of `envs` in a comparison; seeds: whether the curves of seeds are drawn.
    """
    counts = sorted({group["counted"] for env in envs for group in env["groups"] if group["counted"]}) or [0]
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    over = f"over {number} seed{'' if number == '1' else 's'}"
    methods = " or ".join(dict.fromkeys(map(method_of, counts)))
    spread = f", with its 95 % interval ({methods})" if counts[-1] >= RUNS_FOR_INTERVAL else ""
    statistic = f"{' or '.join(dict.fromkeys(map(statistic_name, counts)))} {over}{spread}"
    if sheet is None:
        text = f"{statistic[0].upper()}{statistic[1:]}. {MEANING.capitalize()}."
        if any(env["best"] for env in envs):
            method = SCORE_METHOD if counts[0] < RUNS_FOR_IQM else PAIR_METHODS
            return (
                f"{text} Bold: the best group. For every other group, the 95 % interval ({method}) of the "
                "probability that a seed of the best group beats one of the other group is above one half, "
                f"and all groups have at least {FEWEST_FOR_BEST} seeds."
            )
        several = any(len(env["groups"]) > 1 for env in envs)
        return f"{text} The seeds do not decide which group is the best." if several else text
    titles = ", ".join(chart.title for chart in sheet.charts).capitalize()
    if sheet.axis == "score":
        return f"Performance profile{where}: fraction of seeds above each final return, {over}."
    if sheet.axis in AXES:
        return f"{titles} {sheet.charts[0].unit}{where}: {statistic}{'; thin lines: each seed' * seeds}."
    return f"{titles}{where}: {statistic}{'; crosses: each seed' * (sheet.axis == 'group')}."


def _float(kind: str, content: str, caption: str, package: str) -> str:
    """Return a LaTeX `table` or `figure`, which needs `package`."""
    lines = [rf"% \usepackage{{{package}}}", rf"\begin{{{kind}}}", r"\centering"]
    return "\n".join([*lines, rf"\caption{{{escape_latex(caption)}}}", content + rf"\end{{{kind}}}", ""])
