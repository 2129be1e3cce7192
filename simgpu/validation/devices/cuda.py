"""A CUDA device as PyTorch offers it.

Every method is a few calls of `torch.cuda`, so that there is little to be wrong with where no GPU is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from simgpu.recorder.machine.cuda_copies import copy_engines
from simgpu.validation.devices.cuda_busy import SpinRate, calibrate
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
    Streams beside it do not wait for it on their own (PyTorch makes them with ``cudaStreamNonBlocking``).
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        self.kind = "cuda"
        self.torch_device = device
        self.name: str = torch.cuda.get_device_name(device)
        self.compute: Stream = self._stream("compute", torch.cuda.current_stream(device))

    def facts(self) -> DeviceFacts:
        """What PyTorch and the driver tell."""
        told = {
            "pytorch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": driver_version(),
        }
        return DeviceFacts(
            memory=int(torch.cuda.get_device_properties(self.torch_device).total_memory),
            alignment=_ALIGNMENT,
            copy_engines=copy_engines(self.torch_device.index or 0),
            versions={name: str(version) for name, version in told.items() if version},
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
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""
