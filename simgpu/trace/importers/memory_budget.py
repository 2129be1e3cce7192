"""Whether what an import keeps of a recording that it streams still fits into this machine's memory.

Does not live here: how much memory is free, and files that are read whole (`simgpu.trace.free_memory`).
"""

from __future__ import annotations

from pathlib import Path

from simgpu.errors import InputError
from simgpu.trace.free_memory import available_memory
from simgpu.units import format_bytes

#: Memory that an event of a profile takes, all that is made of it included, and a node of an execution trace. Measured
#: on a VGG-13 iteration on an H100: 585 and 1350 bytes at the peak of Python's own count (tests hold them to that).
BYTES_PER_EVENT = 600
BYTES_PER_NODE = 1400

_LOOK_EVERY = 4096


class MemoryBudget:
    """Counts what is kept and raises `InputError` before it outgrows the memory that was free at the start.

    available: bytes that may be used; left out, what the machine has free now.

    >>> budget = MemoryBudget(Path("profile.json"), BYTES_PER_EVENT, available=1_000_000)
    >>> for _ in range(5000):
    ...     budget.take()
    Traceback (most recent call last):
    simgpu.errors.InputError: profile.json: is larger than this machine's memory: ...
    """

    def __init__(self, path: Path, each: int, available: int | None = None) -> None:
        self.path = path
        self.each = each
        self.available = available_memory() if available is None else available
        self.kept = 0

    def give_back(self, count: int) -> None:
        """So many of those that were kept are kept no longer."""
        self.kept -= count

    def take(self) -> None:
        """Keep one more."""
        self.kept += 1
        if self.kept % _LOOK_EVERY == 0 and self.available is not None and self.kept * self.each > self.available:
            what = (
                f"is larger than this machine's memory: {self.kept} events needed so far, about "
                f"{format_bytes(self.kept * self.each)}, with {format_bytes(self.available)} free"
            )
            remedy = "record fewer iterations (schedule=torch.profiler.schedule(..., active=1)) or use more memory"
            raise InputError.single(self.path, "", what, remedy)
