"""Check that a resumed run equals an uninterrupted one bit for bit, for every agent and interruption.

    make exact
    make exact ARGS="--agents ppo dqn --tasks pong"
    make exact ARGS="--agents dqn --tasks pong --ways kill --kills 50 agent.memory.storage=mmap"

Each agent runs in all environments of `exact_cases.TASKS` that it supports. The program prints one line for
each case and a total; its exit code is 1 if a run differed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from exact_cases import (
    TASKS,
    VARIANTS,
    Moment,
    differences,
    folder_override,
    interrupt,
    newest_checkpoint,
    recorded_differences,
    small,
)

from labrl.cli import main as labrl_main
from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.trial.create import check

AGENTS = [*sorted(path.stem for path in (config_folder() / "agent").glob("*.yaml")), *VARIANTS]


@dataclass(frozen=True)
class Case:
    """A run to interrupt, and the folder of the same run without an interruption."""

    overrides: list[str]
    uninterrupted: Path
    folder: Path
    rng: np.random.Generator
    kills: int

    @property
    def budget(self) -> int:
        """The budget of the run in frames."""
        return resolve(compose(self.overrides)).env.config.max_frame

    @property
    def log_frequency(self) -> int:
        """The number of frames between two training checkpoints."""
        return resolve(compose(self.overrides)).meta.log_frequency

    def moment(self, after: int = 0) -> Moment:
        """Draw the time of a signal after frame `after` and before the last checkpoints."""
        last = max(after + self.log_frequency, int(0.6 * self.budget)) if self.kills == 1 else after + 1
        return Moment(int(self.rng.integers(after + 1, last + 1)), float(self.rng.uniform(0, 0.1)))


def labrl(*overrides: str) -> None:
    """Run `labrl` in this process without printing its output. Raises RuntimeError if it fails."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = labrl_main(list(overrides))
    if code:
        raise RuntimeError(f"labrl {' '.join(overrides)} ended with {code}:\n{output.getvalue()}")


def by_signal(case: Case, number: signal.Signals, expected: int) -> str:
    """Interrupt the run `kills` times by a signal and resume it each time. Return at which frames, or that it
    ended before a signal."""
    frames: list[int] = []
    overrides = [*case.overrides, folder_override(case.folder)]
    moment = case.moment()
    while len(frames) < case.kills:
        code, output = interrupt(case.folder, overrides, number, moment)
        if code == 0:
            return f"ended before signal {len(frames) + 1}, after those at frames {frames}"
        if code != expected:
            raise RuntimeError(f"ended with {code}, not {expected}:\n{output}")
        frames.append(newest_checkpoint(case.folder))
        overrides, moment = [f"+resume={case.folder}"], case.moment(frames[-1])
    labrl(f"+resume={case.folder}")
    return f"at frame {frames[0]}" if len(frames) == 1 else f"{len(frames)} times, at frames {frames}"


def killed(case: Case) -> str:
    """Interrupt the run by SIGKILL, which no process can handle."""
    return by_signal(case, signal.SIGKILL, -signal.SIGKILL)


def terminated(case: Case) -> str:
    """Interrupt the run by SIGTERM, upon which it saves its state."""
    return by_signal(case, signal.SIGTERM, 143)


def extended(case: Case) -> str:
    """Finish the run with a smaller random budget, then resume it with the whole budget."""
    shorter = int(case.rng.integers(int(0.3 * case.budget), int(0.8 * case.budget)))
    labrl(*case.overrides, f"env.max_frame={shorter}", folder_override(case.folder))
    reached = newest_checkpoint(case.folder)
    labrl(f"+resume={case.folder}", f"env.max_frame={case.budget}")
    return f"at frame {reached}"


WAYS: dict[str, Callable[[Case], str]] = {"kill": killed, "terminate": terminated, "extend": extended}


def applies(overrides: Sequence[str]) -> bool:
    """Return whether the agent supports the environment."""
    try:
        check(resolve(compose(list(overrides))))
    except InputError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=AGENTS)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--kills", type=int, default=1, help="how often a signal interrupts a run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times at which runs are interrupted")
    given, edits = parser.parse_known_args(arguments)
    here = str(Path(__file__).parent)  # subprocesses import some environments from this folder
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    rng = np.random.default_rng(given.seed)
    verdicts: Counter[str] = Counter()
    for agent in given.agents:
        for task in given.tasks:
            overrides = [*small(agent, task, narrow=False), *edits]
            if not applies(overrides):
                print(f"{agent:<13} {task:<9} does not apply", flush=True)
                continue
            with tempfile.TemporaryDirectory() as scratch:
                uninterrupted = Path(scratch) / "uninterrupted"
                labrl(*overrides, folder_override(uninterrupted))
                for way in given.ways:
                    case = Case(overrides, uninterrupted, Path(scratch) / way, rng, given.kills)
                    verdicts[report(f"{agent:<13} {task:<9} {way:<9}", WAYS[way], case)] += 1
    print(f"{verdicts['equal']} of {verdicts.total()} equal to the bit")
    return int(verdicts["equal"] < verdicts.total())


def report(name: str, way: Callable[[Case], str], case: Case) -> str:
    """Run one case and print its line. Returns `equal` or `different`."""
    began = time.monotonic()
    try:
        where = way(case)
        found = differences(case.uninterrupted, case.folder)
        found += recorded_differences(case.uninterrupted, case.folder)
    except (RuntimeError, AssertionError) as error:
        where, found = "", [str(error)]
    verdict = f"DIFFERENT: {', '.join(found[:5])}" if found else "equal"
    print(f"{name} {verdict:<6} {where} ({time.monotonic() - began:.0f} s)", flush=True)
    return "different" if found else "equal"


if __name__ == "__main__":
    sys.exit(main())
