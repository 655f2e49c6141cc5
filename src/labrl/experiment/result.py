"""The result of an experiment, which `labrl.sweep` returns."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from hydra.core.override_parser.overrides_parser import OverridesParser

from labrl.analysis.groups import group_runs, value_text
from labrl.analysis.report.cell import cell
from labrl.analysis.report.comparison import comparison_report
from labrl.analysis.statistics import final_return
from labrl.analysis.tables import comparison_rows, readable
from labrl.errors import DONE, InputError, first_line
from labrl.experiment.summary import varying
from labrl.run.experiment import Experiment


@dataclass(kw_only=True, repr=False)
class SweepResult:
    """The outcome of an experiment, which `labrl.sweep` returns. Its `repr` is a short summary.

    The folder is read when the trials or statistics are first needed.
    """

    folder: Path
    """The experiment folder, which contains the run folders of the trials."""
    exit_code: int = DONE
    """0: all trials finished; 1: a trial failed; 2: a trial was refused; 130 or 143: the experiment was
    interrupted."""

    @cached_property
    def trials(self) -> list[dict[str, Any]]:
        """All trials, ordered by number, each with the entries `trial`, the keys whose values differ between
        trials, `seed`, `status`, `frames`, `group`, `error`, `final_return`, `best_return`, and `folder`
        (None if the trial never started)."""
        experiment, own = Experiment.open(self.folder), {}
        records, reported = experiment.trials(), self._report[0]["trials"]
        for number, overrides in varying(records).items():
            parsed = OverridesParser.create().parse_overrides(overrides)
            own[number] = {one.key_or_group: _plain(one.value()) for one in parsed}
        keys = dict.fromkeys(key for values in own.values() for key in values if key != "seed")
        rows = []
        for record, row in zip(records, reported, strict=False):  # Runs that confirm a search follow.
            folder = experiment.trial_path(record)
            rows.append({"trial": record.number, **{key: own[record.number].get(key) for key in keys}})
            rows[-1] |= {name: row[name] for name in ("seed", "status", "frames", "group", "error")}
            rows[-1] |= {f"{name}_return": row[name] for name in ("final", "best")}
            rows[-1]["folder"] = str(folder) if folder.exists() else None
        return rows

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Statistics of each group of trials that differ only in the seed, as in `statistics.json`: `name`,
        `env`, `sessions`, `estimates` of the returns with their 95 % intervals, `curve`, ..."""
        return [group for env in self.statistics["envs"] for group in env["groups"]]

    @property
    def statistics(self) -> dict[str, Any]:
        """Content of `statistics.json`, as `labrl-report` writes it: the groups, their comparison in each
        environment, and the confirmed result of a search."""
        return self._report[2]

    @property
    def error(self) -> str | None:
        """Failures in one line, such as "trial 0: ..."; None if nothing failed."""
        errors = ((one["trial"], one["error"]) for one in self.trials if one["error"])
        return "; ".join(f"trial {number}: {first_line(error)}" for number, error in errors) or None

    def to_polars(self, rows: str = "trials") -> pl.DataFrame:
        """Return a data frame with a row for each trial; if `rows` is `groups`, a row for each group, as in
        `statistics.csv`."""
        if rows == "groups":
            return comparison_rows(self.statistics)
        if rows != "trials":
            raise InputError.value("rows", rows, "be trials or groups", code="unknown-option")
        return pl.DataFrame(self.trials, infer_schema_length=None, strict=False)

    def to_pandas(self, rows: str = "trials") -> Any:
        """Return the data frame of `to_polars` as a pandas data frame. Raises InputError if pandas or pyarrow
        is missing."""
        for package in ("pandas", "pyarrow"):
            if importlib.util.find_spec(package) is None:
                raise InputError.not_installed("to_pandas", package, "pandas")
        return self.to_polars(rows).to_pandas()

    @cached_property
    def _report(self) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
        """Content, plots and statistics of the report."""
        found = Experiment.load(self.folder)
        return comparison_report(group_runs(found.runs), self.folder, self.folder.name, found)

    @property
    def _title(self) -> str:
        done = sum(one["status"] in ("finished", "pruned") for one in self.trials)
        title = f"SweepResult: {done} of {len(self.trials)} trials finished"
        return f"{title}, {self.error}" if self.error else title

    def __repr__(self) -> str:
        lines = [self._title]
        for group in self.groups:
            found = final_return(group)
            lines.append(f"  {group['env']}, {group['name']}: {found.sentence() if found else 'no return'}")
        return "\n".join([*lines, f"  folder: {self.folder}"])

    def _repr_html_(self) -> str:
        content, sheets, statistics = self._report
        curves = [sheet for sheet in sheets if sheet.name.startswith("return_frame")][:4]
        rows = readable(comparison_rows(statistics)) if self.groups else []
        return cell(self._title, self.folder, content["verdict"], curves, rows, [])


def _plain(value: Any) -> Any:
    """Return a number, a text or None unchanged, and anything else as it is written in an override."""
    return value if value is None or isinstance(value, str | int | float) else value_text(value)
