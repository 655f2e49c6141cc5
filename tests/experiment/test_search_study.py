"""Tests of studies: no trial is lost or doubled by a kill, hopeless trials stop, several machines share."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.trial import TrialState
from refusals import refused
from search_cases import (
    SPACE,
    TOTAL,
    TPE,
    folder_of,
    history,
    next_of,
    play,
    pruner,
    states,
    study,
    write_eval,
)

from labrl.experiment.machine import Need
from labrl.experiment.scheduler import RetryingQueue, read_end, returns_of
from labrl.experiment.search.confirmation import to_confirm
from labrl.experiment.search.options import Confirm, start_of
from labrl.experiment.search.space import Space
from labrl.run.atomic import write_json
from labrl.run.experiment import TrialRecord
from labrl.session.interruption import Interruption

SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": TPE,
    "random": {"_target_": "optuna.samplers.RandomSampler"},
    "cmaes": {"_target_": "optuna.samplers.CmaEsSampler", "warn_independent_sampling": False},
    "gp": {"_target_": "optuna.samplers.GPSampler", "n_startup_trials": 9},
    "qmc": {"_target_": "optuna.samplers.QMCSampler", "warn_independent_sampling": False},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_study_restarted_after_each_trial_proposes_the_same_trials(tmp_path: Path, name: str) -> None:
    """CMA-ES, Gaussian processes and QMC propose others then, but none twice."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    uninterrupted = study(whole, sampler=SAMPLERS[name])
    for _ in range(TOTAL):
        interrupted = study(parts, sampler=SAMPLERS[name])
        play(interrupted, parts, next_of(interrupted))
        if name in ("tpe", "random"):
            play(uninterrupted, whole, next_of(uninterrupted))
            assert history(interrupted) == history(uninterrupted)
    assert len({str(trial.params) for trial in interrupted.trials()}) == TOTAL


def test_killed_trial_continues_with_its_number_and_values(tmp_path: Path) -> None:
    first = study(tmp_path)
    play(first, tmp_path, next_of(first))
    left = next_of(first)
    write_eval(folder_of(tmp_path, left), 10, 0.0)
    first.should_prune(left.number, folder_of(tmp_path, left))
    again = study(tmp_path)
    taken = next_of(again)
    assert (taken.number, taken.params) == (left.number, left.params)
    assert again.trial_seed(taken.number) == first.trial_seed(left.number)
    # A resumed session cuts the rows after its checkpoint, and evaluates again.
    (folder_of(tmp_path, left) / "session_0" / "eval.csv").unlink()
    play(again, tmp_path, taken, value=99.0)
    assert states(again) == ["COMPLETE", "COMPLETE"]
    assert next_of(again).number == 2


