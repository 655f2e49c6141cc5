"""Run folders as trials write them, made without training, for tests of code that reads run folders."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from labrl.run.atomic import write_atomic, write_json
from labrl.run.provenance import Origin, write_provenance
from labrl.run.run import MARKER, Run
from labrl.run.tables import CsvTable

CONFIG: dict[str, Any] = {
    "seed": 1,
    "agent": {"_target_": "labrl.agents.ppo.PPO", "lr": 1e-3, "network": {"hidden": [64, 64]}},
    "env": {"_target_": "labrl.envs.gym.GymnasiumEnv", "name": "cartpole", "num_envs": 4, "max_frame": 1000},
    "meta": {"max_session": 1, "rigorous_eval": None, "progress": True, "log_frequency": 100},
    "transforms": {"observation": None},
    "callbacks": {},
}


def config_with(**changes: Any) -> dict[str, Any]:
    """Return CONFIG with changed values; `agent__lr=0.1` sets the key agent.lr."""
    config = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        *above, last = key.split("__")
        node = config
        for name in above:
            node = node[name]
        node[last] = value
    return config


def rows_of(
    frames: Sequence[float], returns: Sequence[float], **columns: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return rows with the columns of the clock, at 100 frames per second and 10 frames per update."""
    return [
        {
            "frame": frame,
            "env_frames": frame,
            "episode": 10 + index,
            "opt_step": frame // 10,
            "wall": frame / 100,
            "fps": 100.0,
            "return_mean": score,
            **{name: values[index] for name, values in columns.items()},
        }
        for index, (frame, score) in enumerate(zip(frames, returns, strict=True))
    ]


def write_session(
    run: Run,
    index: int,
    rows: Sequence[Mapping[str, Any]],
    status: str | None = "finished",
    **facts: Any,
) -> None:
    """Write a session that has `rows` as its training and its evaluation rows.

    status: of the session's result; None writes no result. facts: other entries of the result.
    """
    folder = run.session(index)
    train, evaluation = CsvTable(folder.train_csv), CsvTable(folder.eval_csv)
    for row in rows:
        train.append(row)
        evaluation.append({**row, "episodes": 100, "source": "training"})
    if status is not None:
        last = rows[-1] if rows else {"frame": 0, "wall": 0.0, "return_mean": None}
        result = {
            "index": index,
            "seed": run.read_info().get("seed", 0) * 1000 + index,
            "status": status,
            "frame": last["frame"],
            "wall": last["wall"],
            "episodes": 100,
            "final_return": last["return_mean"],
            "return_mean": last["return_mean"],
            "return_std": 1.0,
            "best_return": last["return_mean"],
            "error": None,
        }
        write_json(folder.result_json, {**result, **facts})


def write_run(
    path: Path,
    sessions: Sequence[Sequence[Mapping[str, Any]]],
    status: str = "finished",
    config: Mapping[str, Any] | None = None,
    agent: str = "ppo",
    created: str | None = None,
    session_status: str | None = "finished",
) -> Path:
    """Write a run folder with the rows of each session. Return its path."""
    plain = copy.deepcopy(dict(config or CONFIG))
    plain["meta"]["max_session"] = max(plain["meta"]["max_session"], len(sessions))
    run = Run.create(path)
    write_atomic(run.config_yaml, yaml.safe_dump(plain, sort_keys=False))
    write_atomic(run.overrides_yaml, yaml.safe_dump(["seed=1"]))
    choices = {"agent": agent, "env": plain["env"]["name"]}
    facts = {**_provenance(), "seed": plain["seed"], "choices": choices, "config": plain}
    write_json(run.provenance_json, facts)
    run.set_status("running", seed=plain["seed"])
    for index, rows in enumerate(sessions):
        write_session(run, index, rows, session_status)
    facts = {"created": created} if created else {}
    write_json(path / MARKER, {**run.read_info(), "status": status, **facts})
    return path


@functools.cache
def _provenance() -> dict[str, Any]:
    """Return the provenance of this code and machine; cached because git is slow."""
    with tempfile.TemporaryDirectory() as folder:
        return write_provenance(Run.create(Path(folder) / "run"), CONFIG, Origin(["seed=1"]))


def rising(to: float, frames: int = 1000, rows: int = 10, noise: int | None = None) -> list[dict[str, Any]]:
    """Return rows of a session whose return rises linearly from 0 to `to`; noise: seed of added noise."""
    frame = np.linspace(frames / rows, frames, rows).astype(int)
    returns = to * frame / frames
    if noise is not None:
        returns = returns + np.random.default_rng(noise).normal(size=rows)
    return rows_of(frame.tolist(), returns.tolist())


def files_of(folder: Path) -> dict[Path, bytes]:
    """Return the content of all files in a folder by path, without locks."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
