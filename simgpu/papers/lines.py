"""Formats tables as lines of text that fit a terminal, without breaking words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import NamedTuple

from simgpu.papers.verdicts import Verdict

WIDTH = 80
GAP = "  "
#: Longer values, such as sets, are printed below their row.
LONGEST_VALUE = 14
_INDENT = "    "


class Line(NamedTuple):
    """A line of a table.

    text: the line without its last column.
    ending: the last column, usually the verdict as text.
    verdict: None if the line has none.
    note: whether it explains the row above.
    heading: whether it contains column names.
    """

    text: str
    ending: str = ""
    verdict: Verdict | None = None
    note: bool = False
    heading: bool = False

    @property
    def full(self) -> str:
        """Text and ending, joined."""
        return (self.text + self.ending).rstrip()


def wrapped(text: str, width: int = WIDTH, indent: str = _INDENT) -> list[str]:
    """The text as indented lines of at most `width` where words allow; later lines are indented further."""
    return wrap(
        text.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent + GAP,
        break_long_words=False,
        break_on_hyphens=False,
    )


def indent_of(text: str) -> str:
    """The leading spaces of a text."""
    return text[: len(text) - len(text.lstrip())]


def row_line(cells: Sequence[str], widths: Sequence[int]) -> Line:
    """A row of a left-aligned label, right-aligned numbers, and a verdict as ending."""
    label, *numbers, verdict = cells
    texts = [label.ljust(widths[0]), *(text.rjust(wide) for text, wide in zip(numbers, widths[1:], strict=True))]
    return Line(GAP.join(texts) + GAP, verdict)


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int = WIDTH) -> list[Line]:
    """A table. A label that is too long, or without other cells, gets its own line.

    A last cell longer than both its heading and `LONGEST_VALUE` is printed below its row, right-aligned.
    """
    rows = list(rows)
    *numbers, last = [max(map(len, column)) for column in zip(headings, *rows, strict=True)][1:]
    last = min(last, max(len(headings[-1]), LONGEST_VALUE))
    available = width - sum(numbers) - last - len(GAP) * (len(numbers) + 1)
    labels = [row[0] for row in rows if any(row[1:]) and len(row[0]) <= available]
    widths = (max(map(len, (headings[0], *labels))), *numbers)
    lines = [row_line(headings, widths)._replace(heading=True)]
    for label, *cells, ending in rows:
        if len(label) > widths[0]:
            lines += map(Line, wrapped(label, width, indent_of(label)))
        if len(label) <= widths[0] or any((*cells, ending)):
            short = ending if len(ending) <= last else ""
            lines.append(row_line((label if len(label) <= widths[0] else "", *cells, short), widths))
        if len(ending) > last:
            lines.append(Line(ending.rjust(sum(widths) + len(GAP) * len(widths) + last)))
    return lines
