"""The timeline of a run, as columns of spans and of memory samples."""

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

#: Columns of the tables. Times are in nanoseconds; `bytes` were moved over the link; `gpu` is `HOST` for host memory.
SPAN_COLUMNS = ("iteration", "gpu", "stream", "kind", "name", "start_ns", "end_ns", "bytes", "cause")
MEMORY_COLUMNS = ("gpu", "space", "time_ns", "live_bytes", "used_bytes")

#: The host's number in the column `gpu`.
HOST = -1


class SpanKind(IntEnum):
    """The activity of a stream. A stall kind names the direct cause of the wait."""

    COMPUTE = 0
    RECOMPUTE = 1
    ENCODE = 2
    DECODE = 3
    COPY_D2H = 4
    COPY_H2D = 5
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
        """The name used in files and tables, for example ``copy_d2h``."""
        return self.name.lower()


class Span(NamedTuple):
    """One row of a timeline. Times in nanoseconds, bytes as moved over the link (0 where nothing moves).

    name: kernel or block id; for a stall, what the stream waited for. cause: the stream waited for, empty otherwise.
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
    """Bytes in use as a step function: from `time_ns[i]` on, blocks occupy `live[i]` bytes.

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

    @property
    def memories(self) -> tuple[tuple[int, str, MemoryCurve], ...]:
        """GPU (`HOST` for the host), space and curve of every memory: those of the GPUs, then the host's."""
        devices = ((gpu, "device", curve) for gpu, curve in enumerate(self.device_memories))
        return (*devices, (HOST, "host", self.host_memory))

    def __len__(self) -> int:
        return len(self.start_ns)

    def __iter__(self) -> Iterator[Span]:
        columns = (getattr(self, name).tolist() for name in Span._fields)
        for gpu, stream, kind, name, start, end, size, cause, iteration in zip(*columns, strict=True):
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
        """The spans as a pandas table, one row each, in order; its columns are `SPAN_COLUMNS`.

        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> empty = MemoryCurve(column(), column(), column(), None)
        >>> timeline = Timeline(("compute",), ("conv1",), gpu=column(0), stream=column(0), name=column(0),
        ...     kind=column(SpanKind.COMPUTE), start_ns=column(0), end_ns=column(7), bytes=column(0), cause=column(-1),
        ...     iteration=column(0), device_memory=empty, host_memory=empty, iteration_ends_ns=(7,))
        >>> timeline.frame()[["stream", "kind", "name", "end_ns"]].to_dict("records")
        [{'stream': 'compute', 'kind': 'compute', 'name': 'conv1', 'end_ns': 7}]
        """
        import pandas as pd

        labels = {
            "stream": (self.streams, self.stream),
            "kind": (tuple(kind.label for kind in SpanKind), self.kind),
            "name": (self.names, self.name),
            "cause": (self.streams, self.cause),
        }
        # Position -1 is the empty text at the end.
        texts = {column: np.array([*names, ""], dtype=object)[index] for column, (names, index) in labels.items()}
        return pd.DataFrame({column: texts.get(column, getattr(self, column)) for column in SPAN_COLUMNS})

    def memory_frame(self) -> pd.DataFrame:
        """The memory samples as a pandas table, one row each; its columns are `MEMORY_COLUMNS`.

        Each value holds until the next sample of its space; of several samples at one time the last one holds.
        """
        import pandas as pd

        curves = self.memories
        counts = [len(curve.time_ns) for *_, curve in curves]
        return pd.DataFrame(
            {
                "gpu": np.repeat(np.array([gpu for gpu, _, _ in curves], dtype=np.int64), counts),
                "space": np.repeat(np.array([space for _, space, _ in curves], dtype=object), counts),
                "time_ns": np.concatenate([curve.time_ns for *_, curve in curves]),
                "live_bytes": np.concatenate([curve.live for *_, curve in curves]),
                "used_bytes": np.concatenate([curve.used for *_, curve in curves]),
            },
            columns=list(MEMORY_COLUMNS),
        )
