"""A CUDA device: thin wrappers around `torch.cuda`, and spinning kernels that keep a stream busy for a given time."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from simgpu.recorder.machine.cuda_copies import copy_engines
from simgpu.validation.devices.device import CopySpan, DeviceFacts, Event, Peak, Stream

#: PyTorch's caching allocator rounds every request up to this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize).
_ALIGNMENT = 512
_DRIVER = Path("/proc/driver/nvidia/version")


class CudaEvent:
    """A `torch.cuda.Event` with timing, which has a resolution of about half a microsecond."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def is_done(self) -> bool:
        """Whether the device has come to it."""
        return bool(self.event.query())

    def synchronize(self) -> None:
        """The host waits for it."""
        self.event.synchronize()

    def ns_since(self, earlier: Any) -> int:
        """PyTorch tells milliseconds in floating point; rounded to whole nanoseconds."""
        earlier.synchronize()
        self.synchronize()
        return round(float(earlier.event.elapsed_time(self.event)) * 1_000_000)


class CudaStream:
    """A `torch.cuda.Stream`.

    Copies do not tell PyTorch's allocator of the stream (``record_stream``): that would keep memory back until the
    host happens to look whether the copy is over, which no simulation could follow. Who hands memory to a stream has
    compute wait for it before letting go, as `simgpu.validation.devices.Stream` says.
    """

    def __init__(self, role: str, stream: Any, spin_rate: Callable[[], SpinRate]) -> None:
        self.role = role
        self.stream = stream
        self._spin_rate = spin_rate

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """An asynchronous copy, where the host's side is pinned."""
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(f"a copy from {source.dtype} {source.shape} to {target.dtype} {target.shape}")
        with torch.cuda.stream(self.stream), torch.no_grad():
            target.copy_(source, non_blocking=True)

    def busy(self, ns: int) -> None:
        """A kernel that spins; an empty one where the time is shorter than a kernel's own."""
        cycles = self._spin_rate().cycles(ns)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(cycles)

    def record(self) -> CudaEvent:
        """An event behind all that was launched on this stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return CudaEvent(event)

    def wait(self, event: Event) -> None:
        """The stream waits, the host does not."""
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)

    def synchronize(self) -> None:
        """The host waits for the stream."""
        self.stream.synchronize()


class CudaDevice:
    """A `simgpu.validation.devices.Device`; it becomes PyTorch's current device.

    compute is the stream that is current when it is opened: PyTorch's default stream, unless somebody chose another.
    Streams next to it do not wait for it on their own (PyTorch makes them with ``cudaStreamNonBlocking``).
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        self.kind = "cuda"
        self.torch_device = device
        self.name: str = torch.cuda.get_device_name(device)
        self.compute: Stream = self._stream("compute", torch.cuda.current_stream(device))

    def facts(self) -> DeviceFacts:
        """What PyTorch and the driver tell."""
        text = {
            "pytorch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": driver_version(),
        }
        return DeviceFacts(
            memory=int(torch.cuda.get_device_properties(self.torch_device).total_memory),
            alignment=_ALIGNMENT,
            copy_engines=copy_engines(self.torch_device.index or 0),
            versions={name: str(version) for name, version in text.items() if version},
        )

    def new_stream(self, role: str) -> Stream:
        """A stream of PyTorch's pool, of usual priority."""
        return self._stream(role, torch.cuda.Stream(self.torch_device))

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Pinned memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def empty(self, nbytes: int) -> torch.Tensor:
        """Memory of PyTorch's caching allocator, which belongs to the compute stream whatever stream is current."""
        assert isinstance(self.compute, CudaStream)
        with torch.cuda.stream(self.compute.stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is not on a GPU."""
        return bool(tensor.device.type == "cpu")

    def synchronize(self) -> None:
        """The host waits for all streams of the device."""
        torch.cuda.synchronize(self.torch_device)

    def peak_of(self, run: Callable[[], object]) -> Peak:
        """What PyTorch's allocator counts as handed out, rounded up as it hands out."""
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        held = int(torch.cuda.memory_allocated(self.torch_device))
        run()
        self.synchronize()
        return Peak(int(torch.cuda.max_memory_allocated(self.torch_device)), held)

    def watch_copies(self) -> AbstractContextManager[list[CopySpan]]:
        """PyTorch's profiler tells of copies on a GPU."""
        raise NotImplementedError("copies on a CUDA device are told by PyTorch's profiler")

    def close(self) -> None:
        """Wait for all streams; PyTorch keeps them for the next who asks."""
        self.synchronize()

    def _stream(self, role: str, stream: Any) -> CudaStream:
        return CudaStream(role, stream, lambda: self._spin_rate)

    @cached_property
    def _spin_rate(self) -> SpinRate:
        """Measured where the first busy loop is asked for."""
        return calibrate(self._spin_ns)

    def _spin_ns(self, cycles: int, count: int) -> int:
        assert isinstance(self.compute, CudaStream)
        self.synchronize()
        with torch.cuda.stream(self.compute.stream):
            torch.cuda._sleep(1_000_000)  # the host launches the rest meanwhile, so that the device waits for none
            begin = self.compute.record()
            for _ in range(count):
                torch.cuda._sleep(cycles)
            return self.compute.record().ns_since(begin)


def driver_version(path: Path = _DRIVER) -> str:
    """Of NVIDIA's driver, as Linux tells it; empty where it does not."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    result = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return result[1] if result else ""


#: Cycles of the loops that are timed, from what takes microseconds to what takes milliseconds.
_CYCLES = (0, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)
#: Loops one behind the other in each timing, so that what lies between two of them counts as part of them.
_IN_A_ROW = 10
_ROUNDS = 5
#: Rounds of the longest that come first and do not count, some half a second: an idle GPU takes so long to clock up.
_WARM_UP = 30


@dataclass(frozen=True, slots=True)
class SpinRate:
    """How long a spinning kernel takes, with what lies between it and the next: ``fixed_ns + cycles / cycles_per_ns``.

    A least squares fit of times that were measured; the device's clock must not change after it.

    >>> SpinRate(fixed_ns=2000.0, cycles_per_ns=1.5).cycles(10_000), SpinRate(2000.0, 1.5).cycles(500)
    (12000, 0)
    """

    fixed_ns: float
    cycles_per_ns: float

    def cycles(self, ns: int) -> int:
        """How many to ask for, so that it takes so many nanoseconds; 0 where even an empty kernel takes longer."""
        return max(0, round((ns - self.fixed_ns) * self.cycles_per_ns))


def calibrate(spin_ns: Callable[[int, int], int]) -> SpinRate:
    """Measure the rate. spin_ns: nanoseconds that the device takes for kernels of so many cycles, so many in a row.

    Rounds that do not count come first, and then the longest, so that the clock is up when the others are timed. Of
    several rounds the median counts.

    >>> calibrate(lambda cycles, count: count * (2000 + cycles // 2))
    SpinRate(fixed_ns=2000.0, cycles_per_ns=2.0)
    """
    for _ in range(_WARM_UP):
        spin_ns(max(_CYCLES), _IN_A_ROW)
    points = []
    for cycles in sorted(_CYCLES, reverse=True):
        rounds = [spin_ns(cycles, _IN_A_ROW) for _ in range(_ROUNDS)]
        points.append((cycles, median(rounds) / _IN_A_ROW))
    cycles_of, ns_of = np.array(points, dtype=float).T
    weights = 1 / np.maximum(ns_of, 1.0)  # errors count relative to the length, else the longest alone would
    slope, fixed = np.polyfit(cycles_of, ns_of, 1, w=weights)
    return SpinRate(round(float(fixed), 3), round(1 / float(slope), 6))
