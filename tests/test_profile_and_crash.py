"""A profile of some frames and the state of a failure are saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import labrl
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.session.callbacks import Callback
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.tables import read_rows

QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=1"]
SMALL = [*QUIET, "agent.horizon=16", "agent.batch_size=64", "env.num_envs=8", "env.max_frame=512"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Breaks(Callback):
    """Fails at frame 200."""

    def step(self, session: Any) -> None:
        if session.clock.frame >= 200:
            raise RuntimeError("broken on purpose")


def learned(folder: str) -> list[dict[str, Any]]:
    rows = read_rows(Path(folder) / "session_0" / "train.csv")
    return [{name: cell for name, cell in row.items() if name not in ("wall", "fps")} for row in rows]


def test_a_profiled_window_leaves_a_trace_and_a_table_and_learns_the_same() -> None:
    labrl.train([*SMALL, "+meta.profile={start: 128, frames: 128}", "hydra.run.dir=runs/seen"])
    folder = Path("runs/seen/session_0/profile")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert any("aten::" in str(event.get("name")) for event in events)
    assert "Self CPU" in (folder / "table.txt").read_text()
    labrl.train([*SMALL, "hydra.run.dir=runs/unseen"])
    assert not Path("runs/unseen/session_0/profile").exists()
    assert learned("runs/seen") == learned("runs/unseen")


def test_a_run_that_ends_within_the_window_writes_what_was_seen() -> None:
    labrl.train(
        [
            *QUIET,
            "agent=random",
            "env.max_frame=64",
            "meta.profile={start: 0, frames: 1e6}",
            "hydra.run.dir=one",
        ]
    )
    assert Path("one/session_0/profile/trace.json").exists()


@pytest.mark.parametrize(
    ("window", "code", "key"),
    [
        ("{start: 0, frames: 0}", "range", "meta.profile.frames"),
        ("{start: -1, frames: 9}", "range", "meta.profile.start"),
        ("{start: 9}", "missing", "meta.profile.frames"),
        ("true", "type", "meta.profile"),
    ],
)
def test_a_window_that_is_none_is_refused(window: str, code: str, key: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve(compose([f"meta.profile={window}"]))
    assert (refused.value.code, refused.value.key) == (code, key)


@pytest.mark.parametrize("on_crash", ["skip", "save"])
def test_the_state_at_a_crash_is_kept_where_asked_for_and_never_resumed_from(on_crash: str) -> None:
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


def test_seconds_are_told_by_what_they_were_spent_on() -> None:
    session = labrl.train([*SMALL, "hydra.run.dir=one"]).sessions[0]
    assert set(session.phases) == {"act", "env", "learn", "callbacks"}
    assert 0 < sum(session.phases.values()) <= session.wall * 1.01
    assert json.loads(Path("one/session_0/result.json").read_text())["phases"] == session.phases
