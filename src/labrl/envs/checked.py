"""An environment whose return values are all checked against its spaces and Gymnasium's interface.

Without the check, an observation that does not fit would be broadcast or rounded when it is copied into an
array, and a wrapper would fail with an error about tuples that does not name the class at fault.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Never

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from labrl.envs.info import number_of, numbers_of, shorten
from labrl.envs.masks import KEY, carries_mask, choices, flags_of
from labrl.envs.single import MakeEnv
from labrl.errors import EnvironmentFailedError, note_place
from labrl.types import Reduction

RETURNED = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}
"""Values that the methods of an environment return."""

NUMBERS = (float, np.float64, np.float32, int)
"""Types of rewards that float64 represents exactly."""

FLAGS = (bool, np.bool_)

LATE = (
    f"it returns info['{KEY}'], but its first reset and step did not, so the agent was built without "
    "masks: return the mask from every reset and step, or set env.action_mask=false to ignore masks"
)


class MisfitError(EnvironmentFailedError):
    """An environment returned a value that does not fit its spaces or Gymnasium's interface."""


class CheckedEnv:
    """An environment whose return values are all checked, in the session's process or in a worker.

    Non-finite numbers are not checked here, because `VectorEnv` detects them for all environments at once. Of
    `info`, labrl uses only the mask and the numbers of `env.info_keys`.
    """

    def __init__(
        self,
        make: MakeEnv,
        name: str,
        number: int = 0,
        *,
        masked: bool | None = None,
        wanted: bool = False,
        numbers: Mapping[str, Reduction] = MappingProxyType({}),
        renew: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """make: function that makes the environment; name, number: the environment's name, and its index in
        the session, for messages; masked: whether environments of this configuration provide masks, None if
        this is to be found out, with infos that are passed on unchanged; wanted: whether the run would use
        masks; numbers: names of the numbers to keep from the infos of steps, with their reductions; renew:
        whether to make a new environment for every episode, because a seeded reset depends on earlier
        episodes; options: argument `options` of every reset."""
        self.env = make()
        self._make, self._name, self._number = make, name, number
        self._passes_infos, self._must_lack_mask = masked is None, wanted and masked is False
        self._numbers = [*numbers, *(f"is_{name}" for name, how in numbers.items() if how == "auto")]
        self._reads_each_step = any(how != "auto" for how in numbers.values())
        self._renews, self._options = renew, options
        self._space, actions = self.env.observation_space, self.env.action_space
        plain = isinstance(self._space, Box) and not self._reads_each_step and not self._passes_infos
        self._plain_shape, self._dtype = self._space.shape if plain else None, self._space.dtype
        """Shape and dtype of observations that need no further check. Shape None: each observation is checked
        further."""
        self._num_flags = sum(choices(actions)) if masked else 0
        self._has_mask_in_dict = carries_mask(self._space, actions)
        self.info: Mapping[str, Any] = {}
        """The whole info of the last reset or step, as the environment returned it."""
        self._steps = -1
        """Number of steps since the last reset; -1 before the first."""

    def reset(self, seed: int) -> tuple[Any, Mapping[str, Any]]:
        """Start an episode. Returns the observation and the part of the info that labrl uses.

        Raises MisfitError.
        """
        if self._renews and self._steps >= 0:
            self.env.close()
            self.env = self._make()
        self._steps = 0
        # A copy, because an environment may modify its options.
        given: dict[str, Any] = {"seed": seed, "options": copy.deepcopy(self._options)}
        try:
            answer: Any = self.env.reset(**given)
        except (Exception, SystemExit) as error:
            if re.search(r"reset\(\) got an unexpected keyword argument '(seed|options)'", str(error)):
                signature = "reset(self, *, seed=None, options=None)"
                self._refuse(f"{_path(self.env.unwrapped)}.reset() must be defined as {signature}: {error}")
            if isinstance(error, TypeError | ValueError | IndexError):
                self._check_innermost("reset", given)
            note_place(error, f"reset of environment {self._number}")
            raise
        observation, self.info = self._as_values("reset", answer, given)
        return observation, self._check(observation, self.info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Act. Returns the observation, the reward, two flags, and the part of the info that labrl uses.

        Raises MisfitError.
        """
        self._steps += 1
        try:
            answer: Any = self.env.step(action)
        except (Exception, SystemExit) as error:
            if isinstance(error, TypeError | ValueError | IndexError):
                self._check_innermost("step", {"action": action})
            note_place(error, f"step {self._steps} of the episode of environment {self._number}")
            raise
        if type(answer) is not tuple or len(answer) != 5:
            answer = self._as_values("step", answer, {"action": action})
        observation, reward, terminated, truncated, info = answer
        self.info = info
        # Comparing types and shape suffices for the values that most environments return.
        if (
            type(observation) is np.ndarray
            and observation.dtype == self._dtype
            and observation.shape == self._plain_shape
            and type(reward) in NUMBERS
            and type(terminated) in FLAGS
            and type(truncated) in FLAGS
            and type(info) is dict
            and KEY not in info
            and not (self._numbers and (terminated or truncated))
        ):
            return observation, reward, terminated, truncated, {}
        if type(reward) not in NUMBERS:
            try:
                reward = number_of(reward)
            except ValueError as error:
                self._refuse(f"its reward {error}, but must be one number")
        if type(terminated) not in FLAGS:
            terminated = self._read_flag(terminated, "terminated")
        if type(truncated) not in FLAGS:
            truncated = self._read_flag(truncated, "truncated")
        used = self._check(observation, info)
        over = terminated or truncated
        if self._reads_each_step or (over and self._numbers):
            used = {**numbers_of(info, self._numbers, over and self._reads_each_step), **used}
        return observation, reward, terminated, truncated, used

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _as_values(self, method: str, answer: Any, given: dict[str, Any], env: Any = None) -> tuple[Any, ...]:
        """Return what a method returned, as a tuple. Raises MisfitError for a wrong number of values.

        given: arguments of the method; env: the environment inside all wrappers, if it returned the values.
        """
        wanted, several = RETURNED[method], isinstance(answer, tuple | list)
        if several and len(answer) == len(wanted):
            return tuple(answer)
        if env is None:
            # A wrapper may only have passed it on.
            self._check_innermost(method, given)
            env = self.env
            while isinstance(env, gymnasium.Wrapper) and type(env).__module__.startswith("gymnasium."):
                env = env.env
        came = (
            f"{len(answer)} values ({', '.join(map(_name_kind, answer))})" if several else _name_kind(answer)
        )
        hint = ""
        if method == "step" and several and len(answer) == 4:
            hint = ". This is Gym's old interface: replace `done` by `terminated, truncated`"
        elif method == "reset" and not several:
            hint = ". Return `observation, {}` if there is no info"
        return self._refuse(
            f"{_path(env)}.{method}() must return {len(wanted)} values, ({', '.join(wanted)}), but returned "
            f"{came}{hint}"
        )

    def _check_innermost(self, method: str, given: dict[str, Any]) -> None:
        """Call the environment inside all wrappers again. Raises MisfitError if it made the wrappers fail."""
        if (inner := self.env.unwrapped) is self.env:
            return
        try:
            answer = inner.reset(**given) if method == "reset" else inner.step(*given.values())
        except Exception:  # the first error is the one to report
            return
        self._as_values(method, answer, given, inner)

    def _read_flag(self, given: Any, called: str) -> bool:
        """Return a flag as a bool. It may be a NumPy value, a number 0 or 1, or an array of one element."""
        one = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given
        if not isinstance(one, np.bool_ | bool | int | float | np.number) or one not in (0, 1):
            self._refuse(f"its {called} is {shorten(given)}, but must be True or False")
        return bool(one)

    def _check(self, observation: Any, info: Any) -> Mapping[str, Any]:
        """Check an observation and an info. Return the part of the info that labrl uses."""
        if type(info) is not dict and not isinstance(info, Mapping):
            self._refuse(f"its info is {shorten(info)}, but must be a dict")
        try:
            check_observation(self._space, observation)
            if self._passes_infos:
                return info
            if self._must_lack_mask and KEY in info:
                raise ValueError(LATE)
            given = None
            if self._num_flags:
                given = observation[KEY] if self._has_mask_in_dict else info.get(KEY)
            return {} if given is None else {KEY: flags_of(given, self._num_flags)}
        except ValueError as error:
            self._refuse(str(error))

    def _refuse(self, what: str) -> Never:
        when = f"after step {self._steps} of its episode" if self._steps else "after its reset"
        raise MisfitError(f"{self._name}: environment {self._number} {when}: {what}", key="env") from None


def check_observation(space: Space[Any], given: Any, called: str = "its observation") -> None:
    """Raise ValueError if an observation lacks a part of its space, or does not fit its shape or type.

    Additional entries are ignored. The bounds of a Box are not checked here, because many environments
    exceed them slightly; see `BoundsCheck`. Unsupported spaces are not checked either, because they are
    refused before a run.
    """
    # Most discrete observations are plain numbers; converting them to arrays would dominate the cost.
    if type(space) is Discrete and type(given) in (int, np.int64) and 0 <= given - space.start < space.n:
        return
    if isinstance(space, Dict | Tuple):
        kind, name = ((Mapping,), "dict") if isinstance(space, Dict) else ((tuple, list), "tuple")
        if not isinstance(given, kind):
            raise ValueError(f"{called} is a {type(given).__name__}; its space is a {name}")
        inner: Any = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, part in inner:
            try:
                value = given[key]
            except LookupError:
                raise ValueError(f"{called} lacks {key!r}, which its space has") from None
            check_observation(part, value, f"{called}[{key!r}]")
        return
    if not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
        return
    wrong = ""
    try:
        array = np.asarray(given)
    except ValueError:  # lists of several lengths
        raise ValueError(f"{called} is not an array; its space is {space}") from None
    if array.shape != space.shape:
        wrong = f"has the shape {array.shape}"
    elif array.dtype.kind not in "biuf":
        wrong = f"is of type {array.dtype if isinstance(given, np.ndarray) else type(given).__name__}"
    elif np.dtype(space.dtype).kind != "f" and not np.can_cast(array.dtype, space.dtype):
        with np.errstate(invalid="ignore"):
            altered = array.astype(space.dtype) != array
        if np.count_nonzero(altered):
            wrong = f"contains {array[altered].flat[0]}, which {space.dtype} cannot represent"
    if not wrong and not isinstance(space, Box):
        least: Any = 0 if isinstance(space, MultiBinary) else space.start
        count: Any = 2
        if not isinstance(space, MultiBinary):
            count = space.n if isinstance(space, Discrete) else space.nvec
        if not ((least <= array) & (array < least + count)).all():
            wrong = f"is {given}"
    if wrong:
        raise ValueError(f"{called} {wrong}; its space is {space}")


def _path(env: Any) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"


def _name_kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
