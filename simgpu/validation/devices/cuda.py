"""A CUDA device: wrappers of `torch.cuda`, and spin kernels that keep a stream busy for a given time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from simgpu.recorder.machine.cuda_copies import copy_engines
from simgpu.validation.devices.device import DeviceFacts, Event, Peak, Stream

#: PyTorch's caching allocator rounds requests up to this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize).
_ALIGNMENT = 512
_DRIVER = Path("/proc/driver/nvidia/version")


class CudaEvent:
    """A `torch.cuda.Event` with timing; its resolution is about half a microsecond."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def is_done(self) -> bool:
        """Whether the device has reached it."""
        return bool(self.event.query())

    def synchronize(self) -> None:
        """Makes the host wait for it."""
        self.event.synchronize()

    def ns_since(self, earlier: Any) -> int:
        """Nanoseconds from another event, rounded from PyTorch's floating-point milliseconds."""
        earlier.synchronize()
        self.synchronize()
        return round(float(earlier.event.elapsed_time(self.event)) * 1_000_000)


class CudaStream:
    """A `torch.cuda.Stream`.

    Copies do not register the stream with PyTorch's allocator (``record_stream``). That would retain memory until the
    host next checks the copy, which a simulation cannot predict. Instead, callers make compute wait for the stream
    before they release memory, see `simgpu.validation.devices.Stream`.
    """

    def __init__(self, role: str, stream: Any, spin_rate: Callable[[], SpinRate]) -> None:
        self.role = role
        self.stream = stream
        self._spin_rate = spin_rate

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies asynchronously if the host memory is pinned."""
        if target.shape != source.shape or target.dtype != source.dtype:
            kinds = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (source, target)]
            raise ValueError(f"cannot copy from {kinds[0]} to {kinds[1]}: shapes and types must be equal")
        with torch.cuda.stream(self.stream), torch.no_grad():
            target.copy_(source, non_blocking=True)

    def busy(self, ns: int) -> None:
        """Launches a spin kernel; an empty one if the time is shorter than an empty kernel's."""
        cycles = self._spin_rate().cycles(ns)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(cycles)

    def record(self) -> CudaEvent:
        """Returns an event after all work launched on this stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return CudaEvent(event)

    def wait(self, event: Event) -> None:
        """Makes the stream wait for the event, not the host."""
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)

    def synchronize(self) -> None:
        """Makes the host wait for the stream."""
        self.stream.synchronize()


class CudaDevice:
    """A `simgpu.validation.devices.Device`; it becomes PyTorch's current device.

    compute: the stream that is current when the device is opened, by default PyTorch's default stream. New streams do
    not synchronize with it implicitly (PyTorch creates them with ``cudaStreamNonBlocking``).
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        self.kind = "cuda"
        self.torch_device = device
        self.name: str = torch.cuda.get_device_name(device)
        self.compute: Stream = self._stream("compute", torch.cuda.current_stream(device))

    def facts(self) -> DeviceFacts:
        """Memory, copy engines and versions, from PyTorch and the driver."""
        version_of = {
            "pytorch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": driver_version(),
        }
        return DeviceFacts(
            memory=int(torch.cuda.get_device_properties(self.torch_device).total_memory),
            alignment=_ALIGNMENT,
            copy_engines=copy_engines(self.torch_device.index or 0),
            versions={name: str(version) for name, version in version_of.items() if version},
        )

    def new_stream(self, role: str) -> Stream:
        """A stream of PyTorch's pool, with default priority."""
        return self._stream(role, torch.cuda.Stream(self.torch_device))

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Pinned memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def empty(self, nbytes: int) -> torch.Tensor:
        """Memory of PyTorch's caching allocator, allocated on the compute stream."""
        assert isinstance(self.compute, CudaStream)
        with torch.cuda.stream(self.compute.stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is not on a GPU."""
        return bool(tensor.device.type == "cpu")

    def synchronize(self) -> None:
        """Makes the host wait for all streams of the device."""
        torch.cuda.synchronize(self.torch_device)

    def peak_of(self, run: Callable[[], object]) -> Peak:
        """Calls `run` once; returns the bytes allocated by PyTorch's allocator, including its rounding."""
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        initial_bytes = int(torch.cuda.memory_allocated(self.torch_device))
        run()
        self.synchronize()
        return Peak(int(torch.cuda.max_memory_allocated(self.torch_device)), initial_bytes)

    def close(self) -> None:
        """Waits for all streams; PyTorch returns them to its pool."""
        self.synchronize()

    def _stream(self, role: str, stream: Any) -> CudaStream:
        return CudaStream(role, stream, lambda: self._spin_rate)

    @cached_property
    def _spin_rate(self) -> SpinRate:
        """The spin rate, measured at the first busy loop."""
        return calibrate(self._spin_ns)

    def _spin_ns(self, cycles: int, count: int) -> int:
        assert isinstance(self.compute, CudaStream)
        self.synchronize()
        with torch.cuda.stream(self.compute.stream):
            torch.cuda._sleep(1_000_000)  # the host launches the rest meanwhile, so that the device never idles
            begin = self.compute.record()
            for _ in range(count):
                torch.cuda._sleep(cycles)
            return self.compute.record().ns_since(begin)


def driver_version(path: Path = _DRIVER) -> str:
    """The version of NVIDIA's driver on Linux; empty if not available."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    result = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return result[1] if result else ""


#: Cycles of the timed kernels, from microseconds to milliseconds.
_CYCLES = (0, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)
#: Consecutive kernels per timing, so that the gaps between kernels are included.
_IN_A_ROW = 10
_ROUNDS = 5
#: Untimed rounds of the longest kernel, about half a second: the time an idle GPU needs to raise its clock.
_WARM_UP = 30


@dataclass(frozen=True, slots=True)
class SpinRate:
    """The duration of a spin kernel with the gap to the next: ``fixed_ns + cycles / cycles_per_ns``.

    A least-squares fit of measured times; valid while the device's clock stays the same.

    >>> SpinRate(fixed_ns=2000.0, cycles_per_ns=1.5).cycles(10_000), SpinRate(2000.0, 1.5).cycles(500)
    (12000, 0)
    """

    fixed_ns: float
    cycles_per_ns: float

    def cycles(self, ns: int) -> int:
        """Cycles of a kernel that takes `ns` nanoseconds; 0 if even an empty kernel takes longer."""
        return max(0, round((ns - self.fixed_ns) * self.cycles_per_ns))


def calibrate(spin_ns: Callable[[int, int], int]) -> SpinRate:
    """Measures the rate; uses the median of several rounds.

    spin_ns: takes cycles and a number of consecutive kernels, returns their time in nanoseconds.

    Warm-up rounds come first, then the longest kernels, so that the clock is up when the others are timed.

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
    weights = 1 / np.maximum(ns_of, 1.0)  # relative errors; absolute ones would fit only the longest kernel
    slope, fixed = np.polyfit(cycles_of, ns_of, 1, w=weights)
    return SpinRate(round(float(fixed), 3), round(1 / float(slope), 6))
