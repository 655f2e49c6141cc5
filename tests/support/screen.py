"""What a terminal shows of the text and the control sequences that labrl writes."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """A terminal of unlimited height that wraps long lines."""

    def __init__(self, width: int, text: str = "") -> None:
        self.width = width
        self.cursor_is_visible = True
        self._rows = [""]
        self._row = self._column = 0
        self.write(text)

    @property
    def lines(self) -> list[str]:
        """The rows of the terminal that are not empty."""
        return [row.rstrip() for row in self._rows if row.strip()]

    def write(self, text: str) -> None:
        """Show text, and do what its control sequences say."""
        for numbers, command, character in _TOKEN.findall(text):
            if command in ("h", "l"):
                assert numbers == "?25", "an unknown mode"
                self.cursor_is_visible = command == "h"
            elif command == "A":
                self._row = max(self._row - int(numbers), 0)
            elif command == "K":
                assert numbers in ("2", ""), "an unknown way of erasing"
                kept = "" if numbers else self._rows[self._row][: self._column]
                self._rows[self._row] = kept
            elif character == "\r":
                self._column = 0
            elif character == "\n":
                self._break()
            elif character:
                if self._column == self.width:
                    self._break()
                row = self._rows[self._row].ljust(self._column)
                self._rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
                self._column += 1
            else:
                assert command == "m", f"an unknown control sequence, {command}"

    def _break(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append("")
