"""Going back to a run: on in its folder, or the same once more in a new one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from labrl.config.compose import compose, resolve, to_plain
from labrl.config.consistency import ABSENT, changes
from labrl.errors import FAILED, InputError, LabrlError
from labrl.trial.overrides import quoted, split_word, word
from labrl.trial.past import Past, find, tell_damages
from labrl.trial.request import Request, request_of

if TYPE_CHECKING:
    # Late where it is needed: a misspelt word must not wait for torch.
    from labrl.config.schema import TrialConfig
    from labrl.storage.provenance import Command
    from labrl.storage.run_folder import RunFolder
    from labrl.trial.result import TrialResult


@dataclass(frozen=True)
class Edits:
    """What was changed in a run's `config.yaml`, as words of a command line."""

    words: list[str] = field(default_factory=list)
    keys: frozenset[str] = frozenset()

    @classmethod
    def of(cls, past: Past, config_dir: str | os.PathLike[str] | None) -> Edits:
        """Raises DamagedFileError where the file is damaged, InputError where what was changed is wrong.

        Keys that follow a changed one, as schedules follow `env.max_frame`, keep the value that the file has.
        """
        file = past.edited()
        found = past.changes(file)
        if not found:
            return cls()
        words = [("++" if change.old is ABSENT else "") + word(change.key, change.new) for change in found]
        try:
            cfg = compose([*past.words, *words], config_dir)
            for change in changes(to_plain(cfg), file):
                parent, _, name = change.key.rpartition(".")
                node = OmegaConf.select(cfg, parent) if parent else cfg
                if isinstance(node, DictConfig) and OmegaConf.is_interpolation(node, name):
                    words.append(word(change.key, change.new))
            cfg = compose([*past.words, *words], config_dir)
            resolve(to_plain(cfg), cfg)
        except LabrlError as error:
            raise InputError.of(
                replace(one, message=f"{past.folder.config} was edited and cannot be used: {one.message}")
                for one in error.mistakes
            ) from error
        return cls(words, frozenset(change.key for change in found))


class Again:
    """A run that `+resume` or `+rerun` names, and the command line that composes it again."""

    def __init__(self, request: Request, past: Past, edits: Edits | None = None) -> None:
        """edits: of the run's `config.yaml`."""
        self._request, self._past, self._edits = request, past, edits or Edits()

    @classmethod
    def asked_for(
        cls, words: Sequence[str], multirun: bool = False, config_dir: str | os.PathLike[str] | None = None
    ) -> Again | None:
        """What `words` go back to, or None. Raises InputError where they contradict, or no run is there.

        config_dir: with a user's own groups, where it is not the run's own.
        """
        request = request_of(words, multirun)
        if request is None:
            return None
        past = Past.of(find(request.which, request.edits, request.kind))
        edits = Edits.of(past, config_dir or past.command.config_dir) if request.kind == "resume" else None
        return cls(request, past, edits)

    @classmethod
    def on_trial(cls, run: RunFolder, force: bool, words: Sequence[str]) -> Again:
        """Go on with `run`, a trial of an experiment, which now has these words."""
        past = Past.of(run)
        edits = [word for word in words if word not in past.words]
        return cls(Request("resume", str(run.path), force, edits), past)

    @property
    def seed(self) -> int:
        """The seed that the run used."""
        return self._past.config["seed"]

    @property
    def words(self) -> list[str]:
        """The run's own words, edits of its `config.yaml`, then those typed now; a resumed run keeps its
        folder."""
        words = [*self._past.words, *self._edits.words, *self._request.edits]
        if self._request.kind == "resume":
            words.append(f"hydra.run.dir={quoted(str(self._past.folder.path))}")
        return words

    @property
    def config_dir(self) -> str | None:
        """Where the run had its user's own groups from."""
        return self._past.command.config_dir

    def run(
        self,
        cfg: DictConfig,
        config: TrialConfig,
        plain: Mapping[str, Any],
        folder: str | os.PathLike[str],
        command: Command,
    ) -> TrialResult:
        """Do what was asked, with what `words` have composed to: `cfg`, and from it `config` and `plain`.

        Raises InputError, with a table, where the run's past would have been another one.
        """
        from labrl.trial.resume import resume_trial
        from labrl.trial.trial import run_trial

        edited = self._edits.keys - {split_word(word)[0] for word in self._request.edits}
        if not self._request.force:
            self._past.check(cfg, plain, f"+{self._request.kind}={self._past.folder.path}", edited)
        tell_damages(self._past.folder)
        changed = self._past.changes(plain)
        if self._request.kind == "resume":
            words = [*self._edits.words, *self._request.edits]
            return resume_trial(
                self._past, replace(self._request, edits=words), changed, config, plain, command, edited
            )
        self._tell_edits()
        return self._compared(run_trial(config, plain, folder, command))

    def _tell_edits(self) -> None:
        """Say that a run that is repeated is so without what was changed in its `config.yaml`."""
        from labrl.trial.summary import say

        keys = [change.key for change in self._past.changes(self._past.usable())]
        if keys:
            told = f"{self._past.folder.config} was edited after the run ({', '.join(keys)})"
            say(f"{told}: +rerun repeats the run as it was")

    def _compared(self, result: TrialResult) -> TrialResult:
        """Say, in the result and in the new run's folder, whether it came out as the old one."""
        from labrl.storage.run_folder import RunFolder
        from labrl.trial.rerun import compare

        equal, result.comparison = compare(self._past.folder, result)
        if not equal:
            result.exit_code = result.exit_code or FAILED
        run = RunFolder.open(result.folder)
        run.set_status(run.status, rerun_of=str(self._past.folder.path), equal=equal)
        return result
