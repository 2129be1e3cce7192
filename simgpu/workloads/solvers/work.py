"""The operations and array accesses of a solver's kernels, counted from the algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from simgpu.trace.model import AccessOrder
from simgpu.workloads.timemodel.operation import OperationKind

#: Bytes of a memory-entry, and of a sector, the smallest part of an entry that can be requested.
ENTRY_BYTES = 128
SECTOR_BYTES = 32
_ALL_SECTORS = ENTRY_BYTES // SECTOR_BYTES
#: Bytes of the L2 cache of a P100 (Buddy Compression, table 2).
L2_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Array:
    """An allocation in device memory: its shape and number format.

    >>> Array((2, 16), "float64").bytes, Array((2, 17), "float64").entries
    (256, 3)
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def entries(self) -> int:
        """Size in entries of 128 bytes."""
        return entries_of(self.bytes)


@dataclass(frozen=True, slots=True)
class Touch:
    """How a kernel accesses the entries of an array; the fields are those of `simgpu.trace.model.Access`."""

    array: str
    write: bool
    visits: int
    order: AccessOrder = AccessOrder.SEQUENTIAL
    sectors: int = _ALL_SECTORS
    stride: int = 1
    first: int = 0

    @property
    def bytes(self) -> int:
        """Bytes read from or written to device memory, in complete sectors."""
        return self.visits * self.sectors * SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One kernel.

    op: name of the operation.
    kind: kind of operation, which determines its fraction of the GPU's bandwidth (`simgpu.workloads.timemodel`).
    flops: floating-point operations.
    results: number of computed values.
    double: whether it computes in double precision.
    touches: its array accesses; at most one read and one write per array.
    """

    op: str
    kind: OperationKind
    flops: int
    results: int
    double: bool
    touches: tuple[Touch, ...]

    @property
    def dram_bytes(self) -> int:
        """Bytes read from and written to device memory."""
        return sum(touch.bytes for touch in self.touches)


def entries_of(size: int) -> int:
    """Number of 128-byte entries for `size` bytes."""
    return -(-size // ENTRY_BYTES)


def once(arrays: Mapping[str, Array], reads: Iterable[str] = (), writes: Iterable[str] = ()) -> tuple[Touch, ...]:
    """Accesses of a kernel that passes once through each array, first the arrays it reads, then those it writes.

    >>> [(touch.array, touch.write, touch.bytes) for touch in once({"x": Array((32,), "float64")}, "x", "x")]
    [('x', False, 256), ('x', True, 256)]
    """
    pairs = [*((name, False) for name in reads), *((name, True) for name in writes)]
    return tuple(Touch(name, write, arrays[name].entries) for name, write in pairs)
