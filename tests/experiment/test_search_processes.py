"""Tests of searches in processes of their own: killed and resumed, and run on several machines at once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Command, start_labrl, start_module
from search_cases import OVERRIDES
from trial_processes import wait_for as wait_until

from labrl.cli import main

pytestmark = pytest.mark.extended

COMMAND = ["-m", "hydra/sweeper=optuna", *OVERRIDES]


def start(home: Path, *overrides: str) -> Command:
    """Start a search in the folder `home`, in a process group of its own."""
    return start_labrl(*COMMAND, f"hydra.sweep.dir={home}", *overrides, cwd=home.parent)


def wait_for(process: Command) -> str:
    """Wait until the process ends, check that it succeeded, and return its output."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def info(home: Path) -> dict[str, Any]:
    return json.loads((home / "experiment.json").read_text())


def proposals(home: Path) -> list[Any]:
    """Return number, parameters, state, values and reported values of each trial of the search."""
    keys = ("number", "params", "state", "values", "intermediate")
    return [tuple(trial[key] for key in keys) for trial in info(home)["trials"]]


def evaluations(home: Path) -> int:
    """Count the evaluation rows of all trials, which measure progress independently of the machine's load."""
    files = [path for path in home.glob("*/session_*/eval.csv") if path.exists()]
    return sum(len(path.read_text().splitlines()) for path in files)


def kill_after(process: Command, home: Path, rows: int, whole_group: bool) -> None:
    """Kill the command with SIGKILL, alone or with its workers, after `rows` more evaluations."""
    until = evaluations(home) + rows
    while evaluations(home) < until and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is None:
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.communicate()


def test_interrupted_search_prints_its_trials_and_how_to_resume(tmp_path: Path) -> None:
    """Regression test: after Ctrl-C, nothing said what had been done."""
    home = tmp_path / "search"
    process = start(home, "meta.max_trial=200", "hydra.sweeper.n_jobs=1", "search/pruner=none")
    marker = home / "experiment.json"
    wait_until(lambda: marker.exists() and '"complete"' in marker.read_text(), process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    after = output.partition("final return")[2]
    ended = [trial for trial in info(home)["trials"] if trial["state"] == "complete"]
    rows = [line.split() for line in after.splitlines()]
    shown = {int(row[0]): row for row in rows if len(row) > 2 and row[0].isdigit() and row[1] == "finished"}
    assert set(shown) == {trial["number"] for trial in ended}
    assert all(f"agent.epochs={trial['params']['agent.epochs']}" in shown[trial["number"]] for trial in ended)
    assert f"labrl -m +resume={home}" in after


@pytest.mark.parametrize(("kills", "total"), [(1, 3), pytest.param(5, 8, marks=pytest.mark.slow)])
def test_killed_and_resumed_search_equals_an_uninterrupted_one(
    tmp_path: Path, kills: int, total: int
) -> None:
    overrides = [f"meta.max_trial={total}", "hydra.sweeper.n_jobs=1"]
    overrides += ["hydra.sweeper.sampler.n_startup_trials=2"]
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    one_by_one = "hydra.launcher.n_jobs=1"
    assert main([*COMMAND, *overrides, one_by_one, f"hydra.sweep.dir={uninterrupted}"]) == 0
    chance = random.Random(kills)
    for _ in range(kills):
        kill_after(start(killed, *overrides), killed, chance.randint(1, 6), chance.random() < 0.5)
    wait_for(start(killed, *overrides))
    assert len(proposals(killed)) == total
    assert proposals(killed) == proposals(uninterrupted)


@pytest.mark.slow
def test_two_commands_share_the_trials_through_a_journal_file(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path / 'study.journal'}"
    overrides = (f"hydra.sweeper.storage={url}", "hydra.sweeper.study_name=shared", "meta.max_trial=4")
    homes = [tmp_path / name for name in "ab"]
    launchers = ("hydra/launcher=local", "hydra.launcher.n_jobs=1")
    machines = zip(homes, launchers, strict=True)
    for process in [start(home, *overrides, "hydra.sweeper.n_jobs=1", one) for home, one in machines]:
        wait_for(process)
    ran = [path.parent.name for home in homes for path in home.glob("*_ppo_cartpole/run.json")]
    numbers = sorted(int(name.partition("_")[0]) for name in ran)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) in (4, 5), "each further machine may run one more"
    # The command that ended last has seen the end of all trials.
    counts = [[trial["state"] in ("complete", "pruned") for trial in info(home)["trials"]] for home in homes]
    assert max(map(sum, counts)) == max(map(len, counts)) == len(numbers)


@pytest.fixture
def postgresql() -> Iterator[str]:
    """Run a PostgreSQL server on the loopback interface as an unprivileged user, and yield its URL."""
    path = [os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]  # as on Debian
    programs = shutil.which("initdb", path=os.pathsep.join(path))
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="needs the extra search")
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    home = Path("/tmp") / f"labrl_postgresql_{os.getpid()}"  # no other user can read pytest's own folder
    home.mkdir()
    if user:
        shutil.chown(home, user)
    data, log = home / "data", home / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"-h 127.0.0.1 -p {port} -k {home} -F"
    try:
        for command in (
            ["initdb", "-D", data, "-A", "trust", "-U", "labrl", "--no-sync"],
            ["pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start"],
        ):
            program = Path(programs).with_name(command[0])
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            done = subprocess.run([program, *command[1:]], user=user, cwd=home, **quiet)
            if done.returncode:
                pytest.skip(f"PostgreSQL does not start here: {done.stderr.decode().strip()[-200:]}")
        yield f"postgresql://labrl@127.0.0.1:{port}/postgres"
    finally:
        stop = [Path(programs).with_name("pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop"]
        subprocess.run(stop, user=user, cwd="/", capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("kind", ["journal", "sqlite", "postgresql"])
def test_two_machines_run_each_of_many_short_trials_once(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Trials of 10 ms make the machines contend for the storage."""
    server = kind == "postgresql"
    url = request.getfixturevalue("postgresql") if server else f"{kind}:///{tmp_path / 'study'}"
    arguments, total = ("benchmarks.scheduling", "machine", url, "24", "3"), 24
    homes = [tmp_path / name for name in "ab"]
    machines = [start_module(*arguments, str(home), cwd=Path(__file__).parents[2]) for home in homes]
    for machine in machines:
        wait_for(machine)
    ran = [line.split()[0] for home in homes for line in (home / "ran").read_text().splitlines()]
    assert sorted(map(int, ran)) == list(range(len(ran)))
    assert len(ran) in (total, total + 1), "each further machine may run one more"
    assert max(len(info(home)["trials"]) for home in homes) == len(ran)
