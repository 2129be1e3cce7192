"""Copies between device and host memory: on streams of a GPU, or at once on a CPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes


class Event(Protocol):
    """A point in a stream's work."""


class CopyStream(Protocol):
    """A queue of copies, or of PyTorch's operators, in order.

    A stream does not keep tensors alive: before the last reference to memory is dropped, the compute stream must wait
    for an event after the last copy. That is enough, because memory is allocated in the order of the compute stream.
    """

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies values to a tensor of the same shape and type; host tensors come from `CopyDevice.host_buffer`."""

    def record(self) -> Any:
        """Returns an event after all work queued so far."""

    def wait(self, event: Any) -> None:
        """Starts work queued from now on after the event, which may be of another stream."""


class CopyDevice(Protocol):
    """A device whose memory is offloaded to the host."""

    torch_device: torch.device

    @property
    def compute(self) -> CopyStream:
        """The stream of PyTorch's operators."""

    def new_stream(self, role: str) -> CopyStream:
        """A stream for copies."""

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Host memory, pinned for a GPU."""

    def empty(self, nbytes: int) -> torch.Tensor:
        """Device memory, allocated in the order of the compute stream."""

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in host memory."""


class _CudaStream:
    """A stream of a GPU. It is not registered with PyTorch's allocator, which would keep memory for it longer."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self.stream), torch.no_grad():
            target.copy_(source, non_blocking=True)

    def record(self) -> Any:
        event = torch.cuda.Event()
        event.record(self.stream)
        return event

    def wait(self, event: Any) -> None:
        self.stream.wait_event(event)


class CudaCopies:
    """A GPU: each stream for copies is a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device

    @property
    def compute(self) -> CopyStream:
        """The current stream."""
        return _CudaStream(torch.cuda.current_stream(self.torch_device))

    def new_stream(self, role: str) -> CopyStream:
        """A stream of PyTorch's pool."""
        return _CudaStream(torch.cuda.Stream(self.torch_device))

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Pinned memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def empty(self, nbytes: int) -> torch.Tensor:
        """Memory of PyTorch's allocator."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is not on a GPU."""
        return bool(tensor.device.type == "cpu")


class _AtOnce:
    """Copies at once, unseen by whatever observes PyTorch's operators."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with _disable_current_modes(), torch.no_grad():
            target.copy_(source)

    def record(self) -> Any:
        return None

    def wait(self, event: Any) -> None:
        """Nothing is under way."""


class CpuCopies:
    """A CPU: device and host memory are the same, and copies are done when they are issued."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.compute: CopyStream = _AtOnce()

    def new_stream(self, role: str) -> CopyStream:
        """Copies at once."""
        return _AtOnce()

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Memory that counts as the host's."""
        with _disable_current_modes():
            return torch.empty(nbytes, dtype=torch.uint8)

    def empty(self, nbytes: int) -> torch.Tensor:
        """Memory that counts as the device's."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Autograd saves no buffer of the host."""
        return False


def copies_of(device: torch.device) -> CopyDevice:
    """The copies of a device."""
    return CudaCopies(device) if device.type == "cuda" else CpuCopies()
