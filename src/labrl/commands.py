"""Run a command: `labrl`, `labrl.train` or `labrl.sweep`, in four steps.

`trial.command` reads what was typed; `trial.configuration` composes or edits a configuration and checks it;
`trial.create`, or a way back to an earlier run (`resume`, `fork`, `rerun`), writes a run whose sessions are
due; `trial.train` trains them. An experiment takes the same steps for each of its trials.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from labrl.config.compose import (
    compose,
    compose_first,
    hydra_initialized,
    new_folder,
    origins,
    prepare,
)
from labrl.config.keys import is_hydras, written
from labrl.config.presets import choices_of, hydra_options
from labrl.envs.games import check_environment
from labrl.errors import DONE, InputError
from labrl.processes.output import doing
from labrl.processes.script import begin
from labrl.processes.signals import signals_raise
from labrl.processes.startup import check_here, let_threads_sleep, name_user_and_home
from labrl.run.find import is_run
from labrl.run.provenance import as_yaml
from labrl.run.run import Run
from labrl.run.session_log import print_warnings
from labrl.run.signature import trusting
from labrl.run.trust import check_overrides
from labrl.session.torchrun import refuse_torchrun
from labrl.trial.command import Command, command_of, parse
from labrl.trial.configuration import compose_run, edit_run, overrides_of, resolved
from labrl.trial.find import find_run

if TYPE_CHECKING:
    from labrl.experiment.earlier import Earlier
    from labrl.experiment.result import SweepResult
    from labrl.run.provenance import Typed
    from labrl.trial.fork import ForkPoint
    from labrl.trial.result import TrialResult


def answer(arguments: list[str], typed: Typed, full_error: bool) -> int:
    """Run the command line `labrl <arguments>`, and return the exit code.

    typed: the complete command, which is recorded; full_error: whether to print tracebacks. Raises
    LabrlError.
    """
    begin("labrl.cli.main")
    _check_place()
    asked, others = _asked_about(arguments)
    command = parse(others, typed)
    if asked is not None:
        return _print_origins(asked, command)
    if command.multirun:
        refuse_torchrun("-m")
    with trusting(command.trust):
        if command.verb == "enjoy":
            return _enjoy(command)
        if command.show:
            return _show(command)
        if command.multirun:
            return run_experiment(command, full_error)[1]
        print_warnings()
        result = run_trial(command)
    from labrl.trial.summary import print_summary  # imported late: a misspelled key must not wait for it

    print_summary(result)
    return result.exit_code


def run_trial(command: Command) -> TrialResult:
    """Create or go back to a run, and train it in this process. Raises LabrlError."""
    prepare(command.config_dir, command.overrides, multirun=False)
    if command.verb == "new":
        configuration, folder = compose_run(command.overrides, command.config_dir, command.typed)
        plain = configuration.plain
        _prepare_sessions(plain["meta"]["max_session"])
        check_environment(plain["env"], configuration.origin.choices.get("env", ""))
        from labrl.trial.create import create  # imported late: a misspelled key must not wait for PyTorch
        from labrl.trial.train import train

        run = create(configuration, folder)
        return train(run)
    # Imported late: a wrong command must not wait for them.
    from labrl.trial.fork import ForkPoint, fork
    from labrl.trial.rerun import record_comparison, rerun
    from labrl.trial.resume import resume

    past = find_past(command)
    if command.verb == "resume":
        _prepare_sessions(past.config["meta"]["max_session"])
        run = resume(past, command.own, command.typed, force=command.force, config_dir=command.config_dir)
    else:
        point = None
        if command.verb == "fork":
            point = ForkPoint.find(past, command.at, command.overrides, command.config_dir)
        plain, origin = edit_run(past, command.own, command.config_dir, command.typed)
        folder = new_folder(plain, origin.choices, command.hydras)
        _prepare_sessions(past.config["meta"]["max_session"])
        if point is None:
            run = rerun(past, plain, origin, folder, command.force)
        else:
            run = fork(point, folder, command.typed)
    from labrl.trial.train import train

    doing("restoring the run" if run.resumes.exists() else "making environments")
    result = train(run)
    if command.verb == "rerun":
        record_comparison(past, result)
    return result


def find_past(command: Command) -> Run:
    """Return the earlier run that a command names. Raises InputError if there is none, or if someone else has
    written it and it names code that is not part of labrl."""
    from labrl.trial.config_file import ConfigFile
    from labrl.trial.past import check_past

    file = Path(os.path.expanduser(command.which))
    if command.verb == "rerun" and file.is_file():
        of_run = file.name == "config.yaml" and is_run(file.parent)
        past: Run = Run.open(file.parent) if of_run else ConfigFile(file)
    else:
        past = find_run(command.which, command.overrides, cast("Any", command.verb))
    return check_past(past)


def run_experiment(command: Command, full_error: bool) -> tuple[Path, int]:
    """Run an experiment: a grid or a search, new or resumed. Return its folder and the exit code."""
    from labrl.experiment.earlier import Earlier, replaced
    from labrl.experiment.launcher import make_launcher
    from labrl.experiment.trials import Trials
    from labrl.trial.fork import ForkPoint

    earlier: Earlier | None = None
    fork: ForkPoint | None = None
    overrides, config_dir = command.overrides, command.config_dir
    if command.verb == "resume":
        earlier = Earlier.of(command)
        fork, overrides = earlier.fork, earlier.overrides
        config_dir = config_dir or earlier.config_dir
    elif command.verb == "fork":
        if any(one.startswith("hydra/sweeper=optuna") for one in overrides):
            why, fix = "its trials start at frame 0", "Use a grid of values instead: agent.lr=1e-4,3e-4"
            raise InputError.contradiction("+fork", "hydra/sweeper=optuna", why, fix)
        past = find_past(command)
        check_overrides(past, past.provenance)
        fork = ForkPoint.find(past, command.at, command.overrides, config_dir)
        # The overrides of the run precede those of the command.
        overrides = replaced(overrides_of(past), command.overrides)
        config_dir = config_dir or past.config_dir
    for flag in (one for one in overrides if one.startswith("-")):
        why = "it is among the recorded overrides, but is not an override"
        raise InputError.about(flag, why, code="damaged")
    folder = os.path.abspath(config_dir) if config_dir else None
    prepare(folder, overrides, multirun=True)
    overrides = [*hydra_options(overrides, folder), *overrides]
    with hydra_initialized(folder):
        cfg = compose_first(overrides, folder)
        kind: Any = "search" if cfg.hydra.runtime.choices["hydra/sweeper"] == "optuna" else "grid"
        own = [one for one in overrides if not is_hydras(one)]
        launcher = make_launcher(cfg)
        trials = Trials(
            kind=kind,
            overrides=own,
            hydras=[one for one in overrides if is_hydras(one)],
            config_dir=folder,
            typed=command.typed,
            full_error=full_error,
            fork=fork,
            force=command.force,
            elsewhere=launcher.traits.elsewhere,
        )
        launcher.planner = trials
        if kind == "grid":
            from labrl.experiment.sweep import sweep_grid

            return sweep_grid(cfg, trials, launcher, earlier)
        # Imported late, so that wrong input is reported without waiting for Optuna and torch.
        from labrl.experiment.search.begin import search

        return search(cfg, trials, launcher, earlier)


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
    command = command_of(overrides, config_dir, f"labrl.train({json.dumps(list(overrides))})")
    with trusting(command.trust):
        result = run_trial(command)
    from labrl.trial.result import TrialError
    from labrl.trial.summary import print_failures

    if result.exit_code and raise_on_failure:
        raise TrialError(result)
    print_failures(result)
    return result


@only_thread("labrl.sweep")
def sweep(
    overrides: Sequence[str],
    config_dir: str | os.PathLike[str] | None,
    raise_on_failure: bool,
    full_error: bool,
) -> SweepResult:
    """Run an experiment for `labrl.sweep`, which describes the arguments. Raises LabrlError and
    TrialError."""
    from labrl.mistakes.arguments import check_arguments

    example, instead = "['env=pong', 'seed=0,1,2,3']", "Leave them out, as -m is implied"
    _check_call("labrl.sweep", overrides, "an experiment", example, instead)
    if not any("," in one or "(" in one or one.startswith(("+", "hydra", "experiment")) for one in overrides):
        fix = "Set several, such as seed=0,1,2,3, or call labrl.train([...]) for a single trial"
        raise InputError.usage("labrl.sweep", "no override has several values", fix)
    refuse_torchrun("labrl.sweep")
    check_arguments(overrides)
    typed = f"labrl.sweep({json.dumps(list(overrides))})"
    command = command_of(overrides, config_dir, typed, multirun=True)
    with trusting(command.trust):
        folder, code = run_experiment(command, full_error)
    from labrl.experiment.result import SweepResult
    from labrl.trial.result import TrialError

    result = SweepResult(folder=folder, exit_code=code)
    if result.exit_code and raise_on_failure:
        raise TrialError(result)
    return result


def _prepare_sessions(count: int) -> None:
    """Start the server from which the processes of several sessions are forked."""
    if count > 1:
        from labrl.session.worker import start_server

        start_server()


def _enjoy(command: Command) -> int:
    """Let the policy of a run play, and return the exit code."""
    from labrl.play.options import enjoy_request

    request = enjoy_request(command)
    # Imported late: a wrong request must not wait for PyTorch.
    from labrl.play.enjoy import enjoy

    with signals_raise():
        return enjoy(request, command.config_dir)


def _show(command: Command) -> int:
    """Print the configuration (--cfg), or what Hydra knows of its composition (--info)."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    prepare(command.config_dir, command.overrides, multirun=False)
    if command.verb != "new":
        return _show_edited(command)
    cfg = compose(command.overrides, command.config_dir, with_hydra=True)
    if command.show.startswith("info"):
        with hydra_initialized(command.config_dir):
            hydra: Any = GlobalHydra.instance().hydra
            topic = command.show.removeprefix("info ")
            hydra.show_info(topic, config_name="config", overrides=command.overrides, run_mode=RunMode.RUN)
        return DONE
    shows = {"job": lambda key: key != "hydra", "hydra": lambda key: key == "hydra"}
    shown = OmegaConf.masked_copy(cfg, list(filter(shows.get(command.show), map(str, cfg))))
    if command.resolve and command.show == "job":
        with suppress(OmegaConfBaseException):  # of a missing value, which is refused below
            OmegaConf.resolve(shown)
    print(OmegaConf.to_yaml(shown), end="")
    # Refuse what a run of this configuration would refuse before it makes an environment.
    if command.config_dir or not all(one.startswith(("agent=", "env=")) for one in command.own):
        sys.stdout.flush()  # The check takes seconds, because it imports PyTorch.
        compose_run(command.overrides, command.config_dir, command.typed)
    elif command.own:  # Agents and environments of labrl may lack values, but have no wrong ones.
        resolved(compose(command.own), choices_of(cfg.hydra)["agent"])
    return DONE


