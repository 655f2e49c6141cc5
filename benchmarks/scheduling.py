"""Measure the overhead of a search: 1,000 trials of 10 ms on four machines with one storage.

The four are processes on this machine, each of which runs one trial at a time. A trial is a stub, so all
other time is spent in the scheduler, the study and the storage (PostgreSQL if it is installed, else SQLite).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.alone import Measured, alone, answer
from benchmarks.report import Ratio, Report, Row

TRIALS, MACHINES, SECONDS = 1000, 4, 0.010


def run(repeats: int, quick: bool) -> Report:
    """Measure the milliseconds between two trials of a machine, at the start and at the end of the search."""
    trials = 40 if quick else TRIALS
    rounds = []
    for index in range(repeats):
        print(f"Search, round {index + 1} of {repeats}", file=sys.stderr, flush=True)
        rounds.append(alone("benchmarks.scheduling", trials=trials, seed=index))
    hundred = trials // 10
    rows = [
        Row(f"first {hundred} trials, overhead per trial", [one["first"] for one in rounds], "ms"),
        Row(f"last {hundred} trials, overhead per trial", [one["last"] for one in rounds], "ms"),
        Row(f"all {trials:,} trials on {MACHINES} machines", [one["wall"] for one in rounds], "s"),
    ]
    last, first = rows[1].values, rows[0].values
    growth = Ratio.paired("overhead of the last trials / of the first", last, first)
    title = f"A search of {trials:,} trials of {SECONDS * 1000:.0f} ms on {rounds[0]['storage']}"
    return Report("scheduling", title, rows, [growth])


def measure(trials: int, seed: int) -> Measured:
    """Run a search. Raises RuntimeError unless every trial ran exactly once."""
    home = Path(tempfile.mkdtemp(prefix="labrl-bench-"))
    try:
        with _storage(home) as (kind, url):
            began = time.monotonic()
            command = [sys.executable, "-m", "benchmarks.scheduling", "machine", url, str(trials), str(seed)]
            machines = [
                subprocess.Popen([*command, str(home / f"machine_{index}")], stdout=subprocess.DEVNULL)
                for index in range(MACHINES)
            ]
            codes = [machine.wait() for machine in machines]
            wall = time.monotonic() - began
        ran = sorted(
            [int(part) if part.isdigit() else float(part) for part in line.split()]
            for log in home.glob("machine_*/ran")
            for line in log.read_text().splitlines()
        )
        if any(codes) or [number for number, *_ in ran] != list(range(len(ran))) or len(ran) < trials:
            raise RuntimeError(f"machines ended with {codes}, {len(ran)} of {trials} trials were started")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    gaps = [1000 * gap for _, gap in ran if gap >= 0]
    tenth = len(gaps) // 10
    first, last = statistics.median(gaps[:tenth]), statistics.median(gaps[-tenth:])
    return {"first": first, "last": last, "wall": wall, "storage": kind}


@dataclasses.dataclass
class Stub:
    """A replacement for the planner of trials, whose trials are planned in no time and carried out below."""

    log: Path
    """File of the number of each trial and the seconds since the previous one of its process ended."""

    def plan(self, trial: Any, shown: bool) -> dict[str, Any]:
        """Return the order that trains a trial."""
        folder = self.log.with_name(trial.folder)
        return {"folder": str(folder), "number": trial.number, "log": str(self.log)}


_ended: float | None = None


def carry_out(order: Mapping[str, Any]) -> tuple[int, None]:
    """Write one evaluation row after 10 ms, in the process of a worker."""
    from labrl.run.session import RunSession
    from labrl.run.tables import CsvTable

    global _ended
    gap = -1.0 if _ended is None else time.monotonic() - _ended
    with open(order["log"], "a", encoding="utf-8") as log:
        log.write(f"{order['number']} {gap}\n")
    time.sleep(SECONDS)
    session = Path(order["folder"]) / "session_0"
    session.mkdir(parents=True)
    row = {"frame": 1000, "return_mean": float(order["number"] % 37), "wall": SECONDS}
    CsvTable(RunSession(session).eval_csv).append(row)
    (session.parent / "run.json").write_text('{"status": "finished"}')
    _ended = time.monotonic()
    return 0, None


def machine(url: str, trials: int, seed: int, home: Path) -> int:
    """Take part in the search with the folder `home`. Return the exit code."""
    from labrl.experiment.local import WorkersLauncher
    from labrl.experiment.machine import Need
    from labrl.experiment.search.objective import Objective
    from labrl.experiment.search.options import NoPruner, SearchConfig, Settings
    from labrl.experiment.search.queue import SearchQueue
    from labrl.experiment.search.space import Space
    from labrl.experiment.search.study import Study
    from labrl.run.experiment import Experiment

    overrides = [
        "agent.lr=tag(log, interval(1e-5, 1e-2))",
        "agent.epochs=range(1, 9)",
        "agent.gamma=choice(0.9, 0.99)",
    ]
    settings = Settings(
        sampler={"_target_": "optuna.samplers.TPESampler"},
        direction=None,
        storage=url,
        study_name="scheduling",
        n_trials=trials,
        n_jobs=1,
        max_failure_rate=0,
        params=None,
    )
    options = SearchConfig(
        space={},
        objective="final_return",
        pruner=NoPruner(kind="none"),
        confirm=None,
        max_failure_rate=0,
        retries=0,
    )
    space = Space.of({}, overrides, {"agent": "ppo", "env": "cartpole"})
    experiment = Experiment.begin(home, "search", [])
    with experiment.lock():
        objective = Objective("final_return")
        study = Study(home, settings, options.pruner, space, objective, budget=1000, every=100, seed=seed)
        queue = SearchQueue(study, experiment, str, Need(1, None), options)
        launcher = WorkersLauncher()
        launcher.work = "benchmarks.scheduling"
        stub: Any = Stub(home / "ran")
        launcher.planner, launcher.cores = stub, 1
        with launcher, queue.interruption:
            queue.run(launcher)
        return 0


@contextlib.contextmanager
def _storage(home: Path) -> Iterator[tuple[str, str]]:
    """Start PostgreSQL on loopback if it is installed. Yield the kind of the storage and its address."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        yield "SQLite", f"sqlite:///{home}/study.db"
        return
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    place = Path(tempfile.mkdtemp(prefix="labrl-bench-", dir="/tmp"))
    data = place / "data"
    if user:
        shutil.chown(place, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"-h 127.0.0.1 -p {port} -k {place}"

    def call(program: str, *overrides: str | Path) -> None:
        path = places[-1] / program
        subprocess.run([path, *overrides], user=user, cwd=place, check=True, stdout=subprocess.DEVNULL)

    try:
        call("initdb", "-D", data, "-A", "trust", "-U", "labrl")
        call("pg_ctl", "-D", data, "-l", place / "log", "-o", options, "-w", "start")
        yield "PostgreSQL", f"postgresql://labrl@127.0.0.1:{port}/postgres"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1] == "machine":
        address, count, number, folder = sys.argv[2:]
        sys.exit(machine(address, int(count), int(number), Path(folder)))
    answer(measure)
