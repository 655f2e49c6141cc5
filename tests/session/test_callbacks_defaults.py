"""Tests of the default callbacks of a session and their order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.memory.workspace import Workspace
from labrl.session.callbacks import Callback
from labrl.session.callbacks.build import build_callbacks


class Mine(Callback):
    """A user's own callback."""


class NotOne:
    """A class that is not a callback."""


def config(**callbacks: Component | None) -> Any:
    composed = resolve(compose(["preset=none", "meta.tensorboard=true"]))
    return dataclasses.replace(composed, callbacks=callbacks)


def names(config: Any) -> list[str]:
    return [type(callback).__name__ for callback in build_callbacks(config, Workspace())[0]]


def test_listeners_come_first_and_checkpoint_last() -> None:
    mine = Component("test_callbacks_defaults.Mine", {})
    assert names(config(mine=mine, off=None)) == [
        *("Progress", "TensorBoard", "Mine"),
        *("LogTraining", "Evaluate", "StopEarly", "RecordEpisodes", "Checkpoint"),
    ]


def test_error_for_wrong_callback_names_its_full_key() -> None:
    wrong = Component("test_callbacks_defaults.NotOne", {})
    with pytest.raises(InputError) as refused:
        build_callbacks(config(wrong=wrong), Workspace())
    assert (refused.value.code, refused.value.key) == ("target", "callbacks.wrong._target_")
