"""A comparison as a table: CSV, or text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from labrl.analysis.formats import METHODS, UNKNOWN, brackets, number
from labrl.analysis.groups import value_text
from labrl.analysis.intervals import PAIR_MEANING, PAIR_METHODS, statistic_of
from labrl.analysis.statistics import MEASURES, improvement, info_columns, rank_groups

ESTIMATES = {
    "final_return": "final return",
    "area_under_curve": "average return",
    "human_normalized": "human-normalized",
}
"""The measures with an interval, and the headings of their columns."""


def comparison_rows(comparison: Mapping[str, Any]) -> pl.DataFrame:
    """Return a row for each group of each environment. Values are plain numbers, text or None.

    Columns: `env`, `group`, `agent`, `runs`, `seeds`, `left_out`; `statistic`: `iqm` or `mean`; for each
    estimate, `<estimate>` with `_low` and `_high` (that statistic over the sessions and its interval),
    `_iqm`, `_mean` and `_std`; `threshold` and `reached`, the number of sessions that reached it; for each
    other measure, its mean over the sessions; `consistency`; `rival`: the group with the highest final return
    in the environment; `improvement`, with `_low` and `_high`: the probability that a session of the group
    beats one of the rival; `best`: whether the seeds show that no other group is as good. One column follows
    for each key in which groups differ. The numbers of `env.info_keys` are estimates, too, in columns such as
    `info/<name>` and `info/<name>/low`.
    """
    rows, settings = [], []
    groups = (group for env in comparison["envs"] for group in env["groups"])
    of_info = dict.fromkeys(name for group in groups for name in info_columns(group))
    for env in comparison["envs"]:
        differing = env.get("differing", {})
        rival = next((entry["name"] for _, entry in rank_groups(env["groups"])), None)
        for place, group in enumerate(env["groups"]):
            settings.append({key: value_text(values[place]) for key, values in differing.items()})
            measures, threshold = group["measures"], group["threshold"]
            row: dict[str, Any] = {"env": env["env"], "group": group["name"], "agent": group["agent"]}
            row |= {"runs": len(group["runs"]), "seeds": group["counted"], "left_out": len(group["left_out"])}
            row |= {"statistic": (statistic := statistic_of(group["counted"]))}
            for measure in (*ESTIMATES, *of_info):
                # An underscore could be part of the name of a number.
                estimates, joint = group["estimates"].get(measure, {}), "/" if measure in of_info else "_"
                found = {"": "value", f"{joint}low": "low", f"{joint}high": "high"}
                row |= {f"{measure}{e}": estimates.get(statistic, {}).get(part) for e, part in found.items()}
                row |= {f"{measure}{joint}iqm": estimates.get("iqm", {}).get("value")}
                row |= {f"{measure}{joint}{e}": measures.get(measure, {}).get(e) for e in ("mean", "std")}
            row |= {"threshold": threshold["value"] if threshold else None}
            row |= {"reached": measures["frames_to_threshold"]["n"]}
            row |= {name: measures[name]["mean"] for name in MEASURES if name not in ESTIMATES}
            pair = improvement(env, group["name"], rival) if rival else None
            chance = zip(("", "_low", "_high"), pair or (None, None, None), strict=True)
            row |= {"consistency": group["consistency"], "rival": rival if pair else None}
            row |= {f"improvement{end}": value for end, value in chance}
            rows.append(row | {"best": group["name"] == env.get("best")})
    text, whole = ("env", "group", "agent", "statistic", "rival"), ("runs", "seeds", "left_out", "reached")
    kinds = {**dict.fromkeys(text, pl.String), **dict.fromkeys(whole, pl.Int64), "best": pl.Boolean}
    table = pl.DataFrame(
        rows, {name: kinds.get(name, pl.Float64) for row in rows[:1] for name in row}, strict=False
    )
    keys = dict.fromkeys(key for env in comparison["envs"] for key in env.get("differing", ()))
    return table.with_columns(
        pl.Series(key, [texts.get(key) for texts in settings], pl.String)
        for key in keys
        if key not in table.columns
    )


def differences(env: Mapping[str, Any]) -> list[list[str]]:
    """Return a table of the keys in which the groups of an environment differ: the headings, then the lines.

    env: an entry of `envs` in a comparison. Each line is for a key, or for a group if there are fewer keys
    than groups. Empty if there are no differences.
    """
    names = [group["name"] for group in env["groups"]]
    lines = [[key, *map(value_text, values)] for key, values in env["differing"].items()]
    if not lines:
        return []
    if len(lines) >= len(names):
        return [["key", *names], *lines]
    return [list(line) for line in zip(["group", *names], *lines, strict=True)]


def as_csv(table: pl.DataFrame) -> str:
    """Return the table as CSV with all columns. None becomes an empty cell."""
    return table.write_csv() if table.width else "\n"


def readable(table: pl.DataFrame) -> list[list[str]]:
    """Return the headings, then a line for each row, with every cell as text; empty without rows.

    Columns without any known value are left out.
    """
    if table.is_empty():
        return []
    rows = table.to_dicts()
    threshold, rival = (list(table[name].drop_nulls().unique()) for name in ("threshold", "rival"))
    counted = table.filter(pl.col("seeds") > 0)["statistic"].unique().sort()
    statistic = " or ".join({"iqm": "IQM"}.get(name, name) for name in counted) or "mean"
    columns = {"environment": [row["env"] for row in rows], "group": [row["group"] for row in rows]}
    columns["seeds"] = [
        f"{row['seeds']} of {row['seeds'] + row['left_out']}" if row["left_out"] else str(row["seeds"])
        for row in rows
    ]
    of_info = {name: name for name in table.columns if f"{name}/low" in table.columns}
    for measure, name in {**ESTIMATES, **of_info}.items():
        low, high = (f"{measure}{'/' if measure in of_info else '_'}{end}" for end in ("low", "high"))
        columns[f"{name} ({statistic})"] = [brackets(row[measure], row[low], row[high]) for row in rows]
    columns[f"frames to {number(threshold[0]) if len(threshold) == 1 else 'threshold'}"] = [
        number(row["frames_to_threshold"])
        + (f" ({row['reached']} of {row['seeds']})" if 0 < row["reached"] < row["seeds"] else "")
        for row in rows
    ]
    columns[f"P(better than {rival[0] if len(rival) == 1 else 'the best'})"] = [
        brackets(row["improvement"], row["improvement_low"], row["improvement_high"]) for row in rows
    ]
    shown = {name: cells for name, cells in columns.items() if set(cells) != {UNKNOWN}}
    return [list(shown), *map(list, zip(*shown.values(), strict=True))]


def legend(table: pl.DataFrame) -> list[str]:
    """Return lines that explain the brackets and the probabilities in the table."""
    known = {name for name in table.columns if table[name].count()}
    brackets = f"[low, high]: 95 % interval over the seeds ({METHODS}; P(better): {PAIR_METHODS})"
    lines = [brackets] if known & {"final_return_low", "improvement_low"} else []
    return [*lines, *([f"P(better): {PAIR_MEANING}"] if "improvement" in known else [])]
