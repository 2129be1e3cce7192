"""Under which conditions a device is measured, and all cases are run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simgpu.validation.devices import Device

#: Numbers of parameters of glibc's mallopt (malloc.h), and what they are without anybody's doing.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_USUAL = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 128 * 2**10}


@contextmanager
def conditions(device: Device) -> Iterator[dict[str, str]]:
    """Yields the settings that decide how fast the device is, by name, as `MeasuredMachine.settings` has them.

    On a GPU they are PyTorch's, as they are. On a CPU, PyTorch's operators leave one core to the threads that stand for
    copy engines; and memory that is freed stays with the process, as it does in PyTorch's allocator for GPUs: else the
    system would be asked for it again in every step, which takes longer the more memory a method needs. Both are undone
    at the end.
    """
    if device.kind != "cpu":
        yield _of_pytorch()
        return
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, _cores() - 1)))
    keeps = _tell_malloc(_KEEPING)
    try:
        yield {"threads": str(torch.get_num_threads()), "freed memory": "kept" if keeps else "as the system has it"}
    finally:
        torch.set_num_threads(before)
        if keeps:
            _tell_malloc(_USUAL)
            give_back_freed()


def give_back_freed() -> None:
    """What was freed goes back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _of_pytorch() -> dict[str, str]:
    return {
        "products of float32": torch.get_float32_matmul_precision(),
        "TF32 in convolutions": _on(torch.backends.cudnn.allow_tf32),
        "cuDNN benchmark": _on(torch.backends.cudnn.benchmark),
        "PyTorch's profiler": "loaded before anything is timed",
        "deterministic algorithms": _on(torch.are_deterministic_algorithms_enabled()),
    }


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _cores() -> int:
    """Those this program may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tell_malloc(values: dict[int, int]) -> bool:
    """Whether the C library understood: glibc's does."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in values.items())
