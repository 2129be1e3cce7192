"""Whether a trace certainly has no problem in execution order, found out in bulk.

`simgpu.trace.check_order` looks at each kernel and block, and says what is wrong. Most traces have nothing wrong: this
module sees that without a look at each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter, is_, is_not
from typing import Any

import numpy as np

from simgpu.trace.accesses import AccessColumns, Ints, first_of
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel

#: In place of a kernel's position: there is none; after all of them.
_NONE, _END = -1, 2**62


def ordered_accesses(
    kernels: Sequence[Kernel], blocks: Sequence[Block], position: Mapping[str, int]
) -> AccessColumns | None:
    """The accesses of a trace in which every block has a value before it is read, and is used, written by the host and
    released in an order that can be; None also where that is not certain. position: of kernels by id."""
    try:
        accesses = AccessColumns.of(kernels, blocks)
        hosted_at = _positions(_column(blocks, "host_write"), position)
        released_at = _positions(_column(blocks, "release"), {**position, RELEASED_AT_END: _END})
    except (KeyError, TypeError, ValueError):  # a name of no block or kernel, or no name
        return None
    return accesses if _is_in_order(blocks, accesses, hosted_at, released_at) else None


def _is_in_order(blocks: Sequence[Block], accesses: AccessColumns, hosted_at: Ints, released_at: Ints) -> bool:
    """hosted_at[b]: the kernel before which the host writes block b. released_at[b]: the one after which it is
    released."""
    reads, readers, writes, writers = accesses.reads, accesses.readers, accesses.writes, accesses.writers
    persistent = np.array([*map(bool, _column(blocks, "persistent"))], dtype=np.bool_)
    workspace = np.array([*map(partial(is_, BlockKind.WORKSPACE), _column(blocks, "kind"))], dtype=np.bool_)
    written = first_of(writes, writers, len(blocks), _END)
    read = first_of(reads, readers, len(blocks), _END)
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


def _positions(names: list[str | None], position: Mapping[str, int]) -> Ints:
    """The positions of named kernels."""
    if not any(map(partial(is_not, None), names)):
        return np.full(len(names), _NONE, dtype=np.int64)
    known: dict[str | None, int] = {None: _NONE}
    known.update(position)
    return np.fromiter(map(known.__getitem__, names), dtype=np.int64, count=len(names))
