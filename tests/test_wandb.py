"""Weights & Biases shows each session as its folder tells it: each row once, whatever was killed and resumed.

`WandbSession` in this process over folders as sessions write them; whole runs are in test_wandb_runs.py.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from wandb_cases import Server, logs, shown, tables, told, wandb

from labrl.config.compose import compose, to_plain
from labrl.dashboards.wandb_session import WandbSession
from labrl.storage.provenance import Command, write_provenance
from labrl.storage.run_folder import RunFolder
from labrl.storage.tables import CsvTable


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing of a test lies in, or comes from, the home of whoever runs it."""
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "300")  # a machine may be busy
    yield
    wandb.teardown()


class Trial:
    """A run folder whose only session has played so far."""

    def __init__(self, path: Path, *overrides: str) -> None:
        self.run = RunFolder.create(path)
        plain = to_plain(compose(["agent=random", "seed=3", *overrides]))
        self.options = plain["wandb"]
        write_provenance(self.run, plain, Command(overrides=list(overrides)))
        self.session = self.run.session(0)

    def play(self, *frames: int, evaluate: int = 200) -> None:
        """Write the rows of these frames."""
        for frame in frames:
            CsvTable(self.session.train_csv).append({"frame": frame, "loss": 1 / frame, "kl": None})
            if frame % evaluate == 0:
                row = {"frame": frame, "return_mean": float(frame), "source": "training"}
                CsvTable(self.session.eval_csv).append(row)

    def save(self, frame: int) -> None:
        (self.session.checkpoints / f"frame_{frame:012d}").mkdir(parents=True)

    def go_back(self, frame: int) -> None:
        """Go back as a resume from the checkpoint at `frame` does."""
        for path in (self.session.train_csv, self.session.eval_csv):
            CsvTable(path).truncate_after(frame)

    def end(self, status: str = "finished", **facts: Any) -> None:
        result = {"index": 0, "seed": 77, "status": status, "frame": 400, **facts}
        self.session.result.write_text(json.dumps(result))

    def shown(self, mode: Any = "offline") -> WandbSession:
        session = WandbSession(self.run, 0, mode, self.options)
        session.start()
        return session

    @property
    def steps(self) -> list[list[int]]:
        """Return the steps of each of W&B's logs."""
        return [told(log).steps for log in logs(self.session.path)]


def killed(session: WandbSession) -> None:
    """Leave the session as a kill does: with what was sent, and without a status."""
    session._wandb.finish(exit_code=1)
    wandb.teardown()


def finished(session: WandbSession, report: Path | None = None) -> None:
    """End the session as its process does, which completes the log."""
    session.finish(report)
    wandb.teardown()


