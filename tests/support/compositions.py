"""Composed configurations, remembered by the test processes: Hydra takes a fifth of a second to merge one.

The files of a configuration follow from the groups that are chosen (`agent=ppo env=pong`). Tests choose the
same hundreds thousands of times. What Hydra composes from these groups is remembered, and how it parses an
override; values (`agent.lr=1e-3`) are set in a copy each time, by Hydra. What is composed with a --config-dir
is remembered by the content of that folder, whose files are read each time; nothing is remembered with a
hydra.searchpath or a labrl elsewhere. The processes of one test run share what was composed by a folder (see
`shared_folder`), which ends with the run.
"""

from __future__ import annotations

import copy
import fcntl
import functools
import hashlib
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra._internal.defaults_list as defaults_list
import omegaconf
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf, grammar_parser
from omegaconf.errors import OmegaConfBaseException
from shared_folder import FOLDER

from labrl.config import config_folder

FIXED = {f"file://{config_folder()}", "pkg://hydra.conf", "structured://"}
"""Sources that are the same throughout a test run, once what they register is."""

DEFAULTS = "HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"
"""Flag by which Hydra marks a node of a file with a list of defaults."""


class _Memory(dict[Hashable, bytes]):
    """Results by what they depend on; where `shared`, those of other processes too, by files of a folder."""

    def __init__(self, name: str, shared: bool) -> None:
        self._name = name
        self._folder = Path(os.environ[FOLDER]) if shared and FOLDER in os.environ else None

    def result(self, key: Hashable, find: Callable[[], Any]) -> Any:
        """Return the result of `find`, called once in all processes; each caller gets a copy of its own."""
        known = self._recall(key)
        if known is None:
            with self._alone(key):
                known = self._recall(key)
                if known is None:
                    found = find()
                    self._learn(key, pickle.dumps(found))
                    return found
        return pickle.loads(known)

    def _recall(self, key: Hashable) -> bytes | None:
        """Return a result that some process has found; None where nobody has yet."""
        if key not in self and self._folder is not None and self._file(key).exists():
            self[key] = self._file(key).read_bytes()
        return self.get(key)

    def _learn(self, key: Hashable, result: bytes) -> None:
        """Keep a result, for other processes too."""
        self[key] = result
        if self._folder is not None and self._folder.exists():
            begun = self._file(key).with_suffix(f".{os.getpid()}")
            begun.write_bytes(result)
            begun.replace(self._file(key))

    @contextmanager
    def _alone(self, key: Hashable) -> Iterator[None]:
        """Wait while another process looks for this result, which both would find in turns."""
        if self._folder is None or not self._folder.exists():
            yield
            return
        with self._file(key).with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _file(self, key: Hashable) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(repr((self._name, key)).encode()).hexdigest()


def _sources(repo: Any) -> Hashable | None:
    """Return what the files of a repository depend on; None where they may change."""
    own = tuple(_content(source) for source in repo.get_sources())
    return None if None in own else (*map(_place, repo.get_sources()), *own, _registered())


def _place(source: ConfigSource) -> str:
    return f"{source.scheme()}://{source.path}"


def _content(source: ConfigSource) -> str | None:
    """Return a digest of the files of a source, '' for labrl's own; None where there are too many.

    It is noted in the source, of which Hydra makes copies, until the next configuration is loaded.
    """
    if _place(source) in FIXED:
        return ""
    if CONTENT not in vars(source):
        vars(source)[CONTENT] = _digest(Path(source.path)) if source.scheme() == "file" else None
    return vars(source)[CONTENT]


CONTENT = "_content"
"""Attribute of a source with the digest of its files."""

MANY = 100
"""Number of folders and YAML files in a source beyond which it is read anew each time."""


def _digest(top: Path) -> str | None:
    """Return a digest of the folders and YAML files in a folder; None if there are too many to read."""
    found: list[str] = []
    content = hashlib.sha256()
    for folder, inner, files in os.walk(top):
        found.append(folder)
        for file in sorted(Path(folder, name) for name in files if name.endswith(".yaml")):
            found.append(str(file))
            content.update(file.read_bytes())
        inner.sort()
        if len(found) > MANY:
            return None
    content.update(repr(found).encode())
    return content.hexdigest()


def _registered() -> str:
    """Return a digest of the structured configurations: plugins bring theirs when they are loaded."""
    nodes = tuple(_walk(ConfigStore.instance().repo))
    key = tuple((path, id(node)) for path, node in nodes)
    if key not in _digests:
        described = [(path, f"{node!r} {OmegaConf.get_type(node.node)}") for path, node in nodes]
        _digests[key] = hashlib.sha256(repr(described).encode()).hexdigest(), nodes
    return _digests[key][0]


