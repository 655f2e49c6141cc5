"""A recorded episode is played again from its seed and actions, checked, and shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labrl.config.component import Component
from labrl.config.compose import prepare
from labrl.envs.protocol import Backend, action_dtype
from labrl.envs.watch import watch
from labrl.errors import DONE, FAILED, EnvironmentFailedError, InputError, LabrlError
from labrl.storage.episodes import RecordedEpisode, checksum, read_episode, recorded_names
from labrl.storage.provenance import read_command
from labrl.storage.run_folder import RunFolder, SessionFolder
from labrl.storage.video import EncoderError, write_mp4
from labrl.trial.past import find, tell_damages
from labrl.trial.showing import ReplayRequest
from labrl.trial.summary import say
from labrl.trial.window import Window, WindowClosedError


def check(episode: RecordedEpisode) -> str | None:
    """Play the episode without pictures. Returns where it came out otherwise than recorded, or None.

    Raises InputError where its environment cannot be made.
    """
    node = Component.parse(episode.env, "env")
    env: Backend = node.build(num_envs=1, num_threads=1, evaluation=episode.source == "evaluation")
    return _played(episode, env, lambda: None)


def to_video(episode: RecordedEpisode, path: Path, longest: int | None = None) -> str | None:
    """Write the episode as an MP4 file. Returns where it came out otherwise than recorded, or None.

    longest: pictures after which it stops unchecked; None: it is played to its end. Raises InputError where
    the environment gives no pictures or nothing here can write a video, OSError where the disk refuses.
    """
    env = watch(Component.parse(episode.env, "env"))
    try:
        with write_mp4(path, env.frames_per_second) as video:
            return _played(episode, env, lambda: video.add(env.picture()), longest)
    except ImportError as error:
        raise InputError(
            f"videos need PyAV, which cannot be imported ({error}): pip install av",
            code="not-installed",
            key="av",
        ) from error
    except EncoderError as error:
        raise InputError(
            f"the pictures of {env.name} cannot be encoded: {error}", code="unsupported", key="env"
        ) from error
    finally:
        env.close()


def to_window(episode: RecordedEpisode, window: Window) -> str | None:
    """Show the episode at the speed at which people play it. Returns the same.

    Raises InputError where the environment gives no pictures, WindowClosedError.
    """
    env = watch(Component.parse(episode.env, "env"))
    return _played(episode, env, lambda: window.show(env.picture(), env.frames_per_second))


def _played(
    episode: RecordedEpisode, env: Backend, look: Callable[[], None], longest: int | None = None
) -> str | None:
    """Play the episode, `look` before its first action and after each, and close the environment.

    longest: looks after which it stops unchecked. Returns where the episode came out otherwise than recorded.
    Raises EnvironmentFailedError where the environment cannot be reset.
    """
    total, steps, over = 0.0, 0, False
    try:
        try:
            observation = env.reset(np.ones(1, np.bool_), np.array([episode.seed], np.int64))
        except (Exception, SystemExit) as error:  # an environment may fail in any way
            raise EnvironmentFailedError(
                f"{env.name}: its reset failed: {type(error).__name__}: {error}", key="env"
            ) from error
        look()
        for action in episode.actions.astype(action_dtype(env.action_space)):
            if steps + 1 == longest:
                return None
            if over:
                break
            try:
                transition = env.step(action[None])
            except (Exception, SystemExit) as error:
                return f"step {steps + 1} failed: {type(error).__name__}: {error}"
            observation, over = transition.observation, bool((transition.ended | transition.truncated)[0])
            total += float(transition.reward[0])
            steps += 1
            look()
    finally:
        env.close()
    if steps != episode.length or not over:
        ended = f"it ended after {steps} steps" if over else f"it had not ended after {steps} steps"
        return f"{ended}, as recorded after {episode.length}"
    if total != episode.episode_return:
        return f"return {total:g}, recorded {episode.episode_return:g}"
    if checksum(observation[0]) != episode.final_observation:
        return "the last observation is not the recorded one"
    return None


def replay(request: ReplayRequest) -> int:
    """Show a recorded episode, and say whether it came out as recorded.

    Where it cannot be shown, one line says why, and the episode is checked all the same. Returns the exit
    code, 1 where it did not. Raises InputError where there is no such run or episode.
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
    target = session.videos / f"{request.episode}.mp4"
    try:
        if window is not None:
            difference = to_window(episode, window)
        else:
            difference = to_video(episode, target)
            say(f"video: {os.path.relpath(target)}")
    except WindowClosedError:
        return DONE
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror or error})", code="usage", key=str(target)
        ) from error
    except LabrlError as error:
        say(f"no {'video' if window is None else 'pictures'}: {error}")
        difference = check(episode)
    finally:
        if window is not None:
            window.close()
    if difference is not None:
        say(f"not as it was recorded: {difference} (another version of the environment?)")
        return FAILED
    say("as it was recorded, to the bit: return, length and last observation are equal")
    return DONE


def _config_dir(run: RunFolder) -> str | None:
    """Where modules of the user's own may lie. An environment of labrl or of a package needs none."""
    try:
        folder = read_command(run).config_dir
    except LabrlError:
        return None
    return folder if folder is not None and Path(folder).is_dir() else None


def _session(sessions: list[SessionFolder], request: ReplayRequest, run: str) -> SessionFolder:
    """The session that has the episode. Raises InputError with those that there are."""
    wanted = [session for session in sessions if request.session in (None, session.index)]
    if not wanted:
        numbers = ", ".join(str(session.index) for session in sessions) or "none"
        asked = "" if request.session is None else f"session={request.session}: "
        raise InputError(f"{asked}{run} has the sessions {numbers}", code="not-found", key="session")
    for session in wanted:
        if (session.episodes / f"{request.episode}.npz").exists():
            return session
    names = list(dict.fromkeys(name for session in wanted for name in recorded_names(session.episodes)))
    if not names:
        raise InputError(
            f"{run} has no recorded episode. Runs record episodes at evaluations, every meta.eval_frequency "
            "frames, unless meta.record_episodes=none",
            code="not-found",
            key=run,
        )
    more = "" if any(name.isdigit() for name in names) else "; meta.record_episodes=each keeps more"
    raise InputError(
        f"episode={request.episode}: {run} has recorded {', '.join(names)}{more}",
        code="not-found",
        key="episode",
    )
