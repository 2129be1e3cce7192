"""What a program requests from an allocator, in order: allocations and frees, without addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

from simgpu.trace.allocations import Frame


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """A request for `size` bytes.

    stack: what requests it, innermost first. category: what it holds. optional: whether the program goes on without it,
    like a convolution, for which cuDNN then takes an algorithm with less workspace.
    """

    size: int
    stack: tuple[Frame, ...] = ()
    category: str = ""
    optional: bool = False


@dataclass
class MemoryRequests:
    """The requests of a program.

    name: of the program. tool: what recorded it. requests: every request, in order. order: one number per event: n
    requests number n, ~n frees it. capacity: bytes that the GPU has for the allocator, None if not known. notes: what
    limits its use.

    >>> recording = MemoryRequests("example", "hand")
    >>> recording.free(recording.allocate(MemoryRequest(1000)))
    >>> recording.order
    [0, -1]
    """

    name: str
    tool: str
    requests: list[MemoryRequest] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    capacity: int | None = None
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{len(self.requests)} requests of {self.name}, by {self.tool}"

    def allocate(self, request: MemoryRequest) -> int:
        """Add a request; returns its number."""
        self.requests.append(request)
        self.order.append(len(self.requests) - 1)
        return len(self.requests) - 1

    def free(self, number: int) -> None:
        """Add the free of a request."""
        self.order.append(~number)
