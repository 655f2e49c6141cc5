"""A recorded episode is played again from its seed and actions, checked, and shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labrl.config.component import Component
from labrl.config.compose import prepare
from labrl.config.errors import ConfigError
from labrl.envs.actions import action_dtype
from labrl.envs.watch import Watched, watch
from labrl.lab.past import find, tell_damages
from labrl.lab.showing import ReplayRequest
from labrl.lab.summary import say
from labrl.lab.window import Window, WindowClosedError
from labrl.storage.episodes import RecordedEpisode, checksum, read_episode, recorded_names
from labrl.storage.provenance import read_command
from labrl.storage.run_folder import RunFolder, SessionFolder
from labrl.storage.video import write_mp4

Picture = NDArray[np.uint8]


class Replay:
    """Pictures of an episode, one before its first action and one after each; then how it ended."""

    def __init__(self, episode: RecordedEpisode, env: Watched) -> None:
        self._episode, self._env = episode, env
        self.difference: str | None = "it was not played to its end"
        """After the last picture: where the episode came out otherwise than recorded; None: nowhere."""

    def pictures(self) -> Iterator[Callable[[], Picture]]:
        """For each picture what makes it: those that are not wanted are not drawn."""
        env, episode = self._env, self._episode
        one = np.ones(1, np.bool_)
        observation = env.reset(one, np.array([episode.seed], np.int64))
        yield env.picture
        actions = episode.actions.astype(action_dtype(env.action_space))
        total, steps, over = 0.0, 0, False
        for action in actions:
            if over:
                break
            transition = env.step(action[None])
            observation, over = transition.observation, bool((transition.ended | transition.truncated)[0])
            total += float(transition.reward[0])
            steps += 1
            yield env.picture
        self.difference = self._compared(total, steps, over, observation[0])

    def _compared(self, total: float, steps: int, over: bool, final: NDArray) -> str | None:
        episode = self._episode
        if steps != episode.length or not over:
            ended = f"it ended after {steps} steps" if over else f"it had not ended after {steps} steps"
            return f"{ended}, as recorded after {episode.length}"
        if total != episode.episode_return:
            return f"return {total:g}, recorded {episode.episode_return:g}"
        if checksum(final) != episode.final_observation:
            return "the last observation is not the recorded one"
        return None


def to_video(episode: RecordedEpisode, path: Path, longest: int | None = None) -> str | None:
    """Write the episode as an MP4 file. Returns where it came out otherwise than recorded, or None.

    longest: pictures after which it stops unchecked; None: it is played to its end. Raises ConfigError where
    the environment gives no pictures or nothing here can write a video, OSError where the disk refuses.
    """
    env = watch(Component.parse(episode.env, "env"))
    end = longest if longest is not None and longest <= episode.length else None
    try:
        replay = Replay(episode, env)
        with write_mp4(path, env.frames_per_second) as video:
            for draw in islice(replay.pictures(), end):
                video.add(draw())
    except ImportError as error:
        raise ConfigError(f"videos need PyAV, which cannot be imported ({error}): pip install av") from error
    finally:
        env.close()
    return replay.difference if end is None else None


def to_window(episode: RecordedEpisode, window: Window) -> str | None:
    """Show the episode at the speed at which people play it. Returns the same.

    Raises WindowClosedError.
    """
    env = watch(Component.parse(episode.env, "env"))
    try:
        replay = Replay(episode, env)
        for draw in replay.pictures():
            window.show(draw(), env.frames_per_second)
    finally:
        env.close()
    return replay.difference


def replay(request: ReplayRequest) -> int:
    """Show a recorded episode, and say whether it came out as recorded.

    Returns the exit code, 1 where it did not. Raises ConfigError where there is no such run or episode,
    and where it cannot be shown.
    """
    window = Window() if request.render == "human" else None
    run = find(request.which, [], "replay")
    tell_damages(run)
    prepare(_config_dir(run))
    session = _session(run.sessions(), request, str(run.path))
    name = f"{request.episode}.npz"
    episode = read_episode(session.episodes / name)
    say(
        f"Episode {request.episode} of session {session.index}, {episode.source} at frame {episode.frame:,}: "
        f"return {episode.episode_return:g} in {episode.length:,} steps, seed {episode.seed}"
    )
    if window is not None:
        try:
            difference = to_window(episode, window)
        except WindowClosedError:
            return 0
        finally:
            window.close()
    else:
        target = session.videos / f"{request.episode}.mp4"
        try:
            difference = to_video(episode, target)
        except OSError as error:
            raise ConfigError(f"{target} cannot be written ({error.strerror or error})") from error
        say(f"video: {os.path.relpath(target)}")
    if difference is not None:
        say(f"not as it was recorded: {difference} (another version of the environment?)")
        return 1
    say("as it was recorded, to the bit: return, length and last observation are equal")
    return 0


def _config_dir(run: RunFolder) -> str | None:
    """Where modules of the user's own may lie. An environment of labrl or of a package needs none."""
    try:
        folder = read_command(run).config_dir
    except ConfigError:
        return None
    return folder if folder is not None and Path(folder).is_dir() else None


def _session(sessions: list[SessionFolder], request: ReplayRequest, run: str) -> SessionFolder:
    """The session that has the episode. Raises ConfigError with those that there are."""
    wanted = [session for session in sessions if request.session in (None, session.index)]
    if not wanted:
        numbers = ", ".join(str(session.index) for session in sessions) or "none"
        asked = "" if request.session is None else f"session={request.session}: "
        raise ConfigError(f"{asked}{run} has the sessions {numbers}")
    for session in wanted:
        if (session.episodes / f"{request.episode}.npz").exists():
            return session
    names = list(dict.fromkeys(name for session in wanted for name in recorded_names(session.episodes)))
    if not names:
        raise ConfigError(
            f"{run} has no recorded episode: they are written at evaluations, every meta.eval_frequency "
            "frames, unless meta.record_episodes=none"
        )
    more = "" if any(name.isdigit() for name in names) else "; meta.record_episodes=each keeps more"
    raise ConfigError(f"episode={request.episode}: {run} has recorded {', '.join(names)}{more}")
