"""Going back to a run: on in its folder, or the same once more in a new one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from labrl.config.consistency import changes, quoted
from labrl.lab.past import Past, find
from labrl.lab.request import Request, request_of

if TYPE_CHECKING:
    # Late where it is needed: a misspelt word must not wait for torch.
    from labrl.config.schema import TrialConfig
    from labrl.lab.result import TrialResult
    from labrl.storage.provenance import Command
    from labrl.storage.run_folder import RunFolder


class Again:
    """A run that `+resume` or `+rerun` names, and the command line that composes it again."""

    def __init__(self, request: Request, past: Past) -> None:
        self._request, self._past = request, past

    @classmethod
    def asked_for(cls, words: Sequence[str], multirun: bool = False) -> Again | None:
        """What `words` go back to, or None. Raises ConfigError where they contradict, or no run is there."""
        request = request_of(words, multirun)
        if request is None:
            return None
        return cls(request, Past.of(find(request.which, request.edits, request.kind)))

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
        """The run's own words, then those typed now; a resumed run keeps its folder."""
        words = [*self._past.words, *self._request.edits]
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

        Raises ConfigError, with a table, where the run's past would have been another one.
        """
        from labrl.lab.resume import resume_trial
        from labrl.lab.trial import run_trial

        if not self._request.force:
            self._past.check(cfg, plain, f"+{self._request.kind}={self._past.folder.path}")
        changed = changes(self._past.config, plain)
        if self._request.kind == "resume":
            return resume_trial(self._past, self._request, changed, config, plain, command)
        return self._compared(run_trial(config, plain, folder, command))

    def _compared(self, result: TrialResult) -> TrialResult:
        """Say, in the result and in the new run's folder, whether it came out as the old one."""
        from labrl.lab.rerun import compare
        from labrl.storage.run_folder import RunFolder

        equal, result.comparison = compare(self._past.folder, result)
        if not equal:
            result.exit_code = result.exit_code or 1
        run = RunFolder.open(result.folder)
        run.set_status(run.status, rerun_of=str(self._past.folder.path), equal=equal)
        return result
