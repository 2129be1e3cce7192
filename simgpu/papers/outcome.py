"""The outcome of a claim: published and simulated values, verdicts and experiments, and their text tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from simgpu.papers.lines import GAP, LONGEST_VALUE, WIDTH, Line, indent_of, row_line, wrapped
from simgpu.papers.verdicts import Judgement, Simulated, Verdict, here_text, published_text, ratio_text, worst

if TYPE_CHECKING:
    from simgpu.papers.claims import Claim
    from simgpu.papers.claims_file import AssumptionSection, PartSection

#: Marks the id of a claim that a parameter was fitted to.
FITTED = "*"
_HEADINGS = ("claim", "paper", "here", "ratio", "verdict")


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """A part of a claim and its simulated value; None if there is none."""

    part: PartSection
    simulated: Simulated | None
    judged: Judgement

    @property
    def is_number(self) -> bool:
        """Whether the simulated value is a number."""
        return isinstance(self.simulated, int | float)

    @property
    def verdict_text(self) -> str:
        """The verdict; for a number that is not within 10%, with the distance: ``off (+40%)``."""
        detailed = self.judged.verdict in (Verdict.NEAR, Verdict.OFF) and self.is_number and self.judged.detail
        return f"{self.judged.verdict} ({self.judged.detail})" if detailed else str(self.judged.verdict)

    @property
    def explanation(self) -> str:
        """More than the verdict: the evidence for an order, the members that differ, or why there is no number."""
        return "" if self.is_number or self.judged.detail == "the same" else self.judged.detail


@dataclass(frozen=True, slots=True)
class Step:
    """A changed assumption: its label, and the resulting parts of the claim by name."""

    label: str
    parts: Mapping[str, PartOutcome]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The effect of an assumption on a claim."""

    name: str
    assumption: AssumptionSection
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, repr=False)
class ClaimOutcome:
    """A claim with its parts and, if they were run, the experiments on its causes. Prints as rows of a table.

    sources: the studies and checks that compute its numbers, as text.
    """

    claim: Claim
    parts: tuple[PartOutcome, ...]
    experiments: tuple[Experiment, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict of the worst part; `CANNOT` only if no part is simulated."""
        return worst(part.judged.verdict for part in self.parts)

    def __repr__(self) -> str:
        return "\n".join(line.full for line in claim_lines([self], every=True))


class _Row(NamedTuple):
    """A row of the table. cells: label, published, here, ratio, verdict. below: explanations and notes."""

    cells: tuple[str, ...]
    verdict: Verdict
    below: tuple[str, ...] = ()


def claim_lines(outcomes: Iterable[ClaimOutcome], width: int = WIDTH, *, every: bool = False) -> list[Line]:
    """Claims as a table: one row for a claim with one part, else a row for the claim and one for each part.

    Long values and explanations are printed below their row. every: also print notes, and explanations of parts that
    hold or are within 10%.
    """
    rows = [row for outcome in outcomes for row in _rows(outcome, every)]
    cells = [_HEADINGS, *(row.cells for row in rows)]
    *numbers, last = [max(map(len, column)) for column in zip(*cells, strict=True)][1:]
    available = width - sum(numbers) - last - len(GAP) * (len(numbers) + 1)
    longest = max((len(label) for label, *_ in cells if len(label) <= available), default=available)
    widths = (min(longest, available), *numbers)
    return [
        row_line(_HEADINGS, widths)._replace(heading=True),
        *chain.from_iterable(_row_lines(row, widths, width) for row in rows),
    ]


def _row_lines(row: _Row, widths: Sequence[int], width: int) -> Iterator[Line]:
    label = row.cells[0]
    cells = row.cells
    if len(label) > widths[0]:
        yield from map(Line, wrapped(label, width, indent_of(label)))
        cells = ("", *cells[1:])
    yield row_line(cells, widths)._replace(verdict=row.verdict)
    for text in row.below:
        yield from (Line(line, note=True) for line in wrapped(text, width))


def _rows(outcome: ClaimOutcome, every: bool) -> Iterator[_Row]:
    claim = outcome.claim
    name = claim.id + (FITTED if claim.fitted else "")
    unit = f", {claim.section.unit}" if claim.section.unit else ""
    if len(outcome.parts) == 1:
        yield _of_part(f"{name}{unit}", outcome.parts[0], every)
        return
    yield _Row((f"{name}{unit}", "", "", "", str(outcome.verdict)), outcome.verdict)
    for part, after in zip_longest(outcome.parts, outcome.parts[1:]):
        # A note that consecutive parts share is printed once, below the last of them.
        repeated = after is not None and (after.part.note, after.part.timed) == (part.part.note, part.part.timed)
        yield _of_part(f"  {part.part.name}", part, every, noted=not repeated)


def _of_part(label: str, outcome: PartOutcome, every: bool, *, noted: bool = True) -> _Row:
    part, judged = outcome.part, outcome.judged
    published, here = published_text(part), here_text(outcome.simulated)
    below = []
    if max(len(published), len(here)) > LONGEST_VALUE:
        below += [f"paper: {published}", f"here: {here}"]
        published = here = ""
    if part.value is None or outcome.simulated is None:
        # No number to show for orders and for parts that are not simulated: the verdict is enough.
        here = ""
    if every or judged.verdict not in (Verdict.HOLDS, Verdict.CLOSE, Verdict.INPUT):
        below.append(outcome.explanation)
    if every and noted:
        below += [f"input: {part.input}" if part.input else ""]
        below += [f"note: {part.note}" if part.note else "", "measured on this machine" if part.timed else ""]
    cells = (label, published, here, ratio_text(judged) if published and here else "", outcome.verdict_text)
    if not published and judged.ratio is not None:
        cells = (label, "", "", ratio_text(judged), outcome.verdict_text)
    return _Row(cells, judged.verdict, tuple(filter(None, below)))


def says_lines(experiment: Experiment, width: int = WIDTH) -> list[Line]:
    """Lines with an assumption and what its experiment shows."""
    return [Line(f"{GAP}{line.strip()}") for line in wrapped(experiment.assumption.says, width - 2)]


def experiment_lines(outcome: ClaimOutcome, experiment: Experiment, width: int = WIDTH) -> list[Line]:
    """A table of the effect of an assumption on a claim: unchanged, each step, and the paper's values."""
    names = list(dict.fromkeys(name for step in experiment.steps for name in step.parts))
    before = [part for part in outcome.parts if part.part.name in names]
    rows = [("as it is", before), *((step.label, list(step.parts.values())) for step in experiment.steps)]
    verdicts = [worst(part.judged.verdict for part in parts) for _, parts in rows]
    label = max(len(outcome.claim.id), *(len(label) for label, _ in rows))
    lines: list[Line] = []
    last = max(map(len, verdicts))
    available = width - 2 * len(GAP) - label - last
    for chosen in _chunks(before, [parts for _, parts in rows], available):
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
        # Headings are aligned at their last line.
        texts = [name[row - high + len(name)] if name and row >= high - len(name) else "" for name in names]
        begin = f"{GAP}{id_}" if row == (high or 1) - 1 else ""
        yield row_line([begin, *texts, ""], [label + 2, *widths])._replace(heading=True)
    for (name, _), verdict, texts in zip(rows, verdicts, values, strict=True):
        yield row_line([f"{GAP}{name}", *texts, str(verdict)], [label + 2, *widths])._replace(verdict=verdict)
    if any(paper):
        yield row_line([f"{GAP}paper", *paper, ""], [label + 2, *widths])


def _chunks(
    before: Sequence[PartOutcome], rows: Sequence[Sequence[PartOutcome]], available: int
) -> Iterator[tuple[int, ...]]:
    """Indices of the parts, split into tables that fit the available width."""
    chosen: list[int] = []
    used = 0
    for at, part in enumerate(before):
        wide = len(GAP) + _width(part.part, [_short(part.part), *(_moved(parts[at]) for parts in rows)])
        if chosen and used + wide > available:
            yield tuple(chosen)
            chosen, used = [], 0
        chosen.append(at)
        used += wide
    if chosen:
        yield tuple(chosen)


def _width(part: PartSection, texts: Iterable[str]) -> int:
    """Width of a column: fits its values, the longest word of its name, and a name of up to 12 characters."""
    words = max(map(len, part.name.split()), default=0)
    return max(*map(len, texts), words, min(len(part.name), 12))


def _moved(outcome: PartOutcome) -> str:
    """A value as short text: for a long set, the share of members that agree."""
    text = here_text(outcome.simulated)
    if len(text) > LONGEST_VALUE and outcome.judged.ratio is not None:
        return f"{outcome.judged.ratio:.0%} same"
    return text


def _short(part: PartSection) -> str:
    text = published_text(part)
    return text if len(text) <= LONGEST_VALUE else f"{len(part.value) if isinstance(part.value, list) else 1} in all"
