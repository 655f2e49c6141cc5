"""Tests of user-defined parts that cannot be built: one message names the key, and no run folder is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

import labrl
from labrl.cli import main
from labrl.errors import FAILED, WRONG_INPUT

OWN = "env=gymnasium env.import_module=own_parts"
DQN = "agent=dqn env=cartpole env.max_frame=2000"
RANDOM = "agent=random env=cartpole"

CASES = {
    "exploration of a wrong class": (
        f"{DQN} ~agent.exploration +agent.exploration={{_target_:own_parts.Raises}}",
        "agent.exploration own_parts.Raises labrl.agents.parts.exploration.Exploration",
    ),
    "memory of a wrong class": (
        f"{DQN} ~agent.memory +agent.memory={{_target_:own_parts.Raises}}",
        "agent.memory own_parts.Raises labrl.memory.replay.Replay",
    ),
    "optimizer": (
        "env=cartpole ~agent.optimizer +agent.optimizer={_target_:torch.optim.AdamW}",
        "agent.optimizer torch.optim.AdamW 'params' max_grad_norm",
    ),
    "transform": (
        "env=cartpole +transforms.mine={_target_:own_parts.Raises}",
        "transforms.mine own_parts.Raises licence",
    ),
    "agent without methods": (
        f"{RANDOM} agent._target_=own_parts.Empty",
        "agent._target_ own_parts.Empty act observe labrl.agents.agent.Agent",
    ),
    "function that returns no agent": (
        f"{RANDOM} agent._target_=own_parts.no_agent",
        "agent._target_ own_parts.no_agent labrl.agents.agent.Agent",
    ),
    "agent that refuses": (
        f"{RANDOM} agent._target_=own_parts.Refuses",
        "agent own_parts.Refuses only two actions please",
    ),
    "registered environment": (f"{OWN} env.id=own/Raises-v0", "env.id=own/Raises-v0 licence"),
    "environment that exits": (f"{OWN} env.id=own/Exits-v0", "env.id=own/Exits-v0 display"),
    "environment without spaces": (
        "env=gymnasium env.id=null env.name=half env.make={_target_:own_parts.NoSpaces}",
        "env.make own_parts.NoSpaces observation_space",
    ),
    "module that raises on import": (
        "env=gymnasium env.id=own/Raises-v0 env.import_module=breaks_on_import",
        "env.import_module=breaks_on_import ZeroDivisionError",
    ),
}
"""Overrides of the command line, and what the message must contain: key, part, and the part's own error."""

QUIET = ["preset=none", "meta.max_session=1", "meta.progress=false", "wandb=disabled"]


@pytest.mark.parametrize("case", CASES)
def test_failing_part_is_reported_in_one_line_with_its_key(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "breaks_on_import.py").write_text("1 / 0\n")
    overrides, named = CASES[case]
    code = main([*overrides.split(), *QUIET])
    stderr = capsys.readouterr().err
    assert code in (FAILED, WRONG_INPUT), stderr
    assert [word for word in named.split() if word not in stderr] == [], stderr
    assert len(stderr.splitlines()) == 1
    assert not list((tmp_path / "runs").glob("*")), "the run folder was left behind"


def test_memory_mapped_buffer_larger_than_the_disk_leaves_no_run_folder(tmp_path: Path) -> None:
    overrides = [*DQN.split(), "agent.memory.storage=mmap", "agent.memory.capacity=1e13", *QUIET]
    with refused("resources", "agent.memory.capacity"):
        labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()
