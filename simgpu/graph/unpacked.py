"""Saved tensors that come back to the device as memory of their own, beside the blocks that they were saved from.

A framework that copies a saved tensor to the host and takes it back has a new tensor then, whatever became of the old
one: a weight is there twice, a tensor that two operators saved comes back twice, and of a view only its part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.graph.encodings import EncodedForm
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import rebuilt
from simgpu.trace.model import Block, BlockKind


class Unpacked(NamedTuple):
    """A saved tensor of a block: its bytes, and positions of the kernels that read it in place of the block."""

    block: int
    bytes: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WithUnpacked:
    """Give these saved tensors blocks of their own: see `with_unpacked`."""

    tensors: tuple[Unpacked, ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with a block for each of them at the end of its blocks."""
        return with_unpacked(graph, self.tensors)


def with_unpacked(graph: TaskGraph, tensors: Sequence[Unpacked]) -> TaskGraph:
    """The graph with a block for each of these, at the end of its blocks in order, which its readers read.

    The blocks are called ``<block>:saved``, ``<block>:saved2`` and so on. Each is a form of its block that costs no
    time to make (`TaskGraph.encoded`), in the version that its readers read of the block; several with one reader are
    all read by it. Raises `ProgramError` for a reader that does not read the block, or changes it.

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
    found = []
    for k, reads in enumerate(graph.reads):
        found.append(tuple(version[forms[b].block if b in forms else b] for b in reads))
        for b in graph.writes[k]:
            version[b] += 1
    return replace(graph, read_versions=tuple(found))
