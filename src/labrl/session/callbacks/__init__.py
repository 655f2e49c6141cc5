"""What hangs on a session's clock: logging, evaluation, checkpoints, progress, and a user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labrl.errors import InputError
from labrl.session.callbacks.callback import Callback

if TYPE_CHECKING:
    from labrl.config.component import Component
    from labrl.config.schema import TrialConfig

__all__ = ["Callback", "check_callbacks", "default_callbacks"]


def default_callbacks(config: TrialConfig) -> list[Callback]:
    """The callbacks of a session in the order in which they run.

    Listeners first, a user's own among them, so that they have started before the first row is written;
    then those who write rows; the checkpoint last, so that it holds what all others did at its frame.
    Raises InputError if a user's callback is not a `Callback`.
    """
    from labrl.session.callbacks.checkpoint import Checkpoint
    from labrl.session.callbacks.closer_look import CloserLook, LastGradients
    from labrl.session.callbacks.evaluate import Evaluate
    from labrl.session.callbacks.log import LogTraining
    from labrl.session.callbacks.progress import Progress
    from labrl.session.callbacks.record import RecordEpisodes
    from labrl.session.callbacks.search import search_callbacks

    meta = config.meta
    listeners: list[Callback] = [Progress(meta.progress and meta.max_session == 1, config.log_frames)]
    if meta.tensorboard:
        from labrl.session.callbacks.tensorboard import TensorBoard

        listeners.append(TensorBoard(CloserLook() if meta.log == "histograms" else None))
    if meta.profile is not None:
        from labrl.session.callbacks.profile import Profile

        listeners.append(Profile(meta.profile))
    listeners += [*_user_callbacks(config), *search_callbacks()]
    evaluate = Evaluate(
        config.eval_frames,
        meta.rigorous_eval or 0,
        listeners,
        meta.eval_episodes,
        meta.eval_greedy,
        beside=meta.async_eval,
        epsilon=meta.eval_epsilon,
    )
    recording: list[Callback] = []
    if meta.record_episodes != "none":
        recording.append(RecordEpisodes(evaluate, each=meta.record_episodes == "each"))
    return [
        *listeners,
        LogTraining(config.log_frames, listeners, None if meta.log == "scalars" else LastGradients()),
        evaluate,
        *recording,
        Checkpoint(config.log_frames, meta.keep_last, evaluate, meta.on_crash == "save"),
    ]


def check_callbacks(config: TrialConfig) -> None:
    """Raises InputError if a user's class is not a `Callback`, before anything is built."""
    for name, component in config.callbacks.items():
        if component is None:
            continue
        target = component.load()
        if isinstance(target, type) and not issubclass(target, Callback):
            raise _no_callback(name, component, target)


def _no_callback(name: str, component: Component, kind: type) -> InputError:
    return InputError(
        f"callbacks.{name}._target_: {component.target} gives a {kind.__name__}, which must be a subclass of "
        "labrl.session.callbacks.Callback",
        code="target",
        key=f"callbacks.{name}._target_",
    )


def _user_callbacks(config: TrialConfig) -> list[Callback]:
    built = []
    for name, component in config.callbacks.items():
        if component is None:
            continue
        callback: Any = component.build()
        if not isinstance(callback, Callback):
            raise _no_callback(name, component, type(callback))
        built.append(callback)
    return built
