"""Tests that a run folder is data: code that it names runs only if its user has written it or trusts it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from run_cases import CONFIG, config_with

import labrl
from labrl.cli import export_policy, main, replay, report
from labrl.component import Component
from labrl.config import config_folder
from labrl.config.traits import hints
from labrl.errors import InputError
from labrl.run.episodes import read_episode, write_episode
from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.run import Run
from labrl.run.signature import SIGNATURE, Trust, cache_folder, signed, trusting
from labrl.run.trust import KINDS, check_experiment, check_recorded

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


def evil(source: Path, target: Path, mark: Path, name: str = "os.mkdir") -> Path:
    """Copy a run whose environment is made by a call that leaves a mark."""

    def change(facts: dict[str, Any]) -> None:
        node = {"_target_": name, "path": str(mark)}
        facts["overrides"] += ["env=gymnasium", "env.id=null", "env.name=e"]
        facts["overrides"] += [f"+env.make={{_target_: {name}, path: '{mark}'}}"]
        facts["choices"]["env"] = "gymnasium"
        facts["config"]["env"].update(id=None, name="e", make=node)

    return changed(source, target, change)


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
    "offline": lambda run: main(
        [*QUICK, "agent=sac", "env.max_frame=64", "agent/offline=run", f"agent.offline.folder={run}"]
    ),
}


@pytest.mark.parametrize("name", ["os.mkdir", "labrl.config.compose.os.mkdir"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_calls_what_a_folder_of_someone_else_names(
    command: str, name: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    run = evil(trained, tmp_path / "evil", mark, name)
    for file in run.glob("session_0/episodes/*.npz"):
        episode = read_episode(file)
        env = {**episode.env, "id": None, "make": {"_target_": name, "path": str(mark)}}
        write_episode(file.parent, file.stem, dataclasses.replace(episode, env=env))
    if command == "offline":
        _with_replay_buffer(run)
    assert COMMANDS[command](str(run)) == 2
    assert f"env.make._target_: {name}" in capsys.readouterr().err
    assert not mark.exists()


def _with_replay_buffer(run: Path) -> None:
    facts = json.loads((run / "provenance.json").read_text())
    facts["config"]["agent"]["memory"] = {"_target_": "labrl.memory.replay.Replay"}
    (run / "provenance.json").write_text(json.dumps(facts))
    (run / "config.yaml").write_text(yaml.safe_dump(facts["config"]))


NAMED: dict[str, tuple[str, Any]] = {
    "a function of another module": ("env.make", {"_target_": "os.mkdir"}),
    "a module inside a module of labrl": ("callbacks.x", {"_target_": "labrl.config.compose.os.mkdir"}),
    "a class inside a module of labrl": ("callbacks.x", {"_target_": "labrl.config.compose.re.Scanner"}),
    "a function of Gymnasium": ("env.make", {"_target_": "gymnasium.make", "id": "evil:E-v0"}),
    "a class of labrl of another kind": ("callbacks.x", {"_target_": "labrl.run.atomic.HashedFile"}),
    "a callback of labrl": (
        "callbacks.x",
        {"_target_": "labrl.session.callbacks.pruning.ReportToSearch", "where": "0 00 somewhere:1"},
    ),
    "a class of labrl in an unknown place": ("meta.x", {"_target_": "labrl.networks.torso.MLP"}),
    "a module of torch": ("agent.network.torso", {"_target_": "torch.hub.load"}),
    "a function of torch.nn": ("agent.network.torso", {"_target_": "torch.nn.init.zeros_"}),
    "something that is no path": ("callbacks.x", {"_target_": ["os.mkdir"]}),
    "a path that is put together": ("callbacks.x", {"_target_": "labrl.${env.name}"}),
    "a class of the script": ("callbacks.x", {"_target_": "__main__.Quiet"}),
}


@pytest.mark.parametrize("case", NAMED)
def test_targets_must_be_classes_of_labrl_of_the_right_kind(case: str, foreign: Run) -> None:
    key, node = NAMED[case]
    group, name = key.rsplit(".", 1)
    config = config_with(**{f"{group.replace('.', '__')}__{name}": node})
    assert refusal(foreign, config) == f"{key}._target_"


def test_no_module_is_imported_that_a_configuration_names(foreign: Run) -> None:
    for key, value in (("id", "evil:Name-v0"), ("import_module", "evil")):
        assert refusal(foreign, config_with(**{f"env__{key}": value})) == f"env.{key}"
    assert refusal(foreign, config_with(env__id="CartPole-v1")) is None
    assert refusal(foreign, config_with(env__id="Unknown-v1")) is None  # Gymnasium refuses it


def test_registered_environments_must_be_gymnasiums(foreign: Run) -> None:
    import gymnasium

    gymnasium.register("Foreign-v0", entry_point="os:mkdir")
    try:
        assert refusal(foreign, config_with(env__id="Foreign-v0")) == "env.id"
    finally:
        del gymnasium.registry["Foreign-v0"]


def test_functions_of_omegaconf_are_refused(foreign: Run) -> None:
    for text in ("${oc.decode:'{_target_: os.mkdir}'}", "${oc.env:SECRET}", "${oc.${meta.x}:a}"):
        assert refusal(foreign, config_with(callbacks__x=text)) == "callbacks.x"
    assert refusal(foreign, config_with(meta__eval_frequency="${meta.log_frequency}")) is None


def test_every_part_in_labrls_files_is_accepted(foreign: Run) -> None:
    folder = config_folder()
    files = [file for file in folder.rglob("*.yaml") if "hydra" not in file.relative_to(folder).parts]
    refused = {}
    for file in files:
        place = ".".join(file.relative_to(config_folder()).parts[:-1])
        content = yaml.safe_load(file.read_text())
        if "@package _global_" in file.read_text() or place in ("preset", "experiment", ""):
            place = ""
        sections = file.parent.name == "preset" and file.stem != "none"
        for nested in content.values() if sections else [content]:
            for name in reversed(place.split(".") if place else []):
                nested = {name: nested}
            if isinstance(nested, dict) and (key := _target_refused(foreign, nested)):
                refused[str(file)] = key
    assert len(files) > 50
    assert not refused


def _target_refused(run: Run, config: dict[str, Any]) -> str | None:
    key = refusal(run, config)
    return key if key and key.endswith("_target_") else None


def test_every_place_of_a_component_has_a_kind() -> None:
    names = set()
    for package in ("agents", "networks", "envs", "memory", "learning", "offline"):
        root = importlib.import_module(f"labrl.{package}")
        for one in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            for found in vars(importlib.import_module(one.name)).values():
                if isinstance(found, type) and found.__name__.endswith("Config"):
                    own = hints(found).items() if found.__module__ == one.name else ()
                    names |= {name for name, hint in own if Component in (hint, *get_args(hint))}
    places = {pattern.rpartition(".")[2].strip("*") for pattern in KINDS}
    networks = {"torso", "critic_torso", "joint", "image", "own"}  # below agent.network
    assert names - networks <= places
    assert len(names) > 10


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


def test_run_of_labrls_classes_continues_from_a_folder_of_someone_else(trained: Path, tmp_path: Path) -> None:
    run = unsigned(trained, tmp_path / "foreign")
    assert labrl.load(run).frame == 512
    result = labrl.train([f"+resume={run}", "env.max_frame=1024"])
    assert result.exit_code == 0
    assert labrl.load(run, checkpoint="latest").frame == 1024


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
    with pytest.raises(InputError) as refused:
        labrl.load(run)
    assert (refused.value.code, refused.value.key) == ("untrusted", "env.make._target_")
    for more in (["+trust=false"], []):
        with pytest.raises(InputError) as refused:
            labrl.train([f"+resume={run}", "env.max_frame=1024", *more])
        assert refused.value.code == "untrusted"
    assert "+trust=true" in str(refused.value)
    assert "own_trusted.Env" in str(refused.value)
    labrl.load(run, trust=True)
    assert main([f"+enjoy={run}", "episodes=1", "videos=0"]) == 2
    assert main([f"+enjoy={run}", "episodes=1", "videos=0", "+trust=true"]) == 0
    assert main(["--config-dir", str(parts), f"+enjoy={run}", "episodes=1", "videos=0"]) == 0
    capsys.readouterr()
    assert main(["--config-dir", str(tmp_path), f"+enjoy={run}", "episodes=1", "videos=0"]) == 2
    assert "--config-dir" not in capsys.readouterr().err, "it was typed already"
    assert report([str(run), "--trust"]) == 0
    labrl.train([f"+resume={run}", "env.max_frame=1024", "+trust=true"])
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
        for use in (
            lambda run: labrl.load(run),
            lambda run: labrl.train([f"+resume={run}", "env.max_frame=9e3"]),
        ):
            with pytest.raises(InputError) as refused:
                use(run)
            assert refused.value.code == "untrusted"


def test_key_is_private_and_in_the_cache(trained: Path) -> None:
    key = cache_folder() / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


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
        with pytest.raises(InputError) as refused:
            check_experiment(folder)
        assert refused.value.code == "untrusted"
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
