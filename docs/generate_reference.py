"""Write docs/reference/keys/ (all configuration keys) and docs/reference/python.md (the Python API).

    python docs/generate_reference.py

Types and meanings come from the config dataclasses and the docstrings of their fields, defaults from the YAML
files in configs/, functions and methods from their signatures and docstrings.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import hydra
from omegaconf import OmegaConf

from labrl import types as scalars
from labrl.component import Component, load_target
from labrl.config import config_folder
from labrl.config.compose import hydra_initialized, prepare
from labrl.config.keys import traits
from labrl.config.schema import TrialConfig
from labrl.config.traits import Traits, annotation, dataclasses_in
from labrl.experiment.search import options
from labrl.networks.layers import Activation

UNIONS = (Union, types.UnionType)

PAGES = {
    "agent": ("Agents", ["agent"]),
    "network": ("Networks and optimizers", ["agent/network", "agent/optimizer"]),
    "memory": ("Replay buffers and offline data", ["agent/memory", "agent/offline"]),
    "parts": (
        "Parts of agents",
        ["agent/exploration", "agent/value", "agent/target", "agent/noise", "agent/self_imitation"],
    ),
    "env": ("Environments", ["env"]),
    "transforms": ("Transforms of observations and rewards", ["transforms/observation", "transforms/reward"]),
    "meta": ("How a trial is run", ["meta", "meta/async_unroll"]),
    "search": ("Searches", ["search", "search/pruner"]),
    "wandb": ("Weights & Biases", ["wandb"]),
}
"""Title and groups of each page, by file name."""


GROUPS = {"agent.network.torso": "agent/network"}
"""Groups of keys whose name differs from that of the group."""


@dataclass(frozen=True)
class Row:
    """Row of the table for one key."""

    key: str
    type: str
    values: Mapping[str, Any]
    """Default of each option that has the key."""
    meaning: str


def options_of(group: str) -> list[str]:
    """Return the names of the options of `group`."""
    return sorted(file.stem for file in (config_folder() / group).glob("*.yaml"))


@cache
def node_of(group: str, option: str) -> Any:
    """Return the node that an option composes at the key of its group, with unresolved interpolations."""
    prepare()
    with hydra_initialized(None):
        if group in ("search", "meta"):  # options that depend on the chosen agent, so on config.yaml
            composed = hydra.compose("config", overrides=["preset=none", f"{group}={option}"])
        else:
            composed = hydra.compose(f"{group}/{option}")
    node: Any = OmegaConf.to_container(composed, resolve=False)
    for name in key_of(group).split("."):
        node = node[name]
    return node


def key_of(group: str) -> str:
    """Return the key at which the options of `group` are composed."""
    by_group = {filled: key for key, filled in GROUPS.items()}
    return by_group.get(group, group.replace("/", "."))


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass and its base classes, in one line."""
    found: dict[str, str] = {}
    for kind in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(field.target, ast.Name)
                assert isinstance(below.value, ast.Constant)
                found[field.target.id] = " ".join(str(below.value.value).split())
    return found


@cache
def named_types() -> list[tuple[Any, str]]:
    """Return the scalar types of labrl.types, and those of a search, with their docstrings."""
    found = []
    for module in (scalars, options):
        body = ast.parse(inspect.getsource(module)).body
        for assigned, text in itertools.pairwise(body):
            if isinstance(assigned, ast.Assign) and isinstance(text, ast.Expr):
                (target,) = assigned.targets
                assert isinstance(target, ast.Name)
                assert isinstance(text.value, ast.Constant)
                found.append((getattr(module, target.id), " ".join(str(text.value.value).split())))
    return found


def type_of(hint: Any) -> str:
    """Describe a type hint in words."""
    if get_origin(hint) is Annotated and annotation(hint, Traits):
        kept = [one for one in hint.__metadata__ if not isinstance(one, Traits)]
        return type_of(Annotated[(hint.__origin__, *kept)] if kept else hint.__origin__)
    for known, text in named_types():
        if known == hint:
            return text
    if hint is type(None):
        return "null"
    if hint is Component:
        return "a part with a `_target_`"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_of(arguments[0])
    if origin is Literal:
        if hint == Activation:
            return "an elementwise class of `torch.nn`, such as `ReLU` or `Tanh`"
        return ", ".join(f"`{shown(one)}`" for one in arguments)
    if origin in UNIONS:
        kinds = [one for one in arguments if not dataclasses.is_dataclass(one)]
        return " or ".join(
            [*map(type_of, kinds), *(["a group of keys"] if len(kinds) < len(arguments) else [])]
        )
    if origin is list:
        return f"list of {type_of(arguments[0])}"
    if origin is dict:
        return "group of keys"
    names = {int: "integer", float: "number", bool: "`true` or `false`", str: "text"}
    return names.get(hint, "a group of keys")


