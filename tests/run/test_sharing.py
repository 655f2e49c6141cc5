"""A policy in a folder for the Hugging Face hub: `labrl-export --card`, and `labrl.load` of that folder."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from exact_cases import small

import labrl
from labrl.cli import export_policy, main
from labrl.errors import DONE, WRONG_INPUT, InputError, LabrlError
from labrl.run.atomic import write_json

safetensors = pytest.importorskip("safetensors.torch")

RUNS = {
    "gauss": ("ppo", "pendulum", ["transforms/observation=normalize", "meta.max_session=3"]),
    "dqn": ("dqn", "cartpole", []),
    "lstm": ("recurrent_ppo", "cartpole", ["agent/network=lstm"]),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short runs of RUNS."""
    root = tmp_path_factory.mktemp("runs")
    for name, (agent, task, overrides) in RUNS.items():
        own = [f"env.max_frame={4000 if agent == 'ppo' else 400}", f"hydra.run.dir={root / name}"]
        assert labrl.train([*small(agent, task), *overrides, *own]).exit_code == 0
    return root


@pytest.fixture(scope="module")
def card(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The card of the run `gauss`, whose best session also has a video."""
    folder = tmp_path_factory.mktemp("cards") / "gauss"
    session = labrl.load(runs / "gauss", None).session
    video = runs / "gauss" / f"session_{session}" / "videos" / "best.mp4"
    video.parent.mkdir(exist_ok=True)
    video.write_bytes(b"video")
    assert export_policy([str(runs / "gauss"), "--card", str(folder), "--license", "mit"]) == DONE
    return folder


def front_matter(card: Path) -> tuple[dict[str, Any], str]:
    """Return the facts at the top of the page, and the page."""
    _, head, text = (card / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), text


@pytest.mark.extended
@pytest.mark.parametrize("name", RUNS)
def test_card_plays_the_same_episodes_as_the_run(name: str, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "card"
    assert export_policy([str(runs / name), "--card", str(folder), "--checkpoint", "latest"]) == DONE
    shared = labrl.load(folder)
    policy = labrl.load(runs / name, shared.session, "latest")
    assert (shared.frame, shared.config["env"]) == (policy.frame, policy.config["env"])
    played, expected = (one.evaluate(3, seed=1, greedy=True) for one in (shared, policy))
    np.testing.assert_array_equal(played.returns, expected.returns)
    np.testing.assert_array_equal(played.lengths, expected.lengths)


def test_card_has_what_the_hub_reads(card: Path) -> None:
    head, text = front_matter(card)
    assert (head["library_name"], head["license"]) == ("labrl", "mit")
    assert {"reinforcement-learning", "ppo", "Pendulum-v1"} <= set(head["tags"])
    ((model,), (result,)) = head["model-index"], head["model-index"][0]["results"]
    assert model["name"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"]["type"] == "Pendulum-v1"
    (metric,) = result["metrics"]
    assert metric["type"] == "mean_reward"
    assert "3 seeds" in metric["name"]
    assert "Student" in metric["name"]
    value, low, high = (
        float(part.replace(",", ""))
        for part in metric["value"].strip("]").replace(" [", " ").replace(", ", " ").split()
    )
    assert low < value < high
    assert {path.name for path in card.iterdir()} == {
        *("README.md", "config.json", "curve.png", "model.safetensors", "replay.mp4")
    }
    for part in ("curve.png", "transforms/observation=normalize", "labrl ", "torch ", "| session"):
        assert part in text
    assert text.count("finished") >= 3


@pytest.mark.parametrize("verb", ["+enjoy", "+resume", "start_from"])
@pytest.mark.parametrize("file", ["", "model.safetensors"])
def test_card_in_place_of_a_run_is_refused_with_a_way_to_load_it(
    file: str, verb: str, card: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{verb}={card / file}"]) == WRONG_INPUT
    assert f'labrl.load("{card}")' in capsys.readouterr().err


def test_weights_are_tensors_by_name(card: Path) -> None:
    weights = safetensors.load_file(card / "model.safetensors")
    assert any(name.startswith("modules/") and name.endswith("weight") for name in weights)
    assert any(name.startswith("transforms/observation") for name in weights)


def test_commands_and_code_of_the_page_run(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "share.md").read_text()
    (command,) = re.findall(r"^    labrl-export (.*)$", page, re.MULTILINE)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    assert export_policy(command.replace("runs/mine", str(runs / "gauss")).split()) == DONE
    exec(code, {})


def test_command_prints_how_to_upload(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    for _ in range(2):  # a card may be written again
        assert export_policy([str(runs / "dqn"), "--card", str(folder)]) == DONE
        shown = capsys.readouterr().out
        assert "hf upload" in shown
        assert str(folder) in shown
    assert front_matter(folder)[0]["license"] == "other"


def test_code_that_a_card_names_is_not_imported(card: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    copy = shutil.copytree(card, tmp_path / "copy")
    facts = json.loads((copy / "config.json").read_text())
    facts["config"]["agent"]["_target_"] = "evil.Agent"
    write_json(copy / "config.json", facts)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        with pytest.raises(InputError) as caught:
            labrl.load(copy)
    assert caught.value.code == "untrusted"
    assert "evil" not in sys.modules


@pytest.mark.extended
def test_card_of_an_own_agent_has_no_path_of_its_author_and_says_how_to_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[2] / "docs" / "examples"
    run, folder = tmp_path / "run", tmp_path / "mine"
    overrides = [one for one in small("ppo", "cartpole") if one != "agent=ppo"]
    overrides += ["agent=penalty_ppo", "env.max_frame=400", f"hydra.run.dir={run}"]
    assert labrl.train(overrides, examples).exit_code == 0
    assert export_policy([str(run), "--card", str(folder)]) == DONE
    text = (folder / "README.md").read_text()
    assert str(examples.parent) not in text + (folder / "config.json").read_text()
    assert "--config-dir examples" in text
    assert labrl.load(folder).frame, "the author is not asked to trust the card"
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert {"sys.path", "penalty_ppo.PenaltyPPO", "trust=True"} <= set(
        re.findall(r"sys\.path|penalty_ppo\.PenaltyPPO|trust=True", code)
    )
    # In the folder of someone who has downloaded the card and the class.
    (tmp_path / "examples").symlink_to(examples)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(examples)])
    exec(code.replace("episodes=10", "episodes=1"), {})


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_card_is_refused(name: str, card: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(card, tmp_path / "copy")
    (copy / name).write_bytes((copy / name).read_bytes()[:50])
    with pytest.raises(LabrlError) as caught:
        labrl.load(copy)
    assert (caught.value.code, caught.value.key) == ("damaged", str(copy / name))


@pytest.mark.parametrize(("session", "checkpoint", "key"), [(7, "best", "session"), (0, 3, "checkpoint")])
def test_card_has_one_session_and_one_frame(session: int, checkpoint: Any, key: str, card: Path) -> None:
    with pytest.raises(InputError) as caught:
        labrl.load(card, session, checkpoint)
    assert (caught.value.code, caught.value.key) == ("not-found", key)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--card", "{used}"], "--card"),
        (["--card", "{file}"], "--card"),
        (["--card", "/proc/card"], "--card"),
        (["--card", "new", "--sampled"], "--sampled"),
        (["--card", "new", "--format", "onnx"], "--format"),
        (["--license", "mit"], "--license"),
        (["--card", "new", "--session", "9"], "session"),
    ],
)
def test_wrong_options_are_refused(
    runs: Path,
    options: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    places = {"used": str(tmp_path / "used"), "file": str(tmp_path / "used" / "notes.txt")}
    assert export_policy([str(runs / "dqn"), *(option.format(**places) for option in options)]) == WRONG_INPUT
    said = capsys.readouterr().err
    assert named in said
    assert len(said.strip().splitlines()) == 1
    assert (tmp_path / "used" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_missing_package_is_named(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert export_policy([str(runs / "dqn"), "--card", str(tmp_path / "new")]) == WRONG_INPUT
    said = capsys.readouterr().err
    assert "safetensors" in said
    assert "[share]" in said
