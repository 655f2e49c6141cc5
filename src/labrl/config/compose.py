"""From the overrides on a command line to a configuration, and from there to a validated one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
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
    """Return the configuration that `labrl <overrides>` would run with.

    overrides: as on the command line, e.g. `["env=pong", "agent.lr=1e-4"]`. config_dir: a folder with
    configuration groups of your own. with_hydra: keep Hydra's own node, which names the run folder.
    Raises InputError for unknown keys, groups and options, and for bad syntax.
    """
    import hydra

    prepare(config_dir, overrides)
    try:
        with hydra_initialized(config_dir):
            return hydra.compose("config", overrides=list(overrides), return_hydra_config=with_hydra)
    except LabrlError:
        raise
    except Exception as error:
        raise explain(error, overrides, config_dir) from error


def explain(
    error: Exception,
    overrides: Sequence[str],
    config_dir: str | os.PathLike[str] | None = None,
    multirun: bool = False,
) -> LabrlError:
    """Return everything that is wrong with `overrides`, which Hydra has refused with `error`.

    multirun: whether an override may give several values.
    """
    from hydra.core.global_hydra import GlobalHydra

    from labrl.mistakes.overrides import first_line, wrong_overrides

    if isinstance(error, LabrlError) and not overrides:
        return error
    found = list(error.mistakes) if isinstance(error, LabrlError) else []
    with hydra_initialized(config_dir):
        mistakes, fine, cfg = wrong_overrides(overrides, GlobalHydra.instance().config_loader(), multirun)
        found += mistakes
        typed = {one.key_or_group for one in fine if "." in one.key_or_group or one.key_or_group == "seed"}
        try:
            if typed or not found:
                resolve(cfg)
        except LabrlError as wrong:  # a contradiction may come from the overrides that are left out
            among = [one for one in wrong.mistakes if one.key in typed and one.code != "contradiction"]
            found += among if found else wrong.mistakes
        except Exception:  # the error that is explained is this one
            pass
    return InputError.of(found) if found else InputError(first_line(error), code="usage")


@contextmanager
def hydra_initialized(config_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Start Hydra with labrl's groups, then the user's; on leaving, put back what was there before."""
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

    Raises InputError for what Hydra would pass over: a `config_dir` that is no folder or has presets where
    none are looked for, and `~preset`, which some agents can do without.
    """
    from labrl.config import resolvers, sources

    if config_dir is not None and not os.path.isdir(config_dir):
        raise InputError(
            f"--config-dir {config_dir}: there is no such folder", code="not-found", key="--config-dir"
        )
    if lost := sorted(Path(config_dir, "preset").glob("*/*.yaml")) if config_dir is not None else []:
        raise InputError(
            f"{lost[0]}: presets of a part are no longer looked for in a folder of their own. Move it to "
            f"{lost[0].parents[1] / lost[0].name}",
            code="usage",
            key=str(lost[0]),
        )
    if any(word.partition("=")[0] == "~preset" for word in overrides):
        raise InputError(
            "~preset: it is needed; preset=none leaves all presets out", code="missing", key="preset"
        )
    sources.register()
    resolvers.register()
    # A `_target_` in the working folder or beside the user's YAML; last, so that it hides no package.
    for folder in (os.getcwd(), config_dir and os.path.abspath(config_dir)):
        if folder and str(folder) not in sys.path:
            sys.path.append(str(folder))


def to_plain(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return `cfg` as config.yaml records it: dicts, lists and scalars with nothing left to resolve.

    Raises InputError for a value that is still missing or an interpolation that leads nowhere.
    """
    if not isinstance(cfg, DictConfig):
        return dict(cfg)
    # Hydra's own node is resolved by Hydra alone: parts of it have a value in a job only.
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    written = dict(walk(OmegaConf.to_container(own, resolve=False)))
    if missing := [key for key, value in written.items() if value == "???"]:
        raise InputError.of(
            Mistake("missing", key, f"{key} must be given: set {key}=<value>") for key in missing
        )
    for key in ("env", "agent"):
        if isinstance(written.get(key), dict) and f"{key}._target_" not in written:
            raise InputError(
                f"{key} has no _target_. A file of your own must build on one of labrl's (defaults: "
                "[gymnasium, _self_]) or name its class (_target_: package.module.Class).",
                code="missing",
                key=f"{key}._target_",
            )
    try:
        plain = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        raise _unresolved(error) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _unresolved(error: OmegaConfBaseException) -> InputError:
    """Return the mistake for an interpolation that leads nowhere."""
    from labrl.mistakes.names import owners_of

    key = error.full_key or None
    lost = re.search(r"Interpolation key '([^']*)' not found(?: \(resolved to '([^']*)')?", str(error))
    if not lost or not key:
        reason = str(error).splitlines()[0]
        return InputError(f"{key or 'the configuration'}: {reason}", code="type", key=key)
    source = lost[2] or lost[1]
    return InputError(
        f"{key}: it refers to {source}, which does not exist. Set {source}=<value> or {key}=<value>",
        code="missing",
        key=source if owners_of(source) else key,  # which was taken away, or never was
    )


def resolve(cfg: DictConfig | Mapping[str, Any], composed: DictConfig | None = None) -> TrialConfig:
    """Return `cfg` as typed dataclasses, everything checked that needs no environment.

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
        is_config = isinstance(composed, DictConfig)
        written = dict(walk(OmegaConf.to_container(composed, resolve=False) if is_config else composed))
        echoes = {f"${{{mistake.key}}}" for mistake in error.mistakes}
        found = [one for one in error.mistakes if str(written.get(one.key or "")) not in echoes]
        raise InputError.of(_with_other_names(one, plain) for one in found) from None
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
    """Return `mistake`; for an unknown key one that says what it is called in labrl, if anything is."""
    from labrl.mistakes.names import all_keys, other_names, unknown_key

    key = mistake.key or ""
    leaf = key.rpartition(".")[2].lower()
    if mistake.code != "unknown-key" or (leaf not in other_names() and leaf != key):
        return mistake
    known = [name for name in all_keys(plain) if not f"{name}.".startswith(f"{key}.")]
    return unknown_key(key, str(dict(walk(plain)).get(key)), known)
