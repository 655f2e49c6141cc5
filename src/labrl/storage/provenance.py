"""Provenance of a run at its start and at each resume: configuration, command, code, packages, machine."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from labrl.errors import DamagedFileError, LabrlError
from labrl.secrets import redact
from labrl.storage.atomic import write_atomic, write_json
from labrl.storage.folder import REPORT_FILES, read_json
from labrl.storage.run_folder import MARKER, PROVENANCE, RunFolder

MAX_DIFF = 1_000_000
"""Largest number of bytes of changes that are recorded for one repository."""

MAX_UNTRACKED_FILE = 100_000
"""Size in bytes above which an untracked file is recorded only by name."""

DECISIVE = ("labrl", "torch", "numpy", "gymnasium", "ale-py")
"""Packages whose versions affect the numbers of a run."""

_ANSWER_SECONDS = 10

# Independent of the user's git settings, so that `git apply` accepts the diff.
_PLAIN_DIFF = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")

# The parser in C takes a tenth of the time, which matters for a list of hundreds of runs.
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

Typed = list[str] | str
"""A command as it was typed: the arguments of a command line, or a call from Python."""


def as_typed(arguments: Sequence[str]) -> list[str]:
    """Return the command that started a Python process as a user types it: `labrl ...`, `python -m labrl
    ...`."""
    interpreter, *rest = arguments
    if rest and os.sep in rest[0] and not rest[0].endswith(".py"):  # a script made by pip
        return [os.path.basename(rest[0]), *rest[1:]]
    return [os.path.basename(interpreter), *rest]


@dataclass(frozen=True)
class Command:
    """The overrides of a command, and the options that they choose."""

    overrides: list[str] = field(default_factory=list)
    """The arguments, except those that set folders."""
    choices: dict[str, str] = field(default_factory=dict)
    """The option of each group, typed or by default."""
    config_dir: str | None = None
    """Absolute path of the folder with the user's own groups."""
    typed: Typed = field(default_factory=lambda: as_typed(sys.orig_argv), compare=False)
    """The complete command; for a trial of an experiment, that of the experiment."""

    @classmethod
    def of(
        cls,
        overrides: list[str],
        choices: dict[str, str],
        config_dir: str | os.PathLike[str] | None,
        typed: Typed,
    ) -> Command:
        """Build from overrides, their choices, --config-dir, and the complete command."""
        return cls(overrides, choices, os.path.abspath(config_dir) if config_dir else None, typed)


