"""`labrl +enjoy`: play episodes with the trained policy of a run."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from labrl.analysis.formats import number
from labrl.config.compose import prepare
from labrl.envs.make import info_keys, watch
from labrl.envs.protocol import Watched
from labrl.envs.vector import VectorEnv
from labrl.errors import DONE, InputError, LabrlError
from labrl.learning.compute import use_one_thread
from labrl.play.options import EnjoyRequest
from labrl.play.policy import LoadedPolicy
from labrl.play.window import Window, WindowClosedError
from labrl.run.atomic import write_json
from labrl.run.episodes import RecordedEpisode
from labrl.run.run import Run
from labrl.session.devices import available_cpus
from labrl.session.episodes import Played, episode_statistics, info_statistics
from labrl.trial.find import choices, find_run
from labrl.trial.past import check_past
from labrl.trial.summary import say
from labrl.trial.videos import Screening, to_video


def enjoy(request: EnjoyRequest, config_dir: str | None = None) -> int:
    """Play episodes, print their returns and lengths, and write videos and `result.json`.

    config_dir: folder with the user's own modules; None: the folder that the run used. The files are written
    to `enjoy/` in the run folder. Returns the exit code. Raises InputError if there is no such run, session,
    checkpoint or display.
    """
    window = Window() if request.render == "human" else None
    run = find_run(request.which, request.choices, "enjoy")
    check_past(run)
    for group, option in choices(request.choices).items():
        if (chosen := run.choices.get(group)) != option:
            why = f"{run.path} was run with {group}={chosen}, which +enjoy cannot change"
            fix = f"Leave out {group}={option}, or name another run"
            raise InputError.about(f"{group}={option}", why, fix, code="contradiction")
    prepare(run.config_dir if config_dir is None else os.path.abspath(config_dir))
    use_one_thread()  # as in training
    policy = LoadedPolicy(run, request.session, request.checkpoint, "enjoy", num_threads=available_cpus())
    meta = policy.trial.meta
    request = dataclasses.replace(
        request,
        greedy=meta.eval_greedy if request.greedy is None else request.greedy,
        epsilon=meta.eval_epsilon if request.epsilon is None else request.epsilon,
    )
    say(
        f"{run.path.name}: the {policy.checkpoint} checkpoint of session {policy.session}, "
        f"frame {policy.frame:,}, {'greedy actions' if request.greedy else 'actions of the policy'}"
        + (f", random with probability {request.epsilon:g}" if request.epsilon else "")
    )
    try:
        played = _play(policy, request, window)
    except WindowClosedError:
        say("the window was closed")
        return DONE
    episodes = [one.episode for one in played]
    plural = "" if len(played) == 1 else "s"
    info = info_statistics(episodes, info_keys(policy.trial.env))
    lengths = float(np.std([one.length for one in episodes]))
    statistics = {**episode_statistics(episodes), "length_std": lengths, **info}
    of_return = f" ± {statistics['return_std']:,.2f}" if plural else ""
    of_length = f" ± {statistics['length_std']:,.1f}" if plural else ""
    say(
        f"{len(played)} episode{plural}: return {statistics['return_mean']:,.2f}{of_return}, "
        f"length {statistics['length_mean']:,.1f}{of_length} steps{_numbers(info)}"
    )
    _write(run, policy, request, played, statistics)
    return DONE


def _numbers(info: Mapping[str, float]) -> str:
    """Return the numbers of `info` as the end of a line. A dash stands for a number that is missing."""
    return "".join(f", {name} {number(value)}" for name, value in info.items())


def _play(policy: LoadedPolicy, request: EnjoyRequest, window: Window | None) -> list[Played]:
    """Play episodes, and return them in the order of their indices. The policy is closed afterwards."""
    component = policy.trial.env
    shown: Watched | None = None
    env: VectorEnv | None = None

    def show() -> None:
        nonlocal shown
        if window is None or shown is None:
            return
        try:
            window.show(shown.picture(), shown.frames_per_second)
        except LabrlError as error:
            shown = None
            say(f"no images: {error}")

    found = {}
    try:
        try:
            shown = watch(component) if window is not None else None
        except LabrlError as error:
            say(f"no images: {error}")
        env = policy.vector_env(request.episodes) if shown is None else VectorEnv(shown, 0)
        quota = policy.quota(env.num_envs, request.greedy, request.epsilon)
        for index, played in policy.play(env, quota, request.episodes, request.seed, show):
            found[index], episode = played, played.episode
            rest = _numbers(info_statistics([episode], episode.info))
            rest += ", cut short by a time limit" if episode.truncated else ""
            say(f"  episode {index}: return {episode.episode_return:g}, {episode.length:,} steps{rest}")
    finally:
        if env is not None:
            env.close()
        policy.close()
        if window is not None:
            window.close()
    return [found[index] for index in sorted(found)]


def _write(
    run: Run,
    policy: LoadedPolicy,
    request: EnjoyRequest,
    played: Sequence[Played],
    statistics: Mapping[str, float],
) -> None:
    """Write the results, replacing those of an earlier identical request. Print a line if they cannot be
    written.

    statistics: means and population standard deviations of returns and lengths, and means of `info/<name>`.
    """
    parts = [f"session_{policy.session}", f"frame_{policy.frame:012d}"]
    parts += ["greedy"] if request.greedy else []
    parts += [f"epsilon_{request.epsilon:g}"] if request.epsilon else []
    parts += [f"seed_{request.seed}"] if request.seed else []
    folder = run.enjoy / "_".join(parts)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        wanted = request.videos
        count = len(played) if wanted is None and request.render == "video" else wanted or 0
        videos = _videos(folder, [one.recorded(policy.trial.env.plain()) for one in played[:count]])
        result: dict[str, Any] = {
            "format_version": 1,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "session": policy.session,
            "frame": policy.frame,
            "checkpoint": policy.file,
            "greedy": request.greedy,
            "epsilon": request.epsilon,
            "seed": request.seed,
            **statistics,
            "episodes": [
                {
                    "seed": episode.seed,
                    "return": episode.episode_return,
                    "length": episode.length,
                    "truncated": episode.truncated,
                    "info": episode.info,
                    "video": videos.get(index),
                }
                for index, episode in enumerate(one.episode for one in played)
            ],
        }
        write_json(folder / "result.json", result)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            run.enjoy.rmdir()  # unless it contains other results
        raise
    except OSError as error:
        say(f"the results were not saved: {folder} cannot be written ({error.strerror or error})")
        return
    told = f"{len(videos)} videos and " if len(videos) > 1 else "a video and " if videos else ""
    say(f"{told}result.json: {os.path.relpath(folder)}")


def _videos(folder: Path, played: Sequence[RecordedEpisode]) -> dict[int, str]:
    """Write videos, and return their file names by index of the episode. Print a line if writing fails."""
    made: dict[int, str] = {}
    with Screening() as screening:
        for number, episode in enumerate(played):
            name = f"episode_{number}.mp4"
            try:
                difference = to_video(episode, folder / name, screening)
            except LabrlError as error:
                say(f"no videos: {error}")
                break
            if difference is not None:
                say(f"  {name} differs from the episode that was played: {difference}")
            made[number] = name
    return made
