"""A reproduction as lines of text in columns, no wider than a terminal, no word broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from simgpu.analysis.tables import table_text
from simgpu.papers.tables import (
    here_text,
    published_text,
    ratio_text,
    said,
    summary,
    verdict_text,
)
from simgpu.papers.verdicts import Verdict, worst

if TYPE_CHECKING:
    from simgpu.papers.claims_file import PartSection
    from simgpu.papers.outcome import ClaimOutcome, Experiment, PartOutcome, Reproduction

WIDTH = 80
#: After the id of a claim that something was fitted to.
FITTED = "*"
_HEADINGS = ("claim", "paper", "here", "ratio", "verdict")
_GAP = "  "
#: Longer values, which sets are, stand below their row.
_LONGEST_VALUE = 14
_INDENT = "    "


class Line(NamedTuple):
    """A line: its text, then a verdict in words at its end. said: beside a row, not one; heading: over rows."""

    text: str
    ending: str = ""
    verdict: Verdict | None = None
    said: bool = False
    heading: bool = False

    @property
    def whole(self) -> str:
        """All of it."""
        return (self.text + self.ending).rstrip()


class _Row(NamedTuple):
    """A row of the table: label, published, here, ratio, verdict in words; below: what is said of it."""

    cells: tuple[str, ...]
    verdict: Verdict
    below: tuple[str, ...] = ()


def claim_lines(outcomes: Iterable[ClaimOutcome], width: int = WIDTH, *, every: bool = False) -> list[Line]:
    """Claims as a table: one row of a claim with one part, else one for it and one a part.

    Below a row stands what does not fit into it, and what has to be said of it; every: also what is said of what holds,
    and notes.
    """
    rows = [row for outcome in outcomes for row in _rows(outcome, every)]
    cells = [_HEADINGS, *(row.cells for row in rows)]
    *numbers, last = [max(map(len, column)) for column in zip(*cells, strict=True)][1:]
    room = width - sum(numbers) - last - len(_GAP) * (len(numbers) + 1)
    longest = max((len(label) for label, *_ in cells if len(label) <= room), default=room)
    widths = (min(longest, room), *numbers)
    return [
        _line(_HEADINGS, widths)._replace(heading=True),
        *chain.from_iterable(_row_lines(row, widths, width) for row in rows),
    ]


def _row_lines(row: _Row, widths: Sequence[int], width: int) -> Iterator[Line]:
    label = row.cells[0]
    cells = row.cells
    if len(label) > widths[0]:
        yield from map(Line, _wrapped(label, width, _indent(label)))
        cells = ("", *cells[1:])
    yield _line(cells, widths)._replace(verdict=row.verdict)
    for text in row.below:
        yield from (Line(line, said=True) for line in _wrapped(text, width))


def _wrapped(text: str, width: int, indent: str = _INDENT) -> list[str]:
    return wrap(
        text.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent + _GAP,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _line(cells: Sequence[str], widths: Sequence[int]) -> Line:
    label, *numbers, verdict = cells
    texts = [label.ljust(widths[0]), *(text.rjust(wide) for text, wide in zip(numbers, widths[1:], strict=True))]
    return Line(_GAP.join(texts) + _GAP, verdict)


def _rows(outcome: ClaimOutcome, every: bool) -> Iterator[_Row]:
    claim = outcome.claim
    name = claim.id + (FITTED if claim.fitted else "")
    unit = f", {claim.section.unit}" if claim.section.unit else ""
    if len(outcome.parts) == 1:
        yield _of_part(f"{name}{unit}", outcome.parts[0], every)
        return
    yield _Row((f"{name}{unit}", "", "", "", str(outcome.verdict)), outcome.verdict)
    for part, after in zip_longest(outcome.parts, outcome.parts[1:]):
        # A note of several parts that follow each other stands below the last of them.
        goes_on = after is not None and (after.part.note, after.part.timed) == (part.part.note, part.part.timed)
        yield _of_part(f"  {part.part.name}", part, every, noted=not goes_on)


def _of_part(label: str, outcome: PartOutcome, every: bool, *, noted: bool = True) -> _Row:
    part, judged = outcome.part, outcome.judged
    published, here = published_text(part), here_text(outcome.simulated)
    below = []
    if max(len(published), len(here)) > _LONGEST_VALUE:
        below += [f"paper: {published}", f"here: {here}"]
        published = here = ""
    if part.value is None or outcome.simulated is None:
        # A rule has no number, and what is not simulated none of ours; the verdict says so.
        here = ""
    if every or judged.verdict not in (Verdict.HOLDS, Verdict.CLOSE):
        below.append(said(outcome))
    if every and noted:
        below += [f"note: {part.note}" if part.note else "", "a time of this machine" if part.timed else ""]
    cells = (label, published, here, ratio_text(judged) if published and here else "", verdict_text(outcome))
    if not published and judged.ratio is not None:
        cells = (label, "", "", ratio_text(judged), verdict_text(outcome))
    return _Row(cells, judged.verdict, tuple(filter(None, below)))


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int = WIDTH) -> list[Line]:
    """A table whose rows may be a label alone, which then has the whole width, as has one that is too long.

    What is longer than the heading of the last column, and than a word, stands below its row, to the right.
    """
    made = list(rows)
    *numbers, last = [max(map(len, column)) for column in zip(headings, *made, strict=True)][1:]
    last = min(last, max(len(headings[-1]), _LONGEST_VALUE))
    room = width - sum(numbers) - last - len(_GAP) * (len(numbers) + 1)
    labels = [row[0] for row in made if any(row[1:]) and len(row[0]) <= room]
    widths = (max(map(len, (headings[0], *labels))), *numbers)
    lines = [_line(headings, widths)._replace(heading=True)]
    for label, *cells, ending in made:
        if len(label) > widths[0]:
            lines += map(Line, _wrapped(label, width, _indent(label)))
        if len(label) <= widths[0] or any((*cells, ending)):
            short = ending if len(ending) <= last else ""
            lines.append(_line((label if len(label) <= widths[0] else "", *cells, short), widths))
        if len(ending) > last:
            lines.append(Line(ending.rjust(sum(widths) + len(_GAP) * len(widths) + last)))
    return lines


def says_lines(experiment: Experiment, width: int = WIDTH) -> list[Line]:
    """What an assumption is, and what the experiment shows."""
    return [Line(f"{_GAP}{line.strip()}") for line in _wrapped(experiment.assumption.says, width - 2)]


def experiment_lines(outcome: ClaimOutcome, experiment: Experiment, width: int = WIDTH) -> list[Line]:
    """A table of what an assumption does to a claim: as it is, each step, and the paper."""
    names = list(dict.fromkeys(name for step in experiment.steps for name in step.parts))
    before = [part for part in outcome.parts if part.part.name in names]
    rows = [("as it is", before), *((step.label, list(step.parts.values())) for step in experiment.steps)]
    verdicts = [worst(part.judged.verdict for part in parts) for _, parts in rows]
    label = max(len(outcome.claim.id), *(len(label) for label, _ in rows))
    lines: list[Line] = []
    last = max(map(len, verdicts))
    room = width - 2 * len(_GAP) - label - last
    for chosen in _chunks(before, [parts for _, parts in rows], room):
        lines += _experiment_table(outcome.claim.id, before, rows, verdicts, chosen, label)
    return lines


def _experiment_table(
    id_: str,
    before: Sequence[PartOutcome],
    rows: Sequence[tuple[str, Sequence[PartOutcome]]],
    verdicts: Sequence[Verdict],
    chosen: Sequence[int],
    label: int,
) -> Iterator[Line]:
    values = [[_moved(parts[at]) for at in chosen] for _, parts in rows]
    paper = [_short(before[at].part) for at in chosen]
    widths = [_width(before[at].part, column) for at, *column in zip(chosen, *values, paper, strict=True)]
    names = [
        wrap(before[at].part.name, wide, break_long_words=False, break_on_hyphens=False)
        for at, wide in zip(chosen, widths, strict=True)
    ]
    high = max(map(len, names))
    for row in range(high or 1):
        # Short names stand beside the last lines of long ones, and the claim beside all of them.
        texts = [name[row - high + len(name)] if name and row >= high - len(name) else "" for name in names]
        begin = f"{_GAP}{id_}" if row == (high or 1) - 1 else ""
        yield _line([begin, *texts, ""], [label + 2, *widths])._replace(heading=True)
    for (name, _), verdict, texts in zip(rows, verdicts, values, strict=True):
        yield _line([f"{_GAP}{name}", *texts, str(verdict)], [label + 2, *widths])._replace(verdict=verdict)
    if any(paper):
        yield _line([f"{_GAP}paper", *paper, ""], [label + 2, *widths])


def _chunks(
    before: Sequence[PartOutcome], rows: Sequence[Sequence[PartOutcome]], room: int
) -> Iterator[tuple[int, ...]]:
    """The parts, by their place, that stand in each of the tables that are needed for the width."""
    chosen: list[int] = []
    taken = 0
    for at, part in enumerate(before):
        wide = len(_GAP) + _width(part.part, [_short(part.part), *(_moved(parts[at]) for parts in rows)])
        if chosen and taken + wide > room:
            yield tuple(chosen)
            chosen, taken = [], 0
        chosen.append(at)
        taken += wide
    if chosen:
        yield tuple(chosen)


def _width(part: PartSection, texts: Iterable[str]) -> int:
    """Of a column: as its values and the longest word of its name need, or the name where it is short."""
    words = max(map(len, part.name.split()), default=0)
    return max(*map(len, texts), words, min(len(part.name), 12))


def _moved(outcome: PartOutcome) -> str:
    """A value as short as it gets: of a set, how much of it is the same."""
    text = here_text(outcome.simulated)
    if len(text) > _LONGEST_VALUE and outcome.judged.ratio is not None:
        return f"{outcome.judged.ratio:.0%} same"
    return text


def _short(part: PartSection) -> str:
    text = published_text(part)
    return text if len(text) <= _LONGEST_VALUE else f"{len(part.value) if isinstance(part.value, list) else 1} in all"


def reproduction_text(found: Reproduction) -> str:
    """All claims and the summary."""
    claims = "\n".join(line.whole for line in claim_lines(found.claims))
    headings, rows, below = summary(found)
    return "\n\n".join((claims, table_text(headings, rows), "\n".join(wrap(below, WIDTH))))
