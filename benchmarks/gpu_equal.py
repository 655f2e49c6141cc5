"""Prove that CUDA graphs change nothing: python -m benchmarks.gpu_equal [case ...] [--out FILE]

Each agent is trained with graphs, without them, and with graphs but interrupted and resumed. All rows and all
weights must be equal, bit for bit. The result is printed as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import labrl
from benchmarks.labrl_side import QUIET, read_rows, train
from labrl.run.checkpoint import CheckpointStore
from labrl.spaces import same

PONG = ("env=pong", "env.num_envs=2")
ROLLOUT = ("agent.horizon=32", "agent.batch_size=16")
REPLAY = ("agent.learning_starts=128", "agent.memory.capacity=2000", "agent.updates_per_frame=1")
CHEETAH = ("env=half_cheetah",)

CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "ppo": (("agent=ppo", *PONG, *ROLLOUT), 1280),
    "ppo-clipped-values": (("agent=ppo", *PONG, *ROLLOUT, "agent.value_clip_range=0.1"), 1280),
    "ppo-vectors": (("agent=ppo", *CHEETAH), 4096),
    "a2c": (("agent=a2c", *PONG), 2200),
    "pqn": (("agent=pqn", *PONG, *ROLLOUT), 1920),
    "dqn": (("agent=dqn", *PONG, *REPLAY), 384),
    "double_dqn_per": (("agent=dqn", "agent.double=true", "agent/memory=prioritized", *PONG, *REPLAY), 384),
    "c51": (("agent=c51", *PONG, *REPLAY), 384),
    "qr_dqn": (("agent=qr_dqn", *PONG, *REPLAY), 384),
    "rainbow": (("agent=rainbow", *PONG, *REPLAY), 384),
    "sac": (("agent=sac", *CHEETAH, *REPLAY), 640),
    "sac-discrete": (("agent=sac", *PONG, *REPLAY), 384),
    "tqc": (("agent=tqc", *CHEETAH, *REPLAY), 640),
    "td3": (("agent=td3", *CHEETAH, *REPLAY), 640),
    "ddpg": (("agent=ddpg", *CHEETAH, *REPLAY), 640),
}
"""Overrides and frames of each case."""

COMMON = (
    "seed=7",
    *QUIET,
    "meta.eval_frequency=1000000",
)

TIMED = {"wall", "fps"}
"""Columns that differ between two equal runs."""


def agent_state(session: Path) -> Any:
    """Return the state of the agent in the newest checkpoint of a session."""
    newest = CheckpointStore(session / "checkpoints", 1).latest()
    assert newest is not None
    return newest.state["agent"]


def run(overrides: tuple[str, ...], frames: int, *more: str) -> tuple[Path, list[dict[str, Any]]]:
    """Train. Return the folder of the session and its rows without times."""
    session, rows = train([*overrides, *COMMON, f"env.max_frame={frames}", *more])
    return session, [{name: repr(value) for name, value in row.items() if name not in TIMED} for row in rows]


def resumed(
    overrides: tuple[str, ...], frames: int, updates: int, *more: str
) -> tuple[Path, list[dict[str, Any]]]:
    """Train with an interruption after half of the updates. Return what `run` returns."""
    session, _ = run(overrides, frames, *more, f"meta.max_opt_step={max(updates // 2, 1)}")
    result = labrl.train([f"+resume={session.parent}", "meta.max_opt_step=null"])
    assert result.exit_code == 0, result.sessions
    rows = read_rows(session)
    return session, [{name: repr(value) for name, value in row.items() if name not in TIMED} for row in rows]


def compare(case: str, device: str) -> dict[str, Any]:
    """Return what is equal for one case."""
    overrides, frames = CASES[case]
    on = f"meta.device={device}", f"meta.log_frequency={max(frames // 8, 1)}"
    began = time.perf_counter()
    session, rows = run(overrides, frames, *on)
    graphed = time.perf_counter() - began
    plain, plain_rows = run(overrides, frames, *on, "meta.graphs=off")
    updates = int(float(rows[-1]["opt_step"].strip("'")))
    again, again_rows = resumed(overrides, frames, updates, *on)
    weights = agent_state(session)
    log = session / "session.log"
    return {
        "updates": updates,
        "rows": rows == plain_rows,
        "weights": same(weights, agent_state(plain)),
        "resumed rows": rows[-1] == again_rows[-1],
        "resumed weights": same(weights, agent_state(again)),
        "log": [line for line in log.read_text().splitlines() if "graph" in line] if log.exists() else [],
        "seconds": round(graphed, 1),
    }


def main() -> None:
    """Compare the chosen cases, and exit with 1 if any two runs differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_equal", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"{', '.join(CASES)} (default: all)")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--out", type=Path, help="file for the result")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for case in arguments.cases or CASES:
        try:
            results[case] = compare(case, arguments.device)
        except Exception as error:  # the other cases still count
            results[case] = {"error": f"{type(error).__name__}: {error}"}
        print(case, json.dumps(results[case]), flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    equal = all(all(v for n, v in each.items() if "rows" in n or "weights" in n) for each in results.values())
    sys.exit(not equal or any("error" in each for each in results.values()))


if __name__ == "__main__":
    main()
