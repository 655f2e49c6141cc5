"""The locked folder of a running experiment, whose end is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labrl.errors import LabrlError
from labrl.experiment.summary import how_to_resume_experiment
from labrl.processes.signals import signals_raise
from labrl.run.experiment import Experiment, ExperimentKind, TrialRecord, discard_refused
from labrl.run.run import MARKER


@contextmanager
def held(
    path: Path, kind: ExperimentKind, exists: bool, records: Sequence[TrialRecord] = (), **facts: Any
) -> Iterator[Experiment]:
    """Context manager: lock the folder of an experiment.

    exists: whether the experiment exists; otherwise, it is created with `records` and `facts`, and removed if
    a LabrlError ends it before a trial has started. Any other early end is recorded as its status: a failure,
    or an interruption with a note on how to resume. Raises BusyFolderError if the folder is in use.
    """
    before = {one.name for one in path.iterdir()} if path.is_dir() else None
    folder = Experiment.open(path) if exists else None
    folder = folder or Experiment.begin(path, kind, records, **facts)
    with folder.lock():
        try:
            with signals_raise():
                yield folder
        except LabrlError:
            if not exists and not any(path.glob(f"*/{MARKER}")):
                discard_refused(path, before)
            elif folder.recorded_status == "running":
                folder.set_status("interrupted")
            raise
        except KeyboardInterrupt as stop:
            folder.set_status("interrupted")
            stop.add_note(f"to resume: {how_to_resume_experiment(path)}")
            raise
        except BaseException:
            folder.set_status("failed")
            raise
