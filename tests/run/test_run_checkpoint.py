"""Tests of checkpoints: written completely or not at all, restored exactly, loaded without running code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disk_limit import file_size_limit
from refusals import refused

from labrl.run.checkpoint import CheckpointStore, _checksum


def bits(value: Any) -> Any:
    """Return all types, keys and bits of a nested state, to compare it with another one."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.contiguous().reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return dict, [(type(key), key, bits(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [bits(part) for part in value]
    return type(value), np.float64(value).tobytes() if isinstance(value, float) else value


def same(a: Any, b: Any) -> bool:
    return bool(bits(a) == bits(b))


def some_state(number: int = 0) -> dict[str, Any]:
    return {
        "number": number,
        "weights": torch.full((3, 4), float(number)),
        "window": np.arange(number, number + 5),
        "rng": np.random.default_rng(number).bit_generator.state,
    }


DTYPES = (np.uint8, np.int64, np.float32, np.float64, np.bool_, np.uint64, np.complex64, "<U3", "<M8[s]")
KINDS = (torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64, torch.float16)


def test_nested_state_is_restored_exactly(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    state = {
        "numbers": [2**200, -(2**70), 0.1, -0.0, float("nan"), (float("inf"), -float("inf")), True, None],
        "text": ["", "é\n\0", b"\xff\0"],
        "keys": {2: 0, True: 0, None: 0, (1, "a"): 0, "": {}, "1": []},
        "looks like a tag": {"tensor": "x", "dict": {"tuple": []}},
        "same place": {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        "arrays": [np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES],
        "tensors": [torch.arange(6).reshape(2, 3).to(dtype) for dtype in KINDS],
        "sizes": [np.zeros((0, 3)), np.array(7), torch.zeros(3, 0), torch.tensor(0.1)],
        "scalars": [np.float32(0.1), np.int16(3), np.bool_(True)],
        "philox": np.random.Generator(np.random.Philox(3)).bit_generator.state,
        "read only": np.broadcast_to(np.float32(2), (3, 2)),
        "reversed": np.arange(6).reshape(2, 3)[:, ::-1],
    }
    checkpoint = store.load(store.save(7, state))
    assert checkpoint.frame == 7
    assert same(state, checkpoint.state)
    checkpoint.state["reversed"][0, 0] = 9  # restored arrays are writable


def test_checkpoint_of_a_run_that_was_moved_does_not_make_its_folder_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CheckpointStore(tmp_path / "moved" / "session_0" / "checkpoints", keep_last=1).save(7, some_state())
    assert list(tmp_path.iterdir()) == []


def test_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    path = store.save(1, {"view": torch.zeros(10**6)[3:5], "expanded": torch.zeros(1).expand(4)})
    assert (path / "state.pt").stat().st_size < 10_000


@pytest.mark.parametrize(
    "thing", [object(), {1, 2}, torch.nn.Linear(1, 1), np.array([object()]), lambda: 0, {np.int64(1): 2}]
)
def test_state_that_is_not_plain_data_is_refused_with_its_path(tmp_path: Path, thing: Any) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    with pytest.raises(TypeError, match="/agent/1"):
        store.save(1, {"agent": [0, thing]})
    assert list(tmp_path.iterdir()) == []


def test_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for frame in range(100, 700, 100):
        store.save(frame, some_state(frame), best=frame if frame in (200, 300) else None)
    assert store.frames() == [600, 500, 300]
    best: Any = store.best()
    assert (best.frame, store.newest_whole_frame()) == (300, 600)
    assert same(best.state, some_state(300))


def test_saving_a_frame_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    store.save(5, some_state(1), best=5)
    store.save(5, some_state(2), best=5)
    latest: Any = store.latest()
    best: Any = store.best()
    assert latest.state["number"] == best.state["number"] == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two undamaged checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    store = CheckpointStore(folder, keep_last=2)
    store.save(1, some_state(1))
    store.save(2, some_state(2))
    return folder


def damaged(whole: Path, tmp_path: Path) -> tuple[CheckpointStore, Path]:
    """Copy the two checkpoints, for a test to damage; return their store and the folder of the newest."""
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return CheckpointStore(folder, keep_last=2), folder / "frame_000000000002"


def check_falls_back(store: CheckpointStore) -> None:
    """Check that `latest` returns an undamaged checkpoint and reports the newest if it skips it."""
    checkpoint = store.latest()
    assert checkpoint is not None
    assert same(checkpoint.state, some_state(checkpoint.frame)), "a damaged state was returned"
    if checkpoint.frame == 1:
        assert [path.name for path in store.broken] == ["frame_000000000002"]


@pytest.mark.parametrize("content", [b"[]", b"{}", b"\xff\xfe", b'{"checksum": 1}'])
def test_checkpoint_with_a_wrong_manifest_is_reported_and_skipped(
    whole: Path, tmp_path: Path, content: bytes
) -> None:
    store, newest = damaged(whole, tmp_path)
    (newest / "manifest.json").write_bytes(content)
    check_falls_back(store)


def rewritten(newest: Path, **changes: Any) -> None:
    """Change entries of the manifest and update its checksum, as another program could."""
    manifest = {**json.loads((newest / "manifest.json").read_text()), **changes}
    manifest["checksum"] = _checksum(manifest)
    (newest / "manifest.json").write_text(json.dumps(manifest))


def put(newest: Path, name: str, content: bytes) -> None:
    """Replace a file of the checkpoint and update the manifest accordingly."""
    (newest / name).write_bytes(content)
    files = json.loads((newest / "manifest.json").read_text())["files"]
    facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewritten(newest, files={**files, name: facts})


@pytest.mark.parametrize("version", [1, 99])
def test_checkpoint_of_another_format_is_refused_and_not_skipped(
    version: int, whole: Path, tmp_path: Path
) -> None:
    store, newest = damaged(whole, tmp_path)
    (newest / "state.pt").unlink()
    rewritten(newest, format_version=version, files={})
    for read in (store.latest, store.newest_whole_frame, lambda: store.load(newest)):
        with refused("not-installed", newest):
            read()


@pytest.mark.parametrize("large", [False, True])
def test_loaded_state_is_writable_and_independent_of_its_file(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("labrl.run.tree.LARGE", 0)
    store = CheckpointStore(tmp_path, keep_last=1)
    path = store.save(1, some_state(1))
    checkpoint = store.load(path)
    checkpoint.state["window"][:] = 0
    checkpoint.state["weights"].zero_()
    store.save(2, some_state(2))
    assert not path.exists()
    assert not checkpoint.state["window"].any(), "the loaded state changed with its file"
    assert same(store.load(store.folder / "frame_000000000002").state, some_state(2))


class Intruder:
    """Object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_malicious_pickle_is_refused_and_not_executed(whole: Path, tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    buffer = io.BytesIO()
    torch.save({"weights": Intruder(trace)}, buffer)
    for content in (buffer.getvalue(), pickle.dumps(Intruder(trace), protocol=2)):
        store, newest = damaged(whole, tmp_path)
        put(newest, "state.pt", content)
        check_falls_back(store)
        assert "state.pt" in str(store.broken)
        assert not trace.exists()
    pickle.loads(pickle.dumps(Intruder(trace), protocol=2))
    assert trace.exists(), "the pickle is harmless even when it is executed"


@pytest.mark.parametrize(
    "tree",
    [
        OrderedDict(unknown=1),
        OrderedDict(array=torch.zeros(8, dtype=torch.uint8), dtype="|O", shape=(1,), scalar=False),
        OrderedDict(array=torch.zeros(8, dtype=torch.uint8), dtype="<f8", shape=(2,), scalar=False),
    ],
)
def test_checkpoint_with_a_malformed_tree_is_reported_and_skipped(
    whole: Path, tmp_path: Path, tree: Any
) -> None:
    store, newest = damaged(whole, tmp_path)
    content = io.BytesIO()
    torch.save({"number": tree}, content)
    put(newest, "state.pt", content.getvalue())
    check_falls_back(store)
    assert store.broken


def test_kill_while_saving_leaves_earlier_checkpoints(whole: Path, tmp_path: Path) -> None:
    store, newest = damaged(whole, tmp_path)
    os.replace(newest, newest.with_name(f".{newest.name}.new.tmp"))  # completely written but not yet renamed
    latest = store.latest()
    assert latest is not None
    assert latest.frame == 1
    assert not store.broken
    store.save(3, some_state(3))
    assert store.frames() == [3, 1]
    assert not list(store.folder.glob(".*")), "the unfinished checkpoint was not removed"


def test_best_of_an_older_checkpoint_stays_until_that_is_removed(tmp_path: Path) -> None:
    """A resume goes back to an older checkpoint if the newest one is damaged."""
    store = CheckpointStore(tmp_path, keep_last=2)
    for frame in range(1, 6):
        store.save(frame, some_state(frame), best=frame if frame in (1, 4) else None)
    assert store.frames() == [5, 4]
    store.declare_best(4)
    store.save(6, some_state(6), keep=True)
    store.save(7, some_state(7), best=7)
    store.save(8, some_state(8))
    assert (store.frames(), store.best_frame()) == ([8, 7, 6, 4], 7)
    store.discard_after(6)
    assert store.best_frame() == 4


def test_best_checkpoint_may_be_declared_later(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, some_state(1), best=1)
    store.save(2, some_state(2), owed=2)
    store.save(3, some_state(3), owed=2)
    assert (store.frames(), store.best_frame()) == ([3, 2, 1], 1)
    store.declare_best(2)
    best = CheckpointStore(tmp_path, keep_last=1).best()
    assert best is not None
    assert same(best.state, some_state(2))
    store.save(4, some_state(4))
    assert (store.frames(), store.best_frame()) == ([4, 2], 2)
    with pytest.raises(FileNotFoundError):
        store.declare_best(3)


def test_full_disk_leaves_earlier_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, some_state(1), best=1)

    with file_size_limit(10_000), pytest.raises(OSError, match="too large"):
        store.save(2, {"weights": torch.zeros(100_000)}, best=2)
    assert (store.newest_whole_frame(), store.best_frame()) == (1, 1)
    assert not list(tmp_path.glob(".*"))


def test_checkpoint_is_readable_without_labrl(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path, keep_last=1).save(4, some_state(4), best=4)
    assert json.loads((path / "manifest.json").read_text())["frame"] == 4
    state = torch.load(path / "state.pt", weights_only=True)
    assert state["number"] == 4
    assert torch.equal(state["weights"], torch.full((3, 4), 4.0))
    assert np.array_equal(state["window"]["array"].numpy().view(state["window"]["dtype"]), np.arange(4, 9))
