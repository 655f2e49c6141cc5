"""labrl's vector environment: explicit seeded resets, whole-game statistics, exact save and restore.

An episode is its seed and its actions: that is all that is saved of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray

from labrl.envs.action_shares import WINDOW, action_shares, choices
from labrl.envs.masks import first_flags, first_valid, refuse_empty
from labrl.envs.protocol import Backend, Transition, action_dtype
from labrl.errors import EnvironmentFailedError
from labrl.observations import array_dtype, not_finite, same
from labrl.seeding import episode_seed
from labrl.step import Episode, Step

_log = logging.getLogger(__name__)

ENDLESS = 27_000
"""Steps of an episode that perhaps never ends: as many as of a game of the ALE at its longest."""

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Learners see rewards in single precision."""

HARMLESS = LARGEST_REWARD**2
"""Sum of squared rewards of a step up to which none is too large, infinite or NaN."""

SHORT = 32
"""Steps at the start of a run in which no next episode is made ready: it may be over before."""


class ReplayError(EnvironmentFailedError):
    """Replaying saved actions did not lead back: the environment is not determined by its seed."""


class VectorEnv:
    """Steps a backend, resets what has ended at once, and counts returns and lengths of whole games.

    Episode number k of environment i starts with `episode_seed(seed, i, k)` and nothing else, so what
    an environment plays depends on the seed and its actions only.

    Rewards and observations that are not finite are found in the step in which they come, by one sum of
    squares over all environments.
    """

    def __init__(self, backend: Backend, seed: int, first: int = 0) -> None:
        """first: number of the first environment, where others of the session play in other processes."""
        trusted = type(backend).__module__.partition(".")[0] == __name__.partition(".")[0]
        self.backend = backend if trusted else CopyingBackend(backend)
        self._first = first
        self.seed = seed
        """Seed of the session, from which the seed of every episode is derived."""
        self.name = backend.name
        self.num_envs = backend.num_envs
        self.frame_skip = backend.frame_skip
        """Emulator frames of one agent step."""
        self.observation_space = backend.observation_space
        """Observation space of one environment."""
        self.action_space = backend.action_space
        """Action space of one environment."""
        self.masked = backend.masked
        """Whether the environment says which actions are valid."""
        self.goals = backend.goals
        """Computes the rewards of other goals; None where there are no goals."""
        self.action_mask: NDArray[np.bool_] | None = None
        """Those of the present observations, None where all always are. [num_envs, flags]"""
        self.actions: NDArray | None = None
        """Actions of the last step; None before there is one. [num_envs, *action]"""
        self._action_dtype = action_dtype(backend.action_space)
        self._first_flags = first_flags(backend.action_space)
        self._reached: NDArray | None = None  # by the last step, before any reset [num_envs, *obs]
        self._all = np.ones(self.num_envs, dtype=np.bool_)
        self._observation: NDArray | None = None  # the present one [num_envs, *obs]
        kind = array_dtype(backend.observation_space).kind
        self._may_break, self._several = kind in "fV", kind == "V"
        """Whether an observation may hold a number that is not finite, of which nothing was said yet, and
        whether it has several inputs."""
        self._lost: NDArray | None = None  # the last one of episodes that did not come back
        self._begin(seed)

    def reset(self, seed: int | None = None) -> NDArray:
        """Start episode 0 of every environment; `seed` replaces the session seed.

        Returns the first observations, [num_envs, *obs].
        """
        self._begin(self.seed if seed is None else seed)
        observation = self._observation = self.backend.reset(self._all, self._episode_seed)
        if self._may_break:
            self._look_at(observation)
        self.action_mask = self._mask(self._all)
        return observation

    def step(self, actions: NDArray) -> Step:
        """Act in every environment, and start the next episode where one has ended.

        actions: [num_envs, *action], as the environment takes them (nothing is clipped or scaled).
        """
        if self._lost is not None:
            return self._cut(self._lost)
        actions = actions.astype(self._action_dtype, copy=False)
        # Environments may write into the actions that they get, and these are recorded.
        observation, reward, terminated, truncated, ended = self.backend.step(actions.copy())
        self._record.append(actions)
        self.actions, self._reached = actions, observation
        self._return += reward
        if not np.vdot(reward, reward) <= HARMLESS:  # a sum with a NaN is one, and that is not
            self._check_rewards(reward)
        # As for rewards: one number tells of all.
        if self._may_break and (self._several or not isfinite(np.vdot(observation, observation))):
            self._look_at(observation)
        over = ended | truncated
        step = Step(observation, observation, reward.astype(np.float32), terminated, truncated, over)
        self._steps += 1
        if self.masked:
            self.action_mask = step.mask = step.next_mask = self._mask(~ended)
        if np.count_nonzero(over):
            step.episodes, step.observation = self._next_episodes(over, ended)
            if self.masked:
                self.action_mask = step.mask = self._mask(over)
        if self.backend.prepares and self._unprepared and self._steps >= SHORT:
            self._make_ready()
        self._observation = step.observation
        return step

    def _check_rewards(self, reward: NDArray) -> None:
        """Raise EnvironmentFailedError for a reward that is not a finite number in single precision."""
        bad = np.flatnonzero(~(np.abs(reward) <= LARGEST_REWARD))
        if bad.size:
            env = bad[0]
            raise EnvironmentFailedError(
                f"{self.name}: environment {env} gave the reward {reward[env]} for step "
                f"{self._record.lengths[env]} of its episode; rewards must be finite numbers in single "
                f"precision (below {LARGEST_REWARD:.0e})",
                key="env",
            )

    def _look_at(self, observation: NDArray) -> None:
        """Tell of the first observation that is no finite number: what learns from it fails much later.

        It is not refused, for a transform of somebody's own may know what it means.
        """
        if observation.dtype.kind == "f" and isfinite(np.vdot(observation, observation)):
            return
        if (found := not_finite(observation)) is None:
            return
        self._may_break = False
        env, value = found
        _log.warning(
            "%s: environment %d gave an observation with %s in it after step %d of its episode; "
            "networks need finite numbers",
            self.name,
            env,
            value,
            self._record.lengths[env],
        )

    def played(self, episode: Episode) -> tuple[NDArray, NDArray]:
        """Return actions and true final observation of an episode that ended in the last step.

        Shapes are [length, *action] and [*obs]; the arrays are not written to later.
        """
        assert self._reached is not None, "an episode ends in step()"
        actions, final = self._record.last(episode.env, episode.length), self._reached[episode.env]
        actions.flags.writeable = False
        return actions, final

    @property
    def longest_episode(self) -> int:
        """Steps so far of the longest of the running episodes."""
        return int(self._record.lengths.max())

    def metrics(self) -> dict[str, float]:
        """Return the columns of `action_shares`."""
        return action_shares(self._record.latest, self.action_space)

    def close(self) -> None:
        """Free threads and processes; calling it again changes nothing."""
        self.backend.close()

    def state_dict(self) -> dict[str, Any]:
        """Return which episode each environment plays, and the actions in it, as plain numbers and tensors.

        No simulator is copied: an episode is its seed and its actions. The observation and the returns
        so far are there to be checked when the actions are replayed.
        """
        assert self._observation is not None, "reset() comes before state_dict()"
        return {
            "seed": self.seed,
            "episode": torch.from_numpy(self._episode.copy()),  # [num_envs]
            "episode_seed": torch.from_numpy(self._episode_seed.copy()),  # [num_envs]
            "episode_return": torch.from_numpy(self._return.copy()),  # [num_envs]
            "actions": [torch.from_numpy(own) for own in self._record.since_reset()],
            "observation": self._observation.copy(),  # [num_envs, *obs]
            "lost": self._lost is not None,
            "steps": self._steps,
            "action_mask": self.action_mask,  # [num_envs, flags], or None
            "latest_actions": self._record.latest,  # [steps, num_envs, *action]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> NDArray:
        """Bring every environment back to where it was saved, bit for bit, by replaying its episode.

        A vector environment can only be stepped as a whole. So the longest episode starts first, and
        each other environment is reset when as many steps are left as it has actions; what it did
        before that is thrown away. Returns the present observations, [num_envs, *obs].

        Raises ValueError when the state is of other environments, ReplayError when an environment
        does not reproduce its past; `abandon` continues from there.
        """
        if state["lost"]:
            return self.abandon(state)
        actions = self._take_over(state)
        reached = self._replay(self._record.load(actions))
        saved, saved_return = np.asarray(state["observation"]), np.asarray(state["episode_return"])
        for env in range(self.num_envs):
            if not same(self._return[env], saved_return[env]):
                raise ReplayError(
                    f"{self.name}: environment {env} has return {self._return[env]} after its saved"
                    f" actions, it was {saved_return[env]}",
                    key="env",
                )
            if not same(reached[env], saved[env]):
                raise ReplayError(
                    f"{self.name}: environment {env} gives another observation after its saved actions",
                    key="env",
                )
        self._observation = reached
        self.action_mask = self._mask(self._all)
        return reached

    def abandon(self, state: Mapping[str, Any]) -> NDArray:
        """Give up saved episodes that cannot be reproduced: the next step tells the learner that they were
        cut.

        That step plays nothing. It is a truncation at the saved observations, which are returned here,
        [num_envs, *obs], and the next episode of every environment begins after it.
        """
        self._take_over(state)
        lost = self._observation = self._lost = np.asarray(state["observation"])
        self.action_mask = state["action_mask"]
        return lost

    def _take_over(self, state: Mapping[str, Any]) -> list[NDArray]:
        """Take over which episodes are played. Return the actions since their resets."""
        actions = [np.asarray(own) for own in state["actions"]]
        check_actions(actions, self.num_envs, self.action_space)
        self._begin(int(state["seed"]))
        self._steps = int(state["steps"])
        self._record.begin_after(np.asarray(state["latest_actions"]))
        self._episode = np.asarray(state["episode"]).astype(np.int64)
        self._episode_seed = np.asarray(state["episode_seed"]).astype(np.int64)
        return actions

    def _cut(self, final: NDArray) -> Step:
        """The step after episodes were lost. final: [num_envs, *obs], the last that is known of them."""
        self._lost = None
        no = np.zeros(self.num_envs, dtype=np.bool_)
        _, first = self._next_episodes(self._all, no)
        self._observation = first
        reward = np.zeros(self.num_envs, dtype=np.float32)
        yes = self._all.copy()
        step = Step(first, final, reward, no, yes, yes, next_mask=self.action_mask, void=True)
        self._steps += 1
        self.action_mask = step.mask = self._mask(self._all)
        return step

    def _begin(self, seed: int) -> None:
        self.seed = seed
        self._episode = np.zeros(self.num_envs, dtype=np.int64)  # [num_envs]
        seeds = [self._seed_of(env, 0) for env in range(self.num_envs)]
        self._episode_seed = np.array(seeds, dtype=np.int64)  # [num_envs]
        self._return = np.zeros(self.num_envs, dtype=np.float64)  # raw, of the running episodes [num_envs]
        self._record: ActionRecord = ActionRecord(self.num_envs, self.action_space)
        self._unprepared = dict.fromkeys(range(self.num_envs))
        """Environments whose next episode nobody has begun; a dictionary, for their order."""
        self._observation = self._lost = None
        self._steps = 0

    def _mask(self, needed: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """The masks as the backend has them now, where `needed` with a valid action. [num_envs, flags]"""
        if not self.masked:
            return None
        mask = self.backend.action_mask
        assert mask is not None, "a backend with masks has one after each reset and step"
        refuse_empty(mask, self._first_flags, needed, self.name, self._steps * self.num_envs)
        return mask

    def _seed_of(self, env: int, episode: int) -> int:
        return episode_seed(self.seed, self._first + env, episode)

    def _next_episodes(
        self, over: NDArray[np.bool_], ended: NDArray[np.bool_]
    ) -> tuple[list[Episode], NDArray]:
        """Begin the next episode where one is over. over, ended: [num_envs].

        Returns the episodes that were finished, and the present observations of all, [num_envs, *obs].
        """
        lengths = self._record.begin(over)
        finished = []
        for env in over.nonzero()[0].tolist():
            index = int(self._episode[env])
            finished.append(
                Episode(
                    env=env,
                    index=index,
                    seed=int(self._episode_seed[env]),
                    episode_return=float(self._return[env]),
                    length=int(lengths[env]),
                    truncated=not ended[env],
                )
            )
            self._episode[env] = index + 1
            self._episode_seed[env] = episode_seed(self.seed, self._first + env, index + 1)
            self._return[env] = 0.0
            self._unprepared[env] = None
        observation = self.backend.reset(over, self._episode_seed)
        if self._may_break:
            self._look_at(observation)
        return finished, observation

    def _make_ready(self) -> None:
        """Begin the next episode of one environment beside the present ones: not of all in the same step."""
        env = next(iter(self._unprepared))
        del self._unprepared[env]
        self.backend.prepare(env, self._seed_of(env, int(self._episode[env]) + 1))

    def _replay(self, rows: NDArray) -> NDArray:
        """Play rows [longest, num_envs, *action], resetting each environment where its own begin."""
        start = len(rows) - self._record.lengths  # [num_envs]
        observation = self.backend.reset(self._all, self._episode_seed)
        discarded = np.zeros(self.num_envs, dtype=np.bool_)  # ended before their own actions began
        for index, row in enumerate(rows):
            fresh = (start == index) | discarded
            if index and fresh.any():
                self.backend.reset(fresh, self._episode_seed)
            own = start <= index
            if self.masked and not own.all():  # others than the row's owner may not be able to do the same
                assert self.backend.action_mask is not None
                valid = first_valid(self.backend.action_mask, self.action_space)
                row = np.where(own.reshape(-1, *[1] * (row.ndim - 1)), row, valid)
            observation, reward, _, truncated, ended = self.backend.step(row.astype(self._action_dtype))
            self._return[own] += reward[own]
            over = ended | truncated
            if (over & own).any():
                env = np.flatnonzero(over & own)[0]
                raise ReplayError(
                    f"{self.name}: the saved episode of environment {env} ended early in its replay",
                    key="env",
                )
            discarded = over
        last = (start == len(rows)) | discarded
        if len(rows) and last.any():
            return self.backend.reset(last, self._episode_seed)
        return observation


class CopyingBackend(Backend):
    """Copies what a user's backend gives, which may write into it later."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.num_envs, self.frame_skip = backend.name, backend.num_envs, backend.frame_skip
        self.observation_space, self.action_space = backend.observation_space, backend.action_space
        self.masked, self.goals, self.prepares = backend.masked, backend.goals, backend.prepares

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start new episodes where `mask` is set. mask, seeds: [num_envs]. Returns [num_envs, *obs]."""
        observation = np.array(self._backend.reset(mask, seeds))
        self._take_mask()
        return observation

    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action]."""
        transition = Transition(*map(np.array, self._backend.step(actions)))
        self._take_mask()
        return transition

    def close(self) -> None:
        """Free threads and processes."""
        self._backend.close()

    def prepare(self, env: int, seed: int) -> None:
        """Get the next episode of an environment ready."""
        self._backend.prepare(env, seed)

    def _take_mask(self) -> None:
        if self.masked:
            self.action_mask = np.array(self._backend.action_mask)


def stored_dtype(space: Space[Any]) -> np.dtype:
    """The narrowest type that keeps the actions of `space` exactly."""
    if isinstance(space, Discrete) and space.start >= 0 and int(space.start) + int(space.n) <= 256:
        return np.dtype(np.uint8)
    return action_dtype(space)


class ActionRecord:
    """The actions of the running episode of every environment, and the latest ones of discrete actions.

    One row is written for a vector step, whichever episodes run; each environment remembers at which
    row its episode began. Rows that are neither of a running episode nor among the latest are left behind
    when new ones need room, and memory doubles when that is not enough. What was written is never changed.
    """

    def __init__(self, num_envs: int, space: Space[Any], capacity: int = 1024) -> None:
        shape = space.shape or ()
        self._rows = np.zeros((capacity, num_envs, *shape), dtype=stored_dtype(space))
        self._dtype = action_dtype(space)
        self._window = -(-WINDOW // num_envs) if choices(space) else 0  # vector steps of `latest`
        self._first = np.zeros(num_envs, dtype=np.int64)
        self._next = 0

    @property
    def latest(self) -> NDArray:
        """Actions of the last WINDOW frames, none of real numbers. [steps, num_envs, *action]"""
        return self._rows[max(self._next - self._window, 0) : self._next].astype(self._dtype)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Actions since each environment's reset. [num_envs]"""
        return self._next - self._first

    def append(self, actions: NDArray) -> None:
        """Add one action per environment. actions: [num_envs, *action]."""
        if self._next == len(self._rows):
            self._make_room()
        self._rows[self._next] = actions
        self._next += 1

    def begin(self, envs: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Forget what the masked environments did: they are at the start of an episode. [num_envs]

        Returns how many actions each environment had done before, [num_envs].
        """
        lengths = self._next - self._first
        self._first[envs] = self._next
        return lengths

    def since_reset(self) -> list[NDArray]:
        """A copy of each environment's actions, in order. num_envs arrays [length, *action]"""
        return [self._rows[first : self._next, env].copy() for env, first in enumerate(self._first)]

    def last(self, env: int, length: int) -> NDArray:
        """The latest actions of one environment, a view that stays as it is. [length, *action]"""
        return self._rows[self._next - length : self._next, env]

    def begin_after(self, latest: NDArray) -> None:
        """Take over what `latest` gave; all environments are at the start of an episode."""
        self._rows = self._with_room(len(latest))
        self._rows[: len(latest)] = latest
        self._next = len(latest)
        self._first[:] = self._next

    def load(self, actions: list[NDArray]) -> NDArray:
        """Take over what `since_reset` gave, aligned so that every environment ends in the last row.

        Returns the rows, [longest, num_envs, *action]; where an environment's own episode has not
        begun yet they hold the longest one's actions, which are valid and mean nothing.
        """
        longest, latest = max(actions, key=len), self._rows[: self._next]
        count, lengths = len(longest), np.array([len(own) for own in actions], dtype=np.int64)
        self._next = max(count, len(latest))
        self._rows = rows = self._with_room(self._next)
        first = self._next - count
        for env, own in enumerate(actions):
            rows[first : self._next - len(own), env] = longest[: count - len(own)]
            rows[self._next - len(own) : self._next, env] = own
        to_play = rows[first : self._next].copy()
        rows[self._next - len(latest) : self._next] = latest
        self._first = self._next - lengths
        return to_play

    def _with_room(self, count: int) -> NDArray:
        """Return fresh rows, at least `count` of them."""
        capacity = len(self._rows)
        while capacity < count:
            capacity *= 2
        return np.zeros((capacity, *self._rows.shape[1:]), dtype=self._rows.dtype)

    def _make_room(self) -> None:
        oldest = max(min(int(self._first.min()), self._next - self._window), 0)
        live = self._next - oldest
        # New ones in any case: somebody may still look at the actions of an episode that has ended.
        longer = 2 if live > len(self._rows) // 2 else 1
        rows = np.zeros((longer * len(self._rows), *self._rows.shape[1:]), dtype=self._rows.dtype)
        rows[:live] = self._rows[oldest : self._next]
        self._rows = rows
        self._first -= oldest
        self._next = live


def check_actions(actions: list[NDArray], num_envs: int, space: Space[Any]) -> None:
    """Raise ValueError unless `actions` are saved episodes of `num_envs` environments of `space`."""
    shape = space.shape or ()
    if len(actions) != num_envs or any(own.shape[1:] != shape for own in actions):
        raise ValueError(
            f"saved environments do not fit: {len(actions)} of them, now {num_envs},"
            f" with actions shaped {[own.shape[1:] for own in actions][:1]}, now {shape}"
        )
