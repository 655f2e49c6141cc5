"""Tests of studies: trials run once, and an interrupted study proposes the same as an uninterrupted one."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.trial import TrialState
from search_cases import PLAN, TPE, history, next_of, play, pruner, study, write_eval

from labrl.errors import InputError
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import Outcome, RetryingQueue, Task
from labrl.experiment.search.options import Confirm
from labrl.experiment.search.search import to_confirm
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import StudyStorage
from labrl.experiment.search.study import FACTS, HEARTBEAT, MISSED_BEATS
from labrl.run.lock import FolderLock
from labrl.session.interruption import Interruption

SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": TPE,
    "random": {"_target_": "optuna.samplers.RandomSampler"},
    "cmaes": {"_target_": "optuna.samplers.CmaEsSampler", "warn_independent_sampling": False},
    "gp": {"_target_": "optuna.samplers.GPSampler", "n_startup_trials": 3},
    "qmc": {"_target_": "optuna.samplers.QMCSampler", "warn_independent_sampling": False},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_study_restarted_after_each_trial_proposes_the_same_trials(tmp_path: Path, name: str) -> None:
    uninterrupted = study(tmp_path / "uninterrupted", sampler=SAMPLERS[name])
    for _ in range(PLAN.total):
        play(uninterrupted, next_of(uninterrupted))
    for _ in range(PLAN.total):
        interrupted = study(tmp_path / "interrupted", sampler=SAMPLERS[name])
        play(interrupted, next_of(interrupted))
    assert history(interrupted) == history(uninterrupted)
    assert len({str(trial.params) for trial in uninterrupted.trials()}) > 1


def test_qmc_sampler_draws_categorical_values_anew_for_each_trial(tmp_path: Path) -> None:
    """Categorical values are not part of the quasi-random sequence, and once were the same in every trial."""
    tested = study(tmp_path, sampler=SAMPLERS["qmc"])
    drawn = {next_of(tested).params["y"] for _ in range(PLAN.total)}
    assert len(drawn) > 1


def test_trial_of_a_dead_machine_continues_with_its_folder_values_and_seed(tmp_path: Path) -> None:
    uninterrupted = study(tmp_path / "uninterrupted")
    for _ in range(4):
        play(uninterrupted, next_of(uninterrupted))
    interrupted = study(tmp_path / "interrupted")
    play(interrupted, next_of(interrupted))
    left = next_of(interrupted)
    write_eval(left.folder, 10, 0.0)
    again = study(tmp_path / "interrupted")
    taken = next_of(again)
    assert (taken.number, taken.params, taken.seed) == (left.number, left.params, left.seed)
    assert taken.folder == left.folder
    (left.folder / "session_0" / "eval.csv").unlink()  # a resumed session cuts the rows after its checkpoint
    play(again, taken)
    for _ in range(2):
        play(again, next_of(again))
    assert history(again) == history(uninterrupted)


def test_killed_trial_that_reports_again_gets_the_same_decision(tmp_path: Path) -> None:
    tested = study(tmp_path)
    play(tested, next_of(tested))
    second = next_of(tested)
    write_eval(second.folder, 10, -100.0)
    # The trial is killed after its value was stored and before the pruner was asked.
    storage = StudyStorage(f"journal:///{tmp_path / 'study.journal'}", tmp_path).optuna
    study_id = storage.get_study_id_from_name(PLAN.name)
    storage.set_trial_intermediate_value(
        storage.get_trial_id_from_study_id_trial_number(study_id, second.number), 10, -100.0
    )
    again = study(tmp_path)
    taken = next_of(again)
    assert again.report(taken.number, taken.folder)
    assert again.trials()[1].state == TrialState.PRUNED


def test_overtaken_trial_is_pruned_with_all_its_reported_values(tmp_path: Path) -> None:
    tested = study(tmp_path)
    slow, quick = next_of(tested), next_of(tested)
    write_eval(slow.folder, 10, 0.0)
    assert not tested.report(slow.number, slow.folder)
    write_eval(quick.folder, 10, 5.0)
    assert not tested.report(quick.number, quick.folder)
    write_eval(slow.folder, 15, 1.0)
    assert tested.report(slow.number, slow.folder)
    assert tested.trials()[0].intermediate_values == {10: 0.0, 15: 1.0}


def test_study_killed_before_a_trial_is_stored_draws_the_same_values_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = next_of(study(tmp_path / "uninterrupted", sampler=SAMPLERS["random"])).params
    interrupted = study(tmp_path / "interrupted", sampler=SAMPLERS["random"])

    def killed(*trial: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RDBStorage, "create_new_trial", killed)
        patch.setattr(JournalStorage, "create_new_trial", killed)
        with pytest.raises(KeyboardInterrupt):
            next_of(interrupted)
    assert not interrupted.trials()
    again = study(tmp_path / "interrupted", sampler=SAMPLERS["random"])
    assert next_of(again).params == expected


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_two_machines_run_each_trial_once_and_no_more_than_the_total(tmp_path: Path, kind: str) -> None:
    url = f"{kind}:///{tmp_path / 'shared'}"
    given: list[int] = []

    def machine(home: Path) -> None:
        with FolderLock(home):
            tested = study(home, url, total=10)
            while (assignment := tested.next("trial_{}".format)) is not None:
                given.append(assignment.number)
                play(tested, assignment)

    homes = [tmp_path / name for name in "ab"]
    for home in homes:
        home.mkdir()
    threads = [threading.Thread(target=machine, args=(home,)) for home in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(10))
    assert all(trial.state.is_finished() for trial in study(homes[0], url, total=10).trials())


def test_only_trials_of_dead_machines_are_taken_over(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path / 'shared'}"
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    with FolderLock(there):
        left = next_of(study(there, url, total=1))
        assert study(here, url, total=1).next("trial_{}".format) is None
    taken = next_of(study(here, url, total=1))
    assert (taken.number, taken.folder) == (left.number, left.folder)


def test_machine_on_another_host_is_dead_after_missed_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"journal:///{tmp_path / 'shared'}"
    now = 1e9
    monkeypatch.setattr("labrl.experiment.search.study.time.time", lambda: now)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("labrl.experiment.search.study.socket.gethostname", lambda: "elsewhere")
        there = study(tmp_path / "there", url, total=1)
    next_of(there)
    shutil.rmtree(tmp_path / "there")
    now += MISSED_BEATS * HEARTBEAT
    here = study(tmp_path / "here", url, total=1)
    assert here.next("trial_{}".format) is None
    now += 1
    taken = next_of(here)
    assert taken.folder == tmp_path / "here" / "trial_0"  # the dead machine's folder cannot be reached


def test_reported_value_is_the_mean_over_all_sessions_at_the_same_frame(tmp_path: Path) -> None:
    tested = study(tmp_path, num_sessions=2, pruner=pruner("none"))
    first = next_of(tested)
    write_eval(first.folder, 10, 1.0, session=0)
    write_eval(first.folder, 20, 3.0, session=0)
    (first.folder / "session_1").mkdir()
    assert not tested.report(first.number, first.folder)
    assert tested.trials()[0].intermediate_values == {}
    write_eval(first.folder, 10, 3.0, session=1)
    assert not tested.report(first.number, first.folder)
    assert tested.trials()[0].intermediate_values == {10: 2.0}


def write_sessions(folder: Path, frame: int, *values: float) -> None:
    """Append an evaluation row to the table of each session."""
    for session, value in enumerate(values):
        write_eval(folder, frame, value, session)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_wilcoxon_pruner_compares_sessions_with_those_of_a_trial_on_another_machine(
    tmp_path: Path, kind: str, direction: str
) -> None:
    pytest.importorskip("scipy")
    url, sign = f"{kind}:///{tmp_path / 'shared'}", 1 if direction == "maximize" else -1
    facts: dict[str, Any] = {"num_sessions": 4, "direction": direction}
    facts["pruner"] = pruner("wilcoxon", n_startup_trials=1, n_startup_rows=1)
    there, here = study(tmp_path / "there", url, **facts), study(tmp_path / "here", url, **facts)
    with FolderLock(there.home):
        best = next_of(there)
        for frame in (10, 20, 40):
            write_sessions(best.folder, frame, *(sign * (frame + n) for n in range(4)))
            assert not there.report(best.number, best.folder)
        there.finish(best.number, best.folder)
        shutil.rmtree(best.folder)
        good, bad = next_of(here), next_of(here)
        write_sessions(good.folder, 10, *(sign * (10 + 2 * n) for n in range(4)))
        assert not here.report(good.number, good.folder), "it is worse only than the final values"
        write_sessions(bad.folder, 10, *(sign * (9 - n) for n in range(3)))
        (bad.folder / "session_3").mkdir()
        write_eval(bad.folder, 20, sign * 99.0, session=0)
        assert not here.report(bad.number, bad.folder), "one session has not reported"
        write_eval(bad.folder, 10, sign * 0.5, session=3)
        assert here.report(bad.number, bad.folder)
        assert here.trials()[bad.number].state == TrialState.PRUNED
        assert here.report(bad.number, bad.folder), "its other sessions are stopped, too"


def test_confirmation_is_filled_with_the_pruned_trials_that_got_furthest(tmp_path: Path) -> None:
    tested = study(tmp_path)
    rows: list[dict[int, float]] = [{10: 4.0, 20: 5.0, 40: 6.0}, {10: 3.0}, {10: 3.5}, {10: 9.0, 20: 4.0}]
    for values in rows:
        one = next_of(tested)
        for frame, value in values.items():
            write_eval(one.folder, frame, value)
            tested.report(one.number, one.folder)
        tested.finish(one.number, one.folder)
    tested.fail(next_of(tested).number, "out of luck")
    states = [trial.state.name for trial in tested.trials()]
    assert states == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED", "FAIL"]
    for top, expected in ((1, [0]), (3, [0, 3, 2]), (9, [0, 3, 2, 1])):
        entry = to_confirm(Confirm(top=top, sessions=2, default=True), tested)
        assert [one["trial"] for one in entry["candidates"]] == [*expected, None]
    assert [one.get("pruned") for one in entry["candidates"]] == [None, 20, 10, 10, None]
    assert [one["searched"] for one in entry["candidates"]] == [[6.0], [4.0], [3.5], [3.0], None]


def test_every_session_of_a_pruned_trial_is_stopped(tmp_path: Path) -> None:
    tested = study(tmp_path)
    play(tested, next_of(tested))
    bad = next_of(tested)
    write_eval(bad.folder, 10, -100.0)
    assert tested.report(bad.number, bad.folder)
    assert tested.report(bad.number, bad.folder)


def test_failed_trial_keeps_its_error_and_the_study_continues(tmp_path: Path) -> None:
    tested = study(tmp_path)
    tested.fail(next_of(tested).number, "out of luck")
    no_episode = next_of(tested)
    (no_episode.folder / "session_0").mkdir(parents=True)
    assert tested.finish(no_episode.number, no_episode.folder)
    assert [trial.state for trial in tested.trials()] == [TrialState.FAIL, TrialState.FAIL]
    assert tested.trials()[0].user_attrs["labrl"]["error"] == "out of luck"
    assert next_of(tested).number == 2


def test_attempts_of_a_trial_are_kept_across_a_restart(tmp_path: Path) -> None:
    tested = study(tmp_path)
    first = next_of(tested)
    tested.note(first.number, attempts=1)
    again = next_of(study(tmp_path))
    assert (again.number, again.folder, again.attempts) == (first.number, first.folder, 1)


def test_trial_fails_after_its_process_died_more_often_than_the_retries(tmp_path: Path) -> None:
    ended: list[Outcome] = []

    class Kept(RetryingQueue):
        def done(self, task: Task, outcome: Outcome) -> None:
            ended.append(outcome)

    queue = Kept(1, Interruption(), [Task(number=0, overrides=[], folder=tmp_path, need=Need(1, None))])
    for attempts in (0, 1):
        task = queue.next(lambda need: True)
        assert task is not None
        assert task.attempts == attempts
        assert not ended
        queue.ended(task, Outcome.lost("killed", interrupted=False))
    assert queue.next(lambda need: True) is None
    assert [outcome.status for outcome in ended] == ["failed"]


def test_grid_sampler_ends_the_study_with_its_last_combination(tmp_path: Path) -> None:
    grid = {"_target_": "optuna.samplers.GridSampler", "_partial_": True, "seed": None}
    space = Space.of({}, {}, ["x=choice(0.1, 0.2)", "y=choice(a, b)", "z=4"])
    for _ in range(4):  # the study is restarted for each combination
        tested = study(tmp_path, sampler=grid, space=space, total=50)
        assert tested.total == 4
        assignment = next_of(tested)
        write_eval(assignment.folder, 40, 1.0)
        tested.finish(assignment.number, assignment.folder)
    assert tested.next("trial_{}".format) is None
    assert len({str(trial.params) for trial in tested.trials()}) == 4


def test_number_of_trials_counts_all_commands_and_can_be_raised(tmp_path: Path) -> None:
    for _ in range(2):
        tested = study(tmp_path, total=2)
        while (assignment := tested.next("trial_{}".format)) is not None:
            play(tested, assignment)
    assert len(tested.trials()) == 2
    assert tested.is_complete()
    more = study(tmp_path, total=3)
    assert not more.is_complete()
    assert next_of(more).number == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"space": Space.of({}, {}, ["x=interval(0.0, 2.0)", "y=choice(a, b, c)", "z=range(1, 9)"])},
        {"space": Space.of({}, {}, ["x=interval(0.0, 1.0)"])},
        {"budget": 80},
        {"measure": "auc"},
    ],
)
def test_study_of_the_same_name_with_another_plan_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    study(tmp_path)
    with pytest.raises(InputError) as refused:
        study(tmp_path, **changed)
    assert (refused.value.code, refused.value.key) == ("contradiction", "hydra.sweeper.study_name")


def test_overrides_without_effect_on_training_may_differ_in_a_study(tmp_path: Path) -> None:
    def with_overrides(*overrides: str) -> Space:
        return Space.of({}, {}, ["x=interval(0.0, 1.0)", *overrides])

    study(tmp_path, space=with_overrides("env=pong", "meta.num_gpus=0.5", "wandb=offline"))
    study(tmp_path, space=with_overrides("env=pong", "meta.report=true"))
    for counts in ("env=acrobot", "meta.eval_frequency=10", "meta.precision=bf16"):
        with pytest.raises(InputError) as refused:
            study(tmp_path, space=with_overrides("env=pong", counts))
        assert refused.value.key == "hydra.sweeper.study_name"
        assert counts in str(refused.value)


def test_refusal_names_only_the_overrides_that_differ(tmp_path: Path) -> None:
    """Regression test: the list of all overrides was printed twice."""

    def with_overrides(*overrides: str) -> Space:
        return Space.of({}, {}, ["x=interval(0.0, 1.0)", "env=pong", "meta.eval_frequency=400", *overrides])

    study(tmp_path, space=with_overrides("env.max_frame=2000"), budget=2000)
    with pytest.raises(InputError) as refused:
        study(tmp_path, space=with_overrides("env.max_frame=5000", "agent.gamma=0.9"), budget=5000)
    text = str(refused.value)
    assert [text.count(one) for one in ("2000", "5000", "agent.gamma=0.9")] == [1, 1, 1]
    assert "pong" not in text
    assert "meta.eval_frequency" not in text


def test_order_of_overrides_of_different_keys_does_not_matter(tmp_path: Path) -> None:
    def with_overrides(*overrides: str) -> Space:
        return Space.of({}, {}, ["x=interval(0.0, 1.0)", *overrides])

    study(
        tmp_path,
        space=with_overrides("meta.eval_frequency=400", "env.max_frame=2000", "~agent.lr", "+agent.lr=1"),
    )
    study(
        tmp_path,
        space=with_overrides("~agent.lr", "+agent.lr=1", "env.max_frame=2000", "meta.eval_frequency=400"),
    )
    last = with_overrides(
        "env.max_frame=1", "meta.eval_frequency=400", "~agent.lr", "+agent.lr=1", "env.max_frame=2000"
    )
    study(tmp_path, space=last)
    other = with_overrides(
        "env.max_frame=2000", "meta.eval_frequency=400", "~agent.lr", "+agent.lr=1", "env.max_frame=1"
    )
    with pytest.raises(InputError) as refused:
        study(tmp_path, space=other)
    assert (refused.value.code, refused.value.key) == ("contradiction", "hydra.sweeper.study_name")


def test_study_recorded_with_unsorted_overrides_can_be_continued(tmp_path: Path) -> None:
    space = Space.of({}, {}, ["x=interval(0.0, 1.0)", "meta.eval_frequency=4", "env.max_frame=2"])
    url = f"journal:///{tmp_path / 'study'}"
    study(tmp_path, url, space=space)
    loaded = optuna.load_study(study_name=PLAN.name, storage=StudyStorage(url, tmp_path).optuna)
    loaded.set_user_attr(FACTS, {**loaded.user_attrs[FACTS], "fixed": list(space.fixed)})
    study(tmp_path, url, space=space)


def test_study_of_the_same_name_not_made_by_labrl_is_refused(tmp_path: Path) -> None:
    foreign = optuna.create_study(
        study_name="labrl", storage=f"sqlite:///{tmp_path / 'study.db'}", direction="maximize"
    )
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(InputError) as refused:
        study(tmp_path, f"sqlite:///{tmp_path / 'study.db'}")
    assert (refused.value.code, refused.value.key) == ("contradiction", "hydra.sweeper.study_name")
