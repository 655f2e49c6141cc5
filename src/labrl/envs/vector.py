"""labrl's vector environment: explicit seeded resets, statistics of complete games, exact save and restore.

A seed and the actions determine an episode, so only these are saved.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.envs.actions import ActionRecord, action_statistics
from labrl.envs.info import EpisodeNumbers
from labrl.envs.masks import first_flags, first_valid, refuse_empty
from labrl.envs.protocol import Backend, Transition, action_dtype
from labrl.errors import EnvironmentFailedError
from labrl.seeding import episode_seed
from labrl.spaces import array_dtype, not_finite, same
from labrl.step import Episode, Step

_log = logging.getLogger(__name__)

ENDLESS = 27_000
"""Number of steps after which an episode is assumed never to end. It is the length of the longest episode of
an Atari game."""

MAX_REWARD = float(np.finfo(np.float32).max)
"""Maximum magnitude of a reward. It is limited because learners use single precision."""

MAX_SQUARES = MAX_REWARD**2
"""Sum of squared rewards in a step up to which no reward can be too large, infinite or NaN."""

SHORT = 32
"""Number of steps at the start of a run during which no next episode is prepared; the run may be short."""


class ReplayError(EnvironmentFailedError):
    """Replaying saved actions did not reproduce an episode, so its seed does not determine the episode."""


class VectorEnv:
    """Step a backend, reset finished environments at once, and record returns and lengths of complete games.

    The episode with index k in environment i starts with `episode_seed(seed, i, k)`, so that it depends only
    on the seed and on its actions.

    Non-finite rewards and observations are detected in the step in which they occur, by one sum of squares
    over all environments.
    """

    def __init__(
        self,
        backend: Backend,
        seed: int,
        first: int = 0,
        numbers: EpisodeNumbers | None = None,
    ) -> None:
        """seed: seed of the session; first: index of the first environment in the session, > 0 if other ranks
        step earlier environments; numbers: record of numbers from infos, None if there are none to record."""
        self.backend = backend
        # A user's backend may modify the arrays that it has returned.
        self._copies = type(backend).__module__.partition(".")[0] != __name__.partition(".")[0]
        self._copies_actions = self._copies or bool(backend.action_space.shape)
        self._first, self._numbers = first, numbers
        self.seed = seed
        """Seed of the session, from which the seeds of all episodes are derived."""
        self.name = backend.name
        self.num_envs = backend.num_envs
        self.frame_skip = backend.frame_skip
        """Number of emulator frames per agent step."""
        self.observation_space = backend.observation_space
        """Observation space of one environment."""
        self.action_space = backend.action_space
        """Action space of one environment."""
        self.masked = backend.masked
        """Whether the environment provides action masks."""
        self.goals = backend.goals
        """Object that computes rewards for other goals; None for environments without goals."""
        self.action_mask: NDArray[np.bool_] | None = None
        """Masks of the valid actions for the current observations; None without masks. [num_envs, flags]"""
        self.actions: NDArray | None = None
        """Actions of the last step; None before the first step. [num_envs, *action]"""
        self._action_dtype = action_dtype(backend.action_space)
        self._first_flags = first_flags(backend.action_space)
        self._reached: NDArray | None = None  # observations of the last step, before resets [num_envs, *obs]
        self._all = np.ones(self.num_envs, dtype=np.bool_)
        self._observation: NDArray | None = None  # current observations [num_envs, *obs]
        kind = array_dtype(backend.observation_space).kind
        self._may_break, self._several = kind in "fV", kind == "V"
        """Whether to check observations for non-finite numbers (until the first warning), and whether
        observations have several inputs."""
        self.saw_not_finite = False
        """Whether there was a warning of an observation that is not finite."""
        self._lost: NDArray | None = None  # last observations of episodes that cannot be reproduced
        self._begin(seed)

    def reset(self, seed: int | None = None) -> NDArray:
        """Start episode 0 in every environment. Returns the first observations, [num_envs, *obs].

        seed: new seed of the session; None: its present seed.
        """
        self._begin(self.seed if seed is None else seed)
        observation = self._observation = self._reset_backend(self._all)
        self.action_mask = self._mask(self._all)
        return observation

    def step(self, actions: NDArray) -> Step:
        """Act in every environment, and start the next episode where an episode has ended.

        actions: [num_envs, *action], passed to the environments without clipping or scaling.
        """
        if self._lost is not None:
            return self._truncate_lost(self._lost)
        if actions.dtype != self._action_dtype:
            actions = actions.astype(self._action_dtype)
        # Environments may modify arrays that they receive, but the actions are recorded here.
        transition = self.backend.step(actions.copy() if self._copies_actions else actions)
        if self._copies:
            transition = Transition(*map(np.array, transition))
        observation, reward, terminated, truncated, ended = transition
        self._record.append(actions)
        if self._numbers is not None and self.backend.info:
            self._numbers.add(self.backend.info)
        self.actions, self._reached = actions, observation
        self._return += reward
        if not np.vdot(reward, reward) <= MAX_SQUARES:  # also true for NaN
            self._check_rewards(reward)
        # A sum of squares is not finite if any observation is not.
        if self._may_break and (self._several or not np.vdot(observation, observation) < inf):
            self._warn_if_not_finite(observation)
        over = ended | truncated
        step = Step(observation, observation, reward.astype(np.float32), terminated, truncated, over)
        self._steps += 1
        if self.masked:
            self.action_mask = step.mask = step.next_mask = self._mask(~ended)
        if over.nonzero()[0].size:
            step.episodes, step.observation = self._next_episodes(over, ended)
            if self.masked:
                self.action_mask = step.mask = self._mask(over)
        if self.backend.prepares and self._unprepared and self._steps >= SHORT:
            # Prepare the next episode of one environment per step, which spreads the cost.
            env = next(iter(self._unprepared))
            del self._unprepared[env]
            self.backend.prepare(env, self._seed_of(env, int(self._episode[env]) + 1))
        self._observation = step.observation
        return step

    def _reset_backend(self, mask: NDArray[np.bool_]) -> NDArray:
        """Reset environments in `mask` with the seeds of their current episodes. Returns all observations."""
        observation = self.backend.reset(mask, self._episode_seed)
        observation = np.array(observation) if self._copies else observation
        if self._may_break and (self._several or not np.vdot(observation, observation) < inf):
            self._warn_if_not_finite(observation)
        return observation

    def _check_rewards(self, reward: NDArray) -> None:
        """Raise EnvironmentFailedError if a reward is not a finite number in single precision."""
        bad = np.flatnonzero(~(np.abs(reward) <= MAX_REWARD))
        if bad.size:
            env = bad[0]
            raise EnvironmentFailedError(
                f"{self.name}: environment {env} returned the reward {reward[env]} in step "
                f"{self._record.lengths[env]} of its episode; rewards must be finite in single precision "
                f"(below {MAX_REWARD:.0e})",
                key="env",
            )

    def _warn_if_not_finite(self, observation: NDArray) -> None:
        """Log a warning about the first non-finite observation, because the learner would fail much later.

        This is not an error, because a user's transform may handle non-finite values.
        """
        if (found := not_finite(observation)) is None:
            return
        self._may_break, self.saw_not_finite = False, True
        env, value = found
        _log.warning(
            "%s: environment %d returned an observation that contains %s after step %d of its episode; "
            "networks need finite numbers",
            self.name,
            env,
            value,
            self._record.lengths[env],
        )

    def played(self, episode: Episode) -> tuple[NDArray, NDArray]:
        """Return the actions and the true final observation of an episode that ended in the last step.

        Shapes are [length, *action] and [*obs]; the arrays are not modified later.
        """
        assert self._reached is not None, "an episode ends in step()"
        actions, final = self._record.last(episode.env, episode.length), self._reached[episode.env]
        actions.flags.writeable = False
        return actions, final

    @property
    def longest_episode(self) -> int:
        """Number of steps so far in the longest unfinished episode."""
        return int(self._record.lengths.max())

    def metrics(self) -> dict[str, float]:
        """Return the metrics columns from `action_statistics`."""
        return action_statistics(self._record.latest, self.action_space)

    def close(self) -> None:
        """Stop the worker threads and processes. Calling it again has no effect."""
        self.backend.close()

    def state_dict(self) -> dict[str, Any]:
        """Return each environment's current episode, with its actions, as plain numbers and tensors.

        The state of simulators is not saved, because a seed and the actions determine an episode.
        Observations and returns are saved for checking the replay of the actions.
        """
        import torch  # late, as in labrl.seeding

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
            "numbers": {} if self._numbers is None else self._numbers.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> NDArray:
        """Restore the saved state of every environment, bit for bit, by replaying its episode.

        All environments must be stepped together. Therefore the longest episode starts first, and each other
        environment is reset when the number of remaining steps equals the number of its actions; its steps
        before this reset are discarded. Returns the current observations, [num_envs, *obs].

        Raises ValueError if the state belongs to other environments, and ReplayError if an environment does
        not reproduce its past; after a ReplayError, `abandon` makes it possible to continue.
        """
        if state["lost"]:
            return self.abandon(state)
        actions = self._load_episodes(state)
        reached = self._replay(self._record.load(actions))
        saved, saved_return = np.asarray(state["observation"]), np.asarray(state["episode_return"])
        for env in range(self.num_envs):
            if not same(self._return[env], saved_return[env]):
                had = f"has the return {self._return[env]} after its saved actions, not {saved_return[env]}"
                raise ReplayError(f"{self.name}: environment {env} {had}", key="env")
            if not same(reached[env], saved[env]):
                had = "does not return the saved observation after its saved actions"
                raise ReplayError(f"{self.name}: environment {env} {had}", key="env")
        if self._numbers is not None:
            self._numbers.load_state_dict(state.get("numbers", {}))
        self._observation = reached
        self.action_mask = self._mask(self._all)
        return reached

    def abandon(self, state: Mapping[str, Any]) -> NDArray:
        """Give up saved episodes that cannot be reproduced.

        The next call of `step` does not act: it returns a truncation at the saved observations and starts the
        next episode of every environment. Returns the saved observations, [num_envs, *obs].
        """
        self._load_episodes(state)
        lost = self._observation = self._lost = np.asarray(state["observation"])
        self.action_mask = state["action_mask"]
        return lost

    def _load_episodes(self, state: Mapping[str, Any]) -> list[NDArray]:
        """Load the seeds and indices of the current episodes. Return their actions, [length, *action]."""
        actions = [np.asarray(own) for own in state["actions"]]
        shape = self.action_space.shape or ()
        if len(actions) != self.num_envs or any(own.shape[1:] != shape for own in actions):
            raise ValueError(
                f"saved environments do not fit: there were {len(actions)} with actions of shape "
                f"{[own.shape[1:] for own in actions][:1]}, but there are now {self.num_envs} with actions "
                f"of shape {shape}"
            )
        self._begin(int(state["seed"]))
        self._steps = int(state["steps"])
        self._record.begin_after(np.asarray(state["latest_actions"]))
        self._episode = np.asarray(state["episode"]).astype(np.int64)
        self._episode_seed = np.asarray(state["episode_seed"]).astype(np.int64)
        return actions

    def _truncate_lost(self, final: NDArray) -> Step:
        """Return the step that truncates lost episodes.

        final: last known observations, [num_envs, *obs].
        """
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
        self._return = np.zeros(self.num_envs, dtype=np.float64)  # raw returns so far [num_envs]
        self._record: ActionRecord = ActionRecord(self.num_envs, self.action_space)
        if self._numbers is not None:
            self._numbers.begin()
        self._unprepared = dict.fromkeys(range(self.num_envs))
        """Indices of environments whose next episode is not prepared; a dict, because a set has no order."""
        self._observation = self._lost = None
        self._steps = 0

    def _mask(self, needed: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Return the backend's current masks. Raises NoValidActionError.

        needed: environments that need a valid action, [num_envs]. Returns [num_envs, flags].
        """
        if not self.masked:
            return None
        mask = self.backend.action_mask
        assert mask is not None, "a backend with masks has one after each reset and step"
        refuse_empty(mask, self._first_flags, needed, self.name, self._steps * self.num_envs)
        return np.array(mask) if self._copies else mask

    def _seed_of(self, env: int, episode: int) -> int:
        return episode_seed(self.seed, self._first + env, episode)

    def _next_episodes(
        self, over: NDArray[np.bool_], ended: NDArray[np.bool_]
    ) -> tuple[list[Episode], NDArray]:
        """Start the next episode where an episode is over. over, ended: [num_envs].

        Returns the finished episodes and the current observations of all environments, [num_envs, *obs].
        """
        lengths, numbers = self._record.begin(over), self._numbers
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
                    info={} if numbers is None else numbers.end(env, int(lengths[env])),
                )
            )
            self._episode[env] = index + 1
            self._episode_seed[env] = self._seed_of(env, index + 1)
            self._return[env] = 0.0
            self._unprepared[env] = None
        return finished, self._reset_backend(over)

    def _replay(self, rows: NDArray) -> NDArray:
        """Play rows of actions, and reset each environment before the first action that is its own.

        rows: [longest, num_envs, *action]. Returns the final observations, [num_envs, *obs].
        """
        start = len(rows) - self._record.lengths  # [num_envs]
        observation = self._reset_backend(self._all)
        discarded = np.zeros(self.num_envs, dtype=np.bool_)  # ended before their first own action
        for index, row in enumerate(rows):
            fresh = (start == index) | discarded
            if index and fresh.any():
                self._reset_backend(fresh)
            own = start <= index
            if self.masked and not own.all():  # a filler action may be invalid
                assert self.backend.action_mask is not None
                valid = first_valid(self.backend.action_mask, self.action_space)
                row = np.where(own.reshape(-1, *[1] * (row.ndim - 1)), row, valid)
            transition = self.backend.step(row.astype(self._action_dtype))
            if self._copies:
                transition = Transition(*map(np.array, transition))
            observation, reward, _, truncated, ended = transition
            self._return[own] += reward[own]
            if self._numbers is not None:
                self._numbers.add(self.backend.info, own)
            over = ended | truncated
            if (over & own).any():
                env = np.flatnonzero(over & own)[0]
                early = f"the saved episode of environment {env} ended early in its replay"
                raise ReplayError(f"{self.name}: {early}", key="env")
            discarded = over
        last = (start == len(rows)) | discarded
        if len(rows) and last.any():
            return self._reset_backend(last)
        return observation
