"""The commands `labrl` and `labrl-*`, except `labrl-session`.

No other module reads the command line, except to record it. Each function takes the arguments after the name
of the command (None: the arguments of the process) and returns the exit code. The modules that a command
needs are imported when it runs, so that printing help and refusing wrong arguments take no time for imports.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from labrl.errors import DONE, FAILED, INTERRUPTED, WRONG_INPUT
from labrl.processes.output import full_error, print_failure, steady_output
from labrl.processes.signals import Stopped, signals_raise
from labrl.processes.startup import check_here

if TYPE_CHECKING:
    from labrl.experiment.result import SweepResult


def main(argv: Sequence[str] | None = None) -> int:
    """Run `labrl`: a trial, or an experiment of several trials (-m). Return the largest exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if "--version" in arguments:
        return _ended("labrl", _print_version)
    if not {"--help", "-h"}.isdisjoint(arguments):
        return _ended("labrl", _print_help)
    if "--hydra-help" in arguments:
        return _ended("labrl", _print_hydra_help)
    from labrl.session.torchrun import Launch, lead, typed_command

    typed = typed_command() if argv is None else ["labrl", *arguments]

    def command() -> int:
        from labrl.commands import answer

        return answer(arguments, typed, full_error())

    launch = Launch.here()
    if launch is None:
        return _ended("labrl", command, trains=True)
    if launch.rank == 0:
        return lead(lambda: _ended("labrl", command, trains=True))
    from labrl.session.main import follow

    return follow(launch)


def sweep(
    overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, raise_on_failure: bool
) -> SweepResult:
    """Run an experiment for `labrl.sweep`, which documents the arguments and errors."""
    from labrl import commands

    with steady_output():
        return commands.sweep(overrides, config_dir, raise_on_failure, full_error())


