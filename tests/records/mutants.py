"""Check that tests notice faults: make each change of `mutants.yaml` in a copy of the code, and run tests.

    python tests/records/mutants.py [NAME ...] [--jobs 1] [--timeout 600] [--write FILE] [-- PYTEST ARGUMENTS]

The quick files of all mutants run first; then, for those that survived, the other files of their packages.
The exit code is 1 if a mutant that `mutants_results.yaml` records as killed survives, has no result within
the timeout, or is stale because the code no longer contains its old text exactly once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MUTANTS, RECORD = (Path(__file__).with_name(name) for name in ("mutants.yaml", "mutants_results.yaml"))
COPIED = ["src", "configs", "tests", "docs", "benchmarks"]
COPIED += ["pyproject.toml", "constraints.txt", "CHANGELOG.md"]
PYTEST = [sys.executable, "-m", "pytest", "-x", "--tb=no", "--color=no", "-p", "no:cacheprovider"]
BOTH_TIERS = ["-m", "not slow and not matrix"]

running: set[subprocess.Popen[str]] = set()


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file, or nothing if the file does not exist."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_mutants() -> dict[str, dict[str, Any]]:
    """Return the mutants by name, each with its `package`."""
    its = read_yaml(MUTANTS).items()
    return {one["name"]: {**one, "package": package} for package, mutants in its for one in mutants}


def is_stale(mutant: dict[str, Any]) -> bool:
    """Return whether the code does not contain the old text of a mutant exactly once."""
    file = ROOT / mutant["file"]
    return not file.exists() or file.read_text(encoding="utf-8").count(mutant["old"]) != 1


def try_mutant(mutant: dict[str, Any], quick: bool, timeout: float, arguments: list[str]) -> dict[str, Any]:
    """Run the quick tests of a mutant or the other tests of its package, and return the result."""
    if is_stale(mutant):
        return {"outcome": "stale", "seconds": 0}
    first = [file for file in mutant["quick"] if (ROOT / file).exists()]
    tests = first if quick else [f"tests/{mutant['package']}", *(f"--ignore={file}" for file in first)]
    if not tests:  # All quick files have other names now.
        return {"outcome": "survived", "seconds": 0}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="labrl-mutant-", ignore_cleanup_errors=True) as folder:
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, Path(folder, name))
        file = Path(folder, mutant["file"])
        text = file.read_text(encoding="utf-8").replace(mutant["old"], mutant["new"])
        file.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [*PYTEST, *BOTH_TIERS, *arguments, *tests],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}/src", "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.add(process)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"outcome": "timeout", "seconds": round(timeout)}
        finally:
            running.discard(process)
    seconds = round(time.monotonic() - begin)
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if failed:
        return {"outcome": "killed", "by": failed[0], "seconds": seconds}
    if process.returncode not in (0, 5):  # 5: no test is selected
        raise RuntimeError(f"{mutant['name']}: pytest ended with {process.returncode}:\n{output[-2000:]}")
    return {"outcome": "survived", "seconds": seconds}


def main() -> int:
    """Try the mutants that the command line names, or all of them, and return the exit code."""
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    mutants, record = read_mutants(), read_yaml(RECORD)
    parser = argparse.ArgumentParser(usage=str(__doc__).split("\n\n")[1])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(sys.argv[1:end])
    if unknown := set(options.names) - mutants.keys():
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, dict[str, Any]] = {}
    alive, pool = options.names or [*mutants], ThreadPoolExecutor(options.jobs)
    try:
        for quick in (True, False):
            tried = ((mutants[name], quick, options.timeout, sys.argv[end + 1 :]) for name in alive)
            for name, found in zip(alive, pool.map(lambda one: try_mutant(*one), tried), strict=True):
                found["seconds"] += results[name]["seconds"] if name in results else 0
                results[name] = found
                print(name, *found.values(), "" if quick else "(whole package)", flush=True)
                if options.write:
                    text = yaml.safe_dump({**read_yaml(options.write), **results}, width=200)
                    options.write.write_text(text, encoding="utf-8")
            alive = [name for name in alive if results[name]["outcome"] == "survived"]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running.copy():
            os.killpg(process.pid, signal.SIGKILL)
    alive = [name for name, found in results.items() if found["outcome"] != "killed"]
    lost = [name for name in alive if record.get(name, {}).get("outcome") == "killed"]
    print(f"{len(results) - len(alive)} of {len(results)} mutants killed")
    for name in alive:
        print(results[name]["outcome"], name, "(recorded as killed)" if name in lost else "")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
