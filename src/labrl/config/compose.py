"""From the overrides on a command line to a configuration, and from there to a validated one."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.folder import config_folder
from labrl.errors import InputError, LabrlError, Mistake, nearest

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.config.validate import InvalidError


def compose(
    overrides: list[str], config_dir: str | os.PathLike[str] | None = None, with_hydra: bool = False
) -> DictConfig:
    """The configuration that `labrl <overrides>` would run with.

    overrides: as on the command line, e.g. `["env=pong", "agent.lr=1e-4"]`. config_dir: a folder with
    configuration groups of your own. with_hydra: keep Hydra's own node, which names the run folder.
    Raises InputError for unknown keys, groups and options, and for bad syntax.
    """
    import hydra

    prepare(config_dir, overrides)
    try:
        with hydra_initialized(config_dir):
            return hydra.compose("config", overrides=list(overrides), return_hydra_config=with_hydra)
    except Exception as error:
        raise explain(error, overrides, config_dir) from error


def explain(
    error: Exception, overrides: list[str], config_dir: str | os.PathLike[str] | None = None
) -> InputError:
    """What Hydra complained about while it composed `overrides`, told in terms of what to type instead."""
    from hydra.core.global_hydra import GlobalHydra

    from labrl.config.explain import explained

    with hydra_initialized(config_dir):
        return explained(error, overrides, GlobalHydra.instance().config_loader())


@contextmanager
def hydra_initialized(config_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hydra with labrl's groups, then the user's; on leaving, what was there before is put back."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    sources = [f"file://{config_folder()}"]
    if config_dir is not None:
        sources.append(f"file://{os.path.abspath(config_dir)}")
    # Hydra refuses to begin inside a Hydra application, such as a search that composes its trials.
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_search_path(sources, job_name="labrl"):
            yield
    finally:
        GlobalHydra.instance().hydra = before


def prepare(config_dir: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> None:
    """Register what labrl adds to Hydra and OmegaConf, and let a user's own modules be found.

    Raises InputError when `config_dir` is no folder, or what `overrides` choose there cannot be read.
    """
    from labrl.config import generated, resolvers
    from labrl.config.own_files import check_own_files

    if config_dir is not None and not os.path.isdir(config_dir):
        raise InputError(
            f"--config-dir {config_dir}: there is no such folder", code="not-found", key="--config-dir"
        )
    check_own_files(config_dir, overrides)
    generated.register()
    resolvers.register()
    # A `_target_` in the working folder or beside the user's YAML; last, so that it hides no package.
    for folder in (os.getcwd(), config_dir and os.path.abspath(config_dir)):
        if folder and str(folder) not in sys.path:
            sys.path.append(str(folder))


def to_plain(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """`cfg` as nested dicts, lists and scalars with nothing left to resolve: what config.yaml records.

    Raises InputError for a value that is still missing or an interpolation that leads nowhere.
    """
    if not isinstance(cfg, DictConfig):
        return dict(cfg)
    # Hydra's own node is resolved by Hydra alone: parts of it have a value in a job only.
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    missing = list(_unset(OmegaConf.to_container(own, resolve=False)))
    if missing:
        raise InputError.of(
            Mistake("missing", key, f"{key} must be given: set {key}=<value>") for key in missing
        )
    try:
        plain = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        _check_targets(own)
        key = error.full_key or None
        lost = re.search(r"Interpolation key '([^']*)' not found(?: \(resolved to '([^']*)')?", str(error))
        if lost and key:
            source = lost[2] or lost[1]
            raise InputError(
                f"{key}: it refers to {source}, which does not exist. Set {source}=<value> or {key}=<value>",
                code="missing",
                key=source if _stands_in_a_file(source) else key,
            ) from error
        reason = str(error).splitlines()[0]
        raise InputError(f"{key or 'the configuration'}: {reason}", code="type", key=key) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _stands_in_a_file(key: str) -> bool:
    """Whether one of labrl's files has `key`, so that it is missing because it was taken away."""
    group, _, inner = key.rpartition(".")
    files = (config_folder() / group.replace(".", "/")).glob("*.yaml")
    return any(inner in OmegaConf.load(file) for file in files)


