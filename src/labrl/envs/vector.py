"""labrl's vector environment: explicit seeded resets, whole-game statistics, exact save and restore."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Never

import numpy as np
import torch
from numpy.typing import NDArray

from labrl.envs.actions import ActionRecord, action_dtype, check_actions
from labrl.envs.masks import choices, first_valid, refuse_empty
from labrl.envs.protocol import Backend, Transition
from labrl.envs.repeatability import same
from labrl.errors import EnvironmentFailedError
from labrl.observations import Goals, not_finite
from labrl.seeding import episode_seed
from labrl.step import Episode, Step

_log = logging.getLogger(__name__)

ENDLESS = 27_000
"""Steps of an episode that perhaps never ends: as many as of a game of the ALE at its longest."""

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Learners see rewards in single precision."""

SHORT = 32
"""Steps at the start of a run in which no next episode is made ready: it may be over before."""


class ReplayError(EnvironmentFailedError):
    """Replaying saved actions did not lead back: the environment is not determined by its seed."""


class VectorEnv:
    """Steps a backend, resets what has ended at once, and counts returns and lengths of whole games.

    Episode number k of environment i starts with `episode_seed(seed, i, k)` and nothing else, so what
    an environment plays depends on the seed and its actions only.
    """

    def __init__(self, backend: Backend, seed: int, first: int = 0) -> None:
        """first: number of the first environment, where others of the session play in other processes."""
        self.backend = backend
        self._first = first
        self.seed = seed
        """Of the session; every episode's seed is derived from it."""
        self.name = backend.name
        self.num_envs = backend.num_envs
        self.frame_skip = backend.frame_skip
        """Emulator frames of one agent step."""
        self.observation_space = backend.observation_space
        """Of one environment."""
        self.action_space = backend.action_space
        """Of one environment."""
        self.masked = bool(getattr(backend, "masked", False))
        """Whether the environment says which actions are valid."""
        self.goals: Goals | None = getattr(backend, "goals", None)
        """Who knows what other goals would have given, None where there are no goals."""
        self.action_mask: NDArray[np.bool_] | None = None
        """Those of the present observations, None where all always are. [num_envs, flags]"""
        self.actions: NDArray | None = None
        """What was done in the last step, None before there is one. [num_envs, *action]"""
        self._prepare: Callable[[int, int], None] | None = getattr(backend, "prepare", None)
        self._action_dtype = action_dtype(backend.action_space)
        self._trusted = type(backend).__module__.partition(".")[0] == __name__.partition(".")[0]
        """Whether the backend is one of labrl's, which write to no array that they have given."""
        self._reached: NDArray | None = None  # by the last step, before any reset [num_envs, *obs]
        self._all = np.ones(self.num_envs, dtype=np.bool_)
        self._observation: NDArray | None = None  # the present one [num_envs, *obs]
        self._told_of_broken = False
        self._lost: NDArray | None = None  # the last one of episodes that did not come back
        self._begin(seed)

    def reset(self, seed: int | None = None) -> NDArray:
        """Start episode 0 of every environment; `seed` replaces the session seed.

        Returns the first observations, [num_envs, *obs].
        """
        self._begin(self.seed if seed is None else seed)
        observation = self._observation = self._reset(self._all)
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
        transition = self._play(actions)
        observation, reward, terminated, truncated, ended = transition
        self._record.append(actions)
        self.actions = actions
        self._return += reward
        if not np.abs(reward).max() <= LARGEST_REWARD:  # of nan it is nan, which is not
            self._refuse(reward)
        self._reached = observation
        self._look_at(observation)
        over = ended | truncated
        step = Step(observation, observation, reward.astype(np.float32), terminated, truncated, over)
        self._steps += 1
        if self.masked:
            self.action_mask = step.mask = step.next_mask = self._mask(~ended)
        if over.any():
            step.episodes = self._finished(transition, over)
            step.observation = self._next_episode(over)
            self.action_mask = step.mask = self._mask(over)
        self._make_ready()
        self._observation = step.observation
        return step

    def _refuse(self, reward: NDArray) -> Never:
        """Raises EnvironmentFailedError for a reward that is not a finite number."""
        env = np.flatnonzero(~(np.abs(reward) <= LARGEST_REWARD))[0]
        raise EnvironmentFailedError(
            f"{self.name}: environment {env} gave the reward {reward[env]} for step "
            f"{self._record.lengths[env]} of its episode; rewards must be finite numbers in single precision "
            f"(below {LARGEST_REWARD:.0e})",
            key="env",
        )

    def _look_at(self, observation: NDArray) -> None:
        """Tell of the first observation that is no finite number: what learns from it fails much later.

        It is not refused, for a transform of somebody's own may know what it means.
        """
        if self._told_of_broken or (found := not_finite(observation)) is None:
            return
        self._told_of_broken = True
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
        """Of an episode that ended in the last step: its actions and the true final observation.

        Returns [length, *action] and [*obs], which are not written to later.
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
        """What a training row says of the collecting: nothing, where each step is waited for."""
        return {}

    def close(self) -> None:
        """Free threads and processes; calling it again changes nothing."""
        self.backend.close()

    def state_dict(self) -> dict[str, Any]:
        """Which episode each environment plays, and what was done in it: plain numbers and tensors.

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
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> NDArray:
        """Bring every environment back to where it was saved, bit for bit, by replaying its episode.

        A vector environment can only be stepped as a whole. So the longest episode starts first, and
        each other environment is reset when as many steps are left as it has actions; what it did
        before that is thrown away. Returns the present observations, [num_envs, *obs].

        Raises ValueError when the state is of other environments, ReplayError when an environment
        does not come back to where it was; `abandon` goes on from there.
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
        """Where the saved episodes do not come back: the next step tells the learner that they were cut.

        That step plays nothing. It is a truncation at the saved observations, which are returned here,
        [num_envs, *obs], and the next episode of every environment begins after it.
        """
        self._take_over(state)
        lost = self._observation = self._lost = np.asarray(state["observation"])
        self.action_mask = state["action_mask"]
        return lost

    def _take_over(self, state: Mapping[str, Any]) -> list[NDArray]:
        """Which episodes are played; returns the actions since their resets."""
        actions = [np.asarray(own) for own in state["actions"]]
        check_actions(actions, self.num_envs, self.action_space)
        self._begin(int(state["seed"]))
        self._steps = int(state["steps"])
        self._episode = np.asarray(state["episode"]).astype(np.int64)
        self._episode_seed = np.asarray(state["episode_seed"]).astype(np.int64)
        return actions

    def _cut(self, final: NDArray) -> Step:
        """The step after episodes were lost. final: [num_envs, *obs], the last that is known of them."""
        self._lost = None
        no = np.zeros(self.num_envs, dtype=np.bool_)
        first = self._observation = self._next_episode(self._all)
        reward = np.zeros(self.num_envs, dtype=np.float32)
        yes = self._all.copy()
        step = Step(first, final, reward, no, yes, yes, next_mask=self.action_mask, void=True)
        self._steps += 1
        self.action_mask = step.mask = self._mask(self._all)
        return step

    def _begin(self, seed: int) -> None:
        self.seed = seed
        self._episode = np.zeros(self.num_envs, dtype=np.int64)  # [num_envs]
        self._episode_seed = self._seeds(self._all)  # [num_envs]
        self._return = np.zeros(self.num_envs, dtype=np.float64)  # raw, of the running episodes [num_envs]
        self._record = ActionRecord(self.num_envs, self.action_space)
        self._unprepared = dict.fromkeys(range(self.num_envs))
        """Environments whose next episode nobody has begun; a dictionary, for their order."""
        self._observation = self._lost = None
        self._steps = 0

    def _mask(self, needed: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """The masks as the backend has them now, where `needed` with a valid action. [num_envs, flags]"""
        if not self.masked:
            return None
        mask = self.backend.action_mask  # type: ignore[attr-defined]  # of those with masks
        mask = mask if self._trusted else np.array(mask)
        refuse_empty(mask, choices(self.action_space), needed, self.name, self._steps * self.num_envs)
        return mask

    def _seeds(self, envs: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Seeds of the present episodes of the masked environments, in order."""
        own = [self._seed_of(int(env), int(self._episode[env])) for env in np.flatnonzero(envs)]
        return np.array(own, dtype=np.int64)

    def _seed_of(self, env: int, episode: int) -> int:
        return episode_seed(self.seed, self._first + env, episode)

    def _finished(self, transition: Transition, over: NDArray[np.bool_]) -> list[Episode]:
        lengths = self._record.lengths
        return [
            Episode(
                env=int(env),
                index=int(self._episode[env]),
                seed=int(self._episode_seed[env]),
                episode_return=float(self._return[env]),
                length=int(lengths[env]),
                truncated=not transition.ended[env],
            )
            for env in np.flatnonzero(over)
        ]

    def _next_episode(self, over: NDArray[np.bool_]) -> NDArray:
        self._episode[over] += 1
        self._episode_seed[over] = self._seeds(over)
        self._return[over] = 0.0
        self._record.begin(over)
        self._unprepared |= dict.fromkeys(np.flatnonzero(over).tolist())
        first = self._reset(over)
        self._look_at(first)
        return first

    def _reset(self, mask: NDArray[np.bool_]) -> NDArray:
        """Let the masked environments begin their present episodes. Returns all observations."""
        observation = self.backend.reset(mask, self._episode_seed)
        return observation if self._trusted else np.array(observation)

    def _play(self, actions: NDArray) -> Transition:
        """Act. Environments get a copy of the actions, into which they may write: these are recorded."""
        transition = self.backend.step(actions.copy())
        return transition if self._trusted else Transition(*map(np.array, transition))

    def _make_ready(self) -> None:
        """Begin the next episode of one environment beside the present ones: not of all in the same step."""
        if self._prepare is None or not self._unprepared or self._steps < SHORT:
            return
        env = next(iter(self._unprepared))
        del self._unprepared[env]
        self._prepare(env, self._seed_of(env, int(self._episode[env]) + 1))

    def _replay(self, rows: NDArray) -> NDArray:
        """Play rows [longest, num_envs, *action], resetting each environment where its own begin."""
        start = len(rows) - self._record.lengths  # [num_envs]
        observation = self._reset(self._all)
        discarded = np.zeros(self.num_envs, dtype=np.bool_)  # ended before their own actions began
        for index, row in enumerate(rows):
            fresh = (start == index) | discarded
            if index and fresh.any():
                self._reset(fresh)
            own = start <= index
            if self.masked and not own.all():  # others than the row's owner may not be able to do the same
                valid = first_valid(self.backend.action_mask, self.action_space)  # type: ignore[attr-defined]
                row = np.where(own.reshape(-1, *[1] * (row.ndim - 1)), row, valid)
            observation, reward, _, truncated, ended = self._play(row.astype(self._action_dtype))
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
        return self._reset(last) if len(rows) and last.any() else observation
