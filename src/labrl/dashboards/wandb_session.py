"""One session as a run of Weights & Biases, kept up with the session's folder."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labrl.dashboards.login import Mode
from labrl.dashboards.rows import last_frame, rows_between
from labrl.dashboards.transaction_log import last_step
from labrl.errors import DONE, FAILED, INTERRUPTED
from labrl.storage.atomic import write_json
from labrl.storage.experiment_folder import experiment_of
from labrl.storage.provenance import known_provenance, recorded_config
from labrl.storage.run_folder import RunFolder, SessionFolder

INIT_SECONDS = 30.0
"""How long W&B may take to take up a run before it is kept offline; WANDB_INIT_TIMEOUT gives another."""

_FLUSH_SECONDS = 2.0
_SHARE_OF_READING = 20
"""Reading the tables may take a twentieth of this process's time."""

_PACKAGES = ("labrl", "torch", "numpy", "gymnasium", "ale-py", "hydra-core", "wandb")

_log = logging.getLogger(__name__)


class WandbSession:
    """A W&B run whose rows are those of the tables up to the newest checkpoint, each once.

    No row is sent that a resume could take back: what lies behind the checkpoint waits for the next one.
    A frame's rows of both tables are one row of W&B's, with the frame as its step, so that where to go on
    can be read from W&B: its server where online, its own log where offline. The id lies in `wandb.json`
    of the session's folder.
    """

    def __init__(self, run: RunFolder, index: int, mode: Mode, options: Mapping[str, Any]) -> None:
        """mode: online or offline; options: a `WandbConfig` as plain data."""
        self.folder: SessionFolder = run.session(index)
        self.mode = mode
        self.warning: str | None = None
        """Why what was asked for was not done, once."""
        self.ended = False
        self._run_folder = run
        self._config = recorded_config(run)
        self._options = options
        self._state = self.folder.path / "wandb.json"
        self._id = _known_id(self._state) or secrets.token_hex(6)
        self._wandb: Any = None
        self._sent = -1
        self._next = 0.0

    def go_offline(self, error: Exception) -> None:
        """From the beginning, because W&B could not be reached."""
        self.mode = "offline"
        self._warn(f"not reached ({_first_line(error)}), kept offline")

    def start(self) -> None:
        """Make the run, or go on with it. Raises what W&B raises."""
        self._record()  # a kill from now on leaves the id behind
        sent = self._forget_unsent()
        self._wandb = self._init()
        self._sent = self._wandb.starting_step - 1 if self.mode == "online" else sent
        self._wandb.define_metric("frame")
        for table in ("train", "eval"):
            self._wandb.define_metric(f"{table}/*", step_metric="frame")
        self._record()

    def update(self) -> None:
        """Send what has come to lie before a checkpoint since the last time."""
        now = time.monotonic()
        newest = max(self.folder.checkpoint_frames(), default=-1)
        if newest <= self._sent or now < self._next:
            return
        if self._config["meta"].get("async_eval") and not self._finished:
            # Steps of W&B's only grow: what is before an evaluation under way waits for it.
            newest = min(newest, last_frame(self.folder.eval_csv))
        for frame, metrics in rows_between(self.folder, self._sent, newest):
            self._wandb.log({"frame": frame, **metrics}, step=frame, commit=True)
            self._sent = frame
        self._next = time.monotonic() + _SHARE_OF_READING * (time.monotonic() - now)

    def wants(self, artifact: str) -> bool:
        """Whether `artifact` (best, report, videos) was asked for."""
        return artifact in self._options["artifacts"]

    @property
    def _finished(self) -> bool:
        return (_json(self.folder.result) or {}).get("status") == "finished"

    @property
    def complete(self) -> bool:
        """Whether the session has ended and nothing that is made after it is to be waited for."""
        result = _json(self.folder.result)
        later = self.wants("report") or self.wants("videos")
        return result is not None and not (later and result.get("status") == "finished")

    def finish(self, report: Path | None = None) -> None:
        """The rest of the rows, summary, artifacts, and how it ended.

        report: the trial's, if this run is to show it. Raises TimeoutError where the uploads take longer
        than `wandb.wait`, and what W&B raises.
        """
        self._next = 0.0
        self.update()
        result = _json(self.folder.result) or {"status": "failed"}
        self._wandb.summary.update(_summary(result))
        self._add_artifacts(result, report)
        self._wandb.finish(exit_code=_exit_code(result["status"]))
        self.ended = True

    def fail(self, error: Exception) -> None:
        """Give this run up, and remember why."""
        self.ended = True
        late = isinstance(error, TimeoutError)
        self._warn("not all was sent in time" if late else f"given up ({_first_line(error)})")

    def _warn(self, text: str) -> None:
        self.warning = self.warning or text
        _log.warning("session %d: %s", self.folder.index, text)
        self._record()

    def _record(self) -> None:
        online = self.mode == "online" and self._wandb is not None
        facts = {"mode": self.mode, "url": self._wandb.url if online else None, "warning": self.warning}
        write_json(self._state, {"id": self._id, **facts})

    def _init(self) -> Any:
        import wandb

        trial = self._run_folder.path.name
        several = self._config["meta"]["max_session"] > 1
        name = self._options["name"] or trial
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,  # provenance knows the commit and the changes
            disable_code=True,
            disable_job_creation=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS)),
            finish_timeout=max(self._options["wait"], 0.1),
            finish_timeout_raises=True,
            x_stats_pid=os.getppid(),  # the trial, with the sessions below it
            x_stats_track_process_tree=True,
            x_transaction_log_flush_interval=_FLUSH_SECONDS,
        )
        return wandb.init(
            mode="online" if self.mode == "online" else "offline",
            dir=str(self.folder.path),
            project=self._options["project"],
            entity=self._options["entity"],
            id=self._id,
            resume="allow" if self.mode == "online" else None,
            name=f"{name}_{self.folder.index}" if several else name,
            group=self._options["group"] or group_of(self._run_folder.path),
            job_type="session",
            tags=self._options["tags"],
            config=self._recorded(),
            allow_val_change=True,
            reinit="create_new",
            settings=settings,
        )

    def _recorded(self) -> dict[str, Any]:
        """The trial's configuration, which session it is, and where it comes from."""
        facts = known_provenance(self._run_folder)
        versions = facts.get("packages", {})
        packages = {name: versions[name] for name in _PACKAGES if name in versions}
        experiment = experiment_of(self._run_folder.path)
        return {
            **{key: value for key, value in self._config.items() if key != "wandb"},
            "session": self.folder.index,
            "run_folder": str(self._run_folder.path),
            "experiment": experiment.name if experiment else None,
            "provenance": {
                **{
                    key: facts[key]
                    for key in ("started", "command", "git", "python", "machine", "overrides")
                    if key in facts
                },
                "packages": packages,
                "resumes": len(self._run_folder.info().get("resumes", [])),
            },
        }

    def _forget_unsent(self) -> int:
        """Remove former logs that never left this machine: their rows will be written anew.

        Returns the last frame in the others, which W&B has, or was given; -1 without any.
        """
        last = -1
        for log in (self.folder.path / "wandb").glob(f"*run-*-{self._id}/run-{self._id}.wandb"):
            step = last_step(log)
            offline = log.parent.name.startswith("offline-")
            if step is None or (offline and not log.with_name(f"{log.name}.synced").exists()):
                shutil.rmtree(log.parent, ignore_errors=True)
            else:
                last = max(last, step)
        return last

    def _add_artifacts(self, result: Mapping[str, Any], report: Path | None) -> None:
        best = self.folder.checkpoints / "best"
        if self.wants("best") and (manifest := _json(best / "manifest.json")):
            facts = {"frame": manifest["frame"], "best_return": result.get("best_return")}
            self._add("best", "model", sorted(best.iterdir()), facts)
        if self.wants("videos"):
            self._add("videos", "videos", sorted((self.folder.path / "videos").glob("*.mp4")), {})
        if report is not None:
            self._add("report", "report", [report], {})

    def _add(self, name: str, kind: str, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
        import wandb

        if not files:
            return
        artifact = wandb.Artifact(f"{self._id}-{name}", type=kind, metadata=dict(facts))
        for file in files:
            artifact.add_file(str(file), name=file.name)
        self._wandb.log_artifact(artifact)


def group_of(run: Path) -> str:
    """What the sessions of the trial in folder `run` are grouped under: its name, below its experiment's."""
    experiment = experiment_of(run)
    return f"{experiment.name}/{run.name}" if experiment else run.name


def _summary(result: Mapping[str, Any]) -> dict[str, Any]:
    names = {"return_mean": "final_return", "return_std": "final_return_std"}
    keys = (
        "return_mean",
        "return_std",
        "return_episodes",
        "best_return",
        "best_source",
        "frame",
        "episodes",
        "wall",
        "seed",
        "status",
        "error",
    )
    return {names.get(key, key): result[key] for key in keys if result.get(key) is not None}


def _exit_code(status: str) -> int:
    return {"finished": DONE, "pruned": DONE, "interrupted": INTERRUPTED}.get(status, FAILED)


def _known_id(state: Path) -> str | None:
    known = _json(state)
    return known.get("id") if known else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
