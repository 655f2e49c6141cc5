"""The commands `labrl` and `labrl-*`.

No other module reads the command line.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labrl.errors import DONE, FAILED, INTERRUPTED, WRONG_INPUT, InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean
from labrl.processes.output import refused, steady_output
from labrl.processes.signals import Stopped, before_leaving, signals_raise

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from labrl.experiment.again import ExperimentAgain
    from labrl.experiment.job import Job
    from labrl.run.provenance import Typed
    from labrl.trial.fork import Fork
    from labrl.trial.request import Request


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `labrl`: a trial, or an experiment of several trials (-m).

    argv: the arguments after `labrl`; None for those of the process. Returns the exit code, which is the
    largest one of several trials.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if "--version" in arguments:
        return _ended("labrl", _print_version)
    if not {"--help", "-h"}.isdisjoint(arguments):
        return _ended("labrl", _print_help)
    # Imported late, so that help does not wait for it.
    from labrl.session.torchrun import Launch, lead

    launch = Launch.here()
    if launch is None:
        return _main(argv)
    if launch.rank == 0:
        return lead(lambda: _main(argv))
    from labrl.session.run import follow

    return follow(launch)


def _main(argv: Sequence[str] | None) -> int:
    from labrl.session.torchrun import typed_command

    with _arguments(argv) as arguments:
        typed = typed_command() if argv is None else ["labrl", *argv]
        return _ended("labrl", lambda: _run(arguments, typed), trains=True)


def _ended(name: str, command: Callable[[], int], *, trains: bool = False) -> int:
    """Run a command, and return its exit code however it ends.

    trains: whether the command does more than print, so that losing its output is not a failure.
    """
    with steady_output() as output:
        try:
            _check_here()
            code = command()
        except LabrlError as error:
            code = refused(error, _full_error())
        except KeyboardInterrupt as stop:
            # The notes of the exception say how to resume.
            print("; ".join([f"{name}: interrupted", *vars(stop).get("__notes__", [])]), file=sys.stderr)
            code = stop.exit_code if isinstance(stop, Stopped) else INTERRUPTED
        except SystemExit as end:
            # Raised by argparse for --help and wrong flags, and when a trial of an experiment is interrupted.
            code = end.code if isinstance(end.code, int) else DONE if end.code is None else WRONG_INPUT
        output.flush()
        if output.refusal is not None:
            print(
                f"{name}: the output could not be printed completely: {output.refusal.strerror}",
                file=sys.stderr,
            )
            code = code if trains else code or FAILED
    return code


def _check_here() -> None:
    """Raise InputError if the working directory has been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError(
            "the working directory has been deleted. Change to an existing one", code="usage"
        ) from None


