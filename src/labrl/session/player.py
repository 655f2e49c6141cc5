"""An agent as a checkpoint has it, which acts and never learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from labrl.config.schema import TrialConfig
from labrl.envs.vector import VectorEnv
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import derived_seed, session_seed
from labrl.session.acting import ActingCopy
from labrl.session.episodes import Played
from labrl.session.evaluation import Quota, played_steps
from labrl.storage.checkpoint import Checkpoint, loading


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
        compute = Compute.choose("auto", config.meta.precision, num_threads)
        # No file of the run is touched, it may be going on.
        copy = ActingCopy(config, spaces, self.seed, compute, ranks)
        copy.clock.load_state_dict(checkpoint.state["clock"])
        copy.transforms.load_state_dict(checkpoint.state["transforms"])
        self.agent, self._transforms = copy.agent, copy.transforms
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
            copy.close()
            raise
        self._quota = Quota(env.num_envs, greedy=greedy, epsilon=epsilon)

    def play(
        self, env: VectorEnv, episodes: int, seed: int, after_step: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, Played]]:
        """Yield whole episodes with their numbers from 0, in the order in which they end.

        Environment i of n plays the episodes i, i + n, i + 2 n, ...: what is played does not depend on
        which end first, or short episodes would count more often. Seeds follow from the session's, the
        checkpoint and `seed`.
        """
        n = env.num_envs
        left = [len(range(i, episodes, n)) for i in range(n)]
        streams = ("enjoy", "enjoy actions", "enjoy chance")
        seeds = [derived_seed(self.seed, stream, self.frame, seed) for stream in streams]
        for step in played_steps(env, self.agent, self._transforms, self._quota, *seeds):
            after_step()
            for episode in step.episodes if step is not None else ():
                if left[episode.env]:
                    left[episode.env] -= 1
                    number = episode.index * n + episode.env
                    yield number, Played(episode, *env.played(episode), self.frame, "evaluation")
            if not any(left):
                return