def shown(value: Any) -> str:
    """Return `value` in YAML syntax, in one line."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shown(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}".replace("e+0", "e").replace("e-0", "e-")
    return str(value)


def rows(cls: type, nodes: Mapping[str, Mapping[str, Any]], key: str) -> Iterator[Row]:
    """Yield the keys of the dataclass `cls` below `key`. nodes: composed node of each option."""
    hints = get_type_hints(cls, include_extras=True)
    meanings = field_docstrings(cls)
    for field in dataclasses.fields(cls):
        hint, full = hints[field.name], f"{key}.{field.name}"
        inner = {option: node[field.name] for option, node in nodes.items() if field.name in node}
        kinds = list(dataclasses_in(hint))
        if full in GROUPS or (is_group(full) and hint not in kinds):
            yield Row(
                full, f"an option of `{GROUPS.get(full, full.replace('.', '/'))}`", {}, meanings[field.name]
            )
        elif hint is Component or (get_origin(hint) in UNIONS and Component in get_args(hint)):
            yield from component_rows(inner, full, meanings[field.name])
        elif len(kinds) == 1 and kinds[0] is hint:
            yield from rows(kinds[0], inner, full)
        else:
            yield Row(full, type_of(hint), inner, meanings[field.name])
            if len(kinds) == 1:
                nested = {option: node for option, node in inner.items() if isinstance(node, dict)}
                yield from rows(kinds[0], nested, full)


def component_rows(nodes: Mapping[str, Any], key: str, meaning: str) -> Iterator[Row]:
    """Yield a part that is not an option of a group, and the keys of the default part."""
    targets = {option: node["_target_"] for option, node in nodes.items() if isinstance(node, dict)}
    yield Row(key, "a part with a `_target_`", {**dict.fromkeys(nodes), **targets}, meaning)
    for target in dict.fromkeys(targets.values()):
        config = getattr(load_target(target), "Config", None)
        inner = {option: nodes[option] for option, one in targets.items() if one == target}
        if config is not None:
            yield from rows(config, inner, key)


def is_group(key: str) -> bool:
    """Return whether the value of `key` is selected as the option of a group."""
    return (config_folder() / key.replace(".", "/")).is_dir()


MOST_DEFAULTS = 4
"""Largest number of different defaults that a cell shows."""

DIFFERENT = "depends on the option"

FEW_OPTIONS = 4
"""Largest number of options that a cell names for one default."""


def default_of(values: Mapping[str, Any]) -> str:
    """Return the default; if options differ, the most frequent one, then the others with their options."""
    by_text: dict[str, list[str]] = {}
    for option, value in values.items():
        by_text.setdefault(f"`{shown(value)}`", []).append(option)
    if len(by_text) > MOST_DEFAULTS:
        return DIFFERENT
    usual, *others = sorted(by_text, key=lambda text: -len(by_text[text])) or [""]
    if any(len(by_text[text]) > FEW_OPTIONS for text in others):
        return DIFFERENT
    return "; ".join([usual, *(f"{', '.join(by_text[text])}: {text}" for text in others)])


@dataclass(frozen=True)
class Section:
    """Section of a page, for one dataclass of options."""

    title: str
    text: str
    rows: list[Row]
    options: list[str]
    """The options in the form that is typed, `agent=ppo`."""


def sections_of(group: str) -> Iterator[Section]:
    """Yield a section for each class that options of `group` configure."""
    by_class: dict[type, dict[str, Any]] = {}
    for option in options_of(group):
        node = node_of(group, option)
        cls = class_of(key_of(group), node) if isinstance(node, dict) else None
        if cls is not None:
            by_class.setdefault(cls, {})[option] = node
    for cls, configured in by_class.items():
        typed = [f"`{group}={option}`" for option in configured]
        text = inspect.cleandoc(cls.__doc__ or "")
        named = re.match(r"Options of (?:the )?(.+?)[.,;]", text)
        title = named[1] if named and len(typed) > 1 else ", ".join(typed)
        yield Section(title, text, list(rows(cls, configured, key_of(group))), typed)


FEWEST_SHARED = 4
"""Smallest number of keys for which a page has a section of keys that several sections share."""


def with_shared_rows_once(sections: Sequence[Section]) -> list[Section]:
    """Return the sections, after one with the rows that are the same in several of them."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in itertools.chain.from_iterable(section.rows for section in sections):
        found.setdefault((row.key, row.type, row.meaning), []).append(row)
    shared = {same: rows for same, rows in found.items() if len(rows) > 1}
    if len(shared) < FEWEST_SHARED:
        return list(sections)
    merged = [
        Row(*same[:2], {option: value for row in rows for option, value in row.values.items()}, same[2])
        for same, rows in shared.items()
    ]
    first = Section("Shared keys", "Keys that mean the same in several sections below.", merged, [])
    differing = {row.key for row in merged if default_of(row.values) == DIFFERENT}
    return [first, *(_without(section, set(shared), differing) for section in sections)]


