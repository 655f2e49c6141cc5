"""The checks of a search before its first trial."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import resolve, to_plain
from labrl.config.extensions import kinds_replace
from labrl.config.keys import ABSENT, changes, walk
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.errors import InputError, LabrlError
from labrl.experiment.search.options import AshaPruner, HyperbandPruner, MedianPruner, NoPruner, Pruner
from labrl.experiment.search.pruning import default_grace
from labrl.experiment.search.recipe import Recipe
from labrl.experiment.search.settings import not_its
from labrl.trial.trial import check


def check_space(recipe: Recipe, ready: str = "none", keys: Collection[str] = ()) -> TrialConfig:
    """Check the space of a search by composing it. Return the configuration without searched values.

    ready: the option of `search`, whose space has the `keys`. Raises InputError for a key or an option that
    does not exist, and for a range with a value that its key does not allow.
    """
    corners = recipe.space.corners()
    first = {key: values[0] for key, values in corners.items()}
    default = to_plain(recipe.compose({}))
    firsts = _together(recipe, first, ready, keys)
    for key, values in corners.items():
        for value in values:
            if _is_key(default, key):
                _check_value(recipe, default, key, value)
                continue
            recipe.compose({key: value})
            composed = _together(recipe, {**first, key: value}, ready, keys)
            if key.startswith("+"):
                _check_own(composed, key, recipe.space.written[key])
    filled = OmegaConf.create(default)
    for key in first:  # Keys that the space adds, such as `+agent.lr`.
        if key.startswith("+") and not _is_key(default, key[1:]):
            OmegaConf.update(filled, key[1:], OmegaConf.select(OmegaConf.create(firsts), key[1:]))
    config = resolve(filled)
    check(config)
    return config


def _together(recipe: Recipe, values: Mapping[str, Any], ready: str, keys: Collection[str]) -> dict[str, Any]:
    """Compose the trial with these values.

    Raises InputError if a searched key does not exist with other values, such as `agent.epochs` with
    agent=dqn.
    """
    try:
        return to_plain(recipe.compose(values))
    except LabrlError as error:
        groups = {key: value for key, value in values.items() if "/" in key or "." not in key}
        chosen = to_plain(recipe.compose(groups))
        lacking = [key for key in recipe.space.distributions if key in keys and not _is_key(chosen, key)]
        if lacking:
            agent = str(values.get("agent", recipe.choices["agent"]))
            raise not_its(ready, lacking, agent) from error
        raise InputError.of(
            dataclasses.replace(one, message=f"the search space does not fit: {one.message}")
            for one in error.mistakes
        ) from error


def check_ready(name: str, recipe: Recipe) -> None:
    """Raise InputError if the option `name` of `search` sets keys that trials do not get from it."""
    base, brought = to_plain(recipe.compose({})), to_plain(recipe.compose({}, f"search={name}"))
    lost = [
        change
        for change in changes(base, brought)
        if change.key not in ("seed", "meta.max_trial") and not change.key.startswith("search.")
    ]
    if lost:
        told = " ".join(f"{change.key}={change.new}" for change in lost[:5])
        raise InputError(
            f"search={name} sets {told}{' ...' if len(lost) > 5 else ''}, which trials would not get: they "
            "take only search.space and the agent from it. Type these overrides on the command line, or "
            "put them into an option of experiment (experiment=<name>).",
            code="unsupported",
            key="search",
        )


def check_pruner(pruner: Pruner, config: TrialConfig) -> None:
    """Raise InputError for a pruner to which no trial would report before its end."""
    budget, every = config.env.config.max_frame, config.eval_frames
    if isinstance(pruner, NoPruner):
        return
    last = (budget - 1) // every * every
    if last == 0:
        raise InputError(
            f"search.pruner={pruner.kind} stops trials at evaluation checkpoints, but with "
            f"meta.eval_frequency={every} and env.max_frame={budget} the only one is at the end of the "
            f"budget. Set meta.eval_frequency={max(1, budget // 10)} or search/pruner=none",
            code="contradiction",
            key="meta.eval_frequency",
        )
    first = 0
    if isinstance(pruner, AshaPruner | HyperbandPruner):
        key, first = "search.pruner.grace_period", pruner.grace_period or default_grace(budget)
    elif isinstance(pruner, MedianPruner):
        key, first = "search.pruner.warmup", pruner.warmup
    if first > last:
        raise InputError(
            f"{key}={first} would let every trial reach its end, because the last evaluation before the end "
            f"is at frame {last} (meta.eval_frequency={every}, env.max_frame={budget}). "
            f"Set {key} to at most {last}, or search/pruner=none",
            code="contradiction",
            key=key,
        )


def _is_key(plain: Mapping[str, Any], key: str) -> bool:
    """Return whether `key` is a value of the configuration, not a group or a new key."""
    node = dict(walk(plain)).get(key, ABSENT)
    is_group = "/" in key or (isinstance(node, Mapping) and "." not in key)
    return node is not ABSENT and not is_group


def _check_value(recipe: Recipe, default: Mapping[str, Any], key: str, value: Any) -> None:
    """Raise InputError if `key` does not allow `value`, whatever the other values are.

    The value is set directly, because composing with Hydra takes a hundred times as long.
    """
    (override,) = OverridesParser.create().parse_overrides(recipe.space.overrides({key: value})[-1:])
    changed = OmegaConf.create(dict(default))
    try:
        with kinds_replace():
            OmegaConf.update(changed, key, override.value(), merge=True)
        plain = to_plain(changed)
    except (OmegaConfBaseException, LabrlError):
        to_plain(recipe.compose({key: value}))  # raises the right error, if there is one
        return
    _check_own(plain, key, recipe.space.written[key])


def _check_own(plain: Mapping[str, Any], key: str, written: str) -> None:
    """Raise InputError for an error of `key` alone.

    Contradictions with other keys are left to the trial, because other values of these may be right.
    """
    try:
        dataclass_of(TrialConfig, plain)
    except InputError as error:
        own = re.compile(re.escape(key.lstrip("+")) + r"(?!\w)")
        wrong = [mistake for mistake in error.mistakes if own.match(mistake.key or "")]
        if wrong:
            whole = re.sub(r"(interval\([^)]*\))", r"int(\1)", written)
            hint = f" For whole numbers, write '{whole}'" if "whole number" in wrong[0].message else ""
            first = wrong[0]
            message = f"{written}: {first.message}{hint}"
            raise InputError(message, code=first.code, key=first.key) from error
