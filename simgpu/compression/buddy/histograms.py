"""Compressibility of a trace's blocks, from its table of measured sizes (compressibility.csv)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from simgpu.compression.buddy.snapshots import Observed, Snapshots
from simgpu.compression.buddy.stored import FILE as STORED
from simgpu.compression.buddy.targets import ProfiledAllocation
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES
from simgpu.errors import InputError, Problem
from simgpu.trace.entries import apportioned
from simgpu.trace.model import CompressedSize, Trace
from simgpu.units import format_bytes

#: Rows with this codec, this layout and entries of 128 bytes are histograms of memory-entries.
CODEC, LAYOUT = "bpc", "plain"
_FILE = "compressibility.csv"


def trace_histograms(trace: Trace) -> dict[str, dict[int, tuple[int, ...]]]:
    """For each recorded block, in the trace's order: by epoch, the number of entries of each size.

    Raises `InputError` with every size that is not one of `ENTRY_SIZES`, and every block and epoch whose number of
    entries does not match its bytes.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> rows = [CompressedSize("x1", 0, "bpc", "plain", 128, size, entries) for size, entries in ((0, 2), (128, 1))]
    >>> trace_histograms(replace(chain([1], [1], [300]), compressibility=tuple(rows)))
    {'x1': {0: (2, 0, 0, 0, 0, 0, 0, 1)}}
    """
    rows = [row for row in trace.compressibility if (row.codec, row.layout, row.entry_bytes) == (CODEC, LAYOUT, 128)]
    problems = [_wrong_size(row) for row in rows if row.bytes not in ENTRY_SIZES]
    counted = _counted(row for row in rows if row.bytes in ENTRY_SIZES)
    sizes = {block.id: block.bytes for block in trace.blocks if block.id in counted}
    if not problems:
        problems = [
            Problem(_FILE, f"block {name}, epoch {epoch}", what, "count each entry of 128 bytes once")
            for name, size in sizes.items()
            for epoch, counts in counted[name].items()
            if (what := _wrong_sum(size, sum(counts)))
        ]
    if problems:
        raise InputError(problems)
    return {name: {epoch: tuple(counted[name][epoch]) for epoch in sorted(counted[name])} for name in sizes}


def trace_allocations(trace: Trace) -> tuple[ProfiledAllocation, ...]:
    """Every block of a trace as an allocation, in the trace's order; a block without recorded sizes has no snapshots.

    Raises as `trace_histograms`.

    >>> from simgpu.trace.chain import chain
    >>> [each.snapshots for each in trace_allocations(chain([1], [1], [300]))]
    [(), (), ()]
    """
    known = trace_histograms(trace)
    return tuple(
        ProfiledAllocation(block.id, block.bytes, tuple(known.get(block.id, {}).values())) for block in trace.blocks
    )


def _counted(rows: Iterable[CompressedSize]) -> Mapping[str, dict[int, list[int]]]:
    result: dict[str, dict[int, list[int]]] = {}
    for row in rows:
        counts = result.setdefault(row.block, {}).setdefault(row.epoch, [0] * len(ENTRY_SIZES))
        counts[ENTRY_SIZES.index(row.bytes)] += row.entries
    return result


def _wrong_size(row: CompressedSize) -> Problem:
    what = f"{row.bytes} bytes is not an entry size of {CODEC}"
    return Problem(_FILE, f"block {row.block}, epoch {row.epoch}", what, f"known: {', '.join(map(str, ENTRY_SIZES))}")


def _wrong_sum(size: int, counted: int) -> str:
    entries = -(-size // ENTRY_BYTES)
    return "" if counted == entries else f"counts {counted} entries, its {size} bytes have {entries}"


def trace_snapshots(trace: Trace, stored: Snapshots | None = None) -> Snapshots:
    """Snapshots of a trace's blocks: the stored entries if given, else the epochs of its table.

    stored: the size of each entry at some times of the recording, or of a smaller run from which the trace's table was
    scaled. Raises `InputError` for a trace with neither, for stored entries that do not match its blocks, and like
    `trace_histograms`.

    >>> from simgpu.io.shipped import find
    >>> from simgpu.trace.folder import read_trace
    >>> trace_snapshots(read_trace(find("traces", "vgg16-b128-v100")))
    Traceback (most recent call last):
    simgpu.errors.InputError: compressibility.csv: has no sizes of memory-entries; ...
    """
    if stored is not None:
        _check_stored(trace, stored)
        result = replace(stored, name=trace.name, about=stored.about or trace.info.provenance)
    else:
        known = trace_histograms(trace)
        if not known:
            what = "has no sizes of memory-entries"
            raise InputError.single(_FILE, "", what, f"profile arrays, or a trace with rows of codec {CODEC}")
        epochs = sorted({epoch for counts in known.values() for epoch in counts})
        sizes = {block.id: block.bytes for block in trace.blocks}
        observed = tuple(
            Observed(
                ProfiledAllocation(name, sizes[name], tuple(counts.values())), tuple(map(epochs.index, counts)), None
            )
            for name, counts in known.items()
        )
        labels = tuple(f"epoch {epoch}" for epoch in epochs)
        result = Snapshots(trace.name, labels, observed, trace.info.provenance)
    measured = {allocation.name for allocation in result.allocations}
    rest = [block.bytes for block in trace.blocks if block.bytes and block.id not in measured]
    note = f"{len(rest)} of the trace's {len(trace.blocks)} blocks are not measured ({format_bytes(sum(rest))})"
    full_bytes = sum(block.bytes for block in trace.blocks if block.id in measured)
    smaller = f"entries are from a smaller run: {format_bytes(result.bytes)}, in the trace {format_bytes(full_bytes)}"
    return replace(result, notes=(*([smaller] if result.bytes != full_bytes else []), *([note] if rest else [])))


def _fills(allocation: ProfiledAllocation, size: int, known: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether scaling the allocation's snapshots to `size` bytes gives the histograms `known` of the trace's block."""
    entries = -(-size // ENTRY_BYTES)
    return [tuple(apportioned(counts, entries)) for counts in allocation.snapshots] == list(known.values())


def _check_stored(trace: Trace, stored: Snapshots) -> None:
    sizes = {block.id: block.bytes for block in trace.blocks}
    known = trace_histograms(trace)
    problems = []
    for allocation in stored.allocations:
        size = sizes.get(allocation.name)
        if size is None:
            what = "is not a block of this trace"
        elif size != allocation.bytes and not _fills(allocation, size, known.get(allocation.name, {})):
            what = f"has {allocation.bytes} bytes, but {size} bytes in blocks.csv"
        else:
            continue
        problems.append(Problem(STORED, f"allocation {allocation.name}", what, "put it next to its own trace"))
    if problems:
        raise InputError(problems)