def list_envs(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-envs [part of a name]`: list the environments with their names, kinds and ids."""
    about = "List the environments for labrl env=<name>, with their kinds and ids."
    parser = ArgumentParser(prog="labrl-envs", description=about)
    part = "list only names that contain this text, such as pinball"
    parser.add_argument("part", nargs="?", default="", help=part)

    def command(args: Namespace) -> int:
        from labrl.envs.games import list_environments

        print("\n".join(list_environments(args.part)))
        return DONE

    return _run(parser, argv, command)


def send_to_wandb(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-wandb <run folders>`: upload data that Weights & Biases lacks. Return 1 if this fails."""
    about = (
        "Upload finished runs to Weights & Biases, for example after a network failure. Only missing data "
    )
    parser = ArgumentParser(prog="labrl-wandb", description=f"{about}is uploaded.")
    parser.add_argument("folders", nargs="+", help="run folders, or latest")
    parser.add_argument("--project", help="project to upload to; by default the run's project")
    parser.add_argument("--entity", help="user or team to upload to; by default the run's user or team")
    wait = "maximum time for the uploads of each run, in seconds (default: 3600)"
    parser.add_argument("--wait", type=float, default=3600.0, help=wait)

    def command(args: Namespace) -> int:
        from labrl.dashboards.sender import send
        from labrl.trial.find import find_run

        changes = {key: value for key, value in vars(args).items() if key != "folders" and value is not None}
        arrived = [send(find_run(folder, [], "wandb"), changes, print) for folder in args.folders]
        return DONE if all(arrived) else FAILED

    return _run(parser, argv, command)


def list_runs(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-runs [filters]`: print a table of run folders, newest first. Return 1 if none matches."""
    parser = ArgumentParser(
        prog="labrl-runs",
        description="List run folders, newest first. An experiment has one line, plus one line for each "
        "group if its trials differ in more than the seed. The return of a search is the return of its best "
        "configuration on fresh seeds.",
    )
    filters = "condition such as status=finished, env=pong, agent='*dqn' or agent.lr=1e-4, or a part of the "
    filters += "folder's name; a run must match all filters"
    parser.add_argument("filters", nargs="*", metavar="filter", help=filters)
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder to look in (default: runs)")
    parser.add_argument("--json", action="store_true", help="print all records of the runs as JSON")
    signs = "look for known signs of failure to learn in the rows of the runs in this folder, and print them "
    signs += "with what they usually mean and overrides to try"
    parser.add_argument("--diagnose", type=Path, metavar="FOLDER", help=signs)

    def command(args: Namespace) -> int:
        if args.diagnose is not None:
            from labrl.analysis.diagnosis import diagnose_folder

            print(diagnose_folder(args.diagnose))
            return DONE
        from labrl.analysis.listing import as_table, entries

        found = entries(args.root, args.filters)
        if args.json:
            print(json.dumps(found, indent=2))
        elif found:
            print(as_table(found, get_terminal_size().columns if sys.stdout.isatty() else None))
        if not found:
            print(f"labrl: no run in {args.root} matches {' '.join(args.filters)}", file=sys.stderr)
        return DONE if found else FAILED

    return _run(parser, argv, command)


def replay(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-replay <run folder> [episode=...] [session=...]`: play a recorded episode again."""
    parser = ArgumentParser(
        prog="labrl-replay",
        description="Play a recorded episode again, check that it is identical, and write a video of it.",
        epilog="A run records its best and its latest training episode or, with meta.rigorous_eval, its best "
        "and its latest evaluation episode. meta.record_episodes=each also records one episode of every "
        "evaluation, to be selected by episode=<frame>.",
    )
    parser.add_argument("run", help="run folder, or latest")
    keys = "episode=best, episode=last or episode=<frame>; session=<number>; render=human opens a window"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=keys)
    _add_trust(parser)

    def command(args: Namespace) -> int:
        from labrl.play.options import replay_request

        request = replay_request(args.run, args.overrides)
        # Imported after the request is known to be right, because it imports PyTorch.
        from labrl.play.replay import replay as replay_episode

        return replay_episode(request)

    return _run(parser, argv, command)


def export_policy(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-export <run folder>`: export a policy to a file that does not need labrl."""
    parser = ArgumentParser(
        prog="labrl-export",
        description="Export the policy of a run to a file that can be used without labrl, including all "
        "transforms of observations, and write a JSON file that describes it. The file is checked against "
        "the policy.",
    )
    parser.add_argument("run", help="run folder, or latest")
    form = "format of the file: an ONNX model (default), or a torch.export program"
    parser.add_argument("--format", default="onnx", metavar="onnx|torch", help=form)
    session = "index of the session; by default the best session"
    parser.add_argument("--session", type=int, metavar="N", help=session)
    _add_trust(parser)
    parser.add_argument("--checkpoint", default="best", metavar="best|latest|FRAME", help="(default: best)")
    head = parser.add_mutually_exclusive_group()
    head.add_argument("--greedy", action="store_true", help="export greedy actions (default)")
    head.add_argument("--sampled", action="store_true", help="export actions sampled from the policy")
    out = "file to write; by default a file in exports/ in the run folder"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)

    def command(args: Namespace) -> int:
        from labrl.play.export import describe, export

        path, facts = export(args.run, args.format, args.session, args.checkpoint, args.sampled, args.out)
        print(f"{os.path.relpath(path)}: {describe(facts)}")
        return DONE

    return _run(parser, argv, command)


def report(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-report <folders or globs...>`: rebuild a report, or compare runs."""
    parser = ArgumentParser(
        prog="labrl-report",
        description="Rebuild the report of a run or an experiment, or compare several runs, as a table and "
        "as report.html with plots.",
    )
    places = "run or experiment folders, globs, or latest"
    parser.add_argument("places", nargs="+", metavar="folder", help=places)
    out = "folder to write to; by default the given folder, or ./comparison if several are given"
    parser.add_argument("--out", metavar="DIR", help=out)
    by = "key to group by, such as agent.lr; by default, runs that differ only in the seed form a group"
    parser.add_argument("--by", metavar="agent|env|KEY", help=by)
    form = "print only the table, in this format"
    parser.add_argument("--format", choices=("csv", "json"), help=form)
    same = "print the data of the report as JSON, as --format json does"
    parser.add_argument("--json", dest="format", action="store_const", const="json", help=same)
    stages = "print only which groups are better, tested in stages of five seeds, and how many more seeds "
    stages += "to run"
    parser.add_argument("--adaptive", action="store_true", help=stages)
    _add_trust(parser)

    def command(args: Namespace) -> int:
        from labrl.trial.reporting import report_on

        report_on(args.places, args.out, args.by, args.format, stages=args.adaptive)
        return DONE

    return _run(parser, argv, command)


def clean(argv: Sequence[str] | None = None) -> int:
    """Run `labrl-clean <folders or globs...>`: list or remove files that finished runs no longer need."""
    about = (
        "List the replay buffers, checkpoints (except the newest and the best) and videos of finished runs, "
    )
    about += "with their sizes. Other runs are skipped. Nothing is removed without --yes."
    parser = ArgumentParser(prog="labrl-clean", description=about)
    parser.add_argument("places", nargs="+", metavar="folder", help="runs, experiments, globs, or latest")
    parser.add_argument("--yes", action="store_true", help="remove the listed files")

    def command(args: Namespace) -> int:
        from labrl.trial.clean import clean_runs

        return clean_runs(args.places, args.yes)

    return _run(parser, argv, command)


def _run(parser: ArgumentParser, argv: Sequence[str] | None, command: Callable[[Namespace], int]) -> int:
    """Parse the arguments and run a command, with the trust that the user declares. Return its exit code."""

    def run() -> int:
        args = parser.parse_args(argv)
        from labrl.run.signature import Trust, trusting

        trust = Trust(vars(args).get("trust", False), typed="--trust")
        with signals_raise(), trusting(trust):
            return command(args)

    return _ended(parser.prog, run)


def _ended(name: str, command: Callable[[], int], *, trains: bool = False) -> int:
    """Run a command and return its exit code, however the command ends.

    trains: whether the command does more than print, so that the loss of its output is not a failure.
    """
    with steady_output() as output:
        try:
            check_here()
            code = command()
        except Exception as error:
            code = print_failure(error, full_error())
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


def _add_trust(parser: ArgumentParser) -> None:
    text = "run any code that the folder names, even if someone else has written the folder"
    parser.add_argument("--trust", action="store_true", help=text)


def _print_hydra_help() -> int:
    """Print the help of Hydra, which reads the command line itself."""
    import hydra

    before, sys.argv = sys.argv, ["labrl", "--hydra-help"]
    try:
        hydra.main(config_path=None)(lambda cfg: None)()
    finally:
        sys.argv = before
    return DONE


def _print_help() -> int:
    print((Path(__file__).parent / "help.txt").read_text(encoding="utf-8"), end="")
    return DONE


def _print_version() -> int:
    from importlib.metadata import version

    print(f"labrl {version('labrl')}")
    return DONE
