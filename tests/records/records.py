"""Compare what labrl does now with what it did when a record was made.

    make records ARGS="rows"            rows and weights of a short run of each agent
    make records ARGS="compositions"    resolved configurations of agents, environments, recipes and options
    make records ARGS="refusals"        exit code, and code and key of each mistake, of wrong command lines

The exit code is 1 if something differs, and 2 if there is nothing to compare with. `--record` makes the
record anew. `--against <revision>` compares with that revision of git, not with the record.
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Before PyTorch is imported: sums depend on the number of threads.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
HERE = Path(__file__).parent
SUPPORT = str(HERE.parent / "support")
sys.path.append(SUPPORT)

RECORDS = {
    "rows": HERE / "rows.json",
    "compositions": HERE / "compositions.json.xz",
    "refusals": HERE / "refusals.json",
}
MODULES = {"rows": "rows", "compositions": "composed", "refusals": "refused"}
"""Module of each record: `HERE`, the key of the entries that can be compared here; `take`, which makes them
anew, given the old ones; and `differences`, which returns lines about old and new ones."""


def load(file: Path) -> Any:
    """Return a record; an empty one if there is no such file."""
    if not file.exists():
        return {}
    content = file.read_bytes()
    return json.loads(lzma.decompress(content) if file.suffix == ".xz" else content)


def save(record: Any, file: Path) -> None:
    """Write a record as JSON: a line for each entry of its second level, or compressed."""
    if file.suffix == ".xz":
        file.write_bytes(lzma.compress(json.dumps(record, sort_keys=True).encode(), preset=9))
        return
    parts = []
    for name, entries in record.items():
        lines = ",\n".join(
            f" {json.dumps(key)}: {json.dumps(entry, ensure_ascii=False)}" for key, entry in entries.items()
        )
        parts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
    file.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def record_of(revision: str, name: str) -> Any:
    """Return the record `name` of another revision, made by its own program if it has one."""
    with tempfile.TemporaryDirectory(prefix="labrl-records-") as folder:
        tree, file = Path(folder, "tree"), Path(folder, RECORDS[name].name)
        subprocess.run(
            ["git", "-C", HERE, "worktree", "add", "--quiet", "--detach", tree, revision], check=True
        )
        try:
            own = tree / "tests" / "records" / "records.py"
            program = own if own.exists() else Path(__file__)
            paths = [tree / "src", tree / "tests" / "support"]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
            save(load(RECORDS[name]), file)
            subprocess.run([sys.executable, program, name, "--record", "--to", file], check=True, env=env)
            return load(file)
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", tree], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=RECORDS)
    parser.add_argument("--record", action="store_true", help="make the record anew")
    parser.add_argument("--against", metavar="REVISION", help="compare with this revision of git")
    parser.add_argument("--to", type=Path, metavar="FILE", help="with --record: the file to write")
    args = parser.parse_args()
    module = importlib.import_module(MODULES[args.name])
    file = args.to or RECORDS[args.name]
    before = record_of(args.against, args.name) if args.against else load(file)
    # Commands that are started need the modules of the tests, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), SUPPORT]))
    if args.record:
        save({**before, module.HERE: module.take(before.get(module.HERE, {}))}, file)
        return 0
    if module.HERE not in before:
        print(f"There is no record for {module.HERE}. Compare with a revision: --against <revision>")
        return 2
    found = module.differences(before[module.HERE], module.take(before[module.HERE]))
    print("\n".join(found) or "Nothing differs.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
