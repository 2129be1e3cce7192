"""Whether a program's blocks find room on a device and its host, told before anything is allocated."""

from __future__ import annotations

import os
import re
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.units import format_bytes
from simgpu.validation.devices import Device

_MEMORY = Path("/proc/meminfo")
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def check_room(device: Device, needed: int, pinned: int) -> int:
    """Bytes that are free on the device.

    needed: bytes of device memory; pinned: of host memory. Raises `InputError` where there is less of either; on a CPU
    both are the same memory.
    """
    host = free_on_host()
    free = free_on(device)
    problems = []
    if device.kind == "cpu" and needed + pinned > host:
        what = f"{format_bytes(needed)} stand for device memory, {format_bytes(pinned)} for the host's"
        problems.append(f"{what}, and this machine has {format_bytes(host)} free for both")
    elif device.kind != "cpu":
        if needed > free:
            problems.append(f"its blocks take {format_bytes(needed)}, and {device.name} has {format_bytes(free)} free")
        if pinned > host:
            what = f"its blocks take {format_bytes(pinned)} of host memory"
            problems.append(f"{what}, and this machine has {format_bytes(host)} free")
    if problems:
        remedy = "simulate it with a smaller budget or a smaller batch"
        raise InputError([Problem("program", "memory", what, remedy) for what in problems])
    return free


def free_on(device: Device) -> int:
    """Bytes of device memory that nobody has taken; on a CPU what is free on the host."""
    if device.kind == "cpu":
        return free_on_host()
    import torch

    torch.cuda.empty_cache()  # else what the link was measured with counts as taken
    free: int = torch.cuda.mem_get_info(device.torch_device)[0]
    return free


def free_on_host(told: Path = _MEMORY) -> int:
    """Bytes that a program can have without swapping, as Linux tells; elsewhere all that the machine has."""
    found = _AVAILABLE.search(told.read_text(encoding="utf-8")) if told.exists() else None
    if found is not None:
        return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
