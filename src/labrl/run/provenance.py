"""Provenance of a run at its start and at each resume: configuration, command, code, packages, machine."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from labrl.component import MAIN, TargetError, load_target
from labrl.errors import is_users_file
from labrl.processes.secrets import is_secret_file, redact, redact_diff
from labrl.run.atomic import sync_file, write_atomic, write_json
from labrl.run.folder import PROVENANCE, REPORT_FILES
from labrl.run.run import MARKER, Run, group_config
from labrl.run.signature import signed
from labrl.run.trust import code_names, entry_points

MAX_DIFF = 1_000_000
"""Maximum size of the recorded changes of one repository, in bytes."""

MAX_FILE = 100_000
"""Maximum size of a new file whose content is recorded, in bytes."""

MAX_FILES = 1000
"""Maximum number of changed and new files whose content is recorded."""

SOURCES = re.compile(r".*\.(py[xi]?|ipynb|c|cc|cpp|cu|h|hpp|rs|sh|ya?ml|toml|xml|txt|md)").fullmatch
"""Matches files whose content is recorded. Of other files, such as data and keys, only the name is."""

_ANSWER_SECONDS = 10

_PACKAGE = Path(__file__).resolve().parents[1]

_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Hash of git's empty tree, with which a repository without a commit is compared."""

# Independent of the user's git settings, so that `git apply` accepts the diff.
_DIFF = (
    "diff",
    "--binary",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)

_QUIET = {
    **{"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C"},
    "GIT_LITERAL_PATHSPECS": "1",
}

_log = logging.getLogger(__name__)


Repositories = Mapping[str, tuple[dict[str, Any], str]]
"""For `labrl` and `working_folder`: metadata of the repository, and its uncommitted changes as one diff."""

Typed = list[str] | str
"""A command as the user gave it: the arguments of a command line, or a call from Python."""


def as_typed(arguments: Sequence[str]) -> list[str]:
    """Return the command that started a Python process in the form in which a user types it: `labrl ...` or
    `python -m labrl ...`."""
    interpreter, *rest = arguments
    if rest and os.sep in rest[0] and not rest[0].endswith(".py"):  # a script made by pip
        return [os.path.basename(rest[0]), *rest[1:]]
    return [os.path.basename(interpreter), *rest]


@dataclass(frozen=True)
class Origin:
    """What a configuration comes from: the overrides of a command, and the options that they choose."""

    overrides: list[str] = field(default_factory=list)
    """Overrides of the command, except those that set folders."""
    choices: dict[str, str] = field(default_factory=dict)
    """Chosen option of each configuration group, set on the command line or by default."""
    config_dir: str | None = None
    """Absolute path of the folder with the user's own configuration groups; None if there is none."""
    typed: Typed = field(default_factory=lambda: as_typed(sys.orig_argv), compare=False)
    """The complete command; for a trial of an experiment, the command of the experiment."""
    repositories: Repositories | None = field(default=None, compare=False)
    """State of the code, if the experiment has recorded it for all its trials; otherwise None."""


