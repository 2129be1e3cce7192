"""The protocols of a device, its streams and events, which the harness uses. Does not import PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from simgpu.validation.measured import MeasuredKind

if TYPE_CHECKING:
    import torch


class Peak(NamedTuple):
    """Bytes of device memory: the peak of a run, and the bytes allocated before it (included in the peak)."""

    peak_bytes: int
    initial_bytes: int


class CopySpan(NamedTuple):
    """A copy between device and host; times are from the host's `time.perf_counter_ns`."""

    stream_role: str
    kind: MeasuredKind
    bytes: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of a device.

    memory: capacity, bytes.
    alignment: bytes to which PyTorch's allocator rounds up.
    copy_engines: number of concurrent copies, None if not reported.
    versions: of PyTorch, CUDA and the driver, where available.
    """

    memory: int
    alignment: int
    copy_engines: int | None
    versions: Mapping[str, str] = field(default_factory=dict)


class Event(Protocol):
    """A point in a stream's work, with the time it was reached."""

    def is_done(self) -> bool:
        """Whether the stream has reached it; does not wait."""

    def synchronize(self) -> None:
        """Makes the host wait until the stream reaches it."""

    def ns_since(self, earlier: Any) -> int:
        """Nanoseconds from an earlier event of the same device to this one; the host waits for both."""


class Stream(Protocol):
    """A queue of work on the device, executed in order; only `synchronize` makes the host wait.

    The compute stream of a CPU is the calling thread: every call returns when its work is done.

    A stream does not keep tensors alive. The caller must keep their memory from being reused before the stream has
    accessed it: make compute wait for the stream's event before dropping the last reference. That is enough, because
    memory is allocated in compute-stream order.
    """

    role: str

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies values to a tensor of the same shape and type; host tensors must come from `Device.host_buffer`."""

    def busy(self, ns: int) -> None:
        """Keeps the stream busy for `ns` nanoseconds."""

    def record(self) -> Event:
        """Returns an event after all work queued so far."""

    def wait(self, event: Event) -> None:
        """Starts work queued from now on after the event, which may be of another stream."""

    def synchronize(self) -> None:
        """Makes the host wait for all queued work."""


class Device(Protocol):
    """A device that runs PyTorch's operators on its compute stream.

    kind: ``cuda`` or ``cpu``.
    name: of the hardware, as PyTorch or the system reports it.
    """

    kind: str
    name: str
    torch_device: torch.device

    @property
    def compute(self) -> Stream:
        """The stream of PyTorch's operators."""

    def facts(self) -> DeviceFacts:
        """Memory, copy engines and versions of the device."""

    def new_stream(self, role: str) -> Stream:
        """Creates a stream, which ends with its last reference or with the device."""

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Allocates host memory, pinned on CUDA, that does not count as device memory."""

    def empty(self, nbytes: int) -> torch.Tensor:
        """Allocates device memory in compute-stream order."""

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in host memory."""

    def synchronize(self) -> None:
        """Makes the host wait for every stream; raises an error of a stream."""

    def peak_of(self, run: Callable[[], object]) -> Peak:
        """Calls `run` once and returns its peak of device memory, and the bytes allocated before."""

    def close(self) -> None:
        """Waits for every stream and ends it."""
