"""TensorBoard event files: rows as scalars, histograms, and an experiment's hyperparameters."""

from __future__ import annotations

import math
import os
import platform
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# Compared with torch.utils.tensorboard, these modules take half the time per row and allow explicit flushes.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from labrl.errors import LabrlError
from labrl.run.run import Run
from labrl.run.write_errors import write_all
from labrl.session.callbacks.callback import Row, SessionView, Table
from labrl.session.callbacks.closer_look import NamedValues

_BINS = 64


def event_files(folder: Path) -> list[Path]:
    """Return the event files in a folder, in the order in which TensorBoard reads them."""
    return sorted(folder.glob("events.out.tfevents.*"))


class EventFile:
    """A new event file in a session's folder, beside any earlier ones.

    Events are written by `flush`. Those that cannot be written are kept for the next call.
    """

    def __init__(self, folder: Path, purge_from: int | None = None) -> None:
        """purge_from: step from which readers discard the content of earlier files."""
        before = [int(path.name.split(".")[3]) for path in event_files(folder)]
        number = max(
            int(time.time()), *(one + 1 for one in before), 0
        )  # sorts after all others, even if the system clock was set back
        self._path = folder / f"events.out.tfevents.{number:010d}.{platform.node()}.{os.getpid()}"
        self._pending = bytearray()
        self._add(file_version="brain.Event:2", step=purge_from or 0)
        if purge_from is not None:
            self._add(step=purge_from, session_log=SessionLog(status=SessionLog.START))

    def add_row(self, table: Table, row: Row, moment: float | None = None) -> None:
        """Write the finite numbers of a row.

        moment: time at which the row was written, in seconds since the epoch; None: the current time.
        """
        values = [
            Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
            for column, value in row.items()
            if column != "frame" and isinstance(value, int | float) and math.isfinite(value)
        ]
        self._add(moment, step=int(row["frame"]), summary=Summary(value=values))

    def add_histograms(self, frame: int, named: Iterable[NamedValues]) -> None:
        """Write one histogram for each tag."""
        values = [Summary.Value(tag=tag, histo=histogram(numbers, edges)) for tag, numbers, edges in named]
        self._add(step=frame, summary=Summary(value=values))

    def add_hyperparameters(self, session: SessionView) -> None:
        """Write the overrides of the trial, if it belongs to an experiment."""
        trial = session.folder.path.parent
        info = SessionStartInfo(group_name=trial.name, model_uri=str(session.folder.path))
        for name, value in typed(Run(trial)).items() if Run(trial).experiment is not None else ():
            kind = (
                "bool"
                if isinstance(value, bool)
                else "number"
                if isinstance(value, int | float)
                else "string"
            )
            setattr(info.hparams[name], f"{kind}_value", str(value) if kind == "string" else value)
        self._add_plugin_data(session, "session_start_info", session_start_info=info)

    def add_end(self, session: SessionView) -> None:
        """Write how the session ended."""
        status = Status.Value("STATUS_SUCCESS" if session.clock.finished else "STATUS_FAILURE")
        self._add_plugin_data(session, "session_end_info", session_end_info=SessionEndInfo(status=status))

    def flush(self) -> None:
        """Write the pending events to the file. Raises OSError."""
        self._path.parent.mkdir(exist_ok=True)
        write_all(self._path, self._pending)

    def _add_plugin_data(self, session: SessionView, name: str, **content: Any) -> None:
        if Run(session.folder.path.parent).experiment is not None:
            data = HParamsPluginData(**content).SerializeToString()
            plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data)
            value = Summary.Value(tag=f"_hparams_/{name}", metadata=SummaryMetadata(plugin_data=plugin))
            self._add(summary=Summary(value=[value]))

    def _add(self, moment: float | None = None, **content: Any) -> None:
        event = Event(wall_time=time.time() if moment is None else moment, **content)
        self._pending += record(event.SerializeToString())


def record(data: bytes) -> bytes:
    """Return `data` as a TFRecord record: its length and content, each followed by a checksum.

    TensorBoard's own record writer takes a twentieth of a second to import.
    """
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of `data`, 4 bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli's polynomial, bit-reversed
    return byte


_CRC = [_crc_of(byte) for byte in range(256)]


def histogram(values: np.ndarray, edges: np.ndarray | None = None) -> HistogramProto:
    """Return a histogram of the finite values.

    edges: bin edges; None: `_BINS` bins of equal width from the lowest to the highest value.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return HistogramProto()
    counts, edges = np.histogram(finite, _BINS if edges is None else edges)
    return HistogramProto(
        min=finite.min(),
        max=finite.max(),
        num=finite.size,
        sum=finite.sum(),
        sum_squares=float(finite @ finite),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )


def typed(run: Run) -> dict[str, Any]:
    """Return the overrides of a trial by key, with resolved values, and its seed.

    Returns {} if the run folder is damaged, because a damaged folder must not stop training.
    """
    try:
        config, overrides = run.read_config(), run.overrides
    except LabrlError:
        return {}
    found: dict[str, Any] = {"seed": config.get("seed")}
    for override in overrides:
        name, _, text = override.lstrip("+").partition("=")
        value: Any = config
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        found[name] = text if value is None or isinstance(value, Mapping | list) else value
    return {name: value for name, value in found.items() if name and value is not None}
