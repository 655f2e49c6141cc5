"""Tests that a run folder is data: code that it names runs only if its user has written it or trusts it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from refusals import refused
from run_cases import CONFIG, config_with

import labrl
from labrl.cli import export_policy, main, replay, report
from labrl.config import config_folder
from labrl.errors import InputError
from labrl.run.episodes import read_episode, write_episode
from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.run import Run
from labrl.run.signature import SIGNATURE, Trust, cache_folder, signed, trusting
from labrl.run.trust import check_experiment, check_recorded

pytestmark = pytest.mark.extended

QUICK = ["wandb=disabled", "meta.report=false", "meta.videos=false", "meta.progress=false"]
CONSTANT = ["agent.lr=1e-3", "agent.clip_range=0.2"]
SMALL = [*QUICK, "env.max_frame=512", "agent.horizon=16", "agent.batch_size=64", *CONSTANT, "seed=3"]
OWN = """
from pathlib import Path
import gymnasium
from labrl.session.callbacks.callback import Callback

class Env(gymnasium.Wrapper):
    def __init__(self, size: int = 1, path: str = "") -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

class Quiet(Callback):
    pass

def make(path: str):
    Path(path).mkdir()
"""
MAKE = ["env=gymnasium", "env.id=null", "env.name=own", "+env.make={_target_: own_trusted.Env, size: 2}"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the cache, which has the key of the user."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("LABRL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a --config-dir with the user's classes."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "own_trusted.py").write_text(OWN)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of labrl's classes."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    labrl.train([*SMALL, f"hydra.run.dir={folder}"])
    return folder


@pytest.fixture(scope="module")
def of_own_parts(tmp_path_factory: pytest.TempPathFactory, parts: Path) -> Path:
    """Return a run with an environment of the user's."""
    folder = tmp_path_factory.mktemp("own") / "run"
    labrl.train([*SMALL, *MAKE, f"hydra.run.dir={folder}"], config_dir=parts)
    return folder


