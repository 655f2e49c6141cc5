"""Tests of the list of Atari games: it is complete, and reading it imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import ale_py  # noqa: F401  (registers the games)
import gymnasium
import pytest

from labrl.envs.games import games


def test_every_game_registered_by_the_ale_is_listed() -> None:
    registered = {spec.kwargs["game"] for id, spec in gymnasium.registry.items() if id.startswith("ALE/")}
    assert set(games()) == registered
    assert games() == sorted(games())
    assert {"pong", "ms_pacman", "breakout"} < set(games())


@pytest.mark.extended
def test_listing_the_games_imports_nothing_heavy() -> None:
    program = (
        "import sys; from labrl.envs.games import games; assert games();"
        "print([m for m in ('ale_py', 'gymnasium', 'numpy', 'torch', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
