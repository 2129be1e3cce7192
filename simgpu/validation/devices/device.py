"""What the harness asks of a device: streams that copy and keep busy, events, memory, and how much of it is held.

Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from simgpu.validation.measured import MeasuredKind

if TYPE_CHECKING:
    import torch


class Peak(NamedTuple):
    """Bytes of device memory: the most that was held at once, and what was held before; the first counts the second."""

    peak_bytes: int
    initial_bytes: int


class CopySpan(NamedTuple):
    """A copy between device and host; times are the host's `time.perf_counter_ns`."""

    stream_role: str
    kind: MeasuredKind
    bytes: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device tells about itself.

    memory: bytes there are. alignment: bytes to which PyTorch's allocator rounds a request up. copy_engines: how many
    copies run at once, None where it does not tell. versions: of PyTorch, CUDA and the driver, as far as there are any.
    """

    memory: int
    alignment: int
    copy_engines: int | None
    versions: Mapping[str, str] = field(default_factory=dict)


class Event(Protocol):
    """A point in a stream's work, with the time it was reached."""

    def is_done(self) -> bool:
        """Whether the stream has come to it; never waits."""

    def synchronize(self) -> None:
        """The host waits until the stream has come to it."""

    def ns_since(self, earlier: Any) -> int:
        """Nanoseconds from another event of the same device to this one; the host waits for both."""


class Stream(Protocol):
    """A queue of work on the device, done in order; only `synchronize` makes the host wait.

    The compute stream of a CPU is the calling thread: there every call returns when its work is done.

    Tensors are not kept for a stream: who hands memory to one must not let it be used for something else before the
    stream has read or written it. Waiting for the stream's event on the compute stream before the last reference goes
    is enough, because memory is handed out in the order of the compute stream.
    """

    role: str

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a tensor's values into one of the same shape and type; host tensors are from `Device.host_buffer`."""

    def busy(self, ns: int) -> None:
        """Keep busy for so many nanoseconds."""

    def record(self) -> Event:
        """An event behind all that was asked of the stream so far."""

    def wait(self, event: Event) -> None:
        """What is asked of the stream from now on begins after the event, of whatever stream it is."""

    def synchronize(self) -> None:
        """The host waits for all that was asked of the stream."""


class Device(Protocol):
    """A device that runs PyTorch's operators on its compute stream.

    kind: ``cuda`` or ``cpu``. name: as it calls itself.
    """

    kind: str
    name: str
    torch_device: torch.device

    @property
    def compute(self) -> Stream:
        """Where PyTorch's operators run."""

    def facts(self) -> DeviceFacts:
        """Its memory, copy engines and versions."""

    def new_stream(self, role: str) -> Stream:
        """A stream next to the compute stream; it ends when nobody refers to it any more, or with the device."""

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Host memory, pinned where that means something: bytes that do not count as the device's."""

    def empty(self, nbytes: int) -> torch.Tensor:
        """Device memory, handed out in the order of the compute stream."""

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is the host's."""

    def synchronize(self) -> None:
        """The host waits for every stream. Raises what went wrong on one."""

    def peak_of(self, run: Callable[[], object]) -> Peak:
        """Call `run` once, and tell what device memory was held meanwhile and just before."""

    def watch_copies(self) -> AbstractContextManager[list[CopySpan]]:
        """Note copies between device and host, in the order in which they ended; complete when the context is left.

        Raises `NotImplementedError` on a CUDA device, where the profiler tells.
        """

    def close(self) -> None:
        """Wait for every stream and end it."""
