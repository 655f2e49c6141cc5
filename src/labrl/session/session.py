"""One training run of one agent on one vector environment with one seed."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any

from labrl.agents.agent import Observation, joined
from labrl.agents.make import build_agent, learns_faster_on_gpu, why_not_recorded
from labrl.agents.transforms import Transforms
from labrl.clock import Clock, PhaseTimers
from labrl.config.schema import TrialConfig
from labrl.envs.make import info_keys
from labrl.learning.compute import Compute, set_deterministic
from labrl.learning.noise_scale import NoiseScales
from labrl.learning.ranks import ALONE, Ranks
from labrl.memory.workspace import Workspace
from labrl.processes.startup import collect_as_usual
from labrl.run import session_log
from labrl.run.session import RunSession
from labrl.seeding import Streams, session_seed
from labrl.session.callbacks.build import build_callbacks
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.checkpoint import Checkpoint
from labrl.session.callbacks.evaluate import Evaluate
from labrl.session.callbacks.record import RecordEpisodes
from labrl.session.callbacks.repeats import CheckRepeats
from labrl.session.callbacks.stop import Stop
from labrl.session.episodes import EpisodeWindow, Played
from labrl.session.interruption import Interruption
from labrl.session.sources import make_source
from labrl.session.team import RankTeam, SharedWeights
from labrl.session.transfer import load_learned
from labrl.spaces import Spaces, sees_images
from labrl.step import Episode, Step

NO_EPISODES: list[Episode] = []


class Session:
    """Act, step, observe, learn, advance the clock, and call the callbacks that are due.

    Other objects provide the steps (`sources.py`) and coordinate learning with other processes (`team.py`).
    """

    def __init__(
        self,
        config: TrialConfig,
        index: int,
        folder: RunSession,
        num_threads: int,
        ranks: Ranks = ALONE,
        start: Mapping[str, Any] | None = None,
    ) -> None:
        """Build environments, agent and callbacks.

        config: resolved configuration, with a seed; index: number of the session in its trial; num_threads:
        number of cores that the session may use; ranks: the processes that train the session together, each
        with the same number of environments; start: weights of another run to start from, as `read_beginning`
        returns them. Raises InputError for mistakes that only show when the parts are built.
        """
        assert config.seed is not None, "the trial draws a seed before it starts sessions"
        self.config, self.index, self.folder, self.num_threads = config, index, folder, num_threads
        meta = config.meta
        self.seed = session_seed(config.seed, index)
        self.streams = Streams(self.seed, ranks.rank)
        max_wall = meta.max_wall if ranks.alone else None  # several ranks have to agree when it is spent
        self.clock = Clock(config.env.config.max_frame, meta.max_opt_step, max_wall)
        self.episodes = EpisodeWindow(meta.episode_window, info_keys(config.env))
        self.timers = PhaseTimers()
        self.interruption = Interruption(wake=self._wake)
        self._observation: Observation | None = None
        self._last_step: Step | None = None
        self._next_frame, self._next_time = 0.0, math.inf  # when the next callback is due
        source = make_source(config, index, self.seed, num_threads, folder, ranks)
        self.source, self.env = source, source.env
        with ExitStack() as on_failure:
            on_failure.callback(self.env.close)
            env = self.env
            spaces = Spaces(env.observation_space, env.action_space, env.num_envs, env.masked, env.goals)
            images = sees_images(spaces.observation)
            self.compute = compute = _compute(config, index, folder, num_threads, ranks, images)
            self.callbacks: list[Callback] = []
            self.evaluate: Evaluate | None = None
            """The callback that keeps the best score so far; None on all ranks except rank 0."""
            self.checkpoint: Checkpoint | None = None
            """The callback that saves the session; None on all ranks except rank 0."""
            if ranks.rank == 0:
                built = build_callbacks(config, compute.workspace, ranks.size)
                self.callbacks, self.evaluate, self.checkpoint = built
            self.watchers: list[Callable[[Played], None]] = []
            """Functions that receive each training episode when it has ended."""
            for callback in self.callbacks:
                if isinstance(callback, CheckRepeats):
                    self.watchers.append(callback.take)
                elif isinstance(callback, RecordEpisodes) and not meta.rigorous_eval:
                    self.watchers.append(callback.highlights.take)
            self.transforms = Transforms.build(config.transforms, spaces, ranks, config.agent)
            self.agent = build_agent(
                config.agent,
                ranks.size,
                spaces=self.transforms.spaces,
                clock=self.clock,
                streams=self.streams,
                compute=compute,
            )
            if start is not None:
                load_learned(self.agent, self.transforms, start)
            # `agent.act`, unless another process acts ahead of the learner.
            self.act = source.connect(self.agent, self.transforms, self.clock)
            self.team = None if ranks.alone else RankTeam(self, ranks)
            """Coordination with the other ranks; None for a single rank."""
            self.shared: SharedWeights | None = None
            """Weights that all sessions of the trial train (Hogwild); None if each has its own."""
            if meta.distributed:
                self.shared = SharedWeights(folder.path.parent, meta.distributed, self.agent.weights)
            on_failure.pop_all()
        self.view = self._make_view()

    def run(self) -> None:
        """Train until the budget is spent or the session is asked to stop."""
        with self.interruption, ExitStack() as finishing:
            finishing.callback(self.close)
            if self.team is not None:
                self.team.compare()
            gc.freeze()  # otherwise each full collection visits every imported object, which takes 80 ms
            finishing.callback(gc.unfreeze)
            collect_as_usual()
            finishing.callback(self.clock.stop)
            for callback in self.callbacks:
                callback.start(self.view)
                finishing.callback(callback.finish, self.view)
            self._schedule_callbacks()
            self._loop()

    def _loop(self) -> None:
        agent, transforms, clock, timers = self.agent, self.transforms, self.clock, self.timers
        act, env, team, shared, watchers = self.act, self.env, self.team, self.shared, self.watchers
        interruption, latest, pauses = self.interruption, self.episodes.latest, agent.pauses
        if self._observation is None:
            self._observation = Observation(transforms.collected(env.reset()), env.action_mask)
        clock.start()
        timers.restart()
        while not (clock.finished or (interruption.requested if team is None else team.stops())):
            ended, acted, stepped = NO_EPISODES, timers.now, timers.now
            if pauses is None or pauses.collecting:
                action = act(self._observation)
                acted = perf_counter()
                step = self._last_step = env.step(action)
                stepped = perf_counter()
                seen = transforms.step(step) if transforms.active else step
                agent.observe(seen)
                self._observation, ended = Observation(seen.observation, seen.mask), step.episodes
            else:
                self._last_step = None
            updates = agent.learn()
            timers.add_step(acted, stepped, perf_counter() if updates else stepped)
            clock.opt_step += updates
            if shared is not None and updates:
                shared.exchange()
            if team is not None:
                team.count(ended)
            elif ended:
                clock.tick(env.num_envs, len(ended))
                latest.extend(ended)
            else:
                clock.tick(env.num_envs)
            for episode in ended if watchers else NO_EPISODES:
                played = Played(episode, *env.played(episode), clock.frame, "training")
                for watch in watchers:
                    watch(played)
            if clock.frame >= self._next_frame or timers.now >= self._next_time:
                self._call_back()
                timers.lap("callbacks")
        if clock.finished:
            self._end()
            timers.lap("callbacks")

    def _call_back(self) -> None:
        """Call the callbacks that are due, and determine when the next callback is due."""
        for callback in self.callbacks:
            if any(map(self.clock.due, callback.frequencies)) or self.timers.now >= callback.next_time:
                callback.step(self.view)
        if self.interruption.take_save() and self.checkpoint is not None:
            self.checkpoint.save_now(self.view)
        self._schedule_callbacks()

    def _end(self) -> None:
        """Save the session, then call the callbacks that are due only because the budget is spent.

        If the budget is extended later, the session continues from the saved state, because a run that had
        the larger budget from the start would not have made these calls.
        """
        if self.checkpoint is not None:
            self.checkpoint.save(self.view)
        due = self.clock.due
        rest = [one for one in self.callbacks if one.frequencies and not any(map(due, one.frequencies))]
        self.clock.ended = True
        for callback in rest:
            callback.step(self.view)

    def _schedule_callbacks(self) -> None:
        """Stop if a callback ends the session, and determine when the next callback is due."""
        callbacks = self.callbacks
        pruned = any(callback.gives_up for callback in callbacks)
        if pruned or any(callback.stopped_by is not None for callback in callbacks):
            self.interruption.end(pruned)
        frame = self.clock.frame
        frames = ((frame // each + 1) * each for callback in callbacks for each in callback.frequencies)
        self._next_frame = min(frames, default=math.inf)
        self._next_time = min((callback.next_time for callback in callbacks), default=math.inf)
        if self.interruption.save_asked:  # since the line above that sets the frame
            self._wake()

    def _wake(self) -> None:
        """Call `_call_back` after the current step."""
        self._next_frame = -math.inf

    def _make_view(self) -> SessionView:
        return SessionView(
            config=self.config,
            index=self.index,
            seed=self.seed,
            clock=self.clock,
            env=self.env,
            agent=self.agent,
            transforms=self.transforms,
            episodes=self.episodes,
            folder=self.folder,
            streams=self.streams,
            timers=self.timers,
            num_threads=self.num_threads,
            stopping=lambda: self.interruption.requested,
            interrupted=lambda: self.interrupted,
            stop=lambda: self.stop,
            last_step=lambda: None if self._last_step is None else self._last_step.read_only(),
            observation=lambda: None if self._observation is None else self._observation.array.copy(),
            metrics=self.own_metrics if self.team is None else self.team.metrics,
            state_dict=self.state_dict,
        )

    @property
    def interrupted(self) -> bool:
        """Whether a signal or a search stopped the session before its last frame or evaluation."""
        owed = self.evaluate is not None and self.evaluate.owed is not None
        return self.interruption.requested and self.stop is None and (owed or not self.clock.finished)

    @property
    def pruned(self) -> bool:
        """Whether a search stopped the session before its budget was spent."""
        interruption = self.interruption
        return interruption.pruned and interruption.signal is None and not self.clock.finished

    @property
    def stop(self) -> Stop | None:
        """Why a callback ended the session before its budget was spent; None if no callback did."""
        interruption = self.interruption
        if interruption.signal is not None or interruption.pruned or self.clock.finished:
            return None
        return next((one.stopped_by for one in self.callbacks if one.stopped_by is not None), None)

    def close(self) -> None:
        """Close the environments and stop background threads."""
        self.env.close()
        self.agent.close()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that determines the rest of the session, except its configuration."""
        own = self.own_state()
        callbacks = self._named_callbacks().items()
        return {
            **own,
            "clock": self.clock.state_dict(),
            "episodes": self.episodes.state_dict(),
            "timers": dict(self.timers.seconds),
            "callbacks": {name: callback.state_dict() for name, callback in callbacks},
            **({} if self.team is None else self.team.state_dict(own)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of a session with the same configuration.

        Environments that do not reproduce their past start new episodes, with a warning in the log.
        """
        self.clock.load_state_dict(state["clock"])
        self.streams.load_state_dict(state["streams"])
        self.episodes.load_state_dict(state["episodes"])
        self.transforms.load_state_dict(state["transforms"])
        if self.shared is None:
            self.agent.load_state_dict(state["agent"])
        else:
            self.shared.load(self.agent, state)
        if self.team is not None:
            self.team.load_state_dict(state)
        self.timers.seconds.update(state["timers"])
        # The saved statistics already include this observation, so they must not count it again.
        view = self.transforms.frozen(self.source.restore(state["env"]))
        self._observation = Observation(view, self.env.action_mask)
        if self.compute.noise is not None:
            self.compute.noise.load_state_dict(state.get("noise", []))
        for name, callback in self._named_callbacks().items():
            # A callback that was added since the state was saved has no saved state.
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])

    def computes_with(self) -> dict[str, Any]:
        """Return, as plain data, the settings of the computation on which a run's exact numbers depend."""
        compute = self.compute
        return {
            "device": compute.device.type,
            "precision": str(compute.precision).removeprefix("torch."),
            "kernels": self.config.meta.kernels,
            "num_threads": self.num_threads,
            "num_cpus": self.config.meta.num_cpus,
        }

    def own_metrics(self) -> dict[str, float]:
        """Return the columns of a training row that describe this process."""
        noise = self.compute.noise
        others = self.env.metrics(), {} if noise is None else noise.metrics()
        return joined(self.agent, self.agent.metrics(), *others)

    def own_state(self) -> dict[str, Any]:
        """Return the state that each rank has separately."""
        return {
            "streams": self.streams.state_dict(),
            "env": self.env.state_dict(),
            "transforms": self.transforms.state_dict(),
            "agent": self.agent.state_dict(),
            "compute": self.computes_with(),
            "noise": [] if self.compute.noise is None else self.compute.noise.state_dict(),
        }

    def _named_callbacks(self) -> dict[str, Callback]:
        """Return the callbacks by name, `<class>:<number>`, numbered from 0 within each class."""
        named: dict[str, Callback] = {}
        for callback in self.callbacks:
            name = type(callback).__name__
            count = sum(other.startswith(f"{name}:") for other in named)
            named[f"{name}:{count}"] = callback
        return named


def _compute(
    config: TrialConfig, index: int, folder: RunSession, num_threads: int, ranks: Ranks, images: bool
) -> Compute:
    """Return the session's device, threads, precision and workspace.

    images: whether the agent sees images. Large arrays are stored in files. These have so much room that
    training never overwrites data to which the oldest kept checkpoint refers.
    """
    meta, replay = config.meta, folder.replay
    # Checkpoints are due at the first step across a multiple of the frequency, up to num_envs frames late.
    frames_kept = meta.keep_last * config.log_frames + config.env.config.num_envs
    workspace = Workspace(
        folder=replay if ranks.rank == 0 else replay / f"rank_{ranks.rank}",
        frames_kept=-(-frames_kept // ranks.size),
        sharers=max(meta.max_session, ranks.local_size),
    )
    place = index if ranks.alone else ranks.local_rank
    on_gpu = learns_faster_on_gpu(config, images)
    chosen = Compute.choose(meta.device, meta.precision, num_threads, place, meta.num_gpus, on_gpu)
    set_deterministic(meta.deterministic, chosen.device, meta.compile)
    note = partial(session_log.append, folder.log)
    why_not = why_not_recorded(config)
    if chosen.record is not None and why_not:
        note(f"Updates are made without CUDA graphs: {why_not}.")
    return dataclasses.replace(
        chosen,
        workspace=workspace,
        ranks=ranks,
        compiled=meta.compile,
        kernels=meta.kernels == "auto",
        note=note,
        noise=NoiseScales() if meta.gradient_noise else None,
        record=None if why_not else chosen.record,
    )
