"""Results as the output of a notebook's cell: curves, a table and a video, in one HTML text."""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from labrl.analysis.figures import Sheet, save_sheets
from labrl.analysis.report.page import Page, assets
from labrl.analysis.report.trial import session_rows, trial_report
from labrl.analysis.statistics import trial_statistics
from labrl.errors import LabrlError
from labrl.run.run import Run


def trial_cell(folder: Path, title: str, session: int | None = None) -> str | None:
    """Return HTML with the curve, the sessions and the best video of the run in `folder`; None if the run
    cannot be read.

    session: index of the session whose video is shown; None for any session.
    """
    with suppress(LabrlError, OSError):
        run = Run.open(folder)
        statistics = trial_statistics(run)
        content, sheets = trial_report(run, statistics)
        own = folder if session is None else folder / f"session_{session}"
        videos = [video for video in content["videos"] if own in video.parents]
        return cell(title, folder, content["verdict"], sheets[:1], session_rows(statistics), videos[:1])
    return None


def cell(
    title: str, folder: Path, verdict: str, sheets: list[Sheet], rows: list[list[str]], videos: list[Path]
) -> str:
    """Return the HTML of a cell. folder: the folder of the results; rows: the rows of the table, headings
    first."""
    with TemporaryDirectory() as drawn:
        paths = save_sheets(sheets, Path(drawn), ["png"])
        images = [base64.b64encode(path.read_bytes()).decode() for path in paths]
    page, template = Page(Path.cwd()), assets()[0].get_template("cell.html.j2")
    known = {"title": title, "folder": folder, "verdict": verdict, "images": images, "rows": rows}
    return template.render(known, videos=[page.source_of(video) for video in videos])
