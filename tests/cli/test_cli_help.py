"""Tests of help, `--info origin` and `labrl-envs`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labrl.cli import list_envs, main
from labrl.config import config_folder
from labrl.envs.games import games
from labrl.errors import DONE, WRONG_INPUT

CONFIGS = config_folder()


def test_help_names_every_option_of_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    parts = [f"agent/{part}" for part in ("memory", "exploration", "value", "target", "noise")]
    for group in ("agent", "agent/network", *parts, "env", "meta"):
        for file in (CONFIGS / group).glob("*.yaml"):
            assert file.stem in text or file.stem == "atari"
    (line,) = (line for line in text.splitlines() if line.strip().startswith("search "))
    offered = set(line.split(":")[0].replace(",", "").split()[1:])
    assert offered == {file.stem for file in (CONFIGS / "search").glob("*.yaml")} - {"none"}
    assert "labrl-envs" in text


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("labrl ")


def test_info_origin_prints_the_files_that_set_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--info", "origin", "agent.gamma", "env=lunar_lander"]) == DONE
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["agent.gamma", "0.99", f"{CONFIGS / 'agent' / 'ppo.yaml'}"],
        ["agent.gamma", "0.999", f"{CONFIGS / 'preset' / 'lunar_lander.yaml'}, section ppo"],
    ]
    for asked in (["--info=origin", "env=pong"], ["-i", "origin", "agent", "env=pong"]):
        assert main(asked) == DONE
        assert "agent.clip_range " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["env=ponk"], "env=pong"),
        (["-m", "seed=1,2"], "-m"),
        (["agent=ppo,a2c"], "agent=ppo,a2c"),
    ],
)
def test_info_origin_rejects_anything_but_a_single_new_run(
    overrides: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for asked in (["origin"], ["origin", "agent.gamma"]):
        assert main(["--info", *asked, *overrides]) == WRONG_INPUT
        out, error = capsys.readouterr()
        assert out == ""
        assert named in error
        assert "Traceback" not in error
    assert os.listdir(tmp_path) == []


def test_labrl_envs_lists_every_environment_with_its_kind_and_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_envs([]) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["cartpole", "gymnasium", "CartPole-v1"] in rows
    assert ["ms_pacman", "atari", "ms_pacman"] in rows
    assert {game for game, kind, _ in rows if kind == "atari"} == set(games())
    assert rows[-1][2].endswith("env.id=<id>")
    assert list_envs(["pinball"]) == 0
    assert capsys.readouterr().out.split() == ["video_pinball", "atari", "video_pinball"]


def test_labrl_envs_rejects_text_that_no_name_contains(capsys: pytest.CaptureFixture[str]) -> None:
    for part, hint in {"cartpol3": "cartpole?", "nosuchgame": "labrl-envs"}.items():
        assert list_envs([part]) == WRONG_INPUT
        printed = capsys.readouterr()
        assert printed.out == ""
        assert part in printed.err
        assert hint in printed.err
