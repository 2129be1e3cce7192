"""Modelled sizes of the memory-entries of feature maps, from their sparsity alone.

Synthetic feature maps, whose zeros cluster as those of a trained network do (`simgpu.compression.codecs.pattern_maps`),
were cut into memory-entries and compressed by bit-plane compression; ``entry_patterns.yaml`` contains the result.
Between its points, shares are interpolated linearly over sparsity and over the logarithm of a plane's side. The maps
represent results of a ReLU in single precision, in NCHW. Sizes are **modelled**: the pattern was fitted to other
codecs.

``python -m simgpu.compression.codecs.entry_patterns`` prints the table. Imports pydantic, so import it lazily.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import log2, sqrt
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field

from simgpu.compression.codecs.entries import ENTRY_SIZES, histogram, size_classes
from simgpu.compression.codecs.pattern_maps import Pattern, field_of
from simgpu.compression.codecs.patterns import load_patterns
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.trace.entries import apportioned, entries_of, is_of_entries, rows_of
from simgpu.trace.model import Block, BlockKind, CompressedSize, Phase, SparsitySample, Trace
from simgpu.workloads.compressibility.roles import roles_of

SPARSITY = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
SIDES = (1, 2, 4, 7, 14, 28, 56, 112, 224)
#: Synthetic maps: number of channels, and minimum number of images, of rows of a plane, and of elements.
_CHANNELS, _IMAGES, _ROWS, _ELEMENTS = 128, 2, 16, 2**19
_DIGITS = 4


def table() -> str:
    """The table as YAML text; byte-identical to the shipped one with the version of NumPy that it names."""
    parts = {
        "schema": SCHEMA,
        "created_by": {"numpy": np.__version__, "pattern": "that of patterns.yaml"},
        "sparsity": list(SPARSITY),
        "sides": list(SIDES),
        "shares": [shares_of_side(side) for side in SIDES],
    }
    return yaml.safe_dump(parts, sort_keys=False, width=120, default_flow_style=None)


def shares_of_side(side: int) -> list[list[float]]:
    """For each of `SPARSITY`, the share of entries of each size, in planes of `side` x `side`."""
    numbers = load_patterns().pattern
    rows = min(side, _ROWS)
    images = max(_IMAGES, _ELEMENTS // (_CHANNELS * rows * side))
    field = field_of(Pattern(numbers.channels, numbers.length, numbers.gain), (images, _CHANNELS, rows, side), side, 0)
    return [_shares(field.maps(sparsity)) for sparsity in SPARSITY]


def _shares(maps: NDArray[Any]) -> list[float]:
    counts = histogram(size_classes(maps))
    return [round(count / sum(counts), _DIGITS) for count in counts]


if __name__ == "__main__":
    sys.stdout.write(table())


SCHEMA = "simgpu.entry-patterns/2"
TABLE = Path(__file__).with_name("entry_patterns.yaml")

Text = Annotated[str, Field(min_length=1)]


class EntryTable(FileModel):
    """The table. shares: by side and sparsity, the share of entries of each of the eight sizes."""

    schema_: Literal["simgpu.entry-patterns/2"] = Field(alias="schema")
    created_by: dict[str, Text]
    sparsity: tuple[float, ...] = Field(strict=False)
    sides: tuple[int, ...] = Field(strict=False)
    shares: list[list[list[float]]]


@cache
def load_entry_patterns(path: Path = TABLE) -> EntryTable:
    """The shipped table, or that of another file. Raises `InputError` for an invalid file."""
    document = read_yaml_mapping(path, SCHEMA)
    return validate(EntryTable, document.values, lambda place: (document.file, document.place(place)))


def entry_shares(sparsity: float, shape: Sequence[int] | None) -> tuple[float, ...]:
    """The share of each of the eight sizes among the entries of a feature map with this sparsity.

    shape: axes N, C, H, W; without exactly four axes, or if None, values have no neighbours in a plane.

    >>> shares = entry_shares(1.0, (64, 64, 28, 28))
    >>> shares[0], sum(shares)
    (1.0, 1.0)
    """
    table = load_entry_patterns()
    side = log2(sqrt(shape[2] * shape[3])) if shape is not None and len(shape) == 4 and min(shape) > 0 else 0.0
    by_side = [_between(table.sparsity, rows, sparsity) for rows in table.shares]
    return tuple(_between([log2(known) for known in table.sides], by_side, side))


def with_sparse_entries(trace: Trace) -> Trace:
    """The trace with a histogram of entries for each block whose zeros are known; it replaces an existing one.

    These blocks are the feature maps in `Trace.sparsity`, and the gradients of ReLU inputs, which are zero where the
    ReLU's result is. There are rows for each epoch with a known sparsity.

    >>> from simgpu import load_trace
    >>> from simgpu.workloads.sparsity.generator import with_sparsity
    >>> vgg = with_sparse_entries(with_sparsity(load_trace("vgg11-cifar-cpu"), epochs=2))
    >>> sorted({row.epoch for row in vgg.compressibility})
    [0, 1]
    """
    known: dict[str, list[SparsitySample]] = {}
    for sample in trace.sparsity:
        known.setdefault(sample.block, []).append(sample)
    sources = {block: block for block in known} | _gradients(trace, known)
    blocks = trace.block_by_id
    rows = [
        row
        for block, source in sources.items()
        for sample in known[source]
        for row in _rows(blocks[block], sample.epoch, entry_shares(sample.sparsity, blocks[block].shape))
    ]
    retained = (row for row in trace.compressibility if not (is_of_entries(row) and row.block in sources))
    description = (
        "Entries of sparse feature maps, and of gradients through ReLUs, are modelled by their share of zeros."
    )
    info = replace(trace.info, notes=f"{trace.info.notes} {description}".strip())
    return replace(trace, info=info, compressibility=(*retained, *rows))


def _gradients(trace: Trace, known: dict[str, list[SparsitySample]]) -> dict[str, str]:
    """For each gradient whose last writer is a ReLU's backward, the feature map with the same zeros."""
    last: dict[str, str] = {}
    roles = roles_of(trace)
    blocks = trace.block_by_id
    for kernel in trace.kernels:
        if kernel.phase is Phase.FORWARD:
            continue
        maps = [name for name in kernel.reads if name in known]
        for name in kernel.writes:
            if blocks[name].kind is BlockKind.GRADIENT:
                last.pop(name, None)
                if maps and roles.get(name, "").startswith("gradient.relu"):
                    last[name] = maps[-1]
    return last


def _rows(block: Block, epoch: int, shares: Sequence[float]) -> Iterator[CompressedSize]:
    parts = apportioned(shares, entries_of(block))
    return rows_of(block.id, epoch, dict(zip(ENTRY_SIZES, parts, strict=True)))


def _between(points: Sequence[float], values: Sequence[Sequence[float]], at: float) -> list[float]:
    """Linear interpolation between the two points around `at`; constant beyond the ends."""
    right = bisect_right(points, at)
    if right in (0, len(points)):
        return list(values[max(right - 1, 0)])
    share = (at - points[right - 1]) / (points[right] - points[right - 1])
    return [one * (1 - share) + other * share for one, other in zip(values[right - 1], values[right], strict=True)]
