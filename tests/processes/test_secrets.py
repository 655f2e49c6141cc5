"""Tests of secrets: what counts as one, that no file contains one, and where a resume takes them from."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from one_process import ONE_PROCESS
from refusals import refused

import labrl
from labrl.cli import list_runs, main, replay
from labrl.config import config_folder
from labrl.config.keys import walk
from labrl.processes.output import SteadyStream
from labrl.processes.secrets import (
    MASK,
    RedactingFormatter,
    is_secret,
    is_secret_file,
    redact,
    redact_diff,
    restore,
)
from labrl.processes.secrets import remembered as seen
from labrl.run.experiment import Experiment
from labrl.run.run import Run

ENVIRONMENT = """
import os

import gymnasium


class Locked(gymnasium.Wrapper):
    '''CartPole behind a key, whose server fails as soon as a file exists.'''

    def __init__(self, api_key, user="", fails_with="", render_mode=None):
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode))
        if not api_key.startswith("k3y-"):
            raise PermissionError(f"refused {api_key}")
        self.opened, self.fails_with = api_key, fails_with

    def step(self, action):
        if os.path.exists(self.fails_with):
            raise ConnectionError(f"{self.opened} is no longer valid")
        return super().step(action)
"""
SECRET = "k3y-of-a-server"
QUIET = ("meta.progress=false", "meta.tensorboard=false", "meta.log_frequency=32", "env.num_envs=1")
LOCKED = [*QUIET, "agent=random", "env=gymnasium", "env.id=null", "env.name=locked", "env.max_frame=64"]
LOCKED += ["seed=1"]
KEY = "env.make.api_key"


def made(key: str = SECRET, more: str = "") -> str:
    return f"env.make={{_target_: locked_env.Locked, api_key: {key}{more}}}"


@pytest.fixture(autouse=True)
def environment(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide the environment's module, and let nothing be known of earlier configurations."""
    Path("locked_env.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(os.getcwd())
    forget()
    yield
    forget()


def forget() -> None:
    """Forget the secrets that this process has seen, as a new process would."""
    seen.clear()


def files_with(secret: str, folder: str | Path) -> list[str]:
    """Return the files below `folder` that contain `secret`, also in compressed archives."""

    def contents(path: Path) -> Iterator[bytes]:
        content = path.read_bytes()
        yield content
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                yield from map(archive.read, archive.namelist())

    def holds(content: bytes) -> bool:
        return any(secret.encode(code) in content for code in ("utf-8", "utf-32-le"))  # as NumPy stores text

    # While this file is edited, the changes of labrl's own repository contain it.
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != "labrl.diff"]
    assert files
    return [str(path) for path in files if any(map(holds, contents(path)))]


def test_secrets_are_recognized_by_whole_words() -> None:
    secret = (
        *("WANDB_API_KEY", "HF_TOKEN", "api_key", "clientSecret", "APIKey", "db_password", "access_token"),
        *("env.kwargs.password", "AWS_SECRET_ACCESS_KEY", "DB_PASS", "PGPASSWORD"),
        *("X-Api-Key", "Authorization", "TOKEN_OF_BOT", "credentials"),
    )
    innocent = (
        *("max_tokens", "agent.target_entropy", "TOKENIZERS_PARALLELISM", "PWD", "key"),
        *("token_dim", "SECRET_NAME", "sort_key", "observation_key", "PASSWORD_FILE", "SSH_AUTH_SOCK"),
        *("passes", "agent.token.size", "monkey", "keep_every"),
    )
    assert [name for name in secret if not is_secret(name)] == []
    assert [name for name in innocent if is_secret(name)] == []


def test_no_key_of_labrl_counts_as_a_secret() -> None:
    plain = [yaml.safe_load(path.read_text()) for path in config_folder().rglob("*.yaml")]
    keys = {key for node in plain for key, _ in walk(node) if key}
    assert len(keys) > 500
    assert [key for key in keys if is_secret(key)] == []


