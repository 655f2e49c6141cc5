"""Tests of `start_from`, which initializes a run with the weights of another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from exact_cases import QUIET, differences, small
from refusals import refused

import labrl
from labrl.analysis.report.build import build
from labrl.cli import main
from labrl.errors import InputError

pytestmark = pytest.mark.extended

PPO = small("ppo", "cartpole", narrow=False)

SOURCES = {
    "ppo": [*PPO, "meta.max_session=2"],
    "dqn": small("dqn", "cartpole", narrow=False),
    "sac": [*small("sac", "pendulum", narrow=False), "transforms/observation=normalize"],
    "td3": small("td3", "pendulum", narrow=False),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train one run for each of SOURCES, and return the folder of the runs."""
    path = tmp_path_factory.mktemp("sources")
    for name, overrides in SOURCES.items():
        assert labrl.train([*overrides, "env.max_frame=800", f"hydra.run.dir={path / name}"]).exit_code == 0
    return path


def weights(run: Path, session: int = 0, checkpoint: str | int = "latest") -> dict[str, torch.Tensor]:
    policy = labrl.load(run, session, checkpoint)
    return {
        f"{network}.{name}": tensor.clone()
        for network, module in policy.networks.items()
        for name, tensor in module.state_dict().items()
    }


def frozen(overrides: list[str]) -> list[str]:
    """Add overrides with which a run does not change its weights."""
    return [*overrides, "agent.lr=0", "env.max_frame=400"]


def trained(folder: Path, overrides: list[str], *more: str) -> Path:
    """Train a run in the folder, check that it succeeded, and return the folder."""
    result = labrl.train([*overrides, *more, f"hydra.run.dir={folder}"])
    assert result.exit_code == 0
    return folder


@pytest.mark.parametrize("name", SOURCES)
def test_agent_starts_with_the_weights_of_the_run(name: str, runs: Path, tmp_path: Path) -> None:
    source, overrides = runs / name, frozen(SOURCES[name])
    run = trained(tmp_path / "run", overrides, f"start_from={source}", "start_from.session=0")
    before, after = weights(source, 0, "best"), weights(run)
    followers = labrl.load(run, checkpoint="latest").agent.followers()
    for key, tensor in after.items():
        network, _, parameter = key.partition(".")
        assert torch.equal(tensor, before[f"{followers.get(network, network)}.{parameter}"]), key
    facts = json.loads((run / "provenance.json").read_text())["start_from"]
    assert facts["run"] == str(source)
    assert facts["begun_anew"] == facts["unused"] == []
    frame = labrl.load(source).frame
    assert facts["sessions"]["0"]["frame"] == frame
    saved = source / "session_0" / "checkpoints" / f"frame_{frame:012d}"
    manifest = json.loads((saved / "manifest.json").read_text())
    assert facts["sessions"]["0"]["sha256"] == manifest["files"]["state.pt"]["sha256"]


def test_other_keys_of_start_from_are_refused_without_a_run(runs: Path, tmp_path: Path) -> None:
    """Regression test: such a key was ignored."""
    lone = [*SOURCES["ppo"], "start_from.session=0", f"hydra.run.dir={tmp_path / 'run'}"]
    for overrides in (lone, [f"+resume={runs / 'ppo'}", "start_from.session=0", "env.max_frame=1600"]):
        with refused("contradiction", "start_from.session", "start_from.run"):
            labrl.train(overrides)
    labrl.train([*lone, "start_from.run=null"])  # null is accepted as a value in a grid of runs


def test_statistics_of_normalized_observations_are_taken(runs: Path, tmp_path: Path) -> None:
    overrides = frozen(SOURCES["sac"])
    run = trained(tmp_path / "run", overrides, f"start_from={runs / 'sac'}")
    before = labrl.load(runs / "sac").transforms.part("observation")[1]["observation"]["count"]
    after = labrl.load(run, checkpoint="latest").transforms.part("observation")[1]["observation"]["count"]
    assert before < after <= before + 420
    for name, option in (("sac", "none"), ("td3", "normalize")):
        other = [*SOURCES[name], f"transforms/observation={option}", f"start_from={runs / name}"]
        with refused(None, "start_from.run"):
            labrl.train([*other, f"hydra.run.dir={tmp_path / 'refused'}"])
        assert not (tmp_path / "refused").exists()


def test_each_session_may_start_with_the_session_of_the_same_index(runs: Path, tmp_path: Path) -> None:
    overrides = frozen(SOURCES["ppo"])
    same = ["start_from.session=same"]
    run = trained(tmp_path / "run", overrides, f"start_from={runs / 'ppo'}", *same)
    for session in (0, 1):
        before, after = weights(runs / "ppo", session, "best"), weights(run, session)
        assert all(torch.equal(after[key], before[key]) for key in after)
    with refused(None, "start_from.session"):
        labrl.train([*overrides, "meta.max_session=3", f"start_from={runs / 'ppo'}", *same])


