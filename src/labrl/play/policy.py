"""Load the policy of a trained run, as `labrl.load` does, and play with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from labrl.agents.agent import Observation
from labrl.agents.random import check_uniform
from labrl.envs.make import info_keys, make_env
from labrl.envs.masks import KEY, OBSERVATION, choices, flags_of
from labrl.envs.protocol import action_dtype
from labrl.envs.solo import RenderMode, SoloEnv
from labrl.envs.vector import VectorEnv
from labrl.errors import InputError
from labrl.networks.building import is_recurrent
from labrl.seeding import derived_seed
from labrl.session.devices import available_cpus
from labrl.session.episodes import Played, names_of, numbers_named
from labrl.session.evaluation import Quota, played_steps
from labrl.spaces import array_dtype, parts
from labrl.trial.trained import TrainedAgent

AT_ONCE = 16
"""Maximum number of environments that play at the same time."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of playing complete episodes with a policy."""

    returns: NDArray[np.float64]
    """Undiscounted sum of the raw rewards of each episode. [episodes]"""
    lengths: NDArray[np.int64]
    """Number of agent steps in each episode. [episodes]"""
    seeds: NDArray[np.int64]
    """Seed with which the environment was reset for each episode. [episodes]"""
    truncated: NDArray[np.bool_]
    """Whether a time limit ended each episode. [episodes]"""
    info: dict[str, NDArray[np.float64]]
    """Values of the info entries that `env.info_keys` names, by name, [episodes] each; nan where an episode
    has no value."""

    @property
    def return_mean(self) -> float:
        """Mean of the returns."""
        return float(self.returns.mean())

    @property
    def return_std(self) -> float:
        """Population standard deviation of the returns."""
        return float(self.returns.std())

    def __repr__(self) -> str:
        return (
            f"Evaluation: return {self.return_mean:,.2f} ± {self.return_std:,.2f}, length "
            f"{self.lengths.mean():,.1f}, {len(self.returns)} episodes"
        )