def _full_error() -> bool:
    """Return whether tracebacks are requested."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def _run(arguments: list[str], typed: Typed) -> int:
    """Answer a question about the configuration, play a run, or train. Return the exit code."""
    from labrl.processes.script import begin
    from labrl.run.signature import trusting
    from labrl.session.torchrun import refuse_torchrun
    from labrl.trial.request import trust_in

    begin("labrl.cli.main")
    _check_place()
    asked = _asked_about(arguments)
    _check_arguments(arguments if asked is None else asked[2])
    if asked is not None:
        return _print_origins(*asked)
    args = _hydras_flags(arguments)
    if args.shell_completion:
        if "COMP_LINE" in os.environ:  # the shell would show messages within the line that the user types
            sys.stderr = io.StringIO()
        if _complete(args):
            return DONE
    if args.multirun:
        refuse_torchrun("-m")
    trust, overrides = trust_in(args.overrides, args.config_dir)
    arguments = [one for one in arguments if one not in args.overrides or one in overrides]
    with trusting(trust):
        return _play_or_train(arguments, typed)


def _play_or_train(arguments: list[str], typed: Typed) -> int:
    """Answer a question about a key, play a run, or train. Return the exit code."""
    from labrl.trial.request import request_of

    args = _hydras_flags(arguments)
    request = request_of(args.overrides, args.multirun)
    if request is not None and request.kind == "enjoy":
        return _enjoy(request)
    if request is not None and not args.multirun:
        return _go_back(request, args, typed)
    if args.cfg and args.package and not args.multirun and _shows_null(args):
        print("null")
        return DONE
    return _train(arguments, typed, request).exit_code


def sweep(overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, typed: str) -> Job:
    """Run the experiment `labrl -m <overrides>` for `labrl.sweep`. Return the job, with folder and exit code.

    typed: the call, which is recorded. Raises LabrlError where the command prints its message.
    """
    from labrl.mistakes.arguments import check_arguments
    from labrl.run.signature import trusting
    from labrl.session.torchrun import refuse_torchrun
    from labrl.trial.request import request_of, trust_in

    refuse_torchrun("labrl.sweep")
    _check_here()
    _check_place()
    check_arguments(overrides)
    trust, overrides = trust_in(overrides, config_dir)
    arguments = ["-m", *(["--config-dir", os.fspath(config_dir)] if config_dir else []), *overrides]
    with steady_output(), trusting(trust):
        return _train(arguments, typed, request_of(overrides, multirun=True))


def _go_back(request: Request, args: Namespace, typed: Typed) -> int:
    """Continue, repeat or fork a run, or print its configuration with the edits. Return the exit code."""
    from labrl.config.compose import prepare
    from labrl.trial.resume import Resume, frames_reached, go_back

    prepare(args.config_dir, request.edits)
    again = go_back(request, args.config_dir)
    if args.cfg == "job" and not args.package:
        from labrl.run.provenance import as_yaml

        plain = again.edited
        if isinstance(again, Resume):  # with the frame from which changed coefficients hold
            plain, _ = again.continued(plain, frames_reached(again.past))
        print(as_yaml(plain), end="")
        return DONE
    for name in ("package", "cfg", "info", "hydra_help"):
        if vars(args).get(name):
            flag = f"--{name}".replace("_", "-") + f" {args.cfg}" * (name == "cfg")
            why, fix = f"it cannot be combined with +{request.kind}", "Type --cfg job alone"
            why += ", for which --cfg job prints the whole configuration of the run with the edits"
            raise InputError.about(flag, why, fix, code="usage", key=flag.split()[0])
    from labrl.config.edit import run_recorded
    from labrl.experiment.job import Job

    job = Job(again.config_dir, _full_error(), typed, [], back=again)
    again.set_variables()
    plain = again.edited  # raises errors in keys before Hydra makes a folder
    with _hydra_in_charge(again.hydras, again.config_dir):
        run_recorded(job, plain, again.node, again.hydras, again.config_dir)
    return job.exit_code


def _check_place() -> None:
    """Raise InputError if configurations cannot contain the path of the working directory."""
    if "${" in os.getcwd():
        raise InputError(
            f"the path of the working directory, {os.getcwd()}, contains ${{, which starts an interpolation "
            "in configurations. Change to another directory",
            code="usage",
            key=os.getcwd(),
        )


def _complete(args: Namespace) -> bool:
    """Print completions of a run folder. Return False if Hydra completes the command line instead."""
    from labrl.trial.find import completions

    _check_completion(args.overrides)
    completed = completions(os.environ.get("COMP_LINE", ""))
    if completed is not None:
        print("\n".join(completed))
    return completed is not None


def _enjoy(request: Request) -> int:
    """Let the policy of a run play. Return the exit code."""
    from labrl.trial.showing import enjoy_request

    asked = enjoy_request(request)
    # Imported late: a wrong request must not wait for PyTorch.
    from labrl.trial.enjoy import enjoy

    with signals_raise():
        return enjoy(asked)


def _earlier(request: Request, args: Namespace) -> Fork | ExperimentAgain:
    """Return the experiment that is resumed, or the run that the trials of a new one fork from."""
    from labrl.experiment.again import ExperimentAgain
    from labrl.trial.fork import Fork
    from labrl.trial.resume import go_back

    if request.kind == "resume":
        return ExperimentAgain.of(request)
    fork = go_back(request, args.config_dir)
    assert isinstance(fork, Fork)
    return fork


def _continuing(again: Fork | ExperimentAgain, arguments: Sequence[str], args: Namespace) -> list[str]:
    """Return the arguments with the overrides of an earlier run, and with its folder of groups.

    args: the parsed arguments, whose overrides are replaced.
    """
    from labrl.config.keys import is_hydras
    from labrl.trial.fork import Fork

    for flag in (one for one in again.overrides if one.startswith("-")):
        raise InputError(f"{flag} is among the recorded overrides, but is none", code="damaged", key=flag)
    hydras = [one for one in args.overrides if is_hydras(one)] if isinstance(again, Fork) else []
    found = [one for one in arguments if one not in args.overrides] + again.overrides + hydras
    return ["--config-dir", again.config_dir, *found] if again.config_dir and not args.config_dir else found


def _train(arguments: list[str], typed: Typed, request: Request | None) -> Job:
    """Let Hydra compose, and call a `Job` for a run or a sweeper for an experiment. Return the job.

    request: what an experiment resumes or forks from. Raises InputError if composing fails.
    """
    import hydra

    from labrl.config import config_folder
    from labrl.config.compose import prepare
    from labrl.config.extensions import kinds_replace
    from labrl.config.keys import is_hydras
    from labrl.experiment.again import ExperimentAgain, for_trials_alone
    from labrl.experiment.job import Job

    args, again = _hydras_flags(arguments), None
    if request is not None:
        again = _earlier(request, args)
        arguments = _continuing(again, arguments, args)
        args = _hydras_flags(arguments)
    prepare(args.config_dir, args.overrides, args.multirun)
    own = [override for override in args.overrides if not is_hydras(override)]
    job = Job(args.config_dir, _full_error(), typed, own, again)
    with _hydra_in_charge(args.overrides, args.config_dir, args.multirun):
        if args.multirun:
            known = again.swept if isinstance(again, ExperimentAgain) else set()
            alone = for_trials_alone(args.overrides, known)
            arguments = [one for one in arguments if one not in alone]
        with _arguments(arguments), kinds_replace():
            hydra.main(config_path=str(config_folder()), config_name="config")(job)()
    return job


@contextmanager
def _hydra_in_charge(
    overrides: Sequence[str], config_dir: str | None, multirun: bool = False
) -> Iterator[None]:
    """Context manager: raise the errors of Hydra as LabrlError, and at the end remove folders that it has
    made for nothing.

    overrides, config_dir, multirun: what Hydra composes.
    """
    from hydra.errors import HydraException

    from labrl.config.compose import explain
    from labrl.config.keys import split_override
    from labrl.experiment.job import note_existing, remove_unused_folder

    folders = [value for key, value in map(split_override, overrides) if key == "hydra.run.dir"]
    note_existing(folders[-1].strip("'\"") if folders else "runs")
    before_leaving.append(remove_unused_folder)
    try:
        with _raising_hydra():
            yield
    except LabrlError:
        raise
    except Exception as error:
        if isinstance(error, HydraException) or not isinstance(error, OSError):
            raise explain(error, overrides, config_dir, multirun) from error
        key = "hydra.sweep.dir" if multirun else "hydra.run.dir"
        where = f": {os.path.abspath(error.filename)}" if error.filename else ""
        why = f"cannot create the run folder ({error.strerror or error}{where})"
        raise InputError(f"{why}: set {key}=<folder>", code="usage", key=key) from error


def _check_completion(overrides: Sequence[str]) -> None:
    """Raise InputError unless the overrides of `--shell-completion` name an action and a shell."""
    name, _, shell = "".join(overrides).partition("=")
    if name not in ("install", "uninstall", "query") or shell not in ("bash", "fish", "zsh"):
        raise InputError(
            f"{' '.join(['--shell-completion', *overrides])}: takes install, uninstall or query with bash, "
            'fish or zsh. Write eval "$(labrl --shell-completion install=bash)"',
            code="unknown-option",
            key="--shell-completion",
        )
    if name == "query" and "COMP_LINE" not in os.environ:
        raise InputError(
            f"--shell-completion query={shell}: only the shell can call this, with the line to complete in "
            f'COMP_LINE. To install completion, write eval "$(labrl --shell-completion install={shell})"',
            code="usage",
            key="--shell-completion",
        )


def _shows_null(args: Namespace) -> bool:
    """Return whether `--package` names a key whose value is null, which Hydra reports as missing.

    Raises InputError if there is no such key.
    """
    from omegaconf import OmegaConf

    from labrl.config.compose import compose
    from labrl.mistakes.names import all_keys, unknown_key

    cfg = compose(args.overrides, args.config_dir, with_hydra=True)
    if args.package == "_global_" or OmegaConf.select(cfg, args.package) is not None:
        return False
    known = all_keys(cfg)
    if args.package not in known:
        raise InputError.of([unknown_key(args.package, "", known)])
    return True


def _asked_about(arguments: Sequence[str]) -> tuple[str, str, list[str]] | None:
    """Return what is asked, the key and the other arguments of `--info presets` or `--info origin [key]`.

    Hydra does not know these questions. Returns None if the arguments contain neither.
    """
    for at, argument in enumerate(arguments):
        flag, equals, asked = argument.partition("=")
        end = at + 1
        if flag in ("--info", "-i") and not equals:
            asked, end = "".join(arguments[end : end + 1]), end + 1
        if flag in ("--info", "-i") and asked in ("presets", "origin"):
            key = "".join(arguments[end : end + 1])
            is_key = asked == "origin" and "=" not in key and not key.startswith(("-", "~"))
            return asked, key if is_key else "", [*arguments[:at], *arguments[end + is_key :]]
    return None


def _print_origins(asked: str, key: str, arguments: list[str]) -> int:
    """Run `labrl --info presets` or `--info origin`: print which files set which values."""
    from labrl.config.compose import applied_presets, origins
    from labrl.config.keys import written
    from labrl.trial.find import TAKE_A_RUN

    args = _hydras_flags(arguments)
    past = [one.partition("=")[0] for one in args.overrides if one.startswith(TAKE_A_RUN)]
    for given in [*(["-m"] if args.multirun else []), *past]:
        raise InputError(
            f"{given} cannot be combined with --info {asked}, which is about a new run: omit it",
            code="usage",
            key=given,
        )
    if asked == "presets":
        print(applied_presets(args.overrides, args.config_dir))
        return DONE
    found = origins(key, args.overrides, args.config_dir)
    rows = [
        (name, value if isinstance(value, str) else written(value), origin)
        for name, all_origins in found.items()
        for origin, value in (all_origins if name == key else all_origins[-1:])
    ]
    width = max(len(name) for name, _, _ in rows)
    for name, value, origin in rows:
        print(f"{name:{width}}  {value:20}  {origin}")
    return DONE


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raise InputError if an argument is neither a flag nor an override."""
    from labrl.mistakes.arguments import check_arguments

    if "--hydra-help" not in arguments:
        check_arguments(arguments)


