"""Comparisons in stages, `labrl -m agent=ppo,a2c seed=auto`: seeds are added until the groups are decided."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from labrl.analysis.adastop import ALPHA, Stages
from labrl.config.keys import key_of, split_override
from labrl.errors import Code, InputError
from labrl.experiment.earlier import Earlier
from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.run import group_key
from labrl.trial.summary import say

EXAMPLE = "labrl -m agent=ppo,a2c seed=auto"


def requested_stages(overrides: Sequence[str]) -> Stages | None:
    """Return the stages that `seed=auto` or `seed=auto:<seeds per stage>:<maximum per group>` requests, if
    any.

    Raises InputError if `auto` is part of a list, or if the stages can never decide a pair.
    """
    value = next((split_override(one)[1] for one in reversed(overrides) if key_of(one) == "seed"), "")
    value = value.strip("'\" ").replace("\\:", ":")
    if not re.search(r"\bauto\b", value):
        return None
    given = re.fullmatch(r"auto(?::(\d+))?(?::(\d+))?", value)
    code: Code = "range"
    why = ""
    size = int(given[1] or Stages.size) if given else 1
    stages = Stages(size, int(given[2] or Stages.most // max(size, 1) * size or size) if given else 1)
    if re.search(r"[,(\[]", value):
        why, code = "auto plans the seeds 0, 1, 2, ... itself, and cannot be part of a list", "contradiction"
    elif given is None:
        why, code = (
            "it must have the form auto:<seeds per stage>:<maximum number of seeds per group>",
            "syntax",
        )
    elif size < 1 or stages.most < size or stages.most % size:
        why = f"the maximum of {stages.most} seeds per group must be a multiple of the {size} seeds per stage"
    elif not stages.can_decide:
        why = f"even the most different returns of {stages.most} seeds occur by chance with a probability "
        why += f"above {ALPHA:g}, so that no pair could be decided"
    if why:
        fix = f"Write seed=auto, which means seed=auto:{Stages.size}:{Stages.most}"
        raise InputError.about(f"seed={value}", why, fix, code=code, key="seed")
    return stages


def with_seeds(overrides: Sequence[str], seeds: range) -> list[str]:
    """Return the overrides of a grid or a trial with `seeds` in place of its own seeds."""
    return [*(one for one in overrides if key_of(one) != "seed"), f"seed={','.join(map(str, seeds))}"]


def check_resume(earlier: Earlier, before: Experiment, stages: Stages | None) -> None:
    """Raise InputError if a resume changes the stages or the groups of a comparison. These must be fixed
    before the comparison's first seed. stages: the stages that the present overrides request."""
    recorded = before.info.get("stages")
    planned = recorded is not None
    if planned != (stages is not None) or (planned and "seed" in map(key_of, earlier.edits)):
        why = "the stages of a comparison are fixed before its first seed" if planned else ""
        why = why or "its seeds were not planned in stages, so seed=auto cannot limit the error rate"
        fix = f"Leave out seed, or start a new experiment such as {EXAMPLE}"
        raise InputError.about(f"+resume={earlier.path}", why, fix, code="changed-past", key="seed")
    for key in [key for key in map(key_of, earlier.edits) if planned and key in earlier.swept]:
        why = "the groups of a comparison with seed=auto are fixed before its first seed"
        fix = f"Leave out {key}, or start a new experiment"
        raise InputError.about(f"+resume={earlier.path}", why, fix, code="changed-past", key=key)


def check_groups(configs: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError unless each environment has at least two groups, and each trial has one session.

    configs: resolved configuration of each trial.
    """
    groups: dict[str, set[str]] = {}
    for config in configs:
        if (sessions := config["meta"]["max_session"]) != 1:
            why = "a stage counts trials as seeds, but their sessions would be further seeds"
            setting = f"meta.max_session={sessions}"
            raise InputError.contradiction(setting, "seed=auto", why, "meta.max_session=1")
        groups.setdefault(config["env"]["name"], set()).add(group_key(config))
    for env, own in groups.items():
        if len(own) < 2:
            why = f"it compares the groups of an environment, but {env} has only one group that can run"
            fix = "Add another value, such as agent=ppo,a2c, or set seed=0,1,2,3,4 for seeds of one group"
            raise InputError.about("seed=auto", why, fix, code="contradiction")


def next_stage(experiment: Experiment, stages: Stages) -> list[list[str]]:
    """Print which pairs the returns decide, and return the overrides of the trials of the next stage.

    The next stage follows from the run folders alone. A group gets no seeds if all of its pairs are decided.
    No group of an environment gets seeds if a seed of the last stage has no return; this is printed.
    """
    # Imported late, so that wrong input is reported without waiting for the statistics.
    from labrl.analysis.groups import group_runs
    from labrl.analysis.stages import compare_in_stages, lines

    experiment.forget()
    records = {record.number: record for record in experiment.trials()}
    groups, added = group_runs(experiment.runs), []
    if not (compared := compare_in_stages(groups, stages)):
        say("no further stage: no environment has two groups that have run")
    for env, found in compared.items():
        for line in lines(env, found):
            say(line)
        own = {group.name: group.runs for group in groups if group.env == env}
        seeds: list[list[str]] = []
        lacking: list[str] = []
        for name, needed in found["next_stage"].items():
            first = records[experiment.number_of(own[name][0]) or 0]
            planned = sum(_without_seed(one) == _without_seed(first) for one in records.values())
            seeds += [with_seeds(first.overrides, range(seed, seed + 1)) for seed in range(planned, needed)]
            if missing := found["more"][name] - max(needed - planned, 0):
                lacking.append(f"{missing} of {planned} seeds of {name}")
        if lacking:
            say(
                f"{env}: no further stage before all seeds have a final return; missing: {', '.join(lacking)}"
            )
        else:
            added += seeds
    return added


def _without_seed(record: TrialRecord) -> list[str]:
    return sorted(override for override in record.overrides if key_of(override) != "seed")
