"""Resources of a machine for a trial: cores, GPUs, a compiler."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from labrl.errors import InputError

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig

NUM_CPUS = "LABRL_NUM_CPUS"
"""Environment variable for the number of cores that a process and its children may use."""


def machine_cpus() -> int:
    """Return the number of cores that the system grants to this process by the process's affinity and control
    group."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # without a control group, or with the quota "max"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def available_cpus() -> int:
    """Return the number of cores that this process may use: those that the system grants, or fewer if
    LABRL_NUM_CPUS says so. An experiment sets this variable for its trials.

    Raises InputError if the variable is not a whole number of at least 1.
    """
    given = os.environ.get(NUM_CPUS, "")
    if not given:
        return machine_cpus()
    if not given.isdigit() or int(given) < 1:
        raise InputError.value(NUM_CPUS, given, "be a whole number of cores, at least 1", fix=f"{NUM_CPUS}=2")
    return min(machine_cpus(), int(given))


def threads_per_session(num_cpus: float | None, num_sessions: int) -> int:
    """Return the number of cores per session, at least 1, when the cores of a trial are divided evenly.

    num_cpus: number of cores of the trial; None: all cores of the machine.
    """
    cores = min(num_cpus, available_cpus()) if num_cpus else available_cpus()
    return max(1, int(cores // num_sessions))


def check_machine(config: TrialConfig, images: bool) -> None:
    """Raise InputError if a trial needs more cores or GPUs than this machine has, or if a compiler is
    missing.

    images: whether the agent sees images.
    """
    # Imported late: processes that only count cores do not need PyTorch.
    from labrl.agents.make import learns_faster_on_gpu
    from labrl.learning.compute import Compute

    meta = config.meta
    available_cpus()  # refuses a wrong LABRL_NUM_CPUS before anything is made
    check_resources(math.ceil(meta.num_cpus or 1), meta.num_gpus, machine_cpus(), len(visible_gpus()))
    on_gpu = learns_faster_on_gpu(config, images)
    compute = Compute.choose(meta.device, meta.precision, 1, num_gpus=meta.num_gpus, faster_on_gpu=on_gpu)
    if meta.compile:
        _check_compiler(compute.device.type)


def check_resources(cores: int, gpus: float | None, cores_there: int, gpus_there: int) -> None:
    """Raise InputError if a trial needs more cores or GPUs than are available."""
    for key, what, wanted, there in (
        ("meta.num_cpus", "cores", cores, cores_there),
        ("meta.num_gpus", "GPUs", gpus or 0, gpus_there),
    ):
        if wanted > there:
            allowed = f"be at most {there}, the number of {what} that labrl may use here"
            fix = f"{key}={there}, or {key}=null to use what is available"
            raise InputError.value(key, f"{wanted:g}", allowed, fix=fix, code="resources")


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, in the form of CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return []  # without importing PyTorch
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def _check_compiler(device: str) -> None:
    """Raise InputError if the compiler for `device`, cpu or cuda, is missing."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if device == "cuda":
        there = importlib.util.find_spec("triton") is not None
        needs, way_out = "Triton to compile for GPUs, but Triton is not installed", "pip install triton"
    else:
        there = shutil.which(compiler) is not None
        needs = f"a C++ compiler, but {compiler} is not installed"
        way_out = "apt-get install g++, or name another one by CXX=<compiler> before the command"
    if not there:
        fix = f"Install it ({way_out}), or set meta.compile=false"
        raise InputError.about("meta.compile=true", f"torch.compile needs {needs}", fix, code="not-installed")
