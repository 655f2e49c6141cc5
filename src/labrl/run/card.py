"""A published policy: the folder of `labrl-export --card`, as the Hugging Face hub expects it.

`model.safetensors` contains the weights of the acting networks and the statistics of the transforms, each
named by its path in the state, with slashes. `config.json` contains the rest: the configuration and the
origin of the weights.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labrl.errors import DamagedFileError, InputError
from labrl.run.atomic import write_json
from labrl.run.checkpoint import Checkpoint
from labrl.run.signature import signed

# Methods import PyTorch late: a wrong override must not wait for it.

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT_VERSION = 1


class Card:
    """A published policy, which `labrl.load` treats like a run with one session."""

    config_dir = None
    """The folder with the user's own configuration groups: always None for a published policy."""

    def __init__(self, path: Path) -> None:
        """Open the published policy in folder `path`. Raises DamagedFileError if its `config.json` is
        damaged."""
        check_installed(str(path))
        self.path = path
        try:
            self._facts = json.loads((path / CONFIG).read_text(encoding="utf-8"))
            self.config: dict[str, Any] = self._facts["config"]
            self.index, self._frame = int(self._facts["session"]), int(self._facts["frame"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedFileError.about(path / CONFIG, f"cannot be read: {error!r}") from error

    def read_provenance(self) -> dict[str, Any]:
        """Return the content of `config.json`, which contains the configuration under `config`."""
        return dict(self._facts)

    def choose_session(self, wanted: int | None, option: str = "session={}") -> Card:
        """Return the policy itself. Raises InputError unless `wanted` is None, 0 or the index of its
        session."""
        if wanted not in (None, 0, self.index):
            raise InputError.not_found(option.format(wanted), f"{self.path} has only session {self.index}")
        return self

    def choose_checkpoint(self, wanted: str, option: str = "checkpoint={}") -> tuple[Checkpoint, str]:
        """Return the stored checkpoint and its kind.

        Raises InputError if a different frame is requested, and DamagedFileError if the file cannot be read.
        """
        if wanted not in ("best", "latest", "default", str(self._frame)):
            raise InputError.not_found(option.format(wanted), f"{self.path} has only frame {self._frame}")
        from safetensors.torch import load_file
        from torch import Tensor

        try:
            leaves = {**self._facts["state"], **load_file(self.path / WEIGHTS)}
        except Exception as error:  # the library raises many types
            raise DamagedFileError.about(self.path / WEIGHTS, f"cannot be read: {error}") from error
        state: dict[str, Any] = {"modules": {}, "transforms": {}, "clock": {}}
        for place, leaf in leaves.items():
            node = state
            *folders, name = place.split("/")
            for folder in folders:
                node = node.setdefault(folder, {})
            is_array = folders[0] != "modules" and isinstance(leaf, Tensor)
            node[name] = leaf.numpy() if is_array else leaf
        return Checkpoint(self.path, self._frame, {"acting": state}), "best"


def is_card(path: Path) -> bool:
    """Return whether `path` is the folder of a published policy."""
    return (path / WEIGHTS).is_file() and (path / CONFIG).is_file()


def check_installed(setting: str) -> None:
    """Raise InputError if safetensors is not installed. setting: the option or folder that requires it."""
    if importlib.util.find_spec("safetensors") is None:
        raise InputError.not_installed(setting, "safetensors", "share")


def write_card_files(path: Path, state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write `model.safetensors` and `config.json` of a published policy to the folder `path`.

    state: result of `acting_state`; facts: `config`, `session`, `frame` and further metadata on the origin of
    the weights.
    """
    import torch
    from numpy import ndarray
    from safetensors.torch import save

    tensors, plain = {}, {}
    for place, leaf in _leaves(state, ""):
        if isinstance(leaf, torch.Tensor | ndarray):
            tensors[place] = torch.as_tensor(leaf).contiguous()
        else:
            plain[place] = leaf
    weights = save(tensors, metadata={"format": "pt", "library": "labrl"})
    # Unlike save_file, which makes a private file, this follows the user's umask.
    (path / WEIGHTS).write_bytes(weights)
    # Signed, so that its user can load it as the run itself.
    write_json(path / CONFIG, signed({"format_version": FORMAT_VERSION, **facts, "state": plain}))


def _leaves(node: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with their places, such as `modules/network/policy_head.0.bias`."""
    if not isinstance(node, Mapping):
        yield place, node
        return
    for name, inner in node.items():
        yield from _leaves(inner, f"{place}/{name}" if place else str(name))
