"""How Hydra composes values that a `kind` tells apart, such as schedules.

OmegaConf merges a group of keys into the one before it. For a group with a `kind` that would mix the keys of
two shapes, so such a group replaces the one before it, in files and on the command line; and so does a
transform or a callback with another `_target_`. A schedule in short form gets its keys at once, so that
`agent.lr.start=1e-3` can follow `agent.lr=linear:3e-4:0`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer

from labrl.schedules import written_out

CONSTANT = ("env.", "hydra.", "meta.", "search.", "wandb.")
"""Beginnings of keys whose values are no schedules, whatever they look like: `wandb.name=linear:1:0`."""


@contextmanager
def kinds_replace() -> Iterator[None]:
    """Let OmegaConf compose groups with a `kind` as labrl means them.

    Hydra lets nobody else merge, so this replaces the two methods of OmegaConf by which all composition goes.
    """
    merge, set_item = BaseContainer._map_merge, BaseContainer._set_item_impl

    def merge_or_replace(dest: BaseContainer, src: BaseContainer, *options: Any, **named: Any) -> None:
        if (_has_kind(dest) and _has_kind(src)) or _is_another_part(dest, src):
            dest._set_value(written_out(OmegaConf.to_container(src, resolve=False)))
        else:
            merge(dest, src, *options, **named)

    def set_written_out(self: BaseContainer, key: Any, value: Any) -> None:
        may_change = isinstance(self, DictConfig) and not str(self._get_full_key(key)).startswith(CONSTANT)
        set_item(self, key, written_out(value) if may_change else value)

    BaseContainer._map_merge = staticmethod(merge_or_replace)  # type: ignore[method-assign]
    BaseContainer._set_item_impl = set_written_out  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseContainer._map_merge = staticmethod(merge)  # type: ignore[method-assign]
        BaseContainer._set_item_impl = set_item  # type: ignore[method-assign]


def _has_kind(node: BaseContainer) -> bool:
    """Whether `node` is a group with a `kind`. That of a component, such as `lstm`, is one key of many."""
    special = node._is_none() or node._is_missing() or node._is_interpolation()
    return not special and isinstance(node, DictConfig) and "kind" in node and "_target_" not in node


def _is_another_part(dest: BaseContainer, src: BaseContainer) -> bool:
    """Whether `src` puts a part of another class in the place of a transform or a callback."""
    parent = dest._get_parent_container()
    place = parent._key() if parent is not None else None
    if place not in ("transforms", "callbacks") or dest._is_none() or src._is_none():
        return False
    both = isinstance(dest, DictConfig) and isinstance(src, DictConfig)
    targets = [node._get_node("_target_") for node in (dest, src)] if both else [None]
    return None not in targets and targets[0] != targets[1]
