"""Results of a search, from `experiment.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labrl.analysis.formats import METHOD, UNKNOWN, interval_by, number
from labrl.analysis.intervals import Estimate, aggregates
from labrl.analysis.runs import Run, load_run
from labrl.errors import LabrlError

State = Literal["complete", "pruned", "fail", "running", "waiting"]

FEWEST_FOR_IMPORTANCE = 10
"""Trials with a value, without which nobody can tell."""

MOST_FOR_TOP = 8
"""Trials that count as the best ones where that is more than a tenth of all."""


@dataclass(frozen=True)
class Parameter:
    """One searched key."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    """Whether only whole numbers are drawn."""
    choices: tuple[Any, ...] = ()
    """Choices of a key without a scale, which has no `low` and `high`."""

    @classmethod
    def of(cls, key: str, distribution: Mapping[str, Any]) -> Parameter:
        """Build from the distribution in `experiment.json`."""
        content = distribution["attributes"]
        if "choices" in content:
            return cls(key, choices=tuple(content["choices"]))
        whole = distribution["name"] == "IntDistribution" and not content.get("log")
        return cls(key, float(content["low"]), float(content["high"]), bool(content.get("log")), whole)

    def place(self, value: Any) -> float:
        """Return the position of `value`: the number, its logarithm to base 10, or the index of a choice."""
        if self.choices:
            return float(self.choices.index(value)) if value in self.choices else math.nan
        return math.log10(value) if self.log else float(value)

    def share(self, value: Any) -> float:
        """The place as a share of the range, 0 to 1; one half where there is but one value."""
        ends = (
            (0.0, len(self.choices) - 1.0) if self.choices else (self.place(self.low), self.place(self.high))
        )
        return (self.place(value) - ends[0]) / (ends[1] - ends[0]) if ends[0] != ends[1] else 0.5


@dataclass(frozen=True)
class SearchTrial:
    """One trial of a search."""

    number: int
    params: dict[str, Any]
    values: tuple[float, ...] | None
    """Values by objective; of a pruned trial its last ones; None where it failed or runs."""
    state: State
    intermediate: dict[int, float] = field(default_factory=dict)
    """Value by frame."""
    error: str | None = None

    def value(self, place: int = 0) -> float:
        """Return the value of an objective, nan where there is none."""
        return self.values[place] if self.values else math.nan


@dataclass(frozen=True)
class Confirmed:
    """One configuration that was run again, on seeds that the search had not seen."""

    trial: int | None
    """None: the default, which is the configuration without any searched value."""
    params: dict[str, Any]
    searched: float | None
    """Value of the first objective in the search, None of the default."""
    values: list[float]
    """Value of the first objective for each fresh seed whose run came to its end."""
    mean: float | None
    """Mean of `values`; None where a run failed."""
    folders: list[str]
    """Run folder of each fresh seed, relative to the experiment's; a kept study has none."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Confirmed:
        """Build from the candidate in `experiment.json`."""
        return cls(
            trial=content["trial"],
            params=dict(content.get("params") or {}),
            searched=content["searched"][0] if content.get("searched") else None,
            values=[float(values[0]) for values in content["values"] if values],
            mean=content["mean"],
            folders=list(content.get("folders") or ()),
        )

    @property
    def name(self) -> str:
        """Name in a table or sentence."""
        return "the default" if self.trial is None else f"trial {self.trial}"

    @property
    def each(self) -> str:
        """The values, seed by seed, with a dash for each run that failed."""
        missing = [UNKNOWN] * (len(self.folders) - len(self.values))
        return ", ".join([*map(number, self.values), *missing])

    @cached_property
    def estimate(self) -> Estimate | None:
        """The mean with its interval over the seeds; None where there is no mean."""
        if self.mean is None:
            return None
        return aggregates(np.array(self.values))["mean"]._replace(value=self.mean)

    def told(self) -> str:
        """`101.3 on 3 fresh seeds (95 % interval ...)`."""
        if self.estimate is None:
            return "no value on fresh seeds, because a run failed"
        value, low, high = self.estimate
        ends = interval_by(low, high)
        seeds = f"{len(self.values)} fresh seed{'' if len(self.values) == 1 else 's'}"
        return f"{number(value)} on {seeds}" + (f" ({ends})" if ends else "")


