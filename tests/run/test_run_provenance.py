"""Tests of the provenance in a run folder: command, configuration, versions and the state of the code."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy
import pytest
import yaml
from refusals import damaged

from labrl.analysis.groups import differing_keys, group_runs
from labrl.run import provenance
from labrl.run.provenance import Origin, as_typed, describe_repository, differences, write_provenance
from labrl.run.run import Run


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    (root / "code.py").write_text("x = 1\n")
    (root / ".gitignore").write_text("ignored.txt\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_command_configuration_and_code_are_recorded(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "agent.py").write_text("mine\n")
    monkeypatch.chdir(repository)
    run = Run.create(tmp_path / "run")
    write_provenance(run, {"seed": 7, "env": {"max_frame": 10000000}}, Origin(["env=pong", "seed=7"]))
    assert yaml.safe_load(run.config_yaml.read_text()) == {"seed": 7, "env": {"max_frame": 10000000}}
    assert yaml.safe_load(run.overrides_yaml.read_text()) == ["env=pong", "seed=7"]
    facts = json.loads(run.provenance_json.read_text())
    assert facts["seed"] == 7
    assert facts["command"]
    assert facts["packages"]["numpy"] == numpy.__version__
    assert facts["machine"]["cores"] >= 1
    assert {"started", "python", "working_folder"} <= set(facts)
    assert facts["git"]["working_folder"]["root"] == str(repository)
    assert "+mine" in (run.path / facts["git"]["working_folder"]["diff"]).read_text()


def test_runs_with_different_code_of_ones_own_are_different_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: seeds before and after a change of the user's agent were one group."""
    monkeypatch.syspath_prepend(tmp_path)
    base, own = tmp_path / "own_base_agent.py", tmp_path / "own_derived_agent.py"
    base.write_text("from labrl.agents.random import RandomAgent\n\nclass Base(RandomAgent):\n    term = 1\n")
    own.write_text("from own_base_agent import Base\n\nclass Own(Base):\n    pass\n")

    def recorded(name: str, target: str = "own_derived_agent.Own") -> Run:
        run = Run.create(tmp_path / name)
        config = {"seed": 7, "agent": {"_target_": target}, "env": {"max_frame": 10}, "meta": {}}
        write_provenance(run, config, Origin(choices={"agent": "own", "env": "cartpole"}))
        return Run.open(run.path)

    first = recorded("first")
    assert [*first.own_code] == ["own_base_agent", "own_derived_agent"]
    base.write_text(f"# a comment\n{base.read_text()}")
    same = recorded("same")
    base.write_text(base.read_text().replace("term = 1", "term = 2"))
    other = recorded("other")
    assert recorded("labrls", "labrl.agents.random.RandomAgent").own_code == {}
    assert [len(group.runs) for group in group_runs([first, same, other])] == [2, 1]
    assert [*differing_keys([first, same, other])] == ["code of own_base_agent"]
    assert differences(first.provenance, same.provenance) == []
    (change,) = differences(first.provenance, other.provenance)
    assert change.startswith("code of own_base_agent")


@pytest.mark.parametrize(
    ("process", "typed"),
    [
        ("/usr/bin/python3 /opt/venv/bin/labrl -m seed=0,1", "labrl -m seed=0,1"),
        ("/opt/venv/bin/python -m labrl env=pong", "python -m labrl env=pong"),
        ("python /opt/venv/bin/torchrun --nproc-per-node 2 -m labrl", "torchrun --nproc-per-node 2 -m labrl"),
    ],
)
def test_command_is_recorded_as_it_was_typed(process: str, typed: str) -> None:
    assert as_typed(process.split()) == typed.split()


def test_diff_rebuilds_a_dirty_tree_with_untracked_files(repository: Path, tmp_path: Path) -> None:
    (repository / "code.py").write_text("x = 2\n")
    (repository / "new").mkdir()
    (repository / "new" / "agent.py").write_text("a = 1\n\nb = 2")
    (repository / "empty.py").write_text("")
    (repository / "ignored.txt").write_text("secret")
    facts, diff = describe_repository(repository)
    assert facts["dirty"]
    assert "secret" not in diff

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (tmp_path / "changes.diff").write_text(diff)
    git(clone, "apply", str(tmp_path / "changes.diff"))
    for name in ("code.py", "new/agent.py", "empty.py"):
        assert (clone / name).read_text() == (repository / name).read_text()


