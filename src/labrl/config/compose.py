"""From the overrides on a command line to a configuration, and from there to a validated one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.folder import config_folder
from labrl.config.keys import walk
from labrl.errors import InputError, LabrlError, Mistake

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig


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
    error: Exception,
    overrides: Sequence[str],
    config_dir: str | os.PathLike[str] | None = None,
    multirun: bool = False,
) -> LabrlError:
    """Everything that is wrong with `overrides`, which Hydra has refused with `error`.

    multirun: whether an override may give several values.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    from labrl.config.explain import first_line, wrong_overrides

    if isinstance(error, OSError) and not isinstance(error, HydraException):
        where = f" {os.path.abspath(error.filename)}" if error.filename else ""
        return InputError(
            f"the run folder cannot be made ({error.strerror or error}:{where}): "
            "give another with hydra.run.dir=<folder>, or hydra.sweep.dir=<folder> with -m",
            code="usage",
            key="hydra.sweep.dir" if multirun else "hydra.run.dir",
        )
    found = list(error.mistakes) if isinstance(error, LabrlError) else []
    if found and not overrides:
        assert isinstance(error, LabrlError)
        return error
    with hydra_initialized(config_dir):
        mistakes, fine = wrong_overrides(overrides, GlobalHydra.instance().config_loader(), multirun)
        found += mistakes
        typed = {key for word in fine if "." in (key := word.lstrip("+").partition("=")[0]) or key == "seed"}
        try:
            if typed or not found:
                resolve(hydra.compose("config", overrides=fine))
        except LabrlError as wrong:  # a contradiction may come from the words that are left out
            among = [one for one in wrong.mistakes if one.key in typed and one.code != "contradiction"]
            found += among if found else wrong.mistakes
        except Exception:  # the error that is explained is this one
            pass
    return InputError.of(found) if found else InputError(first_line(error), code="usage")


@contextmanager
def hydra_initialized(config_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hydra with labrl's groups, then the user's; on leaving, what was there before is put back."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from labrl.config.kinds import kinds_replace

    sources = [f"file://{config_folder()}"]
    if config_dir is not None:
        sources.append(f"file://{os.path.abspath(config_dir)}")
    # Hydra refuses to begin inside a Hydra application, such as a search that composes its trials.
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_search_path(sources, job_name="labrl"), kinds_replace():
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


def resolve(cfg: DictConfig | Mapping[str, Any], composed: DictConfig | None = None) -> TrialConfig:
    """`cfg` as typed dataclasses, everything checked that needs no environment.

    composed: what a plain `cfg` was made of, if that is known: a value that only refers to a wrong one is
    then not reported beside it. Raises InputError with a mistake for every wrong key.
    """
    plain = to_plain(cfg)
    check_values(plain, composed or cfg)
    return _typed(plain, composed or cfg)


def check_values(plain: Mapping[str, Any], composed: DictConfig | Mapping[str, Any]) -> None:
    """Raise InputError as `resolve` does, without loading torch unless a component of the user's does."""
    from labrl.config import schema, validate  # noqa: F401  (not from inside the outline)
    from labrl.config.outline import outlined

    targets = [str(value) for key, value in walk(plain) if key.endswith("_target_")]
    if "torch" not in sys.modules and all(target.startswith("labrl.") for target in targets):
        try:
            with outlined():
                _typed(plain, composed)
            return
        except LabrlError:
            raise
        except Exception:  # it computes with a stand-in
            pass
    _typed(plain, composed)


def _typed(plain: Mapping[str, Any], composed: DictConfig | Mapping[str, Any]) -> TrialConfig:
    """The configuration `plain` as typed dataclasses; see `resolve`."""
    from labrl.config.schema import TrialConfig
    from labrl.config.validate import dataclass_of

    try:
        config = dataclass_of(TrialConfig, plain)
    except InputError as error:
        mistakes = _without_echoes(error.mistakes, composed)
        raise InputError.of(_with_other_names(one, plain) for one in mistakes) from None
    if isinstance(config.env.config, dict):
        raise InputError(
            f"env._target_: {config.env.target} has no `Config` with name, num_envs and max_frame, so it is "
            "no vector environment of labrl. For a Gymnasium environment of your own write env=gymnasium "
            f"env.id=null env.name=<name> 'env.make={{_target_: {config.env.target}}}'",
            code="target",
            key="env._target_",
        )
    config.agent.check("check_config", config.env.config)
    return config


def _with_other_names(mistake: Mistake, plain: Mapping[str, Any]) -> Mistake:
    """`mistake`, and of an unknown key what it is called in labrl if other libraries call it so."""
    from labrl.config.other_names import all_keys, other_names, unknown_key

    key = mistake.key or ""
    leaf = key.rpartition(".")[2].lower()
    if mistake.code != "unknown-key" or (leaf not in other_names() and leaf != key):
        return mistake
    known = [name for name in all_keys(plain) if not f"{name}.".startswith(f"{key}.")]
    return unknown_key(key, str(OmegaConf.select(OmegaConf.create(dict(plain)), key)), known)


def _without_echoes(mistakes: Sequence[Mistake], cfg: DictConfig | Mapping[str, Any]) -> list[Mistake]:
    """`mistakes` without those of values such as `${env.max_frame}`, if env.max_frame is wrong itself."""
    written = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else cfg

    def source(mistake: Mistake) -> str | None:
        value: Any = written
        for name in (mistake.key or "").split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        found = re.fullmatch(r"\$\{([\w.]+)\}", str(value))
        return found[1] if found else None

    wrong = {mistake.key for mistake in mistakes}
    return [mistake for mistake in mistakes if source(mistake) not in wrong - {None}]


def _unset(node: Any, key: str = "") -> Iterator[str]:
    """Full keys of the values that are still `???`; what merely refers to one of them is not named."""
    if node == "???":
        yield key
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in items:
        yield from _unset(value, f"{key}.{name}" if key else str(name))
