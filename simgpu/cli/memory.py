"""``simgpu memory``: a PyTorch memory snapshot explained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import parse_size
from simgpu.explain.allocations import TRIED, AllocationReport, Holder, explain_allocations
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.memory.caching.settings import PYTORCH_VERSIONS
from simgpu.trace.code_lines import short_line
from simgpu.units import format_bytes
from simgpu.version import __version__

_SHOWN = 8


@click.command("memory")
@click.argument("snapshot", type=click.Path(path_type=Path))
@click.option("--gpu", metavar="N", type=click.IntRange(min=0), help="Number of the GPU, if there are several.")
@click.option(
    "--capacity", metavar="SIZE", help="Device memory for the allocator, e.g. 24GiB. Default: as recorded at an OOM."
)
@click.option(
    "--allocator",
    metavar="SETTINGS",
    multiple=True,
    help="Settings to try, as in PYTORCH_CUDA_ALLOC_CONF. Repeat for several.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw memory and segments, as PNG, SVG or PDF."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def memory(
    snapshot: Path,
    gpu: int | None,
    capacity: str | None,
    allocator: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Explain the PyTorch memory snapshot SNAPSHOT: peaks, fragmentation, out of memory, and what would help.

    SNAPSHOT is a pickle or JSON file, or a folder that `simgpu trace import` made of one.

    Write one with torch.cuda.memory._record_memory_history() before the steps and
    torch.cuda.memory._dump_snapshot("snapshot.pickle") after them. The same requests are then repeated with other
    settings of the allocator.

    \b
    simgpu memory snapshot.pickle
    simgpu memory snapshot.pickle --capacity 16GiB
    simgpu memory snapshot.pickle --allocator max_split_size_mb:256
    simgpu memory snapshot.pickle --plot memory.png
    """
    limit = None if capacity is None else parse_size(capacity, "--capacity")
    with progress(quiet) as say:
        say(f"reading {snapshot.name}")
        trace = load_snapshot(snapshot, gpu)
        say(f"repeating {len(trace.events)} events")
        report = explain_allocations(trace, limit, allocator or TRIED)
        if plot is not None:
            from simgpu.analysis.plots import save_figure  # loads matplotlib

            say(f"drawing {plot}")
            save_figure(report.plot(), plot)
    if as_json:
        click.echo(json.dumps(_document(report), indent=2))
        return
    screen = Screen()
    screen.print(facts(_facts(snapshot, report)))
    screen.print()
    screen.print(facts(_state(report)))
    screen.print()
    if report.contents:
        screen.print(table(("holds", "bytes", "allocations"), _holders(report.contents, "kinds"), unbroken=(1, 2)))
        screen.print()
    screen.print(table(("held by", "bytes", "allocations"), _holders(report.holders, "lines"), unbroken=(1, 2)))
    if report.labels:
        screen.print()
        screen.print(table(("labelled", "bytes", "allocations"), _holders(report.labels, "labels"), unbroken=(1, 2)))
    if report.regions:
        screen.print()
        screen.print(
            table(("marked region", "events", "peak allocated", "change"), _regions(report), unbroken=(1, 2, 3))
        )
    if report.pins:
        screen.print()
        screen.print(table(("segment held by", "size", "free", "share"), _pins(report), unbroken=(1, 2, 3)))
    screen.print()
    verdict = "" if report.capacity is None else f"in {format_bytes(report.capacity)}"
    screen.print(table(("allocator settings", "peak reserved", "change", "allocated", verdict), _trials(report)))


def _facts(path: Path, report: AllocationReport) -> Iterator[tuple[str, str]]:
    trace = report.trace
    yield "snapshot", f"{path}, GPU {trace.gpu}: {len(trace.events)} events, {len(trace.allocations)} allocations"
    recorded = (
        "not recorded, defaults assumed"
        if trace.settings is None
        else str(trace.settings.get("PYTORCH_CUDA_ALLOC_CONF") or "default")
    )
    yield "allocator", f"PyTorch's, as in versions {PYTORCH_VERSIONS}; settings: {recorded}"
    yield (
        "reproduced",
        (
            f"{report.equal_allocations} of {report.allocations} addresses, "
            f"{report.equal_segments} of {report.segments} segments"
        ),
    )
    for deviation in report.deviations[:_SHOWN]:
        yield "", f"event {deviation.event}: {deviation.what}"
    yield "not recorded", "kernel times and what kernels read: no policy can run on it"
    yield "", ""
    yield "peak requested", format_bytes(report.requested)
    yield "peak allocated", format_bytes(report.allocated)
    more = 100 * (report.reserved / report.allocated - 1) if report.allocated else 0.0
    limit = "" if report.capacity is None else " without a limit"
    yield "peak reserved", f"{format_bytes(report.reserved)}{limit}, {more:.1f}% more than allocated"


