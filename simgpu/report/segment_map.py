"""The data of the page's segment map: what is where in a GPU's memory, as compact lists of integers.

The page stays small however long a run is: of more than `MOST` blocks the largest in bytes times time are shown, those
of the last iteration first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simgpu.analysis.addresses import KIND_COLOURS, compacted
from simgpu.timeline.addresses import MemoryRange
from simgpu.timeline.model import Column
from simgpu.trace.model import Block

#: The most blocks, and the most segments, that a run's map shows; together about 600 kB of the page.
MOST = 20_000


def segment_maps(
    ranges: Iterable[MemoryRange], blocks: Sequence[Block], last: tuple[int, int], most: int = MOST
) -> list[dict[str, Any]]:
    """A map for each GPU, in order. last: begin and end (ns) of the last iteration."""
    by_gpu: dict[int, list[MemoryRange]] = {}
    for each in ranges:
        by_gpu.setdefault(each.gpu, []).append(each)
    number = {block.id: place for place, block in enumerate(blocks)}
    return [_map(by_gpu[gpu], number, last, most) for gpu in sorted(by_gpu)]


def map_colours() -> dict[str, str]:
    """Colours by what blocks hold, as the page names it."""
    return {kind.value.replace("_", " "): colour for kind, colour in KIND_COLOURS.items()}


def _map(ranges: Sequence[MemoryRange], number: Mapping[str, int], last: tuple[int, int], most: int) -> dict[str, Any]:
    segments = [each for each in ranges if not each.block]
    blocks = [each for each in ranges if each.block]
    memory = compacted((each.address, each.address + each.bytes) for each in segments)
    shown = _largest(blocks, last, most)
    return {
        "total": memory.total,
        "segments": _columns(_largest(segments, last, most), memory.places),
        "blocks": {**_columns(shown, memory.places), "block": [number.get(each.block, -1) for each in shown]},
        "omitted": len(blocks) - len(shown),
    }


def _largest(ranges: Sequence[MemoryRange], last: tuple[int, int], most: int) -> list[MemoryRange]:
    """At most `most` ranges, in their order: those of the last iteration first, then by bytes times time."""
    if len(ranges) <= most:
        return list(ranges)

    def rank(at: int) -> tuple[bool, int, int]:
        each = ranges[at]
        elsewhere = each.end_ns <= last[0] or each.start_ns >= last[1]
        return elsewhere, -each.bytes * (each.end_ns - each.start_ns), at

    return [ranges[at] for at in sorted(sorted(range(len(ranges)), key=rank)[:most])]


def _columns(ranges: Sequence[MemoryRange], places: Any) -> dict[str, list[int]]:
    """Begins as steps from one to the next; lengths in time, places without gaps, and bytes."""
    starts: Column = np.array([each.start_ns for each in ranges], dtype=np.int64)
    return {
        "start": np.diff(starts, prepend=0).tolist(),
        "length": [each.end_ns - each.start_ns for each in ranges],
        "low": places([each.address for each in ranges]).tolist(),
        "bytes": [each.bytes for each in ranges],
    }
