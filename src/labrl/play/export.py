"""`labrl-export`: export a policy, including its observation transforms, for use without labrl.

The result is an ONNX model, or a program of `torch.export`, and a JSON file that describes its inputs and
outputs. Each export is checked: on the observations of recorded steps, it must choose the same actions as the
policy.
"""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.make import named_agents
from labrl.agents.random import uniform_actions
from labrl.envs.atari import AtariConfig
from labrl.envs.masks import KEY, choices
from labrl.errors import InputError, LabrlError
from labrl.networks.layers import tensor_type
from labrl.play.policy import LoadedPolicy
from labrl.run.atomic import write_json
from labrl.spaces import widths

Format = Literal["onnx", "torch"]
SUFFIX: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
TOLERANCE = 1e-5
"""Largest allowed difference between an export and its policy. For actions, it is relative to half the range
of each component. For the numbers from which actions are chosen, it is relative if a number exceeds 1."""
STEPS = 200
"""Number of observations on which an export is checked."""
FORMAT_VERSION = 1
MASK, STATE = "mask", "state"
ACTION, NEXT_STATE = "action", "next_state"

Arrays = dict[str, NDArray]


class ExportError(LabrlError):
    """Raised if an export does not choose the same actions as its policy."""

    codes = ("unsupported",)


