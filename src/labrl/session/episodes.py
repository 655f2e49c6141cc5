"""Statistics of finished episodes, and the best and the latest episode, which are recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labrl.envs.protocol import Backend, action_dtype
from labrl.errors import EnvironmentFailedError
from labrl.processes.secrets import redact
from labrl.run.episodes import RecordedEpisode, Source, checksum
from labrl.step import Episode
from labrl.types import INFO, Reduction


class Played(NamedTuple):
    """An episode that has just ended. Its arrays are not copied, so that keeping it costs nothing."""

    episode: Episode
    actions: NDArray
    """[length, *action]"""
    final: NDArray
    """The true final observation. [*obs]"""
    frame: int
    """Training frame at which the episode ended."""
    source: Source

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the raw rewards."""
        return self.episode.episode_return

    def recorded(self, env: dict[str, Any]) -> RecordedEpisode:
        """Return the episode in the form in which it is stored.

        env: the configuration of the environment; its secrets are masked in the result.
        """
        episode = self.episode
        return RecordedEpisode(
            seed=episode.seed,
            actions=self.actions.copy(),
            episode_return=episode.episode_return,
            length=episode.length,
            truncated=episode.truncated,
            final_observation=checksum(self.final),
            frame=self.frame,
            source=self.source,
            environment=episode.env,
            number=episode.index,
            env=redact(env),
        )


def replayed(episode: RecordedEpisode, env: Backend, look: Callable[[int], object]) -> str | None:
    """Play an episode back. Return how it differs from the record; None if it does not.

    look: function that is called before the first action and after each action, with the number of actions;
    if it returns True, playback ends unchecked. Raises EnvironmentFailedError if the environment cannot be
    reset.
    """
    total, steps, over = 0.0, 0, False
    try:
        observation = env.reset(np.ones(1, np.bool_), np.array([episode.seed], np.int64))
    except (Exception, SystemExit) as error:  # An environment may fail in any way.
        why = f"its reset failed: {type(error).__name__}: {error}"
        raise EnvironmentFailedError.about(env.name, why, key="env") from error
    if look(steps) is True:
        return None
    for action in episode.actions.astype(action_dtype(env.action_space)):
        if over:
            break
        try:
            transition = env.step(action[None])
        except (Exception, SystemExit) as error:
            return f"step {steps + 1} failed: {type(error).__name__}: {error}"
        observation, over = transition.observation, bool((transition.ended | transition.truncated)[0])
        total += float(transition.reward[0])
        steps += 1
        if look(steps) is True:
            return None
    if steps != episode.length or not over:
        ended = f"it ended after {steps} steps" if over else f"it had not ended after {steps} steps"
        return f"{ended}, but the recorded episode ended after {episode.length}"
    if total != episode.episode_return:
        return f"its return is {total:g}, but the recorded return is {episode.episode_return:g}"
    if checksum(observation[0]) != episode.final_observation:
        return "its last observation differs from the record"
    return None


class Highlights:
    """The episode with the highest return (the first in a tie), and the latest one."""

    def __init__(self) -> None:
        self.kept: dict[str, Played | RecordedEpisode] = {}
        """The kept episodes under the keys `best` and `last`; empty before the first episode has ended."""

    def take(self, played: Played) -> None:
        """Add an episode without copying it."""
        best = self.kept.get("best")
        self.kept["last"] = played
        if best is None or played.episode.episode_return > best.episode_return:
            self.kept["best"] = played


class EpisodeWindow:
    """The last `window` episodes, in the order in which they ended."""

    def __init__(self, window: int, info: Mapping[str, Reduction] = MappingProxyType({})) -> None:
        """info: the numbers to keep from each episode's `info`, with their reductions."""
        self.info = info
        """The numbers to keep from each episode's `info`, those of `env.info_keys`, with their reductions."""
        self.latest: deque[Episode] = deque(maxlen=window)
        """The episodes in the window. Episodes restored from a checkpoint have only a return, a length and
        `info`."""

    def statistics(self) -> dict[str, float]:
        """Return the columns of `episode_statistics` and `info_statistics`; all are nan before the first
        episode has ended."""
        return {**episode_statistics(self.latest), **info_statistics(self.latest, self.info)}

    def state_dict(self) -> dict[str, Any]:
        """Return the returns, lengths and `info` numbers of the window's episodes as arrays."""
        return {
            "returns": np.array([episode.episode_return for episode in self.latest], dtype=np.float64),
            "lengths": np.array([episode.length for episode in self.latest], dtype=np.int64),
            "info": {name: numbers_named(self.latest, name) for name in self.info},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state. A smaller window keeps the newest of the saved episodes."""
        info = {name: state["info"][name] for name in self.info if name in state.get("info", {})}
        self.latest.clear()
        for place, (score, length) in enumerate(zip(state["returns"], state["lengths"], strict=True)):
            own = {
                name: float(column[place]) for name, column in info.items() if column[place] == column[place]
            }
            self.latest.append(Episode(-1, -1, -1, float(score), int(length), False, own))


def episode_statistics(episodes: Iterable[Episode | RecordedEpisode]) -> dict[str, float]:
    """Return mean, population standard deviation, minimum and maximum of the returns, and the mean length.

    The columns are `return_mean`, `return_std`, `return_min`, `return_max` and `length_mean`; all are nan if
    there are no episodes.
    """
    found = [(episode.episode_return, episode.length) for episode in episodes]
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    if not found:
        return dict.fromkeys(names, np.nan)
    score, steps = np.array(
        found, np.float64
    ).T.copy()  # contiguous, because the order of summation affects the last bit
    numbers = (score.mean(), score.std(), score.min(), score.max(), steps.mean())
    return dict(zip(names, map(float, numbers), strict=True))


def info_statistics(episodes: Iterable[Episode], keys: Mapping[str, object]) -> dict[str, float]:
    """Return the columns `info/<name>`: the mean of a number over the episodes that have it; nan if none has
    it. keys: the names, as in `names_of`."""
    found, listed = {}, list(episodes)
    for name in names_of(keys, listed):
        column = numbers_named(listed, name)
        known = column[~np.isnan(column)]
        found[f"{INFO}{name}"] = float(known.mean()) if known.size else np.nan
    return found


def names_of(keys: Mapping[str, object], episodes: Collection[Episode]) -> list[str]:
    """Return the names in `keys` without those of the reduction `auto` that no episode has."""
    had = {name for episode in episodes for name in episode.info}
    return [name for name, how in keys.items() if how != "auto" or name in had]


def numbers_named(episodes: Iterable[Episode], name: str) -> NDArray[np.float64]:
    """Return the number `name` from each episode's `info`; nan where it is missing. [episodes]"""
    return np.array([episode.info.get(name, np.nan) for episode in episodes], dtype=np.float64)