INNOCENT = [
    *("http://host:8080/a@b", "ssh://git@host/x", "postgresql://labrl@host/db", "agent.lr=linear:3e-4:0"),
    *("token: must be text", "max_tokens=512", "password=${oc.env:DB_PASSWORD}", "api_key=<value>"),
    *("{a: 1, api_key: ${oc.env:X}}", "{api_key:$\\{oc.env\\:X\\},b:1}", "password=null"),
    *("postgresql://labrl:${oc.env:PW}@host/db", "env.make.api_key=***: set LABRL_ENV_MAKE_API_KEY"),
]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("sqlite:///x.db?password=s3cret&timeout=3", "sqlite:///x.db?password=***&timeout=3"),
        ("hydra.sweeper.storage='sqlite:///x.db?password=s3cret'", "hydra.sweeper.storage='sqlite:///x.db?password=***'"),
        ("postgresql+psycopg://labrl:s3cret@host:5432/db", "postgresql+psycopg://labrl:***@host:5432/db"),
        ("mysql://labrl:s3/cre@t@host/db: no answer", "mysql://labrl:***@host/db: no answer"),
        ("postgresql://me:$xPW@h", "postgresql://me:***@h"),
        ("postgresql://me:<PW@h", "postgresql://me:***@h"),
        ("postgresql://me:80/PW@h", "postgresql://me:***@h"),
        ("postgresql://me@work:s3cret@h", "postgresql://me@work:***@h"),
        ("https://%25PW@h", "https://***@h"),
        ("https://s3cret@github.com/me/project", "https://***@github.com/me/project"),
        ("{api_key: k-${oc.env:X}, url: a}", "{api_key: ***, url: a}"),
        ("host=db password=s3cret user=me", "host=db password=*** user=me"),
        ("{_target_: a.B, api_key: s3cret, size: 3}", "{_target_: a.B, api_key: ***, size: 3}"),
        ('{"api_key": "s3 cret", "size": 3}', '{"api_key": "***", "size": 3}'),
        ("unknown key env.api_key=s3cret, use env.name", "unknown key env.api_key=***, use env.name"),
        *((text, text) for text in INNOCENT),
    ],
)  # fmt: skip
def test_secrets_in_text_are_masked_once(text: str, masked: str) -> None:
    assert redact(text) == masked
    assert redact(masked) == masked


def test_secrets_in_plain_data_are_masked_with_everything_below_their_key() -> None:
    content = {
        "overrides": ["+env.api_key=two words", "password=a,b", "max_tokens=3"],
        "kwargs": {"password": 123456, "token": 5, "size": 3, "credentials": {"user": "me", "empty": None}},
    }
    assert redact(content) == {
        "overrides": ["+env.api_key=***", "password=***", "max_tokens=3"],
        "kwargs": {"password": MASK, "token": 5, "size": 3, "credentials": {"user": MASK, "empty": None}},
    }


def test_values_of_secret_variables_are_masked_wherever_they_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5")
    monkeypatch.setenv("SHORT_TOKEN", "ppo")
    monkeypatch.setenv("CREDENTIALS", "/etc/of/server")
    monkeypatch.setenv("DB_PASSWORD", "postgres")
    assert redact({"login": "a1b2c3d4e5", "agent": "ppo"}) == {"login": MASK, "agent": "ppo"}
    assert redact("refused a1b2c3d4e5: see /etc/of/server") == "refused ***: see /etc/of/server"
    assert redact("/home/postgres/a1b2c3d4e5f") == "/home/postgres/a1b2c3d4e5f"
    record = logging.LogRecord("a", logging.WARNING, "", 0, "key %s", ("a1b2c3d4e5",), None)
    assert RedactingFormatter("%(message)s").format(record) == "key ***"


@pytest.mark.extended
def test_secret_in_an_unexpected_error_or_in_the_output_of_a_trial_is_masked() -> None:
    program = """
import labrl.cli, labrl.entry_points
def fail():
    raise RuntimeError("refused api_key=s3cret")
labrl.cli.list_envs = fail
raise SystemExit(labrl.entry_points.envs())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    output = io.StringIO()
    print("refused api_key=s3cret", file=SteadyStream(output, "[0] "))
    for printed in (ended.stderr, output.getvalue()):
        assert "refused api_key=***" in printed
        assert "s3cret" not in printed


def test_diff_is_masked_only_where_it_adds_lines() -> None:
    diff = " x = 'db://u:old@h'\n-y = 'db://u:old@h'\n+y = 'db://u:new@h'\n+token = read()\n+u = f'db://u:{pw}@h'"
    assert redact_diff(diff) == diff.replace("new", MASK)


def test_masked_value_comes_from_this_process_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = {"kwargs": {"password": MASK, "size": 3}}
    with refused("missing", "env.kwargs.password", "LABRL_ENV_KWARGS_PASSWORD"):
        restore(masked, "env")
    monkeypatch.setenv("LABRL_ENV_KWARGS_PASSWORD", "from the environment")
    assert restore(masked, "env") == {"kwargs": {"password": "from the environment", "size": 3}}
    known = {"kwargs": {"password": "typed", "size": 3}}
    assert restore(known, "env") == known
    assert restore(masked, "env") == known


def test_secret_reaches_the_processes_of_several_sessions_without_a_file() -> None:
    assert main([*LOCKED, made(), "hydra.run.dir=run", "meta.max_session=2"]) == 0
    assert {session.read_result()["status"] for session in Run.open("run").sessions} == {"finished"}
    assert files_with(SECRET, "run") == []


def check_that_resumes_ask(
    first: list[str],
    second: list[str],
    typed: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Check that a process that has not seen the secret needs it to resume, typed or as a variable."""
    capfd.readouterr()
    forget()
    assert main(first) == 2
    assert variable in capfd.readouterr().err
    monkeypatch.setenv(variable, typed.partition("=")[2].strip("'"))
    assert main(first) == 0
    monkeypatch.delenv(variable)
    forget()
    assert main([*second, typed]) == 0