@dataclass(frozen=True)
class SearchResult:
    """A search as it stands."""

    objective: list[str]
    maximize: list[bool]
    parameters: list[Parameter]
    trials: list[SearchTrial]
    confirmed: list[Confirmed]
    """Configurations that ran on fresh seeds: the best trials of the search in order, then the default."""
    winner: Confirmed | None
    """The trial with the best mean on the fresh seeds; None where nothing was confirmed."""
    default: Confirmed | None
    """The default on the fresh seeds; None where it was not run."""
    facts: dict[str, Any]
    """Further entries of `experiment.json` under `search`: sampler, pruner, storage, best."""

    def of_state(self, *states: State) -> list[SearchTrial]:
        """The trials that ended in one of `states`; of complete and pruned ones those with a value."""
        found = [one for one in self.trials if one.state in states]
        return [one for one in found if one.values or one.state not in ("complete", "pruned")]

    @property
    def valued(self) -> list[SearchTrial]:
        """Trials that came to a value: complete and pruned ones."""
        return self.of_state("complete", "pruned")

    def ranked(self) -> list[SearchTrial]:
        """Complete trials, the best first objective first."""
        sign = -1 if self.maximize[0] else 1
        return sorted(self.of_state("complete"), key=lambda trial: (sign * trial.value(), trial.number))

    def by_rank(self) -> list[SearchTrial]:
        """Return all trials: those that are ranked, then the others by number."""
        ranked = self.ranked()
        return [*ranked, *(trial for trial in self.trials if trial not in ranked)]


def read_search(info: Mapping[str, Any]) -> SearchResult | None:
    """The search that `info`, the content of `experiment.json`, tells of; None where it is none."""
    facts = info.get("search")
    if info.get("kind") != "search" or not isinstance(facts, Mapping) or "space" not in facts:
        return None
    trials = []
    for entry in info.get("trials", []):
        state, reported = entry.get("state", "waiting"), entry.get("intermediate") or ()
        values = tuple(entry.get("values") or ()) or None
        if values is None and state == "pruned" and reported:
            values = (float(max(reported)[1]),)
        steps = {int(frame): float(value) for frame, value in reported}
        params = dict(entry.get("params") or {})
        trials.append(SearchTrial(entry["number"], params, values, state, steps, entry.get("error")))
    confirm = facts.get("confirm") or {}
    confirmed = [Confirmed.of(one) for one in confirm.get("candidates", [])]
    by_trial = {one.trial: one for one in confirmed}
    return SearchResult(
        objective=list(facts["objective"]),
        maximize=[direction == "maximize" for direction in facts["directions"]],
        parameters=[Parameter.of(key, distribution) for key, distribution in facts["space"].items()],
        trials=trials,
        confirmed=confirmed,
        winner=None if confirm.get("winner") is None else by_trial.get(confirm["winner"]),
        default=by_trial.get(None),
        facts=dict(facts),
    )