def test_rows_of_both_tables_are_one_row_with_the_frame_as_its_step(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run")
    trial.play(100, 200, 300, 400)
    trial.save(400)
    trial.end()
    finished(trial.shown())
    (log,) = logs(trial.session.path)
    found = told(log)
    assert found.steps == [100, 200, 300, 400]
    assert shown(found.rows) == tables(trial.session.path)
    assert found.rows[1]["eval/return_mean"] == 200.0
    assert not {"train/kl", "eval/source"} & set(found.rows[1]), "an empty cell, and text"
    assert found.metrics == {"frame": "", "train/*": "frame", "eval/*": "frame"}


def test_nothing_behind_the_newest_checkpoint_is_sent_before_the_next(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run")
    shows = trial.shown()
    trial.play(100, 200, 300)
    shows.update()
    trial.save(200)
    shows.update()
    killed(shows)
    assert trial.steps == [[100, 200]]


def test_what_lies_behind_an_evaluation_under_way_waits_for_it(tmp_path: Path) -> None:
    """W&B would refuse its row, because the steps of a run only grow."""
    trial = Trial(tmp_path / "run", "meta.rigorous_eval=1", "meta.async_eval=true")
    shows = trial.shown()
    trial.play(100, 200, 300, evaluate=10**9)
    trial.save(300)
    shows.update()
    CsvTable(trial.session.eval_csv).append({"frame": 200, "return_mean": 7.0})
    shows.update()
    trial.play(400, evaluate=10**9)
    CsvTable(trial.session.eval_csv).append({"frame": 400, "return_mean": 8.0})
    trial.save(400)
    trial.end()
    finished(shows)
    (log,) = logs(trial.session.path)
    assert shown(told(log).rows) == tables(trial.session.path)


def test_a_run_says_what_it_is_and_how_it_ended(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "experiment" / "trial", "wandb.project=p", "wandb.tags=[one,two]", "agent=ppo")
    (tmp_path / "experiment" / "experiment.json").write_text("{}")
    trial.save(0)
    trial.end("failed", final_return=12.5, best_return=20.0, error="loss is nan")
    finished(trial.shown())
    (log,) = logs(trial.session.path)
    found = told(log)
    assert found.run.project == "p"
    assert found.run.run_group == "experiment/trial"
    assert found.run.job_type == "session"
    assert found.run.display_name == "trial"
    assert list(found.run.tags) == ["one", "two"]
    assert found.exit_code == 1
    assert found.config["agent"]["clip_range"]
    assert found.config["seed"] == 3
    assert found.config["experiment"] == "experiment"
    assert {"git", "packages", "machine", "command", "overrides"} <= set(found.config["provenance"])
    expected = {"final_return": 12.5, "best_return": 20.0, "status": "failed", "error": "loss is nan"}
    assert expected.items() <= found.summary.items()


def test_names_and_groups_can_be_given(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", "wandb.name=mine", "wandb.group=ours", "meta.max_session=2")
    trial.end()
    finished(trial.shown())
    (log,) = logs(trial.session.path)
    assert (told(log).run.display_name, told(log).run.run_group) == ("mine_0", "ours")


def test_artifacts_are_the_best_model_the_videos_and_the_report(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", "wandb.artifacts=[best,report,videos]")
    best, videos = trial.session.checkpoints / "best", trial.session.path / "videos"
    for path in (best / "manifest.json", best / "state.pt", videos / "last.mp4", trial.run.path / "r.html"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"frame": 200}')
    trial.end()
    shows = trial.shown()
    finished(shows, report=trial.run.path / "r.html")
    (log,) = logs(trial.session.path)
    assert told(log).artifacts == {
        "model": ["manifest.json", "state.pt"],
        "videos": ["last.mp4"],
        "report": ["r.html"],
    }


def test_without_artifacts_there_are_none(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run")
    trial.end()
    finished(trial.shown())
    (log,) = logs(trial.session.path)
    assert told(log).artifacts == {}


def test_what_was_never_sent_is_written_anew_on_resume(tmp_path: Path) -> None:
    """One log, for one `wandb sync`: a torn one would stop it."""
    trial = Trial(tmp_path / "run")
    first = trial.shown()
    trial.play(100, 200, 300)
    trial.save(200)
    first.update()
    killed(first)
    (torn,) = logs(trial.session.path)
    torn.write_bytes(torn.read_bytes()[:-20])
    trial.go_back(200)

    second = trial.shown()
    trial.play(300, 400)
    trial.save(400)
    trial.end()
    finished(second)
    assert trial.steps == [[100, 200, 300, 400]]
    (log,) = logs(trial.session.path)
    assert log.stem == torn.stem, "the same id"
    assert shown(told(log).rows) == tables(trial.session.path)


def test_after_a_sync_only_what_follows_is_written(tmp_path: Path) -> None:
    """W&B appends a second log of the same id to what the first one gave it."""
    trial = Trial(tmp_path / "run")
    first = trial.shown()
    trial.play(100, 200, 300)
    trial.save(200)
    first.update()
    killed(first)
    (synced,) = logs(trial.session.path)
    time.sleep(1.1)  # two logs of one second would share a folder
    synced.with_name(f"{synced.name}.synced").touch()
    trial.go_back(200)

    second = trial.shown()
    trial.play(300, 400)
    trial.save(400)
    trial.end()
    finished(second)
    assert trial.steps == [[100, 200], [300, 400]]


def test_a_server_gets_each_row_once_over_a_kill_and_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path / "run", "wandb.entity=me")
    with Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        first = trial.shown("online")
        trial.play(100, 200, 300)
        trial.save(200)
        first.update()
        killed(first)
        assert [row["_step"] for row in server.rows(first._id)] == [100, 200]

        shutil.rmtree(trial.session.path / "wandb")  # the server alone knows what it has
        trial.go_back(100)  # the checkpoint at 200 turned out to be broken
        second = trial.shown("online")
        trial.play(200, 300, 400)
        trial.save(400)
        trial.end(final_return=4.0)
        finished(second)
        (name,) = server.runs
        assert [row["_step"] for row in server.rows(name)] == [100, 200, 300, 400]
        assert shown(server.rows(name)) == tables(trial.session.path)
        run = server.runs[name]
        assert run["exit_code"] == 0
        assert json.loads(run["summary"])["final_return"] == 4.0
        assert (run["groupName"], run["jobType"]) == ("run", "session")


def test_a_run_that_went_offline_goes_on_online_with_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path / "run")
    first = trial.shown("offline")
    trial.play(100, 200)
    trial.save(200)
    first.update()
    killed(first)
    with Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        second = trial.shown("online")
        trial.end()
        finished(second)
        assert [row["_step"] for row in server.rows(first._id)] == [100, 200]
    assert not list((trial.session.path / "wandb").glob("offline-run-*")), "it would double them"
