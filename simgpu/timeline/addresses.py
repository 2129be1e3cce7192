"""Where blocks and segments of PyTorch's allocator were during a run, and the file `addresses.csv` with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from sys import intern

from simgpu.trace.columns import Column, Table, whole_number


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Where something was in a GPU's memory, and when, in a simulated run.

    gpu: its number. block: the block of the trace that was there; empty for a segment of the allocator. address, bytes:
    the range. start_ns, end_ns: from when and until when, in nanoseconds; what is there at the end of the run ends with
    it.
    """

    gpu: int
    block: str
    address: int
    bytes: int
    start_ns: int
    end_ns: int


def _number(name: str, unit: str) -> Column:
    return Column(name, partial(whole_number, unit=unit), str, stand_in=0)


#: The file's columns. A segment has no block.
ADDRESSES: Table[MemoryRange] = Table(
    "addresses.csv",
    MemoryRange,
    (
        _number("gpu", "GPUs"),
        Column("block", intern, str, blank="", stand_in=""),
        _number("address", "bytes"),
        _number("bytes", "bytes"),
        _number("start_ns", "nanoseconds"),
        _number("end_ns", "nanoseconds"),
    ),
)
