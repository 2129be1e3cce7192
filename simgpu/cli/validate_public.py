"""``simgpu validate public``: published measurements and predictions, what is compared, and why the rest is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from simgpu.cli.screen import Screen, progress, quiet_option, table
from simgpu.cli.validate_public_several import print_several, several_document
from simgpu.cli.validate_public_times import print_times, times_document
from simgpu.report.template import check_page
from simgpu.validation.public.coverage import Coverage, coverage
from simgpu.validation.public.predicted import (
    ComparedPeak,
    compared,
    covered_rows,
    median_error,
    predict,
    stored_predictions,
)
from simgpu.validation.public.rows import PublishedRow, published_rows
from simgpu.validation.public.selection import Subject, reasons
from simgpu.validation.public.several_times import (
    compared_slowdowns,
    predict_one_gpu,
    rows_of_several,
    stored_times_of_several,
)
from simgpu.validation.public.tables import (
    causes,
    counts,
    covered_text,
    peak_cells,
    peak_medians,
    verdicts_of,
    with_model,
)
from simgpu.validation.public.times import ComparedTime, compared_times, predict_time, stored_times, timed_rows
from simgpu.version import __version__


@click.command()
@click.option("--rows", "list_rows", is_flag=True, help="List every row with the first reason against it.")
@click.option("--again", is_flag=True, help="Predict again; minutes; needs the extras 'record' and 'predict'.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw predicted over published values: PNG, SVG, PDF.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all rows with sources and figure as one HTML page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def public(list_rows: bool, again: bool, plot: Path | None, page: Path | None, as_json: bool, quiet: bool) -> None:
    """Compare published measurements of training steps with predictions; say why other rows are not compared.

    371 rows from the documents and threads of 19 projects ship with simgpu, each with its source. A fixed rule selects
    them by model, GPU, memory kind and options, never by error. Nothing is fitted to them.

    \b
    simgpu validate public
    simgpu validate public --rows
    simgpu validate public --plot scoreboard.png
    simgpu validate public --page scoreboard.html
    """
    if page is not None:
        check_page(page, "scoreboard.html")
    if plot is not None:
        from simgpu.analysis.plots import figure_format  # loads matplotlib

        figure_format(plot)
    rows, covered, timed = published_rows(), covered_rows(), timed_rows()
    predictions, predicted_times = dict(stored_predictions()), dict(stored_times())
    of_one_gpu = dict(stored_times_of_several())
    if again:
        with progress(quiet) as say:
            for number, row in enumerate(covered, start=1):
                say(f"predicting {row.id}, {row.model}, {number} of {len(covered)}")
                predictions[row.id] = predict(row)
            for number, row in enumerate(timed, start=1):
                say(f"predicting the time of {row.id}, {row.model}, {number} of {len(timed)}")
                predicted_times[row.id] = predict_time(row)
            for row in rows_of_several():
                say(f"predicting one GPU of {row.id}, {row.model}")
                of_one_gpu[row.id] = predict_one_gpu(row)
    peaks, times = compared(covered, predictions), compared_times(timed, predicted_times)
    several = compared_slowdowns(of_one_gpu)
    if plot is not None:
        _draw(plot, peaks, times)
    if page is not None:
        from simgpu.validation.public.page import Scoreboard, write_scoreboard  # loads matplotlib

        write_scoreboard(page, Scoreboard(rows, peaks, times, several))
    parts = [coverage(rows, subject) for subject in Subject]
    if as_json:
        click.echo(json.dumps(_document(rows, parts, peaks, times) | several_document(several), indent=2))
        return
    screen = Screen()
    titles = ("row", "model", "published", "", "predicted", "error")
    cells = ((peak.row.id, model, *peak_cells(peak)) for peak, model in with_model(peaks))
    screen.print(table(titles, cells, left=(0, 1, 3), unbroken=(0, 2, 3, 4, 5)))
    screen.print()
    screen.print(table(("median error of the peak", "", "peaks"), peak_medians(peaks)))
    screen.print()
    for ids, cause in causes(peaks, []):
        screen.print(f"{ids}: {cause}")
    screen.print()
    print_times(screen, times, peaks)
    print_several(screen, several)
    for part in parts:
        screen.print(f"{part.subject.value}: {covered_text(part)}")
        for title, numbers in counts(part):
            screen.print(table((title, "rows"), ((name, str(count)) for name, count in numbers.items())))
        screen.print()
    if list_rows:
        headers = ("row", "project", "model", *(subject.value for subject in Subject))
        screen.print(table(headers, (_listed(row) for row in rows), left=range(len(headers)), unbroken=(0,)))


def _draw(plot: Path, peaks: Sequence[ComparedPeak], times: Sequence[ComparedTime]) -> None:
    from simgpu.analysis.plots import save_figure  # loads matplotlib
    from simgpu.validation.public.figure import plot_scoreboard

    save_figure(plot_scoreboard(peaks, times), plot)


def _listed(row: PublishedRow) -> tuple[str, ...]:
    return row.id, row.project, row.model, *verdicts_of(row)


def _document(
    rows: list[PublishedRow], parts: list[Coverage], peaks: Sequence[ComparedPeak], times: Sequence[ComparedTime]
) -> dict[str, object]:
    return {
        "simgpu": __version__,
        "median_error": median_error(peaks),
        "peaks": [
            {
                "id": peak.row.id,
                "kind": peak.kind,
                "published_bytes": peak.published,
                "predicted_bytes": peak.predicted,
                "error": peak.error,
                "right_verdict": peak.is_right,
                "cause": peak.cause,
            }
            for peak in peaks
        ],
        **times_document(times, peaks),
        "coverage": [
            {
                "subject": part.subject.value,
                "rows": part.rows,
                "comparable": part.comparable,
                "covered": part.covered,
                "reasons": {reason.value: count for reason, count in part.reasons.items()},
                "options_not_modelled": part.options,
                "models_not_followed": part.models,
            }
            for part in parts
        ],
        "rows": [
            {"id": row.id, "source": row.source, **{subject.value: list(reasons(row, subject)) for subject in Subject}}
            for row in rows
        ],
    }
