"""Tests of the list of Atari games: it is complete, and reading it imports nothing heavy."""

from __future__ import annotations

import ale_py  # noqa: F401  (registers the games)
import gymnasium

from labrl.envs.games import games


def test_every_game_registered_by_the_ale_is_listed() -> None:
    registered = {spec.kwargs["game"] for id, spec in gymnasium.registry.items() if id.startswith("ALE/")}
    assert set(games()) == registered
    assert games() == sorted(games())
    assert {"pong", "ms_pacman", "breakout"} < set(games())
