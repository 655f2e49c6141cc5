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

from labrl.config.extensions import trials_at_once
from labrl.errors import DONE, FAILED, TERMINATED, Code, InputError, LabrlError, first_line
from labrl.experiment.launcher import (
    Answer,
    LauncherTraits,
    TrialLauncher,
    check_count,
    check_installed,
    lost,
)
from labrl.experiment.local import WorkersLauncher
from labrl.experiment.machine import Machine, Need
from labrl.experiment.scheduler import Queue, end_failed, exit_code_of, read_end, run_queue
from labrl.processes.script import surroundings, take_surroundings
from labrl.processes.startup import collect_seldom, let_threads_sleep, name_user_and_home
from labrl.run.experiment import TrialRecord
from labrl.run.run import Run
from labrl.session.devices import NUM_CPUS, available_cpus
from labrl.session.interruption import Interruption

STOP_SECONDS = 2.0
"""Seconds between two requests to stop. They are repeated, because a request that arrives while a job starts
is lost."""

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
"""Settings that submitit's AutoExecutor takes for any cluster; the names of other settings get the cluster's
name as a prefix."""

_OF_THE_EXECUTOR = ("max_num_timeout", "python")


Submitted = tuple[TrialRecord, Need, dict[str, Any]]
"""A planned trial with its slots and the order for the process that trains it."""


class SubmittedTrials:
    """The work of a submitit job, whose processes train trials as with `hydra/launcher=local`.

    The trials save their state before the job is preempted. When the job is scheduled again, trials that have
    not ended continue.
    """

    def __call__(self, trials: Sequence[Submitted]) -> dict[int, Answer]:
        """Train planned trials on the cores and GPUs of the job. Return what is known of the end of each, by
        number."""
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's handler, which requeues the job
        _prepare_process()
        at_once = min(trials_at_once(need.gpus, len(trials)) for _, need, _ in trials)
        machine, cores = Machine(), max(1, available_cpus() // at_once)
        queue = _JobQueue(Path())
        for trial, need, order in trials:
            need = Need(cores, need.gpus)
            try:
                if (run := Run.open(order["folder"])).recorded_status == "failed":
                    read_end(trial, run.path)  # in an earlier attempt of this job
                    queue.ended(trial, need, died=False)
                else:
                    machine.check(Need(1, need.gpus))
                    queue.left.append((trial, need))
            except LabrlError as error:
                end_failed(trial, str(error), error.exit_code)
                queue.ended(trial, need, died=False)
        launcher = WorkersLauncher(at_once)
        launcher.cores = cores * at_once
        launcher.planner = _AsPlanned({trial.number: order for trial, _, order in trials})
        preempted = threading.Event()
        with Interruption() as interruption:

            def stop(number: int, frame: FrameType | None) -> None:
                preempted.set()
                interruption.stop(number)

            signal.signal(signal.SIGUSR2, stop)
            with launcher:
                run_queue(queue, launcher, interruption)
        signal.signal(signal.SIGUSR2, requeue)
        for trial, _ in queue.left:
            queue.answers[trial.number] = lost("the cluster job ended before the trial started", True)
        stopped = any(code == TERMINATED for code, *_ in queue.answers.values())
        if preempted.is_set() and stopped and callable(requeue):
            requeue(signal.SIGUSR2, None)
        return queue.answers

    def checkpoint(self, trials: Sequence[Submitted]) -> Any:
        """Return what submitit runs when the job is scheduled again: the same trials."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, trials)


class _JobQueue(Queue):
    """The trials of a cluster job."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.answers: dict[int, Answer] = {}
        """What is known of the end of each trial, by number."""

    def ended(self, trial: TrialRecord, need: Need, died: bool) -> None:
        """Keep what the process of the experiment must know."""
        super().ended(trial, need, died)
        self.answers[trial.number] = exit_code_of([trial]), trial.error, died


class _AsPlanned:
    """The trials of a cluster job, by their numbers, as the process of the experiment has planned them."""

    def __init__(self, orders: Mapping[int, dict[str, Any]]) -> None:
        self._orders = orders

    def plan(self, trial: TrialRecord, shown: bool) -> dict[str, Any]:
        """Return the order of the planned trial."""
        return self._orders[trial.number]


def _prepare_process() -> None:
    """Prepare the process of a cluster job before PyTorch is imported, as the command line prepares its own
    process."""
    collect_seldom()
    name_user_and_home()
    let_threads_sleep()


class SubmititLocal(TrialLauncher):
    """`hydra/launcher=submitit_local`: run each trial as a job on this machine, all at the same time."""

    cluster: Literal["local", "slurm"] = "local"

    def __init__(self, trials_per_job: int = 1, **params: Any) -> None:
        """trials_per_job: maximum number of trials per job, >= 1; params: settings of submitit."""
        super().__init__()
        self._trials_per_job = trials_per_job
        self._settings = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in params.items()
        }
        self._new: list[Submitted] = []
        self._jobs: list[tuple[Any, list[Submitted]]] = []
        """Submitted jobs with their trials."""

    def check(self) -> None:
        """Raise InputError if submitit is not installed, or if the number of trials per job is not
        allowed."""
        check_installed("submitit", f"submitit_{self.cluster}")
        check_count("trials_per_job", self._trials_per_job)

    def __enter__(self) -> SubmititLocal:
        self._executor = executor_of(self.cluster, self._settings)
        self._told = -STOP_SECONDS
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        until = time.monotonic() + SAVE_SECONDS
        while time.monotonic() < until and not all(job.done() for job, _ in self._jobs):
            time.sleep(0.5)

    def send(self, trial: TrialRecord, need: Need, order: dict[str, Any]) -> None:
        """Keep the trial until `answers` submits the jobs of all new trials as one array."""
        self._new.append((trial, need, {**order, **surroundings()}))

    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        """Submit new trials, and return the trials of the jobs that have ended.

        Raises InputError if the cluster refuses the jobs.
        """
        self._submit()
        time.sleep(seconds)
        ended = [(job, trials) for job, trials in self._jobs if job.done()]
        self._jobs = [one for one in self._jobs if one not in ended]
        return [answer for job, trials in ended for answer in self._answers(job, trials)]

    def stop(self) -> None:
        """Ask the jobs to save and end."""
        if time.monotonic() - self._told < STOP_SECONDS:
            return
        self._told = time.monotonic()
        for job, _ in self._jobs:
            process = vars(job).get("_process")  # submitit has no public attribute for it
            if self.cluster == "slurm":
                job.cancel(check=False)
            elif process is not None and process.poll() is None:
                process.terminate()  # The job's controller forwards it.

    def _submit(self) -> None:
        from submitit.core.utils import FailedJobError

        if not self._new:
            return
        new, count = self._new, self._trials_per_job
        groups = [new[first : first + count] for first in range(0, len(new), count)]
        with _jobs_ignore_ctrl_c():
            try:
                jobs = self._executor.map_array(SubmittedTrials(), groups)
            except FailedJobError as error:
                for *_, order in new:
                    Run.open(order["folder"]).discard()
                lines = [line for line in str(error).splitlines() if line.strip()]
                raise InputError.resources(
                    "hydra.launcher",
                    f"the cluster refused the jobs: {lines[-1] if lines else 'no reason was given'}",
                    "Change these settings; labrl --cfg hydra prints them",
                ) from error
        if self.cluster == "local":
            # Seconds for which submitit waits for the result of a killed job, while no other trial can start.
            # Its default of 15 is for files that another machine has written.
            for job in jobs:
                job._results_timeout_s = 1
        self._jobs += zip(jobs, groups, strict=True)
        self._new.clear()

    def _answers(self, job: Any, trials: Sequence[Submitted]) -> list[tuple[int, Answer]]:
        try:
            answers: dict[int, Answer] = job.results()[0]
        except Exception as error:
            name = type(error).__name__
            told = f"the cluster job {job.job_id} ended without a result ({name}): see {job.paths.stderr}"
            answers = {}
            for trial, _, order in trials:  # Some may have ended before.
                over = Run.status_at(Path(order["folder"])) in ("finished", "pruned", "failed")
                answers[trial.number] = (DONE, None, False) if over else lost(told, self._told >= 0)
        else:
            with contextlib.suppress(OSError):  # It contains the secrets of the configuration.
                job.paths.submitted_pickle.unlink()
        return list(answers.items())


