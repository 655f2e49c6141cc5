"""The space of a search, the overrides of its trials, and the best configuration as a command and a file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import OverrideParseException
from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl, create_params_from_overrides
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from labrl.config.compose import compose
from labrl.config.keys import key_of, quoted
from labrl.errors import InputError, first_line
from labrl.processes.secrets import redact
from labrl.run.provenance import as_yaml

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution

OF_THE_SEARCH = re.compile(r"[+~]*(search[=./@]|search$|meta\.max_trial=)")
"""Overrides that control the search and are not part of its trials."""


_SWEPT = re.compile(r"(choice|range|interval|glob|sort|shuffle|tag|cast)\s*\(")


@dataclass(frozen=True)
class Space:
    """Searched keys with their distributions, and the overrides that all trials share."""

    distributions: dict[str, Distribution]
    """Distributions by full key; the key of a new value begins with `+`."""
    fixed: list[str]
    """Overrides of the command line that all trials share, in order."""
    written: dict[str, str] = field(default_factory=dict)
    """Ranges by key as the user wrote them, for messages."""

    @classmethod
    def of(cls, ready: Mapping[str, str], params: Mapping[str, Any], overrides: Sequence[str]) -> Space:
        """Build the space from `search.space`, `hydra.sweeper.params` and the command line; later values win.

        Raises InputError if a range is empty or cannot be parsed, or if no key is searched.
        """
        searched: dict[str, tuple[str, Distribution, str]] = {}
        fixed: dict[str, list[str]] = {}
        # Text of a file with a range or choices is in Hydra's syntax already.
        own = [
            f"{key}={value if isinstance(value, str) and _SWEPT.match(value) else _as_override(value)}"
            for key, value in {**ready, **params}.items()
        ]
        for override in [*own, *(override for override in overrides if not OF_THE_SEARCH.match(override))]:
            key = key_of(override)
            searched.pop(key, None)
            # A removed key may be added again: ~agent.lr +agent.lr={...}
            gone = [one for one in fixed.pop(key, []) if one.startswith("~") and override.startswith("+")]
            found = _parsed(override)
            if found is None:
                fixed[key] = [*gone, override]
            else:
                fixed[key] = gone
                searched[key] = (*found, override)
        written = {name: override for name, _, override in searched.values()}
        if not searched:
            fix = "search=ppo, or the range of a key, such as 'agent.lr=tag(log, interval(1e-5, 1e-2))'"
            raise InputError.missing("search", "there is nothing to search", fix)
        if "seed" in searched:
            why = "a seed cannot be searched, because a lucky result does not carry over to other seeds"
            fix = "meta.max_session=<number of seeds> to score each trial by its mean over several seeds"
            raise InputError.about(written["seed"], why, fix, code="unsupported", key="seed")
        distributions = {name: one for name, one, _ in searched.values()}
        return cls(
            distributions, [override for overrides in fixed.values() for override in overrides], written
        )

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of the trial with the values `params`."""
        return [*self.fixed, *(f"{key}={_as_override(value)}" for key, value in params.items())]

    def as_json(self) -> dict[str, Any]:
        """Return the distributions by key as plain data, equal for equal spaces."""
        return {key: json.loads(distribution_to_json(one)) for key, one in self.distributions.items()}

    def grid(self) -> dict[str, list[Any]]:
        """Return all values of each key, for the grid sampler. Raises InputError for a continuous range."""
        values = {}
        for key, one in self.distributions.items():
            try:
                values[key] = list(OptunaSweeperImpl._to_grid_sampler_choices(one))
            except ValueError as error:
                why = "the grid sampler needs a finite set of values"
                fix = f"{key}=choice(...) or {key}=range(...)"
                raise InputError.about(
                    self.written[key], why, fix, code="unsupported", key=key_of(key)
                ) from error
        return values

    def first(self) -> dict[str, Any]:
        """Return the first choice or the lower end of the range of each key."""
        return {
            key: one.choices[0] if isinstance(one, CategoricalDistribution) else one.low
            for key, one in self.distributions.items()
        }


