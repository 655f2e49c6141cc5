"""Compose a configuration from overrides, and validate it."""

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

from labrl.config import config_folder
from labrl.config.keys import is_hydras, key_of, split_override, values_of, walk
from labrl.errors import Code, InputError, LabrlError, sentences

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig


def compose(
    overrides: list[str], config_dir: str | os.PathLike[str] | None = None, with_hydra: bool = False
) -> DictConfig:
    """Return the configuration that `labrl <overrides>` would run with.

    overrides: as on the command line, for example `["env=pong", "agent.lr=1e-4"]`; config_dir: a folder with
    your configuration groups; with_hydra: whether to keep the node `hydra`, which names the run folder.
    Raises InputError for unknown keys, groups and options, and for syntax errors.
    """
    import hydra

    prepare(config_dir, overrides)
    with explained(overrides, config_dir), hydra_initialized(config_dir):
        cfg = hydra.compose("config", list(overrides), return_hydra_config=with_hydra)
    if with_hydra:
        set_hydra(cfg)
    return cfg


def compose_first(overrides: Sequence[str], config_dir: str | None) -> DictConfig:
    """Return the configuration of an experiment, including the node `hydra`: that of a trial with the first
    option of each group, and without values of keys of which there are several.

    Other overrides may be of keys that only the given options have, such as agent.double with agent=dqn,c51.
    Raises InputError as `compose` does, and for several values of a key of Hydra.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    prepare(config_dir, overrides, multirun=True)
    with explained(overrides, config_dir, multirun=True), hydra_initialized(config_dir):
        first = []
        for one in OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(
            list(overrides)  # with the loader, which knows what patterns of options mean
        ):
            if one.is_sweep_override() and is_hydras(one.key_or_group):
                raise InputError.usage(
                    str(one.input_line), "all trials of an experiment have one value of it"
                )
            if not one.is_sweep_override():
                first.append(str(one.input_line))
            elif "." not in one.key_or_group:
                first += values_of(one)[:1]
        cfg = hydra.compose("config", first, return_hydra_config=True)
    set_hydra(cfg)
    return cfg


def set_hydra(cfg: DictConfig) -> None:
    """Let references such as ${hydra:runtime.choices.agent} find the node `hydra` of `cfg`."""
    from hydra.core.hydra_config import HydraConfig

    HydraConfig.instance().set_config(cfg)
    OmegaConf.set_readonly(cfg.hydra, None)


def new_folder(plain: Mapping[str, Any], choices: Mapping[str, str], hydras: Sequence[str]) -> str:
    """Return the folder of a run that repeats or forks an earlier one.

    plain, choices: its configuration and options; hydras: overrides for Hydra, such as hydra.run.dir.
    """
    from labrl.config.nodes import ConfigNode
    from labrl.config.presets import read

    typed = [value for key, value in map(split_override, hydras) if key == "hydra.run.dir"]
    folder = typed[-1].strip("'\"") if typed else read(config_folder() / "config.yaml")["hydra"]["run"]["dir"]
    node = {"run": {"dir": folder}, "runtime": {"choices": dict(choices)}}
    with hydra_initialized(None):  # for the resolver `now`
        try:
            content: dict[Any, Any] = {**plain, "hydra": node}
            return str(ConfigNode(content).hydra.run.dir)
        except OmegaConfBaseException as error:
            raise unresolved(error) from error


@contextmanager
def explained(
    overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, multirun: bool = False
) -> Iterator[None]:
    """Context manager: raise Hydra's errors about `overrides` as LabrlError.

    multirun: whether overrides may have several values.
    """
    try:
        yield
    except LabrlError:
        raise
    except Exception as error:
        # Hydra's errors say less than the explanation, and would fill a notebook.
        cause = error if os.environ.get("HYDRA_FULL_ERROR") == "1" else None
        from labrl.mistakes.overrides import explain_refusal

        with hydra_initialized(config_dir):
            raise explain_refusal(error, overrides, multirun) from cause


@contextmanager
def hydra_initialized(config_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Initialize Hydra with labrl's groups and then the user's, and restore its previous state on exit."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from labrl.config.extensions import Groups

    global _initialized
    wanted = None if config_dir is None else os.path.abspath(config_dir)
    # The trials of an experiment are composed in an initialized Hydra. Any other state is set aside.
    before, others = GlobalHydra.instance().hydra, _initialized
    if before is not None and others == (before, wanted):
        yield
        return
    GlobalHydra.instance().clear()
    try:
        # hydra.initialize would read the source of every caller, which takes 15 ms in a notebook or a test.
        with Groups.searched(config_dir), hydra.initialize_config_module("labrl", job_name="labrl"):
            _initialized = GlobalHydra.instance().hydra, wanted
            yield
    finally:
        GlobalHydra.instance().hydra, _initialized = before, others


_initialized: tuple[Any, str | None] = None, None
"""Hydra's state after labrl has initialized it, and the user's folder of groups in it."""


def prepare(
    config_dir: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    multirun: bool | None = None,
) -> None:
    """Register labrl's extensions of Hydra and OmegaConf, and make the user's modules importable.

    multirun: whether the overrides are those of an experiment; None if unknown. Raises InputError if
    `config_dir` is not a folder, and in the cases in which `refuse_ignored` does.
    """
    from labrl.config.extensions import refuse_same_names, register
    from labrl.mistakes.arguments import refuse_ignored

    if config_dir is not None and not os.path.isdir(config_dir):
        problem = "it is not a folder" if os.path.exists(config_dir) else "no such folder"
        raise InputError.not_found(
            f"--config-dir={config_dir}", problem, "If it was moved, write --config-dir=<its new path>"
        )
    refuse_ignored(overrides, multirun)
    if config_dir is not None:
        refuse_same_names(config_dir)
    register()
    find_modules(config_dir)


def find_modules(config_dir: str | os.PathLike[str] | None) -> None:
    """Make a `_target_` importable from the working directory and from the user's configuration folder."""
    for folder in (os.getcwd(), config_dir and os.path.abspath(config_dir)):
        if folder and str(folder) not in sys.path:
            sys.path.append(str(folder))  # last, so that it shadows no package


