"""Trials as tasks of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import OmegaConf

from labrl.errors import FAILED, TERMINATED, InputError
from labrl.experiment.hydra_trial import HydraTrial
from labrl.experiment.outcome import Outcome
from labrl.experiment.workers import Order
from labrl.session.interruption import Interruption
from labrl.trial.devices import NUM_CPUS

LOOK_SECONDS = 0.5
"""Between two looks at whether somebody asked for a stop."""


def run_trial(trial: HydraTrial, number: int, words: list[str], cores: int) -> Outcome:
    """What a task does, in a process of Ray's. cores: that it has been given."""
    os.environ[NUM_CPUS] = str(cores)
    return trial(number, words)


def run_tasks(launcher: Any, orders: Sequence[Order], on_end: Callable[[int, Outcome], None]) -> int | None:
    """Hand each trial to Ray and tell of each end by its number.

    launcher: the plugin's, with its settings. A cluster that this started ends with it. Returns None, or
    the exit code where a signal ended it: then the trials have saved. Raises InputError for settings that
    Ray does not take.
    """
    import ray

    settings = OmegaConf.to_container(launcher.ray_cfg, resolve=True)
    assert isinstance(settings, dict)
    started = not ray.is_initialized()
    try:
        if started:
            ray.init(**settings["init"])
        task = ray.remote(**settings["remote"])(run_trial) if settings["remote"] else ray.remote(run_trial)
    except (ValueError, TypeError, ConnectionError, RuntimeError) as error:
        unreachable = isinstance(error, ConnectionError)
        raise InputError(
            f"hydra.launcher.ray: {str(error).splitlines()[0]}",
            code="not-found" if unreachable else "range",
            key="hydra.launcher.ray",
        ) from error
    try:
        return _look_after(ray, task, launcher, orders, on_end)
    finally:
        if started:
            ray.shutdown()


def _look_after(
    ray: Any, task: Any, launcher: Any, orders: Sequence[Order], on_end: Callable[[int, Outcome], None]
) -> int | None:
    trial = ray.put(HydraTrial.of(launcher.hydra_context, launcher.config, launcher.task_function))
    pending = {
        task.remote(trial, order.number, list(order.words), order.need.cores): order.number
        for order in orders
    }
    told = False
    with Interruption() as interruption:
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=LOOK_SECONDS)
            for reference in done:
                on_end(pending.pop(reference), _outcome(ray, reference, interruption.requested))
            if interruption.requested and not told:
                told = True
                for reference in pending:
                    ray.cancel(reference, force=False)  # which arrives as Ctrl-C does
    return interruption.exit_code if interruption.requested else None


def _outcome(ray: Any, reference: Any, stopped: bool) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except Exception as error:
        if stopped:
            return Outcome(status="interrupted", exit_code=TERMINATED)
        first_line = str(error).strip().partition("\n")[0]
        return Outcome(status="failed", exit_code=FAILED, error=f"{type(error).__name__}: {first_line}")
    return outcome
