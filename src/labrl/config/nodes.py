"""Configuration nodes in which another kind of schedule or component replaces an earlier one."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from labrl.config.keys import CONSTANT
from labrl.schedules import expanded


class ConfigNode(DictConfig):
    """A node whose groups with a `kind` replace an earlier group instead of being merged into it.

    OmegaConf would merge both and mix the keys of different schedules. Likewise, a transform, callback or
    optimizer with another `_target_` replaces the earlier one. Schedules in short form are expanded at once,
    so that `agent.lr.start=1e-3` can follow `agent.lr=linear:3e-4:0`, and `start_from: <run folder>` sets
    `start_from.run`. All nodes within a node are of this class, and so are those that are later merged into
    it, because OmegaConf merges by calling the methods of the earlier node.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfigNode:
        """Return a copy of the same class."""
        copied = super().__deepcopy__(memo)
        object.__setattr__(copied, "__class__", type(self))
        assert isinstance(copied, ConfigNode)
        return copied

    def _merge_with(self, *others: Any, **options: Any) -> None:
        for other in others:
            later = OmegaConf.create(other) if isinstance(other, dict) else other
            if self._is_replaced_by(later):
                self._set_value(expanded(OmegaConf.to_container(later, resolve=False)))
            else:
                super()._merge_with(later, **options)

    def _set_item_impl(self, key: Any, value: Any) -> None:
        full_key = str(self._get_full_key(key))
        if full_key == "start_from" and isinstance(value, str | None):
            value = {"run": value}
        if not full_key.startswith(CONSTANT):
            value = expanded(value)
        if type(value) is DictConfig and OmegaConf.get_type(value) is dict:  # made by Hydra for a package
            value = ConfigNode(value, key=key, parent=self, flags=value._metadata.flags)
        super()._set_item_impl(key, value)

    def _wrap_value_and_set(self, key: Any, val: Any, type_hint: Any) -> None:
        if isinstance(val, dict):
            val = ConfigNode(val, key=key, parent=self)
        super()._wrap_value_and_set(key, val, type_hint)

    def _is_replaced_by(self, later: Any) -> bool:
        """Return whether the node `later` replaces this node instead of being merged into it."""
        # The content of a group may also be None or "${...}".
        if not isinstance(later, DictConfig) or not all(
            isinstance(one._content, dict) for one in (self, later)
        ):
            return False
        parent = self._get_parent_container()
        if self._key() == "optimizer" or (
            parent is not None and parent._key() in ("transforms", "callbacks")
        ):
            targets = [node._get_node("_target_") for node in (self, later)]
            return None not in targets and targets[0] != targets[1]
        # In a component, `kind` is an ordinary key, such as `lstm`.
        return all("kind" in node and "_target_" not in node for node in (self, later))
