"""``simgpu validate public``: what of the published measurements is compared, and why the rest is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import click

from simgpu.cli.screen import Screen, table
from simgpu.validation.public.coverage import Coverage, coverage
from simgpu.validation.public.rows import PublishedRow, published_rows
from simgpu.validation.public.selection import Subject, reasons
from simgpu.version import __version__


@click.command()
@click.option("--rows", "list_rows", is_flag=True, help="List every row with the first reason against it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def public(list_rows: bool, as_json: bool) -> None:
    """Show which published measurements of training steps are compared, and why the others are not.

    371 rows from the documents and threads of 19 projects ship with simgpu, each with its source. A fixed rule selects
    them by model, GPU, memory kind and options, never by error.

    \b
    simgpu validate public
    simgpu validate public --rows
    """
    rows = published_rows()
    parts = [coverage(rows, subject) for subject in Subject]
    if as_json:
        click.echo(json.dumps(_document(rows, parts), indent=2))
        return
    screen = Screen()
    for part in parts:
        screen.print(
            f"{part.subject.value}: {part.covered} of {part.comparable} comparable rows are covered, of {part.rows}"
        )
        for title, counts in _counts(part):
            screen.print(table((title, "rows"), ((name, str(count)) for name, count in counts.items())))
        screen.print()
    if list_rows:
        headers = ("row", "project", "model", *(subject.value for subject in Subject))
        screen.print(table(headers, map(_listed, rows), unbroken=(0,)))


def _counts(part: Coverage) -> Iterator[tuple[str, Mapping[str, int]]]:
    yield "why a row is not compared", {reason.value: count for reason, count in part.reasons.items()}
    if part.options:
        yield "options of comparable rows that are not modelled", part.options
    if part.models:
        yield "models of comparable rows that are not followed", part.models


def _listed(row: PublishedRow) -> tuple[str, ...]:
    found = (reasons(row, subject) for subject in Subject)
    return row.id, row.project, row.model, *(each[0].value if each else "covered" for each in found)


def _document(rows: list[PublishedRow], parts: list[Coverage]) -> dict[str, object]:
    return {
        "simgpu": __version__,
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
