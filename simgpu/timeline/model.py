"""What happened: spans of activity and samples of memory, as columns of whole numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Column = NDArray[np.int64]


class SpanKind(IntEnum):
    """What a stream was doing. The stall kinds say what the stream directly waited for."""

    COMPUTE = 0
    RECOMPUTE = 1
    ENCODE = 2
    DECODE = 3
    COPY_OUT = 4
    COPY_IN = 5
    STALL_EVENT = 6
    """waiting for another stream to signal; `Span.cause` names that stream"""
    STALL_DEVICE_MEMORY = 7
    STALL_HOST_MEMORY = 8
    STALL_ENGINE = 9
    """a copy issued but not yet served, because its engine was busy"""

    @property
    def is_stall(self) -> bool:
        return self >= SpanKind.STALL_EVENT

    @property
    def label(self) -> str:
        """The word used in files and tables, for example ``copy_out``."""
        return self.name.lower()


class Span(NamedTuple):
    """One row of a timeline. Times in nanoseconds, bytes as moved over the link (0 where nothing moves).

    name: kernel or block id; for a stall, what it waited for. cause: the stream waited for, empty otherwise.
    iteration: the iteration it belongs to, from 0.
    """

    gpu: int
    stream: str
    kind: SpanKind
    name: str
    start_ns: int
    end_ns: int
    bytes: int
    cause: str
    iteration: int


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Bytes in use as a step function: from `time_ns[i]` on, `live[i]` bytes are held by blocks.

    `used` adds the allocator's padding. `capacity` is None where memory was unlimited.
    """

    time_ns: Column
    live: Column
    used: Column
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run as columns; `stream`, `name` and `cause` hold positions in `streams` and `names` (-1 for none).

    Rows are sorted by start, then by stream. `iteration_ends_ns[i]` is when compute of iteration i ended; with several
    GPUs, when all have got their new weights too. device_memory: of GPU 0; more_devices: of the others in order.
    """

    streams: tuple[str, ...]
    names: tuple[str, ...]
    gpu: Column
    stream: Column
    kind: Column
    name: Column
    start_ns: Column
    end_ns: Column
    bytes: Column
    cause: Column
    iteration: Column
    device_memory: MemoryCurve
    host_memory: MemoryCurve
    iteration_ends_ns: tuple[int, ...]
    more_devices: tuple[MemoryCurve, ...] = ()

    @property
    def device_memories(self) -> tuple[MemoryCurve, ...]:
        """The memory of every GPU, in order."""
        return (self.device_memory, *self.more_devices)

    def __len__(self) -> int:
        return len(self.start_ns)

    def __iter__(self) -> Iterator[Span]:
        for row in zip(
            self.gpu.tolist(),
            self.stream.tolist(),
            self.kind.tolist(),
            self.name.tolist(),
            self.start_ns.tolist(),
            self.end_ns.tolist(),
            self.bytes.tolist(),
            self.cause.tolist(),
            self.iteration.tolist(),
            strict=True,
        ):
            gpu, stream, kind, name, start, end, size, cause, iteration = row
            yield Span(
                gpu,
                self.streams[stream],
                SpanKind(kind),
                self.names[name] if name >= 0 else "",
                start,
                end,
                size,
                self.streams[cause] if cause >= 0 else "",
                iteration,
            )

    def window(self, iteration: int) -> tuple[int, int]:
        """Start and end (ns) of an iteration, each the end of one: see `Timeline`."""
        ends = self.iteration_ends_ns
        index = range(len(ends))[iteration]
        return (ends[index - 1] if index else 0), ends[index]

    def frame(self) -> pd.DataFrame:
        """The spans as a pandas table, one row each (columns: `simgpu.timeline.export.to_frame`)."""
        from simgpu.timeline.export import to_frame

        return to_frame(self)

    def memory_frame(self) -> pd.DataFrame:
        """The memory samples as a pandas table, one row each (columns: `simgpu.timeline.export.memory_frame`)."""
        from simgpu.timeline.export import memory_frame

        return memory_frame(self)
