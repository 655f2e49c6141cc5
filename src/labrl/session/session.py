"""One training run of one agent on one vector environment with one seed."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation, build_agent
from labrl.agents.transforms import Transforms
from labrl.clock import Clock, PhaseTimers
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import ReplayError, VectorEnv
from labrl.learning.compute import Compute
from labrl.learning.noise_scale import NoiseScales
from labrl.learning.ranks import ALONE, Ranks
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams, session_seed
from labrl.session.actor_env import ActorEnv
from labrl.session.callbacks import Callback, default_callbacks
from labrl.session.callbacks.evaluate import Evaluate
from labrl.session.callbacks.record import Played
from labrl.session.episodes import EpisodeWindow
from labrl.session.interruption import Interruption
from labrl.session.shared_weights import SharedWeights, furthest
from labrl.session.team import Team
from labrl.step import Episode
from labrl.storage.run_folder import SessionFolder
from labrl.workspace import Workspace

_log = logging.getLogger(__name__)


class Highlights:
    """The training episode of the highest return (of equals the first), and the latest one."""

    def __init__(self) -> None:
        self.best: Played | None = None
        self.last: Played | None = None

    def take(self, episodes: Sequence[Episode], env: VectorEnv | ActorEnv, frame: int) -> None:
        """Take in the episodes that ended in the last step of `env`, at `frame`; nothing is copied."""
        for episode in episodes:
            self.last = Played(episode, *env.played(episode), frame, "training")
            if self.best is None or episode.episode_return > self.best.episode.episode_return:
                self.best = self.last


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
        meta = config.meta
        self.seed = session_seed(config.seed, index)
        self.streams = Streams(self.seed, ranks.rank)
        self.team = None if ranks.alone else _team(ranks, config)
        max_wall = meta.max_wall if ranks.alone else None  # the team agrees on it
        self.clock = Clock(config.env.config.max_frame, meta.max_opt_step, max_wall)
        self.episodes = EpisodeWindow(meta.episode_window)
        self.num_threads = num_threads
        self.timers = PhaseTimers()
        self.callbacks = default_callbacks(config) if ranks.rank == 0 else []
        self.interruption = Interruption()
        recorded = self.callbacks and meta.record_episodes != "none" and not meta.rigorous_eval
        self.highlights = Highlights() if recorded else None
        """None where training episodes are not recorded."""
        self._observation: Observation | None = None
        self._next_frame, self._next_time = 0.0, math.inf  # when the next callback is due
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
            self.agent = build_agent(
                config.agent,
                ranks.size,
                spaces=spaces,
                clock=self.clock,
                streams=self.streams,
                compute=compute,
            )
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
        return SharedWeights(self.folder.path.parent, mode, self.agent.weights)

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
        act, pauses, interruption, team = self.actor.act, agent.pauses, self.interruption, self.team
        if self._observation is None:
            self._observation = Observation(transforms.collected(env.reset()), env.action_mask)
        clock.start()
        timers.restart()
        while not (clock.finished or (interruption.requested if team is None else team.stops(self))):
            ended: list[Episode] = []
            if not pauses or agent.collecting:
                action = act(self._observation)
                timers.lap("act")
                step = env.step(action)
                timers.lap("env")
                seen = transforms.step(step)
                agent.observe(seen)
                self._observation, ended = Observation(seen.observation, seen.mask), step.episodes
            updates = agent.learn()
            if updates and self.shared_weights is not None:
                self.shared_weights.exchange()
            clock.opt_step += updates
            timers.lap("learn")
            if team is None:
                clock.tick(env.num_envs, len(ended))
                self.episodes.latest.extend(ended)
            else:
                team.tick(self, ended)
            if ended and self.highlights is not None:
                self.highlights.take(ended, env, clock.frame)
            if clock.frame >= self._next_frame or timers.now >= self._next_time or clock.finished:
                self._call_back()
            timers.lap("callbacks")

    def _call_back(self) -> None:
        """Let the callbacks that are due speak, and look up when the next one is."""
        clock, callbacks = self.clock, self.callbacks
        for callback in callbacks:
            if callback.is_due(clock, self.timers.now):
                callback.step(self)
        frames = (clock.next_due(frequency) for callback in callbacks for frequency in callback.frequencies)
        self._next_frame = min(frames, default=math.inf)
        self._next_time = min((callback.next_time for callback in callbacks), default=math.inf)

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
        return None if self._observation is None else self._observation.array.copy()

    @property
    def interrupted(self) -> bool:
        """Whether a signal kept something from being done: frames, or the evaluation after the last one."""
        return self.interruption.requested and not (self.clock.finished and not self.evaluate.owed)

    @property
    def pruned(self) -> bool:
        """Whether a search stopped it before its budget was spent."""
        interruption = self.interruption
        return interruption.pruned and interruption.signal is None and not self.clock.finished

    @property
    def evaluate(self) -> Evaluate:
        """The callback that knows the best score so far."""
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
        view = self.transforms.frozen(self._restore_env(state["env"]))
        self._observation = Observation(view, self.env.action_mask)
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
