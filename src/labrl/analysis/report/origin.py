"""Where a run comes from, and each time that it went on."""

from __future__ import annotations

from typing import Any

from labrl.analysis.groups import told
from labrl.analysis.report.formats import UNKNOWN, moment, typed
from labrl.analysis.report.sections import Block, Command, Section, Table
from labrl.analysis.runs import Run

IMPORTANT = ("labrl", "torch", "gymnasium", "ale-py", "numpy", "hydra-core")
"""Packages whose versions are told first."""


def origin_section(run: Run) -> Section:
    """Code, machine, packages and command of a run, and its resumes."""
    facts = run.provenance
    blocks: list[Block] = [Table(["", ""], [[name, text] for name, text in _facts(run) if text])]
    if command := typed(run.command):
        blocks.append(Command(command, "What was typed:"))
    packages = facts.get("packages")
    if isinstance(packages, dict) and packages:
        rows = [[str(name), str(version)] for name, version in packages.items()]
        blocks.append(Table(["package", "version"], rows, caption=f"{len(rows)} packages", folded=True))
    resumes = run.info.get("resumes") or []
    if resumes:
        columns = ["resumed", "from frame", "what was changed", "what differed", "command"]
        blocks.append(Table(columns, [_resume(entry) for entry in resumes], caption="Resumed"))
    return Section("origin", "Origin", blocks)


def _facts(run: Run) -> list[tuple[str, str]]:
    facts, machine = run.provenance, run.provenance.get("machine") or {}
    packages = facts.get("packages") or {}
    versions = ", ".join(f"{name} {packages[name]}" for name in IMPORTANT if name in packages)
    memory = machine.get("memory")
    return [
        ("run folder", str(run.path)),
        ("begun", moment(run.created)),
        ("last change", moment(run.info.get("updated", ""))),
        ("seed", told(facts.get("seed", run.seed))),
        *((f"code of {name.replace('_', ' ')}", _code(git)) for name, git in _dict(facts.get("git")).items()),
        ("Python", str(_dict(facts.get("python")).get("version", ""))),
        ("packages", versions),
        ("machine", ", ".join(str(machine[key]) for key in ("name", "system") if machine.get(key))),
        ("processor", _processor(machine)),
        ("memory", f"{memory / 2**30:.0f} GiB" if isinstance(memory, int | float) else ""),
        ("graphics", ", ".join(map(str, machine.get("gpus") or []))),
        ("repeats", str(run.info.get("rerun_of", ""))),
    ]


def _processor(machine: dict[str, Any]) -> str:
    parts = [str(machine.get("processor") or "")]
    if machine.get("cores"):
        parts.append(f"{machine.get('cores_usable', machine['cores'])} of {machine['cores']} cores")
    return ", ".join(part for part in parts if part)


def _code(git: Any) -> str:
    facts = _dict(git)
    told = f"commit {facts.get('commit') or UNKNOWN}"
    if facts.get("dirty"):
        told += f", with uncommitted changes ({facts.get('diff', 'not kept')})"
    return told


def _resume(entry: Any) -> list[str]:
    facts = _dict(entry)
    frames = _dict(facts.get("frames"))
    alone = len(frames) == 1
    where = [f"{frame:,}" if alone else f"session {index}: {frame:,}" for index, frame in frames.items()]
    changes = [
        f"{change.get('key')}: {told(change.get('then'))} → {told(change.get('now'))}"
        for change in map(_dict, facts.get("changed") or [])
    ]
    if facts.get("forced"):
        changes.append("forced")
    differed = [str(line) for line in facts.get("differs") or []]
    return [
        moment(facts.get("time")),
        ", ".join(where),
        "; ".join(changes),
        "; ".join(differed),
        typed(facts.get("command")),
    ]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
