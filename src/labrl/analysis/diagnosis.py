"""Known signs of a run that does not learn, read from its training rows and its configuration.

The check of each sign is a function of `Evidence` that returns what was seen, or None. Thresholds are
constants, whose sources are in docs/how-to/debug.md. A run whose final return counts as solved shows no sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labrl.analysis.baselines import Baseline, random_baseline, threshold_of
from labrl.analysis.formats import number
from labrl.run.find import find_runs
from labrl.run.run import Run
from labrl.run.session import sessions_text
from labrl.run.tables import Column, final_return

FEWEST_UPDATES = 100
"""Number of updates below which a run has hardly learned."""
FEWEST_ROWS = 6
"""Minimum number of rows with a return, and of rows that follow a new update, for recognizing a sign."""
EPISODE_STEPS = 1000
"""Number of steps of each environment after which an episode should have ended."""
ENTROPY_GONE = 0.05
"""Fraction of the highest entropy (of the highest standard deviation for a Gaussian policy) below which the
policy counts as deterministic."""
LARGE_KL, LARGEST_KL = 0.05, 1.0
"""Two limits of an update's KL divergence. It is too large if a fifth of the updates exceed the first limit,
or a single update exceeds the second."""
LARGE_CLIP, LARGEST_CLIP = 0.5, 0.8
"""Two limits of an update's fraction of clipped samples. It is too large if a fifth of the updates exceed the
first limit, or a single update exceeds the second."""
GROWTH = 10.0
"""Maximum growth of the value loss relative to the growth of the squared returns, and maximum ratio of Q
values to returns."""
CONSTANT = 1e-4
"""Standard deviation of a rollout's values, relative to their mean, below which they count as constant."""
AT_BOUNDS = 0.9
"""Fraction of real-valued actions at their bounds at which the policy counts as saturated."""
CLIPPED = 20.0
"""Ratio of the gradient's norm to `max_grad_norm` at which most of the gradient is lost."""
LARGE_REWARD, SMALL_REWARD = 50.0, 1e-3
"""Limits of the mean absolute reward per step, as the learner sees it. The scale of rewards is unsuitable
above the first limit or below the second."""


class Sign(NamedTuple):
    """Something in the rows of a run that usually means that learning fails."""

    name: str
    seen: str
    """Text on what was seen in the rows, with numbers."""
    first: int
    """Frame of the first row in which the sign was seen."""
    last: int
    """Frame of the last row in which the sign was seen."""
    means: str
    """Usual meaning of the sign."""
    overrides: tuple[str, ...]
    """Overrides to try, one at a time, for keys that the configuration has."""
    sessions: tuple[int, ...] = (0,)
    """Indices of the sessions in which the sign was seen; the other fields describe the first of these
    sessions."""

    @property
    def where(self) -> str:
        """Text on the sessions and frames in which the sign was seen."""
        return f"{sessions_text(self.sessions)}, frames {self.first:,} to {self.last:,}"


Seen = tuple[str, Column]
"""Text on what a check saw, and the frames of the rows that show it."""