def write_provenance(
    folder: RunFolder,
    config: Mapping[str, Any],
    command: Command,
    resume: int | None = None,
    start_from: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `config.yaml`, `overrides.yaml`, `provenance.json`, and a `.diff` for each repository with
    changes.

    `provenance.json` also contains the content of the two YAML files, in case they are edited, damaged or
    lost. Secrets are masked in all of them. config: resolved configuration as plain data, with the seed that
    is used; resume: number of this resume, whose provenance has a folder of its own, while the two YAML files
    are replaced; None for the start; start_from: plain data about the weights of another run that this one
    starts from. Facts that the machine does not provide are left out; only writing the files can fail
    (OSError). Returns the content of `provenance.json` without the configuration.
    """
    write_atomic(folder.overrides, as_yaml(list(command.overrides)))
    write_atomic(folder.config, as_yaml(dict(config)))
    target = folder.path if resume is None else folder.resumes / str(resume)
    target.mkdir(parents=True, exist_ok=True)
    repositories = {}
    for name, root in _repositories().items():
        facts, diff = describe_repository(root)
        if diff:
            facts["diff"] = f"{name}.diff"
            facts["diff_sha256"] = hashlib.sha256(diff.encode()).hexdigest()
            write_atomic(target / facts["diff"], diff)
        repositories[name] = facts
    content = {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": command.typed,
        "working_folder": os.getcwd(),
        "seed": config.get("seed"),
        "overrides": list(command.overrides),
        "choices": command.choices,
        "config_dir": command.config_dir,
        "git": repositories,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "machine": describe_machine(),
        "packages": installed_packages(),
        **({} if start_from is None else {"start_from": dict(start_from)}),
    }
    write_json(target / PROVENANCE, {**content, "config": dict(config)})
    return redact(content)


def known_provenance(folder: RunFolder) -> dict[str, Any]:
    """Return the newest provenance of a run, from its last resume or its start.

    Returns an empty dict if the file is missing or damaged.
    """
    return read_json(_newest(folder))


def read_command(folder: RunFolder) -> Command:
    """Return the command of a run, including its resumes: from its provenance, or else from `overrides.yaml`.

    Raises DamagedFileError if both are missing or damaged.
    """
    facts = known_provenance(folder)
    overrides = facts.get("overrides")
    if not isinstance(overrides, list):
        overrides = _read(folder, folder.overrides, list)
    return Command(overrides, facts.get("choices", {}), facts.get("config_dir"))


def recorded_config(folder: RunFolder) -> dict[str, Any]:
    """Return the resolved configuration of the run as plain data: from its provenance, or else from
    `config.yaml`.

    Raises DamagedFileError if both are missing or damaged.
    """
    return _provenance_config(folder) or _config_file(folder)


def read_config(folder: RunFolder) -> dict[str, Any]:
    """Return the resolved configuration in `config.yaml`, which may have been edited; if that file is missing
    or damaged, return that of the provenance. Raises DamagedFileError if neither can be read."""
    try:
        return _config_file(folder)
    except LabrlError:
        if config := _provenance_config(folder):
            return config
        raise


def damages(folder: RunFolder) -> list[str]:
    """List the missing and damaged files among those that describe a run, as messages."""
    found = []
    described = ((folder.config, dict), (folder.overrides, list), (_newest(folder), dict))
    for path, kind in ((folder.marker, dict), *described):
        try:
            _read(folder, path, kind)
        except LabrlError:
            found.append(f"{path.relative_to(folder.path)} is missing or damaged")
    return found


def _provenance_config(folder: RunFolder) -> dict[str, Any]:
    """Return the configuration in the newest provenance; empty if it has none, as in earlier versions."""
    config = known_provenance(folder).get("config")
    return config if isinstance(config, dict) and not _lacking(config) else {}


def _config_file(folder: RunFolder) -> dict[str, Any]:
    config: dict[str, Any] = _read(folder, folder.config, dict)
    for part in _lacking(config):
        raise DamagedFileError(
            f"{folder.config} is damaged: it has no {part}. The other files record: {folder.known}",
            key=str(folder.config),
        )
    return config


def _lacking(config: Mapping[str, Any]) -> list[str]:
    return [part for part in ("seed", "agent", "env", "meta") if part not in config]


def _newest(folder: RunFolder) -> Path:
    """Return the path of the newest provenance: that of the last resume, or that of the start."""
    numbers = sorted((int(path.name) for path in folder.resumes.glob("[0-9]*")), reverse=True)
    written = (folder.resumes / str(number) / PROVENANCE for number in numbers)
    return next((path for path in written if path.exists()), folder.provenance)


def _read(folder: RunFolder, path: Path, kind: type) -> Any:
    """Return the content of a file that describes a run. Raises DamagedFileError if it is not of this
    kind."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, _Loader)
        if not isinstance(content, kind):
            raise ValueError(f"it contains {str(content)[:40] or 'nothing'} and was not written by labrl")
        return content
    except FileNotFoundError as error:
        raise DamagedFileError(
            f"{path} is missing: the run was killed before it started, so there is nothing to resume"
            if folder.unrecorded
            else f"{path} is missing. Restore it. The other files record: {folder.known}",
            key=str(path),
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise DamagedFileError(
            f"{path} cannot be read: {reason}. The other files record: {folder.known}", key=str(path)
        ) from error


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the differences between two provenances that can change the numbers of a run: code, packages,
    processor."""
    found: list[str] = []

    def note(name: str, before: Any, after: Any) -> None:
        if before != after:
            found.append(f"{name} {before} -> {after}")

    for name in sorted(then["git"].keys() & now["git"].keys()):
        one, other = then["git"][name], now["git"][name]
        note(f"code of {name}", str(one.get("commit"))[:10], str(other.get("commit"))[:10])
        if one.get("commit") == other.get("commit") and one.get("diff_sha256") != other.get("diff_sha256"):
            found.append(f"uncommitted changes in {other['root']}")
    note("Python", then["python"]["version"], now["python"]["version"])
    others = 0
    for name in {**then["packages"], **now["packages"]}:
        versions = then["packages"].get(name), now["packages"].get(name)
        if name.lower() in DECISIVE:
            note(name, *versions)
        else:
            others += versions[0] != versions[1]
    if others:
        found.append(f"{others} other packages")
    for name, fact in (("processor", "processor"), ("GPU", "gpus")):
        note(name, then["machine"].get(fact), now["machine"].get(fact))
    return found


@functools.cache
def installed_packages() -> Mapping[str, str]:
    """Return the version of every installed distribution by name, as this process first found them."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # `distribution.metadata` would parse the whole file as an e-mail, which takes 1 ms.
        read = distribution.read_text  # UTF-8, whatever the locale
        facts = read("METADATA") or read("PKG-INFO") or ""
        name, version = (_header(facts, key) for key in ("Name", "Version"))
        if name:  # a partly removed distribution has none
            found.setdefault(name, version)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _header(metadata: str, key: str) -> str:
    """Return the value of a header in the core metadata of a distribution, or '' if it is missing."""
    found = re.search(rf"^{key}:(.*)$", metadata.partition("\n\n")[0], re.MULTILINE)
    return found[1].strip() if found else ""


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory (bytes), graphics cards and operating system."""
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


def describe_repository(root: Path) -> tuple[dict[str, Any], str]:
    """Return commit and state of the git repository at `root`, and its uncommitted changes as one diff.

    The diff contains the changes of tracked files, then untracked text files as additions, together at most
    `MAX_DIFF` bytes. Files of earlier runs and of reports that compare them do not count as changes.
    """
    commit = _git(root, "rev-parse", "HEAD")
    facts: dict[str, Any] = {"root": str(root), "commit": commit.strip() if commit else None}
    changes = _git(root, "diff", *_PLAIN_DIFF, *_PREFIXES, "HEAD") if commit else ""
    listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if changes is None or listed is None:
        facts["incomplete"] = "git did not answer in time"
    parts, left_out, room = [], [], MAX_DIFF
    if changes:
        parts.append(changes[:room])
        facts["diff_truncated"] = len(changes) > room
        room -= len(parts[0])
    for name in (listed or "").split("\0"):
        if not name or any(_is_output(root / parent) for parent in [*Path(name).parents][:-1]):
            continue
        addition = _addition(root, name)
        if addition is None or len(addition) > room:
            left_out.append(name)
        else:
            parts.append(addition)
            room -= len(addition)
    facts["dirty"] = bool(parts or left_out)
    if left_out:
        facts["untracked_left_out"] = left_out[:100]
        facts["untracked_left_out_count"] = len(left_out)
    return facts, "".join(parts)


def _is_output(folder: Path) -> bool:
    """Return whether labrl wrote this folder, for a run or for a report that compares runs."""
    return (folder / MARKER).exists() or all((folder / name).exists() for name in REPORT_FILES)


def as_yaml(content: Any) -> str:
    """Return `content` as YAML text without secrets, as in `config.yaml` and `overrides.yaml`."""
    return yaml.safe_dump(redact(content), sort_keys=False, allow_unicode=True)


def _repositories() -> dict[str, Path]:
    """Return the repository of labrl itself, if it runs from one, and that of the working folder."""
    found = {}
    package = Path(__file__).resolve().parents[1]
    # A copy in a project's virtual environment is inside that project's repository, but untracked.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") and (root := _root(package)):
        found["labrl"] = root
    root = _root(Path.cwd())
    if root and root not in found.values():
        found["working_folder"] = root
    return found


def _root(folder: Path) -> Path | None:
    answer = _git(folder, "rev-parse", "--show-toplevel")
    return Path(answer.strip()) if answer else None


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None without git, without a repository, or without a timely answer."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    return _output(["git", "-C", str(folder), *arguments], environment)


def _output(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """Return the output of a command; None if it does not exist, fails, or does not end in time."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def _addition(root: Path, name: str) -> str | None:
    """Return an untracked file as a diff that adds it; None if it is large, not text, or not readable."""
    path = root / name
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_UNTRACKED_FILE:
            return None
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    if "\0" in text:
        return None
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n"
    lines = [line for line in re.split(r"(?<=\n)", text) if line]  # git splits at no other line ends
    body = "".join(difflib.unified_diff([], lines, "/dev/null", f"b/{name}", n=0))
    return head + body + ("" if not body or body.endswith("\n") else "\n\\ No newline at end of file\n")


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    # torch is not used, because it would initialize CUDA in a process that starts others.
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return (_output(query) or "").strip().splitlines()