@pytest.mark.parametrize("writes", range(9))
def test_kill_while_a_trial_is_asked_for_loses_and_doubles_none(
    tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the two trials has been enqueued by Optuna's tools."""
    url, left = f"journal:///{tmp_path / 'shared'}", [writes]
    killed = study(tmp_path, url, sampler=SAMPLERS["random"], total=2)
    killed.optuna.enqueue_trial({"x": 0.125})
    write = JournalStorage._write_log

    def until(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(JournalStorage, "_write_log", until)
        while killed.ask() is not None:
            pass
    assert left[0] < 0
    again = study(tmp_path, url, sampler=SAMPLERS["random"], total=2)
    drawn = {}
    while (trial := again.ask()) is not None:
        drawn[trial.number] = trial.params
    assert list(drawn) == [0, 1]
    assert drawn[0]["x"] == 0.125
    assert all(set(params) == set(SPACE.distributions) for params in drawn.values())
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("kind", ["asha", "hyperband", "median"])
def test_hopeless_trial_is_pruned_and_told_with_its_last_value(tmp_path: Path, kind: str) -> None:
    begin: dict[str, Any] = {"n_warmup_steps": 10} if kind == "median" else {"min_resource": 10}
    tested = study(tmp_path, total=20, stops=pruner(kind, n_startup_trials=1, **begin))
    for value in range(8, 16):
        play(tested, tmp_path, next_of(tested), value=float(value))
    ended = [play(tested, tmp_path, next_of(tested), value=-100.0) for _ in range(6)]
    assert any(ended)
    (bad, *_) = (one for one in tested.trials() if one.state == TrialState.PRUNED and (one.value or 0) < 0)
    assert bad.value == bad.intermediate_values[bad.last_step or 0]
    folder = tmp_path / f"trial_{bad.number}"
    tested.finish(bad.number, folder)
    assert tested.trials()[bad.number].state == TrialState.PRUNED


def test_no_trial_is_stopped_before_some_have_finished_or_at_its_end(tmp_path: Path) -> None:
    tested = study(tmp_path, stops=pruner("asha", n_startup_trials=2, min_resource=10))
    assert not play(tested, tmp_path, next_of(tested), value=9.0)
    assert not play(tested, tmp_path, next_of(tested), value=1.0)
    assert play(tested, tmp_path, next_of(tested), value=1.0)
    assert not play(tested, tmp_path, next_of(tested), value=1.0, frames=(40,))


@pytest.mark.parametrize(
    ("kind", "total", "expected"),
    [
        ("asha", 30, (3, 200)),
        ("asha", 50, (0, 111)),
        ("hyperband", 6, (5, 300)),
        ("median", 50, (5, 100)),
    ],
)
def test_start_of_pruning_fits_the_size_of_the_search(
    kind: str, total: int, expected: tuple[int, int]
) -> None:
    assert start_of(pruner(kind), total, 1000, 100) == expected
    assert start_of(pruner(kind), total, 1000, 400)[1] <= 800, "the last evaluation before the end"


def test_every_session_of_a_pruned_trial_is_stopped(tmp_path: Path) -> None:
    tested = study(tmp_path, num_sessions=2)
    good, bad = next_of(tested), next_of(tested)
    for trial, value in ((good, 9.0), (bad, -100.0)):
        for session in range(2):
            for frame in (10, 20, 40) if trial is good else (10,):
                write_eval(folder_of(tmp_path, trial), frame, value, session)
    assert not tested.should_prune(good.number, folder_of(tmp_path, good))
    tested.finish(good.number, folder_of(tmp_path, good))
    assert tested.should_prune(bad.number, folder_of(tmp_path, bad))
    assert tested.should_prune(bad.number, folder_of(tmp_path, bad))


def test_reported_value_is_the_mean_at_an_evaluation_that_all_sessions_have_passed(tmp_path: Path) -> None:
    tested = study(tmp_path, num_sessions=2, stops=pruner("none"))
    trial = next_of(tested)
    folder = folder_of(tmp_path, trial)
    write_eval(folder, 10, 1.0, session=0)
    write_eval(folder, 20, 3.0, session=0)
    (folder / "session_1").mkdir()
    assert not tested.should_prune(trial.number, folder)
    assert tested.trials()[0].intermediate_values == {}
    write_eval(folder, 10, 3.0, session=1)
    assert not tested.should_prune(trial.number, folder)
    assert tested.trials()[0].intermediate_values == {10: 2.0}


def test_trial_of_a_silent_machine_is_told_as_failed_and_another_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"journal:///{tmp_path / 'shared'}"
    now = 1e9
    monkeypatch.setattr("labrl.experiment.search.study.time.time", lambda: now)
    there, here = study(tmp_path / "there", url, total=1), study(tmp_path / "here", url, total=1)
    left = next_of(there)
    now += 300
    here.beat()
    assert here.ask() is None
    assert not here.is_complete()
    now += 1
    here.beat()
    assert states(here) == ["FAIL"]
    another = next_of(here)
    assert another.number == 1
    play(here, tmp_path / "here", another)
    assert here.is_complete()
    # The machine was only asleep.
    folder = folder_of(tmp_path / "there", left)
    write_eval(folder, 10, 1.0)
    assert there.should_prune(left.number, folder)
    there.finish(left.number, folder)
    assert states(there) == ["FAIL", "COMPLETE"]


def test_one_of_several_machines_confirms_the_best_trials(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path / 'shared'}"
    machines = [study(tmp_path / name, url, total=1) for name in "abc"]
    play(machines[1], tmp_path, next_of(machines[1]))
    assert {one.confirming_machine() for one in machines} == {machines[0].machine}
    machines[0].leave()
    assert machines[1].confirming_machine() == machines[0].machine, "it has confirmed them"
    more = study(tmp_path / "c", url, total=2)
    play(more, tmp_path, next_of(more))
    assert more.confirming_machine() == machines[1].machine, "the first one that is alive"


def test_folder_of_a_killed_search_may_be_moved(tmp_path: Path) -> None:
    left = next_of(study(tmp_path / "before"))
    shutil.move(tmp_path / "before", tmp_path / "after")
    assert next_of(study(tmp_path / "after")).number == left.number


def test_torn_last_line_of_a_journal_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "study.journal"
    before = study(tmp_path, f"journal:///{journal}")
    play(before, tmp_path, next_of(before))
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "work')
    after = study(tmp_path, f"journal:///{journal}")
    assert str(journal) in capsys.readouterr().out
    assert history(after) == history(before)
    play(after, tmp_path, next_of(after))
    assert journal.read_bytes().startswith(whole)
    assert len(study(tmp_path, f"journal:///{journal}").trials()) == 2


def test_journal_that_is_damaged_inside_is_refused_with_its_path(tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    next_of(study(tmp_path, f"journal:///{journal}"))
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"?" + lines[1][:-9] + b"\n", *lines[2:]]))
    with refused(None, "hydra.sweeper.storage", str(journal)):
        study(tmp_path, f"journal:///{journal}")


