"""Results of a search, from `experiment.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labrl.analysis import intervals
from labrl.analysis.formats import METHODS, alike, interval_by, join_names, number
from labrl.analysis.returns import improvement_text
from labrl.errors import LabrlError
from labrl.run.find import load_run
from labrl.run.run import Run

State = Literal["complete", "pruned", "fail", "running", "waiting"]

FEWEST_FOR_IMPORTANCE = 10
"""Number of trials with a value below which importances are not computed."""

MOST_FOR_TOP = 8
"""Minimum number of trials that count as the best, even if it is more than a tenth of all trials."""


@dataclass(frozen=True)
class SearchTrial:
    """One trial of a search."""

    number: int
    params: dict[str, Any]
    value: float
    """Value of the objective; for a pruned trial, the last reported value; nan if the trial failed or is
    running."""
    state: State
    intermediate: dict[int, float] = field(default_factory=dict)
    """Reported values of the objective by frame."""
    error: str | None = None


@dataclass(frozen=True)
class Confirmed:
    """One configuration that was run again, on seeds that the search had not used."""

    trial: int | None
    """Number of the trial; None for the default configuration, which has no searched values."""
    params: dict[str, Any]
    searched: float | None
    """Value of the objective in the search; None for the default."""
    values: list[float]
    """Value of the objective for each fresh seed whose run finished."""
    mean: float | None
    """Mean of `values`; None if a run failed."""
    folders: list[str]
    """Run folder of each fresh seed, relative to the experiment's folder; empty for a stored study."""
    pruned: int | None = None
    """Frame at which the trial was pruned in the search, with the value `searched`; None if it was not
    pruned."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Confirmed:
        """Build a configuration from a candidate in `experiment.json`."""
        return cls(
            trial=content["trial"],
            params=dict(content.get("params") or {}),
            searched=content["searched"][0] if content.get("searched") else None,
            values=[float(values[0]) for values in content["values"] if values],
            mean=content["mean"],
            folders=list(content.get("folders") or ()),
            pruned=content.get("pruned"),
        )

    @property
    def name(self) -> str:
        """Name of the configuration for tables and sentences."""
        return "the default" if self.trial is None else f"trial {self.trial}"

    @cached_property
    def estimate(self) -> intervals.Estimate | None:
        """The mean of `values` with its interval over the seeds; None if there is no mean."""
        if self.mean is None:
            return None
        return intervals.aggregates(np.array(self.values))["mean"]._replace(value=self.mean)

    def sentence(self) -> str:
        """Return text such as `101.3 on 3 fresh seeds (95 % interval ...)`, for a pruned trial also with the
        frame of its end."""
        if self.estimate is None:
            return "no value on fresh seeds, because a run failed"
        seeds = f"{len(self.values)} fresh seed{'' if len(self.values) == 1 else 's'}"
        pruned = "" if self.pruned is None else f"pruned at frame {self.pruned:,} of the search"
        details = "; ".join(filter(None, (self.spread, pruned)))
        return f"{alike(*self.estimate)[0]} on {seeds}" + (f" ({details})" if details else "")

    @property
    def spread(self) -> str:
        """Text on the interval and its method; '' if there is no interval."""
        if self.estimate is None:
            return ""
        return interval_by(self.estimate.low, self.estimate.high, self.estimate.value, len(self.values))


@dataclass(frozen=True)
class SearchResult:
    """A search, finished or not."""

    objective: str
    maximize: bool
    trials: list[SearchTrial]
    confirmed: list[Confirmed]
    """Configurations that ran on fresh seeds: the best trials of the search in order, then the default."""
    winner: Confirmed | None
    """The trial with the best mean on the fresh seeds; None if nothing was confirmed."""
    default: Confirmed | None
    """The default configuration on the fresh seeds; None if it was not run on them."""
    facts: dict[str, Any]
    """The entry `search` of `experiment.json`: space, sampler, pruner, storage, best."""

    @property
    def confirmed_best(self) -> Confirmed | None:
        """The configuration that the fresh seeds recommend: the winner if they decide that it is better than
        the default, or if the default has no mean; otherwise the default. None if there is neither."""
        winner, default = self.winner, self.default
        if self.is_flat:
            return default
        if winner is None or default is None or default.mean is None:
            return winner
        return winner if self.is_better(winner, default) else default

    @property
    def is_flat(self) -> bool:
        """Whether all values of the search and on the fresh seeds are equal, so that nothing can be
        ranked."""
        values = {trial.value for trial in self.valued}
        values.update(value for one in self.confirmed for value in one.values)
        return len(self.valued) > 1 and len(values) == 1

    def improvement(self, x: Confirmed, y: Confirmed) -> intervals.Estimate:
        """Return the probability that a fresh seed of x is better than one of y. Both must have values."""
        sign = 1 if self.maximize else -1
        return intervals.probability_of_improvement(sign * np.array(x.values), sign * np.array(y.values))

    def is_better(self, x: Confirmed, y: Confirmed) -> bool:
        """Return whether the fresh seeds decide that x is better than y, as in a comparison of groups. Both
        must have values."""
        return intervals.is_better(self.improvement(x, y), len(x.values), len(y.values))

    @property
    def finalists(self) -> list[Confirmed]:
        """The winner and the default, if they exist, with the recommended one first."""
        best = self.confirmed_best
        others = [one for one in (self.winner, self.default) if one is not None and one is not best]
        return others if best is None else [best, *others]

    def of_state(self, state: State) -> list[SearchTrial]:
        """Return the trials that are in `state`."""
        return [one for one in self.trials if one.state == state]

    @property
    def valued(self) -> list[SearchTrial]:
        """Complete and pruned trials that have a value."""
        return [one for one in self.trials if not math.isnan(one.value)]

    def ranked(self) -> list[SearchTrial]:
        """Return the complete trials, ordered from the best to the worst."""
        sign = -1 if self.maximize else 1
        complete = [one for one in self.valued if one.state == "complete"]
        return sorted(complete, key=lambda trial: (sign * trial.value, trial.number))


def read_search(info: Mapping[str, Any]) -> SearchResult | None:
    """Return the search in `info`, the content of `experiment.json`; None if the experiment is not a
    search."""
    facts = info.get("search")
    if info.get("kind") != "search" or not isinstance(facts, Mapping) or "space" not in facts:
        return None
    trials = []
    for entry in info.get("trials", []):
        state, reported = entry.get("state", "waiting"), entry.get("intermediate") or ()
        (value,) = entry.get("values") or (math.nan,)
        if state == "pruned" and math.isnan(value) and reported:
            value = float(max(reported)[1])
        steps = {int(frame): float(value) for frame, value in reported}
        params = dict(entry.get("params") or {})
        trials.append(SearchTrial(entry["number"], params, value, state, steps, entry.get("error")))
    confirm = facts.get("confirm") or {}
    confirmed = [Confirmed.of(one) for one in confirm.get("candidates", [])]
    by_trial = {one.trial: one for one in confirmed}
    return SearchResult(
        objective=facts["objective"][0],
        maximize=facts["directions"][0] == "maximize",
        trials=trials,
        confirmed=confirmed,
        winner=None if confirm.get("winner") is None else by_trial.get(confirm["winner"]),
        default=by_trial.get(None),
        facts=dict(facts),
    )


def verdict(search: SearchResult) -> Iterator[str]:
    """Yield the result of the search in sentences. The value on fresh seeds comes first, because the best of
    many values in the search is optimistic."""
    ranked, winner, default = search.ranked(), search.winner, search.default
    if not ranked:
        yield "No trial has finished yet."
        return
    objective, first = search.objective, ranked[0]
    if search.is_flat:
        yield (
            f"All values of {objective} are {number(first.value)}, so that nothing can be ranked. The budget "
            "(env.max_frame) is probably too small, unless this is the best possible value. Keep the default."
        )
        return
    luck = (
        f"Trial {first.number} has the best value of the search, {number(first.value)}, "
        f"which is partly luck because it is the best of {len(search.valued)} trials."
    )
    if winner is None:
        yield f"{luck} It has no {objective} on fresh seeds."
        return
    if default is None or default.mean is None:
        yield f"Trial {winner.trial} has the best mean on fresh seeds: {objective} {winner.sentence()}."
    else:
        x, y = search.finalists
        if not (decided := search.is_better(x, y)):
            x, y = sorted((x, y), key=lambda one: one.mean or 0.0, reverse=search.maximize)
        how = f" is better than {y.name}" if decided else f" and {y.name} cannot be told apart"
        yield f"{x.name.capitalize()}{how}: {objective} {x.sentence()} and {y.sentence()}."
        if not decided:
            found, more = search.improvement(x, y), max(2 * len(x.values), intervals.FEWEST_FOR_BEST)
            if found.low is not None:
                yield improvement_text(found, x.name, y.name, len(x.values), len(y.values))
            yield f"More seeds (search.confirm.sessions={more}) may separate them."
        if search.confirmed_best is default:
            yield "Keep the default."
    others = [one for one in search.confirmed if one not in (winner, default) and one.mean is not None]
    if equals := [one.name for one in others if not search.is_better(winner, one)]:
        yield f"The fresh seeds do not tell {join_names(equals)} apart from trial {winner.trial}."
    yield luck


def summary(search: SearchResult, trials: Iterable[Run], path: Path) -> dict[str, Any]:
    """Return the search as plain data for `statistics.json`: the results of its candidates on fresh seeds,
    and the total number of frames played.

    trials: the runs of the search; path: the experiment folder, which contains the confirming runs.
    """
    played = {"search": trials, "confirmation": [r for one in search.confirmed for r in runs_of(one, path)]}
    return {
        "objective": [search.objective],
        "winner": None if search.winner is None else search.winner.trial,
        "interval": f"95 %: {METHODS}",
        "confirmed": [
            {
                **{"trial": one.trial, "name": one.name, "mean": one.mean},
                **{"searched": one.searched, "pruned": one.pruned, "seeds": len(one.values)},
                **dict(zip(("low", "high"), one.estimate[1:] if one.estimate else (None, None), strict=True)),
            }
            for one in search.confirmed
        ],
        "best_in_the_search": [
            {"trial": one.number, "value": one.value, "of": len(search.valued)} for one in search.ranked()[:1]
        ],
        "frames": {
            name: sum(int(one.outcome.get("frame") or 0) for run in runs for one in run.sessions)
            for name, runs in played.items()
        },
    }


def runs_of(one: Confirmed, path: Path) -> list[Run]:
    """Return the runs of a configuration on the fresh seeds, except those that cannot be loaded. path: the
    experiment folder."""
    found = []
    for folder in one.folders:
        try:
            found.append(load_run(path / folder))
        except LabrlError:
            continue
    return found


def importances(search: SearchResult) -> dict[str, float]:
    """Return the importance of each key for being among the best trials (PED-ANOVA, Watanabe et al., 2023).

    Importances sum to 1, and the largest comes first; there is none if there are too few trials. A pruned
    trial counts with its last reported value.
    """
    keys = search.facts["space"].keys()
    trials = [trial for trial in search.valued if trial.params.keys() >= keys]
    if len(trials) < FEWEST_FOR_IMPORTANCE or len({trial.value for trial in trials}) < 2:
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {
        key: optuna.distributions.json_to_distribution(json.dumps(one))
        for key, one in search.facts["space"].items()
    }
    study = optuna.create_study(direction="maximize" if search.maximize else "minimize")
    study.add_trials(
        optuna.trial.create_trial(
            params={key: trial.params[key] for key in space}, distributions=space, value=trial.value
        )
        for trial in trials
    )
    # There must be several best trials.
    top = min(0.5, max(0.1, MOST_FOR_TOP / len(trials)))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
    found: Mapping[str, float] = {}
    with suppress(RuntimeError, ValueError):
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    # Optuna leaves the order of equal shares to the order of a set, which differs between processes.
    shares = {key: float(share) for key, share in sorted(found.items(), key=lambda one: (-one[1], one[0]))}
    return shares if sum(shares.values()) > 0 else {}
