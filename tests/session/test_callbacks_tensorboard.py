"""Tests of the TensorBoard callback: its scalars and histograms, also after a resume or a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from callback_cases import ToySession, evaluation
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard_files import scalars
from torch.utils.tensorboard.writer import FileWriter

from labrl.cli import main
from labrl.run.tables import read_rows
from labrl.session.callbacks.closer_look import CloserLook
from labrl.session.callbacks.log import LogTraining
from labrl.session.callbacks.tensorboard import TensorBoard


def test_scalars_are_the_finite_numbers_of_the_rows(tmp_path: Path) -> None:
    board = TensorBoard()
    session = ToySession(tmp_path, max_frame=100).run(
        board, LogTraining(50, [board]), evaluation(50, 0, [board])
    )
    found = scalars(session.folder.tensorboard)
    assert found["train/return_mean"] == [(52, 1.5), (100, 4.0)]
    assert found["eval/episodes"] == [(52, 2.0), (100, 3.0)]
    assert "train/kl" not in found, "a NaN was written as a scalar"
    assert "eval/source" not in found, "a text was written as a scalar"


class Weighted(ToySession):
    """A session whose agent has two weights, equal to the number of frames and not a number."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, max_frame=200)
        self.net = torch.nn.Linear(2, 1, bias=False)
        self.agent.modules = lambda: {"net": self.net}
        self.env.actions = None

    def step(self) -> None:
        self.net.weight.data[0] = torch.tensor([self.clock.frame + self.num_envs, torch.nan])
        super().step()


def test_resume_neither_loses_nor_repeats_scalars_and_histograms(tmp_path: Path) -> None:
    board = TensorBoard(CloserLook())
    session, log = Weighted(tmp_path), LogTraining(20, [board])
    session.callbacks = [board, log]
    for part in session.callbacks:
        part.start(session)
    while session.clock.frame < 60:
        session.step()
    state = session.state_dict()
    while session.clock.frame < 120:
        session.step()  # these steps are lost when the session is killed

    board = TensorBoard(CloserLook())
    log = LogTraining(20, [board])
    Weighted(tmp_path).load_state_dict(state, board, log).run(board, log)
    written = list(range(20, 201, 20))
    assert [step for step, _ in scalars(tmp_path / "tensorboard")["train/return_mean"]] == written
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    found = [(one.step, one.histogram_value) for one in events.Histograms("weights/net/weight")]
    assert [(step, values.num, values.max) for step, values in found] == [(step, 1, step) for step in written]


def test_hparams_of_a_trial_are_its_overrides(tmp_path: Path) -> None:
    overrides = ["agent=random", "env.max_frame=64", "meta.progress=false", "wandb=disabled"]
    (tmp_path / "experiment.json").write_text("{}")
    run = tmp_path / "trial"
    assert main([*overrides, "seed=3", "env.num_envs=4", f"hydra.run.dir={run}"]) == 0
    events = EventAccumulator(str(run / "session_0" / "tensorboard"))
    events.Reload()
    content = events.PluginTagToContent("hparams")
    started = HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info
    values = {name: value.number_value or value.string_value for name, value in started.hparams.items()}
    assert values["env.num_envs"] == 4
    assert values["env.max_frame"] == 64
    assert values["seed"] == 3
    assert values["agent"] == "random"
    assert started.group_name == "trial"


def test_training_continues_on_full_disk_and_writes_later_scalars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def full_for_a_while(writer: FileWriter) -> None:
        calls.append(writer)
        if len(calls) in (2, 3):
            raise OSError(28, "No space left on device")
        writer.event_writer.flush()

    monkeypatch.setattr(FileWriter, "flush", full_for_a_while)
    board = TensorBoard()
    session = ToySession(tmp_path, max_frame=200).run(board, LogTraining(25, [board]))
    frames = [row["frame"] for row in read_rows(session.folder.train_csv)]
    found = [frame for frame, _ in scalars(session.folder.tensorboard)["train/return_mean"]]
    assert found[-1] == frames[-1]
    assert set(frames) - set(found) <= set(frames[1:3])
    assert len(found) == len(set(found))
    assert caplog.text.count("No space left") == 1
