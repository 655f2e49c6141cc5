"""Weights of another run with which a run starts (`start_from`).

The run folder keeps a copy of the loaded weights, so that a session that was killed before its first
checkpoint starts from the same weights, even if the other run has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labrl.analysis.formats import align_columns
from labrl.config.schema import TrialConfig
from labrl.envs.make import describe, gives_masks, goals_of
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.run.checkpoint import CheckpointStore
from labrl.run.run import Run
from labrl.session.acting import ActingCopy
from labrl.session.transfer import ABSENT, OBSERVATION, Fit, Learned, fit, is_in, parts_of
from labrl.spaces import Spaces
from labrl.trial.summary import say
from labrl.trial.trained import TrainedAgent

KEY = "start_from.run"
SHOWN = 12
"""Maximum number of weights that an error message lists."""


@dataclass(frozen=True)
class Beginning:
    """The weights that the sessions of a trial start from."""

    sources: Mapping[int, tuple[TrainedAgent, Learned]]
    """Agent of another run and its learned weights, for each session by its index."""
    fit: Fit

    def facts(self) -> dict[str, Any]:
        """Return the entries about the initial weights for the provenance of the run."""
        sessions = {
            str(index): {"session": source.session, "frame": source.frame, "sha256": source.checksum}
            for index, (source, _) in self.sources.items()
        }
        source, _ = next(iter(self.sources.values()))
        return {
            "run": str(source.folder),
            "sessions": sessions,
            "taken": self.fit.taken,
            "begun_anew": [name for name, here, _ in self.fit.misfits if here != ABSENT] + self.fit.kept,
            "unused": [name for name, here, _ in self.fit.misfits if here == ABSENT] + self.fit.unused,
        }

    def write(self, run: Run) -> None:
        """Copy the initial weights of each session to the session's folder, and print a summary."""
        for index, (source, there) in self.sources.items():
            weights = {name: there.content[name] for name in self.fit.taken}
            statistics = weights.pop(OBSERVATION, {})
            store = CheckpointStore(run.session(index).start, keep_last=1)
            store.save(source.frame, {"weights": weights, "statistics": statistics})
        facts = self.facts()
        frames = sorted({source.frame for source, _ in self.sources.values()})
        frame = f"frame {frames[0]:,}" if len(frames) == 1 else f"frames {frames[0]:,} to {frames[-1]:,}"
        anew, unused = facts["begun_anew"], facts["unused"]
        lines = [f"start_from: {len(self.fit.taken)} weights of {facts['run']}, {frame}"]
        lines += [f"newly initialized: {', '.join(anew)}"] if anew else []
        lines += [f"not used, because this agent has no such weights: {', '.join(unused)}"] if unused else []
        say("; ".join(lines))


def find_beginning(config: TrialConfig, numbers: Sequence[int]) -> Beginning:
    """Return the weights that some sessions of a trial start from.

    numbers: indices of the sessions. Raises InputError if there is no such run or checkpoint, or if weights
    do not fit.
    """
    asked = config.start_from
    # The learned weights of each session of the other run.
    if asked.session == "same":
        sources = {index: _source(config, index) for index in numbers}
    else:
        source = _source(config, None if asked.session == "best" else asked.session)
        sources = dict.fromkeys(numbers, source)
    first, there = next(iter(sources.values()))
    # The weights of a new agent, for their shapes.
    observation_space, action_space = describe(config.env)
    goals = goals_of(config.env, observation_space)
    num_envs, masked = config.env.config.num_envs, gives_masks(config.env)
    spaces = Spaces(observation_space, action_space, num_envs, masked, goals)
    copy = ActingCopy(config, spaces, 0, Compute.choose("cpu", "fp32", 1))
    try:
        here = Learned.by(copy.agent, copy.transforms)
    finally:
        copy.close()
    place, other = f"{KEY}={asked.run}", "Leave start_from out, or name another run"
    if not here.content.keys() - {OBSERVATION}:
        why = f"{config.agent.target} has no network that could start from weights of another run"
        raise InputError.unsupported(place, why, "Leave start_from out, or choose another agent")
    # The requested parts, and whether they fit.
    named = [asked.parts] if isinstance(asked.parts, str) else asked.parts
    parts = None if named == ["all"] else named
    for part in parts or []:
        if not any(is_in(name, [part]) for name in [*here.content, OBSERVATION]):
            why = f"the agent has no part {part!r}. Its parts are {', '.join(parts_of(list(here.content)))}"
            why += "; session_0/networks.txt lists the names of all weights"
            raise InputError.about("start_from.parts", why, code="unknown-option")
    found = fit(here, there, parts)
    if found.misfits and not asked.partial:
        raise _refusal(config, first, found)
    if not found.taken:
        why = f"no weights of session {first.session} fit"
        raise InputError.about(place, why, other, code="contradiction")
    return Beginning(sources, found)


def _source(config: TrialConfig, session: int | None) -> tuple[TrainedAgent, Learned]:
    """Return the agent of a session of another run, after closing it, and its learned weights."""
    asked = config.start_from
    assert asked.run is not None
    agent = TrainedAgent.load(asked.run, session, asked.checkpoint, "fp32", "start_from")
    try:
        return agent, Learned.by(agent.agent, agent.transforms)
    finally:
        agent.close()


def _refusal(config: TrialConfig, source: TrainedAgent, found: Fit) -> InputError:
    """Return the error that shows a table of the weights that do not fit."""
    rows = [("", "here", "there"), *found.misfits[:SHOWN]]
    more = len(found.misfits) - SHOWN
    lines = [
        f"{KEY}={config.start_from.run}: session {source.session} at frame {source.frame:,} does not fit "
        f"the agent in env={config.env.config.name}:",
        *align_columns(rows, indent="  "),
        *([f"  and {more} more"] if more > 0 else []),
        f"To load the other {len(found.taken)} weights and initialize these: start_from.partial=true",
        "To load only some parts: start_from.parts=torso",
    ]
    return InputError("\n".join(lines), code="contradiction", key=KEY)