def _show_edited(command: Command) -> int:
    """Print the configuration of an earlier run with edits, as it would be run."""
    from labrl.trial.past import configure_again
    from labrl.trial.resume import continue_config, frames_reached

    past = find_past(command)
    plain, origin = edit_run(past, command.own, command.config_dir, command.typed)
    try:
        if command.verb == "resume":  # with the frame from which changed coefficients hold
            plain, _ = continue_config(past, plain, origin, frames_reached(past), command.force)
        configure_again(past, plain, origin)
    finally:
        print(as_yaml(plain), end="")
    return DONE


def _check_place() -> None:
    """Raise InputError if the working directory has been deleted, or if configurations cannot contain its
    path."""
    check_here()
    if "${" in os.getcwd():
        why = "this working directory contains ${, which starts an interpolation in configurations"
        raise InputError.usage(Path.cwd(), why, "Change to another directory")


def _check_call(caller: str, overrides: Sequence[str], what: str, example: str, instead: str) -> None:
    """Prepare this process for a call. Raises InputError if `overrides` is not a list, or contains flags or
    +enjoy.

    what: noun for what the call runs; example: two overrides; instead: what to do instead of passing flags.
    """
    begin(caller)
    _check_place()
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


def _print_origins(key: str, command: Command) -> int:
    """Print which files and overrides set a key, or the keys of a group, for `labrl --info origin`."""
    past = [] if command.verb == "new" else [f"+{command.verb}"]
    for given in [*(["-m"] if command.multirun else []), *past]:
        why = "it cannot be combined with --info origin, which is about a new run"
        raise InputError.usage(given, why, "Leave it out")
    found = origins(key, command.overrides, command.config_dir)
    width = max(map(len, found))
    for name, all_origins in found.items():
        for origin, value in all_origins if name == key else all_origins[-1:]:
            print(f"{name:{width}}  {value if isinstance(value, str) else written(value):20}  {origin}")
    return DONE
