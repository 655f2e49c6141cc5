"""Tests of refused resumes: edits that contradict the past, damaged runs, wrong paths, and +force."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from one_process import ONE_PROCESS
from refusals import damaged
from run_cases import files_of

import labrl
from labrl.cli import list_runs, main
from labrl.errors import WRONG_INPUT
from labrl.run.run import Run

QUIET = ["meta.progress=false", "meta.tensorboard=false"]
QUICK = ["agent=random", "env.max_frame=64", *QUIET, "seed=1"]


pytestmark = pytest.mark.usefixtures("own_folder")


HIDDEN = "agent.network.torso.mlp.hidden"
LEARNED = ["agent=dqn", "env=cartpole", "env.max_frame=300", "agent.learning_starts=100", "agent.lr=1e-3"]
LEARNED += [f"{HIDDEN}=[8]", *QUIET, "meta.report=false", "meta.videos=false", "seed=1"]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "one"
    assert main([*QUICK, f"hydra.run.dir={folder}"]) == 0
    return folder


@pytest.fixture
def finished(own_folder: None, once: Path) -> Path:
    return Path(shutil.copytree(once, "runs/one"))


def test_kill_after_the_last_session_ended_leaves_a_finished_run(finished: Path) -> None:
    """Regression test: a run killed after its last session looked unfinished but could not be resumed."""
    run = Run.open(finished)
    info = run.read_info()
    run.set_status("running", sessions=[])
    assert main([f"+resume={finished}"]) == 0  # it may lack videos
    assert {**run.read_info(), "updated": info["updated"]} == {**info, "due": []}
    assert main([f"+resume={finished}"]) == 2


def test_latest_is_the_newest_run_with_the_chosen_options(capsys: pytest.CaptureFixture[str]) -> None:
    main([*QUICK, "hydra.run.dir=runs/c"])
    main([*QUICK, "env=pendulum", "hydra.run.dir=runs/b"])
    main(["-m", *QUICK, ONE_PROCESS, "env=acrobot", "hydra.sweep.dir=runs/a"])
    Path("runs/killed before its start").mkdir()
    Run.create("runs/killed before its start")
    Run.create("runs/damaged").path.joinpath("run.json").write_text("{")
    for overrides, named in {
        "": "labrl -m +resume=runs/a",  # experiments are resumed by another command
        "env=cartpole": "runs/c",
        "agent=random env=pendulum": "runs/b",
        "meta=default preset=random:cartpole": "runs/c",
    }.items():
        capsys.readouterr()
        assert main(["+resume=latest", *overrides.split()]) == 2
        assert named in capsys.readouterr().err


def test_forced_resume_is_recorded_in_the_run_folder(finished: Path) -> None:
    overrides = ["env.max_frame=128", "env.max_episode_steps=9", "+force=true", "meta.log_frequency=16"]
    assert main(["+resume=runs/one", *overrides]) == 0
    info = json.loads(Path("runs/one/run.json").read_text())
    (entry,) = info["resumes"]
    assert entry["forced"]
    assert entry["frames"] == {"0": 64}
    assert entry["edits"] == [override for override in overrides if override != "+force=true"]
    assert {"key": "env.max_episode_steps", "then": None, "now": 9} in entry["changed"]
    assert {"key": "env.max_frame", "then": 64, "now": 128} in entry["changed"]
    assert info["status"] == "finished"
    assert json.loads(Path("runs/one/resumes/1/provenance.json").read_text())["seed"] == 1
    assert yaml.safe_load(Path("runs/one/config.yaml").read_text())["env"]["max_episode_steps"] == 9

    assert main(["+resume=runs/one", "env.max_frame=192"]) == 0, "the forced edits were lost"
    resumes = json.loads(Path("runs/one/run.json").read_text())["resumes"]
    assert [entry["forced"] for entry in resumes] == [True, False]


@pytest.mark.extended
def test_force_is_refused_when_the_state_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression test: the folder kept such an edit, so that +resume and +enjoy could not load the run."""
    assert main([*LEARNED, "hydra.run.dir=runs/one"]) == 0
    before = files_of(Path("runs"))
    for overrides in (["agent.gamma=0.9", f"{HIDDEN}=[32,32]"], ["agent/memory=prioritized"]):
        capsys.readouterr()
        assert main(["+resume=runs/one", "env.max_frame=400", *overrides, "+force=true"]) == 2
        forced = capsys.readouterr().err
        key = overrides[-1].partition("=")[0].replace("/", ".")
        assert forced.startswith(f"labrl: {key}"), "a changed key is not named first"
        assert forced.endswith(f" start_from.run={Path('runs/one').absolute()} start_from.partial=true\n")
        assert "Traceback" not in forced
        assert main(["+resume=runs/one", "env.max_frame=400", *overrides]) == 2
        if key == HIDDEN:  # +force cannot help, so it is not suggested
            assert capsys.readouterr().err == forced
        assert files_of(Path("runs")) == before
    assert main(["+enjoy=runs/one", "episodes=1", "videos=0"]) == 0
    assert main(["+resume=runs/one", "env.max_frame=400"]) == 0


