"""The trace as tasks: blocks with versions, uses and lifetimes, true dependencies between kernels.

Kernels and blocks are numbered by their position in the trace; programs and policies speak in these numbers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from simgpu.garbage import no_collection
from simgpu.graph.compressed import CompressedMemory
from simgpu.graph.encodings import EncodedForm, EncodingCosts
from simgpu.graph.layers import Layers, layers_of
from simgpu.hardware.spec import DEVICE
from simgpu.trace.model import RELEASED_AT_END, Block, Kernel, Phase, Trace

if TYPE_CHECKING:
    import networkx
    import numpy as np
    from numpy.typing import NDArray

#: Position that stands for "before the first kernel" where a kernel position is expected.
BEFORE = -1
#: Instead of a next use: there is none.
NEVER = 1 << 62


class Gap(NamedTuple):
    """Time between two uses of a block: it is not touched after kernel `after` until kernel `before`."""

    block: int
    after: int
    before: int


class Exchanged(NamedTuple):
    """A weight that several GPUs update together, its gradient, and its optimizer's state: ids of blocks."""

    weight: str
    gradient: str
    state: tuple[str, ...] = ()


class Round(NamedTuple):
    """Kernels from `first` up to `stop` that run together `repeat` times before the next round begins."""

    first: int
    stop: int
    repeat: int


class GraphColumns(NamedTuple):
    """Numbers of a `TaskGraph` as arrays of the same names."""

    durations: NDArray[np.int64]
    sizes: NDArray[np.int64]
    copy_sizes: NDArray[np.int64]


