"""TensorBoard shows the numbers of the tables, over frames, and no doubled ones after a resume."""

from __future__ import annotations

from pathlib import Path

from callback_cases import ToySession
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labrl.session.callbacks.evaluate import Evaluate
from labrl.session.callbacks.log import LogTraining
from labrl.session.callbacks.tensorboard import TensorBoard


def scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(path))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_are_the_finite_numbers_of_the_rows_over_frames(tmp_path: Path) -> None:
    board = TensorBoard()
    session = ToySession(tmp_path, max_frame=100).run(
        board, LogTraining(50, [board]), Evaluate(50, 0, [board])
    )
    found = scalars(session.folder.tensorboard)
    assert found["train/return_mean"] == [(52, 1.5), (100, 4.0)]
    assert found["eval/episodes"] == [(52, 2.0), (100, 3.0)]
    assert "train/kl" not in found, "it is nan"
    assert "eval/source" not in found, "it is text"


def test_what_was_written_after_the_checkpoint_is_hidden_after_a_resume(tmp_path: Path) -> None:
    board, log = TensorBoard(), LogTraining(50)
    log = LogTraining(50, [board])
    session = ToySession(tmp_path, max_frame=200)
    session.callbacks = [board, log]
    for part in session.callbacks:
        part.start(session)
    while session.clock.frame < 52:
        session.step()
    state = session.state_dict()
    while session.clock.frame < 180:
        session.step()
    board.finish(session)

    board = TensorBoard()
    log = LogTraining(50, [board])
    resumed = ToySession(tmp_path, max_frame=200).load_state_dict(state, board, log)
    resumed.run(board, log)
    steps = [step for step, _ in scalars(resumed.folder.tensorboard)["train/return_mean"]]
    assert steps == [52, 100, 152, 200]
