"""One environment of a run with Gymnasium's interface, for interactive use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Dict
from numpy.typing import NDArray

from labrl.component import Component
from labrl.envs.gym import GymnasiumEnv
from labrl.envs.make import backend_class, watch
from labrl.envs.masks import KEY
from labrl.envs.protocol import Backend, Watched, action_dtype
from labrl.envs.single import GymnasiumConfig
from labrl.errors import InputError

RenderMode = Literal["rgb_array"]


class SoloEnv(gymnasium.Env[Any, Any]):
    """One evaluation environment of a run, with Gymnasium's `reset`, `step`, `render` and `close`.

    An observation with several inputs is a dict of arrays. The info is that of the environment, in which
    `info["action_mask"]` is the mask of valid actions if there are masks. Rewards are raw.
    """

    def __init__(self, env: Component, render_mode: RenderMode | None = None) -> None:
        """env: the configuration node of the environment; render_mode: `rgb_array`, or None for no images.

        Raises InputError if the environment cannot be made or cannot be rendered.
        """
        if render_mode not in (None, "rgb_array"):
            allowed = "be 'rgb_array', for images from render(), or None"
            raise InputError.value("render_mode", repr(render_mode), allowed)
        backend_class(env)
        if isinstance(env.config, GymnasiumConfig):  # infos stay in the process of their environment
            env = dataclasses.replace(env, config=dataclasses.replace(env.config, vectorization="sync"))
        self._watched: Watched | None = None if render_mode is None else watch(env)
        self._backend: Backend = self._watched or env.build(num_envs=1, num_threads=1, evaluation=True)
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"]}
        self.observation_space = self._backend.observation_space
        self.action_space = self._backend.action_space
        self._action_dtype = action_dtype(self.action_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the episode that `seed` determines. Returns the observation, [*obs], and the info.

        Raises InputError for options, because runs take them from env.reset_options.
        """
        if options:
            raise InputError.unsupported("options", "runs take them from env.reset_options")
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        observation = self._backend.reset(np.ones(1, np.bool_), np.array([seed], np.int64))
        return self._first(observation), self._info({})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act. Returns the observation, the raw reward, terminated, truncated and the info."""
        actions = np.asarray(action, self._action_dtype)[None]
        observation, reward, _, truncated, ended = self._backend.step(actions)
        over = bool(ended[0]), bool(truncated[0])
        info = _first_entries(self._backend.info)
        return self._first(observation), float(reward[0]), *over, self._info(info)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current image in RGB, [height, width, 3]; None without `render_mode`."""
        return None if self._watched is None else self._watched.picture()

    def close(self) -> None:
        """Stop the worker threads and processes. Calling it again has no effect."""
        self._backend.close()

    def _first(self, batch: NDArray) -> Any:
        """Return the only observation in a batch."""
        if not isinstance(self.observation_space, Dict):
            return batch[0]
        return {name: batch[name][0] for name in self.observation_space.spaces}

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info of the last reset or step. info: that of a backend without single environments."""
        if isinstance(self._backend, GymnasiumEnv):
            info = dict(self._backend.envs[0].info)
        mask = self._backend.action_mask if self._backend.masked else None
        return info if mask is None else {**info, KEY: mask[0]}


def _first_entries(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the first environment, from arrays [num_envs] in possibly nested dicts."""
    return {key: _first_entries(one) if isinstance(one, Mapping) else one[0] for key, one in info.items()}