def test_of_some_files_only_the_names_are_recorded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files, those that are no source files, and those that may hold secrets are left out.

    Regression test: .env, .netrc and id_rsa were copied into run folders that everyone could read.
    """
    monkeypatch.setattr(provenance, "MAX_FILES", 10)
    (repository / "secrets.yaml").write_text("key: committed\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    (repository / "code.py").write_text("x = 2  # db://me:s3cret@host\n")
    for name in ("secrets.yaml", ".env", "id_rsa", "token.json"):
        (repository / name).write_text("s3cret\n")
    (repository / "binary.bin").write_bytes(bytes(range(256)))
    (repository / "large.py").write_text("y" * (provenance.MAX_FILE + 1))
    for number in range(10, 20):
        (repository / f"n{number}.txt").write_text(f"number {number}\n")
    facts, diff = describe_repository(repository)
    assert facts["dirty"]
    assert "s3cret" not in diff
    assert "+x = 2  # db://me:***@host" in diff
    assert diff.count("+number") == 8
    left_out = {".env", "id_rsa", "token.json", "secrets.yaml", "binary.bin", "large.py"}
    assert {*facts["left_out"]} == left_out | {"n18.txt", "n19.txt"}
    assert facts["left_out_count"] == 8


def test_diff_has_a_maximum_size(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_DIFF", 2000)
    (repository / "code.py").write_text("z = 3\n" * 1000)
    facts, diff = describe_repository(repository)
    assert (len(diff), facts["diff_truncated"]) == (2000, True)


@pytest.mark.parametrize(
    "settings",
    [
        ["core.fsmonitor={program}"],
        ["diff.external={program}"],
        ["diff.own.textconv={program}", "diff.own.command={program}"],
        ["filter.own.clean={program}"],
        ["filter.own.process={program}", "filter.own.required=true"],
        ["core.hooksPath={hooks}"],
    ],
    ids=lambda settings: settings[0].partition("=")[0],
)
def test_git_runs_no_program_of_the_folder(settings: list[str], repository: Path, tmp_path: Path) -> None:
    ran, hooks = tmp_path / "ran", tmp_path / "hooks"
    hooks.mkdir()
    for program in (tmp_path / "program", hooks / "post-index-change"):
        program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
        program.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py diff=own filter=own\n")
    for one in settings:
        key, _, value = one.format(program=tmp_path / "program", hooks=hooks).partition("=")
        git(repository, "config", key, value)
    (repository / "code.py").write_text("x = 3\n")
    facts, diff = describe_repository(repository)
    assert not ran.exists()
    assert "+x = 3" in diff
    assert "incomplete" not in facts


def test_repository_of_another_user_is_named_with_what_to_type(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.chdir(repository)
    run = Run.create(tmp_path / "run")
    write_provenance(run, {"seed": 0}, Origin())
    facts = json.loads(run.provenance_json.read_text())["git"]["working_folder"]
    assert facts["root"] == str(repository)
    assert facts["incomplete"]
    assert f"git config --global --add safe.directory {repository}" in caplog.text


def test_files_of_runs_and_reports_do_not_make_a_repository_dirty(repository: Path) -> None:
    run = Run.create(repository / "outputs" / "first")
    (run.session(0).path / "train.csv").write_text("frame\n1\n")
    (repository / "comparison" / "plots").mkdir(parents=True)
    for name in ("report.html", "statistics.csv", "statistics.json", "plots/a.pdf"):
        (repository / "comparison" / name).write_text("written by labrl-report\n")
    facts, diff = describe_repository(repository)
    assert facts["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert not facts["dirty"]
    assert diff == ""


def test_repository_without_a_commit_is_recorded(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    facts, diff = describe_repository(tmp_path)
    assert facts["commit"] is None
    assert "+1" in diff


def test_provenance_is_written_without_git_and_without_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    run = Run.create(tmp_path / "run")
    write_provenance(run, {"seed": 0}, Origin())
    assert json.loads(run.provenance_json.read_text())["git"] == {}


@pytest.mark.parametrize("content", [None, "{", "7", '{"overrides": []}'])
def test_missing_or_damaged_provenance_is_refused(tmp_path: Path, content: str | None) -> None:
    run = Run.create(tmp_path / "run")
    config = {"seed": 1, "agent": {}, "env": {}, "meta": {}}
    write_provenance(run, config, Origin(["seed=1"]))
    assert (run.overrides, run.read_config()) == (["seed=1"], config)
    run.provenance_json.unlink() if content is None else run.provenance_json.write_text(content)
    for read in (Run.read_provenance, Run.read_config):
        with damaged(run.provenance_json):
            read(run)
