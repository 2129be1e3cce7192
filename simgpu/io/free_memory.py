"""How much memory this process may still use, and refusing input files that would not fit into it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from simgpu.errors import InputError
from simgpu.units import format_bytes

_PROC = Path("/proc")
_GROUP = Path("/sys/fs/cgroup")


def require_memory(path: Path, files: Iterable[Path], factor: float) -> None:
    """Raises `InputError` when files that are read at once would not fit into the memory that is free now.

    path: what the user named. files: those that are read for it; a missing one counts nothing, its reader
    reports it. factor: bytes of memory that a byte of these files takes at the peak of reading.

    >>> require_memory(Path("run.log"), [], 14)
    """
    size = sum(_size(file) for file in files)
    free = available_memory()
    if free is None or size * factor <= free:
        return
    raise too_large(path, size, factor, free)


def too_large(path: Path, size: int, factor: float, free: int) -> InputError:
    """The error for a file of at least `size` bytes that needs `factor` times as much memory."""
    what = (
        f"is larger than this machine's memory: reading its {format_bytes(size)} takes about "
        f"{format_bytes(int(size * factor))}, with {format_bytes(free)} free"
    )
    remedy = "give a shorter one, such as a single iteration, or a machine or a limit with more memory"
    return InputError.single(path, "", what, remedy)


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0


def available_memory() -> int | None:
    """Bytes that this process could still use: the least that the machine, its control group and its own limits leave.

    None if the system does not report it.
    """
    return min([*_of_machine(), *_of_group(), *_of_process()], default=None)


def _of_machine() -> list[int]:
    free = _kilobytes(_PROC / "meminfo").get("MemAvailable")
    return [] if free is None else [free]


def _of_group() -> list[int]:
    """What is left below the limit of a container; nothing where it has none.

    Cached files count as used there, although the system frees them on demand.
    """
    try:
        limit, used = ((_GROUP / name).read_text("ascii").strip() for name in ("memory.max", "memory.current"))
        rows = [line.split() for line in (_GROUP / "memory.stat").read_text("ascii").splitlines()]
    except OSError:
        return []
    if not limit.isdecimal():
        return []
    cached = sum(int(size) for name, size in rows if name in ("active_file", "inactive_file"))
    return [max(int(limit) - max(int(used) - cached, 0), 0)]


def _of_process() -> list[int]:
    """What is left below the limits of a shell's ``ulimit -v`` and ``-d``; nothing where there are none."""
    if sys.platform == "win32":
        return []
    import resource

    taken = _kilobytes(_PROC / "self" / "status")
    left = []
    for limited, counted in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        limit, _ = resource.getrlimit(limited)
        if limit != resource.RLIM_INFINITY:
            left.append(max(limit - taken.get(counted, 0), 0))
    return left


def _kilobytes(file: Path) -> dict[str, int]:
    """The sizes in one of the system's tables of ``name: number kB``, in bytes; none where there is no such table."""
    try:
        rows = [line.split() for line in file.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}
