"""Provenance of a run at its start and at each resume: configuration, command, code, packages, machine."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import platform
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from labrl.processes.secrets import is_secret_file, redact, redact_diff
from labrl.run.atomic import sync_file, write_atomic, write_json
from labrl.run.folder import PROVENANCE, REPORT_FILES
from labrl.run.own_code import own_code
from labrl.run.run import MARKER, Run
from labrl.run.signature import signed

MAX_DIFF = 1_000_000
"""Maximum size of the recorded changes of one repository, in bytes."""

MAX_UNTRACKED_FILE = 100_000
"""Size in bytes above which only the name of an untracked file is recorded."""

MAX_UNTRACKED_FILES = 1000
"""Maximum number of untracked files that are read."""

_ANSWER_SECONDS = 10

_PACKAGE = Path(__file__).resolve().parents[1]

# Independent of the user's git settings, so that `git apply` accepts the diff.
_PLAIN_DIFF = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")

# Turn off programs that the configuration of a repository names and git would run.
_NO_PROGRAMS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")

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
    found: list[str] = []

    def note(name: str, before: Any, after: Any) -> None:
        if before != after:
            found.append(f"{name} {before} -> {after}")

    for name in sorted(then["git"].keys() & now["git"].keys()):
        one, other = then["git"][name], now["git"][name]
        note(f"code of {name}", str(one.get("commit"))[:10], str(other.get("commit"))[:10])
        if one.get("commit") == other.get("commit") and one.get("diff_sha256") != other.get("diff_sha256"):
            found.append(f"uncommitted changes in {other['root']}")
    then_own, now_own = then["own_code"], now["own_code"]
    for name in sorted(then_own.keys() & now_own.keys()):
        note(f"code of {name}", then_own[name], now_own[name])
    note("Python", then["python"]["version"], now["python"]["version"])
    for name in {**then["packages"], **now["packages"]}:
        versions = then["packages"].get(name), now["packages"].get(name)
        if versions[0] != versions[1] and _is_imported(name):
            note(name, *versions)
    for name, fact in (("processor", "processor"), ("GPU", "gpus")):
        note(name, then["machine"].get(fact), now["machine"].get(fact))
    return found


def _is_imported(name: str) -> bool:
    """Return whether this process has imported a module of the distribution `name`."""
    modules = {re.sub(r"[-.]+", "_", name).lower()}  # for an editable installation, nothing else is known
    with suppress(importlib.metadata.PackageNotFoundError):
        read = importlib.metadata.distribution(name).read_text  # UTF-8, whatever the locale
        modules.update(re.findall(r"^\w+(?=[/.])", read("RECORD") or "", re.MULTILINE))
    return not modules.isdisjoint(sys.modules)


@functools.cache
def installed_packages() -> Mapping[str, str]:
    """Return the version of every installed distribution by name, as it was when this process first
    looked."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # `distribution.metadata` would parse the whole file as an e-mail, which takes 1 ms.
        read = distribution.read_text  # UTF-8, whatever the locale
        facts = read("METADATA") or read("PKG-INFO") or ""
        headers = facts.partition("\n\n")[0]
        name, version = (re.search(rf"^{key}:(.*)$", headers, re.MULTILINE) for key in ("Name", "Version"))
        if name:  # a partly removed distribution has none
            found.setdefault(name[1].strip(), version[1].strip() if version else "")
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def describe_machine() -> dict[str, Any]:
    """Return a description of this machine: processor, cores, memory in bytes, graphics cards and operating
    system."""
    memory = None
    with suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    facts: dict[str, Any] = {
        "name": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_usable": usable,
        "memory": memory,
        "gpus": _gpus(),
    }
    return {key: value for key, value in facts.items() if value}