def test_trials_added_or_asked_for_by_others_count_and_are_not_waited_for(tmp_path: Path) -> None:
    tested = study(tmp_path, total=3)
    others = optuna.load_study(study_name="labrl", storage=f"sqlite:///{tmp_path / 'study.db'}")
    others.ask()
    others.add_trial(optuna.trial.create_trial(value=50.0))
    mine = next_of(tested)
    assert mine.number == 2
    assert tested.ask() is None
    assert not tested.is_complete()
    play(tested, tmp_path, mine)
    assert tested.is_complete()
    assert [trial.number for trial in tested.best()] == [1, 2]
    again = study(tmp_path, total=4)
    assert next_of(again).number == 3
    assert states(again)[0] == "RUNNING"


def test_confirmation_is_filled_with_the_pruned_trials_that_got_furthest(tmp_path: Path) -> None:
    tested = study(tmp_path)
    rows: list[dict[int, float]] = [{10: 4.0, 20: 5.0, 40: 6.0}, {10: 3.0}, {10: 3.5}, {10: 9.0, 20: 4.0}]
    for values in rows:
        trial = next_of(tested)
        for frame, value in values.items():
            write_eval(folder_of(tmp_path, trial), frame, value)
            tested.should_prune(trial.number, folder_of(tmp_path, trial))
        tested.finish(trial.number, folder_of(tmp_path, trial))
        if trial.number == 3:
            tested.optuna.tell(3, state=TrialState.PRUNED, skip_if_finished=True)
    tested.fail(next_of(tested).number, "out of luck")
    assert states(tested)[:3] == ["COMPLETE", "PRUNED", "PRUNED"]
    assert states(tested)[-1] == "FAIL"
    for top, expected in ((1, 1), (2, 2), (9, 4)):
        entry = to_confirm(Confirm(top=top, sessions=2, default=True), tested)
        assert len(entry["candidates"]) == expected + 1
        assert entry["candidates"][-1]["trial"] is None
    finished = [one for one in entry["candidates"] if one["trial"] is not None and not one.get("pruned")]
    pruned = [one for one in entry["candidates"] if one.get("pruned")]
    assert entry["candidates"][:4] == [*finished, *pruned]
    assert [one["searched"] for one in pruned][-2:] == [[3.5], [3.0]]


def test_failed_trial_keeps_its_error_and_the_study_continues(tmp_path: Path) -> None:
    tested = study(tmp_path)
    tested.fail(next_of(tested).number, "out of luck")
    no_episode = next_of(tested)
    folder = folder_of(tmp_path, no_episode)
    (folder / "session_0").mkdir(parents=True)
    tested.finish(no_episode.number, folder)
    assert states(tested) == ["FAIL", "FAIL"]
    assert "out of luck" in tested.trials()[0].user_attrs.values()
    assert next_of(tested).number == 2


def test_trial_fails_after_its_process_died_more_often_than_the_retries(tmp_path: Path) -> None:
    need, trial = Need(1, None), TrialRecord(number=0, overrides=[], folder="0")
    queue = RetryingQueue(tmp_path, 1, Interruption(), [(trial, need)])
    for _ in range(2):
        assert queue.next(lambda need: True) == (trial, need)
        assert not queue.over
        trial.status, trial.error = "failed", "killed"
        queue.ended(trial, need, died=True)
    assert queue.next(lambda need: True) is None
    assert [one.status for one in queue.over.values()] == ["failed"]


def test_trial_that_a_signal_ends_is_left_to_a_resume(tmp_path: Path) -> None:
    """Regression test: a signal inside a library that hides it made a trial of a search fail for good."""
    trial = TrialRecord(number=0, overrides=[], folder="0", status="failed", error="Stopped")
    interruption = Interruption()
    queue = RetryingQueue(tmp_path, 2, interruption)
    interruption.stop(2)
    queue.ended(trial, Need(1, None), died=False)
    assert not queue.over
    assert not queue.left


def test_return_of_a_failed_session_does_not_count(tmp_path: Path) -> None:
    sessions = [
        {"index": 0, "status": "finished", "final_return": 1.0, "error": None},
        {"index": 1, "status": "failed", "final_return": 2.0, "error": "out of luck"},
    ]
    write_json(tmp_path / "run.json", {"status": "failed", "sessions": sessions})
    trial = TrialRecord(number=0, overrides=[], folder="0")
    read_end(trial, tmp_path)
    assert (trial.status, trial.error) == ("failed", "session 1: out of luck")
    assert returns_of(tmp_path) == (1.0,)
    read_end(trial, tmp_path / "gone")
    assert trial.status == "failed"


def test_study_whose_choices_differ_is_refused(tmp_path: Path) -> None:
    next_of(study(tmp_path))
    other = study(tmp_path, space=Space.of({}, ["x=interval(0.0, 2.0)", "y=choice(a, z)"]))
    with refused("contradiction", "hydra.sweeper.study_name"):
        next_of(other)


def test_search_minimizes_if_asked(tmp_path: Path) -> None:
    tested = study(tmp_path, direction="minimize", stops=pruner("none"))
    for value in (3.0, 1.0, 2.0):
        play(tested, tmp_path, next_of(tested), value=value)
    assert [trial.number for trial in tested.best()] == [1, 2, 0]
