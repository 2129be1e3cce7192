"""What a kernel of a solver computes and how it goes through its arrays, counted from the algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from simgpu.trace.model import AccessOrder
from simgpu.workloads.timemodel.operation import OperationKind

#: Bytes that device memory and caches treat as one entry, and the sectors of it that can be asked for alone.
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
        """Its size."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def entries(self) -> int:
        """Entries of 128 bytes that it takes."""
        return entries_of(self.bytes)


@dataclass(frozen=True, slots=True)
class Touch:
    """How a kernel goes through an array, in the words of `simgpu.trace.model.Access`: visits to entries of it."""

    array: str
    write: bool
    visits: int
    order: AccessOrder = AccessOrder.SEQUENTIAL
    sectors: int = _ALL_SECTORS
    stride: int = 1
    first: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that it moves to or from device memory: whole sectors."""
        return self.visits * self.sectors * SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One kernel: its operation, floating-point operations, how it goes through arrays, and how many values it makes.

    kind: at which share of the GPU's bandwidth it runs (`simgpu.workloads.timemodel`). double: whether it computes in
    double precision. An array is named at most once for reading and once for writing.
    """

    op: str
    kind: OperationKind
    flops: int
    results: int
    double: bool
    touches: tuple[Touch, ...]

    @property
    def dram_bytes(self) -> int:
        """Bytes to and from device memory."""
        return sum(touch.bytes for touch in self.touches)


def entries_of(size: int) -> int:
    """Entries of 128 bytes that so many bytes take."""
    return -(-size // ENTRY_BYTES)


def once(arrays: Mapping[str, Array], reads: Iterable[str] = (), writes: Iterable[str] = ()) -> tuple[Touch, ...]:
    """Arrays that a kernel goes through once from end to end, those it reads first.

    >>> [(touch.array, touch.write, touch.bytes) for touch in once({"x": Array((32,), "float64")}, "x", "x")]
    [('x', False, 256), ('x', True, 256)]
    """
    pairs = [*((name, False) for name in reads), *((name, True) for name in writes)]
    return tuple(Touch(name, write, arrays[name].entries) for name, write in pairs)
