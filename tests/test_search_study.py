"""A study comes out the same however often it is broken off, and gives no trial twice."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from search_cases import PLAN, TPE, history, next_of, play, pruner, study, write_eval

from labrl.errors import InputError
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import Outcome, RetryingQueue, Task
from labrl.experiment.search.space import Space
from labrl.experiment.search.storage import StudyStorage
from labrl.experiment.search.study import FACTS, HEARTBEAT, MISSED_BEATS
from labrl.session.interruption import Interruption
from labrl.storage.lock import FolderLock

SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": TPE,
    "random": {"_target_": "optuna.samplers.RandomSampler"},
    "cmaes": {"_target_": "optuna.samplers.CmaEsSampler", "warn_independent_sampling": False},
    "gp": {"_target_": "optuna.samplers.GPSampler", "n_startup_trials": 3},
    "qmc": {"_target_": "optuna.samplers.QMCSampler", "warn_independent_sampling": False},
    "nsgaii": {"_target_": "hydra_plugins.hydra_optuna_sweeper._impl.create_nsgaii_sampler"},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_study_begun_again_after_each_trial_proposes_what_an_unbroken_one_does(
    tmp_path: Path, name: str
) -> None:
    whole = study(tmp_path / "whole", sampler=SAMPLERS[name])
    for _ in range(PLAN.total):
        play(whole, next_of(whole))
    for _ in range(PLAN.total):
        broken = study(tmp_path / "broken", sampler=SAMPLERS[name])
        play(broken, next_of(broken))
    assert history(broken) == history(whole)
    assert len({str(trial.params) for trial in whole.trials()}) > 1


def test_qmc_draws_choices_anew_for_each_trial(tmp_path: Path) -> None:
    """They are no part of its sequence, and had the same value in every trial."""
    one = study(tmp_path, sampler=SAMPLERS["qmc"])
    drawn = {next_of(one).params["y"] for _ in range(PLAN.total)}
    assert len(drawn) > 1


def test_a_trial_whose_machine_died_goes_on_in_its_folder_with_its_values_and_seed(tmp_path: Path) -> None:
    whole = study(tmp_path / "whole")
    for _ in range(4):
        play(whole, next_of(whole))
    broken = study(tmp_path / "broken")
    play(broken, next_of(broken))
    left = next_of(broken)
    write_eval(left.folder, 10, 0.0)
    again = study(tmp_path / "broken")
    taken = next_of(again)
    assert (taken.number, taken.params, taken.seed) == (left.number, left.params, left.seed)
    assert taken.folder == left.folder
    (left.folder / "session_0" / "eval.csv").unlink()  # as its checkpoint would cut it back
    play(again, taken)
    for _ in range(2):
        play(again, next_of(again))
    assert history(again) == history(whole)


def test_a_decision_is_the_same_when_the_killed_trial_reports_once_more(tmp_path: Path) -> None:
    one = study(tmp_path)
    play(one, next_of(one))
    second = next_of(one)
    write_eval(second.folder, 10, -100.0)
    # killed after the value was stored and before the pruner was asked
    storage = StudyStorage(f"journal:///{tmp_path / 'study.journal'}", tmp_path).optuna
    begun = storage.get_study_id_from_name(PLAN.name)
    storage.set_trial_intermediate_value(
        storage.get_trial_id_from_study_id_trial_number(begun, second.number), 10, -100.0
    )
    again = study(tmp_path)
    taken = next_of(again)
    assert again.report(taken.number, taken.folder)
    assert again.trials()[1].state == TrialState.PRUNED


def test_a_trial_that_others_overtook_is_stopped_with_all_that_it_has_reached(tmp_path: Path) -> None:
    one = study(tmp_path)
    slow, quick = next_of(one), next_of(one)
    write_eval(slow.folder, 10, 0.0)
    assert not one.report(slow.number, slow.folder)
    write_eval(quick.folder, 10, 5.0)
    assert not one.report(quick.number, quick.folder)
    write_eval(slow.folder, 15, 1.0)
    assert one.report(slow.number, slow.folder)
    assert one.trials()[0].intermediate_values == {10: 0.0, 15: 1.0}


def test_a_sampler_killed_between_two_values_draws_the_rest_as_it_would_have(tmp_path: Path) -> None:
    whole = study(tmp_path / "whole", sampler=SAMPLERS["random"])
    expected = next_of(whole).params
    broken = study(tmp_path / "broken", sampler=SAMPLERS["random"])
    storage = StudyStorage(f"journal:///{tmp_path / 'broken' / 'study.journal'}", tmp_path).optuna
    begun = optuna.load_study(study_name=PLAN.name, storage=storage, sampler=broken.sampler)
    begun.ask({"y": PLAN.space.distributions["y"]})
    again = study(tmp_path / "broken", sampler=SAMPLERS["random"])
    assert next_of(again).params == expected


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_two_machines_give_every_trial_once_and_no_more_than_the_total(tmp_path: Path, kind: str) -> None:
    url = f"{kind}:///{tmp_path / 'shared'}"
    given: list[int] = []

    def machine(home: Path) -> None:
        with FolderLock(home):
            one = study(home, url, total=10)
            while (assignment := one.next("trial_{number}")) is not None:
                given.append(assignment.number)
                play(one, assignment)

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


def test_a_living_machines_trial_is_left_alone_and_a_dead_ones_taken_over(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path / 'shared'}"
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    with FolderLock(there):
        left = next_of(study(there, url, total=1))
        assert study(here, url, total=1).next("trial_{number}") is None
    taken = next_of(study(here, url, total=1))
    assert (taken.number, taken.folder) == (left.number, left.folder)


def test_a_machine_out_of_sight_is_dead_after_five_missed_heartbeats(
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
    assert here.next("trial_{number}") is None
    now += 1
    taken = next_of(here)
    assert taken.folder == tmp_path / "here" / "trial_0"  # its own cannot be seen from here


def test_the_value_at_a_frame_is_the_mean_over_sessions_that_have_all_been_there(tmp_path: Path) -> None:
    one = study(tmp_path, num_sessions=2, pruner=pruner("none"))
    first = next_of(one)
    write_eval(first.folder, 10, 1.0, session=0)
    write_eval(first.folder, 20, 3.0, session=0)
    (first.folder / "session_1").mkdir()
    assert not one.report(first.number, first.folder)
    assert one.trials()[0].intermediate_values == {}
    write_eval(first.folder, 10, 3.0, session=1)
    assert not one.report(first.number, first.folder)
    assert one.trials()[0].intermediate_values == {10: 2.0}


def test_every_session_of_a_pruned_trial_is_told(tmp_path: Path) -> None:
    one = study(tmp_path)
    play(one, next_of(one))
    bad = next_of(one)
    write_eval(bad.folder, 10, -100.0)
    assert one.report(bad.number, bad.folder)
    assert one.report(bad.number, bad.folder)


def test_a_failed_trial_keeps_its_error_and_the_study_goes_on(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.fail(next_of(one).number, "out of luck")
    no_episode = next_of(one)
    (no_episode.folder / "session_0").mkdir(parents=True)
    assert one.finish(no_episode.number, no_episode.folder)
    assert [trial.state for trial in one.trials()] == [TrialState.FAIL, TrialState.FAIL]
    assert one.trials()[0].user_attrs["labrl"]["error"] == "out of luck"
    assert next_of(one).number == 2


def test_how_often_a_process_has_died_is_known_after_a_restart(tmp_path: Path) -> None:
    one = study(tmp_path)
    first = next_of(one)
    one.note(first.number, attempts=1)
    again = next_of(study(tmp_path))
    assert (again.number, again.folder, again.attempts) == (first.number, first.folder, 1)


def test_a_process_may_die_as_often_as_retries_say(tmp_path: Path) -> None:
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


def test_a_grid_ends_with_its_last_combination(tmp_path: Path) -> None:
    grid = {"_target_": "optuna.samplers.GridSampler", "_partial_": True, "seed": None}
    space = Space.of({}, {}, ["x=choice(0.1, 0.2)", "y=choice(a, b)", "z=4"])
    for _ in range(4):  # begun again for each
        one = study(tmp_path, sampler=grid, space=space, total=50)
        assert one.total == 4
        assignment = next_of(one)
        write_eval(assignment.folder, 40, 1.0)
        one.finish(assignment.number, assignment.folder)
    assert one.next("trial_{number}") is None
    assert len({str(trial.params) for trial in one.trials()}) == 4


def test_two_objectives_are_kept_and_not_pruned(tmp_path: Path) -> None:
    one = study(tmp_path, measures=["final_return", "wall"], directions=["maximize", "minimize"], total=2)
    for _ in range(2):
        assert play(one, next_of(one)) == "finished"
    assert all(trial.values == [trial.values[0], 4.0] for trial in one.trials())
    assert one.best()


def test_the_total_counts_over_all_commands_and_can_be_raised(tmp_path: Path) -> None:
    for _ in range(2):
        one = study(tmp_path, total=2)
        while (assignment := one.next("trial_{number}")) is not None:
            play(one, assignment)
    assert len(one.trials()) == 2
    assert one.is_complete()
    more = study(tmp_path, total=3)
    assert not more.is_complete()
    assert next_of(more).number == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"space": Space.of({}, {}, ["x=interval(0.0, 2.0)", "y=choice(a, b, c)", "z=range(1, 9)"])},
        {"space": Space.of({}, {}, ["x=interval(0.0, 1.0)"])},
        {"budget": 80},
        {"measures": ["auc"]},
    ],
)
def test_a_study_of_the_same_name_with_another_space_is_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    study(tmp_path)
    with pytest.raises(InputError) as refused:
        study(tmp_path, **changed)
    assert (refused.value.code, refused.value.key) == ("contradiction", "hydra.sweeper.study_name")


def test_words_that_only_watch_may_differ_between_machines_and_after_a_resume(tmp_path: Path) -> None:
    def with_overrides(*overrides: str) -> Space:
        return Space.of({}, {}, ["x=interval(0.0, 1.0)", *overrides])

    study(tmp_path, space=with_overrides("env=pong", "meta.num_gpus=0.5", "wandb=offline"))
    study(tmp_path, space=with_overrides("env=pong", "meta.report=true"))
    for counts in ("env=acrobot", "meta.eval_frequency=10", "meta.precision=bf16"):
        with pytest.raises(InputError) as refused:
            study(tmp_path, space=with_overrides("env=pong", counts))
        assert refused.value.key == "hydra.sweeper.study_name"
        assert counts in str(refused.value)


def test_the_same_words_in_another_order_are_the_same_study(tmp_path: Path) -> None:
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


def test_a_study_of_before_words_were_sorted_goes_on(tmp_path: Path) -> None:
    space = Space.of({}, {}, ["x=interval(0.0, 1.0)", "meta.eval_frequency=4", "env.max_frame=2"])
    url = f"journal:///{tmp_path / 'study'}"
    study(tmp_path, url, space=space)
    begun = optuna.load_study(study_name=PLAN.name, storage=StudyStorage(url, tmp_path).optuna)
    begun.set_user_attr(FACTS, {**begun.user_attrs[FACTS], "fixed": list(space.fixed)})
    study(tmp_path, url, space=space)


def test_a_foreign_study_of_the_same_name_is_refused(tmp_path: Path) -> None:
    foreign = optuna.create_study(
        study_name="labrl", storage=f"sqlite:///{tmp_path / 'study.db'}", direction="maximize"
    )
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(InputError) as refused:
        study(tmp_path, f"sqlite:///{tmp_path / 'study.db'}")
    assert (refused.value.code, refused.value.key) == ("contradiction", "hydra.sweeper.study_name")