def _without(section: Section, shared: set[tuple[str, str, str]], differing: set[str]) -> Section:
    own = [row for row in section.rows if (row.key, row.type, row.meaning) not in shared]
    others = [
        f"`{row.key}`" + (f" ({default_of(row.values)})" if row.key in differing else "")
        for row in section.rows
        if row not in own
    ]
    text = f"{section.text}\n\n[Shared](#shared-keys): {', '.join(others)}." if others else section.text
    return dataclasses.replace(section, text=text, rows=own)


def class_of(key: str, node: Mapping[str, Any]) -> type | None:
    """Return the dataclass of the options that a file sets for `key`; None if there is none."""
    if "_target_" in node:
        return getattr(load_target(node["_target_"]), "Config", None)
    hint: Any = TrialConfig
    for name in key.split("."):
        (cls, *_) = dataclasses_in(hint)
        hint = get_type_hints(cls, include_extras=True)[name]
    for shape in dataclasses_in(hint):
        kind = get_type_hints(shape).get("kind")
        if kind is None or get_args(kind)[0] == node.get("kind"):
            return shape
    return None


def page(title: str, sections: Iterable[Section]) -> str:
    """Return a page of the reference in Markdown."""
    lines = [f"# {title}", "", NOTE]
    for section in with_shared_rows_once(list(sections)):
        options = ", ".join(section.options)
        lines += ["", f"## {section.title}", ""]
        if options not in ("", section.title):
            lines += [options, ""]
        lines += [section.text, ""]
        if not section.rows:
            lines.append("No keys of its own." if "#shared-keys" in section.text else "No keys.")
            continue
        lines += ["| key | meaning | type and range | default |", "|---|---|---|---|"]
        for row in section.rows:
            resume = " *May change at a resume.*" if traits(row.key).resume else ""
            cells = (f"`{row.key}`", row.meaning + resume, row.type, default_of(row.values))
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


NOTE = (
    "Generated by `make reference` from the config dataclasses and `configs/`; [how to read it](README.md)."
)

README = """# Configuration reference

Every key of labrl's configuration, generated from the config dataclasses and the YAML files in `configs/`.

{links}

- **type and range**: `[0, 1)` includes 0 but not 1. Schedules are described in
  [configuration](../configuration.md#schedules).
- **default**: the value in the YAML file of the option. If options differ, the most frequent value is first,
  and the others follow their options. Presets change some values for a pair of agent and environment:
  `labrl --cfg job agent=<agent> env=<environment>` prints the values of a run. `???` marks required keys.
- *May change at a resume*: `labrl +resume=<run> <key>=<value>` accepts these keys, because they do not affect
  what was learned before. Any other change is refused.
- **Shared keys** are listed once at the top of a page; each section names those that it has.
- Frames are agent steps, summed over the environments of a session.
"""


API = {
    "Train and use": [
        "labrl.train",
        "labrl.trial.result.TrialResult",
        "labrl.run.session.SessionResult",
        "labrl.sweep",
        "labrl.experiment.result.SweepResult",
        "labrl.load",
        "labrl.play.policy.LoadedPolicy",
        "labrl.play.policy.Evaluation",
        "labrl.runs",
        "labrl.run.run.Run",
    ],
    "Errors": ["labrl.errors.LabrlError", "labrl.errors.InputError", "labrl.trial.result.TrialError"],
    "Agents": [
        "labrl.agents.agent.Agent",
        "labrl.agents.agent.Observation",
        "labrl.agents.agent.Traits",
        "labrl.step.Step",
        "labrl.step.Episode",
        "labrl.agents.policy_agent.PolicyAgent",
        "labrl.agents.ppo.PPO",
        "labrl.agents.dqn.DQN",
        "labrl.agents.replay_agent.ReplayAgent",
        "labrl.agents.sac.SAC",
        "labrl.agents.parts.action_values.ActionValues",
        "labrl.agents.parts.targets.TargetNetwork",
        "labrl.memory.Minibatch",
        "labrl.memory.Transitions",
        "labrl.learning.learner.Learner",
    ],
    "Networks": ["labrl.networks.building.TorsoTraits", "labrl.networks.recurrent.Recurrent"],
    "Replay buffers and explorations": [
        "labrl.memory.replay.Replay",
        "labrl.memory.transition_ring.TransitionRing",
        "labrl.agents.parts.exploration.Exploration",
    ],
    "Transforms": ["labrl.agents.transforms.Transform"],
    "Callbacks": ["labrl.session.callbacks.callback.Callback"],
}
"""Functions and classes in each section of python.md."""

