"""Searches as one types them: killed at random and gone on with, and on several machines at once."""

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

from labrl.cli import main

COMMAND = ["-m", "hydra/sweeper=optuna", *OVERRIDES]


def start(home: Path, *overrides: str) -> Command:
    """A search in the folder `home`, in a process group of its own."""
    return start_labrl(*COMMAND, f"hydra.sweep.dir={home}", *overrides, cwd=home.parent)


def ended(process: Command) -> str:
    """Return what a process printed; it must have succeeded."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def info(home: Path) -> dict[str, Any]:
    return json.loads((home / "experiment.json").read_text())


def proposals(home: Path) -> list[Any]:
    keys = ("number", "params", "state", "values", "intermediate")
    return [tuple(trial[key] for key in keys) for trial in info(home)["trials"]]


def evaluations(home: Path) -> int:
    """Rows that all trials have written so far: how far the search is, however busy the machine."""
    files = [path for path in home.glob("*/session_*/eval.csv") if path.exists()]
    return sum(len(path.read_text().splitlines()) for path in files)


def kill_after(process: Command, home: Path, rows: int, whole_group: bool) -> None:
    """kill -9, the command alone or its workers too, once `rows` more evaluations are there."""
    until = evaluations(home) + rows
    while evaluations(home) < until and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is None:
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.communicate()


def kill_and_compare(folder: Path, kills: int, total: int) -> None:
    overrides = (
        f"meta.max_trial={total}",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.sampler.n_startup_trials=2",
    )
    whole = [*COMMAND, *overrides, f"hydra.sweep.dir={folder / 'whole'}", "hydra/launcher=basic"]
    assert main(whole) == 0
    broken = folder / "broken"
    chance = random.Random(kills)
    for _ in range(kills):
        kill_after(start(broken, *overrides), broken, chance.randint(1, 6), chance.random() < 0.5)
    ended(start(broken, *overrides))
    assert len(proposals(broken)) == total
    assert proposals(broken) == proposals(folder / "whole")


def test_a_killed_search_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, kills=1, total=3)


@pytest.mark.slow
def test_a_search_killed_five_times_ends_with_its_total_and_the_same_proposals(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, kills=5, total=8)


def two_machines(folder: Path, url: str) -> None:
    """Two commands at once: together the total, and none twice."""
    overrides = (f"hydra.sweeper.storage={url}", "hydra.sweeper.study_name=shared", "meta.max_trial=4")
    homes = [folder / name for name in "ab"]
    launchers = ("hydra/launcher=local", "hydra/launcher=basic")
    machines = zip(homes, launchers, strict=True)
    for process in [start(home, *overrides, "hydra.sweeper.n_jobs=1", one) for home, one in machines]:
        ended(process)
    ran = [path.parent.name for home in homes for path in home.glob("*_ppo_cartpole/run.json")]
    assert sorted(name.partition("_")[0] for name in ran) == ["0", "1", "2", "3"]
    # the one that ended last has seen all four come to their end
    counts = [[trial["state"] in ("complete", "pruned") for trial in info(home)["trials"]] for home in homes]
    assert max(map(sum, counts)) == 4
    assert max(map(len, counts)) == 4


@pytest.mark.slow
def test_two_machines_with_one_journal_file_share_the_trials(tmp_path: Path) -> None:
    two_machines(tmp_path, f"journal:///{tmp_path / 'study.journal'}")


def machines_with_stubs(folder: Path, url: str, total: int = 24) -> None:
    """Two machines at once whose trials take 10 ms, so that they meet at the storage all the time."""
    arguments = ("benchmarks.scheduling", "machine", url, str(total), "3")
    homes = [folder / name for name in "ab"]
    machines = [start_module(*arguments, str(home), cwd=Path(__file__).parents[1]) for home in homes]
    for machine in machines:
        ended(machine)
    ran = [line.split()[0] for home in homes for line in (home / "ran").read_text().splitlines()]
    assert sorted(map(int, ran)) == list(range(total))
    assert max(len(info(home)["trials"]) for home in homes) == total


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_machines_give_each_of_many_short_trials_once(tmp_path: Path, kind: str) -> None:
    machines_with_stubs(tmp_path, f"{kind}:///{tmp_path / 'study'}")


def postgresql_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, as on Debian or on the path."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((place for place in reversed(places) if (place / "initdb").exists()), None)


@pytest.fixture
def postgresql(tmp_path: Path) -> Iterator[str]:
    """A server on loopback for one test, as an unprivileged user; its URL."""
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    pytest.importorskip("psycopg", reason='no driver here: pip install "labrl[search]"')
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    home = Path("/tmp") / f"labrl_postgresql_{os.getpid()}"  # pytest's own folder is nobody else's to read
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
            done = subprocess.run(
                [programs / command[0], *command[1:]],
                user=user,
                cwd=home,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            if done.returncode:
                pytest.skip(f"PostgreSQL does not start here: {done.stderr.strip()[-200:]}")
        yield f"postgresql://labrl@127.0.0.1:{port}/postgres"
    finally:
        stop = [programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"]
        subprocess.run(stop, user=user, cwd="/", capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def test_two_machines_with_one_postgresql_share_the_trials(tmp_path: Path, postgresql: str) -> None:
    two_machines(tmp_path, postgresql)


def test_two_machines_with_one_postgresql_give_each_of_many_short_trials_once(
    tmp_path: Path, postgresql: str
) -> None:
    machines_with_stubs(tmp_path, postgresql)