def list_envs(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-envs [part of a name]`: list environments with name, kind and id. Return the exit code."""
    import argparse

    from labrl.envs.games import environments

    parser = argparse.ArgumentParser(
        prog="labrl-envs",
        description="List the environments for labrl env=<name>, with their kind and id.",
    )
    parser.add_argument(
        "part", nargs="?", default="", help="list only names that contain this text, such as pinball"
    )

    def command() -> int:
        part = parser.parse_args(argv).part
        known = environments()
        rows = [row for row in known if part in row[0]]
        if not rows:
            guess = did_you_mean(part, (row[0] for row in known)) or " labrl-envs without a name lists all."
            raise InputError(
                f"{part}: no environment name contains this text.{guess}", code="unknown-option", key=part
            )
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
        for name, kind, identity in rows:
            print(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {identity}")
        return DONE

    return _ended(parser.prog, command)


def send_to_wandb(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-wandb <run folders>`: upload data that is missing on Weights & Biases.

    Returns the exit code, 1 if an upload is incomplete.
    """
    import argparse

    from labrl.dashboards.mirror import send
    from labrl.trial.find import find_run

    parser = argparse.ArgumentParser(
        prog="labrl-wandb",
        description="Upload finished runs to Weights & Biases, for example after a network failure. Only "
        "missing data is uploaded.",
    )
    parser.add_argument("folders", nargs="+", help="run folders, or latest")
    parser.add_argument("--project", help="project to upload to; by default the one of the run")
    parser.add_argument("--entity", help="user or team to upload to; by default the one of the run")
    parser.add_argument(
        "--wait",
        type=float,
        default=3600.0,
        help="longest time for the uploads of each run, in seconds (default: 3600)",
    )

    def command() -> int:
        args = vars(parser.parse_args(argv))
        folders = args.pop("folders")
        changes = {key: value for key, value in args.items() if value is not None}
        with signals_raise():
            arrived = [send(find_run(folder, [], "wandb"), changes, print) for folder in folders]
        return DONE if all(arrived) else FAILED

    return _ended(parser.prog, command)


def list_runs(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-runs [filters]`: print the run folders as a table, the newest first.

    Returns the exit code, 1 if no run matches all filters.
    """
    import argparse
    import json
    import shutil

    parser = argparse.ArgumentParser(
        prog="labrl-runs",
        description="List run folders, the newest first. An experiment takes one line, and one more for each "
        "group if its trials differ in more than the seed. For a search, the return is that of its best "
        "configuration on fresh seeds.",
    )
    parser.add_argument(
        "filters",
        nargs="*",
        metavar="filter",
        help="condition such as status=finished, env=pong, agent='*dqn' or agent.lr=1e-4, or text in the "
        "name of the folder; several filters must all match",
    )
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder to look in (default: runs)")
    parser.add_argument("--json", action="store_true", help="print all records of the runs as JSON")
    parser.add_argument(
        "--diagnose",
        type=Path,
        metavar="FOLDER",
        help="print the known signs of failing to learn in the rows of the runs in this folder, what they "
        "usually mean, and overrides to try",
    )

    def command() -> int:
        args = parser.parse_args(argv)
        if args.diagnose is not None:
            return _diagnose(args.diagnose)
        from labrl.analysis.listing import as_table, entries

        _check_filters(args.filters)
        if not args.root.expanduser().is_dir():
            raise InputError(
                f"{args.root}: no such folder. Set another one with labrl-runs --root <folder>",
                code="not-found",
                key=str(args.root),
            )
        found = entries(args.root, args.filters)
        if args.json:
            print(json.dumps(found, indent=2))
        if found and not args.json:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            print(as_table(found, width))
        if not found:
            print(f"labrl: no run in {args.root} matches {' '.join(args.filters)}", file=sys.stderr)
        return DONE if found else FAILED

    return _ended(parser.prog, command)


def _diagnose(folder: Path) -> int:
    """Print the signs in the rows of each run in `folder`. Raises InputError if there is none."""
    from labrl.analysis.diagnosis import as_text, diagnose_run
    from labrl.run.find import find_runs

    runs = find_runs([folder])
    for run in runs:
        if len(runs) > 1:
            print(f"{run.path}:")
        print(as_text(diagnose_run(run)))
    return DONE


def _check_filters(filters: Sequence[str]) -> None:
    """Raise InputError if a filter has no key, or a status that does not exist."""
    from fnmatch import fnmatch
    from typing import get_args

    from labrl.run.run import RunStatus

    # "killed" is the listing's name for a run whose process has died without recording an end.
    known = (*get_args(RunStatus), "killed")
    for condition in filters:
        key, equals, value = condition.partition("=")
        if equals and not key:
            raise InputError(
                f"{condition}: a filter needs a key before the equals sign, such as status=finished, "
                "env=pong or agent.lr=1e-4",
                code="syntax",
                key=condition,
            )
        if key == "status" and not any(fnmatch(status, value) for status in known):
            guess = did_you_mean(value, known, prefix="status=")
            raise InputError(
                f"{condition}: no such status.{guess} The status of a run is one of {', '.join(known)}.",
                code="unknown-option",
                key=key,
            )


def replay(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-replay <run folder> [episode=...] [session=...]`: play a recorded episode again.

    Returns the exit code.
    """
    import argparse

    from labrl.trial.showing import replay_request

    parser = argparse.ArgumentParser(
        prog="labrl-replay",
        description="Play a recorded episode again, check that it is identical, and write a video of it.",
        epilog="A run records its best and its latest episode: of training or, with meta.rigorous_eval, "
        "of evaluation. meta.record_episodes=each adds one of every evaluation, episode=<frame>.",
    )
    parser.add_argument("run", help="run folder, or latest")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="episode=best, episode=last or episode=<frame>; session=<number>; render=human opens a window",
    )

    _take_trust(parser)

    def command() -> int:
        given = parser.parse_args(argv)
        request = replay_request(given.run, given.overrides)
        from labrl.trial.playback import replay as replay_episode

        with signals_raise(), _trusting(given):
            return replay_episode(request)

    return _ended(parser.prog, command)


def export_policy(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-export <run folder>`: export a policy to a file that does not need labrl.

    Returns the exit code.
    """
    import argparse

    parser = argparse.ArgumentParser(
        prog="labrl-export",
        description="Export the policy of a run to a file that can be used without labrl, including all "
        "transforms of observations, and write a JSON file that describes it. The file is checked against "
        "the policy.",
    )
    parser.add_argument("run", help="run folder, or latest")
    form = "an ONNX model (default), or a program of torch.export"
    parser.add_argument("--format", metavar="onnx|torch", help=form)
    parser.add_argument(
        "--session", type=int, metavar="N", help="number of the session; by default the best one"
    )
    _take_trust(parser)
    parser.add_argument("--checkpoint", default="best", metavar="best|latest|FRAME", help="(default: best)")
    head = parser.add_mutually_exclusive_group()
    head.add_argument("--greedy", action="store_true", help="export greedy actions (default)")
    head.add_argument("--sampled", action="store_true", help="export actions sampled from the policy")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write; by default one in exports/ of the run folder"
    )

    card = "write a folder for the Hugging Face hub instead: the weights, and a page with curve and table"
    parser.add_argument("--card", type=Path, metavar="FOLDER", help=card)
    licence = "license of a card's weights, such as mit (default: other)"
    parser.add_argument("--license", metavar="NAME", help=licence)

    def command() -> int:
        args = parser.parse_args(argv)
        for flag in ("format", "sampled", "greedy", "out") if args.card else ("license",):
            if vars(args)[flag]:
                why = f"is {'not ' if args.card else ''}an option of --card"
                raise InputError.usage(
                    f"--{flag}", why, "Leave it out" if args.card else "Add --card <folder>"
                )
        if args.card:
            from labrl.trial.sharing import write_card

            folder = args.card.expanduser()
            with signals_raise(), _trusting(args):
                page = write_card(args.run, folder, args.session, args.checkpoint, args.license or "other")
            print(f"{os.path.relpath(page)}\nto upload it: hf upload <user>/{folder.name} {folder}")
            return DONE
        from labrl.trial.export import export

        form: Any = args.format or "onnx"
        with signals_raise(), _trusting(args):
            path, facts = export(args.run, form, args.session, args.checkpoint, args.sampled, args.out)
        checked = facts["checked"]
        print(
            f"{os.path.relpath(path)}: {facts['head']} actions of session {facts['session']} "
            f"at frame {facts['frame']:,}; largest difference from the policy on "
            f"{checked['observations']} observations: {checked['largest_difference']:.1g} ({checked['by']})"
        )
        return DONE

    return _ended(parser.prog, command)


def report(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-report <folders or globs...>`: rebuild a report, or compare runs. Return the exit code."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="labrl-report",
        description="Rebuild the report of a run or an experiment, or compare several runs, as a table and "
        "as report.html with plots.",
    )
    parser.add_argument(
        "places", nargs="+", metavar="folder", help="run or experiment folders, globs, or latest"
    )
    out = "folder to write to; by default the folder itself, or for several ./comparison, or ./paper"
    by = "key to group by, such as agent.lr; by default a group is all runs that differ only in the seed"
    form = (
        "md, csv or latex prints only the table; with pdf, svg or png, or options of the paper, tables and "
    )
    form += "figures are written to --out, such as latex,pdf"
    parser.add_argument("--out", metavar="DIR", help=out)
    parser.add_argument("--by", metavar="agent|env|KEY", help=by)
    parser.add_argument("--format", metavar="FORMAT,...", help=form)
    paper = parser.add_argument_group("options of the paper, with --format")
    name = "another name of a group; groups with one come first, in this order"
    paper.add_argument("--name", action="append", default=[], metavar="GROUP=NAME", help=name)
    paper.add_argument("--title", metavar="TEXT", help="title of the figures, may be empty")
    axis = "horizontal axis of the curves (default: frame)"
    paper.add_argument("--axis", choices=("frame", "wall"), help=axis)
    size = "width of the figures, or width x height in inches (default: column)"
    paper.add_argument("--size", metavar="column|text|WxH", help=size)
    paper.add_argument("--no-seeds", action="store_true", help="draw no thin line for each seed")
    stages = "print only which groups are better, tested in stages of five seeds, and how many more to run"
    parser.add_argument("--adaptive", action="store_true", help=stages)
    _take_trust(parser)

    def command() -> int:
        args = parser.parse_args(argv)
        from labrl.run.find import find_runs
        from labrl.trial.find import newest_folder

        places = [str(newest_folder()) if place == "latest" else place for place in args.places]
        if args.adaptive:
            from labrl.analysis.groups import group_runs
            from labrl.analysis.stages import describe, planned_stages

            runs = find_runs(places)
            stages = None if args.by else planned_stages(runs)
            print("\n".join(describe(group_runs(runs, args.by), stages)))
            return DONE
        options: dict[str, Any] = {
            "axis": args.axis,
            "size": args.size,
            "title": args.title,
            "names": args.name or None,
        }
        options = {name: value for name, value in options.items() if value is not None}
        options |= {"seeds": False} if args.no_seeds else {}
        if options and not args.format:
            flag = f"--{next(iter(options))}".replace("names", "name").replace("seeds", "no-seeds")
            raise InputError(
                f"{flag} is an option of the table and figures of a paper: add --format latex,pdf",
                code="usage",
                key=flag,
            )
        with signals_raise(), _trusting(args):
            if options or args.format not in (None, "md", "csv", "latex"):
                from labrl.analysis.paper import write_paper

                out = Path(args.out or "paper").expanduser()
                formats = args.format.split(",")
                for path in write_paper(find_runs(places), out, formats, args.by, **options):
                    print(path)
            else:
                from labrl.trial.reporting import report_on

                report_on(places, args.out, args.by, args.format)
        return DONE

    return _ended(parser.prog, command)


def clean(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-clean <folders or globs...>`: list, or remove, what finished runs no longer need.

    Returns the exit code.
    """
    import argparse

    parser = argparse.ArgumentParser(
        prog="labrl-clean",
        description="List replay buffers, checkpoints other than the newest and the best, and videos of "
        "finished runs with their sizes. Other runs are skipped. Nothing is removed without --yes.",
    )
    parser.add_argument("places", nargs="+", metavar="folder", help="runs, experiments, globs, or latest")
    parser.add_argument("--yes", action="store_true", help="remove these files")

    def command() -> int:
        args = parser.parse_args(argv)
        from labrl.trial.clean import clean_runs

        with signals_raise():
            return clean_runs(args.places, args.yes)

    return _ended(parser.prog, command)


def _take_trust(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--trust", action="store_true", help="run whatever code a folder names that someone else has written"
    )


def _trusting(args: Namespace) -> AbstractContextManager[None]:
    from labrl.run.signature import Trust, trusting

    return trusting(Trust(args.trust, typed="--trust"))


def _print_help() -> int:
    print((Path(__file__).parent / "help.txt").read_text(encoding="utf-8"), end="")
    return DONE


def _print_version() -> int:
    from importlib.metadata import version

    print(f"labrl {version('labrl')}")
    return DONE


def _hydras_flags(arguments: list[str]) -> Namespace:
    """Return Hydra's flags and the overrides among the arguments."""
    # Hydra has no public parser of its command line.
    from hydra._internal.utils import get_args

    found: Namespace = get_args(arguments)
    return found


@contextmanager
def _arguments(argv: Sequence[str] | None) -> Iterator[list[str]]:
    """Yield the command-line arguments, and put `argv` into `sys.argv`, where Hydra reads it."""
    before = sys.argv
    if argv is not None:
        sys.argv = ["labrl", *argv]
    try:
        yield sys.argv[1:]
    finally:
        sys.argv = before


@contextmanager
def _raising_hydra() -> Iterator[None]:
    """Context manager: make Hydra raise its errors instead of printing them and ending the process."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before
