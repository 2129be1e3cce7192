"""Which figures of papers are shown with which claims, and the tasks they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from simgpu.papers.answers import figure_check, study_tasks

if TYPE_CHECKING:
    from simgpu.papers.claims import Claim, Paper
    from simgpu.papers.claims_file import FigureSection
    from simgpu.papers.tasks import Task


def shown_figures(claims: Iterable[Claim]) -> dict[Paper, list[FigureSection]]:
    """The figures of each paper: all with all of its claims, else those that show one of them."""
    chosen: dict[Paper, list[Claim]] = {}
    for claim in claims:
        chosen.setdefault(claim.paper, []).append(claim)
    return {
        paper: [
            figure
            for figure in paper.figures
            if len(some) == sum(not claim.is_rule for claim in paper.claims)
            or any(uses(claim, figure) for claim in some)
        ]
        for paper, some in chosen.items()
    }


def uses(claim: Claim, figure: FigureSection) -> bool:
    """Whether a claim has a value from the study or the check that a figure shows."""
    sources = [part.from_ for part in claim.parts]
    if figure.check is not None:
        check = figure.check.partition(".")[0]
        return any(isinstance(source, str) and source.partition(".")[0] == check for source in sources)
    return any(
        source is not None and not isinstance(source, str) and figure.study in source.study for source in sources
    )


def figure_tasks(paper: Paper, figure: FigureSection) -> Iterator[Task]:
    """The tasks of a figure."""
    if figure.study is not None:
        yield from study_tasks(paper, figure.study)
    elif figure.check is not None:
        yield figure_check(paper, figure.check)