def _check_targets(cfg: DictConfig) -> None:
    """Raise InputError for an agent or environment without `_target_`."""
    written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    for key in ("env", "agent"):
        node = written.get(key)
        if isinstance(node, dict) and "_target_" not in node:
            raise InputError(
                f"{key} has no _target_. A file of your own must build on one of labrl's (defaults: "
                "[gymnasium, _self_]) or name its class (_target_: package.module.Class).",
                code="missing",
                key=f"{key}._target_",
            )


def resolve(
    cfg: DictConfig | Mapping[str, Any], composed: DictConfig | None = None, *, complete: bool = True
) -> TrialConfig:
    """`cfg` as typed dataclasses, everything checked that needs no environment.

    composed: what a plain `cfg` was made of, if that is known: a value that only refers to a wrong one is
    then not told beside it. complete: refuse a configuration that lacks a key of labrl's; an older version of
    labrl may have saved it. Raises InputError that names every wrong key, its value and what is allowed.
    """
    plain = to_plain(cfg)
    check_values(plain, composed or cfg, complete)
    return _typed(plain, composed or cfg, complete)


def check_values(
    plain: Mapping[str, Any], composed: DictConfig | Mapping[str, Any], complete: bool = True
) -> None:
    """Raise InputError as `resolve` does, without loading torch unless a component of the user's does."""
    from labrl.config.outline import loaded, outlined

    if not loaded():
        try:
            with outlined():
                _typed(plain, composed, complete)
            return
        except Exception as error:
            if isinstance(error, LabrlError) and not loaded():
                raise
    _typed(plain, composed, complete)


def _typed(plain: Mapping[str, Any], composed: DictConfig | Mapping[str, Any], complete: bool) -> TrialConfig:
    """The configuration `plain` as typed dataclasses; see `resolve`."""
    from labrl.config.component import tell_keys
    from labrl.config.schema import TrialConfig
    from labrl.config.validate import InvalidError, dataclass_of, hidden

    try:
        config = dataclass_of(TrialConfig, plain)
        if complete and (lacking := hidden(config, plain)):
            raise InvalidError(lacking)
    except InvalidError as invalid:
        _check_verbs(plain)
        raise InputError(invalid.without(_echoes(composed, invalid)).told()) from None
    if isinstance(config.env.config, dict):
        raise InputError(
            f"env._target_: {config.env.target} has no `Config` with name, num_envs and max_frame, so it is "
            "no vector environment of labrl. A Gymnasium environment of your own is given by env=gymnasium "
            f"env.id=null env.name=<name> 'env.make={{_target_: {config.env.target}}}'"
        )
    tell_keys(config)
    config.agent.check("check_config", config.env.config)
    return config


def _check_verbs(plain: Mapping[str, Any]) -> None:
    """Raises InputError for a key that nobody knows and that looks like `+resume` or another of its kind."""
    from labrl.config.explain import VERBS
    from labrl.config.schema import TrialConfig

    known = {field.name for field in dataclasses.fields(TrialConfig)}
    for name, value in plain.items():
        meant = [] if name in known else nearest(name, [*known, *VERBS])
        if set(meant) & set(VERBS):
            raise InputError(f"+{name}={value}: no such key. Did you mean +{meant[0]}={value}?")


def _echoes(cfg: DictConfig | Mapping[str, Any], invalid: InvalidError) -> set[tuple[str | int, ...]]:
    """Paths of mistaken values that only repeat another one: `${env.max_frame}` where that is mistaken."""
    wrong = {".".join(map(str, path)): path for path, _ in invalid.mistakes}
    written = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else cfg
    echoes = set()
    for path in wrong.values():
        value: Any = written
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        source = re.fullmatch(r"\$\{([\w.]+)\}", str(value))
        if source and source[1] in wrong:
            echoes.add(path)
    return echoes


def _unset(node: Any, key: str = "") -> Iterator[str]:
    """Full keys of the values that are still `???`; what merely refers to one of them is not named."""
    if node == "???":
        yield key
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in items:
        yield from _unset(value, f"{key}.{name}" if key else str(name))
