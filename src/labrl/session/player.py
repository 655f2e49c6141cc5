"""An agent as a checkpoint has it, which acts and never learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from labrl.agents.agent import Observation, build_agent
from labrl.agents.transforms import Transforms
from labrl.clock import Clock
from labrl.config.schema import TrialConfig
from labrl.envs.vector import VectorEnv
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams, derived_seed, session_seed
from labrl.session.callbacks.record import Played
from labrl.session.evaluation import Chooser
from labrl.storage.checkpoint import Checkpoint, loading
from labrl.workspace import Workspace


class Player:
    """Acts in environments of any number as the agent of one session did at one checkpoint."""

    def __init__(
        self,
        config: TrialConfig,
        session: int,
        checkpoint: Checkpoint,
        env: VectorEnv,
        num_threads: int,
        greedy: bool,
        epsilon: float = 0.0,
    ) -> None:
        """env: where it is to play; epsilon: probability of a random action instead, in [0, 1].

        Raises InputError where greedy actions are wanted and there are none.
        """
        assert config.seed is not None
        self.seed, self.frame = session_seed(config.seed, session), checkpoint.frame
        # The checkpoint of a session that several ranks train holds the agent of the first of them.
        ranks = 1 + len(checkpoint.state.get("ranks", []))
        num_envs = config.env.config.num_envs // ranks
        spaces = Spaces(env.observation_space, env.action_space, num_envs, env.masked)
        clock = Clock(config.env.config.max_frame)
        clock.load_state_dict(checkpoint.state["clock"])
        self._transforms = Transforms.build(config.transforms, spaces, agent=config.agent)
        self._transforms.load_state_dict(checkpoint.state["transforms"])
        compute = Compute.choose("auto", config.meta.precision, num_threads)
        self.agent = build_agent(
            config.agent,
            ranks,
            spaces=spaces,
            clock=clock,
            streams=Streams(self.seed),
            # No file of the run is touched, it may be going on.
            compute=dataclasses.replace(compute, workspace=Workspace(acting_only=True)),
        )
        try:
            if greedy and not self.agent.TRAITS.greedy:
                raise InputError(
                    f"greedy=true: {config.agent.target} has no greedy action: leave greedy=true out",
                    code="unsupported",
                    key="greedy",
                )
            with loading(str(checkpoint.path)):
                self.agent.load_state_dict(checkpoint.state["agent"])
        except BaseException:
            self.agent.close()
            raise
        self._greedy, self._epsilon = greedy, epsilon

    def play(
        self, env: VectorEnv, episodes: int, seed: int, after_step: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, Played]]:
        """Whole episodes with their numbers from 0, in the order in which they end.

        Environment i of n plays the episodes i, i + n, i + 2 n, ...: what is played does not depend on
        which end first, or short episodes would count more often. Seeds follow from the session's, the
        checkpoint and `seed`.
        """
        n = env.num_envs
        left = [len(range(i, episodes, n)) for i in range(n)]
        generator, chance = (
            np.random.default_rng(derived_seed(self.seed, stream, self.frame, seed))
            for stream in ("enjoy actions", "enjoy chance")
        )
        space = env.action_space
        chooser = Chooser(self.agent, space, self._greedy, self._epsilon, generator, chance)
        observation = env.reset(derived_seed(self.seed, "enjoy", self.frame, seed))
        start = np.ones(n, np.bool_)
        after_step()
        while any(left):
            seen = Observation(self._transforms.frozen(observation), env.action_mask, start)
            step = env.step(chooser.act(seen))
            after_step()
            for episode in step.episodes:
                if left[episode.env]:
                    left[episode.env] -= 1
                    number = episode.index * n + episode.env
                    yield number, Played(episode, *env.played(episode), self.frame, "evaluation")
            observation, start = step.observation, step.episode_over
