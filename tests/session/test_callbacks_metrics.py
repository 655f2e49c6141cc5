"""Tests of columns that callbacks return, and of what callbacks see of a session."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callback_cases import ToySession
from exact_cases import (
    QUIET,
    VECTOR,
    differences,
    rows,
)
from refusals import refused
from tensorboard_files import scalars

from labrl.cli import main
from labrl.session.callbacks import Callback
from labrl.session.callbacks.log import LogTraining

pytestmark = pytest.mark.usefixtures("own_folder")

DRIVE = ["env=gymnasium", "env.id=null", "env.name=drive", "+env.make._target_=info_env.Drive"]
PPO = [*QUIET, *DRIVE, *VECTOR, "env.num_envs=4", "env.info_keys={speed: mean}", "meta.tensorboard=true"]
PPO += ["agent.horizon=16", "agent.batch_size=32", "agent.epochs=2", "meta.eval_frequency=480"]
PPO += ["agent.network.torso.mlp.hidden=[8]"]
SINCE = "+callbacks.since._target_=test_callbacks_metrics.SinceTheLastRow"


class SinceTheLastRow(Callback):
    """Sums of what a callback sees, since the last row."""

    def __init__(self) -> None:
        self.sums = {"rewards": 0.0, "speeds": 0.0, "losses": 0.0, "steps": 0.0}
        self.rows = 0

    def step(self, session: Any) -> None:
        step = session.last_step()
        self.sums["rewards"] += float(step.reward.sum())
        self.sums["speeds"] += sum(episode.info["speed"] for episode in step.episodes)
        loss = session.metrics()["loss_value"]
        self.sums["losses"] += 0.0 if math.isnan(loss) else loss
        self.sums["steps"] += 1

    def row(self, session: Any, table: str, row: Any) -> None:
        self.rows += table == "train"

    def metrics(self) -> dict[str, float]:
        found = {f"since/{name}": value for name, value in self.sums.items()}
        self.sums = dict.fromkeys(self.sums, 0.0)
        return {**found, "since/rows": self.rows}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": dict(self.sums), "rows": self.rows}

    def load_state_dict(self, state: Any) -> None:
        self.sums, self.rows = dict(state["sums"]), state["rows"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main([*PPO, SINCE, f"hydra.run.dir={folder}"]) == 0
    return folder


@pytest.mark.extended
def test_columns_of_a_callback_are_in_each_row_once(whole: Path) -> None:
    found = rows(whole / "session_0" / "train.csv")
    assert [row["since/rows"] for row in found] == [f"{number}.0" for number in range(len(found))]
    assert all(float(row["since/steps"]) == 50 for row in found)
    assert all(float(row["since/speeds"]) > 0 and float(row["since/rewards"]) > 0 for row in found)
    assert any(float(row["since/losses"]) > 0 for row in found)
    points = scalars(whole / "session_0" / "tensorboard")["train/since/rewards"]
    assert points == [(int(row["frame"]), pytest.approx(float(row["since/rewards"]))) for row in found]
    assert "since/rows" not in rows(whole / "session_0" / "eval.csv")[0]


@pytest.mark.extended
def test_extended_run_has_the_columns_of_a_run_with_the_larger_budget(whole: Path, tmp_path: Path) -> None:
    """The last row of the shorter budget is not a regular one, so it must not start new sums."""
    assert main([*PPO, SINCE, "env.max_frame=1288", "hydra.run.dir=short"]) == 0
    last = rows(Path("short/session_0/train.csv"))[-1]
    assert (last["frame"], float(last["since/steps"])) == ("1288", 22)
    assert main(["+resume=short", "env.max_frame=2400"]) == 0
    assert differences(whole, tmp_path / "short") == []


class Returns(Callback):
    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def metrics(self) -> dict[str, Any]:
        return self.columns


@pytest.mark.parametrize(
    ("code", "columns"),
    [
        ("contradiction", [{"loss": 1.0}]),
        ("contradiction", [{"mood": 1.0}, {"mood": 2.0}]),
        ("type", [{"mood": "good"}]),
    ],
)
def test_column_that_exists_or_is_no_number_is_refused(tmp_path: Path, code: Any, columns: Any) -> None:
    with refused(code, "callbacks", *columns[0]):
        ToySession(tmp_path).run(LogTraining(50, [Returns(**each) for each in columns]))


def test_column_of_an_agent_that_exists_is_refused(tmp_path: Path) -> None:
    session = ToySession(tmp_path)
    session.agent.metrics = lambda: {"frame": 1.0}
    with refused("target", "agent._target_", "frame"):
        session.run(LogTraining(50))


def test_numbers_of_any_type_are_columns(tmp_path: Path) -> None:
    columns = {"a": np.float32(0.5), "b": np.array([2]), "c": True, "d": math.nan}
    session = ToySession(tmp_path).run(LogTraining(50, [Returns(**columns)]))
    row = rows(session.folder.train_csv)[0]
    assert [row[name] for name in "abcd"] == ["0.5", "2.0", "1.0", ""]


class Writes(Callback):
    """Tries to change what it sees."""

    def step(self, session: Any) -> None:
        step = session.last_step()
        for name in ("observation", "next_observation", "reward", "terminated", "truncated", "episode_over"):
            with pytest.raises(ValueError):  # noqa: PT011
                getattr(step, name)[:] = 0
        for episode in step.episodes:
            with pytest.raises(TypeError):
                episode.info["speed"] = 0.0
        step.episodes.clear()


@pytest.mark.extended
def test_callback_cannot_change_what_it_sees(whole: Path, tmp_path: Path) -> None:
    writes = "+callbacks.writes._target_=test_callbacks_metrics.Writes"
    assert main([*PPO, SINCE, writes, "hydra.run.dir=run"]) == 0
    assert differences(whole, tmp_path / "run") == []