class ExportedPolicy(nn.Module):
    """The complete computation from observations of the environment to actions for it."""

    def __init__(self, policy: LoadedPolicy, sampled: bool) -> None:
        """policy: the policy to export; sampled: whether actions are sampled rather than greedy. Raises
        InputError for an agent, a transform or a network that cannot be exported."""
        super().__init__()
        kind = policy.agent.TRAITS
        if not kind.exports:
            able = ", ".join(name for name, kind in named_agents().items() if kind.TRAITS.exports)
            why = f"{policy.trial.agent.target} has no network, or its class does not define `actor`"
            raise InputError.unsupported("agent", why, f"Agents of labrl that can be exported: {able}")
        if sampled and not kind.stochastic:
            why = f"agent {policy.agent.NAME} does not sample actions in evaluation: its policy is greedy"
            raise InputError.unsupported("--sampled", why, "Leave it out")
        self.actor = copy.deepcopy(policy.agent.actor(sampled)).eval().requires_grad_(False)
        for parameter in self.actor.parameters():
            parameter.data = parameter.data.clone()  # Each is part of one large vector, which would be saved.
        self.inputs = _spaces_of(policy.observation_space)
        """Space of each part of an observation by name, in the order of the inputs."""
        self.masked, self.state_size = policy.spaces.masked, self.actor.state_size
        self.action_type = tensor_type(np.dtype(policy.action_space.dtype or np.float32))
        self._several = isinstance(policy.observation_space, gym.spaces.Dict)
        self._transforms = policy.transforms
        self.flags = sum(choices(policy.action_space)) if self.masked else 0

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs of `forward`, in order."""
        return [*self.inputs, *([MASK] if self.masked else []), *([STATE] if self.state_size else [])]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs of `forward`, in order."""
        numbers = "values" if type(self.actor).__name__ == "ValueActor" else "parameters"
        return [ACTION, numbers, *([NEXT_STATE] if self.state_size else [])]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs of the policy, [n, ...] each, in the order of `output_names`.

        inputs: tensors, [n, ...] each, in the order of `input_names`.
        """
        named = dict(zip(self.input_names, inputs, strict=True))
        mask, state = named.pop(MASK, None), named.pop(STATE, None)
        seen: Any = self._transforms.forward_torch(named if self._several else next(iter(named.values())))
        action, numbers, state = self.actor(self.actor.layout(seen), mask, state)
        found = action.to(self.action_type), numbers
        return found if state is None or not self.state_size else (*found, state)

    def examples(self, count: int) -> tuple[Tensor, ...]:
        """Return example inputs with `count` rows, for tracing the module."""
        found = [
            torch.zeros((count, *(space.shape or ())), dtype=tensor_type(np.dtype(space.dtype)))
            for space in self.inputs.values()
        ]
        found += [torch.ones((count, self.flags), dtype=torch.bool)] if self.masked else []
        return (*found, *([torch.zeros((count, self.state_size))] if self.state_size else []))


def describe(facts: Mapping[str, Any]) -> str:
    """Return a sentence on what an export contains and how it was checked. facts: content of the export's
    JSON file."""
    checked = facts["checked"]
    content = f"{facts['head']} actions of session {facts['session']} at frame {facts['frame']:,}"
    difference = f"largest difference from the policy on {checked['observations']} observations"
    return f"{content}; {difference}: {checked['largest_difference']:.1g} ({checked['by']})"


def export(
    run: str,
    form: Format = "onnx",
    session: int | None = None,
    checkpoint: str = "best",
    sampled: bool = False,
    out: Path | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Export the policy of a run to a file, and write `<name>.json` beside it. Return the path of the export
    and the content of `<name>.json`.

    session: index of the session; None: the session with the highest evaluation score; sampled: whether
    actions are sampled rather than greedy; out: path of the export; None: a file in `exports/` of the run
    folder. Raises InputError if there is no such policy or it cannot be exported, and ExportError if the
    export does not choose the same actions as the policy.
    """
    if form not in get_args(Format):
        raise InputError.value("--format", form, "be onnx or torch")
    for package in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ():
        if importlib.util.find_spec(package) is None:
            raise InputError.not_installed("--format=onnx", package, "export", "--format torch")
    policy = LoadedPolicy.load(run, session, checkpoint, "fp32", "export")
    module = ExportedPolicy(policy, sampled)
    recorded = _record(policy)
    _check_greedy(policy, ExportedPolicy(policy, sampled=False), recorded)
    name = f"session_{policy.session}_frame_{policy.frame:012d}_{'sampled' if sampled else 'greedy'}"
    path = out or policy.folder / "exports" / f"{name}{SUFFIX[form]}"
    written = path.with_name(f".{path.name}.tmp{SUFFIX[form]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            _write(module, form, written)
        difference = _check(module, form, written, recorded)
        facts = _facts(policy, module, form, sampled, len(recorded.actions), difference)
        written.replace(path)
        write_json(path.with_suffix(".json"), facts)
    finally:
        written.unlink(missing_ok=True)
        policy.close()
    return path, facts


@dataclass(frozen=True)
class Recorded:
    """Steps that were played in the environment, with the policy's actions."""

    inputs: Arrays
    """Inputs of the exported module by name, except for the recurrent state. [steps, ...] each"""
    start: NDArray[np.bool_]
    """Whether each step is the first of its episode. [steps]"""
    actions: NDArray
    """Greedy action of the policy in each step. [steps, *action]"""


def _record(policy: LoadedPolicy) -> Recorded:
    """Play and record STEPS steps, a quarter of them with random actions so that observations are more
    varied."""
    env, chance = policy.env(), np.random.default_rng(0)
    names = list(_spaces_of(policy.observation_space))
    rows: list[Arrays] = []
    starts, actions = [], []
    try:
        env.action_space.seed(0)
        (observation, info), start = env.reset(seed=0), True
        for _ in range(STEPS):
            if start:
                policy.reset()
            mask = info[KEY] if policy.spaces.masked else None
            action = policy.act(observation, mask, greedy=True)
            parts = observation if isinstance(observation, dict) else {names[0]: observation}
            rows.append({**parts, **({} if mask is None else {MASK: mask})})
            starts.append(start)
            actions.append(action)
            if chance.random() < 0.25:
                masks = None if mask is None else mask[None]
                drawn = masks is not None and uniform_actions(env.action_space, 1, chance, masks)[0]
                action = env.action_space.sample() if masks is None else drawn
            observation, _, terminated, truncated, info = env.step(action)
            start = terminated or truncated
            if start:
                observation, info = env.reset()
    finally:
        env.close()
    inputs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return Recorded(inputs, np.array(starts), np.stack(actions))


def _spaces_of(space: gym.Space[Any]) -> dict[str, gym.Space[Any]]:
    return dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"observation": space}


