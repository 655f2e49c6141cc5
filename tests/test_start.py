"""The commands before they are loaded."""

from __future__ import annotations

import os
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


AS_A_COMMAND = """
import sys
import labrl.cli, labrl.start
def main():
    assert "torch" not in sys.modules
    import torch
    return 0
labrl.cli.main = main
sys.exit(labrl.start.main())
"""

AS_A_FUNCTION = """
import labrl
labrl.train(["env=cartpole", "agent=random", "env.max_frame=10", "meta.report=false", "wandb=disabled"])
"""


@pytest.mark.parametrize("code", [AS_A_COMMAND, AS_A_FUNCTION])
@pytest.mark.parametrize(
    ("said", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "123"}, "123"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_that_wait_sleep_soon_unless_the_user_has_said_how_they_wait(
    code: str, said: dict[str, str], spins: str | None, tmp_path: Path
) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))}
    told = own | said | {"OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=told, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch has another OpenMP here")
    (line,) = {line.strip() for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line}
    count = line.partition("=")[2].strip(" '")
    assert count == spins if spins else int(count) > 10**6  # active threads do not sleep