@pytest.mark.extended
def test_run_records_its_secret_nowhere_and_its_resume_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    wanted = [*LOCKED, made(), "hydra.run.dir=run", "wandb=offline", "meta.tensorboard=true"]
    assert main([*wanted, "meta.record_episodes=each", "meta.report=true"]) == 0
    assert replay(["run"]) == 0, "the process that has made the run needs no secret again"
    assert list_runs(["--root", ".", "--json"]) == 0
    assert SECRET not in "".join(capfd.readouterr())
    forget()
    with refused("missing", KEY):
        labrl.load("run").env()
    one, two = (["+resume=run", f"env.max_frame={frames}"] for frames in (128, 192))
    check_that_resumes_ask(one, two, f"{KEY}={SECRET}", "LABRL_ENV_MAKE_API_KEY", monkeypatch, capfd)
    assert files_with("k3y-", "run") == []
    assert Run.open("run").read_info()["resumes"][-1]["forced"] is False


def test_secret_in_the_error_of_an_environment_is_masked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOCKED, made(more=", fails_with: run/session_0/train.csv"), "hydra.run.dir=run"]) == 1
    printed = "".join(capsys.readouterr())
    assert "ConnectionError" in printed
    assert "ConnectionError" in Path("run/session_0/session.log").read_text()
    assert SECRET not in printed
    assert files_with(SECRET, "run") == []
    assert main([*LOCKED, made("wrong-key-1"), "hydra.run.dir=other"]) == 2
    assert "wrong-key-1" not in "".join(capsys.readouterr())


def test_interpolated_secret_stays_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "k3y-old-one")
    by_reference = made("${oc.env:MY_PASSWORD}", ", user: ${oc.env:MY_PASSWORD}")
    labrl.train([*LOCKED, by_reference, "hydra.run.dir=run"], raise_on_failure=True)
    assert "${oc.env:MY_PASSWORD}" in Path("run/overrides.yaml").read_text()
    assert files_with("k3y-old-one", "run") == []
    forget()
    monkeypatch.setenv("MY_PASSWORD", "k3y-new-one")
    labrl.train(["+resume=run", "env.max_frame=128"], raise_on_failure=True)
    assert files_with("k3y-new-one", "run") == []


def test_changed_secret_does_not_contradict_the_past() -> None:
    labrl.train([*LOCKED, made(), "hydra.run.dir=run"], raise_on_failure=True)
    labrl.train(["+resume=run", f"{KEY}=k3y-2", "env.max_frame=128"], raise_on_failure=True)
    labrl.train(["+rerun=run", f"{KEY}=k3y-2", "hydra.run.dir=again"], raise_on_failure=True)
    assert [files_with("k3y-", folder) for folder in ("run", "again")] == [[], []]


@pytest.mark.extended
def test_grid_records_its_secrets_nowhere_and_its_resume_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", *LOCKED, ONE_PROCESS, made(), "seed=1,2", "hydra.sweep.dir=grid"]) == 0
    one, two = (["-m", "+resume=grid", f"env.max_frame={frames}"] for frames in (128, 192))
    check_that_resumes_ask(one, two, f"{KEY}={SECRET}", "LABRL_ENV_MAKE_API_KEY", monkeypatch, capfd)
    frames = [run.read_info()["sessions"][0]["frame"] for run in Experiment.load("grid").runs]
    assert frames == [192, 192]
    assert files_with(SECRET, "grid") == []


@pytest.mark.extended
def test_search_records_its_secrets_nowhere_and_its_resume_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    url = "hydra.sweeper.storage='sqlite:///study.db?password=s3cret-of-db'"
    overrides = [
        *("-m", "hydra/sweeper=optuna", "hydra.sweeper.study_name=x", "hydra.sweep.dir=search", url),
        *("env=cartpole", "agent=random", "search.confirm=null", "search/pruner=none", "meta.max_trial=1"),
        *("env.max_frame=256", *QUIET[:3], "env.num_envs=choice(1,2)"),
    ]  # fmt: skip
    assert main([*overrides, "meta.report=true"]) == 0
    one, two = (["-m", "+resume=search", f"meta.max_trial={trials}"] for trials in (2, 3))
    check_that_resumes_ask(one, two, url, "LABRL_HYDRA_SWEEPER_STORAGE", monkeypatch, capfd)
    assert files_with("s3cret-of-db", ".") == []


def test_files_with_secrets_are_recognized_by_name() -> None:
    secret = ("secrets/a.txt", "db_password.txt", "credentials-prod.yaml", "secrets.py", "api_key.txt")
    innocent = ("train.py", "token_bucket.py", "keys.py", "monkey.txt", "max_tokens.txt", "secretary.py")
    assert [path for path in secret if not is_secret_file(path)] == []
    assert [path for path in innocent if is_secret_file(path)] == []
