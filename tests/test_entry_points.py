"""Tests of starting a command: signals while it is imported, exit codes, and what is imported when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import start_labrl

import labrl.cli
import labrl.entry_points
from labrl.errors import INTERRUPTED

SCRIPTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]
del SCRIPTS["labrl-session"]  # not typed by users

PRESSED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
class Pressed:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal({number})
sys.meta_path.insert(0, Pressed())
sys.argv = {overrides}
from {script} import {function}
sys.exit({function}())
"""


def press(number: int, module: str, command: str, *overrides: str, cwd: Path) -> tuple[int, str, str]:
    """Send the signal when `command` imports `module`; return exit code, standard error and output."""
    script, function = SCRIPTS[command].split(":")
    code = PRESSED.format(
        module=module, number=int(number), script=script, function=function, overrides=[command, *overrides]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)
    return done.returncode, done.stderr, done.stdout


@pytest.mark.extended
@pytest.mark.parametrize(
    ("command", "module"),
    [
        *((command, "labrl.cli") for command in SCRIPTS),
        ("labrl", "labrl.commands"),
    ],
)
def test_ctrl_c_during_import_prints_one_line(command: str, module: str, tmp_path: Path) -> None:
    code, error_output, output = press(signal.SIGINT, module, command, cwd=tmp_path)
    assert (code, output) == (INTERRUPTED, "")
    (line,) = error_output.splitlines()
    assert line.startswith(f"{command}: ")


RUN = ("env=cartpole", "wandb=disabled", "env.max_frame=2000", "meta.report=false", "hydra.run.dir=run")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("number", "code", "module"),
    [
        (signal.SIGINT, 130, "torch"),
        (signal.SIGINT, 130, "numpy.matrixlib"),
        (signal.SIGINT, 130, "labrl.trial.train"),
        (signal.SIGTERM, 143, "torch"),
    ],
    ids=str,
)
def test_signal_before_a_run_starts_leaves_no_folder(
    module: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """PyTorch ignores Ctrl-C while it imports NumPy; the run once continued with half of NumPy and failed."""
    exit_code, error_output, output = press(number, module, "labrl", *RUN, cwd=tmp_path)
    assert (exit_code, output, len(error_output.splitlines())) == (code, "", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_run_interrupted_before_its_first_frame_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "pressed.py").write_text(
        "import pathlib, signal\n"
        "from labrl.session.callbacks import Callback\n"
        "class Pressed(Callback):\n"
        "    def __init__(self):\n"
        "        if not pathlib.Path('once').exists():\n"
        "            pathlib.Path('once').touch()\n"
        "            signal.raise_signal(signal.SIGINT)\n"
    )

    run = start_labrl(*RUN, "+callbacks.pressed={_target_: pressed.Pressed}", cwd=tmp_path)
    output, _ = run.communicate()
    assert run.returncode == 130
    (line,) = output.splitlines()
    assert f"+resume={tmp_path / 'run'}" in line
    resumed = start_labrl("+resume=run", cwd=tmp_path)
    output, _ = resumed.communicate()
    assert resumed.returncode == 0, output


def test_each_command_returns_the_exit_code_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = [
        *("main", "list_envs", "send_to_wandb", "list_runs", "replay", "report", "clean", "export_policy")
    ]
    for code, function in enumerate(functions):
        monkeypatch.setattr(labrl.cli, function, lambda code=code: code)
    before = signal.getsignal(signal.SIGINT)
    codes = [getattr(labrl.entry_points, SCRIPTS[command].split(":")[1])() for command in SCRIPTS]
    signal.signal(signal.SIGINT, before)
    assert codes == list(range(len(functions)))


AS_A_COMMAND = """
import sys
import labrl.cli, labrl.entry_points
def main():
    assert "torch" not in sys.modules
    import torch
    return 0
labrl.cli.main = main
sys.exit(labrl.entry_points.main())
"""

AS_A_FUNCTION = """
import sys
import labrl
# Checking a class that is not labrl's needs PyTorch.
own = ["+callbacks.own._target_=own_callback.Own"]
quick = ["env=cartpole", "agent=a2c", "env.max_frame=64", "meta.report=false", "wandb=disabled"]
labrl.train([*quick, *own])
import labrl.experiment.summary
unneeded = {"polars", "wandb", "torch._dynamo", "torch._inductor"} & set(sys.modules)
assert not unneeded, "training needs none of these"
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("code", "variables", "spins"),
    [
        pytest.param(AS_A_COMMAND, {}, "500", id="command"),
        pytest.param(AS_A_FUNCTION, {}, "500", id="function"),
        pytest.param(AS_A_COMMAND, {"OMP_WAIT_POLICY": "ACTIVE"}, None, id="active"),
    ],
)
def test_waiting_openmp_threads_soon_sleep_unless_the_user_chose_otherwise(
    code: str, variables: dict[str, str], spins: str | None, tmp_path: Path
) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))}
    environment = own | variables | {"OMP_DISPLAY_ENV": "VERBOSE"}
    (tmp_path / "own_callback.py").write_text(
        "from labrl.session.callbacks import Callback\nclass Own(Callback):\n    pass\n"
    )
    done = subprocess.run(
        # -P keeps this folder off Python's path, as installed commands do.
        [sys.executable, "-P", "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this build of PyTorch uses another OpenMP library")
    (line,) = {line.strip() for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line}
    count = line.partition("=")[2].strip(" '")
    assert count == spins if spins else int(count) > 10**6  # with OMP_WAIT_POLICY=ACTIVE threads do not sleep


HEAVY = ("torch", "gymnasium", "ale_py", "optuna", "wandb", "matplotlib", "av")

PROGRAM = """
import contextlib, io, json, sys
sys.path.insert(0, {tests!r})
from compositions import remember
import labrl, labrl.cli
remember()
from labrl.errors import InputError
messages, experiments = [], False
for command, code in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as error, contextlib.redirect_stdout(error):
        assert labrl.cli.main(command) == code, command
    messages.append(error.getvalue())
    loaded = [name for name in {heavy} if name in sys.modules]
    assert not loaded, (command, loaded)
    experiments = experiments or "-m" in command
    assert experiments or "numpy" not in sys.modules, command
try:
    labrl.train(["agent.lrr=1"])
except InputError as error:
    messages.append(str(error))
assert "torch" not in sys.modules
print(json.dumps(messages))
"""

ANSWERED = {
    "--help": "env=",
    "--cfg job env=pong": "pong",
    "--info origin env=pong": "agent.lr",
    "agent.lrr=1": "agent.lrr",
    "env=ponk": "env=pong",
    "agent=dqn agent.horizon=5": "agent.horizon",
    "+resume=nowhere": "nowhere",
    "-m seed=0,1 agent.lrr=1": "agent.lrr",
    "-m hydra/sweeper=optuna search=ppoo": "search=ppo",
}


@pytest.mark.extended
def test_help_and_refusals_load_no_heavy_library(tmp_path: Path) -> None:
    program = PROGRAM.format(heavy=HEAVY, tests=str(Path(__file__).parent / "support"))
    codes = [(command.split(), 0 if command.startswith("--") else 2) for command in ANSWERED]
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(codes)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for (command, key), message in zip(
        [*ANSWERED.items(), ("train", "agent.lrr")], json.loads(done.stdout), strict=True
    ):
        assert key in message, (command, message)
    assert not list(tmp_path.glob("runs/*/*"))