def origins(
    key: str, overrides: list[str], config_dir: str | os.PathLike[str] | None = None
) -> dict[str, list[tuple[str, Any]]]:
    """Return where `labrl <overrides>` sets a key, or the keys of a group; '' stands for all keys.

    The origins of each key are in order of increasing priority. An origin is a file, a section of a file or
    an override, with the value that it sets. Raises InputError as `compose` does, and for an unknown key.
    """
    from labrl.mistakes.names import all_keys, unknown_key

    cfg = compose(overrides, config_dir)
    final = _values(OmegaConf.to_container(cfg, resolve=False))
    asked = [one for one in final if not key or _within(one, key) or _within(key, one)]
    if not asked:
        raise InputError.of([unknown_key(key, "", all_keys(cfg))])
    sources = [(origin, _values(content)) for _, origin, content in _composed_files(overrides, config_dir)]
    typed = [one for one in overrides if "." in key_of(one) or key_of(one) in final]
    sources += [(f"override {one}", {key_of(one): split_override(one)[1]}) for one in typed]
    return {
        one: [
            (origin, value)
            for origin, values in sources
            for name, value in values.items()
            if _within(name, one) or (_within(one, name) and value != {})
        ]
        for one in asked
    }


def _within(key: str, whole: str) -> bool:
    return key == whole or key.startswith((f"{whole}.", f"{whole}["))


