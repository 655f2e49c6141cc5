"""The commands before they are loaded."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import labrl.cli
import labrl.start

SCRIPTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]

PRESSED = """
import sys
class Pressed:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
from {script} import {function}
sys.exit({function}())
"""


@pytest.mark.parametrize("command", SCRIPTS)
@pytest.mark.parametrize("module", ["labrl.cli", "labrl.lab.job"])
def test_ctrl_c_while_a_command_is_loaded_is_one_line(command: str, module: str) -> None:
    script, function = SCRIPTS[command].split(":")
    code = PRESSED.format(module=module, script=script, function=function)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (130, f"{command}: interrupted\n", "")


def test_each_command_hands_back_the_exit_code_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = ("main", "list_envs", "send_to_wandb", "list_runs", "replay", "report")
    for code, function in enumerate(functions):
        monkeypatch.setattr(labrl.cli, function, lambda code=code: code)
    codes = [getattr(labrl.start, SCRIPTS[command].split(":")[1])() for command in SCRIPTS]
    assert codes == list(range(len(functions)))
