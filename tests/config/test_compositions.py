"""Tests of the cache of compositions in compositions.py: its results equal those of a new process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from labrl.config import config_folder
from labrl.config.compose import compose
from labrl.errors import InputError

OVERRIDES = [
    "",
    "agent=dqn env=pong agent/memory=prioritized agent.lr=1e-3",
    "agent=dqn agent/memory=uniform",
    "agent=dqn seed=3 agent/memory=uniform ~agent.lr hydra.run.dir=there agent.gamma=0.5",
    "agent=dqn +agent.nonesuch=1",
    "agent=nonesuch",
    "~transforms/observation env=pendulum",
    "agent=ppo agent.lr=linear:1e-3:0 agent.lr.end=1e-5",
    "hydra/sweeper=optuna search=ppo hydra.launcher.n_jobs=1",
    "+callbacks.mine={_target_:mine.Callback}",
    "agent=sac env=pendulum start_from=runs/one",
]

FRESH = """
import json, sys
sys.path.insert(0, {tests!r})
from test_compositions import OVERRIDES, composed
print(json.dumps([composed(overrides) for overrides in OVERRIDES]))
"""


def composed(overrides: str) -> Any:
    """Return the composed configuration, including Hydra's own node, or the mistakes in the overrides."""
    try:
        cfg = compose(overrides.split(" ") if overrides else [], with_hydra=True)
    except InputError as error:
        return [[one.code, one.key] for one in error.mistakes]
    return OmegaConf.to_container(cfg, resolve=False, enum_to_str=True)


@pytest.mark.extended
def test_cached_composition_equals_that_of_a_new_process() -> None:
    program = FRESH.format(tests=str(Path(__file__).parent))
    fresh = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for overrides, anew in zip(OVERRIDES, json.loads(fresh.stdout), strict=True):
        for _ in range(2):
            assert json.loads(json.dumps(composed(overrides))) == anew


def test_changed_file_of_a_users_folder_is_read_again(tmp_path: Path) -> None:
    def compose_own() -> Any:
        return OmegaConf.to_container(compose(["agent=own"], tmp_path))

    file = tmp_path / "agent" / "own.yaml"
    file.parent.mkdir()
    for gamma in (0.5, 0.25):
        file.write_text(f"defaults: [ppo, _self_]\ngamma: {gamma}\n")
        assert compose_own() == compose_own()
        assert compose_own()["agent"]["gamma"] == gamma
    # A file that takes the place of one of labrl's, and its removal.
    (tmp_path / "config.yaml").write_text((config_folder() / "config.yaml").read_text() + "mine: 3\n")
    assert "mine" not in compose_own(), "labrl's files come first"
    file.unlink()
    with pytest.raises(InputError):
        compose_own()


def test_change_of_a_composed_configuration_is_not_cached() -> None:
    cfg = compose(["agent=sac"])
    was = cfg.agent.gamma
    cfg.agent.gamma = 0.123
    assert compose(["agent=sac"]).agent.gamma == was
