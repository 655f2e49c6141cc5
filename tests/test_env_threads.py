"""Tests of the scheduling policy of environment threads, which do not preempt the thread that wakes them."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from env_cases import atari

from labrl.envs.make import make_env
from labrl.envs.threads import have_all_cores, patient_threads

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.sched_getscheduler(0) != os.SCHED_OTHER,
    reason="needs Linux and its default scheduling policy",
)


def policy_of_a_new_thread() -> int:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return seen[0]


def test_patient_threads_use_the_batch_policy_only_inside_the_context() -> None:
    with patient_threads():
        assert policy_of_a_new_thread() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == policy_of_a_new_thread() == os.SCHED_OTHER


def test_policy_chosen_by_the_user_is_kept() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with patient_threads():
            pass
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_policy_stays_unchanged_when_the_system_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    with patient_threads():
        assert policy_of_a_new_thread() == os.SCHED_OTHER


def test_threads_of_a_game_use_the_batch_policy() -> None:
    before = set(os.listdir("/proc/self/task"))
    env = make_env(atari("pong"), seed=0, num_threads=2, num_envs=2)
    threads = set(os.listdir("/proc/self/task")) - before
    assert [os.sched_getscheduler(int(thread)) for thread in threads] == [os.SCHED_BATCH] * 2
    env.close()


@pytest.mark.parametrize(
    ("num_threads", "allowed", "cores", "expected"), [(4, 4, 4, True), (2, 4, 4, False), (4, 4, 64, False)]
)
def test_process_has_all_cores_only_if_it_may_use_all_of_the_machine(
    num_threads: int, allowed: int, cores: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert have_all_cores(num_threads) is expected
