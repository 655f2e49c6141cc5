"""Tests of meta.profile, of the state saved at a crash, and of the seconds spent in each phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import labrl
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.run.checkpoint import CheckpointStore
from labrl.run.tables import read_rows
from labrl.session.callbacks import Callback

QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=1"]
SMALL = [*QUIET, "agent.horizon=16", "agent.batch_size=64", "env.num_envs=8", "env.max_frame=512"]
SMALL += ["agent.network.torso.mlp.hidden=[8]"]


pytestmark = pytest.mark.usefixtures("own_folder")


class Breaks(Callback):
    """Callback that fails at frame 200."""

    def step(self, session: Any) -> None:
        if session.clock.frame >= 200:
            raise RuntimeError("broken on purpose")


def training_rows(folder: str) -> list[dict[str, Any]]:
    """Read the training rows of the first session, without wall time and fps."""
    rows = read_rows(Path(folder) / "session_0" / "train.csv")
    return [{name: cell for name, cell in row.items() if name not in ("wall", "fps")} for row in rows]


@pytest.mark.extended
def test_profile_writes_trace_and_table_and_changes_no_training_row() -> None:
    window = "+meta.profile={start: 128, frames: 1e6}"  # longer than the run
    session = labrl.train([*SMALL, window, "hydra.run.dir=runs/profiled"]).sessions[0]
    assert set(session.phases) == {"act", "env", "learn", "callbacks", "check"}
    assert 0 < sum(session.phases.values()) <= session.wall * 1.01
    folder = Path("runs/profiled/session_0/profile")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert any("aten::" in str(event.get("name")) for event in events)
    assert "Self CPU" in (folder / "table.txt").read_text()
    labrl.train([*SMALL, "hydra.run.dir=runs/plain"])
    assert not Path("runs/plain/session_0/profile").exists()
    assert training_rows("runs/profiled") == training_rows("runs/plain")


@pytest.mark.parametrize(
    ("window", "code", "key"),
    [
        ("{start: 0, frames: 0}", "range", "meta.profile.frames"),
        ("{start: 9}", "missing", "meta.profile.frames"),
        ("true", "type", "meta.profile"),
    ],
)
def test_invalid_profile_window_is_refused(window: str, code: str, key: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve(compose([f"meta.profile={window}"]))
    assert (refused.value.code, refused.value.key) == (code, key)


@pytest.mark.parametrize("on_crash", ["skip", "save"])
def test_crash_state_is_saved_only_on_request_and_not_among_checkpoints(on_crash: str) -> None:
    breaking = "+callbacks.breaks={_target_: test_profile_and_crash.Breaks}"
    result = labrl.train([*SMALL, breaking, f"meta.on_crash={on_crash}", "hydra.run.dir=one"])
    assert result.exit_code == 1
    session = Path("one/session_0")
    assert CheckpointStore(session / "checkpoints", 1).latest() is None
    assert (session / "crash").exists() == (on_crash == "save")
    if on_crash == "save":
        crashed = CheckpointStore(session / "crash", 1).latest()
        assert crashed is not None
        assert crashed.state["clock"]["frame"] == crashed.frame == 200
        assert str(session / "crash") in (session / "session.log").read_text()
