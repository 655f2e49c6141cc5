"""Callbacks of a session: logging, evaluation, checkpoints, progress, and callbacks written by users."""

from labrl.session.callbacks.callback import Callback, check_callbacks

__all__ = ["Callback", "check_callbacks"]
