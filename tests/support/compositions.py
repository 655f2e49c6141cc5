"""Compositions, which take Hydra a sixth of a second each, remembered by all processes of one test run.

Values (`agent.lr=1e-3`) are set in copies. Folders of users, whose files may change, are always read. Each
process also remembers what new choices have in common: parsed texts, files, and the merged files of Hydra.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import omegaconf
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import grammar_parser
from shared_folder import FOLDER

from labrl.config import config_folder

FIXED = ("pkg", "structured")
"""Schemes of sources that are part of a package. The packages that tests search are labrl's and Hydra's."""

VALUE = re.compile(r"(?!hydra\.).+\..+|seed|start_from|hydra\.(run\.dir|sweep\.dir|sweep\.subdir)")


def remember() -> None:
    """Let Hydra compose each choice of groups only once."""
    _remember_parts()
    compose, folder = ConfigLoaderImpl._load_configuration, Path(os.environ[FOLDER])

    def remembered(loader: Any, config_name: str, overrides: list[str], run_mode: Any, **options: Any) -> Any:
        if config_name != "config" or not _fixed(loader.repository) or "hydra.searchpath" in str(overrides):
            return compose(loader, config_name, overrides, run_mode, **options)
        parsed = options.pop("parsed_overrides", None) or OverridesParser.create(loader).parse_overrides(
            overrides
        )
        values = [one for one in parsed if VALUE.fullmatch(one.key_or_group) and not one.is_sweep_override()]
        choices = [one for one in parsed if one not in values]
        sources = [(one.scheme(), one.path) for one in loader.repository.get_sources()]
        key = repr((sources, config_name, run_mode, options, [one.input_line for one in choices]))
        file = folder / hashlib.sha256(key.encode()).hexdigest()
        if not file.exists():
            cfg = compose(loader, config_name, overrides, run_mode, parsed_overrides=choices, **options)
            unfinished = file.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(pickle.dumps(cfg))
            unfinished.replace(file)
        cfg = pickle.loads(file.read_bytes())
        loader._apply_overrides_to_config(values, cfg)
        cfg.hydra.overrides.hydra = [one.input_line for one in parsed if one.is_hydra_override()]
        cfg.hydra.overrides.task = [one.input_line for one in parsed if not one.is_hydra_override()]
        cfg.hydra.runtime.cwd = os.getcwd()
        return cfg

    ConfigLoaderImpl._load_configuration = remembered  # type: ignore[method-assign]


def _remember_parts() -> None:
    """Let Hydra parse each text, read each file and merge its own files only once, and copy by pickle."""
    for module in (omegaconf.base, omegaconf._utils):
        module.parse = functools.cache(grammar_parser.parse)  # type: ignore[attr-defined]
    parse, load = _pickled(OverridesParser.parse_rule), _pickled(ConfigRepository.load_config)

    def parse_once(parser: OverridesParser, text: str, rule: str) -> Any:
        drawn = "shuffle(" in text
        return parse(None if drawn else (text, rule), parser, text, rule)

    def load_once(repo: ConfigRepository, config_path: str) -> Any:
        fixed = _fixed(repo) and config_path != "labrl_recorded" and repo.config_exists(config_path)
        return load(config_path if fixed else None, repo, config_path)

    OverridesParser.parse_rule = parse_once  # type: ignore[method-assign]
    ConfigRepository.load_config = load_once  # type: ignore[method-assign]
    ConfigLoaderImpl._compose_config_from_defaults_list = _merging_on(  # type: ignore[method-assign]
        ConfigLoaderImpl._compose_config_from_defaults_list
    )
    for container in (omegaconf.DictConfig, omegaconf.ListConfig):
        container.__deepcopy__ = _copying(container.__deepcopy__)  # type: ignore[method-assign]


def _fixed(repo: Any) -> bool:
    """Return whether all files that Hydra finds are those of packages and of labrl's groups."""
    sources = [one for one in repo.get_sources() if one.scheme() not in FIXED]
    return all(one.path == str(config_folder()) for one in sources)


def _pickled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with a key as a further first argument; None is a key that is not remembered."""
    known: dict[Any, bytes] = {}

    def found(key: Any, *arguments: Any) -> Any:
        if key is None:
            return function(*arguments)
        if key not in known:
            known[key] = pickle.dumps(function(*arguments))
        return pickle.loads(known[key])

    return found


def _merging_on(merge: Callable[..., Any]) -> Callable[..., Any]:
    """Return `merge`, which merges the files that stand before the chosen ones only once."""
    merge_once = _pickled(merge)

    def merged(loader: Any, defaults: list[Any], repo: Any) -> Any:
        if not _fixed(repo):
            return merge(loader, defaults, repo)
        first = next((n for n, one in enumerate(defaults) if one.primary), 0)
        key = tuple((one.config_path, one.package) for one in defaults[:first])
        start = SimpleNamespace(config=merge_once(key, loader, defaults[:first], repo))
        load = loader._load_single_config
        loader._load_single_config = lambda default, repo: (
            start if default is start else load(default=default, repo=repo)
        )
        try:
            return merge(loader, [start, *defaults[first:]], repo)
        finally:
            del loader._load_single_config

    return merged


def _copying(copy: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method `__deepcopy__` of whole configurations that takes the place of OmegaConf's `copy`."""

    def copied(node: Any, memo: dict[int, Any]) -> Any:
        if node._get_parent() is not None:
            return copy(node, memo)
        try:
            return pickle.loads(pickle.dumps(node))
        except (pickle.PicklingError, AttributeError, TypeError):  # for example an object of a local class
            return copy(node, memo)

    return copied
