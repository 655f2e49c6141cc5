"""Trials on clusters: jobs of submitit (on SLURM or this machine) and tasks of Ray."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from labrl.errors import INTERRUPTED, TERMINATED, InputError, first_line
from labrl.experiment.launcher import TrialLauncher, check_installed
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import Answer, Outcome, Planned, Task
from labrl.processes.script import take_surroundings
from labrl.processes.startup import collect_seldom, let_threads_sleep, name_user_and_home
from labrl.run.run import Run
from labrl.session.devices import NUM_CPUS

STOP_SECONDS = 2.0
"""Seconds between two requests to stop, because one that arrives while a trial is being built is lost."""

SAVE_SECONDS = 60.0
"""Seconds that trials have to save and end when the experiment ends early."""

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
"""Settings that submitit's AutoExecutor takes for any cluster; others get the cluster's name as a prefix."""

_OF_THE_EXECUTOR = ("max_num_timeout", "python")


class SubmittedTrial:
    """The work of one submitit job: a trial that saves its state before the job is preempted."""

    def __call__(self, order: Mapping[str, Any]) -> tuple[int, str | None]:
        """Train the planned trial, or continue it where an earlier attempt left it."""
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's handler, which requeues the job
        ended = threading.Event()
        asked = threading.Event()

        def note(number: int, frame: FrameType | None) -> None:
            if not asked.is_set():
                asked.set()
                threading.Thread(target=_stop_until, args=(ended,), daemon=True).start()

        signal.signal(signal.SIGUSR2, note)
        try:
            code, error = _carry_out(order)
        finally:
            ended.set()
            signal.signal(signal.SIGUSR2, requeue)
        if asked.is_set() and code in (INTERRUPTED, TERMINATED) and callable(requeue):
            requeue(signal.SIGUSR2, None)
        return code, error

    def checkpoint(self, order: Mapping[str, Any]) -> Any:
        """Return what submitit runs when the job is scheduled again: the same trial."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, order)


def _carry_out(order: Mapping[str, Any]) -> tuple[int, str | None]:
    """Train a planned trial in the process of a job. Return its exit code and error."""
    collect_seldom()
    name_user_and_home()
    let_threads_sleep()
    os.environ.update(order["environment"])
    take_surroundings(order)
    # Imported late: PyTorch must not be imported before its threads are told to sleep.
    from labrl.trial.start import carry_out

    return carry_out(order)


def _stop_until(ended: threading.Event) -> None:
    """Send SIGTERM to this process until its trial has been saved and has ended."""
    while not ended.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        ended.wait(STOP_SECONDS)


class SubmititLocal(TrialLauncher):
    """`hydra/launcher=submitit_local`: run each trial as a job on this machine, all at the same time."""

    cluster: Literal["local", "slurm"] = "local"

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self._settings = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in params.items()
        }
        self._new: dict[int, Planned] = {}
        self._jobs: dict[int, Any] = {}

    def check(self) -> None:
        """Raise InputError if submitit is not installed."""
        check_installed("submitit", f"submitit_{self.cluster}")

    def __enter__(self) -> SubmititLocal:
        self._executor = executor_of(self.cluster, self._settings)
        self._told = -STOP_SECONDS
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        until = time.monotonic() + SAVE_SECONDS
        while time.monotonic() < until and not all(job.done() for job in self._jobs.values()):
            time.sleep(0.5)

    def send(self, task: Task, planned: Planned) -> None:
        """Keep the trial until `answers` submits all new trials as one array."""
        self._new[task.number] = planned

    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        """Submit new trials, and return the jobs that have ended.

        Raises InputError if the cluster refuses the jobs.
        """
        self._submit()
        time.sleep(seconds)
        ended = {number: job for number, job in self._jobs.items() if job.done()}
        for number in ended:
            del self._jobs[number]
        return [(number, self._answer(job)) for number, job in ended.items()]

    def stop(self) -> None:
        """Ask the jobs to save and end."""
        if time.monotonic() - self._told < STOP_SECONDS:
            return
        self._told = time.monotonic()
        for job in self._jobs.values():
            process = vars(job).get("_process")  # submitit has no public attribute for it
            if self.cluster == "slurm":
                job.cancel(check=False)
            elif process is not None and process.poll() is None:
                process.terminate()  # The job's controller forwards it.

    def _submit(self) -> None:
        from submitit.core.utils import FailedJobError

        if not self._new:
            return
        with _jobs_ignore_ctrl_c():
            try:
                orders = [planned.order_elsewhere() for planned in self._new.values()]
                jobs = self._executor.map_array(SubmittedTrial(), orders)
            except FailedJobError as error:
                for planned in self._new.values():
                    Run.open(planned.folder).discard_unplayed()
                lines = [line for line in str(error).splitlines() if line.strip()]
                raise InputError(
                    f"hydra/launcher=submitit_{self.cluster}: the cluster refused the jobs: "
                    f"{lines[-1] if lines else 'no reason was given'}. "
                    "Change the settings of hydra.launcher; labrl --cfg hydra prints them.",
                    code="resources",
                    key="hydra.launcher",
                ) from error
        if self.cluster == "local":
            # Seconds for which submitit waits for the result of a killed job, while no other trial can start.
            # Its default of 15 is for files that another machine has written.
            for job in jobs:
                job._results_timeout_s = 1
        self._jobs.update(zip(self._new, jobs, strict=True))
        self._new.clear()

    def _answer(self, job: Any) -> Answer:
        try:
            answer: Answer = job.results()[0]
        except Exception as error:
            name = type(error).__name__
            told = f"its job {job.job_id} ended without a result ({name}): see {job.paths.stderr}"
            return Outcome.lost(told, interrupted=self._told >= 0)
        with contextlib.suppress(OSError):  # It contains the secrets of the configuration.
            job.paths.submitted_pickle.unlink()
        return answer