def test_weights_of_other_shapes_are_refused_or_initialized_anew(runs: Path, tmp_path: Path) -> None:
    overrides = [*PPO, "agent.network.policy_head=[8]", f"start_from={runs / 'ppo'}"]
    with pytest.raises(InputError) as error:
        labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'refused'}"])
    assert (error.value.code, error.value.key) == ("contradiction", "start_from.run")
    for part in ("policy_head.0.weight", "start_from.partial=true", "8 x 64", "2 x 64"):
        assert part in str(error.value)
    assert not (tmp_path / "refused").exists()
    run = trained(tmp_path / "run", [*frozen(overrides), "start_from.partial=true", "start_from.session=0"])
    before, after = weights(runs / "ppo", 0, "best"), weights(run)
    facts = json.loads((run / "provenance.json").read_text())["start_from"]
    initialized = set(facts["begun_anew"])
    assert initialized
    assert all("policy_head" in name for name in initialized | set(facts["unused"]))
    assert set(facts["taken"]) | initialized == set(after)
    assert all(torch.equal(after[name], before[name]) for name in facts["taken"])
    build(run)
    assert "policy_head.0.weight" in (run / "report.html").read_text()


def test_parts_of_a_network_can_be_taken_alone(runs: Path, tmp_path: Path) -> None:
    overrides = [*frozen(PPO), f"start_from={runs / 'ppo'}", "start_from.session=1"]
    run = trained(tmp_path / "run", [*overrides, "start_from.parts=torso"])
    facts = json.loads((run / "provenance.json").read_text())["start_from"]
    assert {name.split(".")[1] for name in facts["taken"]} == {"policy_torso", "value_torso"}
    assert {name.split(".")[1] for name in facts["begun_anew"]} == {"policy_head", "value_head"}
    before, after = weights(runs / "ppo", 1, "best"), weights(run)
    assert {name for name in after if torch.equal(after[name], before[name])} == set(facts["taken"])


def test_resume_is_exact_and_does_not_need_the_source_run(runs: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(runs / "sac", source)
    overrides = [*SOURCES["sac"], f"start_from={source}"]
    uninterrupted = trained(tmp_path / "uninterrupted", overrides, "env.max_frame=800")
    resumed = trained(tmp_path / "resumed", overrides, "env.max_frame=400")
    shutil.rmtree(source)
    assert main([f"+resume={resumed}", "env.max_frame=800"]) == 0
    assert differences(resumed, uninterrupted) == []


def test_session_killed_before_its_first_checkpoint_starts_the_same_way(runs: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(runs / "ppo", source)
    overrides = [*PPO, "env.max_frame=800", f"start_from={source}"]
    uninterrupted = trained(tmp_path / "uninterrupted", overrides)
    killed = trained(tmp_path / "killed", overrides)
    shutil.rmtree(source)
    # Remove what a session killed before its first checkpoint has not written.
    for path in ("checkpoints", "train.csv", "eval.csv", "result.json", "progress.json", "episodes"):
        place = killed / "session_0" / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    info = json.loads((killed / "run.json").read_text())
    (killed / "run.json").write_text(json.dumps({**info, "status": "running", "sessions": []}))
    assert main([f"+resume={killed}"]) == 0
    assert differences(killed, uninterrupted) == []
    (state,) = (killed / "session_0" / "start").glob("*/state.pt")
    state.write_bytes(b"")
    shutil.rmtree(killed / "session_0" / "checkpoints")
    (killed / "run.json").write_text(json.dumps({**info, "status": "running", "sessions": []}))
    assert main([f"+resume={killed}"]) == 2


@pytest.mark.parametrize(
    ("override", "code", "key"),
    [
        ("start_from=nowhere", "not-found", "nowhere"),
        ("start_from.checkpoint=77", "not-found", "start_from.checkpoint"),
        ("start_from.session=9", "not-found", "start_from.session"),
        ("start_from.parts=torsos", "unknown-option", "start_from.parts"),
        ("start_from.checkpoint=first", "unknown-option", "start_from.checkpoint"),
        ("agent=dqn", "contradiction", "start_from.run"),
        ("agent=random", "unsupported", "start_from.run"),
        ("env=acrobot", "contradiction", "start_from.run"),
    ],
)
def test_wrong_start_from_is_refused_with_its_key(
    override: str, code: str, key: str, runs: Path, tmp_path: Path
) -> None:
    overrides = ["agent=ppo", "env=cartpole", *QUIET, f"start_from={runs / 'ppo'}", override]
    with pytest.raises(InputError) as error:
        labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'x'}"])
    assert error.value.code == code
    assert (error.value.key or "").endswith(key)
    assert not (tmp_path / "x").exists()
