"""Single runs on Atari, each for as many frames as there was time: no claim beyond what was run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from labrl.analysis.report.build import PLOTS, build_comparison
from labrl.analysis.runs import Run

PROTOCOL = "v5"
"""Of the recipe `experiment=atari/<protocol>`."""

GAMES = ("pong", "breakout")

AGENTS = ("ppo", "a2c")

WORDS = {
    f"{game}_{agent}": [f"experiment=atari/{PROTOCOL}", f"agent={agent}", f"env={game}", "meta.max_session=1"]
    for game in GAMES
    for agent in AGENTS
}
"""What `labrl` is given to train each of them, by name."""

PREFACE = f"""# Atari

One session each, `experiment=atari/{PROTOCOL}` (sticky actions), for as many frames as there was time, not to
the budget: `make results ARGS="pong_ppo --minutes 120"`. A frame is an agent's step, four of the emulator.
*Return*: raw score, mean of the last 100 training episodes.

"""


def section(runs: Mapping[str, Run], pictures: Path) -> str:
    """The part of the page about `runs`, named as in WORDS; draws the curves of each game into `pictures`."""
    lines = [
        "| game | agent | frames | of a budget of | return | best return |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, run in runs.items():
        frames, returns = (run.sessions[0].train[column] for column in ("frame", "return_mean"))
        game, _, agent = name.rpartition("_")
        budget = run.config["env"]["max_frame"]
        lines.append(
            f"| {game} | {agent} | {frames[-1]:,.0f} | {budget:,.0f} "
            f"| {returns[-1]:.1f} | {max(returns):.1f} |"
        )
    curves = []
    for game in GAMES:
        of_game = [run for name, run in runs.items() if name.rpartition("_")[0] == game]
        if of_game:
            curves.append(f"![{game}]({_curve(game, of_game, pictures)})")
    return PREFACE + "\n".join(lines) + "\n\n" + "\n".join(curves) + "\n"


def _curve(game: str, runs: list[Run], pictures: Path) -> str:
    """Draw the returns of `runs` over frames; returns the picture's path beside the page."""
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        build_comparison(runs, Path(folder))
        (drawn,) = (Path(folder) / PLOTS).glob("return_frame*.svg")
        shutil.copyfile(drawn, pictures / f"{game}.svg")
    return f"{pictures.name}/{game}.svg"
