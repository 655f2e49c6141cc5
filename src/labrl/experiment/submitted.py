"""Trials as jobs of submitit: on a SLURM cluster, or on this machine as if it were one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Literal

from labrl.errors import FAILED, TERMINATED, InputError
from labrl.experiment.hydra_trial import HydraTrial
from labrl.experiment.outcome import Outcome
from labrl.experiment.workers import Order
from labrl.processes import children_ignore_ctrl_c
from labrl.session.interruption import Interruption

LOOK_SECONDS = 0.5
"""Between two looks at the jobs."""

STOP_SECONDS = 2.0
"""Between two requests to stop: one that comes while a trial is being built is lost."""

_OF_EVERY_CLUSTER = (
    "name",
    "timeout_min",
    "nodes",
    "tasks_per_node",
    "cpus_per_task",
    "gpus_per_node",
    "mem_gb",
    "stderr_to_stdout",
)
"""Settings that submitit's AutoExecutor takes under one name; others get the cluster's name in front."""

_OF_THE_EXECUTOR = ("max_num_timeout", "python")


class SubmittedTrial:
    """What a job does: one trial, which saves its state before the job gives its place away."""

    def __init__(self, run_trial: HydraTrial) -> None:
        self._run_trial = run_trial

    def __call__(self, number: int, words: list[str]) -> Outcome:
        """Run the trial, or go on with it where an earlier attempt left it."""
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's, which puts the job into the queue again
        ended = threading.Event()
        asked = threading.Event()

        def note(number: int, frame: FrameType | None) -> None:
            if not asked.is_set():
                asked.set()
                threading.Thread(target=_stop_until, args=(ended,), daemon=True).start()

        signal.signal(signal.SIGUSR2, note)
        try:
            outcome = self._run_trial(number, words)
        finally:
            ended.set()
            signal.signal(signal.SIGUSR2, requeue)
        if asked.is_set() and outcome.status == "interrupted" and callable(requeue):
            requeue(signal.SIGUSR2, None)
        return outcome

    def checkpoint(self, number: int, words: list[str]) -> Any:
        """What submitit runs when the job's turn comes again: the same, which finds the trial's folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number, words)


def _stop_until(ended: threading.Event) -> None:
    """Ask this process to save and stop, as a polite kill does, until it has."""
    while not ended.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        ended.wait(STOP_SECONDS)


def run_jobs(
    launcher: Any,
    cluster: Literal["local", "slurm"],
    orders: Sequence[Order],
    on_end: Callable[[int, Outcome], None],
) -> int | None:
    """Submit a job for each trial and tell of each end by its number.

    launcher: the plugin's, with its settings. Returns None, or the exit code where a signal ended it: then
    the jobs have been told to save and end. Raises InputError where the cluster takes none of them.
    """
    jobs = _submit(launcher, cluster, orders)
    pending = dict(zip((order.number for order in orders), jobs, strict=True))
    told = -STOP_SECONDS
    with Interruption() as interruption:
        while pending:
            for number, job in list(pending.items()):
                if job.done():
                    del pending[number]
                    on_end(number, _outcome(job, interruption.requested))
            if interruption.requested and time.monotonic() - told > STOP_SECONDS:
                for job in pending.values():
                    _stop(job, cluster)
                told = time.monotonic()
            time.sleep(LOOK_SECONDS)
    return interruption.exit_code if interruption.requested else None


def executor_of(cluster: Literal["local", "slurm"], settings: Mapping[str, Any]) -> Any:
    """What submits the jobs. settings: of the launcher, plain data."""
    import submitit

    left = dict(settings)
    folder = left.pop("submitit_folder")
    own = {f"{cluster}_{key}": left.pop(key) for key in _OF_THE_EXECUTOR if key in left}
    executor = submitit.AutoExecutor(cluster=cluster, folder=folder, **own)
    executor.update_parameters(
        **{key if key in _OF_EVERY_CLUSTER else f"{cluster}_{key}": value for key, value in left.items()}
    )
    return executor


def _submit(launcher: Any, cluster: Literal["local", "slurm"], orders: Sequence[Order]) -> list[Any]:
    from submitit.core.utils import FailedJobError

    executor = executor_of(cluster, launcher.params)
    trial = SubmittedTrial(HydraTrial.of(launcher.hydra_context, launcher.config, launcher.task_function))
    numbers, words = [order.number for order in orders], [list(order.words) for order in orders]
    with children_ignore_ctrl_c():
        try:
            jobs: list[Any] = executor.map_array(trial, numbers, words)
        except FailedJobError as error:
            raise InputError(
                f"hydra/launcher=submitit_{cluster}: the cluster refused the jobs: {_last_line(error)}. "
                "Change what hydra.launcher asks for; labrl --cfg hydra prints it.",
                code="resources",
                key="hydra.launcher",
            ) from error
    return jobs


def _last_line(error: Exception) -> str:
    """What sbatch said, without the command that it was."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), "for no reason given")


def _outcome(job: Any, stopped: bool) -> Outcome:
    try:
        outcome: Outcome = job.results()[0]
    except Exception as error:
        if stopped:
            return Outcome(status="interrupted", exit_code=TERMINATED)
        told = f"its job {job.job_id} ended without a result ({type(error).__name__}): see {job.paths.stderr}"
        return Outcome(status="failed", exit_code=FAILED, error=told)
    return outcome


def _stop(job: Any, cluster: str) -> None:
    if cluster == "local":
        if job._process is not None and job._process.poll() is None:
            job._process.terminate()  # which the job's controller passes on
    else:
        job.cancel(check=False)
