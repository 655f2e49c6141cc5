"""Tests of the number of threads per session and of keeping freed memory within the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labrl.session.devices import available_cpus, threads_per_session


def printed_by(program: str) -> str:
    """Return what a Python program prints in a fresh process."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("num_cpus", "sessions", "threads"), [(1.0, 1, 1), (1.0, 4, 1), (0.5, 1, 1)])
def test_every_session_gets_at_least_one_thread(num_cpus: float, sessions: int, threads: int) -> None:
    assert threads_per_session(num_cpus, sessions) == threads


def test_trial_never_gets_more_threads_than_cores() -> None:
    assert threads_per_session(None, 1) == threads_per_session(10_000.0, 1) == available_cpus()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_reused_without_page_faults() -> None:
    program = (
        "import resource, numpy as np; from labrl.session.devices import keep_freed_memory\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(5): np.ones(40_000_000, np.uint8)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "usual = faults()\n"
        "if keep_freed_memory():\n"
        "    faults()\n"  # the first call still touches new pages
        "    print(usual, faults())\n"
    )
    printed = printed_by(program)
    if not printed:
        pytest.skip("this allocator cannot keep freed memory")
    usual, kept = map(int, printed.split())
    assert usual > 0
    assert kept < usual / 100


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs a kernel with huge pages"
)
def test_heap_requests_huge_pages_without_using_more_memory() -> None:
    program = (
        "import resource; from labrl.session.devices import keep_freed_memory\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = used()\n"
        "if keep_freed_memory():\n"
        "    print(used() - before)\n"
        "    heap = open('/proc/self/smaps').read().split('[heap]')[1:]\n"
        "    print(*{flag for part in heap for flag in part.split('VmFlags:')[1].splitlines()[0].split()})\n"
    )
    printed = printed_by(program)
    if not printed:
        pytest.skip("this allocator cannot keep freed memory")
    kilobytes, flags = printed.splitlines()
    assert int(kilobytes) < 10_000
    assert "hg" in flags.split()
