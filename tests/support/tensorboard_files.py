"""Points in the TensorBoard files of runs."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(path))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return frame and value of all TensorBoard points by tag, without wall time and fps."""
    found = scalars(folder / "session_0" / "tensorboard")
    return {tag: values for tag, values in found.items() if not tag.endswith(("wall", "fps"))}
