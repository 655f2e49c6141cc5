"""`statistics.json` and `statistics.csv` of a run folder or of a folder of several runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labrl.analysis.comparison import compare
from labrl.analysis.groups import Group, grouped
from labrl.analysis.runs import Experiment, load_experiment, load_run
from labrl.analysis.search import read_search, summary
from labrl.analysis.statistics import trial_statistics
from labrl.analysis.tables import as_csv, comparison_rows
from labrl.storage.atomic import write_atomic, write_json
from labrl.storage.run_folder import MARKER

STATISTICS_JSON = "statistics.json"
STATISTICS_CSV = "statistics.csv"


def write_statistics(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Write both files into `folder`, and return what the JSON holds.

    Of a run: `trial_statistics`, in the CSV a row for each session. Of an experiment, or any folder with
    runs below it: `compare` of its groups, in the CSV a row for each group. Raises InputError where there
    is no run, OSError where the folder cannot be written.
    """
    path = Path(os.path.abspath(Path(folder).expanduser()))
    if (path / MARKER).exists():
        content = trial_statistics(load_run(path))
        rows = content["sessions"]
    else:
        experiment = load_experiment(path)
        content = compare_experiment(experiment, grouped(experiment.runs))
        rows = comparison_rows(content)
    save_statistics(path, content, rows)
    return content


def compare_experiment(experiment: Experiment, groups: Sequence[Group]) -> dict[str, Any]:
    """`compare` of the groups of an experiment; of a search also what it came to, under `search`."""
    search = read_search(experiment.info)
    content = compare(groups)
    if search is not None:
        content["search"] = summary(search, experiment.runs, experiment.path)
    return content


def save_statistics(folder: Path, content: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what was computed already: `content` as JSON, `rows` as CSV."""
    write_json(folder / STATISTICS_JSON, dict(content))
    write_atomic(folder / STATISTICS_CSV, as_csv(rows))
