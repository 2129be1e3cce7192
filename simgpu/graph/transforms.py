"""Pure transforms: a task graph in, a new one out, the old one untouched.

A transform may change durations, sizes and what exists, but never the position of a kernel or block: new ones are
appended, so numbers that a policy has noted stay true. The exception is a split into sub-batches, which comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary

from simgpu.errors import ProgramError
from simgpu.graph.encodings import EncodedForm, Encoding
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel


class Transform(Protocol):
    """A change of a graph as a value, so that a program can carry it."""

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The changed graph."""
        ...


#: What became of a graph by the transform that was last applied to it, for as long as the graph itself lives: planner,
#: check and machine all ask for the same.
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
        k: tuple(sorted(found, key=lambda c: (c.duration_ns, c.workspace_bytes, c.algorithm)))
        for k, found in sorted(choices.items())
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
            compressed, durations[k] = compressed.taking(k, choice.duration_ns)
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
    """The graph with these kernels and blocks, the first of which are its own; what was changed about them is kept."""
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
    )


@dataclass(frozen=True, slots=True)
class WithEncodings:
    """Give these blocks encoded forms: see `with_encodings`."""

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
        raise ProgramError("nothing is known of what encoding blocks costs on this node")
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