@contextlib.contextmanager
def _jobs_ignore_ctrl_c() -> Iterator[None]:
    """Context manager: let jobs that are submitted ignore Ctrl-C, because they get SIGTERM."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    try:
        yield
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)


class SubmititSlurm(SubmititLocal):
    """`hydra/launcher=submitit_slurm`: run trials as a SLURM array of jobs, requeued after preemption."""

    cluster = "slurm"
    elsewhere = True

    def check(self) -> None:
        """Raise InputError if submitit or SLURM is missing."""
        super().check()
        if shutil.which("srun") is None:
            raise InputError(
                "hydra/launcher=submitit_slurm needs SLURM, and this machine has no command `srun`. Start "
                "labrl on a login node of the cluster, or use this machine: hydra/launcher=local",
                code="not-installed",
                key="hydra/launcher",
            )


def executor_of(cluster: Literal["local", "slurm"], settings: Mapping[str, Any]) -> Any:
    """Return submitit's executor with the settings of `hydra.launcher`."""
    import submitit

    left = dict(settings)
    folder = left.pop("submitit_folder")
    # Its files contain the secrets of the configuration.
    Path(str(folder).partition("%")[0]).mkdir(mode=0o700, parents=True, exist_ok=True)
    own = {f"{cluster}_{key}": left.pop(key) for key in _OF_THE_EXECUTOR if key in left}
    executor = submitit.AutoExecutor(cluster=cluster, folder=folder, **own)
    executor.update_parameters(
        **{key if key in _OF_EVERY_CLUSTER else f"{cluster}_{key}": value for key, value in left.items()}
    )
    return executor


def _run_on_ray(order: Mapping[str, Any], cores: int) -> tuple[int, str | None]:
    os.environ[NUM_CPUS] = str(cores)
    return _carry_out(order)


class RayTrials(TrialLauncher):
    """`hydra/launcher=ray`: run each trial as a task of a Ray cluster.

    A cluster that the launcher has started ends with it.
    """

    def __init__(self, ray: DictConfig) -> None:
        super().__init__()
        self._jobs: dict[int, Any] = {}
        settings: Any = OmegaConf.to_container(ray, resolve=True)
        self._settings = settings
        # An existing cluster may have other machines.
        self.elsewhere = self._settings["init"].get("address") not in (None, "local")

    def check(self) -> None:
        """Raise InputError if Ray is not installed."""
        check_installed("ray", "ray")

    def __enter__(self) -> RayTrials:
        import ray

        self._told = False
        self._started = not ray.is_initialized()
        remote = self._settings["remote"]
        try:
            if self._started:
                # Without an address, Ray would join a cluster that runs on this machine.
                init = self._settings["init"]
                ray.init(**{**init, "address": init.get("address") or "local"})
            self._remote = ray.remote(**remote)(_run_on_ray) if remote else ray.remote(_run_on_ray)
        except (ValueError, TypeError, ConnectionError, RuntimeError) as error:
            unreachable = isinstance(error, ConnectionError)
            raise InputError(
                f"hydra.launcher.ray: {str(error).splitlines()[0]}",
                code="not-found" if unreachable else "range",
                key="hydra.launcher.ray",
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        import ray

        self.stop()
        if self._jobs:
            jobs = list(self._jobs.values())
            ray.wait(jobs, num_returns=len(jobs), timeout=SAVE_SECONDS)
        if self._started:
            ray.shutdown()

    def has_room(self, need: Need) -> bool:
        """Return whether another trial may be submitted to Ray."""
        import ray

        if not super().has_room(need):
            return False
        there, wanted = ray.cluster_resources(), self._settings["remote"] or {}
        resources = {"CPU": wanted.get("num_cpus"), "GPU": wanted.get("num_gpus")}
        each = (int(there.get(name, 0) // count) for name, count in resources.items() if count)
        return self.queues or len(self.running) < max(1, min(each, default=1))

    def send(self, task: Task, planned: Planned) -> None:
        """Submit the trial to Ray."""
        self._jobs[task.number] = self._remote.remote(planned.order_elsewhere(), task.need.cores)

    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        """Return the tasks that have ended, after at most `seconds`."""
        import ray

        done, _ = ray.wait(list(self._jobs.values()), num_returns=1, timeout=seconds)
        numbers = [number for number, job in self._jobs.items() if job in done]
        return [(number, self._answer(self._jobs.pop(number))) for number in numbers]

    def stop(self) -> None:
        """Ask each trial once to save and end."""
        import ray

        if not self._told:
            self._told = True
            for reference in self._jobs.values():
                ray.cancel(reference, force=False)  # arrives as KeyboardInterrupt

    def _answer(self, reference: Any) -> Answer:
        import ray

        try:
            answer: Answer = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return Outcome.failed(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
        except Exception as error:
            return Outcome.lost(f"{type(error).__name__}: {first_line(error)}", interrupted=self._told)
        return answer