Call = Callable[[Arrays], Arrays]
"""Function that maps a dict of inputs by name to a dict of outputs by name."""


def _played(call: Call, module: ExportedPolicy, recorded: Recorded) -> Arrays:
    """Return the outputs for recorded observations, [steps, ...] each. call: the module in one of its forms.

    With a recurrent state, steps are computed one after another. Otherwise all steps are computed at once,
    and the first step again as a batch of one.
    """
    if not module.state_size:
        found = call(recorded.inputs)
        first = call({name: rows[:1] for name, rows in recorded.inputs.items()})
        return {name: np.concatenate([rows, first[name]]) for name, rows in found.items()}
    state, rows = np.zeros((1, module.state_size), np.float32), []
    for step, start in enumerate(recorded.start):
        state = np.zeros_like(state) if start else state
        inputs = {name: values[step : step + 1] for name, values in recorded.inputs.items()}
        rows.append(call({**inputs, STATE: state}))
        state = rows[-1][NEXT_STATE]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _eager(module: Callable[..., Sequence[Tensor]], policy: ExportedPolicy) -> Call:
    """Wrap a PyTorch module as a function that takes and returns arrays."""

    def call(inputs: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = module(*(torch.from_numpy(inputs[name].copy()) for name in policy.input_names))
        return {name: tensor.numpy() for name, tensor in zip(policy.output_names, outputs, strict=True)}

    return call


def _check_greedy(policy: LoadedPolicy, module: ExportedPolicy, recorded: Recorded) -> None:
    """Raise ExportError unless the module chooses the greedy actions of the policy, or actions that are
    equally good."""
    found = _played(_eager(module, module), module, recorded)
    count = len(recorded.actions)
    actions, numbers = (found[name][:count] for name in module.output_names[:2])
    space = policy.action_space
    if isinstance(space, gym.spaces.Box):
        ours, theirs = actions.astype(np.float64), recorded.actions.astype(np.float64)
        worst = _difference(ours, theirs, widths(space) / 2)
    elif isinstance(space, gym.spaces.MultiBinary):
        other = actions != recorded.actions
        worst = float(np.abs(numbers.reshape(actions.shape))[other].max(initial=0.0))
    else:
        sizes = choices(space)
        first: Any = space.start  # type: ignore[attr-defined]
        picked = (recorded.actions - first).reshape(count, -1)
        parts = np.split(numbers, np.cumsum(sizes)[:-1], axis=1)
        worst = max(
            _difference(np.take_along_axis(part, picked[:, [place]], 1)[:, 0], part.max(1))
            for place, part in enumerate(parts)
        )
    _refuse_beyond(worst, "the greedy actions")


def _check(module: ExportedPolicy, form: Format, path: Path, recorded: Recorded) -> float:
    """Return the largest difference between an export and its policy in the numbers from which actions are
    chosen.

    Raises ExportError if the difference is too large.
    """
    wanted = _played(_eager(module, module), module, recorded)
    found = _played(_runtime(module, form, path), module, recorded)
    worst = max(_difference(found[name], wanted[name]) for name in module.output_names[1:])
    _refuse_beyond(worst, "the numbers from which actions are chosen")
    return worst


def _refuse_beyond(difference: float, what: str) -> None:
    if not difference <= TOLERANCE:
        why = f"{what} differ from the policy's by {difference:.2g} on {STEPS} observations, more than the "
        why += f"allowed {TOLERANCE:g}, so nothing was written"
        raise ExportError.about("labrl-export", why)


def _difference(found: NDArray, wanted: NDArray, scale: NDArray | float = np.inf) -> float:
    """Return the largest difference between two arrays, relative to `scale`. Where `scale` is infinite or 0,
    the difference is absolute for numbers up to 1 and relative for larger ones.

    found, wanted: [steps, ...] each; scale: [...].
    """
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, np.maximum(1.0, np.abs(wanted)))
    return float((np.abs(found - wanted) / scale).max())


