"""Record docs/images/resume.svg: a run is killed, resumed and repeated, as an animated terminal.

    .venv/bin/python docs/record_terminal.py

Every line is real output; the summary and some lines of progress are left out, and pauses are shortened.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

TARGET = Path(__file__).parent / "images" / "resume.svg"
LABRL = Path(sys.executable).with_name("labrl")

RUN = "labrl seed=7 hydra.run.dir=runs/ppo"
QUIET = ("wandb=disabled", "meta.tensorboard=false", "meta.report=false")

SUMMARY = (
    "sessions of",
    "#",
    "0 ",
    "final return:",
    "checkpoints:",
    "parameters:",
    "on disk:",
    "run folder:",
)
"""Beginnings of the lines at the end of a run, which are left out."""

COLUMNS = 100
WIDTH, LINE, FONT, MARGIN = 830, 19, 13.2, 18
LONGEST_PAUSE, END = 0.7, 6.0
"""Seconds between two lines, and for which the last picture stays."""


@dataclass
class Line:
    """A line of the terminal and the seconds after the previous one."""

    text: str
    pause: float
    kind: str = "output"
    """`typed` for a command, `output` for what it prints, `good` for the last line."""


def main() -> None:
    """Run the commands in an empty folder and write the animation."""
    with tempfile.TemporaryDirectory() as folder:
        lines = list(recorded(Path(folder)))
    TARGET.write_text(svg(lines), encoding="utf-8")
    print("\n".join(line.text for line in lines))


def recorded(folder: Path) -> Iterator[Line]:
    """Yield the lines of the three commands."""
    yield Line(f"$ {RUN} &", 0.5, "typed")
    yield from output(folder, RUN, stop_after=lambda line: line.startswith("frame 4"))
    yield Line("$ kill -9 $!", 0.8, "typed")
    yield Line(f"[1]+  Killed                  {RUN}", 0.2)
    yield Line("$ labrl +resume=runs/ppo", 1.0, "typed")
    yield from output(folder, "labrl +resume=runs/ppo")
    yield Line("$ labrl +rerun=runs/ppo    # without interruption; compares every row", 1.0, "typed")
    good = False
    for line in output(folder, "labrl +rerun=runs/ppo"):
        good = good or line.text.startswith("rerun:")
        yield replace(line, kind="good" if good else line.kind)


def output(folder: Path, command: str, stop_after: Callable[[str], bool] | None = None) -> list[Line]:
    """Return the lines that a command prints, without some of those that show progress.

    stop_after: returns true for the line after which the command is killed with SIGKILL.
    """
    return list(without_some(list(printed(folder, command, stop_after)), progress=4))


def without_some(lines: list[Line], progress: int) -> Iterator[Line]:
    """Yield the lines without the summary and with at most `progress` lines of progress."""
    shown = [line for line in lines if line.text.startswith("frame ")]
    kept = {id(shown[round(i * (len(shown) - 1) / (progress - 1))]) for i in range(progress)}
    for line in lines:
        explains = line.text.startswith(SUMMARY)
        if not explains and (line not in shown or id(line) in kept):
            yield line


def printed(folder: Path, command: str, stop_after: Callable[[str], bool] | None) -> Iterator[Line]:
    """Yield the lines that a command prints."""
    quiet = QUIET if "+" not in command else ()
    process = subprocess.Popen(
        [LABRL, *command.split()[1:], *quiet],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    before = time.monotonic()
    for text in process.stdout:
        now = time.monotonic()
        yield from wrapped(text.rstrip().replace(str(folder), "/home/me"), now - before)
        before = now
        if stop_after is not None and stop_after(text):
            process.kill()
            break
    process.stdout.close()
    process.wait()


def wrapped(text: str, pause: float) -> Iterator[Line]:
    """Yield the rows of the terminal that a line of output fills."""
    for start in range(0, max(len(text), 1), COLUMNS):
        yield Line(text[start : start + COLUMNS], pause if start == 0 else 0.0)


def svg(lines: list[Line]) -> str:
    """Return the animation: each line appears at its time, and the whole repeats."""
    appears, at = [], 0.0
    for line in lines:
        at += min(line.pause, LONGEST_PAUSE)
        appears.append(at)
    total = at + END
    height = 2 * MARGIN + LINE * len(lines)
    frames = "\n".join(
        f"@keyframes l{number} {{ 0%, {100 * at / total:.2f}% {{ opacity: 0 }} "
        f"{100 * at / total + 0.01:.2f}%, 100% {{ opacity: 1 }} }}\n"
        f".l{number} {{ animation: l{number} {total:.1f}s infinite }}"
        for number, at in enumerate(appears)
    )
    rows = "\n".join(
        f'<text class="l{number} {line.kind}" x="{MARGIN}" y="{MARGIN + LINE * (number + 0.75):.1f}">'
        f"{escape(line.text)}</text>"
        for number, line in enumerate(lines)
    )
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    title = "A run is killed with kill -9, resumed, and repeated without interruption: all rows are equal"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{title}</title>
<style>
text {{
  font: {FONT}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre;
  fill: #c9d1d9
}}
.typed {{ fill: #ffffff; font-weight: bold }}
.good {{ fill: #56d364; font-weight: bold }}
{frames}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none !important }} }}
</style>
<rect width="{WIDTH}" height="{height}" fill="#0d1117"/>
{rows}
</svg>
"""


if __name__ == "__main__":
    main()
