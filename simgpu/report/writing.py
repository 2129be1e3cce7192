"""Writes a report: the page, and each policy's timeline for Perfetto next to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.errors import InputError
from simgpu.io.atomic import atomic_file
from simgpu.report.page import page
from simgpu.report.recorded import ReportInput, read_run, recorded_from
from simgpu.report.template import check_page
from simgpu.timeline.perfetto import write_perfetto

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison


def write_report(result: str | Path | Comparison, path: str | Path) -> list[Path]:
    """Writes a run as one self-contained HTML page at `path`. The page needs no network.

    result: a folder that `simgpu run` or `write_outputs` wrote, or a comparison. The page has the tables and, for each
    policy that completed, an interactive timeline and memory curve. A file for https://ui.perfetto.dev is written next
    to the page for each of these policies. Files are written atomically, the page last.

    Returns the written files, the page first. Raises `InputError` for a folder without a run or with missing or
    damaged data, and if a file cannot be written; `MissingExtraError` if the folder has timelines only as Parquet and
    pyarrow is not installed.

    >>> import simgpu, tempfile
    >>> from simgpu.trace.chain import chain
    >>> trace = chain(forward_ns=[5_000, 7_000], backward_ns=[10_000, 14_000], bytes_=[100_000, 200_000])
    >>> compared = simgpu.compare(trace, simgpu.load_node("laptop-2gb"), ["ideal", "vdnn"])
    >>> [file.name for file in write_report(compared, Path(tempfile.mkdtemp()) / "chain.html")]
    ['chain.html', 'chain.ideal.perfetto.json', 'chain.vdnn.perfetto.json']
    """
    recorded = read_run(result) if isinstance(result, str | Path) else recorded_from(result)
    return write_recorded(recorded, path)


def write_recorded(recorded: ReportInput, path: str | Path) -> list[Path]:
    """`write_report` for an input that is already loaded."""
    target = Path(path)
    check_target(target)
    perfetto_files = {
        ran.name: target.with_name(f"{target.stem}.{ran.name}.perfetto.json")
        for ran in recorded.runs
        if ran.timeline is not None
    }
    text, provenance = _page_of(recorded, {name: file.name for name, file in perfetto_files.items()})
    for ran in recorded.runs:
        if ran.timeline is not None:
            trace, node = recorded.document["trace"], recorded.document["node"]
            run = f"{ran.label}: {trace['name'] or trace['model']} on {node['name']}"
            write_perfetto(ran.timeline, perfetto_files[ran.name], {"run": run, "trace": provenance})
    with atomic_file(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return [target, *perfetto_files.values()]


def _page_of(recorded: ReportInput, perfetto_files: Mapping[str, str]) -> tuple[str, str]:
    """The page and the trace's provenance. Raises `InputError` if a file contains values that no run writes."""
    try:
        return page(recorded, perfetto_files), recorded.info.provenance
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        if not recorded.source:
            raise
        what = f"contains data that no run of simgpu writes ({type(error).__name__}: {error})"
        raise InputError.single(recorded.source, "", what, "run the scenario again") from error


def check_target(path: Path) -> None:
    """Checks before a long run that the page can be written; raises `InputError` otherwise."""
    check_page(path, "report.html")
