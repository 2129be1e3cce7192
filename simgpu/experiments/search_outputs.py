"""The files of searches for a placement: a folder that appears whole or not at all.

The same command writes the same files to the byte: how long anything took is not in them.

    report.json                     every number, and where it comes from
    <policy>/placement.csv          one row a feature map: its action, when it leaves and comes back, its overhead
    <policy>/convergence.csv        of a swarm: worst, mean and best by iteration, and the particles that fit
    <policy>/convergence.png        the same as a picture, where a particle fits
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.experiments.outputs import REPORT, check_folder, folder_names, holds_other_than
from simgpu.io.atomic import atomic_folder

if TYPE_CHECKING:
    from simgpu.experiments.search_found import Search

SCHEMA = "simgpu.search-report/1"


def check_search_outputs(folder: Path) -> None:
    """Before a long search: `InputError` where the folder can be neither made nor replaced. Touches nothing."""
    check_folder(folder, _not_ours)


def write_searches(searches: Sequence[Search], folder: Path, *, about: Mapping[str, Any]) -> None:
    """Writes searches of one trace on one node as one folder, whole or not at all.

    about: what the report says beside them. A folder that earlier searches wrote is replaced. Raises `InputError` when
    the system refuses, or the folder holds anything else.
    """
    from simgpu.analysis.plots import save_figure

    folder = folder.absolute()
    check_search_outputs(folder)
    with atomic_folder(folder, _not_ours) as part:
        for search, name in zip(searches, folder_names(search.label for search in searches), strict=True):
            home = part / name
            home.mkdir()
            search.frame().to_csv(home / "placement.csv", lineterminator="\n")
            if (curves := search.convergence_frame()) is not None:
                curves.to_csv(home / "convergence.csv", lineterminator="\n")
            if (figure := search.plot()) is not None:
                save_figure(figure, home / "convergence.png")
        report = json.dumps(searches_document(searches, about), indent=2, allow_nan=False)
        (part / REPORT).write_text(report + "\n", encoding="utf-8")


def searches_document(searches: Sequence[Search], about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as plain data: its schema, of what the numbers are, and each search."""
    of: dict[str, Any] = {}
    if searches:
        first = searches[0]
        trace = {"name": first.trace_name, **asdict(first.trace), "origin": first.trace.origin.value}
        of = {"trace": trace, "node": asdict(first.node), "budget_bytes": first.budget}
    return {"schema": SCHEMA, **about, **of, "searches": [search.to_dict() for search in searches]}


def _not_ours(folder: Path) -> str:
    return holds_other_than(folder, "simgpu.search-report/", "search")
