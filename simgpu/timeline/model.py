"""The timeline of a run, as columns of spans and of memory samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.hardware.spec import DEVICE, is_memory
from simgpu.timeline.streams import OWN_ENGINES, engine_ends

if TYPE_CHECKING:
    import pandas as pd

Column = NDArray[np.int64]

#: Columns of the tables. Times are in nanoseconds; `bytes` were moved over a link; `gpu` is `SHARED` for memories that
#: all GPUs share, such as the host's. `RESERVED_COLUMN` follows where a memory has PyTorch's allocator.
SPAN_COLUMNS = ("iteration", "gpu", "stream", "kind", "name", "start_ns", "end_ns", "bytes", "cause")
MEMORY_COLUMNS = ("gpu", "memory", "time_ns", "live_bytes", "used_bytes")
RESERVED_COLUMN = "reserved_bytes"

#: In place of a GPU's number: a memory of all GPUs.
SHARED = -1


class SpanKind(IntEnum):
    """The activity of a stream. A stall kind names the direct cause of the wait."""

    COMPUTE = 0
    RECOMPUTE = 1
    ENCODE = 2
    DECODE = 3
    COPY = 4
    """a copy; `Span.resource` names the engine, such as ``d2h``"""
    STALL_EVENT = 5
    """waiting for another stream to signal; `Span.cause` names that stream"""
    STALL_MEMORY = 6
    """waiting for free memory; `Span.resource` names the memory"""
    STALL_ENGINE = 7
    """a copy issued but not yet served, because its engine was busy"""
    STALL_LAUNCH = 8
    """work that the host has not launched yet"""

    @property
    def is_stall(self) -> bool:
        return self >= SpanKind.STALL_EVENT

    def label(self, resource: str = "") -> str:
        """The name used in files and tables. resource: the engine or memory.

        >>> SpanKind.COPY.label("d2h"), SpanKind.STALL_MEMORY.label("device"), SpanKind.ENCODE.label()
        ('copy_d2h', 'stall_device_memory', 'encode')
        """
        match self:
            case SpanKind.COPY:
                return f"copy_{resource}"
            case SpanKind.STALL_MEMORY:
                return f"stall_{resource}_memory"
        return self.name.lower()


def kind_of(label: str) -> tuple[SpanKind, str] | None:
    """The kind and the engine or memory that a label names; None for another text.

    >>> kind_of("copy_host2ssd"), kind_of("stall_ssd_memory"), kind_of("copy_ssd")
    ((<SpanKind.COPY: 4>, 'host2ssd'), (<SpanKind.STALL_MEMORY: 6>, 'ssd'), None)
    """
    if label in _PLAIN_KINDS:
        return _PLAIN_KINDS[label], ""
    engine, memory = label.removeprefix("copy_"), label.removeprefix("stall_").removesuffix("_memory")
    if label == SpanKind.COPY.label(engine) and engine_ends(engine):
        return SpanKind.COPY, engine
    if label == SpanKind.STALL_MEMORY.label(memory) and is_memory(memory):
        return SpanKind.STALL_MEMORY, memory
    return None


_PLAIN_KINDS = {kind.label(): kind for kind in SpanKind if kind not in (SpanKind.COPY, SpanKind.STALL_MEMORY)}


class Span(NamedTuple):
    """One row of a timeline. Times in nanoseconds, bytes as moved over the link (0 where nothing moves).

    name: kernel or block id; for a stall, what the stream waited for. cause: the stream waited for, empty otherwise.
    iteration: the iteration it belongs to, from 0. resource: the engine of a copy, or the memory that a stall waited
    for; empty otherwise.
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
    resource: str = ""

    @property
    def label(self) -> str:
        """The kind with its engine or memory, as in files and tables: ``copy_d2h``."""
        return self.kind.label(self.resource)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Bytes in use of one memory as a step function: from `time_ns[i]` on, blocks occupy `live[i]` bytes.

    `used` adds the allocator's padding. `capacity` is None where memory was unlimited. memory: its name. gpu: whose it
    is, `SHARED` for a memory of all GPUs. reserved: bytes of the segments of PyTorch's allocator, in which blocks are
    allocated; None for other allocators.
    """

    time_ns: Column
    live: Column
    used: Column
    capacity: int | None
    memory: str = DEVICE
    gpu: int = 0
    reserved: Column | None = None

    @classmethod
    def never_used(cls, memory: str, gpu: int, capacity: int | None = None) -> MemoryCurve:
        """The curve of a memory that holds nothing."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, capacity, memory, gpu)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A run as columns; `stream`, `name`, `cause` and `resource` hold positions in `streams`, `names`, `streams` and
    `resources` (-1 for none).

    Rows are sorted by start, then by stream. `iteration_ends_ns[i]` is when compute of iteration i ended; with several
    GPUs, when all have got their new weights too. memories: of each GPU in order, then shared ones. resources: names of
    engines and memories.
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
    resource: Column
    resources: tuple[str, ...]
    memories: tuple[MemoryCurve, ...]
    iteration_ends_ns: tuple[int, ...]

    @property
    def device_memories(self) -> tuple[MemoryCurve, ...]:
        """The memory of every GPU, in order."""
        return tuple(curve for curve in self.memories if curve.gpu != SHARED)

    @property
    def shared_memories(self) -> tuple[MemoryCurve, ...]:
        """The memories of all GPUs together: the host's first."""
        return tuple(curve for curve in self.memories if curve.gpu == SHARED)

    def memory(self, name: str, gpu: int = 0) -> MemoryCurve:
        """The use of a memory by its name; of ``device``, that of a GPU. `KeyError` for one that the run lacks."""
        for curve in self.memories:
            if curve.memory == name and curve.gpu in (gpu, SHARED):
                return curve
        known = dict.fromkeys(curve.memory for curve in self.memories)
        raise KeyError(f"the run has no memory {name!r} of GPU {gpu}; it has {', '.join(known)}")

    @property
    def has_reserved(self) -> bool:
        """Whether a memory has PyTorch's allocator, which reserves segments."""
        return any(curve.reserved is not None for curve in self.memories)

    @property
    def engines(self) -> tuple[str, ...]:
        """The copy engines: ``d2h`` and ``h2d``, then others that copied, by name."""
        copied = self.resource[self.kind == SpanKind.COPY]
        used = {name for at, name in enumerate(self.resources) if (copied == at).any()}
        return (*OWN_ENGINES, *sorted(used.difference(OWN_ENGINES)))

    def copies(self, engine: str) -> NDArray[np.bool_]:
        """Which rows are copies on an engine."""
        place = self.resources.index(engine) if engine in self.resources else len(self.resources)
        chosen: NDArray[np.bool_] = (self.kind == SpanKind.COPY) & (self.resource == place)
        return chosen

    @property
    def labels(self) -> dict[tuple[int, int], str]:
        """The name of each kind that occurs, by the values of `kind` and `resource`."""
        pairs = sorted(set(zip(self.kind.tolist(), self.resource.tolist(), strict=True)))
        return {(kind, at): SpanKind(kind).label(self.resources[at] if at >= 0 else "") for kind, at in pairs}

    def __len__(self) -> int:
        return len(self.start_ns)

    def __iter__(self) -> Iterator[Span]:
        columns = (getattr(self, name).tolist() for name in Span._fields)
        kinds = tuple(SpanKind)
        for gpu, stream, kind, name, start, end, size, cause, iteration, resource in zip(*columns, strict=True):
            yield Span(
                gpu,
                self.streams[stream],
                kinds[kind],
                self.names[name] if name >= 0 else "",
                start,
                end,
                size,
                self.streams[cause] if cause >= 0 else "",
                iteration,
                self.resources[resource] if resource >= 0 else "",
            )

    def window(self, iteration: int) -> tuple[int, int]:
        """Start and end (ns) of an iteration, each the end of one: see `Timeline`."""
        ends = self.iteration_ends_ns
        index = range(len(ends))[iteration]
        return (ends[index - 1] if index else 0), ends[index]

    def frame(self) -> pd.DataFrame:
        """The spans as a pandas table, one row each, in order; its columns are `SPAN_COLUMNS`.

        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> timeline = Timeline(("compute",), ("conv1",), gpu=column(0), stream=column(0), name=column(0),
        ...     kind=column(SpanKind.COMPUTE), start_ns=column(0), end_ns=column(7), bytes=column(0), cause=column(-1),
        ...     iteration=column(0), resource=column(-1), resources=(), memories=(), iteration_ends_ns=(7,))
        >>> timeline.frame()[["stream", "kind", "name", "end_ns"]].to_dict("records")
        [{'stream': 'compute', 'kind': 'compute', 'name': 'conv1', 'end_ns': 7}]
        """
        import pandas as pd

        kinds = self.labels
        numbers = {pair: number for number, pair in enumerate(kinds)}
        pairs = zip(self.kind.tolist(), self.resource.tolist(), strict=True)
        kind = np.fromiter((numbers[pair] for pair in pairs), dtype=np.int64, count=len(self))
        labels = {
            "stream": (self.streams, self.stream),
            "kind": (tuple(kinds.values()), kind),
            "name": (self.names, self.name),
            "cause": (self.streams, self.cause),
        }
        # Position -1 is the empty text at the end.
        texts = {column: np.array([*names, ""], dtype=object)[index] for column, (names, index) in labels.items()}
        return pd.DataFrame({column: texts.get(column, getattr(self, column)) for column in SPAN_COLUMNS})

    def memory_frame(self) -> pd.DataFrame:
        """The memory samples as a pandas table, one row each; its columns are `MEMORY_COLUMNS`.

        Each value holds until the next sample of its memory; of several samples at one time the last one holds. With
        PyTorch's allocator there is a further column, `RESERVED_COLUMN`, without values for other memories.
        """
        import pandas as pd

        curves = self.memories
        counts = [len(curve.time_ns) for curve in curves]
        table = pd.DataFrame(
            {
                "gpu": np.repeat(np.array([curve.gpu for curve in curves], dtype=np.int64), counts),
                "memory": np.repeat(np.array([curve.memory for curve in curves], dtype=object), counts),
                "time_ns": np.concatenate([curve.time_ns for curve in curves]),
                "live_bytes": np.concatenate([curve.live for curve in curves]),
                "used_bytes": np.concatenate([curve.used for curve in curves]),
            },
            columns=list(MEMORY_COLUMNS),
        )
        if self.has_reserved:
            reserved = (
                [None] * count if curve.reserved is None else curve.reserved
                for curve, count in zip(curves, counts, strict=True)
            )
            parts = [pd.Series(pd.array(values, dtype="Int64")) for values in reserved]
            table[RESERVED_COLUMN] = pd.concat(parts, ignore_index=True)
        return table
