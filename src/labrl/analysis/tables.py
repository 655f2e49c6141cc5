"""A comparison as a table: Markdown, CSV, LaTeX. Pure functions from `compare`'s dict to text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labrl.analysis.intervals import METHOD

HEADINGS = {
    "env": "environment",
    "group": "group",
    "seeds": "seeds",
    "final_return": "final return (IQM)",
    "area_under_curve": "average return (IQM)",
    "human_normalized": "human-normalized (IQM)",
    "frames_to_threshold": "frames to {threshold}",
    "improvement": "P(better than {rival})",
}
"""What stands above the columns; those that nothing is known for are left out."""

_ESTIMATES = ("final_return", "area_under_curve", "human_normalized")

_NOTHING = "–"

LEGEND = f"[low, high]: 95 % interval over the seeds by {METHOD}"
"""The line that explains the brackets of a table."""


def comparison_rows(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each group of each environment, raw: numbers or None, each estimate in three columns.

    `env group agent runs seeds left_out`; `<estimate>_iqm`, `_iqm_low`, `_iqm_high`, `_mean` and
    `_std` of the sessions; `threshold`, `frames_to_threshold` (mean over the sessions that reached it),
    `reached`; the SLM Lab measures; `rival` and `improvement`, `_low`, `_high`: the probability that a
    session of the group beats one of the rival, the environment's group with the highest IQM.
    """
    return [row for env in comparison["envs"] for row in _rows_of(env)]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """All columns of `rows`, in the order in which they first appear; None is an empty cell."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([{key: "" if value is None else value for key, value in row.items()} for row in rows])
    return text.getvalue()


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A GitHub table; intervals as `value [low, high]`."""
    table = readable(rows)
    if not table:
        return ""
    # the other cells are numbers, whose brackets are to be read as they are
    table = [list(map(_markdown, table[0])), *([*map(_markdown, line[:2]), *line[2:]] for line in table[1:])]
    heads, *body = table
    widths = [max(3, *(len(line[column]) for line in table)) for column in range(len(heads))]
    rule = ["-" * width if column < 2 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    lines = [_justified(heads, widths), rule, *(_justified(line, widths) for line in body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_latex(rows: Sequence[Mapping[str, Any]]) -> str:
    """A `tabular` for the booktabs package; the highest final return of each environment is bold."""
    table = readable(rows)
    if not table:
        return ""
    heads, *body = table
    best = _best(rows)
    lines = [
        r"\begin{tabular}{ll" + "r" * (len(heads) - 2) + "}",
        r"\toprule",
        " & ".join(map(_latex, heads)) + r" \\",
    ]
    env = None
    for row, cells in zip(rows, body, strict=True):
        if row["env"] != env:
            lines.append(r"\midrule")
        texts = [_latex(cell) for cell in cells]
        if row["env"] == env:
            texts[0] = ""
        if row["group"] in best.get(row["env"], ()):
            final = heads.index(HEADINGS["final_return"])
            texts[final] = rf"\textbf{{{texts[final]}}}"
        env = row["env"]
        lines.append(" & ".join(texts) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def readable(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Headings, then a line for each row, every cell as text for a person; empty without rows."""
    if not rows:
        return []
    shown = [
        key for key in HEADINGS if key in ("env", "group") or any(_cell(row, key) != _NOTHING for row in rows)
    ]
    return [[_heading(key, rows) for key in shown], *([_cell(row, key) for key in shown] for row in rows)]


def number(value: float | None) -> str:
    """Four digits, or all before the point; no more behind it than the size of the number deserves."""
    if value is None:
        return _NOTHING
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.lstrip("-")


def _rows_of(env: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    groups = env["groups"]
    ranked = [group for group in groups if group["counted"]]
    rival = max(ranked, key=lambda group: group["estimates"]["final_return"]["iqm"]["value"], default=None)
    for group in groups:
        measures, threshold = group["measures"], group["threshold"]
        row: dict[str, Any] = {
            "env": env["env"],
            "group": group["name"],
            "agent": group["agent"],
            "runs": len(group["runs"]),
            "seeds": group["counted"],
            "left_out": len(group["left_out"]),
        }
        for measure in _ESTIMATES:
            estimate = group["estimates"].get(measure, {}).get("iqm", {})
            row[f"{measure}_iqm"] = estimate.get("value")
            row[f"{measure}_iqm_low"], row[f"{measure}_iqm_high"] = estimate.get("low"), estimate.get("high")
            row[f"{measure}_mean"], row[f"{measure}_std"] = (
                measures[measure]["mean"],
                measures[measure]["std"],
            )
        row["threshold"] = threshold["value"] if threshold else None
        row["reached"] = measures["frames_to_threshold"]["n"]
        for measure, facts in measures.items():
            if measure not in _ESTIMATES:
                row[measure] = facts["mean"]
        row["consistency"] = group["consistency"]
        yield {**row, **_against(group, rival, env["improvement"])}


def _against(
    group: Mapping[str, Any], rival: Mapping[str, Any] | None, pairs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Probability that `group` beats `rival`, turned round where the pair stands the other way."""
    found: dict[str, Any] = dict.fromkeys(("rival", "improvement", "improvement_low", "improvement_high"))
    if rival is None or rival["name"] == group["name"]:
        return found
    for pair in pairs:
        if (pair["x"], pair["y"]) == (group["name"], rival["name"]):
            values: tuple[float | None, ...] = (pair["value"], pair["low"], pair["high"])
        elif (pair["y"], pair["x"]) == (group["name"], rival["name"]):
            turned = (pair["value"], pair["high"], pair["low"])
            values = tuple(None if end is None else 1 - end for end in turned)
        else:
            continue
        return dict(zip(found, (rival["name"], *values), strict=True))
    return found


def _heading(key: str, rows: Sequence[Mapping[str, Any]]) -> str:
    thresholds = {row["threshold"] for row in rows if row["threshold"] is not None}
    rivals = {row["rival"] for row in rows if row["rival"] is not None}
    return HEADINGS[key].format(
        threshold=number(thresholds.pop()) if len(thresholds) == 1 else "threshold",
        rival=rivals.pop() if len(rivals) == 1 else "the best",
    )


def _cell(row: Mapping[str, Any], key: str) -> str:
    if key in _ESTIMATES:
        return _interval(*(row[f"{key}_iqm{end}"] for end in ("", "_low", "_high")))
    if key == "improvement":
        return _interval(*(row[f"{key}{end}"] for end in ("", "_low", "_high")))
    if key == "seeds":
        left_out = row["left_out"]
        return f"{row['seeds']} of {row['seeds'] + left_out}" if left_out else str(row["seeds"])
    if key == "frames_to_threshold":
        if row[key] is None:
            return _NOTHING
        all_of_them = row["reached"] == row["seeds"]
        return number(row[key]) + ("" if all_of_them else f" ({row['reached']} of {row['seeds']})")
    return str(row[key])


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    return number(value) if low is None else f"{number(value)} [{number(low)}, {number(high)}]"


def _best(rows: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """The group with the highest final return, by environment; none where it has no rival."""
    found = {}
    for env in {row["env"] for row in rows}:
        own = [row for row in rows if row["env"] == env and row["final_return_iqm"] is not None]
        if len(own) > 1:
            found[env] = {max(own, key=lambda row: row["final_return_iqm"])["group"]}
    return found


def _justified(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


def _markdown(text: str) -> str:
    """With everything escaped that Markdown or the HTML in it would take for its own."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", text)
    return re.sub(r"\s+", " ", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "−": "$-$",
    "–": "--",
    "…": r"\dots{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _latex(text: str) -> str:
    """With everything escaped that TeX would take for its own; a cell that begins with [ is protected."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in re.sub(r"\s+", " ", text))
    return f"{{}}{escaped}" if escaped.startswith(("[", "*")) else escaped
