"""`labrl-replay`: play a recorded episode again, as a check, in a window, or as a video."""

from __future__ import annotations

import os

from labrl.config.compose import prepare
from labrl.errors import DONE, FAILED, InputError, LabrlError
from labrl.play.options import ReplayRequest
from labrl.play.window import Window, WindowClosedError
from labrl.run.episodes import recorded_names
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.episodes import replayed
from labrl.trial.find import find_run
from labrl.trial.summary import say
from labrl.trial.videos import Screening, check, own_modules, recorded_episode, to_video


def replay(request: ReplayRequest) -> int:
    """Play back a recorded episode as a video or in a window, and print whether it equals the record.

    If the episode cannot be shown, prints a line with the reason and still checks the episode. Returns the
    exit code: 1 if the episode differs. Raises InputError if there is no such run or episode.
    """
    window = Window() if request.render == "human" else None
    run = find_run(request.which, [], "replay")
    prepare(own_modules(run))
    session = _session(run, request)
    name = f"{request.episode}.npz"
    episode = recorded_episode(run, session.episodes / name)
    say(
        f"Episode {request.episode} of session {session.index}, {episode.source} at frame {episode.frame:,}: "
        f"return {episode.episode_return:g} in {episode.length:,} steps, seed {episode.seed}"
    )
    target = session.videos / f"{request.episode}.mp4"
    try:
        with Screening() as screening:
            if window is not None:
                env = screening.environment(episode)
                show = window.show
                difference = replayed(episode, env, lambda _: show(env.picture(), env.frames_per_second))
            else:
                difference = to_video(episode, target, screening)
                say(f"video: {os.path.relpath(target)}")
    except WindowClosedError:
        return DONE
    except LabrlError as error:
        say(f"no {'video' if window is None else 'images'}: {error}")
        difference = check(episode)
    finally:
        if window is not None:
            window.close()
    if difference is not None:
        say(f"the episode differs from the record: {difference} (another version of the environment?)")
        return FAILED
    say("identical to the record: return, length and last observation are equal")
    return DONE


def _session(run: Run, request: ReplayRequest) -> RunSession:
    """Return the session that recorded the requested episode. Raises InputError, which lists the available
    episodes, if no session did."""
    wanted = run.sessions if request.session is None else [run.choose_session(request.session)]
    for session in wanted:
        if (session.episodes / f"{request.episode}.npz").exists():
            return session
    names = list(dict.fromkeys(name for session in wanted for name in recorded_names(session.episodes)))
    if not names:
        fix = "A run records its best and its latest episode when it evaluates, every meta.eval_frequency "
        fix += "frames, unless meta.record_episodes=none"
        raise InputError.not_found(run.path, "it has no recorded episode", fix)
    more = "" if any(name.isdigit() for name in names) else "; meta.record_episodes=each records more"
    why = f"the recorded episodes of {run.path} are {', '.join(names)}{more}"
    raise InputError.not_found(f"episode={request.episode}", why)
