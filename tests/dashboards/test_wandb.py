"""Tests of `WandbSession`: W&B gets each row of a session exactly once, also across kills and resumes.

The session folders are written by the tests; test_wandb_runs.py has tests with whole runs.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from wandb_cases import LogContent, Server, by_frame, forget_user, logs, read_log, tables, wandb

from labrl.config.compose import compose, to_plain
from labrl.dashboards.wandb_session import WandbSession
from labrl.run.provenance import Origin, write_provenance
from labrl.run.run import Run
from labrl.run.tables import CsvTable

pytestmark = pytest.mark.extended


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    forget_user(monkeypatch, tmp_path / "home")
    yield
    wandb.teardown()


class Trial:
    """Run folder with one session, whose progress the test writes."""

    def __init__(self, path: Path, *overrides: str) -> None:
        self.run = Run.create(path)
        plain = to_plain(compose(["agent=random", "seed=3", *overrides]))
        self.options = plain["wandb"]
        write_provenance(self.run, plain, Origin(overrides=list(overrides)))
        self.session = self.run.session(0)

    def play(self, *frames: int, evaluate: int = 200) -> None:
        """Write rows of training metrics at these frames, and of evaluation at multiples of `evaluate`."""
        for frame in frames:
            CsvTable(self.session.train_csv).append({"frame": frame, "loss": 1 / frame, "kl": None})
            if frame % evaluate == 0:
                row = {"frame": frame, "return_mean": float(frame), "source": "training"}
                CsvTable(self.session.eval_csv).append(row)

    def save(self, frame: int) -> None:
        """Make the folder of a checkpoint."""
        (self.session.checkpoints / f"frame_{frame:012d}").mkdir(parents=True)

    def go_back(self, frame: int) -> None:
        """Truncate the tables as a resume from the checkpoint at `frame` does."""
        for path in (self.session.train_csv, self.session.eval_csv):
            CsvTable(path).truncate_after(frame)

    def end(self, status: str = "finished", **facts: Any) -> None:
        """Write the result of the session."""
        result = {"index": 0, "seed": 77, "status": status, "frame": 400, **facts}
        self.session.result_json.write_text(json.dumps(result))

    def send_to_wandb(self, mode: Any = "offline") -> WandbSession:
        """Start a `WandbSession` of the session and return it."""
        session = WandbSession(self.run, 0, mode, self.options)
        session.start()
        return session

    def sent(self) -> LogContent:
        """Return the content of W&B's only log."""
        (log,) = logs(self.session.path)
        return read_log(log)


def kill(session: WandbSession) -> None:
    """End the session as a kill does: rows that were sent are kept, and there is no status."""
    session._wandb.finish(exit_code=1)
    wandb.teardown()


def finish(session: WandbSession, report: Path | None = None) -> None:
    """End the session as its process does, so that the log is complete."""
    session.finish(report)
    wandb.teardown()


