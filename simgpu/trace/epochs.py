"""Sparsity and measured compressed sizes at one epoch of training."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from simgpu.trace.model import CompressedSize, SparsitySample, Trace

Row = TypeVar("Row", SparsitySample, CompressedSize)


def epochs_of(trace: Trace) -> tuple[int, ...]:
    """The epochs for which the trace has sparsity or measured sizes, ascending.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5], [7], [100])
    >>> epochs_of(replace(trace, sparsity=(SparsitySample("x1", 4, 0.5), SparsitySample("x1", 0, 0.4))))
    (0, 4)
    """
    return tuple(sorted({row.epoch for row in trace.sparsity} | {row.epoch for row in trace.compressibility}))


def sparsity_at(trace: Trace, epoch: int) -> dict[str, float]:
    """Share of zeros by block: of the last sample up to that epoch, else of the first one after it.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> samples = (SparsitySample("x1", 0, 0.4), SparsitySample("x1", 10, 0.6))
    >>> sparsity_at(replace(chain([5], [7], [100]), sparsity=samples), epoch=9)
    {'x1': 0.4}
    """
    return {block: rows[0].sparsity for block, rows in _holding(trace.sparsity, epoch).items()}


def sizes_at(trace: Trace, epoch: int) -> dict[str, tuple[CompressedSize, ...]]:
    """Measured compressed sizes by block, those of each codec chosen by epoch as sparsity is.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> rows = [CompressedSize("x1", 0, "zvc", "plain", 100, 90, 1)]
    >>> rows += [CompressedSize("x1", time, "bpc", "plain", 128, 64, 1) for time in (0, 1)]
    >>> sizes = sizes_at(replace(chain([5], [7], [100]), compressibility=tuple(rows)), epoch=1)
    >>> [(row.codec, row.epoch) for row in sizes["x1"]]
    [('zvc', 0), ('bpc', 1)]
    """
    held: dict[str, tuple[CompressedSize, ...]] = {}
    for codec in dict.fromkeys(row.codec for row in trace.compressibility):
        of_codec = (row for row in trace.compressibility if row.codec == codec)
        for block, rows in _holding(of_codec, epoch).items():
            held[block] = (*held.get(block, ()), *rows)
    return held


def nearest_epoch(known: Collection[int], epoch: int) -> int:
    """The known epoch that represents another: the last known one up to it, else the first after it.

    >>> nearest_epoch([0, 4, 8], 7), nearest_epoch([2, 4], 0)
    (4, 2)
    """
    return max((each for each in known if each <= epoch), default=min(known))


def _holding(rows: Iterable[Row], epoch: int) -> dict[str, list[Row]]:
    """By block, the rows of the epoch that represents `epoch`."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row.block, []).append(row)
    held: dict[str, list[Row]] = {}
    for block, result in of.items():
        chosen = nearest_epoch({row.epoch for row in result}, epoch)
        held[block] = [row for row in result if row.epoch == chosen]
    return held
