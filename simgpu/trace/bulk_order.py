"""Whether a trace certainly has no problem in execution order, found out in bulk.

`simgpu.trace.check_order` looks at each kernel and block, and says what is wrong. Most traces have nothing wrong: this
module sees that without a look at each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel
from simgpu.trace.row_checks import are_none

Ints = NDArray[np.int64]

#: In place of a kernel's position: there is none; after all of them.
_NONE, _END = -1, 2**62


def is_in_order(kernels: Sequence[Kernel], blocks: Sequence[Block], position: Mapping[str, int]) -> bool:
    """Whether every block has a value before it is read, and is used, written by the host and released in an order that
    can be. False also where that is not certain. position: of kernels by id."""
    number = dict(zip(_column(blocks, "id"), range(len(blocks)), strict=True))
    if len(number) < len(blocks):  # two blocks with one id
        return False
    try:
        reads, readers = _accesses(kernels, "reads", number)
        writes, writers = _accesses(kernels, "writes", number)
        hosted_at = _positions(_column(blocks, "host_write"), position)
        released_at = _positions(_column(blocks, "release"), {**position, RELEASED_AT_END: _END})
    except (KeyError, TypeError):  # a name of no block or kernel, or no name
        return False
    persistent = np.array([*map(bool, _column(blocks, "persistent"))], dtype=np.bool_)
    workspace = np.array([*map(partial(is_, BlockKind.WORKSPACE), _column(blocks, "kind"))], dtype=np.bool_)
    written = np.full(len(blocks), _END, dtype=np.int64)
    written[writes[::-1]] = writers[::-1]
    read = np.full(len(blocks), _END, dtype=np.int64)
    read[reads[::-1]] = readers[::-1]
    last = np.full(len(blocks), _NONE, dtype=np.int64)
    last[reads] = readers
    last[writes] = np.maximum(last[writes], writers)
    first, used, hosted = np.minimum(read, written), last >= 0, hosted_at >= 0
    # A kernel reads before it writes.
    early = (written[reads] >= readers) & ~(persistent | hosted)[reads]
    wrong = ~used & ~persistent & ~hosted
    wrong |= hosted & (first < hosted_at)
    wrong |= (released_at >= 0) & (released_at < np.maximum(last, hosted_at))
    scratch = persistent | (used & (first != last)) | ((released_at >= 0) & (released_at != last))
    return not early.any() and not (wrong | (workspace & scratch)).any()


def _column(rows: Sequence[object], name: str) -> list[Any]:
    return list(map(attrgetter(name), rows))


def _accesses(kernels: Sequence[Kernel], name: str, number: Mapping[str, int]) -> tuple[Ints, Ints]:
    """The blocks that kernels name, in order, and the kernels that name them."""
    lists = _column(kernels, name)
    counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    blocks = map(number.__getitem__, chain.from_iterable(lists))
    return np.fromiter(blocks, dtype=np.int64, count=int(counts.sum())), np.repeat(np.arange(len(lists)), counts)


def _positions(names: list[str | None], position: Mapping[str, int]) -> Ints:
    """The positions of named kernels."""
    if are_none(names):
        return np.full(len(names), _NONE, dtype=np.int64)
    known: dict[str | None, int] = {None: _NONE}
    known.update(position)
    return np.fromiter(map(known.__getitem__, names), dtype=np.int64, count=len(names))
