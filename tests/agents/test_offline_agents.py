"""Tests of IQL and TD3+BC on the data of a saved run: exact resume, and normalized observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact_cases import QUIET, SMALL, rows, state
from restoring import changed_futures, session_in

import labrl
from labrl.agents.agent import Observation
from labrl.agents.td3_bc import EPSILON
from labrl.config.compose import compose, resolve

pytestmark = pytest.mark.extended

PENDULUM = ["env=pendulum", *QUIET, "env.num_envs=4", "env.max_frame=320", "meta.log_frequency=64"]
PENDULUM += ["meta.eval_frequency=92", "meta.rigorous_eval=1"]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train SAC on Pendulum and return the run folder."""
    overrides = [*PENDULUM, "agent=sac", *SMALL["labrl.agents.sac.SAC"], "agent.memory.capacity=1000"]
    return labrl.train([*overrides, f"hydra.run.dir={tmp_path_factory.mktemp('from') / 'run'}"]).folder


def offline(agent: str, source: Path) -> list[str]:
    """Return the overrides of a small run that learns only from the data of the run `source`."""
    overrides = [f"agent={agent}", *PENDULUM, "agent.batch_size=8", "agent.updates_per_frame=0.25"]
    return [*overrides, "agent/offline=run", f"agent.offline.folder={source}", "agent.collect_until=0"]


@pytest.mark.parametrize("agent", ["iql", "td3_bc"])
def test_interrupted_offline_run_resumes_exactly(agent: str, collected: Path, tmp_path: Path) -> None:
    assert changed_futures(tmp_path, offline(agent, collected)) == []


def test_observations_are_normalized_by_statistics_of_the_data(collected: Path, tmp_path: Path) -> None:
    session = session_in(tmp_path / "run", resolve(compose(offline("td3_bc", collected))))
    agent: Any = session.agent
    held = state(collected / "session_0")["agent"]["experience"]["memory"]["transitions"]
    assert int((held["steps"] - held["oldest"]).sum()) == 320
    normalization = agent.acting_modules()["normalization"]
    observations = np.array([[1, 0, 0], [0.5, 0.5, -8], [0, -1, 2]], np.float32)
    normalized = (observations - normalization.mean.numpy()) / normalization.deviation.numpy()
    assert 0 < float(normalization.deviation[0]) - EPSILON < 1
    assert np.abs(normalized).max() < 20
    with torch.no_grad():
        expected = 2 * agent.modules()["policy"](torch.from_numpy(normalized)).tanh().numpy()
    np.testing.assert_allclose(agent.greedy_action(Observation(observations)), expected, rtol=1e-4, atol=1e-5)
    session.close()


def test_asynchronous_evaluation_normalizes_observations_too(collected: Path, tmp_path: Path) -> None:
    scores = []
    for wait in (True, False):
        more = [f"meta.async_eval={wait}", f"hydra.run.dir={tmp_path / str(wait)}"]
        folder = labrl.train([*offline("td3_bc", collected), *more]).folder
        scores.append([row["return_mean"] for row in rows(folder / "session_0" / "eval.csv")])
    assert scores[0] == scores[1]
