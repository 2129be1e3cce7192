"""Transforms: a task graph in, a new one out, the old one unchanged.

A transform may change durations, sizes and which kernels and blocks exist, but never the number of one: new ones are
appended. The exceptions are a split into sub-batches and another order of the kernels, which come first, and
replication, which comes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from simgpu.errors import ProgramError
from simgpu.graph.encodings import EncodedForm, Encoding
from simgpu.graph.taskgraph import TaskGraph, Transform
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel

#: The transform that was last applied to each living graph, and its result: planner, check and machine share it.
_LAST: WeakKeyDictionary[TaskGraph, tuple[Transform, TaskGraph]] = WeakKeyDictionary()


def transformed(graph: TaskGraph, transforms: Iterable[Transform]) -> TaskGraph:
    """The graph after these transforms, in order."""
    for transform in transforms:
        last = _LAST.get(graph)
        if last is None or last[0] != transform:
            last = _LAST[graph] = transform, transform.apply(graph)
        graph = last[1]
    return graph


def algorithm_choices(graph: TaskGraph) -> dict[int, tuple[AlgorithmChoice, ...]]:
    """For each kernel that has a choice, its algorithms from fastest to slowest (ties: less workspace, then name)."""
    choices: dict[int, list[AlgorithmChoice]] = {}
    for choice in graph.trace.algorithms:
        choices.setdefault(graph.kernel_number[choice.kernel], []).append(choice)
    return {
        k: tuple(sorted(listed, key=lambda c: (c.duration_ns, c.workspace_bytes, c.algorithm)))
        for k, listed in sorted(choices.items())
    }


@dataclass(frozen=True, slots=True)
class WithAlgorithms:
    """Run these kernels by these algorithms, (kernel position, algorithm name): see `with_algorithms`."""

    chosen: tuple[tuple[int, str], ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with these kernels run by these algorithms."""
        return with_algorithms(graph, dict(self.chosen))


def with_algorithms(graph: TaskGraph, chosen: Mapping[int, str]) -> TaskGraph:
    """The graph with those kernels run by those algorithms: their duration and their workspace change.

    chosen: kernel position to algorithm name. A kernel's workspace block gets the new size, which may be zero; a
    kernel that has none gets one, called ``workspace:<kernel>``, at the end of the blocks. Raises `ProgramError`
    for an unknown algorithm.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> choice = AlgorithmChoice("F1", "fft", duration_ns=2, workspace_bytes=50)
    >>> graph = TaskGraph.of(replace(chain([5], [7], [100]), algorithms=(choice,)))
    >>> faster = with_algorithms(graph, {0: "fft"})
    >>> faster.durations, faster.blocks[-1].id, faster.sizes[-1]
    ((2, 7), 'workspace:F1', 50)
    """
    table = {(graph.kernel_number[c.kernel], c.algorithm): c for c in graph.trace.algorithms}
    durations, sizes, compressed = list(graph.durations), list(graph.sizes), graph.compressed
    kernels, blocks = list(graph.kernels), list(graph.blocks)
    for k, name in sorted(chosen.items()):
        choice = table.get((k, name))
        if choice is None:
            raise ProgramError(f"kernel {kernels[k].id} has no algorithm '{name}'")
        durations[k] = choice.duration_ns
        if compressed is not None:
            compressed, durations[k] = compressed.with_duration(k, choice.duration_ns)
        workspaces = [b for b in graph.writes[k] if blocks[b].kind is BlockKind.WORKSPACE]
        for b in workspaces:
            sizes[b] = choice.workspace_bytes if b == workspaces[0] else 0
            compressed = None if compressed is None else compressed.without(b)
        if not workspaces and choice.workspace_bytes:
            block = Block(
                f"workspace:{kernels[k].id}", choice.workspace_bytes, BlockKind.WORKSPACE, release=kernels[k].id
            )
            blocks.append(block)
            sizes.append(block.bytes)
            kernels[k] = replace(kernels[k], writes=(*kernels[k].writes, block.id))
    changed = rebuilt(graph, kernels, blocks)
    return replace(changed, durations=tuple(durations), sizes=tuple(sizes), compressed=compressed)