def _walk(nodes: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, node in nodes.items():
        if isinstance(node, dict):
            yield from _walk(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", node


_digests: dict[Hashable, tuple[str, Any]] = {}
"""By the identities of all structured configurations, which are held, so that no other takes their place."""


def remember() -> None:
    """Let Hydra remember in this process which files it read and merged, and to what."""
    ConfigLoaderImpl._load_configuration_impl = _setting_values(  # type: ignore[method-assign]
        ConfigLoaderImpl._load_configuration_impl
    )
    ConfigRepository.load_config = _reading(ConfigRepository.load_config)  # type: ignore[method-assign]
    ConfigLoaderImpl._compose_config_from_defaults_list = _remembering(  # type: ignore[method-assign]
        _merging_on(ConfigLoaderImpl._compose_config_from_defaults_list),
        lambda _, defaults, repo: (
            _sources(repo),
            *((d.config_path, d.package, d.primary) for d in defaults),
        ),
        shared=True,
    )
    for container in (omegaconf.DictConfig, omegaconf.ListConfig):
        container.__deepcopy__ = _copying(container.__deepcopy__)  # type: ignore[method-assign]
    defaults_list._create_defaults_list = _remembering_choices(defaults_list._create_defaults_list)
    for module in (omegaconf.base, omegaconf._utils):  # the same hundred interpolations, each time
        module.parse = functools.cache(grammar_parser.parse)
    OverridesParser.parse_rule = _remembering(  # type: ignore[method-assign]
        OverridesParser.parse_rule,
        lambda _, text, rule: (None if "shuffle(" in text else text, rule),  # drawn anew each time
    )


def _setting_values(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return `load`, Hydra's composition of a configuration, that remembers what the choices of groups give.

    Values are set in a copy, by Hydra; so are the notes that it makes for each job.
    """
    known = _Memory(load.__name__, shared=True)

    @functools.wraps(load)
    def loaded(
        loader: Any,
        config_name: Any,
        overrides: list[str],
        run_mode: Any,
        activate_config_repository: bool = False,
        parsed_overrides: list[Override] | None = None,
        **options: Any,
    ) -> Any:
        parsed = (
            loader.parse_overrides(config_name, overrides) if parsed_overrides is None else parsed_overrides
        )
        for source in loader.repository.get_sources():
            vars(source).pop(CONTENT, None)
        values = [one for one in parsed if _is_value(one)]
        choices = [one for one in parsed if not _is_value(one)]
        sources = _sources(loader.repository)
        if sources is None or any(one.key_or_group.startswith("hydra.searchpath") for one in choices):
            options |= {"activate_config_repository": activate_config_repository, "parsed_overrides": parsed}
            return load(loader, config_name, overrides, run_mode, **options)
        words = [str(one.input_line) for one in choices]
        noted = (version.getbase(), *(source.provider for source in loader.repository.get_sources()))
        key = (sources, noted, config_name, run_mode, tuple(options.items()), *words)
        cfg = known.result(
            key, lambda: load(loader, config_name, words, run_mode, parsed_overrides=choices, **options)
        )
        loader._apply_overrides_to_config(values, cfg)
        for kind, of_hydra in (("hydra", True), ("task", False)):
            cfg.hydra.overrides[kind] = [
                one.input_line for one in parsed if one.is_hydra_override() == of_hydra
            ]
        cfg.hydra.runtime.cwd = os.getcwd()
        if activate_config_repository:
            _, loader._active_repository = loader._parse_overrides_and_create_caching_repo(
                config_name, overrides, parsed
            )
        return cfg

    return loaded


def _reading(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return `load`, which reads a file of a repository, that reads each only once."""
    known = _Memory(load.__name__, shared=True)
    files: dict[Hashable, ConfigResult | None] = {}

    @functools.wraps(load)
    def read(repo: Any, config_path: str) -> ConfigResult | None:
        sources = _sources(repo)
        if sources is None:
            return load(repo, config_path)
        key = sources, config_path
        if key not in files:
            source = repo._find_object_source(config_path, ObjectType.CONFIG)
            if source is not None and _place(source) not in FIXED:
                return load(repo, config_path)
            of_all = sources if ":" in config_path else ()  # what labrl generates from the files of all
            files[key] = source and known.result(
                (_place(source), source.provider, config_path, _registered(), of_all),
                lambda: load(repo, config_path),
            )
        file = files[key]
        return None if file is None else _File(file)

    return read


class _File(ConfigResult):
    """A file that was read. Its configuration is copied when it is asked for: most searches do not."""

    def __init__(self, read: ConfigResult) -> None:
        vars(self).update(vars(read), _read=read)
        del self.config

    def __getattr__(self, name: str) -> Any:
        if name != "config":
            raise AttributeError(name)
        self.config = copy.deepcopy(self._read.config)
        return self.config


OWN_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""Keys of Hydra's own that each test gives another value."""


def _is_value(override: Override) -> bool:
    """Return whether an override sets a value, on which no choice of a file depends."""
    key = override.key_or_group
    is_key = "." in key or key in ("seed", "start_from")
    return (
        is_key and not override.is_sweep_override() and (not key.startswith("hydra.") or key in OWN_FOLDERS)
    )


def _copying(copy_node: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method `__deepcopy__` that takes the place of OmegaConf's `copy_node`."""

    @functools.wraps(copy_node)
    def copied(node: Any, memo: dict[int, Any]) -> Any:
        return _copied(node, node._parent)

    return copied


def _copied(node: Any, parent: Any) -> Any:
    """Return what copy.deepcopy gives for a node of a configuration, in a tenth of the time.

    Hydra copies the whole configuration several times for each run. Every node of such a tree has one parent,
    so no record of what has been copied is needed; values are never changed in place.
    """
    if not isinstance(node, omegaconf.ValueNode | omegaconf.DictConfig | omegaconf.ListConfig):
        return copy.deepcopy(node)
    new = object.__new__(type(node))
    fields, new_fields = vars(node), vars(new)
    new_fields.update(fields)
    new_fields["_parent"] = parent
    metadata, known = fields["_metadata"], object.__new__(type(fields["_metadata"]))
    vars(known).update(vars(metadata))
    known.flags = None if metadata.flags is None else {**metadata.flags}
    cache = metadata.resolver_cache
    known.resolver_cache = copy.deepcopy(cache) if cache else defaultdict(dict)
    new_fields["_metadata"] = known
    new_fields["_flags_cache"] = None
    if isinstance(node, omegaconf.ValueNode):
        return new
    content = fields["_content"]
    new_fields["_flags_cache"] = copy.copy(fields["_flags_cache"])
    if isinstance(content, dict):
        new_fields["_content"] = {key: _copied(child, new) for key, child in content.items()}
    elif isinstance(content, list):
        new_fields["_content"] = [_copied(child, new) for child in content]
    return new


def _merging_on(merge: Callable[..., Any]) -> Callable[..., Any]:
    """Return `merge` that merges the files of Hydra itself and config.yaml, which come first, only once."""
    known: dict[Hashable, bytes] = {}

    @functools.wraps(merge)
    def merged(loader: Any, defaults: list[Any], repo: Any) -> Any:
        names = [(d.config_path, d.package, d.primary) for d in defaults]
        first = next((n for n, (path, *_) in enumerate(names, 1) if path == "config"), 0)
        origins = [_origin(repo, path) for path, *_ in names[:first]]
        if not FIXED.issuperset(origins):
            return merge(loader, defaults, repo)
        key = (_registered(), *names[:first], *origins)
        if key not in known:
            known[key] = pickle.dumps(merge(loader, defaults[:first], repo))
        cfg = pickle.loads(known[key])
        try:
            with omegaconf.flag_override(cfg, "no_deepcopy_set_nodes", True), _parents_as_they_are():
                for default in defaults[first:]:
                    cfg.merge_with(loader._load_single_config(default=default, repo=repo).config)
        except OmegaConfBaseException:
            return merge(loader, defaults, repo)  # which names the file
        _strip_defaults(cfg)
        return cfg

    return merged


def _origin(repo: Any, config_path: str) -> str | None:
    """Return the source of a file, or None if there is no such file."""
    file = repo.load_config(config_path)
    return None if file is None else file.path


@contextmanager
def _parents_as_they_are() -> Iterator[None]:
    """Spare OmegaConf a walk over the whole configuration after each merge, which finds no wrong parent."""
    correct = omegaconf.base.Box._re_parent
    omegaconf.base.Box._re_parent = lambda node: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        omegaconf.base.Box._re_parent = correct  # type: ignore[method-assign]


def _strip_defaults(node: Any) -> None:
    """Take the lists of defaults out of what was merged, as Hydra does at the end."""
    if not isinstance(node, omegaconf.DictConfig) or node._is_missing() or node._is_none():
        return
    if node._get_flag(DEFAULTS):
        with omegaconf.flag_override(node, ["readonly", "struct"], False):
            node._set_flag(DEFAULTS, None)
            node.pop("defaults", None)
    for _, value in node.items_ex(resolve=False):
        _strip_defaults(value)


def _remembering(
    function: Callable[..., Any], key_of: Callable[..., tuple[Hashable, ...]], shared: bool = False
) -> Callable[..., Any]:
    """Return `function` that gives a copy of its earlier result.

    key_of: what the result depends on; nothing is remembered where the first is None. shared: whether
    processes share results.
    """
    known = _Memory(function.__name__, shared)

    @functools.wraps(function)
    def remembered(*arguments: Any, **named: Any) -> Any:
        key = key_of(*arguments, **named)
        if key[0] is None:
            return function(*arguments, **named)
        return known.result(key, lambda: function(*arguments, **named))

    return remembered


def _remembering_choices(find: Callable[..., Any]) -> Callable[..., Any]:
    """Return `find`, which gives a list of files and notes in `overrides` what was chosen."""
    known = _Memory(find.__name__, shared=True)

    @functools.wraps(find)
    def found(repo: Any, config_name: Any, overrides: Any, **options: Any) -> Any:
        sources = _sources(repo)
        if sources is None:
            return find(repo, config_name, overrides, **options)
        before = {name: value for name, value in vars(overrides).items() if name != "config_overrides"}
        key = (sources, config_name, tuple(options.items()), pickle.dumps(before))

        def found_anew() -> tuple[Any, dict[str, Any]]:
            files = find(repo, config_name, overrides, **options)
            return files, {name: vars(overrides)[name] for name in before}

        files, choices = known.result(key, found_anew)
        vars(overrides).update(choices)
        return files

    return found
