"""The return of the random policy, measured once for each environment and kept in the cache.

`python -m labrl.trial.baseline <run folder>` measures the return for the environment of a run if it is
unknown.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labrl.analysis.baselines import baseline_path, deciding_keys, human_range, random_baseline
from labrl.component import Component
from labrl.config.compose import prepare
from labrl.config.validate import dataclass_of
from labrl.errors import DONE, FAILED, BusyFolderError
from labrl.processes.signals import when_the_parent_ends
from labrl.run.atomic import write_json
from labrl.run.lock import FolderLock
from labrl.run.run import Run
from labrl.run.trust import check_recorded
from labrl.session.devices import available_cpus

if TYPE_CHECKING:
    from labrl.envs.vector import VectorEnv

EPISODES = 100
"""Number of complete episodes in a full measurement."""

LONGEST = 20.0
"""Maximum duration of a measurement at the end of a trial, in CPU seconds."""

SHORTEST = 5.0
"""Minimum time that is allowed for a measurement if there is no published return, in CPU seconds."""

PATIENCE = 60.0
"""Wall time after which a measurement ends, in seconds, or ten times the allowed CPU seconds if that is
longer."""

SHARE = 0.05
"""Maximum duration of a measurement as a fraction of the training time of the trial."""

ENVS = 20
"""Number of environments. Each plays the same number of episodes, so that short episodes do not get more
weight."""

SLOWLY_MADE = 0.5
"""Time for making an environment, in seconds, above which a single environment plays all episodes."""

_log = logging.getLogger(__name__)


def ensure_baseline(folder: Path, seconds: float | None = None, whole: bool = False) -> Path | None:
    """Measure the random policy in the environment of the run in `folder`, unless its return is known.

    seconds: maximum duration of the measurement, in CPU seconds; None: a twentieth of the training time, but
    at most 20, and at least 5 if there is no published return; whole: whether the measurement is discarded if
    it is too short for all episodes. Returns the path of the file in the cache. Returns None if nothing was
    measured, because the actions have no uniform distribution, the environment fails or is untrusted code of
    someone else, an environment finished no episode in time, or there is no cache.
    """
    try:
        run = Run.open(folder)
        plain = run.read_config()["env"]
        path = baseline_path(plain)
        if path.exists():
            return path
        allowed = seconds
        if allowed is None:
            trained = sum(session.get("wall") or 0.0 for session in run.read_info().get("sessions") or [])
            allowed = min(max(SHARE * trained, 0.0 if human_range(plain) else SHORTEST), LONGEST)
        if allowed < 1:
            return None
        check_recorded(run, {"env": plain})
        prepare(run.config_dir)
        env = dataclass_of(Component, plain, "env")
        path.parent.mkdir(parents=True, exist_ok=True)
        return _measured_by_one(path, plain, env, allowed, EPISODES if whole else 1)
    except Exception as error:  # A user's environment may fail in any way.
        _log.info("no random baseline: %s", error)
        return None


def random_return(plain: Mapping[str, Any], env: Component) -> float | None:
    """Return the mean return of the random policy, measuring it now if it is unknown.

    plain: the node `env` of the configuration. Returns None if it cannot be measured.
    """
    path = baseline_path(plain)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _measured_by_one(path, plain, env, LONGEST)
    except Exception as error:  # A user's environment may fail in any way.
        _log.info("no random baseline: %s", error)
    known = random_baseline(plain)
    return None if known is None else known.mean


def play_at_random(env: VectorEnv, seconds: float, episodes: int = EPISODES) -> list[float]:
    """Play complete episodes with uniformly random valid actions, and return the returns of the episodes.

    Plays at least `episodes`, or as many as `seconds` of CPU time allow. Every environment contributes the
    same number of episodes, limited by the environment that finished the fewest, so that short episodes do
    not get more weight. Returns an empty list if an environment finished no episode.
    """
    from labrl.agents.random import uniform_actions
    from labrl.seeding import derived_seed

    rounds = math.ceil(episodes / env.num_envs)
    generator = np.random.default_rng(derived_seed(env.seed, "random baseline"))
    returns: list[list[float]] = [[] for _ in range(env.num_envs)]
    deadline, patience = time.process_time() + seconds, time.monotonic() + max(PATIENCE, 10 * seconds)
    env.reset()
    while min(map(len, returns)) < rounds and time.process_time() < deadline and time.monotonic() < patience:
        action = uniform_actions(env.action_space, env.num_envs, generator, env.action_mask)
        for episode in env.step(action).episodes:
            returns[episode.env].append(float(episode.episode_return))
    return [score for own in returns for score in own[: min(rounds, *map(len, returns))]]


def _measured_by_one(
    path: Path, plain: Mapping[str, Any], env: Component, seconds: float, fewest: int = 1
) -> Path | None:
    """Measure the random policy, or wait while another process measures it. fewest: minimum number of
    episodes of a measurement that is kept."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with FolderLock(path.parent):
                return path if path.exists() else _measure(path, plain, env, seconds, fewest)
        except BusyFolderError:
            if path.exists():
                return path
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)


def _measure(
    path: Path, plain: Mapping[str, Any], env: Component, seconds: float, fewest: int
) -> Path | None:
    # Imported late: a report with a known baseline must not wait for PyTorch.
    from labrl.envs.make import describe, make_env

    started = time.monotonic()
    describe(env)
    num_envs = ENVS if time.monotonic() - started < SLOWLY_MADE else 1
    # With separate worker processes, use no more of them than the trial did.
    if plain.get("vectorization") == "async":
        num_envs = env.config.num_envs
    vector = make_env(env, seed=0, num_threads=available_cpus(), evaluation=True, num_envs=num_envs)
    try:
        returns = play_at_random(vector, seconds)
    finally:
        vector.close()
    if len(returns) < fewest:
        _log.info("no random baseline of %s within %.0f seconds", plain.get("name"), seconds)
        return None
    facts = {
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns, ddof=1)) if len(returns) > 1 else None,
        "episodes": len(returns),
        "seconds": round(time.monotonic() - started, 3),
        "env": deciding_keys(plain),
        "returns": returns,
    }
    write_json(path, facts)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the random baseline of a run and print the path of the result. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m labrl.trial.baseline", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run folder")
    parser.add_argument("--seconds", type=float, help="maximum duration of the measurement, in CPU seconds")
    parser.add_argument(
        "--whole", action="store_true", help="discard a measurement that is too short for all episodes"
    )
    args = parser.parse_args(argv)
    if args.whole:  # The process that waits for the measurement may exit at any time.
        when_the_parent_ends()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    path = ensure_baseline(args.folder, args.seconds, args.whole)
    if path is None:
        return FAILED
    print(path)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
