"""One GPU of several that train together: kernels that exchange data with the others, and shards of what they share.

The transform inserts kernels, so kernels have new numbers, and it comes after all others but buffers; blocks keep
theirs. A collective is a kernel of a compute stream of its own in the graph: it runs while others compute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simgpu.errors import InputError
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace


class AddedKernel(NamedTuple):
    """A kernel in front of kernel `before` of the graph, behind those added there earlier.

    reads, writes: blocks; added ones have the numbers that follow those of the graph. collective: whether it exchanges
    data with other GPUs.
    """

    before: int
    id: str
    op: str
    phase: str
    duration_ns: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    collective: bool = True


class AddedBlock(NamedTuple):
    """A block at the end of the graph's blocks. lasts: from one iteration to the next."""

    id: str
    bytes: int
    kind: str
    lasts: bool = False


@dataclass(frozen=True, slots=True)
class WithCollectives:
    """Add kernels and blocks, and change others: see `with_collectives`.

    sizes: (block, bytes) of those with another size. shards: (block, added block) that the optimizer accesses instead.
    durations: (kernel, ns) of those that take another time. gathered: weights that exist only where an added kernel
    has written them, always with the same value. left_out: kernels that do not run.
    """

    kernels: tuple[AddedKernel, ...]
    blocks: tuple[AddedBlock, ...]
    sizes: tuple[tuple[int, int], ...] = ()
    shards: tuple[tuple[int, int], ...] = ()
    durations: tuple[tuple[int, int], ...] = ()
    gathered: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the collectives."""
        return with_collectives(graph, self).graph


@dataclass(frozen=True, slots=True)
class Exchanges:
    """A graph with collectives.

    kernels[k]: the new number of kernel k, None if it is left out; added: of each added kernel, in order.
    """

    graph: TaskGraph
    kernels: tuple[int | None, ...]
    added: tuple[int, ...]


def with_collectives(graph: TaskGraph, how: WithCollectives) -> Exchanges:
    """The tasks with collectives. Raises `InputError` for a graph in compressed memory.

    >>> from simgpu.trace.model import Origin, TraceInfo
    >>> backward = Kernel("B", "op", Phase.BACKWARD, 10, ("w",), ("w.grad",))
    >>> step = Kernel("step", "sgd", Phase.OPTIMIZER, 1, ("w", "w.grad"), ("w",))
    >>> info = TraceInfo("one layer", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> weight = Block("w", 100, BlockKind.WEIGHT, persistent=True)
    >>> graph = TaskGraph.of(Trace(info, (backward, step), (weight, Block("w.grad", 100, BlockKind.WEIGHT_GRADIENT))))
    >>> reduce = AddedKernel(1, "all_reduce", "all_reduce", "backward", 30, (1,), (1,))
    >>> exchanges = with_collectives(graph, WithCollectives((reduce,), ()))
    >>> [kernel.id for kernel in exchanges.graph.kernels], exchanges.kernels, exchanges.added
    (['B', 'all_reduce', 'step'], (0, 2), (1,))
    """
    if graph.compressed is not None:
        what = "blocks are in compressed memory, which is not simulated together with collectives"
        raise InputError.single("", "node.gpu.buddy", what, "choose a node without it")
    blocks = _blocks(graph, how)
    names = tuple(block.id for block in blocks)
    own, other = graph.kernels[0].stream, 1 + max(kernel.stream for kernel in graph.kernels)
    shards, durations = dict(how.shards), [*graph.durations]
    for k, duration_ns in how.durations:
        durations[k] = duration_ns
    placed = [(k, 1, k) for k in range(len(graph.kernels)) if k not in set(how.left_out)]
    placed += [(each.before, 0, n) for n, each in enumerate(how.kernels)]
    kernels: list[Kernel] = []
    times: list[int] = []
    numbers: list[int | None] = [None] * len(graph.kernels)
    added = [0] * len(how.kernels)
    for _, is_own, n in sorted(placed):
        if is_own:
            numbers[n] = len(kernels)
            kernels.append(_on_shards(graph, n, shards, names))
            times.append(durations[n])
        else:
            added[n] = len(kernels)
            each = how.kernels[n]
            reads, writes = (tuple(names[b] for b in part) for part in (each.reads, each.writes))
            stream = other if each.collective else own
            kernels.append(Kernel(each.id, each.op, Phase(each.phase), 0, reads, writes, None, stream, pure=False))
            times.append(each.duration_ns)
    new = TaskGraph.of(Trace(graph.trace.info, tuple(kernels), blocks, name=graph.trace.name))
    earlier = sorted(each.before for each in how.kernels)
    changed = replace(
        new,
        durations=tuple(times),
        sizes=_sizes(graph.sizes, blocks, how),
        copy_sizes=_sizes(graph.copy_sizes, blocks, how),
        costs=graph.costs,
        encoded=graph.encoded,
        rounds=tuple(_shifted(part, earlier, len(graph.kernels), len(kernels)) for part in graph.rounds),
        compression=graph.compression,
        plain=graph.plain,
    )
    return Exchanges(_in_versions(changed, frozenset(how.gathered)), tuple(numbers), tuple(added))


def _blocks(graph: TaskGraph, how: WithCollectives) -> tuple[Block, ...]:
    """The blocks with their new sizes; those that are gathered, or have a shard, end where a program releases them."""
    sizes, passing = dict(how.sizes), {*how.gathered, *(b for b, _ in how.shards)}
    blocks = [
        replace(block, bytes=sizes.get(b, block.bytes), persistent=False, release=None)
        if b in passing
        else replace(block, bytes=sizes[b])
        if b in sizes
        else block
        for b, block in enumerate(graph.blocks)
    ]
    blocks += (Block(each.id, each.bytes, BlockKind(each.kind), persistent=each.lasts) for each in how.blocks)
    return tuple(blocks)


def _sizes(before: Sequence[int], blocks: Sequence[Block], how: WithCollectives) -> tuple[int, ...]:
    sizes = [*before, *(each.bytes for each in how.blocks)]
    for b, size in how.sizes:
        sizes[b] = size
    assert len(sizes) == len(blocks)
    return tuple(sizes)


def _on_shards(graph: TaskGraph, k: int, shards: Mapping[int, int], names: Sequence[str]) -> Kernel:
    """Kernel k, which accesses shards if it belongs to the optimizer."""
    kernel = replace(graph.kernels[k], start_ns=None)
    if kernel.phase is not Phase.OPTIMIZER:
        return kernel
    reads, writes = (
        tuple(dict.fromkeys(names[shards.get(b, b)] for b in part)) for part in (graph.reads[k], graph.writes[k])
    )
    return replace(kernel, reads=reads, writes=writes)


def _shifted(part: Round, earlier: Sequence[int], count: int, now: int) -> Round:
    """A round with the kernels that are added in it. earlier: kernels that something is added in front of, sorted.

    count, now: kernels before and after. Where kernels are left out, there is one round.
    """
    first, stop = (at + bisect_left(earlier, at) for at in (part.first, part.stop))
    return Round(first, stop if part.stop < count else now, part.repeat)


def _in_versions(graph: TaskGraph, gathered: frozenset[int]) -> TaskGraph:
    """The graph in which each gather of a weight writes the same version, which all kernels read.

    Forms of blocks are read in the version that the block has by then, as in `simgpu.graph.transforms.in_versions`.
    """
    version = [0] * len(graph.sizes)
    read, written = [], []
    for reads, writes in zip(graph.reads, graph.writes, strict=True):
        read.append(tuple(version[graph.encoded[b].block if b in graph.encoded else b] for b in reads))
        for b in writes:
            version[b] = 1 if b in gathered else version[b] + 1
        written.append(tuple(version[b] for b in writes))
    return replace(graph, read_versions=tuple(read), write_versions=tuple(written), last_version=tuple(version))
