"""`labrl +enjoy`: play what a run has learned, and leave its records as they are."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labrl.agents.random import check_uniform
from labrl.config.compose import prepare, resolve
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv
from labrl.envs.watch import Watched, watch
from labrl.errors import DONE, DamagedFileError, InputError, LabrlError
from labrl.session.episodes import episode_statistics
from labrl.session.player import Player
from labrl.storage.atomic import write_json
from labrl.storage.checkpoint import Checkpoint, CheckpointStore
from labrl.storage.episodes import RecordedEpisode
from labrl.storage.run_folder import RunFolder, SessionFolder
from labrl.trial.devices import available_cpus, keep_freed_memory
from labrl.trial.past import Past, choices, chosen, described, find, report_damages
from labrl.trial.playback import Screening, Window, WindowClosedError, to_video
from labrl.trial.showing import EnjoyRequest
from labrl.trial.summary import say

AT_ONCE = 16
"""Most environments that play side by side."""


def enjoy(request: EnjoyRequest) -> int:
    """Play, print returns and lengths, write videos and `result.json` below `enjoy/` of the run folder.

    Returns the exit code. Raises InputError for a run, session, checkpoint or display that is not there.
    """
    window = Window() if request.render == "human" else None
    run = find(request.which, request.choices, "enjoy")
    past = Past.of(run)
    _check_agreement(past, request)
    prepare(past.command.config_dir)
    report_damages(run)
    config = resolve(_as_it_stands(past))
    if request.greedy is None:
        request = dataclasses.replace(request, greedy=config.meta.eval_greedy)
    if request.epsilon is None:
        request = dataclasses.replace(request, epsilon=config.meta.eval_epsilon)
    session = _session(run, request.session)
    checkpoint, name = _checkpoint(session, request.checkpoint)
    # Small products are faster on one thread, as in training.
    torch.set_num_threads(1)
    keep_freed_memory()
    say(
        f"{run.path.name}: the {name} checkpoint of session {session.index}, frame {checkpoint.frame:,}, "
        f"{'its best actions' if request.greedy else 'by its policy'}"
        + (f", random ones with probability {request.epsilon:g}" if request.epsilon else "")
    )
    try:
        played = _play(config, session, checkpoint, request, window)
    except WindowClosedError:
        say("the window was closed")
        return DONE
    _tell(played)
    folder = run.enjoy / _folder_name(session, checkpoint, request)
    _write(folder, run, session, checkpoint, request, played)
    return DONE


def _as_it_stands(past: Past) -> Mapping[str, Any]:
    """The configuration as `config.yaml` has it now, its edits said."""
    plain = past.usable()
    for change in past.changes(plain):
        say(f"From {past.folder.config}, which was edited: {described(change)}")
    return plain


def _play(
    config: TrialConfig,
    session: SessionFolder,
    checkpoint: Checkpoint,
    request: EnjoyRequest,
    window: Window | None,
) -> list[RecordedEpisode]:
    """The episodes in the order of their numbers."""
    threads = available_cpus()
    shown: Watched | None = None
    try:
        shown = watch(config.env) if window is not None else None
    except LabrlError as error:
        say(f"no pictures: {error}")
    if shown is not None:
        env = VectorEnv(shown, 0)
    else:
        env = make_env(config.env, 0, threads, evaluation=True, num_envs=min(request.episodes, AT_ONCE))

    def show() -> None:
        nonlocal shown
        if window is None or shown is None:
            return
        try:
            window.show(shown.picture(), shown.frames_per_second)
        except LabrlError as error:
            shown = None
            say(f"no pictures: {error}")

    player, found = None, {}
    try:
        if request.epsilon:
            check_uniform(env.action_space, f"epsilon={request.epsilon:g}")
        greedy, epsilon = bool(request.greedy), request.epsilon or 0.0
        player = Player(config, session.index, checkpoint, env, threads, greedy, epsilon)
        for number, played in player.play(env, request.episodes, request.seed, show):
            found[number] = played.recorded(config.env.plain())
            episode = played.episode
            cut = ", cut by a time limit" if episode.truncated else ""
            say(f"  episode {number}: return {episode.episode_return:g}, {episode.length:,} steps{cut}")
    finally:
        env.close()
        if player is not None:
            player.agent.close()
        if window is not None:
            window.close()
    return [found[number] for number in sorted(found)]


def _check_agreement(past: Past, request: EnjoyRequest) -> None:
    """Raises InputError where a run that was named is not the one that the other words describe."""
    made = chosen(past.command)
    for group, option in choices(request.choices).items():
        if made.get(group) != option:
            raise InputError(
                f"{group}={option}: {past.folder.path} was run with {group}={made.get(group)}, which +enjoy "
                f"cannot change. Leave out {group}={option}, or name another run.",
                code="contradiction",
                key=group,
            )


def _session(run: RunFolder, wanted: int | None) -> SessionFolder:
    """The one that is wanted, or that with the highest evaluation score. Raises InputError."""
    sessions = run.sessions()
    if not sessions:
        raise InputError(
            f"{run.path} has no session yet, so nothing was learned", code="not-found", key=str(run.path)
        )
    if wanted is None:
        return max(sessions, key=lambda session: (_best_score(session), -session.index))
    for session in sessions:
        if session.index == wanted:
            return session
    numbers = ", ".join(str(session.index) for session in sessions)
    raise InputError(
        f"session={wanted}: {run.path} has the sessions {numbers}", code="not-found", key="session"
    )


def _best_score(session: SessionFolder) -> float:
    """The highest in the evaluation table, which a running session may be writing to."""
    best = -math.inf
    try:
        with open(session.eval_csv, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                try:
                    score = float(row.get("return_mean") or "nan")
                except ValueError:  # half a number
                    continue
                best = max(best, score) if score == score else best
    except OSError:
        pass
    return best


def _checkpoint(session: SessionFolder, wanted: str) -> tuple[Checkpoint, str]:
    """The checkpoint and what to call it. Raises InputError with those that there are, DamagedFileError where
    none of them is whole."""
    kinds = {"default": ("best", "latest")}.get(wanted, (wanted,))
    store = CheckpointStore(session.checkpoints, keep_last=1)
    for _ in range(3):  # a running session may replace them while they are read
        store = CheckpointStore(session.checkpoints, keep_last=1)
        for kind in kinds:
            load = {"best": store.best, "latest": store.latest}.get(kind)
            found = load() if load is not None else store.at(int(kind))
            if found is not None:
                return found, kind if load is not None else "chosen"
    frames, best = store.frames(), store.best_frame()
    there = [f"{frame}" for frame in frames] + ([f"{best} (best)"] if best is not None else [])
    if store.broken:
        raise DamagedFileError(
            f"session {session.index} has no whole checkpoint: {store.told_broken}", key=str(store.folder)
        )
    if not there:
        raise InputError(
            f"session {session.index} of {session.path.parent} has no checkpoint yet: the first is written "
            "after meta.log_frequency frames",
            code="not-found",
            key=str(session.checkpoints),
        )
    raise InputError(
        f"checkpoint={wanted}: session {session.index} of {session.path.parent} has checkpoints of frames "
        f"{', '.join(there)} (a larger meta.keep_last keeps more)",
        code="not-found",
        key="checkpoint",
    )


def _tell(played: Sequence[RecordedEpisode]) -> None:
    plural = "" if len(played) == 1 else "s"
    statistics = _statistics(played)
    of_return = f" ± {statistics['return_std']:,.2f}" if plural else ""
    of_length = f" ± {statistics['length_std']:,.1f}" if plural else ""
    say(
        f"{len(played)} episode{plural}: return {statistics['return_mean']:,.2f}{of_return}, "
        f"length {statistics['length_mean']:,.1f}{of_length} steps"
    )


def _statistics(played: Sequence[RecordedEpisode]) -> dict[str, float]:
    """Means and population standard deviations."""
    return {**episode_statistics(played), "length_std": float(np.std([one.length for one in played]))}


def _folder_name(session: SessionFolder, checkpoint: Checkpoint, request: EnjoyRequest) -> str:
    parts = [f"session_{session.index}", f"frame_{checkpoint.frame:012d}"]
    parts += ["greedy"] if request.greedy else []
    parts += [f"epsilon_{request.epsilon:g}"] if request.epsilon else []
    parts += [f"seed_{request.seed}"] if request.seed else []
    return "_".join(parts)


def _write(
    folder: Path,
    run: RunFolder,
    session: SessionFolder,
    checkpoint: Checkpoint,
    request: EnjoyRequest,
    played: Sequence[RecordedEpisode],
) -> None:
    """Replace what the same request wrote before. What cannot be written is told in one line."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        wanted = request.videos
        count = len(played) if wanted is None and request.render == "video" else wanted or 0
        videos = _videos(folder, played[:count])
        result: dict[str, Any] = {
            "format_version": 1,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "session": session.index,
            "frame": checkpoint.frame,
            "checkpoint": checkpoint.path.name,
            "greedy": request.greedy,
            "epsilon": request.epsilon,
            "seed": request.seed,
            **_statistics(played),
            "episodes": [
                {
                    "seed": episode.seed,
                    "return": episode.episode_return,
                    "length": episode.length,
                    "truncated": episode.truncated,
                    "video": videos.get(number),
                }
                for number, episode in enumerate(played)
            ],
        }
        write_json(folder / "result.json", result)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            run.enjoy.rmdir()  # unless it holds what was played before
        raise
    except OSError as error:
        say(f"nothing was kept: {folder} cannot be written ({error.strerror or error})")
        return
    told = f"{len(videos)} videos and " if len(videos) > 1 else "a video and " if videos else ""
    say(f"{told}result.json: {os.path.relpath(folder)}")


def _videos(folder: Path, played: Sequence[RecordedEpisode]) -> dict[int, str]:
    """File names by number of the episode; one line where there can be none."""
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
                say(f"  {name} is not the episode that was played: {difference}")
            made[number] = name
    return made