def describe_code() -> Repositories:
    """Describe the git repository from which labrl runs, if there is one, and the repository of the working
    folder.

    Logs a warning about a repository that git does not read because it belongs to another user, and about
    files that are left out because they may contain secrets.
    """
    described: dict[str, tuple[dict[str, Any], str]] = {}
    for name, root in _repositories().items():
        described[name] = facts, _ = describe_repository(root)
        if left_out := facts.get("secrets_left_out"):
            more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
            _log.warning(
                "%s%s in %s may contain secrets, judging by their names or permissions, and are not recorded",
                *(", ".join(left_out[:5]), more, root),
            )
    for name, folder in (("labrl", _PACKAGE), ("working_folder", Path.cwd())):
        refused = None if name in described else _refused_root(folder)
        if refused is not None and str(refused) not in [facts["root"] for facts, _ in described.values()]:
            described[name] = {"root": str(refused), "commit": None, "incomplete": "of another user"}, ""
            _log.warning(
                "the code in %s is not recorded, because the repository belongs to another user: to let git "
                "read it, type git config --global --add safe.directory %s",
                *(refused, shlex.quote(str(refused))),
            )
    return described


def describe_repository(root: Path) -> tuple[dict[str, Any], str]:
    """Return the commit and the state of the git repository at `root`, and its uncommitted changes as one
    diff.

    The diff contains the changes of tracked files, then untracked text files as additions, together at most
    `MAX_DIFF` bytes. Files that may contain secrets are left out: files with names of secret files, and
    untracked files that other users may not read. Files of earlier runs, and of reports that compare runs, do
    not count as changes.
    """
    commit = _git(root, "rev-parse", "HEAD")
    facts: dict[str, Any] = {"root": str(root), "commit": commit.strip() if commit else None}
    changes, secrets = _changes(root) if commit else ("", [])
    listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if changes is None or listed is None:
        facts["incomplete"] = "git gave no answer"
    parts, left_out, room = [], [], MAX_DIFF
    if changes:
        parts.append(changes[:room])
        facts["diff_truncated"] = len(changes) > room
        room -= len(parts[0])

    @functools.cache
    def is_output(folder: str) -> bool:
        """Return whether `folder` belongs to a run, or to a report that compares runs."""
        path, exists = os.path.join(root, folder), os.path.exists
        reports = all(exists(f"{path}/{name}") for name in REPORT_FILES)
        return folder != "" and (
            reports or exists(f"{path}/{MARKER}") or is_output(folder.rpartition("/")[0])
        )

    names = [one for one in (listed or "").split("\0") if one and not is_output(one.rpartition("/")[0])]
    umask = os.umask(0o077)  # permissions that new files of this process do not get
    os.umask(umask)
    readable = 0o444 & ~umask
    for name in names[:MAX_UNTRACKED_FILES]:
        addition = _addition(root, name, readable)
        if addition is _PRIVATE:
            secrets.append(name)
        elif addition is None or len(addition) > room:
            left_out.append(name)
        else:
            parts.append(addition)
            room -= len(addition)
    left_out += names[MAX_UNTRACKED_FILES:]
    facts["dirty"] = bool(parts or left_out or secrets)
    if secrets:
        facts["secrets_left_out"] = secrets
    if left_out:
        facts["untracked_left_out"] = left_out[:100]
        facts["untracked_left_out_count"] = len(left_out)
    return facts, redact_diff("".join(parts))


def _changes(root: Path) -> tuple[str | None, list[str]]:
    """Return the diff of tracked files (None if git fails) and the names of files that the diff omits because
    of secrets."""
    programs = _filters(root)
    if programs is None:
        return None, []
    command = (*programs, "diff", *_PLAIN_DIFF, *_PREFIXES, "HEAD")
    changes = _git(root, *command)
    names = re.findall(r"^diff --git a/(.*) b/\1$", changes or "", re.MULTILINE)
    secrets = [name for name in names if is_secret_file(name, committed=True)]
    if secrets:
        changes = _git(root, *command, "--", ".", *(f":(exclude,literal){name}" for name in secrets))
    return changes, secrets