def test_other_versions_are_reported_and_do_not_prevent_a_resume(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("runs/one/provenance.json")
    facts = json.loads(path.read_text())
    facts["packages"] |= {"torch": "1.0", "mypy": "1.0", "jupyterlab": "1.0"}  # the last two are not imported
    facts["python"]["version"] = "3.0"
    path.write_text(json.dumps(facts))
    assert main(["+resume=runs/one", "env.max_frame=128"]) == 0
    stdout = capsys.readouterr().out
    assert re.search(r"Python 3\.0 -> .*; torch 1\.0 -> [^;]*\n", stdout)


def test_cfg_job_prints_the_configuration_of_a_resume(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(Path())
    assert main(["--cfg", "job", "+resume=runs/one", "env.max_frame=128"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["env"]["max_frame"], shown["seed"]) == (128, 1)
    for wrong in ("env.num_envs=3", "env.max_frame=-1"):
        assert main(["--cfg", "job", "+resume=runs/one", wrong]) == 2
        printed = capsys.readouterr()
        assert f"{wrong.split('=')[1]}\n" in printed.out, "the configuration must be printed all the same"
        assert wrong.split("=")[0] in printed.err
    assert files_of(Path()) == before


def test_config_dir_is_found_again_and_to_be_typed_if_it_was_moved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("old/meta").mkdir(parents=True)
    calm = "defaults: [default, _self_]\nprogress: false\ntensorboard: false\n"
    Path("old/meta/calm.yaml").write_text(calm)
    overrides = ["agent=random", "meta=calm", "seed=1", "env.max_frame=64", "hydra.run.dir=one"]
    assert main(["--config-dir", "old", *overrides]) == 0
    assert main(["+resume=one", "env.max_frame=96"]) == 0
    Path("old").rename("new")
    for again in (["+rerun=one"], ["+fork=one", "at=64"], ["+resume=one", "env.max_frame=128"]):
        assert main(again) == WRONG_INPUT
        assert "--config-dir=<" in capsys.readouterr().err
        assert main(["--config-dir=new", *again]) == 0


@pytest.mark.parametrize("damage", ["torn", "deleted"])
def test_run_without_an_undamaged_checkpoint_is_refused(
    damage: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = finished / "session_0" / "checkpoints"
    if damage == "deleted":
        shutil.rmtree(checkpoints)
    for file in checkpoints.rglob("state.pt"):
        file.write_bytes(b"torn")
    before = files_of(finished)
    assert main(["+resume=runs/one", "env.max_frame=128"]) == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1, "several damaged checkpoints need one message"
    assert str(checkpoints) in stderr
    assert ("frame_000000000064" in stderr and "state.pt" in stderr) == (damage == "torn")
    assert files_of(finished) == before
    shutil.rmtree(finished / "session_0")
    assert main(["+resume=runs/one", "env.max_frame=128"]) == 0


def test_missing_rows_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "meta.log_frequency=16", "hydra.run.dir=one"]) == 0
    table = Path("one/session_0/train.csv")
    rows = table.read_text().splitlines(keepends=True)
    table.write_text("".join(rows[:-2]))
    assert main(["+resume=one", "env.max_frame=128"]) == 0
    output = re.sub(r"\s+", " ", "".join(capsys.readouterr()))
    assert re.search(r"train\.csv .* 32\b.* 64\b", output)


def test_newest_undamaged_checkpoint_is_used_and_the_damaged_one_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*QUICK, "hydra.run.dir=one", "meta.log_frequency=32"]) == 0
    assert main([*QUICK, "hydra.run.dir=two", "meta.log_frequency=32", "env.max_frame=128"]) == 0
    Path("one/session_0/checkpoints/frame_000000000064/state.pt").write_text("{}")
    assert main(["+resume=one", "env.max_frame=128"]) == 0
    stderr = capsys.readouterr().err
    assert "frame_000000000064" in stderr
    assert "labrl.run" not in stderr
    assert re.search(r"session 0 .*\b32\b", stderr)
    assert "frame_000000000064" in Path("one/session_0/session.log").read_text()
    tables = [Path(folder, "session_0", "train.csv").read_text().splitlines() for folder in ("one", "two")]
    assert [line.split(",")[:4] for line in tables[0]] == [line.split(",")[:4] for line in tables[1]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_every_stop_signal_saves_and_prints_the_resume_command(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:  # nohup ignores SIGHUP, and labrl leaves that unchanged
        signal.signal(number, signal.SIG_DFL)
    stop = f"+callbacks.stop={{_target_: restoring.StopAt, frame: 24, number: {int(number)}}}"
    assert main([*QUICK, stop, "hydra.run.dir=one"]) == (130 if number == signal.SIGINT else 143)
    stdout = capsys.readouterr().out
    assert Path("one/session_0/checkpoints/frame_000000000024").is_dir()
    (command,) = re.findall(r"labrl \+resume=.*", stdout)
    assert main(["+resume=one", "env.max_frame=24"]) == WRONG_INPUT, "this budget is spent"
    assert main([*shlex.split(command)[1:], "~callbacks.stop"]) == 0
    assert json.loads(Path("one/session_0/result.json").read_text())["frame"] == 64


def test_edited_config_yaml_is_refused(finished: Path) -> None:
    path = finished / "config.yaml"
    path.write_text(path.read_text().replace("max_frame: 64", "max_frame: 128"))
    files = files_of(finished)
    for overrides in (["+resume=runs/one"], ["+rerun=runs/one"], ["+fork=runs/one", "at=64"]):
        with damaged(path.absolute()):
            labrl.train(overrides)
    with damaged(path.absolute()):
        labrl.load(finished)
    assert main(["+enjoy=runs/one", "episodes=1", "videos=0"]) == WRONG_INPUT
    assert files_of(finished) == files


@pytest.mark.parametrize("damage", ["deleted", "halved"])
@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "run.json"])
def test_run_with_a_damaged_file_is_refused_with_the_file(
    name: str, damage: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"+resume={finished}", "env.max_frame=128"]) == 0
    path = finished / name if name != "provenance.json" else finished / "resumes" / "1" / name
    original = path.read_bytes()
    if damage == "deleted":
        path.unlink()
        (finished / name).unlink(missing_ok=True)
    else:
        path.write_bytes(original[: len(original) // 2])
    before = files_of(finished)
    capsys.readouterr()
    for command in (["+resume=runs/one", "env.max_frame=192"], ["+enjoy=runs/one"], ["+rerun=runs/one"]):
        assert main(command) == WRONG_INPUT, command
        stderr = capsys.readouterr().err
        assert name in stderr, (command, stderr)
        assert stderr.count("\n") == 1, (command, stderr)
    if name != "config.yaml":  # which only commands read that run the agent again
        assert list_runs(["--root", "runs/one"]) == WRONG_INPUT
        assert name in capsys.readouterr().err
    assert files_of(finished) == before
