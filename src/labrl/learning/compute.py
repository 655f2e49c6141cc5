"""Device, threads and precision of a session."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from labrl.errors import InputError
from labrl.learning.noise_scale import NoiseScales
from labrl.learning.ranks import ALONE, Ranks
from labrl.memory.workspace import Workspace

Record = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]
"""Runs a function and records its operations. Returns a function that repeats the recorded operations, and
the results of the recorded run, which every repetition overwrites."""


def record_graph(function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Record a function as a CUDA graph, which starts all of its operations at once."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the GPU at the same time.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = function()
    return graph.replay, results


def _cpu_has(*capabilities: str) -> bool:
    """Return whether the processor has any of `capabilities`, which are names that torch and Linux use."""
    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        return any(found.get(name) for name in capabilities)
    # PyTorch has the function since 2.11.
    return not set(capabilities).isdisjoint(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())


def _check_gpus(device: str, num_gpus: float) -> None:
    """Raise InputError if there are too few GPUs, or if a GPU is requested but the trial is granted none."""
    there = torch.cuda.device_count()
    if num_gpus > there:
        raise InputError.value(
            "meta.num_gpus",
            num_gpus,
            f"be at most {there}, the number of GPUs that PyTorch finds here",
            fix="meta.num_gpus=null for all of them",
            code="resources",
        )
    if device == "cuda" and num_gpus == 0:
        raise InputError.contradiction(
            "meta.num_gpus=0",
            "meta.device=cuda",
            "that device is a GPU",
            "meta.num_gpus to more than 0, or to null for all",
        )


def set_deterministic(deterministic: bool, device: torch.device, compiled: bool = False) -> None:
    """Choose whether operations of this process on a GPU are deterministic; operations on the CPU always are.

    deterministic: True to use algorithms with a fixed order of summation, and raise RuntimeError for
    operations that have no such algorithm; False to use the fastest algorithms. compiled: whether networks
    are compiled by torch.compile.
    """
    # On the CPU, PyTorch would replace algorithms that are already deterministic with slower ones.
    on = deterministic and device.type == "cuda"
    if compiled:
        torch.use_deterministic_algorithms(on)  # also for the compiler, which takes 2 s to import
    else:
        torch.set_deterministic_debug_mode("error" if on else "default")
    # Filling unused memory takes time and only helps to find mistakes.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def use_one_thread() -> Callable[[], None]:
    """Limit matrix products of torch and NumPy in this process to one thread. Return a function to undo this.

    Most products of a session are so small that threads would take longer to synchronize than to multiply.
    Learners divide large products among threads of their own.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    limits = threadpool_limits(1, user_api="blas")

    def undo() -> None:
        torch.set_num_threads(before)
        limits.restore_original_limits()

    return undo


@dataclass(frozen=True)
class Compute:
    """Device, number format and threads of one session."""

    device: torch.device
    """Device of the networks."""
    precision: torch.dtype
    """Number format of matrix products and convolutions: torch.float32, or torch.bfloat16 under autocast.
    Weights, gradients and optimizer state are always float32."""
    num_threads: int
    """Number of processor cores that this session may use, >= 1."""
    workspace: Workspace = field(default_factory=Workspace)
    """Place where large arrays are stored."""
    ranks: Ranks = ALONE
    """Group of processes that train this session together."""
    noise: NoiseScales | None = None
    """Noise scales of gradients; None if they are not measured."""
    compiled: bool = False
    """Whether networks are compiled by torch.compile."""
    kernels: bool = True
    """Whether labrl's kernels compute fully connected networks on the CPU."""
    on_device: list[Any] = field(default_factory=list)
    """`Changes` objects of all networks whose updates do not wait for the device."""
    record: Record | None = None
    """Function that records updates and forward passes, which then always use the same memory; None if
    nothing is recorded."""
    note: Callable[[str], None] | None = None
    """Function that writes a line to the session's log; None to discard the line."""

    @classmethod
    def choose(
        cls,
        device: str,
        precision: str,
        num_threads: int,
        session: int = 0,
        num_gpus: float | None = None,
        faster_on_gpu: bool = True,
    ) -> Compute:
        """Resolve `auto` for this machine and distribute the sessions over the machine's GPUs.

        num_gpus: number of GPUs granted to the trial, None for all; faster_on_gpu: whether `auto` means a GPU
        if there is one. For small networks, launching GPU kernels takes longer than the computation on a CPU.
        Raises InputError if more GPUs are requested than exist.
        """
        if num_gpus is not None:
            _check_gpus(device, num_gpus)
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError.resources(
                "meta.device=cuda",
                "PyTorch finds no GPU here",
                "meta.device=auto or cpu, or install a build of PyTorch for your GPU",
            )
        wanted = device == "cuda" or (device == "auto" and faster_on_gpu and num_gpus != 0)
        on_gpu = wanted and torch.cuda.is_available()
        granted = torch.cuda.device_count() if num_gpus is None else math.ceil(num_gpus)
        chosen = torch.device("cuda", session % granted) if on_gpu else torch.device("cpu")
        if on_gpu:
            # Deterministic products need this variable, and cuBLAS reads it only before the first product.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if precision == "auto":
            # Emulated bfloat16 is slower than float32.
            in_hardware = _cpu_has("avx512_bf16", "amx_bf16", "bf16")
            has_bf16 = torch.cuda.is_bf16_supported() if on_gpu else in_hardware
            precision = "bf16" if has_bf16 else "fp32"
        return cls(
            chosen,
            torch.bfloat16 if precision == "bf16" else torch.float32,
            max(num_threads, 1),
            record=record_graph if on_gpu else None,
        )

    @property
    def rounds_weights(self) -> bool:
        """Whether to keep bfloat16 copies of the weights.

        A GPU needs no copies, because it casts weights in almost no time, nor does compiled code, which casts
        weights where it uses them.
        """
        return self.precision == torch.bfloat16 and self.device.type == "cpu" and not self.compiled

    @property
    def waits_for_weights(self) -> bool:
        """Whether matrix products (AMX, bfloat16) are so fast that reading weights limits updates."""
        return self.rounds_weights and _cpu_has("amx_bf16")