def _parsed(override: str) -> tuple[str, Distribution] | None:
    """Return the key and the distribution of an override with a range; None for any other override."""
    try:
        searched, _, _ = create_params_from_overrides([override])
    except OverrideParseException as error:
        fix = (
            "Write key=interval(0.1, 1), 'key=tag(log, interval(0.1, 1))', key=choice(1,2) or key=range(1,9)"
        )
        raise InputError.about(
            override, "this cannot be read", fix, code="syntax", key=key_of(override)
        ) from error
    # Hydra's sweeper and Optuna raise these for ranges that cannot be searched.
    except (ValueError, TypeError, AssertionError, NotImplementedError, ArithmeticError) as error:
        why = first_line(str(error)) or "this range cannot be searched"
        raise InputError.about(override, why, code="range", key=key_of(override)) from error
    value = OverridesParser.create().parse_override(override).value()
    if isinstance(value, Sweep) and (unknown := value.tags - {"log"}):
        why = f"a range has no tag {', '.join(sorted(unknown))}, only log"
        raise InputError.about(override, why, code="range", key=key_of(override))
    found: Any = next(iter(searched.items()), None)
    return found


def _as_override(value: Any) -> str:
    """Return the value in Hydra's syntax. A text in brackets or quotes already has this syntax."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and not re.match(r"[\[{'\"]|\w[\w./()+, -]*$", value):
        return quoted(value)
    return str(value)


BEST = "experiment/best.yaml"
"""File in the experiment folder. It lets that folder be passed as --config-dir, so that the option
experiment=best is available."""


@dataclass(frozen=True)
class Recipe:
    """Composes the configurations of the trials of a search."""

    space: Space
    choices: Mapping[str, str]
    """The option of each group in all trials, whether or not it is set on the command line."""
    how: list[str]
    """Overrides that determine how a trial of a search is run, and do not affect learning."""
    config_dir: str | None = None
    """Folder with the user's own groups."""

    def compose(self, params: Mapping[str, Any], *more: str) -> DictConfig:
        """Return the configuration with the values `params` and the overrides `more`. Raises InputError."""
        return compose([*self.configuration(params), *more], self.config_dir)

    def overrides(self, params: Mapping[str, Any], seed: int, max_session: int | None = None) -> list[str]:
        """Return all overrides of the trial with the values `params`. max_session: number of sessions that
        replaces the search's number."""
        overrides = [*self.configuration(params), *self.how, f"seed={seed}"]
        return overrides if max_session is None else [*overrides, f"meta.max_session={max_session}"]

    def configuration(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of the trial with the values `params`, except those that determine
        how a trial is run. A searched group without a value in `params` has its first option."""
        groups = {key: value for key, value in self.space.first().items() if "." not in key}
        overrides = self.space.overrides({**groups, **params})
        typed = set(map(key_of, overrides))
        named = [f"{group}={self.choices[group]}" for group in ("agent", "env") if group not in typed]
        return [*named, *overrides]

    def command(self, params: Mapping[str, Any]) -> str:
        """Return the shell command of the trial with the values `params`."""
        where = ["--config-dir", self.config_dir] if self.config_dir else []
        return shlex.join(["labrl", *where, *redact(self.configuration(params))])

    def as_yaml(self, params: Mapping[str, Any], home: Path, told: Sequence[str]) -> str:
        """Return a YAML file for the group `experiment`. told: lines of comments."""
        composed, keys = self.compose(params), OmegaConf.create()
        parents, groups = [], []
        left_out = ""
        for override in OverridesParser.create().parse_overrides(self.configuration(params)):
            key = override.key_or_group
            if override.is_delete() or override.package is not None:
                left_out += f" {shlex.quote(redact([str(override.input_line)])[0])}"
            elif key == "experiment":
                parents.append(str(override.value()))  # experiment=best replaces it
            elif key in self.choices:
                groups.append({f"override /{key}": str(override.value())})
            else:
                value = OmegaConf.select(composed, key)
                plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
                OmegaConf.update(keys, key, plain, force_add=True)
        comments = [
            f"labrl --config-dir {shlex.quote(str(home))} experiment=best",
            *told,
            self.command(params),
        ]
        if left_out:
            comments.append(f"for the command line, because a file cannot contain it:{left_out}")
        body = {"defaults": [*parents, "_self_", *groups], **OmegaConf.to_container(keys)}  # type: ignore[dict-item]
        return "# @package _global_\n" + "".join(f"# {line}\n" for line in comments) + as_yaml(body)
