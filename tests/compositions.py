"""Composed configurations, remembered by a test process: Hydra takes a tenth of a second to merge one.

The files of a configuration follow from the groups that are chosen (`agent=ppo env=pong`). Tests choose the
same hundred or so thousands of times. What Hydra merges from these files is remembered; values
(`agent.lr=1e-3`) are set in a copy each time, by Hydra. Nothing is remembered where a source of files could
change: with a --config-dir, a hydra.searchpath or a labrl elsewhere.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Hashable
from typing import Any

import hydra._internal.defaults_list as defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore

from labrl.config import config_folder

FIXED = {f"file://{config_folder()}", "pkg://hydra.conf", "generated://labrl", "structured://"}
"""Sources that are the same throughout a test process, once what they register is."""


def _sources(repo: Any) -> Hashable | None:
    """Return what the files of a repository depend on; None where they may change."""
    paths = tuple(f"{source.scheme()}://{source.path}" for source in repo.get_sources())
    return (paths, _registered(ConfigStore.instance().repo)) if FIXED.issuperset(paths) else None


def _registered(nodes: dict[str, Any]) -> tuple[Hashable, ...]:
    """Return which structured configurations are known: plugins bring theirs when they are loaded."""
    return tuple((name, _registered(n) if isinstance(n, dict) else id(n)) for name, n in nodes.items())


def remember() -> None:
    """Let Hydra remember in this process which files it read and merged, and to what."""
    ConfigRepository.load_config = _remembering(  # type: ignore[method-assign]
        ConfigRepository.load_config, lambda repo, config_path: (_sources(repo), config_path)
    )
    ConfigLoaderImpl._compose_config_from_defaults_list = _remembering(  # type: ignore[method-assign]
        ConfigLoaderImpl._compose_config_from_defaults_list,
        lambda _, defaults, repo: (
            _sources(repo),
            *((d.config_path, d.package, d.primary) for d in defaults),
        ),
    )
    defaults_list._create_defaults_list = _remembering_choices(defaults_list._create_defaults_list)


def _remembering(
    function: Callable[..., Any], key_of: Callable[..., tuple[Hashable, ...]]
) -> Callable[..., Any]:
    """Return `function` that gives a copy of its earlier result; key_of: of its arguments, sources first."""
    known: dict[Hashable, bytes] = {}

    @functools.wraps(function)
    def remembered(*arguments: Any, **named: Any) -> Any:
        key = key_of(*arguments, **named)
        if key[0] is None:
            return function(*arguments, **named)
        if key not in known:
            known[key] = pickle.dumps(function(*arguments, **named))
        return pickle.loads(known[key])

    return remembered


def _remembering_choices(find: Callable[..., Any]) -> Callable[..., Any]:
    """Return `find`, which gives a list of files and notes in `overrides` what was chosen."""
    known: dict[Hashable, Any] = {}

    @functools.wraps(find)
    def found(repo: Any, config_name: Any, overrides: Any, **options: Any) -> Any:
        sources = _sources(repo)
        if sources is None:
            return find(repo, config_name, overrides, **options)
        before = {name: value for name, value in vars(overrides).items() if name != "config_overrides"}
        key = (sources, config_name, tuple(options.items()), pickle.dumps(before))
        if key not in known:
            files = find(repo, config_name, overrides, **options)
            known[key] = files, pickle.dumps({name: vars(overrides)[name] for name in before})
        files, choices = known[key]
        vars(overrides).update(pickle.loads(choices))
        return files

    return found