def rebuilt(graph: TaskGraph, kernels: Sequence[Kernel], blocks: Sequence[Block]) -> TaskGraph:
    """The graph with these kernels and blocks; earlier changes of its own, which come first, are preserved."""
    new = TaskGraph.of(replace(graph.trace, kernels=tuple(kernels), blocks=tuple(blocks)))
    return replace(
        new,
        durations=(*graph.durations, *new.durations[len(graph.durations) :]),
        sizes=(*graph.sizes, *new.sizes[len(graph.sizes) :]),
        copy_sizes=(*graph.copy_sizes, *new.copy_sizes[len(graph.copy_sizes) :]),
        costs=graph.costs,
        encoded=graph.encoded,
        rounds=graph.rounds,
        rescaled=graph.rescaled,
        exchanged=graph.exchanged,
        compressed=graph.compressed,
        compression=graph.compression,
        plain=graph.plain,
    )


@dataclass(frozen=True, slots=True)
class WithEncodings:
    """Add encoded forms of these blocks: see `with_encodings`."""

    chosen: tuple[Encoding, ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the encoded forms at the end of its blocks."""
        return with_encodings(graph, self.chosen)


def with_encodings(graph: TaskGraph, chosen: Sequence[Encoding]) -> TaskGraph:
    """The graph with an encoded form for each of these, called ``<block>:<codec>``, at the end of its blocks in order.

    Raises `ProgramError` for a block that is encoded twice in one codec, or where the graph does not know costs.

    >>> from simgpu.trace.chain import chain
    >>> class Halves:
    ...     def sparsity(self, block): return 0.5
    ...     def is_known(self, block, codec): return True
    ...     def encoded_bytes(self, block, codec): return block.bytes // 2
    ...     def encode_ns(self, block, encoding): return 3
    ...     def decode_ns(self, block, encoding): return 4
    >>> graph = replace(TaskGraph.of(chain([5], [7], [100])), costs=Halves())
    >>> smaller = with_encodings(graph, [Encoding(0, "zvc")])
    >>> smaller.blocks[-1].id, smaller.sizes[-1], smaller.encoded[len(graph.blocks)]
    ('x1:zvc', 50, EncodedForm(block=0, encode_ns=3, decode_ns=4))
    """
    if graph.costs is None:
        raise ProgramError("the encoding costs of blocks are unknown on this node")
    blocks, encoded = list(graph.blocks), dict(graph.encoded)
    names = set(graph.block_number)
    for encoding in chosen:
        block = graph.blocks[encoding.block]
        name = f"{block.id}:{encoding.codec}"
        if name in names:
            raise ProgramError(f"block {block.id} is encoded in {encoding.codec} twice")
        names.add(name)
        encoded[len(blocks)] = EncodedForm(
            encoding.block, graph.costs.encode_ns(block, encoding), graph.costs.decode_ns(block, encoding)
        )
        size = graph.costs.encoded_bytes(block, encoding.codec)
        blocks.append(Block(name, size, BlockKind.OTHER, layer=block.layer))
    return replace(rebuilt(graph, graph.kernels, blocks), encoded=encoded)


@dataclass(frozen=True, slots=True)
class Uncompressed:
    """Allocate no block as compressed, whatever the node supports: see `uncompressed`."""

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph without compression."""
        return uncompressed(graph)


def uncompressed(graph: TaskGraph) -> TaskGraph:
    """The same tasks with blocks of their own size, by the same numbers.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> uncompressed(graph) is graph
    True
    """
    if graph.plain is None:
        return graph
    return graph.plain if graph.plain.exchanged == graph.exchanged else replace(graph.plain, exchanged=graph.exchanged)


class Unpacked(NamedTuple):
    """A saved tensor that returns to the device as memory of its own, not as the block that it was saved from.

    A framework that copies a saved tensor to the host and back has a new tensor then: a weight is on the device twice,
    a tensor that two operators saved returns twice, and of a view only its part.

    bytes: of the tensor. readers: positions of the kernels that read it in place of the block.
    """

    block: int
    bytes: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WithUnpacked:
    """Add a separate block for each of these saved tensors: see `with_unpacked`."""

    tensors: tuple[Unpacked, ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with a block for each of them at the end of its blocks."""
        return with_unpacked(graph, self.tensors)


def with_unpacked(graph: TaskGraph, tensors: Sequence[Unpacked]) -> TaskGraph:
    """The graph with a block for each of these, at the end of its blocks in order, which its readers read.

    The blocks are called ``<block>:saved``, ``<block>:saved2`` and so on. Each is a form of its block that takes no
    time to encode (`TaskGraph.encoded`), in the version that its readers read of the block. A reader of several reads
    them all. Raises `ProgramError` for a reader that does not read the block, or changes it.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> more = with_unpacked(graph, [Unpacked(graph.block("x1"), 60, readers=(3,))])
    >>> more.blocks[-1].id, more.sizes[-1], more.kernels[3].reads, more.kernels[0].reads
    ('x1:saved', 60, ('x1:saved', 'g2'), ('x1',))
    """
    blocks, encoded = list(graph.blocks), dict(graph.encoded)
    instead: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    count: defaultdict[int, int] = defaultdict(int)
    for block, size, readers in tensors:
        original = graph.blocks[block]
        for k in readers:
            if block not in graph.reads[k] or block in graph.writes[k]:
                raise ProgramError(f"kernel {graph.kernels[k].id} does not just read block {original.id}")
            instead[k, block].append(len(blocks))
        count[block] += 1
        name = f"{original.id}:saved" + (str(count[block]) if count[block] > 1 else "")
        encoded[len(blocks)] = EncodedForm(block, 0, 0)
        blocks.append(Block(name, size, BlockKind.OTHER, layer=original.layer))
    kernels = list(graph.kernels)
    for k in sorted({k for k, _ in instead}):
        read = (new for b in graph.reads[k] for new in instead.get((k, b), (b,)))
        kernels[k] = replace(kernels[k], reads=tuple(blocks[b].id for b in read))
    return in_versions(replace(rebuilt(graph, kernels, blocks), encoded=encoded))


def in_versions(graph: TaskGraph) -> TaskGraph:
    """The graph with forms of blocks read in the version that the block has by then; no kernel writes a form."""
    forms = graph.encoded
    version = [0] * len(graph.sizes)
    versions = []
    for k, reads in enumerate(graph.reads):
        versions.append(tuple(version[forms[b].block if b in forms else b] for b in reads))
        for b in graph.writes[k]:
            version[b] += 1
    return replace(graph, read_versions=tuple(versions))


@dataclass(frozen=True, slots=True)
class Repeating:
    """These kernels, by position, give the same result when they run again: see `repeating`."""

    kernels: tuple[int, ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph in which they may run again."""
        return repeating(graph, self.kernels)


def repeating(graph: TaskGraph, kernels: tuple[int, ...]) -> TaskGraph:
    """The graph in which these kernels are pure and change nothing that lasts beyond the iteration.

    PyTorch's checkpointing restores the random state before a part runs again, so that a dropout draws the same mask,
    and a batch norm finds the same batch. Running statistics then change a second time; no other kernel of the graph
    reads those, so here these kernels do not write them at all.

    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5], [7], [100])
    >>> dropout = replace(trace.kernels[0], op="aten::bernoulli_", pure=False)
    >>> drawn = replace(trace, kernels=(dropout, *trace.kernels[1:]))
    >>> repeating(TaskGraph.of(drawn), (0,)).kernels[0].pure
    True
    """
    persistent = {block.id for block in graph.blocks if block.persistent}
    changed = list(graph.kernels)
    for k in kernels:
        writes = tuple(name for name in changed[k].writes if name not in persistent)
        if not changed[k].pure or writes != changed[k].writes:
            changed[k] = replace(changed[k], pure=True, writes=writes)
    return in_versions(rebuilt(graph, changed, graph.blocks))
