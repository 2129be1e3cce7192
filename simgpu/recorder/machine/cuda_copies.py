"""Times copies on a CUDA device with PyTorch, and reads the properties that the device reports."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from simgpu.errors import InputError
from simgpu.recorder.clocks import Clock, CudaClock
from simgpu.recorder.machine.bandwidth import CopyDirection, GpuProperties

_WARM_UP = 3
#: The driver's number of the attribute CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT.
_ASYNC_ENGINE_COUNT = 40
_REMEDY = (
    "run it on the machine with the GPU, with a PyTorch built for CUDA; "
    "or write the node file yourself from the data sheet: see configs/README.md"
)


@dataclass(frozen=True)
class TorchCopies:
    """Timed copies between a device and host memory, which is pinned if the device is a GPU, unless it is pageable."""

    device: torch.device
    clock: Clock

    def copy_times(self, way: CopyDirection, size: int, repetitions: int) -> list[int]:
        """Returns the duration of each copy in nanoseconds; raises `InputError` as `memories`."""
        source, target = self.memories(way, size)
        pairs = [self.copy(source, target) for _ in range(_WARM_UP + repetitions)]
        return self.clock.durations(pairs)[_WARM_UP:]

    def memories(self, way: CopyDirection, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns source and target of copies of `size` bytes.

        Raises `InputError` if memory of that size cannot be allocated.
        """
        try:
            source = self._memory(size, way, (CopyDirection.IN, CopyDirection.PAGEABLE_IN))
            target = self._memory(size, way, (CopyDirection.OUT, CopyDirection.PAGEABLE_OUT))
        except RuntimeError as error:  # PyTorch's out-of-memory error, on host or device
            reason = str(error).partition("\n")[0]
            what = f"out of memory for a copy of {size} bytes, {way}: {reason}"
            raise InputError.single("record_node", "sizes", what, "measure smaller sizes with --sizes") from None
        return source, target

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> tuple[object, object]:
        """Copies without waiting for the device; returns the clock's marks before and after."""
        begin = self.clock.mark()
        target.copy_(source, non_blocking=True)
        return begin, self.clock.mark()

    def _memory(self, size: int, way: CopyDirection, on_host: tuple[CopyDirection, CopyDirection]) -> torch.Tensor:
        pinned, pageable = on_host
        if way is pinned:
            return torch.zeros(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        if way is pageable:
            return torch.ones(size, dtype=torch.uint8)  # zeros would be pages that the system has not allocated yet
        return torch.zeros(size, dtype=torch.uint8, device=self.device)


@dataclass(frozen=True)
class TorchGroup:
    """Copies of several devices at the same time, each direction in a stream of its own.

    stream: makes a new stream of a device the current one.
    """

    devices: Sequence[TorchCopies]
    stream: Callable[[torch.device], AbstractContextManager[object]]

    @property
    def count(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def times_together(
        self, gpus: Sequence[int], directions: Sequence[CopyDirection], size: int, copies: int
    ) -> list[list[int]]:
        """Returns the nanoseconds of consecutive copies, by GPU and then by direction; raises `InputError` as
        `TorchCopies.memories`."""
        streams = [
            (device, self.stream(device.device), device.memories(way, size))
            for device in (self.devices[gpu] for gpu in gpus)
            for way in directions
        ]
        pairs: list[list[tuple[object, object]]] = [[] for _ in streams]
        for _ in range(copies):  # one copy of each stream after the other, so that all of them begin at the same time
            for marks, (device, stream, memories) in zip(pairs, streams, strict=True):
                with stream:
                    marks.append(device.copy(*memories))
        return [device.clock.durations(marks) for marks, (device, *_) in zip(pairs, streams, strict=True)]


def open_group(name: str) -> TorchGroup:
    """Returns the CUDA devices to measure together: for ``cuda`` the first and all of its kind, for ``cuda:N`` one.

    Raises `InputError` as `open_device`.
    """
    first, count = _index_and_count(name)
    alike = [first] if ":" in name else [index for index in range(count) if _kind(index) == _kind(first)]
    devices = [torch.device("cuda", index) for index in alike]

    def synchronize() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    clock = CudaClock(synchronize=synchronize)
    return TorchGroup(
        [TorchCopies(device, clock) for device in devices], lambda device: torch.cuda.stream(torch.cuda.Stream(device))
    )


def _kind(index: int) -> tuple[str, int]:
    properties = torch.cuda.get_device_properties(index)
    return properties.name, properties.total_memory


def open_device(name: str) -> tuple[GpuProperties, TorchCopies]:
    """Makes the CUDA device of that name (``cuda`` or ``cuda:N``) current; returns its properties and its copies.

    Raises `InputError` for other names, and for a device that does not exist.
    """
    index, _ = _index_and_count(name)
    torch.cuda.set_device(index)
    context = context_memory(torch.cuda.mem_get_info(index), torch.cuda.memory_reserved(index))
    result = torch.cuda.get_device_properties(index)
    facts = GpuProperties(
        result.name,
        result.total_memory,
        result.multi_processor_count,
        (result.major, result.minor),
        copy_engines(index),
        f"PyTorch {torch.__version__}",
        context,
        # PyTorch for ROCm calls AMD GPUs cuda too; features follow the name after a colon: gfx942:sramecc+:xnack-.
        result.gcnArchName.partition(":")[0] if torch.version.hip else "",
    )
    return facts, TorchCopies(torch.device("cuda", index), CudaClock())


def _index_and_count(name: str) -> tuple[int, int]:
    """Returns the number of a CUDA device, which exists, and that of all; raises `InputError` as `open_device`."""
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        what = f"{name!r} is not a CUDA device: only a GPU has a link to measure"
        raise InputError.single("record_node", "device", what, "give cuda or cuda:N")
    index, count = int(match[1] or 0), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        seen = f"{count} CUDA device{'' if count == 1 else 's'}" if count else "no CUDA device"
        what = f"{name!r}: PyTorch {torch.__version__} sees {seen}"
        raise InputError.single("record_node", "device", what, f"give cuda:0 to cuda:{count - 1}" if count else _REMEDY)
    return index, count


def context_memory(free_and_total: tuple[int, int], reserved: int) -> int | None:
    """Returns the bytes in use besides `reserved`, PyTorch's segments; None if there are none.

    The driver reports only how much of a GPU is free, so that memory of other programs is included.

    >>> context_memory((11_500 * 2**20, 12_000 * 2**20), reserved=20 * 2**20) == 480 * 2**20
    True
    """
    free, total = free_and_total
    return max(total - free - reserved, 0) or None


def copy_engines(index: int, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> int | None:
    """Returns the number of copy engines of a CUDA device, from the driver; None if the driver does not report it."""
    try:
        driver = load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, count = ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetAttribute(ctypes.byref(count), _ASYNC_ENGINE_COUNT, device)
    )
    return None if failed else count.value