MEMBERS = {
    "labrl.play.policy.LoadedPolicy": ("networks", "network", "reset", "act", "env", "evaluate", "close"),
    "labrl.run.run.Run": (
        *("status", "provenance", "config", "overrides", "name", "agent", "env", "seed", "created"),
        *("max_frame", "evaluates", "sessions", "warnings", "table"),
    ),
    "labrl.agents.ppo.PPO": ("objective", "lr"),
    "labrl.agents.dqn.DQN": ("loss", "sequence_loss", "objective"),
    "labrl.agents.replay_agent.ReplayAgent": ("update", "descend"),
    "labrl.agents.sac.SAC": ("update", "critic_loss", "policy_loss"),
    "labrl.memory.Minibatch": ("observation",),
    "labrl.memory.Transitions": ("index",),
}
"""The methods and properties of a class that are for users, if not all of them are."""

RETURNED = ("labrl.play.policy.LoadedPolicy", "labrl.run.run.Run")
"""Classes whose objects users receive and never make."""


def api_page() -> str:
    """Return the page on the Python API in Markdown."""
    lines = [
        "# Python",
        "",
        "Generated by `make reference` from the code; [extend](../how-to/extend.md) shows examples.",
    ]
    for section, names in API.items():
        lines += ["", f"## {section}"]
        for name in names:
            lines += ["", *api_of(name)]
    return "\n".join(lines) + "\n"


def api_of(name: str) -> Iterator[str]:
    """Yield the lines about a function or class. name: its full name, with the module."""
    module, _, short = name.rpartition(".")
    found = getattr(importlib.import_module(module), short)
    yield from [f"### `{short}`", ""]
    if not dataclasses.is_dataclass(found) and name not in RETURNED:
        kind = "class " if isinstance(found, type) else ""
        yield from ["```python", f"{kind}{short}{signature(found)}", "```", ""]
    yield inspect.getdoc(found) or ""
    if module != "labrl":
        yield from ["", f"In `{module}`."]
    if not isinstance(found, type):
        return
    meanings = field_docstrings(found) if dataclasses.is_dataclass(found) else {}
    fields = [one.name for one in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
    values = {one: meanings.get(one, "") for one in fields}
    methods = {}
    for member, function in vars(found).items():
        wrapped = ("__func__", "fget", "func")
        plain = next((getattr(function, one) for one in wrapped if hasattr(function, one)), function)
        if member.startswith("_") or not inspect.isfunction(plain) or member not in MEMBERS.get(name, member):
            continue
        if isinstance(function, property | cached_property):
            values[member] = " ".join((inspect.getdoc(plain) or "").split())
        else:
            methods[member] = plain
    if values:
        yield ""
        yield from (f"- `{value}`: {meaning}".rstrip(": ") for value, meaning in values.items())
    for method, plain in methods.items():
        yield from [
            "",
            "```python",
            f"{short}.{method}{signature(plain)}",
            "```",
            "",
            inspect.getdoc(plain) or "",
        ]


def signature(function: Any) -> str:
    """Return the signature without `self`, with types as written in the code."""
    found = inspect.signature(function)
    kept = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    kept = [one.replace(default=...) if "factory" in repr(one.default) else one for one in kept]
    return str(found.replace(parameters=kept)).replace("'", "")


def pages() -> dict[str, str]:
    """Return the content of every page, by its path below docs/reference/."""
    found = {
        f"keys/{name}.md": page(title, itertools.chain.from_iterable(map(sections_of, groups)))
        for name, (title, groups) in PAGES.items()
    }
    titles = {f"{name}.md": title for name, (title, _) in PAGES.items()}
    links = "\n".join(f"- [{title}]({file})" for file, title in titles.items())
    return {"keys/README.md": README.format(links=links), **found, "python.md": api_page()}


def main() -> None:
    """Write the pages that have changed."""
    folder = Path(__file__).parent / "reference"
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
