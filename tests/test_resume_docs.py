"""The commands of docs/resume.md do, one after the other, what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from labrl.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "resume.md").read_text()
QUIET = ["meta.progress=false", "meta.tensorboard=false"]


def test_the_commands_work_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    labrl (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert main([*shlex.split(command), *QUIET]) == 0, capsys.readouterr().err
    assert "session 1" in capsys.readouterr().out


def test_the_table_of_the_page_is_what_one_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["env.max_frame=2048", "hydra.run.dir=run", *QUIET]) == 0
    capsys.readouterr()
    assert main(["+resume=run", "env.max_frame=4096"]) == 2
    said = [line.removeprefix("labrl:").split() for line in capsys.readouterr().err.splitlines()]
    (shown,) = re.findall(r"^    key +then +now\n    (.*)$", PAGE, re.MULTILINE)
    assert shown.split() in said