def verdict(search: SearchResult) -> Iterator[str]:
    """Return the result of the search in sentences. The value on fresh seeds comes first, if there is one:
    the best of many values in the search was partly lucky."""
    ranked, winner, default = search.ranked(), search.winner, search.default
    if len(search.objective) > 1:
        yield f"Several objectives ({', '.join(search.objective)}): no single trial is the best."
        return
    if not ranked:
        yield "No trial has finished yet."
        return
    objective, first = search.objective[0], ranked[0]
    highest = "highest" if search.maximize[0] else "lowest"
    luck = f"the {highest} of {len(search.valued)} trials, so partly luck"
    if winner is None:
        value = number(first.value())
        yield f"Trial {first.number} has the best {objective} of the search, {value}. That is {luck}: " + (
            "the best trials could not be run again on fresh seeds."
            if search.confirmed
            else "it was not run again on fresh seeds."
        )
        return
    yield f"Trial {winner.trial} won the confirmation: {objective} {winner.told()}."
    if default is not None and default.mean is not None and winner.mean is not None:
        better = winner.mean > default.mean if search.maximize[0] else winner.mean < default.mean
        known = [one for one in (winner.estimate, default.estimate) if one is not None]
        lows, highs = [one.low for one in known], [one.high for one in known]
        if not better:
            yield f"It is no better than the default: {default.told()}."
        elif None in lows or None in highs or max(lows) <= min(highs):  # type: ignore[type-var,operator]
            yield (
                f"Its mean is better than the default's, but their intervals overlap: {default.told()}. More "
                "seeds (search.confirm.sessions) can tell them apart."
            )
        else:
            yield f"It is better than the default: {default.told()}."
    before = search.confirmed[0]
    if before.trial == winner.trial:
        yield f"It also won the search, with {number(before.searched)}, {luck}."
    else:
        yield (
            f"Trial {before.trial} won the search with {number(before.searched)}, {luck}, but not the "
            f"confirmation: {before.told()}."
        )


def summary(search: SearchResult, trials: Iterable[Run], path: Path) -> dict[str, Any]:
    """The search as plain data for `statistics.json`: its candidates on fresh seeds, and all frames played.

    trials: the runs of the search; path: the experiment folder, in which the confirming runs lie.
    """
    best = [trial for trial in search.ranked()[:1] if len(search.objective) == 1]
    played = {
        "search": trials,
        "confirmation": [run for one in search.confirmed for run in runs_of(one, path)],
    }
    return {
        "objective": search.objective,
        "winner": None if search.winner is None else search.winner.trial,
        "interval": f"95 % {METHOD}",
        "confirmed": [
            {
                "trial": one.trial,
                "name": one.name,
                "mean": one.mean,
                "low": one.estimate.low if one.estimate else None,
                "high": one.estimate.high if one.estimate else None,
                "seeds": len(one.values),
                "searched": one.searched,
            }
            for one in search.confirmed
        ],
        "best_in_the_search": [
            {"trial": one.number, "value": one.value(), "of": len(search.valued)} for one in best
        ],
        "frames": {
            name: sum(int(one.outcome.get("frame") or 0) for run in runs for one in run.sessions)
            for name, runs in played.items()
        },
    }


def runs_of(one: Confirmed, path: Path) -> list[Run]:
    """The runs of a configuration on the fresh seeds; those that are lost are left out."""
    found = []
    for folder in one.folders:
        try:
            found.append(load_run(path / folder))
        except LabrlError:
            continue
    return found


def best_so_far(values: Sequence[float], maximize: bool) -> NDArray[np.float64]:
    """Return, for each value, the best so far. values: [trials]; nan is ignored."""
    array = np.array(values, dtype=np.float64)
    accumulate = np.fmax.accumulate if maximize else np.fmin.accumulate
    return accumulate(array) if array.size else array


def importances(search: SearchResult) -> dict[str, float]:
    """Share of each key in how much the first objective varies (PED-ANOVA, Watanabe et al., 2023).

    A pruned trial counts with the value that it had come to. Sums to 1, the largest first; empty where
    there are too few trials to tell.
    """
    trials = [trial for trial in search.valued if set(trial.params) >= {one.key for one in search.parameters}]
    if len(trials) < FEWEST_FOR_IMPORTANCE or len({trial.values for trial in trials}) < 2:
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {
        key: optuna.distributions.json_to_distribution(json.dumps(one))
        for key, one in search.facts["space"].items()
    }
    study = optuna.create_study(direction="maximize" if search.maximize[0] else "minimize")
    study.add_trials(
        optuna.trial.create_trial(
            params={key: trial.params[key] for key in space}, distributions=space, value=trial.value()
        )
        for trial in trials
    )
    try:
        # what sets the best apart, of which there have to be some
        top = min(0.5, max(0.1, MOST_FOR_TOP / len(trials)))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (RuntimeError, ValueError):
        return {}
    known = {key: float(share) for key, share in found.items() if math.isfinite(share)}
    return known if sum(known.values()) > 0 else {}
