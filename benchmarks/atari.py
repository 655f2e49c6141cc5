"""Single runs on Atari, each for as many frames as there was time: no claim beyond what was run."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from labrl.analysis.report.build import build_comparison
from labrl.analysis.runs import Run

PROTOCOL = "v5"
"""Protocol of the recipe `experiment=atari/<protocol>`."""

GAMES = ("pong", "breakout")

AGENTS = ("ppo", "a2c")

WORDS = {
    f"{game}_{agent}": [f"experiment=atari/{PROTOCOL}", f"agent={agent}", f"env={game}", "meta.max_session=1"]
    for game in GAMES
    for agent in AGENTS
}
"""Overrides that train each of them, by name."""

PREFACE = f"""# Atari

One session each with `experiment=atari/{PROTOCOL}` (sticky actions), for as many frames as there was time
for, fewer than the budget: `make results ARGS="pong_ppo --minutes 120"`. A frame is one step of the
agent, four of the emulator. *Return* is the raw score, the mean over the last 100 training episodes.

"""


def section(runs: Mapping[str, Run], pictures: Path) -> str:
    """The part of the page about `runs`, named as in WORDS, and about those on record in `pictures`.

    Draws their curves into `pictures` and puts them on record. '' where there is none.
    """
    file = pictures / "atari.csv"
    rows: dict[str, Mapping[str, Any]] = {**record.read(file)}
    for name, run in runs.items():
        found = _row(name, run)
        if name not in rows or found["frames"] >= int(rows[name]["frames"]):
            rows[name] = found | record.source(run, name, pictures)
            _draw(name, run, pictures)
    if not rows:
        return ""
    ordered = [rows[name] for name in WORDS if name in rows]
    record.write(file, ordered)
    lines = [
        "| game | agent | frames | of a budget of | return | best return | further overrides |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in ordered:
        game, _, agent = row["name"].rpartition("_")
        lines.append(
            f"| {game} | {agent} | {int(row['frames']):,} | {int(row['budget']):,} "
            f"| {float(row['return']):.1f} | {float(row['best']):.1f} | {_as_code(row['set'])} |"
        )
    curves = [f"![{row['name']}]({pictures.name}/{row['name']}.svg)" for row in ordered]
    return "\n" + PREFACE + "\n".join(lines) + "\n\n" + "\n".join(curves) + "\n"


def _row(name: str, run: Run) -> dict[str, Any]:
    frames, returns = (run.sessions[0].train[column] for column in ("frame", "return_mean"))
    return {
        "name": name,
        "frames": int(frames[-1]),
        "budget": int(run.config["env"]["max_frame"]),
        "return": round(float(returns[-1]), 2),
        "best": round(float(np.nanmax(returns)), 2),
        "set": " ".join(
            shlex.quote(word)
            for word in run.provenance.get("overrides", ())
            if word.startswith(("agent.", "env."))
        ),
    }


def _as_code(words: str) -> str:
    return f"`{words}`" if words else ""


def _draw(name: str, run: Run, pictures: Path) -> None:
    """Draw the returns of `run` over frames."""
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        build_comparison([run], Path(folder))
        (drawn,) = (Path(folder) / "plots").glob("return_frame*.svg")
        shutil.copyfile(drawn, pictures / f"{name}.svg")