def changed(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a run, and change its provenance and its config.yaml as someone else would."""
    shutil.copytree(source, target)
    facts = json.loads((target / "provenance.json").read_text())
    change(facts)
    (target / "provenance.json").write_text(json.dumps(facts))
    (target / "config.yaml").write_text(yaml.safe_dump(facts["config"], sort_keys=False))
    return target


def unsigned(source: Path, target: Path) -> Path:
    """Copy a run as an earlier version of labrl would have written it."""
    return changed(source, target, lambda facts: facts.pop(SIGNATURE))


def refusal(run: Run, config: dict[str, Any]) -> str | None:
    """Return the key of the first name that is refused; None if all are accepted."""
    try:
        check_recorded(run, config)
    except InputError as error:
        return error.key if error.code == "untrusted" else error.code
    return None


@pytest.fixture
def foreign(tmp_path: Path) -> Run:
    """Return a run of someone else without sessions."""
    run = Run.create(tmp_path / "foreign")
    run.provenance_json.write_text(json.dumps({"overrides": [], "config": CONFIG}))
    return run


COMMANDS: dict[str, Callable[[str], Any]] = {
    "enjoy": lambda run: main([f"+enjoy={run}", "episodes=1", "videos=0"]),
    "start_from": lambda run: main([f"start_from={run}", *SMALL]),
    "export": lambda run: export_policy([run, "--format", "torch"]),
    "fork": lambda run: main([f"+fork={run}", "at=512", "env.max_frame=1024"]),
    "forks": lambda run: main(["-m", f"+fork={run}", "at=512", "env.max_frame=1024,1536"]),
    "resume": lambda run: main([f"+resume={run}", "env.max_frame=1024"]),
    "rerun": lambda run: main([f"+rerun={run}"]),
    "replay": lambda run: replay([run]),
    "offline": lambda run: main(["agent=sac", "agent/offline=run", f"agent.offline.folder={run}"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_calls_what_a_folder_of_someone_else_names(
    command: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = {"_target_": "os.mkdir", "path": str(tmp_path / "mark")}

    def change(facts: dict[str, Any]) -> None:
        facts["overrides"] += ["env=gymnasium", "env.id=null", "env.name=e"]
        facts["overrides"] += [f"+env.make={{_target_: os.mkdir, path: '{node['path']}'}}"]
        facts["choices"]["env"] = "gymnasium"
        facts["config"]["env"].update(id=None, name="e", make=node)
        if command == "offline":
            facts["config"]["agent"]["memory"] = {"_target_": "labrl.memory.replay.Replay"}

    run = changed(trained, tmp_path / "evil", change)
    for file in run.glob("session_0/episodes/*.npz"):
        episode = read_episode(file)
        env = {**episode.env, "id": None, "make": node}
        write_episode(file.parent, file.stem, dataclasses.replace(episode, env=env))
    assert COMMANDS[command](str(run)) == 2
    assert "env.make._target_: os.mkdir" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()


def target(name: Any) -> dict[str, Any]:
    return {"_target_": name}


NAMED: list[tuple[str, Any, str | None]] = [
    ("env.make", target("os.mkdir"), "env.make._target_"),
    ("env.make", {**target("gymnasium.make"), "id": "evil:E-v0"}, "env.make._target_"),
    ("env.id", "evil:Name-v0", "env.id"),
    ("env.id", "Foreign-v0", "env.id"),  # registered by someone else
    ("env.id", "Unknown-v1", None),  # Gymnasium refuses it
    ("env.id", "CartPole-v1", None),
    ("env.import_module", "evil", "env.import_module"),
    ("callbacks.x", target("labrl.config.compose.os.mkdir"), "callbacks.x._target_"),
    ("callbacks.x", target("labrl.config.compose.re.Scanner"), "callbacks.x._target_"),
    ("callbacks.x", target("labrl.run.atomic.HashedFile"), "callbacks.x._target_"),
    ("callbacks.x", target("labrl.session.callbacks.pruning.ReportToSearch"), "callbacks.x._target_"),
    ("callbacks.x", target("__main__.Quiet"), "callbacks.x._target_"),
    ("callbacks.x", target("labrl.${env.name}"), "callbacks.x._target_"),
    ("callbacks.x", target(["os.mkdir"]), "callbacks.x._target_"),
    ("callbacks.x", "${oc.decode:'{_target_: os.mkdir}'}", "callbacks.x"),
    ("callbacks.x", "${oc.env:SECRET}", "callbacks.x"),
    ("callbacks.x", "${oc.${meta.x}:a}", "callbacks.x"),
    ("meta.x", target("labrl.networks.torso.MLP"), "meta.x._target_"),  # an unknown place
    ("meta.eval_frequency", "${meta.log_frequency}", None),
    ("agent.network.torso", target("torch.hub.load"), "agent.network.torso._target_"),
    ("agent.network.torso", target("torch.nn.init.zeros_"), "agent.network.torso._target_"),
]
"""Values of keys, and the key that is refused."""


@pytest.mark.parametrize(("key", "value", "expected"), NAMED)
def test_only_classes_of_labrl_of_the_right_kind_and_gymnasiums_environments_are_accepted(
    key: str, value: Any, expected: str | None, foreign: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Foreign-v0", entry_point="os:mkdir")
    monkeypatch.setitem(gymnasium.registry, "Foreign-v0", spec)
    assert refusal(foreign, config_with(**{key.replace(".", "__"): value})) == expected


def test_every_part_in_labrls_files_is_accepted(foreign: Run) -> None:
    folder = config_folder()
    found: dict[str, str | None] = {}
    for file in folder.rglob("*.yaml"):
        groups = file.relative_to(folder).parts[:-1]
        if "@package _global_" in file.read_text() or {*groups} & {"hydra", "preset", "experiment"}:
            continue  # they have no class
        nested = yaml.safe_load(file.read_text())
        for name in reversed(groups):
            nested = {name: nested}
        found[str(file)] = refusal(foreign, nested)
    assert len(found) > 50
    assert [file for file, key in found.items() if key and key.endswith("_target_")] == []


@pytest.mark.parametrize("verb", ["+fork", "+resume", "+rerun"])
def test_recorded_overrides_of_someone_else_are_neither_composed_nor_kept(
    verb: str, trained: Path, tmp_path: Path
) -> None:
    """Otherwise, they would be composed as the user's own as soon as a resume has signed them."""
    mark, groups = tmp_path / "mark", tmp_path / "groups"
    groups.mkdir()
    sneaked = [
        *("--config-dir={groups}", "hydra.searchpath=[pkg://evil]", "env.id=null"),
        f"""env.make='${{oc.${{wandb.project}}:"{{_target_: os.mkdir, path: {mark}}}"}}'""",
    ]

    def change(facts: dict[str, Any]) -> None:
        facts["overrides"] += sneaked
        facts["config_dir"] = str(groups)

    run = changed(trained, tmp_path / "run", change)
    resumed, new = ["env.max_frame=1024"], "hydra.run.dir=next"
    more = {"+fork": ["at=512", *resumed, new], "+resume": resumed, "+rerun": [new]}[verb]
    assert main([f"{verb}={run}", *more]) == 0
    again = run if verb == "+resume" else Path("next")
    assert main([f"+resume={again}", "env.max_frame=1536"]) == 0
    assert not mark.exists()
    assert (Run.open(again).config_dir, {*sneaked} & {*Run.open(again).overrides}) == (None, set())


def test_signed_run_calls_nothing_that_its_edited_file_computes(trained: Path, tmp_path: Path) -> None:
    run, mark = tmp_path / "run", tmp_path / "mark"
    shutil.copytree(trained, run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["env"]["make"] = f'\\${{oc.\\${{wandb.project}}:"{{_target_: os.mkdir, path: {mark}}}"}}'
    config["env"]["id"], config["wandb"]["project"] = None, "decode"
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    assert main([f"+resume={run}", "env.max_frame=1024", "+force=true"]) == 2
    assert not mark.exists()


def test_unsigned_run_of_labrls_own_classes_can_be_loaded_and_resumed(trained: Path, tmp_path: Path) -> None:
    run = unsigned(trained, tmp_path / "foreign")
    assert labrl.load(run).frame == 512
    assert labrl.train([f"+resume={run}", "env.max_frame=1024"]).exit_code == 0


def test_own_classes_need_no_word_in_a_signed_run(of_own_parts: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(of_own_parts, moved)
    assert labrl.load(moved).env().unwrapped is not None
    assert labrl.train([f"+resume={moved}", "env.max_frame=1024"]).exit_code == 0
    assert labrl.load(moved, checkpoint="latest").frame == 1024
    assert labrl.train([f"+resume={moved}", "env.max_frame=1536"]).exit_code == 0


def test_own_classes_in_an_unsigned_run_must_be_trusted(
    of_own_parts: Path, tmp_path: Path, parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unsigned(of_own_parts, tmp_path / "old")
    resume, key = [f"+resume={run}", "env.max_frame=1024"], "env.make._target_"
    with refused("untrusted", key):
        labrl.load(run)
    with refused("untrusted", key):
        labrl.train([*resume, "+trust=false"])
    with refused("untrusted", key, "+trust=true", "own_trusted.Env"):
        labrl.train(resume)
    labrl.load(run, trust=True)
    assert main([f"+enjoy={run}", "episodes=1", "videos=0"]) == 2
    assert main([f"+enjoy={run}", "episodes=1", "videos=0", "+trust=true"]) == 0
    assert main(["--config-dir", str(parts), f"+enjoy={run}", "episodes=1", "videos=0"]) == 0
    capsys.readouterr()
    assert main(["--config-dir", str(tmp_path), f"+enjoy={run}", "episodes=1", "videos=0"]) == 2
    assert "--config-dir" not in capsys.readouterr().err, "it was typed already"
    assert report([str(run), "--trust"]) == 0
    labrl.train([*resume, "+trust=true"])
    labrl.load(run)  # because the resume has signed it


def test_own_files_are_accepted_from_the_folder_typed_now_only(foreign: Run, parts: Path) -> None:
    own = config_with(env__make={"_target_": "own_trusted.Env"})
    with trusting(Trust(config_dir=str(parts))):
        assert refusal(foreign, own) is None
        assert refusal(foreign, config_with(env__import_module="own_trusted")) is None
        wrong = {"env__make": "own_trusted.Quiet", "callbacks__x": "own_trusted.Env"}
        for place, target in {**wrong, "env__make ": "own_trusted.make"}.items():
            config = config_with(**{place.strip(): {"_target_": target}})
            assert refusal(foreign, config) == f"{place.strip().replace('__', '.')}._target_"
        path = config_with(callbacks__x={"_target_": "own_trusted.Path.mkdir"})
        assert refusal(foreign, path) == "callbacks.x._target_"
    assert refusal(foreign, own) == "env.make._target_"


def test_what_someone_else_adds_to_a_signed_run_is_found(of_own_parts: Path, tmp_path: Path) -> None:
    def add(facts: dict[str, Any]) -> None:
        facts["config"]["callbacks"]["x"] = {"_target_": "own_trusted.Quiet"}

    in_both, resumed = changed(of_own_parts, tmp_path / "both", add), tmp_path / "resumed"
    shutil.copytree(of_own_parts, resumed)
    (resumed / "resumes" / "7").mkdir(parents=True)
    shutil.copy(in_both / "provenance.json", resumed / "resumes" / "7" / "provenance.json")
    for run in (in_both, resumed):
        with refused("untrusted", "env.make._target_", "callbacks.x._target_"):
            labrl.load(run)
        with refused("untrusted", "env.make._target_", "callbacks.x._target_"):
            labrl.train([f"+resume={run}", "env.max_frame=9e3"])


def test_all_who_make_the_key_at_once_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "new" / "cache"))
    with ThreadPoolExecutor(16) as threads:
        signatures = set(threads.map(lambda _: signed({"a": 1})[SIGNATURE], range(64)))
    assert len(signatures) == 1
    assert [path.name for path in (tmp_path / "new" / "cache").iterdir()] == ["key"]


def test_a_key_that_others_can_read_signs_nothing(
    of_own_parts: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "cache"
    shutil.copytree(cache, copied)
    monkeypatch.setenv("LABRL_CACHE", str(copied))
    labrl.load(of_own_parts)
    assert stat.S_IMODE((cache_folder() / "key").stat().st_mode) == 0o600
    (copied / "key").chmod(0o644)
    with pytest.raises(InputError):
        labrl.load(of_own_parts)


def experiment(path: Path, **facts: Any) -> Experiment:
    record = TrialRecord(number=0, overrides=["seed=1"], folder="0_ppo", status="finished")
    given = {"overrides": ["seed=1,2"], "hydra_overrides": [], "config_dir": None, **facts}
    return Experiment.begin(path, given.pop("kind", "grid"), [record], **given)


@pytest.mark.parametrize("facts", [{"overrides": ["seed=1,2,3"]}, {"kind": "search"}, {"signature": None}])
def test_experiment_of_someone_else_must_be_trusted(facts: dict[str, Any], tmp_path: Path) -> None:
    """Its overrides are composed, and Optuna unpickles parts of a study."""
    folder = experiment(tmp_path / "experiment")
    folder.marker.write_text(json.dumps({**json.loads(folder.marker.read_text()), **facts}))
    for _ in range(2):
        with pytest.raises(InputError) as error:
            check_experiment(folder)
        assert error.value.code == "untrusted"
        assert main(["-m", f"+resume={folder.path}"]) == 2
        folder.set_status("interrupted")  # signs nothing
    with trusting(Trust(everything=True)):
        check_experiment(folder)
        folder.set_status("running", config_dir="/mine")
    assert check_experiment(Experiment.open(folder.path)) == "/mine"


def test_an_experiment_stays_its_users_while_it_is_written(tmp_path: Path) -> None:
    kept = {"config_dir": "/somewhere", "overrides": ["+callbacks.x={_target_: own.Quiet}"]}
    folder = experiment(tmp_path / "experiment", **kept)
    folder.set_trials([TrialRecord(number=1, overrides=["seed=2"], folder="1_ppo")])
    folder.set_status("interrupted", number=float("nan"), texts=("a", "ä"))
    assert check_experiment(Experiment.open(folder.path)) == "/somewhere"


def test_trust_must_be_a_flag() -> None:
    for override in ("+trust=yes", "trust=true", "+trust="):
        with pytest.raises(InputError):
            labrl.train([override])
