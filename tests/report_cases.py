"""Run and experiment folders with tables as long as a real training's, written in no time."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from run_cases import config_with

from labrl.storage.atomic import write_json
from labrl.storage.run_folder import RunFolder

COLUMNS = (
    "loss_policy",
    "loss_value",
    "entropy",
    "kl",
    "clip_fraction",
    "grad_norm",
    "explained_variance",
    "value_mean",
    "value_std",
    "lr",
    "weight_norm",
)
"""What PPO reports beside the clock and the returns."""


def training(rows: int, to: float, noise: int, frames: int = 10_000_000) -> dict[str, np.ndarray]:
    """Columns of a session whose return rises to about `to`, with the noise of seed `noise`."""
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
    """A CSV with these columns; nan is an empty cell."""
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
    """A finished run of so many sessions and rows; changes: of the configuration, as `config_with`."""
    config = config_with(**{"meta__max_session": sessions, "agent___target_": f"labrl.{agent}"} | changes)
    run = RunFolder.create(path)
    run.set_status("finished")
    run.config.write_text(yaml.safe_dump(config))
    run.overrides.write_text(yaml.safe_dump(list(typed)))
    provenance = {"overrides": list(typed), "choices": {"agent": agent, "env": config["env"]["name"]}}
    write_json(run.provenance, {**provenance, "seed": config["seed"], "packages": {"labrl": "0.1.0"}})
    for index in range(sessions):
        folder, table = run.session(index), training(rows, to, 1000 * noise + index)
        write_table(folder.train_csv, table)
        write_table(folder.eval_csv, {name: values[4::5] for name, values in table.items()})
        result = {
            "index": index,
            "seed": 1000 * noise + index,
            "status": "finished",
            "frame": int(table["frame"][-1]),
            "wall": float(table["wall"][-1]),
            "episodes": 5000,
            "return_mean": float(table["return_mean"][-1]),
            "return_std": 2.0,
            "best_return": float(table["return_mean"].max()),
            "error": None,
        }
        write_json(folder.result, result)
    return path


def write_experiment(path: Path, runs: Sequence[tuple[str, Mapping[str, Any]]], **facts: Any) -> Path:
    """An experiment folder over run folders inside it: (folder, facts of the trial) each."""
    trials = [
        {"number": number, "overrides": [], "folder": folder, "status": "finished", "error": None, **more}
        for number, (folder, more) in enumerate(runs)
    ]
    content = {"format_version": 1, "kind": "grid", "status": "finished", "overrides": [], "trials": trials}
    write_json(path / "experiment.json", {**content, "command": ["labrl", "-m"], **facts})
    return path