def test_rows_of_both_tables_are_merged_with_the_frame_as_step(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run")
    trial.play(100, 200, 300, 400)
    trial.save(400)
    trial.end()
    finish(trial.send_to_wandb())
    found = trial.sent()
    assert found.steps == [100, 200, 300, 400]
    assert by_frame(found.rows) == tables(trial.session.path)
    assert found.rows[1]["eval/return_mean"] == 200.0
    assert not {"train/kl", "eval/source"} & set(found.rows[1]), "an empty cell or text was sent"
    assert found.metrics == {"frame": "", "train/*": "frame", "eval/*": "frame"}


def test_rows_after_an_unfinished_evaluation_are_not_sent(tmp_path: Path) -> None:
    """W&B would reject the row of the evaluation, because the steps of a run must increase."""
    trial = Trial(tmp_path / "run", "meta.rigorous_eval=1", "meta.async_eval=true")
    sender = trial.send_to_wandb()
    trial.play(100, 200, 300, evaluate=10**9)
    trial.save(300)
    sender.update()
    CsvTable(trial.session.eval_csv).append({"frame": 200, "return_mean": 7.0})
    sender.update()
    trial.play(400, evaluate=10**9)
    CsvTable(trial.session.eval_csv).append({"frame": 400, "return_mean": 8.0})
    trial.save(400)
    trial.end()
    finish(sender)
    assert by_frame(trial.sent().rows) == tables(trial.session.path)


def test_wandb_run_has_its_configuration_provenance_and_result(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "experiment" / "trial", "wandb.project=p", "wandb.tags=[one,two]", "agent=ppo")
    (tmp_path / "experiment" / "experiment.json").write_text("{}")
    trial.save(0)
    trial.end("failed", final_return=12.5, best_return=20.0, error="loss is nan")
    finish(trial.send_to_wandb())
    found = trial.sent()
    run = found.run
    assert (run.project, run.run_group, run.job_type) == ("p", "experiment/trial", "session")
    assert (run.display_name, [*run.tags]) == ("trial", ["one", "two"])
    assert found.exit_code == 1
    assert found.config["agent"]["clip_range"]
    assert found.config["seed"] == 3
    assert found.config["experiment"] == "experiment"
    assert {"git", "machine", "command", "overrides"} <= set(found.config["provenance"])
    expected = {"final_return": 12.5, "best_return": 20.0, "status": "failed", "error": "loss is nan"}
    assert expected.items() <= found.summary.items()


def test_best_model_videos_and_report_are_artifacts_and_videos_are_media_that_the_page_plays(
    tmp_path: Path,
) -> None:
    trial = Trial(tmp_path / "run", "wandb.artifacts=[best,report,videos,media]")
    trial.play(100, 200)
    trial.session.store().save(200, {}, best=200)
    trial.session.videos.mkdir()
    for path in (trial.session.videos / "last.mp4", trial.run.path / "r.html"):
        path.write_bytes(b"content")
    trial.end()
    finish(trial.send_to_wandb(), report=trial.run.path / "r.html")
    found = trial.sent()
    assert found.artifacts == {
        "model": ["manifest.json", "state.pt"],
        "videos": ["last.mp4"],
        "report": ["r.html"],
    }
    assert found.steps == [100, 200, 201]
    row = found.rows[-1]
    assert row["videos/last/_type"] == "video-file"
    (log,) = logs(trial.session.path)
    assert (log.parent / "files" / row["videos/last/path"]).read_bytes() == b"content"


def test_resume_after_a_sync_writes_only_later_rows(tmp_path: Path) -> None:
    """W&B appends the rows of a second log with the same run id to those of the first."""
    trial = Trial(tmp_path / "run")
    first = trial.send_to_wandb()
    trial.play(100, 200, 300)
    trial.save(200)
    first.update()
    kill(first)
    (synced,) = logs(trial.session.path)
    while int(time.time()) <= int(synced.parent.stat().st_mtime):
        time.sleep(0.02)  # two logs started in the same second would share a folder
    synced.with_name(f"{synced.name}.synced").touch()
    trial.go_back(200)

    second = trial.send_to_wandb()
    trial.play(300, 400)
    trial.save(400)
    trial.end()
    finish(second)
    assert [read_log(log).steps for log in logs(trial.session.path)] == [[100, 200], [300, 400]]


def test_server_gets_each_row_once_across_a_kill_and_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path / "run", "wandb.entity=me")
    with Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        first = trial.send_to_wandb("online")
        trial.play(100, 200, 300)
        trial.save(200)
        first.update()
        kill(first)
        assert [row["_step"] for row in server.rows(first.id)] == [100, 200]

        shutil.rmtree(trial.session.path / "wandb")  # only the server knows which rows it has
        trial.go_back(100)  # as if the checkpoint at 200 were damaged
        second = trial.send_to_wandb("online")
        trial.play(200, 300, 400)
        trial.save(400)
        trial.end(final_return=4.0)
        finish(second)
        (name,) = server.runs
        assert [row["_step"] for row in server.rows(name)] == [100, 200, 300, 400]
        assert by_frame(server.rows(name)) == tables(trial.session.path)
        run = server.runs[name]
        assert run["exit_code"] == 0
        assert json.loads(run["summary"])["final_return"] == 4.0
        assert (run["groupName"], run["jobType"]) == ("run", "session")


def test_offline_run_resumed_online_sends_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path / "run")
    first = trial.send_to_wandb("offline")
    trial.play(100, 200)
    trial.save(200)
    first.update()
    kill(first)
    with Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        second = trial.send_to_wandb("online")
        trial.end()
        finish(second)
        assert [row["_step"] for row in server.rows(first.id)] == [100, 200]
    assert not list((trial.session.path / "wandb").glob("offline-run-*")), "rows would be sent twice"
