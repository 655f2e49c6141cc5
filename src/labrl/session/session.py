"""One training run of one agent on one vector environment with one seed."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from labrl.agents.agent import Agent, Collecting, check_agent, heeded
from labrl.agents.transforms import Transforms
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import ReplayError, VectorEnv
from labrl.errors import InputError
from labrl.networks.compute import Compute
from labrl.networks.gradient import FlatParameters
from labrl.networks.noise_scale import NoiseScales
from labrl.networks.ranks import ALONE, Ranks
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams, session_seed
from labrl.session.actor_env import ActorEnv
from labrl.session.callbacks import Callback, default_callbacks
from labrl.session.callbacks.evaluate import Evaluate
from labrl.session.episodes import EpisodeWindow, Source
from labrl.session.interruption import Interruption
from labrl.session.shared_weights import SharedWeights, furthest
from labrl.session.team import Team
from labrl.step import Step
from labrl.storage.run_folder import SessionFolder
from labrl.workspace import Workspace

_log = logging.getLogger(__name__)


class PhaseTimers:
    """Seconds spent in each phase of the loop."""

    def __init__(self) -> None:
        self.seconds = {"act": 0.0, "env": 0.0, "learn": 0.0, "callbacks": 0.0}
        """Seconds by phase since the session began, those before a resume included."""
        self._last = time.perf_counter()

    def restart(self) -> None:
        """Time from now on; what passed since the last lap belongs to no phase."""
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now


def share(agent: Component, ranks: int) -> Component:
    """The agent of one of several ranks. Raises InputError where it cannot learn together with others."""
    if ranks == 1:
        return agent
    target = agent.load()
    if not hasattr(target, "share"):
        raise InputError(
            f"agent: {agent.target} cannot learn on several ranks of torchrun (it has no method `share`): "
            "use agent=ppo, a2c, sarsa, dqn, sac, td3 or ddpg, or start labrl without torchrun",
            code="unsupported",
            key="agent",
        )
    return dataclasses.replace(agent, config=target.share(agent.config, ranks))


def _team(ranks: Ranks, config: TrialConfig) -> Team:
    log_frames = config.log_frames
    return Team(ranks, (log_frames, config.eval_frames), log_frames, config.meta.max_wall)


class Session:
    """Act, step, observe, learn, tick the clock, let the callbacks that are due speak."""

    def __init__(
        self,
        config: TrialConfig,
        index: int,
        folder: SessionFolder,
        num_threads: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """Build environments, agent and callbacks.

        config: resolved, with a seed; index: number of the session in its trial; num_threads: cores
        that it may keep busy; ranks: the processes that train it together, each with an equal share of the
        environments. Raises InputError for what only the built parts can find out.
        """
        assert config.seed is not None, "the trial draws a seed before it starts sessions"
        self.config, self.index, self.folder = config, index, folder
        self.seed = session_seed(config.seed, index)
        self.streams = Streams(self.seed, ranks.rank)
        self.team = None if ranks.alone else _team(ranks, config)
        max_wall = config.meta.max_wall if ranks.alone else None  # the team agrees on it
        self.clock = Clock(config.env.config.max_frame, config.meta.max_opt_step, max_wall)
        self.episodes = EpisodeWindow(config.meta.episode_window)
        self.num_threads = num_threads
        self.timers = PhaseTimers()
        self.callbacks = default_callbacks(config) if ranks.rank == 0 else []
        self.interruption = Interruption()
        self._observation: NDArray | None = None
        meta = config.meta
        place = index if ranks.alone else ranks.local_rank
        chosen = Compute.choose(meta.device, meta.precision, num_threads, place, meta.num_gpus)
        self.compute = compute = dataclasses.replace(
            chosen,
            workspace=self._workspace(ranks),
            ranks=ranks,
            compiled=meta.compile,
            noise=NoiseScales() if meta.gradient_noise else None,
        )
        self.env = self._environments(ranks)
        with ExitStack() as on_failure:
            on_failure.callback(self.env.close)
            env = self.env
            spaces = Spaces(env.observation_space, env.action_space, env.num_envs, env.masked, env.goals)
            self.transforms = Transforms.build(config.transforms, spaces, ranks, config.agent)
            self.agent: Agent = share(config.agent, ranks.size).build(
                spaces=spaces, clock=self.clock, streams=self.streams, compute=compute
            )
            check_agent(self.agent, config.agent.target)
            self.actor: Agent | ActorEnv = self.agent
            """Who acts: the agent, or a copy of it in the process of the environments."""
            if isinstance(env, ActorEnv):
                self.actor = env.of(self.agent, self.transforms, self.clock)
            self.shared_weights = self._shared_weights()
            on_failure.pop_all()

    def _environments(self, ranks: Ranks) -> VectorEnv | ActorEnv:
        """In this process, or in that of an actor."""
        env, unroll = self.config.env, self.config.meta.async_unroll
        if unroll is not None:
            return ActorEnv(self.config, unroll, self.index, self.seed, self.num_threads, self.folder)
        own = env.config.num_envs // ranks.size
        return make_env(env, self.seed, self.num_threads, num_envs=own, first=ranks.rank * own)

    def _shared_weights(self) -> SharedWeights | None:
        """What the sessions of the trial train together, if they do."""
        mode = self.config.meta.distributed
        if not mode:
            return None
        weights: FlatParameters = self.agent.weights  # type: ignore[attr-defined]  # the trial has checked
        return SharedWeights(self.folder.path.parent, mode, weights)

    def _workspace(self, ranks: Ranks) -> Workspace:
        """Room for large arrays, in which nothing is overwritten that the oldest checkpoint counts on."""
        meta, env = self.config.meta, self.config.env.config
        folder = self.folder.path / "replay"
        # A checkpoint is due at the first step across a multiple of the frequency; see most_frames_unsaved.
        frames_kept = meta.keep_last * self.config.log_frames + env.num_envs
        return Workspace(
            folder=folder if ranks.rank == 0 else folder / f"rank_{ranks.rank}",
            frames_kept=-(-frames_kept // ranks.size),
            sharers=max(meta.max_session, ranks.local_size),
        )

    def run(self) -> None:
        """Train until the budget is spent or an interruption is asked for."""
        with self.interruption, ExitStack() as finishing:
            finishing.callback(self.close)
            if self.team is not None:
                self.team.compare(self)
            finishing.callback(self.clock.stop)
            for callback in self.callbacks:
                callback.start(self)
                finishing.callback(callback.finish, self)
            self._loop()

    def _loop(self) -> None:
        env, agent, transforms, clock, timers = self.env, self.agent, self.transforms, self.clock, self.timers
        act = self.actor.act
        if self._observation is None:
            self._observation = transforms.collected(env.reset())
        may_pause = isinstance(agent, Collecting)
        clock.start()
        timers.restart()
        while not (clock.finished or self._stops()):
            step = None
            if not may_pause or agent.collecting:  # type: ignore[attr-defined]  # it is a Collecting then
                action = act(self._observation, **heeded(act, env.action_mask))
                timers.lap("act")
                step = env.step(action)
                timers.lap("env")
                seen = transforms.step(step)
                agent.observe(seen)
                self._observation = seen.observation
            updates = agent.learn()
            if updates and self.shared_weights is not None:
                self.shared_weights.exchange()
            clock.opt_step += updates
            timers.lap("learn")
            self._tick(step)
            for callback in self.callbacks:
                callback.step(self)
            timers.lap("callbacks")

    def _stops(self) -> bool:
        return self.interruption.requested if self.team is None else self.team.stops(self)

    def _tick(self, step: Step | None) -> None:
        """step: what was played, if anything was."""
        episodes = [] if step is None else step.episodes
        if self.team is not None:
            self.team.tick(self, episodes)
            return
        self.clock.tick(self.env.num_envs, len(episodes))
        self.episodes.add(episodes)

    def metrics(self) -> dict[str, float]:
        """What a training row says of learning and collecting; of several ranks their means."""
        return self.own_metrics() if self.team is None else self.team.metrics

    def own_metrics(self) -> dict[str, float]:
        """Those of this rank."""
        noise = self.compute.noise
        return {
            **self.agent.metrics(),
            **self.env.metrics(),
            **({} if noise is None else noise.metrics()),
        }

    @property
    def state_in_files(self) -> bool:
        """Whether some of the state lies in files that training goes on writing to."""
        return bool(self.compute.workspace.rooms)

    @property
    def room_spent(self) -> float:
        """Part of the room in those files that was filled since `mark_room`, or may be with the next step."""
        return 0.0 if self.team is not None else self.compute.workspace.spent

    def mark_room(self) -> None:
        """A checkpoint counts on what the files hold now."""
        self.compute.workspace.mark()

    @property
    def most_frames_unsaved(self) -> int:
        """Frames from one checkpoint to the next, so that none that is kept loses what it counts on."""
        frames = self.compute.workspace.frames_safe * self.compute.ranks.size
        return max((frames - self.config.env.config.num_envs) // self.config.meta.keep_last, 1)

    @property
    def observation(self) -> NDArray | None:
        """A copy of the learner's view of the present observations, None before the first."""
        return None if self._observation is None else self._observation.copy()

    @property
    def interrupted(self) -> bool:
        """Whether a signal kept something from being done: frames, or the evaluation after the last one."""
        return self.interruption.requested and not (self.clock.finished and not self._evaluate.owed)

    @property
    def pruned(self) -> bool:
        """Whether a search stopped it before its budget was spent."""
        interruption = self.interruption
        return interruption.pruned and interruption.signal is None and not self.clock.finished

    @property
    def best_return(self) -> float | None:
        """The highest evaluation score so far, None before there is one."""
        return self._evaluate.best_return

    @property
    def best_source(self) -> Source | None:
        """Whose episodes `best_return` is of, None before there is one."""
        return self._evaluate.best_source

    @property
    def _evaluate(self) -> Evaluate:
        return next(part for part in self.callbacks if isinstance(part, Evaluate))

    def close(self) -> None:
        """End environments and background threads."""
        self.env.close()
        self.agent.close()

    def state_dict(self) -> dict[str, Any]:
        """All that decides the future of the session, but for its configuration."""
        own = self.own_state()
        state = {
            **own,
            "clock": self.clock.state_dict(),
            "episodes": self.episodes.state_dict(),
            "timers": dict(self.timers.seconds),
            "callbacks": {name: part.state_dict() for name, part in self._named_callbacks().items()},
        }
        if self.team is not None:
            state["ranks"] = self.team.others(self.clock.frame, own)
        return state

    def own_state(self) -> dict[str, Any]:
        """What each rank has for itself."""
        return {
            "streams": self.streams.state_dict(),
            "env": self.env.state_dict(),
            "transforms": self.transforms.state_dict(),
            "agent": self.agent.state_dict(),
            "compute": self.computes_with(),
            "noise": [] if self.compute.noise is None else self.compute.noise.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a session of the same configuration was saved.

        Environments that do not come back begin fresh episodes, and the log says so.
        """
        self.clock.load_state_dict(state["clock"])
        self.streams.load_state_dict(state["streams"])
        self.episodes.load_state_dict(state["episodes"])
        self.transforms.load_state_dict(state["transforms"])
        if self.shared_weights is None:
            self.agent.load_state_dict(state["agent"])
        else:
            self.shared_weights.restore(
                lambda: self.agent.load_state_dict(state["agent"]), lambda: self._load_furthest(state)
            )
        self.timers.seconds.update(state["timers"])
        # The statistics had seen this observation when they were saved: its view is the same again.
        self._observation = self.transforms.frozen(self._restore_env(state["env"]))
        if self.compute.noise is not None:
            self.compute.noise.load_state_dict(state.get("noise", []))
        if self.team is not None:
            self.team.restore(self.clock.frame, state.get("ranks", []))
        for name, callback in self._named_callbacks().items():
            # One that is new since then has nothing to remember.
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])

    def _load_furthest(self, own: Mapping[str, Any]) -> None:
        """own: the state of this session, for where no other has come further."""
        found = furthest(self.folder.path.parent)
        self.agent.load_state_dict((own if found is None else found.state)["agent"])

    def computes_with(self) -> dict[str, Any]:
        """What else the last bits of a run depend on, as plain data."""
        compute = self.compute
        return {
            "device": compute.device.type,
            "precision": str(compute.precision).removeprefix("torch."),
            "num_threads": self.num_threads,
            "num_cpus": self.config.meta.num_cpus,
        }

    def _restore_env(self, state: Mapping[str, Any]) -> NDArray:
        try:
            return self.env.load_state_dict(state)
        except ReplayError as error:
            assert isinstance(self.env, VectorEnv), "an actor process goes on by itself"
            _log.warning("%s; fresh episodes begin, as no unbroken run would have had them", error)
            return self.env.abandon(state)

    def _named_callbacks(self) -> dict[str, Callback]:
        """Callbacks by class and, for several of one class, by their order among these."""
        named: dict[str, Callback] = {}
        for callback in self.callbacks:
            name = type(callback).__name__
            count = sum(other.startswith(f"{name}:") for other in named)
            named[f"{name}:{count}"] = callback
        return named
