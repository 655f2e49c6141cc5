"""Handle the arguments of `labrl`, `labrl.train` and `labrl.sweep`, up to the composition by Hydra.

Hydra composes a new run or experiment and calls a `Job`. Hydra itself reads the command line, so `labrl.cli`
calls Hydra.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hydra._internal.utils import get_args  # Hydra has no public parser of its command line.
from hydra.core.global_hydra import GlobalHydra
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import compose, explain, explained, hydra_initialized, origins, prepare
from labrl.config.edit import compose_recorded
from labrl.config.keys import is_hydras, written
from labrl.config.presets import choices_of
from labrl.errors import DONE, FAILED, InputError, LabrlError
from labrl.mistakes.arguments import check_arguments
from labrl.processes.output import print_traceback, print_unexpected
from labrl.processes.script import begin
from labrl.processes.signals import signals_raise
from labrl.processes.startup import check_here, let_threads_sleep, name_user_and_home
from labrl.run.provenance import Command, as_yaml
from labrl.run.session_log import print_warnings
from labrl.run.signature import trusting
from labrl.session.torchrun import refuse_torchrun
from labrl.trial.find import TAKE_A_RUN
from labrl.trial.request import request_of, trust_in

if TYPE_CHECKING:
    from argparse import Namespace

    from labrl.experiment.again import ExperimentAgain
    from labrl.experiment.job import Job
    from labrl.experiment.result import SweepResult
    from labrl.run.provenance import Typed
    from labrl.trial.composed import Composed
    from labrl.trial.fork import Fork
    from labrl.trial.request import Request
    from labrl.trial.result import TrialResult


@dataclass(frozen=True)
class Composition:
    """A new run or experiment that Hydra is to compose."""

    job: Job
    """The function that Hydra calls or gives to a sweeper."""
    arguments: list[str]
    """The command line for Hydra."""
    flags: Namespace
    """The parsed `arguments`."""


@contextmanager
def hydra_in_charge(
    overrides: Sequence[str], config_dir: str | None, multirun: bool = True
) -> Iterator[None]:
    """Context manager: raise the errors of Hydra as LabrlError.

    overrides, config_dir, multirun: arguments from which Hydra composes.
    """
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its errors and ends the process
    try:
        with explained(overrides, config_dir, multirun):
            yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def _check_place() -> None:
    """Raise InputError if the working directory has been deleted, or if configurations cannot contain its
    path."""
    check_here()
    if "${" in os.getcwd():
        why = "this working directory contains ${, which starts an interpolation in configurations"
        raise InputError.usage(Path.cwd(), why, "Change to another directory")


def answer(arguments: list[str], typed: Typed, full_error: bool) -> int | Composition:
    """Answer a question about the configuration, let a run's policy play, or resume, repeat or fork a run,
    and return the exit code. For a new run or experiment, return what Hydra must compose instead.

    arguments: arguments after `labrl`; typed: the command, which is recorded; full_error: whether a new run
    prints tracebacks. Raises LabrlError.
    """
    begin("labrl.cli.main")
    _check_place()
    asked, others = _asked_about(arguments)
    if "--hydra-help" not in others:
        check_arguments(others)
    if asked is not None:
        return _print_origins(asked, others)
    flags = _parsed(arguments)
    if flags.multirun:
        refuse_torchrun("-m")
        for flag in (f"--{name} {asked}" for name in ("cfg", "info") if (asked := vars(flags)[name])):
            fix = "Leave out -m, and give each key a single value"
            raise InputError.contradiction("-m", flag, "it is about a single run", fix)
    trust, overrides = trust_in(flags.overrides, flags.config_dir)
    arguments = [one for one in arguments if one not in flags.overrides or one in overrides]
    with trusting(trust):
        flags = _parsed(arguments)
        request = request_of(flags.overrides, flags.multirun)
        if request is not None and request.kind == "enjoy":
            from labrl.trial.showing import enjoy_request

            asked_for = enjoy_request(request)
            # Imported late: a wrong request must not wait for PyTorch.
            from labrl.trial.enjoy import enjoy

            with signals_raise():
                return enjoy(asked_for, flags.config_dir)
        if request is not None and not flags.multirun:
            return _go_back(request, flags, typed, full_error)
        if flags.multirun or any(
            vars(flags)[name] for name in ("cfg", "info", "hydra_help", "shell_completion")
        ):
            return _begin(arguments, typed, request, full_error)
        prepare(flags.config_dir, flags.overrides, multirun=False)
        return _print_trained(partial(_trained, None, flags.overrides, flags.config_dir, typed), full_error)


def begin_sweep(
    overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, full_error: bool
) -> Composition:
    """Return what Hydra must compose for a call of `labrl.sweep`, as for the command `labrl -m <overrides>`.

    Raises LabrlError where the command would print the error's message.
    """
    example, instead = "['env=pong', 'seed=0,1,2,3']", "Leave them out, as -m is implied"
    _check_call("labrl.sweep", overrides, "an experiment", example, instead)
    if not any("," in one or "(" in one or one.startswith(("+", "hydra", "experiment")) for one in overrides):
        fix = "Set several, such as seed=0,1,2,3, or call labrl.train([...]) for a single trial"
        raise InputError.usage("labrl.sweep", "no override has several values", fix)
    refuse_torchrun("labrl.sweep")
    _check_place()
    check_arguments(overrides)
    typed = f"labrl.sweep({json.dumps(list(overrides))})"
    trust, overrides = trust_in(overrides, config_dir)
    arguments = ["-m", *(["--config-dir", os.fspath(config_dir)] if config_dir else []), *overrides]
    with trusting(trust):
        return _begin(arguments, typed, request_of(overrides, multirun=True), full_error)


def result_of_sweep(job: Job, raise_on_failure: bool) -> SweepResult:
    """Return the result of an experiment. Raises TrialError if a trial has failed and `raise_on_failure`."""
    from labrl.experiment.result import SweepResult
    from labrl.trial.result import TrialError

    result = SweepResult(folder=job.folder, exit_code=job.exit_code)
    if result.exit_code and raise_on_failure:
        raise TrialError(result)
    return result


_calls = threading.RLock()


@contextmanager
def only_thread(caller: str) -> Iterator[None]:
    """Context manager: raise InputError if another thread of this process trains, because threads would share
    PyTorch's and Hydra's global state.

    caller: function that is called, for the message.
    """
    if not _calls.acquire(blocking=False):
        why = "another thread of this process is in labrl.train or labrl.sweep, which would make both inexact"
        fix = "Call one after the other, start a process for each, or call labrl.sweep([...]) once"
        raise InputError.usage(caller, why, fix)
    try:
        yield
    finally:
        _calls.release()


@only_thread("labrl.train")
def train(
    overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, raise_on_failure: bool
) -> TrialResult:
    """Run one trial for `labrl.train`, which describes the arguments. Raises LabrlError and TrialError."""
    instead = "Call it once for each trial, or labrl.sweep([...])"
    _check_call("labrl.train", overrides, "one trial", "['env=pong', 'seed=7']", instead)
    refuse_torchrun("labrl.train")
    trust, overrides = trust_in(overrides, config_dir)
    typed = f"labrl.train({json.dumps(list(overrides))})"
    with trusting(trust):
        result = _trained(request_of(overrides), overrides, config_dir, typed)
    from labrl.trial.result import TrialError
    from labrl.trial.summary import print_failures

    if result.exit_code and raise_on_failure:
        raise TrialError(result)
    print_failures(result)
    return result


def _trained(
    request: Request | None, overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, typed: Typed
) -> TrialResult:
    """Train a new run, or the run that `request` continues, repeats or forks. Raises LabrlError."""
    # Imported late: a wrong call must not wait for them.
    from labrl.trial.resume import go_back
    from labrl.trial.start import run_again, run_new

    if request is None:
        return run_new(_composed(overrides, config_dir, typed))
    again = go_back(request, config_dir)
    cfg = compose_recorded(again.edited, again.node, again.hydras, again.config_dir)
    return run_again(again, cfg.hydra.run.dir, typed)


def _print_trained(train: Callable[[], TrialResult], full_error: bool) -> int:
    """Call `train`, print the summary of its result, and return the exit code."""
    print_warnings()
    try:
        result = train()
    except LabrlError:
        raise
    except Exception as error:
        if full_error:
            print_traceback(error)
        print_unexpected(error, "the run")
        return FAILED
    from labrl.trial.summary import print_summary  # imported late: a misspelled key must not wait for it

    print_summary(result)
    return result.exit_code


def _composed(overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, typed: Typed) -> Composed:
    """Compose and check the configuration of a new run. Raises LabrlError."""
    from labrl.trial.composed import Composed

    cfg = compose(list(overrides), config_dir, with_hydra=True)
    folder = os.path.abspath(config_dir) if config_dir else None
    command = Command(list(overrides), choices_of(cfg.hydra), folder, typed)
    try:
        return Composed.of(cfg, cfg.hydra.run.dir, command)
    except OmegaConfBaseException as error:  # of the name of the run folder
        raise explain(error, overrides, config_dir) from error


def check_shown(flags: Namespace, typed: Typed) -> None:
    """Raise the LabrlError with which a run of the configuration that `--cfg` has printed would be refused
    before it makes an environment."""
    from labrl.trial.composed import resolved

    own = [one for one in flags.overrides if not is_hydras(one)]
    if flags.config_dir or not all(one.startswith(("agent=", "env=")) for one in own):
        sys.stdout.flush()  # The check takes seconds, because it imports PyTorch.
        _composed(flags.overrides, flags.config_dir, typed)
    elif own:  # Agents and environments of labrl may lack values, but have no wrong ones.
        cfg = compose(own, with_hydra=True)
        resolved(cfg, choices_of(cfg.hydra)["agent"])


def _check_call(caller: str, overrides: Sequence[str], what: str, example: str, instead: str) -> None:
    """Prepare this process for a call. Raises InputError if `overrides` is not a list, or contains flags or
    +enjoy.

    what: noun for what the call runs; example: two overrides; instead: what to do instead of passing flags.
    """
    begin(caller)
    let_threads_sleep()
    name_user_and_home()
    is_list = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not is_list or not all(isinstance(override, str) for override in overrides):
        raise InputError.usage(
            caller, f"it takes a list of overrides, such as {example}, but got {overrides!r}"
        )
    if flags := [override for override in overrides if override.startswith("-")]:
        fix = f"{instead}, with config_dir=<folder> for your own files, or call labrl.cli.main([...])"
        raise InputError.usage(flags[0], f"{caller} accepts the overrides of {what}, but no flags", fix)
    if any(override.startswith("+enjoy=") for override in overrides):
        fix = "Call labrl.cli.main([...]) with the same overrides"
        raise InputError.usage("+enjoy", "it does not train", fix)


def _begin(arguments: list[str], typed: Typed, request: Request | None, full_error: bool) -> Composition:
    """Return a new run or an experiment for Hydra to compose. request: the requested resume or fork, if
    any."""
    from labrl.experiment.again import ExperimentAgain, first_options
    from labrl.experiment.job import Job
    from labrl.trial.fork import Fork
    from labrl.trial.resume import go_back

    flags = _parsed(arguments)
    again: Fork | ExperimentAgain | None = None
    if request is not None:
        # The experiment that is resumed, or the run that the trials of a new experiment fork from.
        if request.kind == "resume":
            again = ExperimentAgain.of(request)
        else:
            again = cast("Fork", go_back(request, flags.config_dir))
        for flag in (one for one in again.overrides if one.startswith("-")):
            why = "it is among the recorded overrides, but is not an override"
            raise InputError.about(flag, why, code="damaged")
        # Its overrides and its folder of groups precede those of the command.
        hydras = [one for one in flags.overrides if is_hydras(one)] if isinstance(again, Fork) else []
        arguments = [one for one in arguments if one not in flags.overrides] + again.overrides + hydras
        if again.config_dir and not flags.config_dir:
            arguments = ["--config-dir", again.config_dir, *arguments]
        flags = _parsed(arguments)
    prepare(flags.config_dir, flags.overrides, flags.multirun)
    own = [override for override in flags.overrides if not is_hydras(override)]
    job = Job(flags.config_dir, full_error, typed, own, again)
    if flags.multirun:
        with (
            hydra_in_charge(flags.overrides, flags.config_dir),
            hydra_initialized(flags.config_dir),
        ):
            first = first_options(flags.overrides, GlobalHydra.instance().config_loader())
        arguments = [first.get(one, one) for one in arguments]
    return Composition(job, arguments, flags)


def _go_back(request: Request, flags: Namespace, typed: Typed, full_error: bool) -> int:
    """Continue, repeat or fork a run, or print its configuration with the edits. Return the exit code."""
    from labrl.trial.resume import Resume, frames_reached, go_back

    prepare(flags.config_dir, request.edits)
    again = go_back(request, flags.config_dir)
    if flags.cfg == "job":
        plain = again.edited
        try:
            if isinstance(again, Resume):  # with the frame from which changed coefficients hold
                reached = frames_reached(again.past)
                plain, contradicting = again.continued(plain, reached)
                again.check_contradictions(plain, contradicting, reached)
            again.composed(str(again.past.path), typed, plain)
        finally:
            print(as_yaml(plain), end="")
        return DONE
    for name in ("cfg", "info", "hydra_help"):
        if vars(flags).get(name):
            flag = f"--{name}".replace("_", "-") + f" {flags.cfg}" * (name == "cfg")
            why, fix = f"it cannot be combined with +{request.kind}", "Use --cfg job alone"
            why += ", unlike --cfg job, which prints the complete configuration of the run with the edits"
            raise InputError.about(flag, why, fix, code="usage", key=flag.split()[0])
    return _print_trained(partial(_trained, request, [], flags.config_dir, typed), full_error)


def _asked_about(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the key of `--info origin [key]`, which Hydra does not know, and the other arguments.

    The key is '' if there is none, and None if the arguments do not contain `--info origin`.
    """
    for at, argument in enumerate(arguments):
        end = at + (2 if argument in ("--info", "-i") else 1)
        if "=".join(arguments[at:end]) in ("--info=origin", "-i=origin"):
            key = "".join(arguments[end : end + 1])
            is_key = "=" not in key and not key.startswith(("-", "~"))
            return key if is_key else "", [*arguments[:at], *arguments[end + is_key :]]
    return None, arguments


def _print_origins(key: str, arguments: list[str]) -> int:
    """Print which files and overrides set a key, or the keys of a group, for `labrl --info origin`."""
    flags = _parsed(arguments)
    past = [one.partition("=")[0] for one in flags.overrides if one.startswith(TAKE_A_RUN)]
    for given in [*(["-m"] if flags.multirun else []), *past]:
        why = "it cannot be combined with --info origin, which is about a new run"
        raise InputError.usage(given, why, "Leave it out")
    found = origins(key, flags.overrides, flags.config_dir)
    width = max(map(len, found))
    for name, all_origins in found.items():
        for origin, value in all_origins if name == key else all_origins[-1:]:
            print(f"{name:{width}}  {value if isinstance(value, str) else written(value):20}  {origin}")
    return DONE


def _parsed(arguments: list[str]) -> Namespace:
    """Return Hydra's flags and the overrides among the arguments."""
    found: Namespace = get_args(arguments)
    return found
