"""Whether what an import keeps of a recording that it streams still fits into this machine's memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simgpu.errors import InputError
from simgpu.io.free_memory import available_memory
from simgpu.units import format_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """What a recording is made of. plural: as messages call it. bytes: of memory that one takes, all that is made of
    it included. shorter: how to get a recording with fewer.
    """

    plural: str
    bytes: int
    shorter: str


_LOOK_EVERY = 4096


class MemoryBudget:
    """Counts what is kept and raises `InputError` before it outgrows the memory that was free at the start.

    available: bytes that may be used; left out, what the machine has free now.

    >>> budget = MemoryBudget(Path("profile.json"), Piece("events", 600, "record one iteration"), available=1_000_000)
    >>> for _ in range(5000):
    ...     budget.take()
    Traceback (most recent call last):
    simgpu.errors.InputError: profile.json: is larger than this machine's memory: 4096 events needed so far, ...
    """

    def __init__(self, path: Path, piece: Piece, available: int | None = None) -> None:
        self.path = path
        self.piece = piece
        self.available = available_memory() if available is None else available
        self.kept = 0

    def give_back(self, count: int) -> None:
        """So many of those that were kept are kept no longer."""
        self.kept -= count

    def take(self) -> None:
        """Keep one more."""
        self.kept += 1
        takes = self.kept * self.piece.bytes
        if self.kept % _LOOK_EVERY == 0 and self.available is not None and takes > self.available:
            what = (
                f"is larger than this machine's memory: {self.kept} {self.piece.plural} needed so far, about "
                f"{format_bytes(takes)}, with {format_bytes(self.available)} free"
            )
            raise InputError.single(self.path, "", what, f"{self.piece.shorter}, or use more memory")