def _runtime(module: ExportedPolicy, form: Format, path: Path) -> Call:
    """Load an exported file as a function that takes and returns arrays."""
    if form == "torch":
        return _eager(torch.export.load(path).module(), module)
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def call(inputs: Arrays) -> Arrays:
        return dict(zip(module.output_names, session.run(module.output_names, inputs), strict=True))

    return call


def _write(module: ExportedPolicy, form: Format, path: Path) -> None:
    """Trace the module for any batch size, and write the result to `path`."""
    batch = torch.export.Dim("batch")
    examples = module.examples(2)
    shapes = (tuple({0: batch} for _ in examples),)
    try:
        program = torch.export.export(module, examples, dynamic_shapes=shapes)
    except Exception as error:  # A user's network may fail in any way.
        lines = str(error).strip().splitlines() or [""]
        name = type(module.actor.network).__name__
        why = f"torch.export of {name} fails with {type(error).__name__}: {lines[0]}"
        fix = "Its forward(), and its `layout` if it defines one, must compute only with tensors"
        raise InputError.unsupported("agent.network", why, fix) from error
    if form == "torch":
        torch.export.save(program, path)
        return
    model = torch.onnx.export(
        program,
        input_names=module.input_names,
        output_names=module.output_names,
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    assert model is not None
    model.save(path, external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager: suppress the output of the exporter."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w", encoding="utf-8") as nothing:
            warnings.simplefilter("ignore")
            with redirect_stdout(nothing):
                yield
    finally:
        logger.setLevel(before)


def _facts(
    policy: LoadedPolicy, module: ExportedPolicy, form: Format, sampled: bool, steps: int, difference: float
) -> dict[str, Any]:
    """Return the content of the JSON file beside the export."""
    transform, _ = policy.transforms.part("observation")
    inputs: list[dict[str, Any]] = [
        {"name": name, **_described(space), "meaning": "observation of the environment, not scaled"}
        for name, space in module.inputs.items()
    ]
    if module.masked:
        meaning = "valid actions, info['action_mask']"
        inputs.append({"name": MASK, "shape": ["batch", module.flags], "dtype": "bool", "meaning": meaning})
    state = {"shape": ["batch", module.state_size], "dtype": "float32"}
    if module.state_size:
        meaning = "zeros at the start of an episode, then next_state of the previous step"
        inputs.append({"name": STATE, **state, "meaning": meaning})
    outputs: list[dict[str, Any]] = [
        {"name": ACTION, **_described(policy.action_space), "meaning": "action for the environment"},
        {
            "name": module.output_names[1],
            "dtype": "float32",
            "meaning": "numbers from which the action is chosen",
        },
    ]
    outputs += (
        [{"name": NEXT_STATE, **state, "meaning": "state for the next step"}] if module.state_size else []
    )
    env = policy.trial.env.config
    return {
        "format_version": FORMAT_VERSION,
        "format": form,
        "head": "sampled" if sampled else "greedy",
        "agent": policy.trial.agent.target,
        "run": str(policy.folder),
        "session": policy.session,
        "frame": policy.frame,
        "inputs": inputs,
        "outputs": outputs,
        "inside": [
            *([f"transform of observations: {transform}"] if transform else []),
            "scaling of bytes to [0, 1], one-hot encoding of choices, concatenation of inputs",
            "network",
            f"{'sampled' if sampled else 'greedy'} actions, with the type and bounds of the environment",
        ],
        "pictures": env.stacking() if isinstance(env, AtariConfig) else None,
        "env": policy.config["env"],
        "checked": {
            "observations": steps,
            "largest_difference": difference,
            "tolerance": TOLERANCE,
            "by": f"{_RUNTIMES[form]} {importlib.metadata.version(_RUNTIMES[form])}",
        },
        "labrl": importlib.metadata.version("labrl"),
    }


_RUNTIMES: dict[Format, str] = {"onnx": "onnxruntime", "torch": "torch"}


def _described(space: gym.Space[Any]) -> dict[str, Any]:
    return {
        "shape": ["batch", *(space.shape or ())],
        "dtype": str(np.dtype(space.dtype)),
        "space": str(space),
    }