def _composed_files(
    overrides: list[str], config_dir: str | os.PathLike[str] | None
) -> Iterator[tuple[str, str, Any]]:
    """Yield Hydra's path, the file and the content of each configuration, in the order of composition."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    from labrl.config.presets import SCHEME, origin_of

    with hydra_initialized(config_dir):
        loader = GlobalHydra.instance().config_loader()
        for one in loader.compute_defaults_list("config", overrides, RunMode.RUN).defaults:
            path = one.config_path or ""
            source = next((source for source in loader.get_sources() if source.is_config(path)), None)
            if source is not None and source.scheme() == SCHEME:
                content: Any = OmegaConf.to_container(source.load_config(path).config, resolve=False)
                content.pop("defaults", None)
                for name in reversed((one.package or "").split(".")):
                    content = {name: content} if name not in ("", "_global_") else content
                yield path, origin_of(Path(source.path), path), content


def _values(node: Any) -> dict[str, Any]:
    """Return the values of a configuration by full key. A schedule counts as one value."""
    found: dict[str, Any] = {}
    for key, value in walk(node):
        is_group = isinstance(value, Mapping) and value and ("kind" not in value or "_target_" in value)
        if key and not is_group and not any(_within(key, whole) for whole in found):
            found[key] = value
    return found


def to_plain(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return `cfg` in the form of config.yaml: dicts, lists and scalars, with interpolations resolved.

    Raises InputError for missing values and for interpolations that cannot be resolved.
    """
    if not isinstance(cfg, DictConfig):
        return dict(cfg)
    # The node `hydra` is left out, because some of its values exist only in a Hydra job.
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"]) if "hydra" in cfg else cfg
    composed = dict(walk(OmegaConf.to_container(own, resolve=False)))
    own_class = ", or for a class env.id=null env.name=<name> 'env.make={_target_: <module>.<class>}'"
    missing = {key: own_class * (key == "env.id") for key, value in composed.items() if value == "???"}
    for key in ("env", "agent"):  # from a user's file
        if isinstance(composed.get(key), dict) and f"{key}._target_" not in composed:
            missing[f"{key}._target_"] = ", or extend one of labrl's files (defaults: [gymnasium, _self_])"
    if missing:
        raise InputError.of(
            InputError.missing(key, fix=f"{key}=<value>{other}") for key, other in missing.items()
        )
    try:
        plain = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        raise unresolved(error) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def unresolved(error: OmegaConfBaseException) -> InputError:
    """Return the error for an interpolation that cannot be resolved."""
    from labrl.mistakes.names import owners_of

    lost = re.search(r"Interpolation key '([^']*)' not found(?: \(resolved to '([^']*)')?", str(error))
    source = (lost[2] or lost[1]) if lost else ""
    key = source if owners_of(source) else error.full_key  # a known key that was removed, or a typing error
    code: Code = "missing" if lost else "type"
    return InputError.about(
        error.full_key or "", str(error).splitlines()[0], f"{key}=<value>", code=code, key=key
    )


@contextmanager
def naming_file(overrides: Sequence[str], config_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Context manager: add to an InputError which presets, experiments and files of the user set its keys.

    overrides, config_dir: overrides and folder from which the configuration was composed.
    """
    try:
        yield
    except InputError as error:
        typed, files = set(map(key_of, overrides)), dict[str, str]()
        for path, origin, content in _composed_files(list(overrides), config_dir):
            is_own = origin.startswith(os.fspath(config_folder()))
            if not is_own or path.startswith(("preset/", "experiment/")):
                files |= dict.fromkeys(_values(content).keys() - typed, origin)

        def named(one: LabrlError) -> LabrlError:
            wrong = one.key or ""
            file = next((files[key] for key in files if _within(wrong, key) or _within(key, wrong)), None)
            if any(_within(key, wrong) for key in typed):
                file = None
            message = sentences(one.message, f"It is set in {file}") if file else one.message
            return InputError(message, code=one.code, key=one.key)

        raise InputError.of(map(named, error.mistakes)) from error


def check_no_search(space: Mapping[str, Any] | None) -> None:
    """Raise InputError if a trial that is not part of a search has a search space."""
    if space:
        why = "it has a search space, but this is not a search, which needs -m and hydra/sweeper=optuna"
        fix = "Add what is missing to the command line, labrl -m hydra/sweeper=optuna, or set search=none"
        raise InputError.usage("search", why, fix)


def resolve(cfg: DictConfig | Mapping[str, Any], plain: Mapping[str, Any] | None = None) -> TrialConfig:
    """Return `cfg` as typed dataclasses, after all checks that need no environment.

    This imports the modules of all components, and thus PyTorch. plain: result of `to_plain(cfg)`, if known.
    Raises InputError with a mistake for every wrong key.
    """
    from labrl.config.schema import TrialConfig
    from labrl.config.validate import dataclass_of

    plain = to_plain(cfg) if plain is None else plain
    try:
        config = dataclass_of(TrialConfig, plain)
    except InputError as error:
        # Values that only interpolate a wrong value are not reported.
        composed = dict(walk(OmegaConf.to_container(cfg, resolve=False) if OmegaConf.is_config(cfg) else cfg))
        echoes = {f"${{{mistake.key}}}" for mistake in error.mistakes}
        found = [one for one in error.mistakes if str(composed.get(one.key or "")) not in echoes]
        raise InputError.of(found) from None
    if isinstance(config.env.config, dict):
        raise InputError.value(
            "env._target_",
            config.env.target,
            "be an environment of labrl",
            fix="For a Gymnasium environment, set env=gymnasium env.id=null env.name=<name> "
            f"'env.make={{_target_: {config.env.target}}}'",
            code="target",
        )
    return config