class LoadedPolicy(TrainedAgent):
    """The agent of one session, loaded from a checkpoint to act without learning.

    Loading and playing change no files of the run, so the run may still be in progress.
    """

    _start: NDArray[np.bool_] | None = None
    """Whether each environment of the last batch starts an episode; None before the first batch. [n]"""

    @cached_property
    def _dtype(self) -> np.dtype:
        return array_dtype(self.observation_space)

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(derived_seed(self.seed, "loaded"))

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The networks of the agent by name, including target networks."""
        return self.agent.modules()

    @property
    def network(self) -> nn.Module:
        """The network that chooses actions; an `nn.ModuleDict` if there are several. Raises InputError if the
        agent has none."""
        acting = self.agent.acting_modules()
        if not acting:
            raise InputError.unsupported("network", f"{self.trial.agent.target} has no network")
        return next(iter(acting.values())) if len(acting) == 1 else nn.ModuleDict(acting)

    def reset(self, which: NDArray[np.bool_] | None = None, seed: int | None = None) -> None:
        """Start new episodes. With a recurrent network, call this at the start of each episode.

        which: whether each environment of the batch starts an episode, [n]; None: all do; seed: seed for
        drawing actions from now on; None: the current random stream continues.
        """
        if which is None or self._start is None:
            self._start = None
        else:
            self._start = self._start | np.asarray(which, np.bool_)
        if seed is not None:
            _check_whole("seed", seed, 0)
            self._generator = np.random.default_rng(seed)

    def act(self, observation: Any, mask: Any = None, greedy: bool = False) -> Any:
        """Return the action for one observation, or the actions for a batch, in the environment's form.

        observation: an observation of the environment before any transform: an array [*obs] or [n, *obs], or
        a dict or tuple of arrays; mask: which actions are valid, [flags] or [n, flags], required if the
        environment provides masks; greedy: whether to return the best action rather than an action chosen as
        in evaluation, where a stochastic policy samples. A recurrent network keeps its state between calls
        until `reset`. Raises InputError for an observation that is not in the policy's observation space, an
        empty batch or a missing mask, or if greedy actions are requested of an agent that has none.
        """
        if isinstance(observation, Mapping) and KEY in observation and KEY not in (self._dtype.names or ()):
            mask = observation[KEY] if mask is None else mask
            observation = {name: part for name, part in observation.items() if name != KEY}
            if self._dtype.names is None and observation.keys() == {OBSERVATION}:
                observation = observation[OBSERVATION]
        batch, single = self._batch(observation)
        n = len(batch)
        if n == 0:
            raise InputError.value("observation", "none", "have at least one row")
        if self._start is not None and len(self._start) != n:
            if is_recurrent(self.trial.agent.config):
                why = f"this batch of {n} follows a batch of {len(self._start)}, but the network is recurrent"
                fix = "Call reset() before passing a batch of a different size"
                raise InputError.usage("observation", why, fix)
            self._start = None
        start = np.ones(n, np.bool_) if self._start is None else self._start
        seen = Observation(self.transforms.frozen(batch), self._mask(mask, n, single), start)
        if greedy:
            self.check_greedy()
            action = self.agent.greedy_action(seen)
        else:
            action = self.agent.evaluation_action(seen, self._generator)
        self._start = np.zeros(n, np.bool_)
        action = action.astype(action_dtype(self.action_space), copy=False)
        return action[0] if single else action

    def env(self, render_mode: RenderMode | None = None) -> SoloEnv:
        """Make a single evaluation environment of the run, with Gymnasium's interface."""
        return SoloEnv(self.trial.env, render_mode)

    def evaluate(
        self,
        episodes: int = 10,
        seed: int = 0,
        greedy: bool | None = None,
        epsilon: float | None = None,
    ) -> Evaluation:
        """Play complete episodes, the same ones as `labrl +enjoy`, and return their results.

        episodes: number of episodes; seed: seed of the episodes; greedy: whether to play greedy actions;
        None: as in the evaluation of the run; epsilon: probability of a random action; None: as in the
        evaluation of the run.
        """
        _check_whole("episodes", episodes, 1)
        _check_whole("seed", seed, 0)
        env = self.vector_env(episodes)
        try:
            quota = self.quota(env.num_envs, greedy, epsilon)
            found = [played.episode for _, played in sorted(self.play(env, quota, episodes, seed))]
        finally:
            env.close()
        return Evaluation(
            returns=np.array([episode.episode_return for episode in found]),
            lengths=np.array([episode.length for episode in found]),
            seeds=np.array([episode.seed for episode in found]),
            truncated=np.array([episode.truncated for episode in found]),
            info={name: numbers_named(found, name) for name in names_of(info_keys(self.trial.env), found)},
        )

    def vector_env(self, episodes: int) -> VectorEnv:
        """Make the environments for playing `episodes` episodes."""
        num_envs = min(episodes, AT_ONCE)
        return make_env(self.trial.env, 0, available_cpus(), evaluation=True, num_envs=num_envs)

    def quota(self, num_envs: int, greedy: bool | None, epsilon: float | None) -> Quota:
        """Return how actions are chosen when playing. Raises InputError if the agent does not support the
        request.

        greedy: whether to play greedy actions; epsilon: probability of a random action; None: the value of
        the run's evaluation.
        """
        meta = self.trial.meta
        greedy = meta.eval_greedy if greedy is None else greedy
        epsilon = meta.eval_epsilon if epsilon is None else epsilon
        if greedy:
            self.check_greedy()
        if not 0 <= epsilon <= 1:
            raise InputError.value("epsilon", epsilon, "lie between 0 and 1")
        if epsilon:
            check_uniform(self.action_space, f"epsilon={epsilon:g}")
        return Quota(num_envs, greedy=greedy, epsilon=epsilon)

    def play(
        self,
        env: VectorEnv,
        quota: Quota,
        episodes: int,
        seed: int,
        after_step: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, Played]]:
        """Play complete episodes, and yield the index and the record of each in the order in which they end.

        Environment i of n plays the episodes i, i + n, i + 2 n, ..., so that short episodes do not get more
        weight. Seeds are derived from the seed of the session, the frame of the checkpoint, and `seed`.
        """
        n = env.num_envs
        left = [len(range(i, episodes, n)) for i in range(n)]
        streams = ("enjoy", "enjoy actions", "enjoy chance")
        seeds = [derived_seed(self.seed, stream, self.frame, seed) for stream in streams]
        for step in played_steps(env, self.agent, self.transforms, quota, *seeds):
            if after_step is not None:
                after_step()
            for episode in step.episodes if step is not None else ():
                if left[episode.env]:
                    left[episode.env] -= 1
                    number = episode.index * n + episode.env
                    yield number, Played(episode, *env.played(episode), self.frame, "evaluation")
            if not any(left):
                return

    def check_greedy(self) -> None:
        """Raise InputError if the agent has no greedy action."""
        if not self.agent.TRAITS.greedy:
            why = f"{self.trial.agent.target} has no greedy action"
            raise InputError.unsupported("greedy=true", why, "Leave out greedy=true")

    def _batch(self, observation: Any) -> tuple[NDArray, bool]:
        """Return observations as a batch, [n, *obs], and whether a single observation was given."""
        if self._dtype.names is None:
            shape = self.observation_space.shape or ()
            array, single = self._array(observation, "observation", self._dtype, shape)
            return array, single
        given = np.asarray(observation) if isinstance(observation, np.ndarray | np.void) else None
        if given is not None and given.dtype.names is not None:
            observation = {name: given[name] for name in given.dtype.names}
        found = dict(parts(observation))
        if found.keys() != set(self._dtype.names):
            raise self._other_space(f"inputs {', '.join(found)}", f"inputs {', '.join(self._dtype.names)}")
        arrays, singles = {}, set()
        for name in self._dtype.names:
            dtype, shape = self._dtype[name].base, self._dtype[name].shape
            arrays[name], single = self._array(found[name], f"observation[{name!r}]", dtype, shape)
            singles.add(single)
        sizes = {len(array) for array in arrays.values()}
        if len(sizes) > 1 or len(singles) > 1:
            raise self._other_space("inputs of different lengths", "inputs of equal length")
        batch = np.empty(sizes.pop(), self._dtype)
        for name, array in arrays.items():
            batch[name] = array
        return batch, singles.pop()

    def _array(self, given: Any, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[NDArray, bool]:
        """Return one part of the observations as a batch, [n, *shape], and whether a single observation was
        given."""
        try:
            array = np.asarray(given)
        except ValueError:
            pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)
            what = "a tuple, as returned by reset()" if pair else "entries of different shapes"
            wanted = "only its first entry, the observation" if pair else f"arrays of shape {list(shape)}"
            raise self._other_space(what, wanted) from None
        single = array.shape == shape
        if not single and (array.ndim != len(shape) + 1 or array.shape[1:] != shape):
            wanted = f"shape {list(shape)}, or {['n', *shape]} for a batch".replace("'", "")
            raise self._other_space(f"{name} of shape {list(array.shape)}", wanted)
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise self._other_space(f"{name} of type {array.dtype}", f"type {dtype}")
        array = array.astype(dtype, copy=False)
        return (array[None] if single else array), single

    def _other_space(self, given: str, wanted: str) -> InputError:
        trained = f"the policy was trained on {self.observation_space} of env={self.trial.env.config.name}"
        return InputError.value("observation", given, f"be {wanted}", why=trained, code="type")

    def _mask(self, mask: Any, count: int, single: bool) -> NDArray[np.bool_] | None:
        """Return the masks of valid actions, [count, flags]; None if the environment provides no masks."""
        if mask is None and self.spaces.masked:
            why = f"env.name={self.trial.env.config.name} provides action masks. Without a mask, the policy "
            why += "may take invalid actions"
            raise InputError.missing("mask", why, f"Write act(observation, info['{KEY}'])")
        if mask is None:
            return None
        if not self.agent.TRAITS.masks:
            why = f"{self.trial.agent.target} does not support action masks"
            raise InputError.unsupported("mask", why, "Leave out mask")
        rows = [mask] if single else list(mask)
        try:
            flags = [flags_of(np.asarray(row).ravel(), sum(choices(self.action_space))) for row in rows]
            if len(flags) != count:
                raise ValueError(f"there are {len(flags)} masks for {count} observations")
        except ValueError as error:
            raise InputError.about("mask", str(error), code="type") from None
        return np.array(flags)

    def _repr_html_(self) -> str | None:
        # Imported late: acting does not wait for Matplotlib.
        from labrl.analysis.report.cell import trial_cell

        return trial_cell(self.folder, repr(self).splitlines()[0], self.session)

    def __repr__(self) -> str:
        return (
            f"LoadedPolicy: {self.trial.agent.target.rpartition('.')[2]} in {self.trial.env.config.name}, "
            f"session {self.session} at frame {self.frame:,}\n  folder: {self.folder}"
        )


def _check_whole(name: str, value: Any, least: int) -> None:
    """Raise InputError unless the argument `name` is a whole number of at least `least`."""
    if not isinstance(value, int | np.integer) or value < least:
        raise InputError.value(name, value, f"be a whole number of at least {least}")