class Transform(Protocol):
    """A change of a graph as a value, so that a program can carry it."""

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The changed graph."""
        ...


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """One iteration as tasks. Everything is indexed by position: kernel k, block b.

    reads[k], writes[k]: blocks; read_versions[k], write_versions[k]: their versions in the same order. A block
    starts at version 0 and every write makes the next version. uses[b]: the kernels that touch b, ascending.
    last_version[b]: after all kernels.

    durations[k]: nanoseconds; sizes[b]: bytes of device memory that the block takes; copy_sizes[b]: bytes of a copy of
    it on the link and on the host. Transforms and hardware may change these three from the recorded values, which
    `kernels` and `blocks` still have. streams[k]: number of the compute stream.

    costs: of encoding blocks on the node, None if unknown. encoded[b]: of which block b is an encoded form, and its
    codec times. rounds: which kernels repeat, in order; a single round unless the batch is split. rescaled: makes the
    tasks at another batch size on the node, None for the default. exchanged: what GPUs exchange in data parallelism
    (`simgpu.graph.updates`); these gradients live to the iteration's end, whatever was recorded.

    compressed: the compressed memory, None without compression; then compression is the transform that compressed the
    graph, and plain the same tasks without it.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain(forward_ns=[5, 7], backward_ns=[10, 14], bytes_=[100, 200]))
    >>> graph.ideal_ns(), graph.uses[graph.block("x1")]
    (36, (0, 3))
    """

    trace: Trace
    durations: tuple[int, ...]
    sizes: tuple[int, ...]
    copy_sizes: tuple[int, ...]
    streams: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    read_versions: tuple[tuple[int, ...], ...]
    write_versions: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[int, ...], ...]
    last_version: tuple[int, ...]
    costs: EncodingCosts | None = None
    encoded: Mapping[int, EncodedForm] = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    rescaled: Callable[[int], TaskGraph] | None = field(default=None, repr=False)
    exchanged: tuple[Exchanged, ...] = ()
    compressed: CompressedMemory | None = field(default=None, repr=False)
    compression: Transform | None = field(default=None, repr=False)
    plain: TaskGraph | None = field(default=None, repr=False)

    @classmethod
    @no_collection()
    def of(cls, trace: Trace) -> TaskGraph:
        """The task graph of a checked trace."""
        from simgpu.graph.versions import Versions, grouped, known_groups, shared
        from simgpu.trace.accesses import accesses_of

        # A large graph is mostly numbers and small tuples, so equal ones are one object.
        numbers = list(range(max(len(trace.kernels), len(trace.blocks))))
        known = known_groups(len(trace.kernels))
        # Programs number streams from 0, whatever their numbers in the recording.
        streams = {
            recorded: place for place, recorded in enumerate(sorted({kernel.stream for kernel in trace.kernels}))
        }
        accesses = accesses_of(trace)
        reads, writes = (
            shared(grouped(map(numbers.__getitem__, blocks.tolist()), counts), known)
            for blocks, counts in ((accesses.reads, accesses.read_counts), (accesses.writes, accesses.write_counts))
        )
        del known
        versions = Versions.of(accesses, len(trace.blocks), numbers)
        sizes = tuple([block.bytes for block in trace.blocks])
        return cls(
            trace=trace,
            durations=tuple([kernel.duration_ns for kernel in trace.kernels]),
            sizes=sizes,
            copy_sizes=sizes,
            streams=tuple([streams[kernel.stream] for kernel in trace.kernels]),
            reads=reads,
            writes=writes,
            read_versions=versions.read,
            write_versions=versions.written,
            uses=versions.uses,
            last_version=versions.last,
            rounds=(Round(0, len(trace.kernels), 1),),
        )

    def at_batch(self, batch: int) -> TaskGraph:
        """The same tasks with another number of samples. Raises `InputError` where that is unknown."""
        if batch == self.trace.info.batch:
            return self
        if self.rescaled is not None:
            return self.rescaled(batch)
        from simgpu.workloads.rescale import at_batch

        return TaskGraph.of(at_batch(self.trace, batch))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The trace's kernels, in order."""
        return self.trace.kernels

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The trace's blocks, in order."""
        return self.trace.blocks

    @cached_property
    def kernel_number(self) -> dict[str, int]:
        """Kernel id to position."""
        return {kernel.id: k for k, kernel in enumerate(self.kernels)}

    @cached_property
    def block_number(self) -> dict[str, int]:
        """Block id to position."""
        return {block.id: b for b, block in enumerate(self.blocks)}

    def block(self, name: str) -> int:
        """Position of the block with that id."""
        return self.block_number[name]

    def kernel(self, name: str) -> int:
        """Position of the kernel with that id."""
        return self.kernel_number[name]

    def sizes_in(self, memory: str) -> tuple[int, ...]:
        """Bytes that each block takes in a memory: its copies may be smaller than the block in device memory."""
        return self.sizes if memory == DEVICE else self.copy_sizes

    @cached_property
    def kept(self) -> dict[tuple[object, ...], Any]:
        """What others have found out about the graph, as long as it lives. Keys begin with a name of what it is."""
        return {}

    @cached_property
    def columns(self) -> GraphColumns:
        """Durations and sizes as arrays. Raises `OverflowError` for numbers of more than 64 bits."""
        import numpy as np

        durations, sizes = (np.array(each, dtype=np.int64) for each in (self.durations, self.sizes))
        same = self.copy_sizes is self.sizes
        return GraphColumns(durations, sizes, sizes if same else np.array(self.copy_sizes, dtype=np.int64))

    @cached_property
    def layers(self) -> Layers:
        """The layers, from the trace's tags or derived from its blocks."""
        return layers_of(self.trace)

    @cached_property
    def is_forward(self) -> tuple[bool, ...]:
        """For each kernel, whether it belongs to forward."""
        return tuple([kernel.phase is Phase.FORWARD for kernel in self.kernels])

    @cached_property
    def compute_streams(self) -> tuple[int, ...]:
        """Numbers of the compute streams in use, ascending from 0 in the order of the trace's own."""
        return tuple(sorted(set(self.streams)))

    # --- lifetimes ------------------------------------------------------------------------------------------

    @cached_property
    def held(self) -> frozenset[int]:
        """Gradients that are exchanged between GPUs: not released before the iteration's end."""
        return frozenset(self.block(each.gradient) for each in self.exchanged)

    @cached_property
    def written_by_host(self) -> frozenset[int]:
        """The blocks whose values the host writes in mid-iteration."""
        return frozenset(b for b, block in enumerate(self.blocks) if block.host_write is not None)

    @cached_property
    def births(self) -> tuple[int | None, ...]:
        """Kernel at whose start each block comes to life: `BEFORE` for persistent blocks, None for unused ones."""
        births: list[int | None] = []
        for b, block in enumerate(self.blocks):
            if block.persistent:
                births.append(BEFORE)
            elif block.host_write is not None:
                births.append(self.kernel_number[block.host_write])
            else:
                births.append(self.uses[b][0] if self.uses[b] else None)
        return tuple(births)

    @cached_property
    def recorded_releases(self) -> tuple[int | None, ...]:
        """Kernel after whose end the framework released each block; None where it held it to the end.

        Where that is not recorded, the last use stands in for it.
        """
        releases: list[int | None] = []
        held = self.held
        for b, (block, last_need) in enumerate(zip(self.blocks, self._last_needs, strict=True)):
            if b in held:
                releases.append(None)
            elif block.release is not None:
                releases.append(None if block.release == RELEASED_AT_END else self.kernel_number[block.release])
            else:
                releases.append(None if block.persistent else last_need)
        return tuple(releases)

    @cached_property
    def needed_releases(self) -> tuple[int | None, ...]:
        """Kernel after whose end no value of each block is needed any more; None for blocks that stay.

        A persistent block stays unless the recording releases it in mid-iteration, a gradient if it is exchanged.
        """
        held = self.held
        releases = zip(self.blocks, self.recorded_releases, self._last_needs, strict=True)
        return tuple(
            [
                None if (block.persistent and recorded is None) or b in held else last_need
                for b, (block, recorded, last_need) in enumerate(releases)
            ]
        )

    @cached_property
    def _last_needs(self) -> list[int | None]:
        """The last use of each block, its birth for one that is not used."""
        return [uses[-1] if uses else birth for uses, birth in zip(self.uses, self.births, strict=True)]

    @property
    def open_lifetimes(self) -> tuple[int, int]:
        """The number of blocks with unrecorded lifetime, and of all blocks; persistent blocks do not count."""
        passing = [block for b, block in enumerate(self.blocks) if not block.persistent and b not in self.held]
        return sum(block.release is None for block in passing), len(passing)

    # --- uses and dependencies ------------------------------------------------------------------------------

    def gaps(self, b: int) -> Iterator[Gap]:
        """The gaps of a block: pairs of neighbouring uses with at least one kernel between them."""
        uses = self.uses[b]
        for after, before in itertools.pairwise(uses):
            if before - after > 1:
                yield Gap(b, after, before)

    def next_use(self, b: int, k: int) -> int | None:
        """The first kernel after k that touches b, or None."""
        uses = self.uses[b]
        index = bisect_right(uses, k)
        return uses[index] if index < len(uses) else None

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, the kernels it must follow.

        They are the writers of the blocks it reads, the users of those it overwrites, and for a block that the host
        initializes in mid-iteration the kernel for which it did so.
        """
        births = [BEFORE if birth is None else birth for birth in self.births]
        writer = [BEFORE] * len(self.sizes)
        readers: list[list[int]] = [[] for _ in self.sizes]
        result = []
        for k, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            before = {writer[b] for b in reads}
            before.update(births[b] for b in reads if self.blocks[b].host_write is not None)
            for b in writes:
                before.add(writer[b])
                before.update(readers[b])
            before.discard(BEFORE)
            before.discard(k)
            result.append(tuple(sorted(before)))
            for b in reads:
                readers[b].append(k)
            for b in writes:
                writer[b] = k
                readers[b] = []
        return tuple(result)

    def ideal_ns(self, launch_ns: int = 0) -> int:
        """Iteration time with unlimited memory and no transfers, nanoseconds.

        On one compute stream the sum of the durations; on several, every kernel starts as soon as its stream is
        free and its predecessors have ended. A round begins when the one before has ended. launch_ns: in which the host
        launches a kernel, which starts no earlier; at the beginning, none is launched.
        """
        if launch_ns == 0 and len(self.compute_streams) <= 1:
            return sum(part.repeat * sum(self.durations[part.first : part.stop]) for part in self.rounds)
        if launch_ns == 0:
            return sum(part.repeat * self._ended(part) for part in self.rounds)
        ended = launched = 0
        for part in self.rounds:
            for _ in range(part.repeat):
                ended = self._ended(part, ended, launched, launch_ns)
                launched += (part.stop - part.first) * launch_ns
        return ended

    def _ended(self, part: Round, begun: int = 0, launched: int = 0, launch_ns: int = 0) -> int:
        """When a round ends that begins at a time. launched: when the host begins to launch its kernels."""
        ends: dict[int, int] = {}
        free = dict.fromkeys(self.compute_streams, begun)
        for k in range(part.first, part.stop):
            launched += launch_ns
            start = max([launched, free[self.streams[k]], *(ends.get(p, 0) for p in self.predecessors[k])])
            ends[k] = free[self.streams[k]] = start + self.durations[k]
        return max(ends.values(), default=begun)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """The dependencies as a networkx graph over kernel ids; nodes carry op, phase, duration_ns and layer."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for k, kernel in enumerate(self.kernels):
            layer = self.layers.name_of(k)
            graph.add_node(
                kernel.id, op=kernel.op, phase=kernel.phase.value, duration_ns=self.durations[k], layer=layer
            )
        for k, before in enumerate(self.predecessors):
            graph.add_edges_from((self.kernels[p].id, self.kernels[k].id) for p in before)
        return graph