def write_provenance(
    run: Run,
    config: Mapping[str, Any],
    origin: Origin,
    resume: int | None = None,
    start_from: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `config.yaml`, `overrides.yaml`, `provenance.json`, and a `.diff` file for each repository with
    uncommitted changes.

    `provenance.json` also contains the content of the two YAML files. Secrets are masked in all files.
    config: the resolved configuration as plain data, with the seed that is used; resume: number of the
    resume, None for the start of the run; start_from: plain data about the weights of another run with which
    the run starts. A resume writes its provenance to a folder of its own, but replaces the two YAML files.
    Data that the machine does not provide are left out. Raises OSError only if files cannot be written.
    Returns the content of `provenance.json` without the configuration.
    """
    durable = resume is not None  # All files of a new run are synced together before its first frame.
    write_atomic(run.overrides_yaml, as_yaml(list(origin.overrides)), durable)
    target = run.path if resume is None else run.resumes / str(resume)
    target.mkdir(parents=True, exist_ok=True)
    repositories = {}
    for name, (facts, diff) in (origin.repositories or describe_code()).items():
        written = {}
        if diff:
            written["diff"] = f"{name}.diff"
            written["diff_sha256"] = hashlib.sha256(diff.encode()).hexdigest()
            write_atomic(target / written["diff"], diff, durable)
        repositories[name] = {**facts, **written}
    content = {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": origin.typed,
        "working_folder": os.getcwd(),
        "seed": config.get("seed"),
        "overrides": list(origin.overrides),
        "choices": origin.choices,
        "config_dir": origin.config_dir,
        "git": repositories,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "machine": describe_machine(),
        "packages": installed_packages(),
        "own_code": own_code(config),
        **({} if start_from is None else {"start_from": dict(start_from)}),
    }
    # The signature is that of the written content, without secrets.
    write_json(target / PROVENANCE, signed(redact({**content, "config": dict(config)})), durable)
    if durable:
        sync_file(target.parent)
    write_atomic(run.config_yaml, as_yaml(dict(config)), durable)  # last: without it, no run is recorded
    run.forget()
    return redact(content)


def as_yaml(content: Any) -> str:
    """Return `content` as YAML text without secrets, in the form of `config.yaml` and `overrides.yaml`."""
    return yaml.safe_dump(redact(content), sort_keys=False, allow_unicode=True)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the differences between two provenances that may change the results of a run: in code, Python
    version, processor, GPUs, and packages that this process has imported."""

    def facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        git = {name: found for name, found in one["git"].items() if name in other["git"]}
        own = {name: found for name, found in one["own_code"].items() if name in other["own_code"]}
        packages = one["packages"].items()
        return {
            **{f"code of {name}": str(found.get("commit"))[:10] for name, found in git.items()},
            **{f"changes in {found['root']}": str(found.get("diff_sha256"))[:10] for found in git.values()},
            **{f"code of {name}": found for name, found in own.items()},
            "Python": one["python"]["version"],
            **{name: found for name, found in packages if re.sub("[-.]+", "_", name).lower() in sys.modules},
            "processor": one["machine"].get("processor"),
            "GPU": one["machine"].get("gpus"),
        }

    before, after = facts(then, now), facts(now, then)
    changed = (name for name in {**before, **after} if before.get(name) != after.get(name))
    return [f"{name} {before.get(name)} -> {after.get(name)}" for name in changed]


@functools.cache
def installed_packages() -> Mapping[str, str]:
    """Return the version of every installed distribution by name, as it was when this process first
    looked."""
    # The names of the folders are enough; reading their metadata takes 1 ms for each.
    places = reversed(sys.path)  # the first place counts
    pairs = (path.stem.rpartition("-")[::2] for place in places for path in Path(place).glob("*.dist-info"))
    found = {name.replace("_", "-"): version for name, version in pairs}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def describe_machine() -> dict[str, Any]:
    """Return a description of this machine: processor, cores, memory in bytes, graphics cards and operating
    system."""
    memory = None
    with suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts: dict[str, Any] = {
        "name": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory": memory,
        "gpus": _gpus(),
    }
    return {key: value for key, value in facts.items() if value}


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of the source code of each module of the user's that affects the rows of a run.

    These are the modules that define the classes and functions that `config` names, and the classes from
    which they are derived; of a script or a notebook that calls labrl, only these classes and functions.
    Modules that they import are left out, because which of them are imported depends on earlier runs in the
    same process. Comments and formatting do not affect a hash; the versions of installed packages are
    recorded separately.
    """
    found: dict[str, dict[str, None]] = {}
    names = code_names(group_config(config))
    parts: list[Any] = [sys.modules[name] for name in names if name in sys.modules]
    for name in chain(names, *([one.replace(":", ".") for one in entry_points(name)] for name in names)):
        with suppress(TargetError):
            made = load_target(name)
            parts += inspect.getmro(made) if inspect.isclass(made) else (made,)
    for part in parts:
        module = inspect.getmodule(part)
        own = module is not None and is_users_file(vars(module).get("__file__") or "<built-in>")
        with suppress(OSError, TypeError, SyntaxError, ValueError, RecursionError):
            if module is not None and (own or module.__name__ == MAIN):
                source = textwrap.dedent(inspect.getsource(part if module.__name__ == MAIN else module))
                found.setdefault(module.__name__, {})[ast.unparse(ast.parse(source))] = None
    return {name: hashlib.sha256("\n".join(found[name]).encode()).hexdigest()[:7] for name in sorted(found)}


def describe_code() -> Repositories:
    """Describe the git repository from which labrl runs, if there is one, and the repository of the working
    folder."""
    described: dict[str, tuple[dict[str, Any], str]] = {}
    here = Path.cwd()
    for name, folders in (("labrl", [_PACKAGE.parents[1]]), ("working_folder", [here, *here.parents])):
        root = next((one for one in folders if (one / ".git").exists()), None)
        if (
            root
            and shutil.which("git")
            and str(root) not in [facts["root"] for facts, _ in described.values()]
        ):
            described[name] = describe_repository(root)
    return described


def describe_repository(root: Path) -> tuple[dict[str, Any], str]:
    """Return the commit and the state of the git repository at `root`, and its uncommitted changes as one
    diff.

    The diff contains the changed source files, then new ones as additions, together at most `MAX_DIFF` bytes.
    Of files that may contain secrets, judging by their names, and of the other changed files, only the names
    are returned. Files of earlier runs, and of reports that compare runs, do not count. If git does not
    answer, for example because the repository belongs to another user, a warning is logged.
    """
    git = _git_of(root)
    found = git("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    if found is None:
        return {"root": str(root), "commit": None, "incomplete": "git gave no answer"}, ""
    commit = (git("rev-parse", "--verify", "--quiet", "HEAD") or "").strip() or None

    @functools.cache
    def is_output(folder: str) -> bool:
        """Return whether `folder` belongs to a run, or to a report that compares runs."""
        path = root / folder
        reports = all((path / name).exists() for name in REPORT_FILES)
        return folder != "" and (reports or (path / MARKER).exists() or is_output(folder.rpartition("/")[0]))

    changes = [(one[3:], one[:2] == "??") for one in found.split("\0") if one]
    changes = [(name, new) for name, new in changes if not (new and is_output(name.rpartition("/")[0]))]
    wanted = [one for one in changes if SOURCES(one[0]) and not is_secret_file(one[0])]
    wanted = wanted[:MAX_FILES]
    changed = [name for name, new in wanted if not new]
    added = [name for name, new in wanted if new and (root / name).lstat().st_size <= MAX_FILE]
    diff = (git(*_DIFF, commit or _EMPTY_TREE, "--", *changed) or "") if changed else ""
    with TemporaryDirectory() as scratch:  # of an index that has only the names of new files
        git = _git_of(root, GIT_INDEX_FILE=f"{scratch}/index", GIT_OBJECT_DIRECTORY=scratch)
        if added and git("add", "--intent-to-add", "--", *added) is not None:
            diff += git(*_DIFF, "--", *added) or ""
    facts: dict[str, Any] = {"root": str(root), "commit": commit, "dirty": bool(changes)}
    if len(diff) > MAX_DIFF:
        facts["diff_truncated"], diff = True, diff[:MAX_DIFF]
    if left_out := [name for name, _ in changes if name not in {*changed, *added}]:
        facts["left_out"], facts["left_out_count"] = left_out[:100], len(left_out)
    return facts, redact_diff(diff)


def _git_of(root: Path, **environment: str) -> Callable[..., str | None]:
    """Return a function that runs a git command in a repository and returns its output. It returns None, and
    logs what git says, if git fails or does not answer in time. environment: further variables.

    Git runs no hook, no filter and no file system monitor of the repository, and fetches nothing.
    """
    folder = ["git", "-C", str(root)]
    listed = _run([*folder, "config", "--null", "--name-only", "--get-regexp", r"^filter\."], _QUIET)
    filters = {
        key.rpartition(".")[0] for key in (listed.stdout.decode() if listed else "").split("\0") if key
    }
    settings = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
    settings |= {f"{one}.{key}": "" for one in filters for key in ("clean", "process")}
    settings |= {f"{one}.required": "false" for one in filters}
    off = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        off |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}

    def git(*arguments: str) -> str | None:
        done = _run([*folder, *arguments], {**_QUIET, **off, **environment})
        if done is not None and done.returncode == 0:
            return done.stdout.decode(errors="replace")
        if done is None or done.stderr:
            why = (
                "it does not answer"
                if done is None
                else " ".join(done.stderr.decode(errors="replace").split())
            )
            _log.warning("the code in %s is not recorded completely, because of git: %s", root, why)
        return None

    return git


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a command; return None if it does not exist or does not end in time."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
        )
    return None


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    # torch is not used, because it would initialize CUDA in a process that starts other processes.
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    answer = _run(query)
    return answer.stdout.decode().strip().splitlines() if answer and not answer.returncode else []
