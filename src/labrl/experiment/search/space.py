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
from hydra_plugins.hydra_optuna_sweeper._impl import create_optuna_distribution_from_override
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from labrl.config.compose import compose
from labrl.config.keys import key_of, quoted
from labrl.errors import Code, InputError, first_line
from labrl.processes.secrets import redact
from labrl.run.provenance import as_yaml

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution

OF_THE_SEARCH = re.compile(r"[+~]*(search[=./@]|search$|meta\.max_trial=)")
"""Overrides that control the search and are not part of its trials."""

BEST = "experiment/best.yaml"
"""File in the experiment folder. It lets that folder be passed as --config-dir, so that the option
experiment=best is available."""

WRONG = (
    *(OverrideParseException, ValueError, TypeError),
    *(AssertionError, NotImplementedError, ArithmeticError),
)
"""Errors of Hydra, its sweeper and Optuna for ranges that cannot be searched."""

EXAMPLES = "key=interval(0.1, 1), 'key=tag(log, interval(0.1, 1))', key=choice(1,2) or key=range(1,9)"


@dataclass(frozen=True)
class Space:
    """The searched keys with their distributions, and the configurations of the trials of a search."""

    distributions: dict[str, Distribution]
    """Distributions by full key; the key of a new value begins with `+`."""
    fixed: list[str]
    """Overrides of the command line that all trials share, in order."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """The option of each group in all trials, whether or not it is set on the command line."""
    config_dir: str | None = None
    """Folder with the user's own groups."""

    @classmethod
    def of(
        cls,
        ready: Mapping[str, Any],
        overrides: Sequence[str],
        choices: Mapping[str, str] | None = None,
        config_dir: str | None = None,
    ) -> Space:
        """Build the space from `search.space` with `hydra.sweeper.params`, and the command line, which wins.

        Raises InputError if a range is empty or cannot be parsed, or if no key is searched.
        """
        searched: dict[str, tuple[str, Distribution]] = {}
        fixed: dict[str, str] = {}
        own = [
            f"{key}={value if isinstance(value, str) else as_override(value)}" for key, value in ready.items()
        ]
        for override in [*own, *overrides]:
            key, found = key_of(override), _parsed(override)
            if OF_THE_SEARCH.match(override):
                if found is not None:
                    why = "it is of the whole search, which has one value of it"
                    raise InputError.usage(override, why, "Run one search for each value")
                continue
            searched.pop(key, None)
            fixed.pop(key, None)
            if found is not None:
                searched[key] = found
            else:  # A removed key may be added again: ~agent.lr +agent.lr={...}
                fixed[override if override.startswith("~") else key] = override
        if not searched:
            fix = "search=ppo, or the range of a key, such as 'agent.lr=tag(log, interval(1e-5, 1e-2))'"
            raise InputError.missing("search", "there is nothing to search", fix)
        if "seed" in searched:
            why = "a seed cannot be searched, because a lucky result does not carry over to other seeds"
            fix = "meta.max_session=<number of seeds> to score each trial by its mean over several seeds"
            raise InputError.unsupported("seed", why, fix)
        return cls(dict(searched.values()), list(fixed.values()), choices or {}, config_dir)

    def as_json(self) -> dict[str, Any]:
        """Return the distributions by key as plain data, equal for equal spaces."""
        return {key: json.loads(distribution_to_json(one)) for key, one in self.distributions.items()}

    def first(self) -> dict[str, Any]:
        """Return the first choice or the lower end of the range of each key."""
        return {
            key: one.choices[0] if isinstance(one, CategoricalDistribution) else one.low
            for key, one in self.distributions.items()
        }

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of the trial with the values `params`. A searched group without a value in
        `params` has its first option."""
        groups = {key: value for key, value in self.first().items() if "." not in key}
        values = [f"{key}={as_override(value)}" for key, value in {**groups, **params}.items()]
        overrides = [*self.fixed, *values]
        typed = set(map(key_of, overrides))
        named = [
            f"{group}={self.choices[group]}"
            for group in ("agent", "env")
            if group not in typed and group in self.choices
        ]
        return [*named, *overrides]

    def compose(self, params: Mapping[str, Any], *more: str) -> DictConfig:
        """Return the configuration with the values `params` and the overrides `more`. Raises InputError."""
        return compose([*self.overrides(params), *more], self.config_dir)

    def command(self, params: Mapping[str, Any]) -> str:
        """Return the shell command of the trial with the values `params`."""
        where = ["--config-dir", self.config_dir] if self.config_dir else []
        return shlex.join(["labrl", *where, *redact(self.overrides(params))])

    def as_yaml(self, params: Mapping[str, Any], home: Path, told: Sequence[str]) -> str:
        """Return a YAML file for the group `experiment`. told: lines of comments."""
        keys, parents, groups, left_out = OmegaConf.create(), [], [], ""
        for override in OverridesParser.create().parse_overrides(self.overrides(params)):
            key = override.key_or_group
            if override.is_delete() or override.package is not None:
                left_out += f" {shlex.quote(redact([str(override.input_line)])[0])}"
            elif key == "experiment":
                parents.append(str(override.value()))  # experiment=best replaces it
            elif key in self.choices:
                groups.append({f"override /{key}": str(override.value())})
            else:
                OmegaConf.update(keys, key, override.value(), force_add=True)
        comments = [
            f"labrl --config-dir {shlex.quote(str(home))} experiment=best",
            *told,
            self.command(params),
        ]
        if left_out:
            comments.append(f"for the command line, because a file cannot contain it:{left_out}")
        body = {"defaults": [*parents, "_self_", *groups], **OmegaConf.to_container(keys)}  # type: ignore[dict-item]
        return "# @package _global_\n" + "".join(f"# {line}\n" for line in comments) + as_yaml(body)


def _parsed(text: str) -> tuple[str, Distribution] | None:
    """Return the key and the distribution of an override with a range; None for any other override."""
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
        if override.is_delete() or not override.is_sweep_override():
            return None
        value = override.value()
        if isinstance(value, Sweep) and (unknown := value.tags - {"log"}):
            raise ValueError(f"a range has no tag {', '.join(sorted(unknown))}, only log")
        return override.get_key_element(), create_optuna_distribution_from_override(override)
    except WRONG as error:
        code: Code = "syntax" if isinstance(error, OverrideParseException) else "range"
        fix = f"Write {EXAMPLES}"
        raise InputError.about(text, first_line(error), fix, code=code, key=key_of(text)) from error


def as_override(value: Any) -> str:
    """Return the value in Hydra's syntax. A text in brackets or quotes already has this syntax."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and not re.match(r"[\[{'\"]|\w[\w./()+, -]*$", value):
        return quoted(value)
    return str(value)
