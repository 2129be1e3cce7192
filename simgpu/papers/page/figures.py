"""Draws the papers' figures from simulation results, for the page. Loads matplotlib."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from simgpu.papers.answers import NotRunError, check_value, partial_result, shown_figures, uses
from simgpu.papers.page.drawings import drawn
from simgpu.papers.page.svg import Inline, inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simgpu.papers.claims import Paper
    from simgpu.papers.claims_file import FigureSection
    from simgpu.papers.reproduce import Run


class FigureView(NamedTuple):
    """A figure of a paper.

    id: unique in the page.
    drawing: None if drawing failed; `why` is then the error.
    about: its study.
    claims: the ids of the claims that it shows.
    """

    id: str
    title: str
    drawing: Inline | None
    why: str
    about: str
    claims: tuple[str, ...]

    @property
    def short(self) -> str:
        """The part of the title before a colon, shortened."""
        return shorten(self.title.partition(":")[0], 30, placeholder=" ...")


def figures_of(run: Run) -> dict[str, list[FigureView]]:
    """The figures by the key of their paper, drawn from the results of a run."""
    return {
        paper.key: [_figure(run, paper, figure, number) for number, figure in enumerate(figures, 1)]
        for paper, figures in shown_figures(run.claims).items()
    }


def _figure(run: Run, paper: Paper, figure: FigureSection, number: int) -> FigureView:
    id_ = f"figure-{paper.key}-{number}"
    claims = tuple(claim.id for claim in run.claims if claim.paper is paper and uses(claim, figure))
    try:
        drawing, about = _drawn(run, paper, figure)
    except NotRunError as error:
        return FigureView(id_, figure.title, None, str(error), "", claims)
    return FigureView(id_, figure.title, inline_svg(drawing, f"{id_}-"), "", about, claims)


def _drawn(run: Run, paper: Paper, figure: FigureSection) -> tuple[Figure, str]:
    if figure.check is not None:
        return drawn(check_value(paper, figure.check, run.cache, run.failed)), ""
    assert figure.study is not None
    result = partial_result(paper, figure.study, run.cache, run.failed)
    drawing = result.plot(figure.picture)
    # The page has its own title, which wraps.
    drawing.suptitle("")
    origins = dict.fromkeys(trace.info.provenance for trace in result.study.traces.values())
    return drawing, f"{result.study.name}: {result.study.description} ({'; '.join(origins)})"
