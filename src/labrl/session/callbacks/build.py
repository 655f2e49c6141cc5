"""Build the callbacks that a configuration asks for."""

from __future__ import annotations

import os
from typing import Any

from labrl.config.schema import TrialConfig
from labrl.envs.make import backend_class
from labrl.memory.workspace import Workspace
from labrl.session.callbacks.callback import Callback, no_callback
from labrl.session.callbacks.checkpoint import Checkpoint
from labrl.session.callbacks.closer_look import CloserLook, Norms
from labrl.session.callbacks.evaluate import Evaluate
from labrl.session.callbacks.log import LogTraining
from labrl.session.callbacks.profile import Profile
from labrl.session.callbacks.progress import Progress
from labrl.session.callbacks.pruning import SEARCH, ReportToSearch
from labrl.session.callbacks.record import RecordEpisodes
from labrl.session.callbacks.repeats import CheckRepeats
from labrl.session.callbacks.stop import StopEarly
from labrl.session.callbacks.tensorboard import TensorBoard
from labrl.session.evaluation import Quota


def build_callbacks(
    config: TrialConfig, workspace: Workspace, num_ranks: int = 1
) -> tuple[list[Callback], Evaluate, Checkpoint]:
    """Return the callbacks of a session in the order in which they run, and separately two of them,
    `Evaluate` and `Checkpoint`.

    Listeners, including users' callbacks, come first, so that they have started before the first row is
    written. Callbacks that write rows follow. The checkpoint comes last, so that it includes the changes that
    all other callbacks make at its frame. workspace: the workspace of rank 0; num_ranks: number of ranks.
    Raises InputError if a user's callback is not a `Callback`.
    """
    meta = config.meta
    listeners: list[Callback] = [Progress(meta.progress and meta.max_session == 1)]
    if meta.tensorboard:
        listeners.append(TensorBoard(CloserLook() if meta.log == "histograms" else None))
    if meta.profile is not None:
        listeners.append(Profile(meta.profile))
    for name, component in config.callbacks.items():
        if component is None:
            continue
        callback: Any = component.build()
        if not isinstance(callback, Callback):
            raise no_callback(name, component, type(callback))
        listeners.append(callback)
    if backend_class(config.env).is_checked(config.env.config):
        listeners.append(CheckRepeats())
    if search := os.environ.get(SEARCH):  # the session belongs to a trial of a search
        listeners.append(ReportToSearch(search))
    norms = None if meta.log == "scalars" else Norms()
    log = LogTraining(config.log_frames, listeners, norms, config.early_rows and num_ranks == 1)
    quota = Quota(meta.rigorous_eval or 0, meta.eval_episodes, meta.eval_greedy, meta.eval_epsilon)
    evaluate = Evaluate(config.eval_frames, quota, listeners, meta.async_eval)
    each = meta.record_episodes == "each"
    recording = [] if meta.record_episodes == "none" else [RecordEpisodes(evaluate, each)]
    on_crash = meta.on_crash == "save"
    checkpoint = Checkpoint(
        config.log_frames, meta.keep_last, evaluate, workspace, num_ranks, on_crash, config.keep_frames
    )
    callbacks = [*listeners, log, evaluate, StopEarly(meta, evaluate), *recording, checkpoint]
    return callbacks, evaluate, checkpoint
