"""Whether what an import keeps still fits into this machine's memory."""

from __future__ import annotations

from pathlib import Path

from simgpu.errors import InputError
from simgpu.units import format_bytes

#: Memory that one kept event takes while a trace is made of it, bytes. Measured as peak memory over kept events on an
#: H100 recording of VGG-13 (see the tests, which hold it to that).
BYTES_PER_EVENT = 2500

_LOOK_EVERY = 4096


class Room:
    """Counts kept events and raises `InputError` before they outgrow the memory that was free at the start."""

    def __init__(self, path: Path, available: int | None = None) -> None:
        self.path = path
        self.available = available_memory() if available is None else available
        self.kept = 0

    def take(self, kept: bool) -> None:
        self.kept += kept
        if kept and self.kept % _LOOK_EVERY == 0 and self.available is not None:
            needed = self.kept * BYTES_PER_EVENT
            if needed > self.available:
                what = (
                    f"is larger than this machine's memory: {self.kept} events needed so far, about "
                    f"{format_bytes(needed)}, with {format_bytes(self.available)} free"
                )
                remedy = "record fewer iterations (schedule=torch.profiler.schedule(..., active=1)) or use more memory"
                raise InputError.single(self.path, "", what, remedy)


def available_memory() -> int | None:
    """Bytes that a new program could use now; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
