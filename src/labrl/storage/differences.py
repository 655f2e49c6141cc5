"""What of two provenances can make the same run come out differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

DECISIVE = ("labrl", "torch", "numpy", "gymnasium", "ale-py")
"""Packages whose versions decide the numbers of a run."""


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of two provenances can make the same run come out differently: code, packages, processor."""
    return [
        *_code_differences(then["git"], now["git"]),
        *_value_differences("Python", then["python"]["version"], now["python"]["version"]),
        *_package_differences(then["packages"], now["packages"]),
        *_value_differences("processor", then["machine"].get("processor"), now["machine"].get("processor")),
        *_value_differences("GPU", then["machine"].get("gpus"), now["machine"].get("gpus")),
    ]


def _code_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(then.keys() & now.keys()):
        commits = [str(facts[name].get("commit"))[:10] for facts in (then, now)]
        yield from _value_differences(f"code of {name}", *commits)
        changes = [facts[name].get("diff_sha256") for facts in (then, now)]
        if commits[0] == commits[1] and changes[0] != changes[1]:
            yield f"uncommitted changes in {now[name]['root']}"


def _package_differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    told = [name for name in changed if name.lower() in DECISIVE]
    for name in told:
        yield from _value_differences(name, then.get(name), now.get(name))
    if len(changed) > len(told):
        yield f"{len(changed) - len(told)} other packages"


def _value_differences(name: str, then: Any, now: Any) -> list[str]:
    return [] if then == now else [f"{name} {then} -> {now}"]