@dataclass(frozen=True)
class Evidence:
    """The training rows, the configuration and the reference returns of one session."""

    rows: Mapping[str, Column]
    config: Mapping[str, Any]
    baseline: Baseline | None = None
    solved: float | None = None
    """Return at which the environment counts as solved; None if unknown."""

    def option(self, key: str) -> Any:
        """Return the value of a key; for a schedule, its value at the start; None if the configuration lacks
        the key."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value.get("start") if isinstance(value, Mapping) else value

    def known(self, column: str, updates: bool = True) -> tuple[Column, Column]:
        """Return the frames and the finite values of a column; both are empty if the column is missing.

        updates: whether to use only rows that follow a new update, because other rows repeat the numbers of
        an earlier update.
        """
        values = self.rows.get(column, np.empty(0))
        if not len(values):
            return values, values
        there = np.isfinite(values) & (self._updated if updates else True)
        return self.rows["frame"][there], values[there]

    @cached_property
    def _updated(self) -> np.ndarray:
        steps = np.nan_to_num(self.rows.get("opt_step", np.zeros(len(self.rows["frame"]))))
        return np.diff(steps, prepend=0.0) > 0

    def last(self, column: str) -> float:
        """Return the last finite value of a column; 0 if there is none."""
        values = self.known(column, updates=False)[1]
        return float(values[-1]) if len(values) else 0.0

    @cached_property
    def reward(self) -> float | None:
        """Mean absolute reward per step, as the learner sees it; None if unknown."""
        returns, lengths = (self.known(name, updates=False)[1] for name in ("return_mean", "length_mean"))
        names = ("_target_", "scale", "shift", "low", "high")
        target, scale, shift, *bounds = (self.option(f"transforms.reward.{name}") for name in names)
        more = (target is not None and scale is None) or shift or bounds != [None, None]
        if not len(returns) or len(returns) != len(lengths) or more:
            return None
        return float(np.median(np.abs(returns) / lengths)) * abs(scale or 1.0) or None

    @property
    def progress(self) -> float:
        """Fraction of the frame budget that the session has played."""
        return self.last("frame") / (self.option("env.max_frame") or np.inf)

    @cached_property
    def final(self) -> float | None:
        """The final return; None if there are too few rows with a return."""
        frames, returns = self.known("return_mean", updates=False)
        return final_return(frames, returns) if len(returns) >= FEWEST_ROWS else None

    @cached_property
    def random(self) -> tuple[float, str]:
        """The highest return that is still no better than random play, and a phrase for the source of this
        reference."""
        if self.baseline is not None:
            return self.baseline.mean + 0.1 * (self.baseline.std or 0.0), "return of the random policy"
        returns = self.known("return_mean", updates=False)[1]
        return float(returns[: max(len(returns) // 4, 1)].mean()), "mean of the first quarter of the rows"


Check = Callable[[Evidence], Seen | None]


class Rule(NamedTuple):
    """A sign, and how it is recognized."""

    name: str
    means: str
    """Usual meaning of the sign."""
    attempts: tuple[str, ...]
    """Overrides to try; `key*factor` stands for the value of the key times a factor."""
    check: Check


RULES: list[Rule] = []
"""All signs, in the order in which they are shown."""


def rule(name: str, means: str, *attempts: str) -> Callable[[Check], Check]:
    """Register a function as the check of a rule; see `Rule`."""

    def register(check: Check) -> Check:
        RULES.append(Rule(name, means, attempts, check))
        return check

    return register


def _late(frames: Column, after: float = 0.5) -> Any:
    """Return a mask of the rows after a fraction `after` of the frames; all False if there are too few
    rows."""
    return frames > (after * frames[-1] if len(frames) >= FEWEST_ROWS else np.inf)


@rule(
    "episodes never end",
    "the environment neither terminates nor truncates, so there is no return to learn from or to report",
    "env.max_episode_steps=1000",
)
def _endless(of: Evidence) -> Seen | None:
    frames = of.rows["frame"]
    steps = of.last("frame") / (of.option("env.num_envs") or 1)
    if of.last("episode") or steps < EPISODE_STEPS:
        return None
    return (f"no environment finished an episode in its {number(steps)} steps", frames)


@rule(
    "too few updates",
    "the budget ends before learning has begun, or a rollout or minibatch is too large for the budget",
    "env.max_frame*10",
    "agent.learning_starts*0.1",
    "agent.horizon*0.25",
    "agent.updates_per_frame*4",
)
def _few_updates(of: Evidence) -> Seen | None:
    updates = of.last("opt_step")
    learned = updates and of.final is not None and of.final > of.random[0]
    if updates >= FEWEST_UPDATES or of.progress < 0.5 or learned:
        return None
    return (f"{number(updates)} updates in {number(of.last('frame'))} frames", of.rows["frame"])


@rule(
    "values constant",
    "the network's outputs do not depend on its inputs: excessive updates have saturated or killed its units",
    "agent.lr*0.1",
    "agent.lr.max*0.1",
)
def _constant_values(of: Evidence) -> Seen | None:
    frames, deviations = of.known("value_std")
    _, means = of.known("value_mean")
    late = _late(frames)
    # An update writes both columns together, but IQL records value_mean alone.
    if not late.any() or len(means) != len(deviations):
        return None
    constant = deviations < CONSTANT * np.abs(means)
    if not constant[late].all():
        return None
    largest = number(float(deviations[late].max()), 2)
    return (f"value_std at most {largest}, value_mean {number(float(means[-1]), 3)}", frames[constant])


@rule(
    "returns not above random",
    "nothing was learned: look at the other signs, and at the rewards of a few episodes (+enjoy)",
    "agent.gamma=0.99",
    "agent.lr*0.1",
    "env.max_frame*10",
)
def _no_better_than_random(of: Evidence) -> Seen | None:
    if of.final is None or of.progress < 0.2 or of.last("opt_step") < FEWEST_UPDATES:
        return None
    limit, name = of.random
    if of.final > limit:
        return None
    frames, _ = of.known("return_mean", updates=False)
    late = frames > 0.9 * frames[-1]
    return (f"final return {number(of.final)}, not above {number(limit)} ({name})", frames[late])


@rule(
    "entropy gone early",
    "the policy stopped exploring before the middle of the run and cannot find better actions",
    "agent.entropy_coef=0.01",
    "agent.lr*0.1",
)
def _no_entropy(of: Evidence) -> Seen | None:
    # The entropy of real-valued actions has no lowest value.
    column = "entropy" if "action_top_share" in of.rows else "policy_std"
    frames, values = of.known(column)
    late = _late(frames)
    if not late.any() or values.max() <= 0:
        return None
    gone = values < ENTROPY_GONE * values.max()
    if not gone[late].all():
        return None
    share = number(100 * float(values[gone].max() / values.max()), 2)
    return (f"{column} at most {share} % of its highest value", frames[gone])


@rule(
    "policy steps too large",
    "updates change the policy so much that the collected data no longer fits it, and it may collapse",
    "agent.lr*0.1",
    "agent.epochs*0.5",
    "agent.target_kl=0.02",
)
def _large_steps(of: Evidence) -> Seen | None:
    for column, large, largest in (
        ("kl", LARGE_KL, LARGEST_KL),
        ("clip_fraction", LARGE_CLIP, LARGEST_CLIP),
    ):
        frames, values = of.known(column)
        if len(values) and ((values > large).mean() >= 0.2 or values.max() > largest):
            return (f"{column} up to {number(float(values.max()), 3)}", frames[values > large])
    return None


@rule(
    "explained variance below zero",
    "the values predict returns worse than a constant would: they do not fit, or all returns are equal",
    "transforms/reward=normalize",
    "agent.gamma=0.99",
    "agent.lr*0.1",
    "agent.value_coef*2",
)
def _unexplained(of: Evidence) -> Seen | None:
    frames, values = of.known("explained_variance")
    late = _late(frames)
    if not late.any() or np.median(values[late]) >= 0:
        return None
    return (f"explained_variance {number(float(np.median(values[late])), 3)} (median)", frames[late])


@rule(
    "value loss growing",
    "the values diverge: their targets depend on the values themselves and grow faster than the returns",
    "agent.lr*0.1",
    "agent.max_grad_norm=0.5",
    "transforms/reward=normalize",
    "agent=double_dqn",
)
def _growing_values(of: Evidence) -> Seen | None:
    return_frames, returns = of.known("return_mean", updates=False)
    if len(returns) < FEWEST_ROWS:
        return None
    sizes = np.abs(returns)
    frames, values = of.known("q_mean")
    late = _late(frames, 2 / 3)
    if late.any() and of.option("transforms.reward._target_") is None:
        size = float(np.median(np.abs(values[late])))
        if size > GROWTH * max(float(sizes.max()), 1.0):
            return (f"Q values of {number(size)}, returns of {number(float(sizes.max()))}", frames[late])
    early_returns = sizes[~_late(return_frames, 1 / 3)]
    last = float(np.median(sizes[_late(return_frames, 2 / 3)]))
    first = float(np.median(early_returns)) if len(early_returns) else last
    for column in ("loss_value", "loss_q", "loss"):
        frames, values = of.known(column)
        early, late = ~_late(frames, 1 / 3), _late(frames, 2 / 3)
        if not late.any() or not early.any():
            continue
        then, now = float(np.median(values[early])), float(np.median(values[late]))
        # Losses are squared errors of values, which grow as returns do.
        if now > GROWTH * max(then, 1e-3) * max(1.0, float(last / max(first, 1e-9)) ** 2):
            return (f"{column} grew from {number(then)} to {number(now)} (medians)", frames[late])
    return None


@rule(
    "actions at the bounds",
    "the policy's outputs are far outside the action space (from the start, if its bounds are far from 0 or "
    "close to each other), so its gradient hardly changes the actions",
    "agent.action_bounds=rescale",
    "agent.lr*0.1",
    "transforms/reward=normalize",
    "transforms/observation=normalize",
)
def _at_bounds(of: Evidence) -> Seen | None:
    frames, values = of.known("action_bound_share", updates=False)
    late = _late(frames)
    if not late.any() or np.median(values[late]) < AT_BOUNDS:
        return None
    return (f"{100 * float(np.median(values[late])):.0f} % of the actions at their bounds", frames[late])


@rule(
    "gradient always clipped",
    "every gradient is scaled down a lot, so the learning rate no longer determines how far weights move",
    "transforms/reward=normalize",
    "transforms/observation=normalize",
    "agent.max_grad_norm*10",
)
def _clipped(of: Evidence) -> Seen | None:
    frames, values = of.known("grad_norm")
    limit = of.option("agent.max_grad_norm")
    if not limit or len(values) < FEWEST_ROWS or (values > limit).mean() < 0.95:
        return None
    ratio = float(np.median(values) / limit)
    if ratio < CLIPPED:
        return None
    return (f"grad_norm {number(ratio, 2)} times agent.max_grad_norm={limit} (median)", frames)


@rule(
    "reward scale",
    "the values are far from the size for which learning rates, clipping and initial weights are chosen",
    "transforms/reward=normalize",
)
def _reward_scale(of: Evidence) -> Seen | None:
    size = of.reward
    if size is None or SMALL_REWARD <= size <= LARGE_REWARD:
        return None
    frames, _ = of.known("return_mean", updates=False)
    return (f"rewards of {number(size, 3)} per step, as the learner sees them", frames)


def diagnose(of: Evidence) -> Iterator[Sign]:
    """Yield the known signs in the rows of one session."""
    if not len(of.rows["frame"]):
        return
    if of.final is not None and of.solved is not None and of.final >= of.solved:
        return
    for rule in RULES:
        text, frames = rule.check(of) or ("", np.empty(0))
        if len(frames):
            overrides = tuple(filter(None, (_override(one, of) for one in rule.attempts)))
            yield Sign(rule.name, text, int(frames[0]), int(frames[-1]), rule.means, overrides)


def _override(attempt: str, of: Evidence) -> str:
    """Return an override for the command line; '' if the configuration lacks the key, or if its value is
    already about as large as that of the override."""
    key, times, factor = attempt.partition("*")
    if times:
        value = of.option(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value:
            return ""
        scaled = value * float(factor)
        whole = isinstance(value, int) or value >= 1e3
        return f"{key}={max(round(scaled), 1) if whole else f'{scaled:.2g}'}"
    key, _, value = attempt.partition("=")
    if "/" in key:
        present = str(of.option(f"{key.replace('/', '.')}._target_"))
        return "" if present.lower().endswith(value) else attempt
    if key == "agent":
        return attempt if str(of.option("agent._target_")).endswith(".DQN") else ""
    group, _, name = key.rpartition(".")
    has = isinstance(there := of.config.get(group), Mapping) and name in there
    present = of.option(key)
    if isinstance(present, int | float) and present and present >= 0.9 * float(value):
        return ""
    return attempt if has and present != value else ""


def diagnose_folder(folder: Path) -> str:
    """Return a text on the signs in the rows of each run in `folder`. Raises InputError if there is no
    run."""
    runs = find_runs([folder])
    found = [f"{run.path}:\n" * (len(runs) > 1) + as_text(diagnose_run(run)) for run in runs]
    return "\n".join(found)


def diagnose_run(run: Run) -> list[Sign]:
    """Return the signs in the sessions of a run. A sign that several sessions show is returned once."""
    env = run.config.get("env", {})
    baseline, threshold = random_baseline(env, [run.info]), threshold_of(env)
    found: dict[str, Sign] = {}
    for session in run.sessions:
        evidence = Evidence(session.train, run.config, baseline, threshold.value if threshold else None)
        for sign in diagnose(evidence):
            first = found.get(sign.name, sign._replace(sessions=()))
            found[sign.name] = first._replace(sessions=(*first.sessions, session.index))
    return [found[rule.name] for rule in RULES if rule.name in found]


def as_text(signs: list[Sign]) -> str:
    """Format the signs for a terminal, with a paragraph for each sign."""
    lines = []
    for sign in signs:
        lines += [f"{sign.name}: {sign.seen} ({sign.where})", f"  usually means: {sign.means}"]
        lines += [f"  try: {'   or   '.join(sign.overrides)}"] if sign.overrides else []
    return "\n".join(lines or ["no known sign of failing to learn"])
