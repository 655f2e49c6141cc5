"""One of the environments that a backend steps: seeded resets, and the part of infos that labrl uses."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from labrl.envs.info import number_of, numbers_of
from labrl.envs.masks import KEY, carries_mask, choices, flags_of
from labrl.envs.single import MakeEnv
from labrl.errors import EnvironmentFailedError, note_place
from labrl.types import Reduction


class SubEnv:
    """An environment in the session's process or in a worker, which is used as it is."""

    def __init__(
        self,
        make: MakeEnv,
        number: int = 0,
        *,
        masked: bool = False,
        wanted: bool = False,
        numbers: Mapping[str, Reduction] = MappingProxyType({}),
        renew: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """make: function that makes the environment; number: its index in the session, for messages; masked:
        whether environments of this configuration provide masks; wanted: whether the run would use masks;
        numbers: names of the numbers to keep from the infos of steps, with their reductions; renew: whether
        to make a new environment for every episode, because a seeded reset depends on earlier episodes;
        options: argument `options` of every reset."""
        self.env = make()
        self._make, self._number = make, number
        self._must_lack_mask = wanted and not masked
        self._numbers = [*numbers, *(f"is_{name}" for name, how in numbers.items() if how == "auto")]
        self._reads_each_step = any(how != "auto" for how in numbers.values())
        self._renews, self._options = renew, options
        actions = self.env.action_space
        self._num_flags = sum(choices(actions)) if masked else 0
        self._has_mask_in_dict = carries_mask(self.env.observation_space, actions)
        self.info: Mapping[str, Any] = {}
        """The whole info of the last reset or step, as the environment returned it."""
        self._steps = -1
        """Number of steps since the last reset; -1 before the first."""

    def reset(self, seed: int) -> tuple[Any, Mapping[str, Any]]:
        """Start an episode. Returns the observation and the part of the info that labrl uses."""
        if self._renews and self._steps >= 0:
            self.env.close()
            self.env = self._make()
        self._steps = 0
        try:
            # A copy, because an environment may modify its options.
            observation, self.info = self.env.reset(seed=seed, options=copy.deepcopy(self._options))  # type: ignore[arg-type]
        except (Exception, SystemExit) as error:
            note_place(error, f"reset of environment {self._number}")
            raise
        return observation, self._mask(observation)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Act. Returns the observation, the reward, two flags, and the part of the info that labrl uses."""
        self._steps += 1
        try:
            observation, reward, terminated, truncated, self.info = self.env.step(action)
        except (Exception, SystemExit) as error:
            note_place(error, f"step {self._steps} of the episode of environment {self._number}")
            raise
        if type(reward) is not float:
            try:
                reward = number_of(reward)
            except ValueError as error:
                raise self._misfit("reward", f"it {error}, but must be one number") from None
        used = self._mask(observation) if self._num_flags or KEY in self.info else {}
        if self._numbers and (self._reads_each_step or terminated or truncated):
            used = {**numbers_of(self.info, self._numbers), **used}
        return observation, reward, terminated, truncated, used

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _mask(self, observation: Any) -> Mapping[str, Any]:
        """Return the mask of valid actions, if there is one. Raises EnvironmentFailedError if it does not
        fit."""
        if self._must_lack_mask and KEY in self.info:
            why = "the first reset and steps had none, so the agent was built without masks. Return one from "
            raise self._misfit(KEY, f"{why}every reset and step, or set env.action_mask=false")
        if not self._num_flags:
            return {}
        given = observation[KEY] if self._has_mask_in_dict else self.info.get(KEY)
        try:
            return {} if given is None else {KEY: flags_of(given, self._num_flags)}
        except ValueError as error:
            raise self._misfit(KEY, str(error)) from None

    def _misfit(self, what: str, why: str) -> EnvironmentFailedError:
        place = f"{what} of environment {self._number} in step {self._steps} of its episode"
        return EnvironmentFailedError.about(place, why, key="env")


def fit(space: Space[Any], given: Any) -> NDArray:
    """Return an observation, or a part of one, as an array. Raises ValueError if copying it into an array of
    its space would broadcast or round it.

    The bounds of a Box are not checked, because many environments exceed them slightly.
    """
    # Converting plain numbers to arrays would dominate the cost.
    if type(space) is Discrete and type(given) in (int, np.int64) and 0 <= given - space.start < space.n:
        return given
    array = np.asarray(given)
    if array.shape != space.shape:
        raise ValueError(f"has the shape {array.shape}; its space is {space}")
    stored = array
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):  # type: ignore[arg-type]
        with np.errstate(invalid="ignore"):
            stored = array.astype(space.dtype)
        if array.dtype.kind not in "biuf" or (stored != array).any():
            raise ValueError(
                f"contains {array.dtype} that {space.dtype} cannot represent; its space is {space}"
            )
    if not isinstance(space, Box) and not space.contains(stored.astype(space.dtype)):
        raise ValueError(f"is {given}; its space is {space}")
    return stored
