"""Number of threads of matrix products in a process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from threadpoolctl import threadpool_limits


def use_one_thread() -> Callable[[], None]:
    """Let matrix products of torch and NumPy use one thread in this process. Return a function to undo this.

    Most products of a session are so small that threads take longer to meet than to multiply. Learners divide
    the large ones among threads of their own.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    limits = threadpool_limits(1, user_api="blas")

    def undo() -> None:
        torch.set_num_threads(before)
        limits.restore_original_limits()

    return undo
