"""Reader of W&B's transaction logs, and a local server that replaces W&B's own."""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from labrl.run.tables import TEXT_COLUMNS

API_KEY = "k" * 40


def records(log: Path) -> Iterator[Any]:
    """Iterate over the records of a `.wandb` file, in LevelDB's log format.

    The file starts with a header of 7 bytes and has blocks of 32 KiB.
    """
    content = log.read_bytes()
    at, whole = 7, b""
    while at < len(content):
        if 32768 - at % 32768 < 7:  # padding
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        part = content[at + 7 : at + 7 + length]
        assert len(part) == length, "the record is incomplete"
        at += 7 + length
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)


def forget_user(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Remove any login and settings of W&B, and use `home` as the home folder."""
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "300")  # generous, for busy machines
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HOME"):
        monkeypatch.setenv(name, str(home))


@dataclass
class LogContent:
    """Content of one transaction log of W&B."""

    run: Any = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, list[str]] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def steps(self) -> list[int]:
        """Return the step of each row."""
        return [row["_step"] for row in self.rows]


def read_log(log: Path) -> LogContent:
    """Read a transaction log."""
    found = LogContent()
    for record in records(log):
        match record.WhichOneof("record_type"):
            case "run":
                found.run = record.run
                found.config |= _items(record.run.config.update)
            case "config":
                found.config |= _items(record.config.update)
            case "history":
                found.rows.append({**_items(record.history.item), "_step": record.history.step.num})
            case "summary":
                found.summary |= _items(record.summary.update)
            case "metric":
                name = record.metric.name or record.metric.glob_name
                found.metrics[name] = record.metric.step_metric
            case "artifact":
                files = [entry.path for entry in record.artifact.manifest.contents]
                found.artifacts[record.artifact.type] = sorted(files)
            case "exit":
                found.exit_code = record.exit.exit_code
    return found


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def logs(session: Path) -> list[Path]:
    """Return the transaction logs in a session's folder."""
    return sorted((session / "wandb").glob("*run-*/run-*.wandb"))


def tables(session: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the rows of both tables merged by frame, as W&B must have them."""
    from exact_cases import rows

    merged: dict[int, dict[str, float]] = {}
    for name in ("train", "eval"):
        path = session / f"{name}.csv"
        for row in rows(path) if path.exists() else []:
            frame = int(row.pop("frame"))
            numbers = {f"{name}/{key}": cell for key, cell in row.items() if key not in TEXT_COLUMNS and cell}
            merged.setdefault(frame, {}).update({key: float(cell) for key, cell in numbers.items()})
    return sorted(merged.items())


def by_frame(rows: list[dict[str, Any]]) -> list[tuple[int, dict[str, float]]]:
    """Return W&B's rows in the form of `tables`: for each its frame and its metrics, without timings."""
    pattern = re.compile(r"(train|eval)/(?!wall$|fps$).*")
    return [(row["frame"], {k: v for k, v in row.items() if pattern.fullmatch(k)}) for row in rows]


class Server:
    """Local server with the part of W&B's protocol that its client needs to send a history.

    It runs while it is used as a context manager.
    """

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *overrides: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply({})

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    content = gzip.decompress(content)
                if self.path.startswith("/graphql"):
                    self.reply(server.answer(json.loads(content)))
                elif self.path.endswith("file_stream"):
                    server.stream(self.path.split("/")[-2], json.loads(content))
                    self.reply({"exitcode": None, "limits": {}})
                else:
                    self.reply({})

            def reply(self, answer: Any) -> None:
                content = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that point W&B's client to this server."""
        url = f"http://127.0.0.1:{self._http.server_port}"
        return {"WANDB_BASE_URL": url, "WANDB_API_KEY": API_KEY}

    def __enter__(self) -> Server:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, query: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a GraphQL query."""
        operation, values = query.get("operationName"), query.get("variables") or {}
        project = {"id": "p", "name": values.get("project"), "entity": {"id": "e", "name": "me"}}
        if operation == "UpsertBucket":
            run = self.runs.setdefault(values["name"], {"history": [], "summary": "{}", "exit_code": None})
            run.update({key: value for key, value in values.items() if value is not None})
            bucket = {"id": "r", "name": values["name"], "displayName": run.get("displayName")}
            bucket |= {"historyLineCount": len(run["history"]), "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if operation == "RunResumeStatus":
            run = self.runs.get(values["name"])
            return {"data": {"model": {**project, "bucket": run and self._resumed(values["name"], run)}}}
        if "viewer" not in query["query"]:
            return {"data": None, "errors": [{"message": "not part of this server"}]}
        viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
        return {"data": {"viewer": viewer, "serverInfo": None}}

    def stream(self, name: str, content: dict[str, Any]) -> None:
        """Store the rows, the summary and the exit code that the client sends for a run."""
        run = self.runs[name]
        files = content.get("files") or {}
        if history := files.get("wandb-history.jsonl"):
            at = history["offset"]
            run["history"][at : at + len(history["content"])] = history["content"]
        if summary := files.get("wandb-summary.json"):
            run["summary"] = summary["content"][-1]
        if content.get("complete"):
            run["exit_code"] = content["exitcode"]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows that the server has of a run."""
        return [json.loads(line) for line in self.runs[name]["history"]]

    def _resumed(self, name: str, run: dict[str, Any]) -> dict[str, Any]:
        counts = {"historyLineCount": len(run["history"]), "logLineCount": 0, "eventsLineCount": 0}
        tails = {"historyTail": json.dumps(run["history"][-1:]), "eventsTail": "[]"}
        known = {"id": "r", "name": name, "displayName": None, "tags": [], "config": run.get("config")}
        return {**known, **counts, **tails, "summaryMetrics": run["summary"], "wandbConfig": '{"t": 1}'}


__all__ = ["API_KEY", "LogContent", "Server", "by_frame", "logs", "read_log", "records", "tables", "wandb"]
