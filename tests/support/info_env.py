"""The same environment with numbers in `info`, alone and as a backend of labrl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from labrl.config.schema import EnvironmentConfig
from labrl.envs.protocol import Backend, Transition


class Drive(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A drive of random speed, which ends after 3 to 12 steps, or at once with action 1 after three."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(3, 13))
        return self._observation(), {"speed": 1e9}  # does not belong to a step

    def step(self, action: np.int64) -> Any:
        self.steps += 1
        over = self.steps >= (3 if action else self.length)
        return self._observation(), float(action), over, False, self._info(over)

    def _observation(self) -> NDArray[np.float32]:
        self.speed = self.np_random.random()
        return np.array([self.steps, self.speed], np.float32)

    def _info(self, over: bool) -> dict[str, Any]:
        info: dict[str, Any] = {"speed": self.speed, "cost": {"fuel": np.float32(self.speed / 3)}}
        info |= {"steps": np.array([self.steps]), "late": self.steps > 5, "lane": "left", "far": np.inf}
        return {**info, "a.b": 2.5, "success": self.speed > 0.5} if over else info


class DriveBackend(Backend):
    """A user's backend, whose info contains nan where an environment has no number."""

    @dataclass(kw_only=True)
    class Config(EnvironmentConfig):
        pass

    def __init__(self, config: Any, *, num_envs: int, num_threads: int, evaluation: bool = False) -> None:
        self.name, self.num_envs, self.frame_skip = config.name, num_envs, 1
        self.envs = [Drive() for _ in range(num_envs)]
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self.seen = np.zeros((num_envs, 2), np.float32)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        for env in np.flatnonzero(mask):
            self.seen[env], _ = self.envs[env].reset(seed=int(seeds[env]))
        return self.seen

    def step(self, actions: NDArray) -> Transition:
        rewards, over, infos = np.zeros(self.num_envs), np.zeros(self.num_envs, bool), []
        for env, action in enumerate(actions):
            self.seen[env], rewards[env], over[env], _, info = self.envs[env].step(action)
            infos.append(info)
        given = {name: np.array([float(one[name]) for one in infos]) for name in ("speed", "late", "far")}
        given |= {
            name: np.array([one.get(name, np.nan) for one in infos], float) for name in ("success", "a.b")
        }
        given["steps"] = np.concatenate([one["steps"] for one in infos])
        cost = {"fuel": np.array([one["cost"]["fuel"] for one in infos])}
        self.info = {**given, "cost": cost, "lane": np.array(["left"] * self.num_envs)}
        return Transition(self.seen, rewards, over, np.zeros_like(over), over)

    def close(self) -> None:
        pass