def _filters(root: Path) -> list[str] | None:
    """Return git options that turn off the filter programs in the configuration of a repository; None if this
    is not possible."""
    # The first key always exists.
    asked = ("--name-only", "-z", "--get-regexp", r"^(core\.repositoryformatversion|filter\..*)$")
    if (answer := _git(root, "config", "--show-scope", *asked)) is not None:
        fields = answer.split("\0")
        scopes = zip(fields[::2], fields[1::2], strict=False)
        keys = [key for scope, key in scopes if scope in ("local", "worktree")]
    elif (answer := _git(root, "config", *asked)) is not None:  # before git 2.26
        keys = answer.split("\0")
    else:
        return None
    drivers = {key.rpartition(".")[0] for key in keys if key.startswith("filter.")}
    if any("=" in driver for driver in drivers):
        return None
    off = {"clean": "", "process": "", "required": "false"}
    return [part for one in sorted(drivers) for key in off for part in ("-c", f"{one}.{key}={off[key]}")]


def _repositories() -> dict[str, Path]:
    """Return the root of the git repository from which labrl runs, if there is one, and that of the working
    folder."""
    found = {}
    # A copy in a project's virtual environment is inside that project's repository, but untracked.
    if _git(_PACKAGE, "ls-files", "--error-unmatch", "__init__.py") and (root := _root(_PACKAGE)):
        found["labrl"] = root
    root = _root(Path.cwd())
    if root and root not in found.values():
        found["working_folder"] = root
    return found


def _root(folder: Path) -> Path | None:
    answer = _git(folder, "rev-parse", "--show-toplevel")
    return Path(answer.strip()) if answer else None


def _refused_root(folder: Path) -> Path | None:
    """Return the root of the repository that contains `folder`, if git refuses to read it because of its
    owner."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    done = _run(["git", "-C", str(folder), "rev-parse"], {**os.environ, "LC_ALL": "C"})
    told = re.search(rb"repository (?:at|\() ?'([^']+)'", done.stderr if done else b"")
    return Path(os.fsdecode(told[1])) if told else None


def _git(folder: Path, *arguments: str) -> str | None:
    """Run a git command in `folder`, and return its output; None if git or the repository is missing, or if
    git fails or does not answer in time.

    Git runs no hooks and no file system monitor, and fetches nothing.
    """
    environment = {
        **os.environ,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        "LC_ALL": "C",
    }
    return _output(["git", *_NO_PROGRAMS, "-C", str(folder), *arguments], environment)


def _output(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """Run a command, and return its output; None if the command does not exist, fails, or does not end in
    time."""
    done = _run(command, environment)
    return None if done is None or done.returncode else done.stdout.decode(errors="replace")


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[bytes] | None:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, timeout=_ANSWER_SECONDS, env=environment, stdin=subprocess.DEVNULL
        )
    return None


_PRIVATE = "private"
"""Value that `_addition` returns for a file that may contain secrets."""


def _addition(root: Path, name: str, readable: int) -> str | None:
    """Return a diff that adds an untracked file; None if the file is too large, not text, or not readable.

    readable: mode bits for reading that new files get by default. Returns _PRIVATE for a file with fewer read
    permissions, or whose name is that of a secret file.
    """
    if is_secret_file(name):
        return _PRIVATE
    path = os.path.join(root, name)
    try:
        facts = os.lstat(path)
        if not stat.S_ISREG(facts.st_mode):
            return None
        if readable & ~facts.st_mode:
            return _PRIVATE
        if facts.st_size > MAX_UNTRACKED_FILE:
            return None
        with open(path, "rb") as file:
            text = file.read().decode()
    except (OSError, UnicodeDecodeError):
        return None
    if "\0" in text:
        return None
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n"
    if not text:
        return head
    lines = text.removesuffix("\n").split("\n")  # git splits at no other line ends
    count = "1" if len(lines) == 1 else f"1,{len(lines)}"
    end = "\n" if text.endswith("\n") else "\n\\ No newline at end of file\n"
    body = "\n+".join(lines)
    return f"{head}--- /dev/null\n+++ b/{name}\n@@ -0,0 +{count} @@\n+{body}{end}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    # torch is not used, because it would initialize CUDA in a process that starts other processes.
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return (_output(query) or "").strip().splitlines()
