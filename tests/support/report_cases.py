"""Run and experiment folders with tables as long as those of real training, written without training."""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from run_cases import config_with, write_run, write_session

from labrl.analysis.report.build import build
from labrl.run.atomic import write_json
from labrl.run.experiment import Experiment
from labrl.run.run import Run

COLUMNS = (
    "loss_policy",
    "loss_value",
    "entropy",
    "kl",
    "explained_variance",
    "grad_norm",
    "value_mean",
    "lr",
)
"""Columns of a training table beside those of the clock and the returns."""


def training(rows: int, to: float, noise: int, frames: int = 10_000_000) -> dict[str, np.ndarray]:
    """Return the columns of a session whose return rises to about `to`, with noise from seed `noise`."""
    random = np.random.default_rng(noise)
    part = np.arange(1, rows + 1) / rows
    frame = np.round(part * frames)
    returns = to / (1 + np.exp(-10 * (part - 0.4 - 0.05 * random.normal())))
    returns = returns + 0.03 * to * random.normal(size=rows).cumsum() / np.sqrt(np.arange(rows) + 10)
    table = {
        "frame": frame,
        "env_frames": 4 * frame,
        "episode": np.round(part * 5000),
        "opt_step": np.round(frame / 32),
        "wall": part * 7200 * (1 + 0.1 * random.random()),
        "fps": 1400 + 50 * random.normal(size=rows),
        "return_mean": returns,
        "return_std": np.full(rows, to / 10),
        "return_min": returns - to / 5,
        "return_max": returns + to / 5,
        "length_mean": returns * 3,
    }
    for place, name in enumerate(COLUMNS):
        table[name] = np.exp(-3 * part) * (1 + 0.2 * random.normal(size=rows)) * 10 ** (place % 4 - 2)
    return table


def write_table(path: Path, table: Mapping[str, np.ndarray]) -> None:
    """Write a CSV file with these columns; NaN becomes an empty cell."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        for row in zip(*(values.tolist() for values in table.values()), strict=True):
            writer.writerow(["" if value != value else value for value in row])


def write_long_run(
    path: Path,
    sessions: int = 4,
    rows: int = 2000,
    to: float = 20.0,
    noise: int = 0,
    agent: str = "ppo",
    typed: Sequence[str] = (),
    **changes: Any,
) -> Path:
    """Write the folder of a finished run and return its path.

    rows: number of rows per session. changes: changes of the configuration, as `config_with` takes them.
    """
    config = config_with(**{"meta__max_session": sessions, "agent___target_": f"labrl.{agent}"} | changes)
    run = Run(write_run(path, [], config=config, agent=agent))
    run.overrides_yaml.write_text(yaml.safe_dump(list(typed)))
    write_json(run.provenance_json, {**json.loads(run.provenance_json.read_text()), "overrides": list(typed)})
    for index in range(sessions):
        folder, table = run.session(index), training(rows, to, 1000 * noise + index)
        write_table(folder.train_csv, table)
        write_table(folder.eval_csv, {name: values[4::5] for name, values in table.items()})
        returns, facts = (
            table["return_mean"],
            {"seed": 1000 * noise + index, "wall": float(table["wall"][-1])},
        )
        facts |= {"frame": int(table["frame"][-1]), "best_return": float(returns.max())}
        write_session(run, index, [], return_mean=float(returns[-1]), **facts)
    return path


def write_experiment(path: Path, runs: Sequence[tuple[str, Mapping[str, Any]]], **facts: Any) -> Path:
    """Write an experiment folder around existing run folders. Return its path.

    runs: for each trial the name of its run folder and facts about it.
    """
    trials = [
        {"number": number, "overrides": [], "folder": folder, "status": "finished", "error": None, **more}
        for number, (folder, more) in enumerate(runs)
    ]
    content = {
        "format_version": Experiment.FORMAT_VERSION,
        "kind": "grid",
        "status": "finished",
        "overrides": [],
        "trials": trials,
    }
    write_json(path / "experiment.json", {**content, "command": ["labrl", "-m"], **facts})
    return path


class ReportPage(HTMLParser):
    """A parsed report: its text, elements, tables and charts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.source = path.read_text()
        self.feed(self.source)
        data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', self.source)
        assert data is not None
        self.charts: list[dict[str, Any]] = json.loads(data[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def sections(self) -> list[str]:
        return re.findall(r'<section id="(.*?)">', self.source)

    def chart(self, title: str) -> dict[str, Any]:
        """Return the only chart with this title."""
        (found,) = (chart for chart in self.charts if chart["title"] == title)
        return found

    def table(self, section: str) -> list[list[str]]:
        """Return the cells of the first table of a section as text; the first row is the header."""
        body = re.search(rf'<section id="{section}">(.*?)</section>', self.source, re.DOTALL)
        assert body is not None
        table = re.findall(r"<table>(.*?)</table>", body[1], re.DOTALL)[0]
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)
        return [
            [
                html.unescape(re.sub("<[^>]*>", "", cell)).strip()
                for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)
            ]
            for row in rows
        ]


def report_of(path: Path) -> ReportPage:
    """Write the report of a folder and return it parsed."""
    return ReportPage(build(path).path)