@contextlib.contextmanager
def _jobs_ignore_ctrl_c() -> Iterator[None]:
    """Context manager: make submitted jobs ignore Ctrl-C, because they get SIGTERM."""
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
    traits = LauncherTraits(elsewhere=True, knows_room=False)

    def check(self) -> None:
        """Raise InputError if submitit or SLURM is missing."""
        super().check()
        if shutil.which("srun") is None:
            raise InputError.about(
                "hydra/launcher=submitit_slurm",
                "this machine has no `srun`, the command of SLURM",
                "Start labrl on a login node of the cluster, or use this machine: hydra/launcher=local",
                code="not-installed",
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
    """Train a planned trial on `cores` cores in the process of a Ray task. Return its exit code and error."""
    _prepare_process()
    os.environ.update({NUM_CPUS: str(cores), **order["environment"]})
    take_surroundings(order)
    # Imported late: PyTorch must not be imported before its threads are told to sleep.
    from labrl.trial.train import carry_out

    return carry_out(order)


class RayTrials(TrialLauncher):
    """`hydra/launcher=ray`: run each trial as a task of a Ray cluster.

    If the launcher has started the cluster, it also stops the cluster.
    """

    def __init__(self, ray: DictConfig) -> None:
        super().__init__()
        self._jobs: dict[int, Any] = {}
        settings: Any = OmegaConf.to_container(ray, resolve=True)
        self._settings = settings
        # An existing cluster may have other machines.
        self.traits = LauncherTraits(elsewhere=settings["init"].get("address") not in (None, "local"))

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
            code: Code = "not-found" if unreachable else "range"
            raise InputError.about("hydra.launcher.ray", first_line(error), code=code) from error
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
        return not self.waits_for_room or len(self.running) < max(1, min(each, default=1))

    def send(self, trial: TrialRecord, need: Need, order: dict[str, Any]) -> None:
        """Submit the trial to Ray."""
        self._jobs[trial.number] = self._remote.remote({**order, **surroundings()}, need.cores)

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
            return *ray.get(reference), False
        except ray.exceptions.RayTaskError as error:
            return FAILED, f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}", False
        except Exception as error:
            return lost(f"{type(error).__name__}: {first_line(error)}", interrupted=self._told)