def _state(report: AllocationReport) -> Iterator[tuple[str, str]]:
    failure, state = report.failure, report.state
    if failure is None:
        if report.capacity is not None:
            freed = ", since unused segments are freed first" if report.reserved > report.capacity else ""
            yield f"{format_bytes(report.capacity)}", f"suffices: every request gets memory{freed}"
        yield "at the peak", f"of allocated memory as recorded, event {report.moment}:"
    else:
        cause = "as recorded" if failure.recorded else f"with {format_bytes(report.capacity or 0)}"
        if failure.event < 0:
            yield "out of memory", f"before the recording, {cause}: what was allocated then takes more"
        else:
            yield "out of memory", f"event {failure.event}, {cause}: a request of {format_bytes(failure.request)}"
        yield "free on device", format_bytes(failure.free)
    yield "reserved", format_bytes(state.reserved)
    yield "allocated", f"{format_bytes(state.allocated)}, of which {format_bytes(state.rounding)} rounding"
    if state.waiting:
        yield "waiting", f"{format_bytes(state.waiting)} freed, but still used by another stream"
    yield (
        "free in segments",
        (
            f"{format_bytes(state.releasable)} in unused segments, {format_bytes(state.pinned)} in segments in use; "
            f"largest block {format_bytes(state.largest)}"
        ),
    )
    if failure is not None:
        yield "unusable", f"{format_bytes(state.too_small)} in free blocks that cannot serve this request"


def _holders(holders: Sequence[Holder], of: str) -> Iterator[tuple[str, ...]]:
    for holder in holders[:_SHOWN]:
        yield short_line(holder.where), format_bytes(holder.bytes), str(holder.count)
    if rest := holders[_SHOWN:]:
        bytes, count = sum(each.bytes for each in rest), sum(each.count for each in rest)
        yield f"{len(rest)} more {of}", format_bytes(bytes), str(count)


def _regions(report: AllocationReport) -> Iterator[tuple[str, ...]]:
    """The longest regions, in order."""
    longest = sorted(report.regions, key=lambda region: region.begin - region.end)[:_SHOWN]
    for region in (each for each in report.regions if each in longest):
        change = region.after - region.before
        events = f"{region.begin} to {region.end - 1}" if region.end > region.begin else f"before {region.begin}"
        yield f"{'  ' * min(region.depth, 4)}{region.name}", events, format_bytes(region.peak), _signed(change)
    if more := report.marked - len(longest):
        yield f"{more} more, shorter", "", "", ""


def _signed(change: int) -> str:
    return f"{'-' if change < 0 else '+'}{format_bytes(abs(change))}" if change else "none"


def _pins(report: AllocationReport) -> Iterator[tuple[str, ...]]:
    for pin in report.pins[:_SHOWN]:
        yield short_line(pin.where), format_bytes(pin.size), format_bytes(pin.free), f"{100 * pin.free / pin.size:.0f}%"
    if rest := report.pins[_SHOWN:]:
        size, free = sum(each.size for each in rest), sum(each.free for each in rest)
        yield f"{len(rest)} more segments", format_bytes(size), format_bytes(free), f"{100 * free / size:.0f}%"


def _trials(report: AllocationReport) -> Iterator[tuple[str, ...]]:
    first = report.trials[0]
    for trial in report.trials:
        shown = "" if trial is first else _signed(trial.reserved - first.reserved)
        place = "start" if trial.failed == -1 else f"{trial.failed}"
        fits = "" if report.capacity is None else "fits" if trial.failed is None else f"OOM at {place}"
        yield trial.settings, format_bytes(trial.reserved), shown, format_bytes(trial.allocated), fits


def _document(report: AllocationReport) -> dict[str, object]:
    state = {name: value for name, value in vars(report.state).items() if name != "pins"}
    return {
        "simgpu": __version__,
        "snapshot": report.trace.name,
        "gpu": report.trace.gpu,
        "reproduced": {
            "allocations": [report.equal_allocations, report.allocations],
            "segments": [report.equal_segments, report.segments],
            "deviations": [asdict(each) for each in report.deviations],
        },
        "peak_bytes": {"requested": report.requested, "allocated": report.allocated, "reserved": report.reserved},
        "capacity": report.capacity,
        "failure": None if report.failure is None else asdict(report.failure),
        "moment": report.moment,
        "state": state,
        "holders": [asdict(each) for each in report.holders],
        "labels": [asdict(each) for each in report.labels],
        "marked": report.marked,
        "regions": [asdict(each) for each in report.regions],
        "pins": [asdict(each) for each in report.pins],
        "trials": [asdict(each) for each in report.trials],
    }
