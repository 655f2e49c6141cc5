"""The commands of docs/enjoy.md do, one after the other, what the page says."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from labrl.cli import main, replay
from labrl.trial.showing import EnjoyRequest

PAGE = (Path(__file__).parent.parent / "docs" / "enjoy.md").read_text()


def test_the_commands_work_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line) for line in re.findall(r"^    (labrl.*)$", PAGE, re.MULTILINE)]
    assert [command[0] for command in commands] == ["labrl", "labrl", "labrl", "labrl-replay"]
    for program, *words in commands:
        # The shorter, the sooner; a budget of 20,000 frames is for people.
        words = [word.replace("max_frame=20000", "max_frame=2048") for word in words]
        code = replay(words) if program == "labrl-replay" else main(words)
        assert code == 0, capsys.readouterr().err
    assert "result.json: runs/mine/enjoy/session_0_frame_" in capsys.readouterr().out
    assert len(list(Path("runs/mine/enjoy").glob("session_0_frame_*/*.mp4"))) == 3 + 1


def test_the_table_names_every_word() -> None:
    words = set(re.findall(r"^\| `(\w+)=", PAGE, re.MULTILINE))
    assert words == {field.name for field in fields(EnjoyRequest)} - {"which", "choices"}
