"""Custom vector environments: one that labrl accepts, and variants with one fault each."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, MultiBinary
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray


class Walks(VectorEnv[Any, Any, Any]):
    """Vector of `env_cases.Walk` environments, equal to them bit for bit.

    It returns the same array at each step and overwrites the arrays that it is given.

    fault: what it does wrong, "" for nothing.
    """

    metadata: ClassVar[Any] = {"autoreset_mode": AutoresetMode.DISABLED, "render_fps": 20}

    def __init__(
        self, num_envs: int, goal: int = 1000, fault: str = "", render_mode: str | None = None
    ) -> None:
        self.num_envs, self.goal, self.fault, self.render_mode = num_envs, goal, fault, render_mode
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.position = np.zeros(num_envs, np.int64)
        self.generators = [np.random.default_rng() for _ in range(num_envs)]
        self.seen = np.zeros((num_envs, 2), np.float32)
        if fault == "resets by itself":
            self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        if fault == "says nothing":
            self.metadata = {}
        if fault == "has no metadata":
            self.metadata = None
        if fault == "has another number":
            self.num_envs += 1

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        assert options is not None
        mask = options.pop("reset_mask")
        which = np.flatnonzero(mask | (self.fault == "resets all"))
        mask[:] = False
        if self.fault == "takes one seed":
            super().reset(seed=seed)
        for env in which:
            if self.fault != "draws from one generator":
                self.generators[env], _ = gymnasium.utils.seeding.np_random(seed[env])
            elif env == which[0]:
                self.generators = [gymnasium.utils.seeding.np_random(seed[env])[0]] * self.num_envs
        self.position[which] = self.position[which] if self.fault == "does not forget" else 0
        if self.fault == "resets without info":
            return self._observation(which)
        return self._observation(which), {}

    def step(self, actions: NDArray) -> Any:
        assert self.action_space.contains(actions)
        self.position += actions
        actions[:] = 0
        over = self.position >= self.goal
        seen = self._observation(range(self.num_envs))
        if self.fault == "fails":
            raise RuntimeError("no more steps")
        reward = np.full((self.num_envs, 1) if self.fault == "gives columns" else self.num_envs, 0.1)
        if self.fault == "plays Gym's old interface":
            return seen, reward, over, {}
        return seen, reward, over, np.zeros_like(over), None if self.fault == "has no info" else {}

    def render(self) -> Any:
        return [np.full((30, 40, 3), min(position, 255), np.uint8) for position in self.position]

    def _observation(self, fresh: Any) -> NDArray:
        for env in fresh:
            self.seen[env] = self.position[env], self.generators[env].random()
        return self.seen[:-1] if self.fault == "leaves one out" else self.seen


class Doors(Walks):
    """Walks with one invalid action in each state.

    style: the place of the action mask: "info"; "dict", in each observation; "sparse", in infos as Gymnasium
    merges them from single environments; or "late", in infos but not in that of a reset.
    """

    def __init__(self, num_envs: int, style: str = "info", render_mode: str | None = None) -> None:
        super().__init__(num_envs, goal=5)
        self.style = style
        self.plain = self.single_observation_space
        if style == "dict":
            self.single_observation_space = Dict({"observation": self.plain, "action_mask": MultiBinary(2)})

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return self._with_mask(super().reset(seed=seed, options=options)[0], late=self.style == "late")

    def step(self, actions: NDArray) -> Any:
        assert self.style == "late" or self._mask()[np.arange(self.num_envs), actions].all(), "a closed door"
        seen, *rest, _ = super().step(actions)
        observation, info = self._with_mask(seen, late=False)
        return observation, *rest, info

    def _mask(self) -> NDArray[np.int8]:
        """Return the action mask: standing still is valid only at position 0, with a number below 0.5."""
        still = (self.position == 0) & (self.seen[:, 1] < 0.5)
        return np.stack([still, ~still], axis=1).astype(np.int8)

    def _with_mask(self, seen: NDArray, late: bool) -> Any:
        if self.style == "dict":
            return {"observation": seen, "action_mask": self._mask()}, {}
        if self.style == "sparse":  # an array of objects with a second array that says which are set
            mask = np.full(self.num_envs, None, object)
            mask[:] = list(self._mask())
            return seen, {"action_mask": mask, "_action_mask": np.ones(self.num_envs, np.bool_)}
        return seen, {} if late else {"action_mask": self._mask()}


def made(num_envs: int, **settings: Any) -> Walks:
    """Make a vector environment by a function instead of a class."""
    return Walks(num_envs, **settings)
