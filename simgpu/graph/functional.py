"""A graph in which every write makes a new block, and every kernel gives the same result again.

DTR sees a network so: its prototype in PyTorch copies a tensor before an operator changes it, and runs any operator
again, also a batch norm, which then moves its running statistics once more (Kirisame et al., ICLR 2021, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import rebuilt
from simgpu.trace.model import RELEASED_AT_END, Block


@dataclass(frozen=True, slots=True)
class Functional:
    """A kernel that changes or overwrites a block makes a new one instead, and kernels are pure.

    Persistent blocks still change in place: weights, optimizer state, running statistics. A kernel that does so is as
    pure as it was.

    The new block is called like the old one, with an apostrophe more; it lives on as the old one did, which is free
    after the kernel. Constants, which no kernel makes, live to the iteration's end: others may be made of them.

    >>> from simgpu.trace.model import BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
    >>> blocks = Block("x", 8, BlockKind.INPUT, persistent=True), Block("y", 8, BlockKind.ACTIVATION)
    >>> add = Kernel("a", "add", Phase.FORWARD, 5, ("x",), ("y",))
    >>> relu = Kernel("r", "relu_", Phase.FORWARD, 5, ("y",), ("y",))
    >>> info = TraceInfo("example", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> graph = Functional().apply(TaskGraph.of(Trace(info, (add, relu), blocks)))
    >>> [(kernel.reads, kernel.writes) for kernel in graph.kernels]
    [(('x',), ('y',)), (('y',), ("y'",))]
    """

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph without operators in place."""
        blocks = {block.id: _held(block) for block in graph.blocks}
        now = {name: name for name in blocks}
        #: By block, the kernel that used it last; blocks that have a value before any kernel writes them are there.
        last = {block.id: block.host_write for block in graph.blocks if block.host_write is not None}
        kernels = []
        for kernel in graph.kernels:
            reads = tuple(now[name] for name in kernel.reads)
            last |= dict.fromkeys(reads, kernel.id)
            writes = []
            for name in kernel.writes:
                old = now[name]
                if old in last and not blocks[old].persistent:
                    now[name] = f"{old}'"
                    blocks[now[name]] = replace(blocks[old], id=now[name], host_write=None)
                    if blocks[old].host_write is None:
                        blocks[old] = replace(blocks[old], release=last[old])
                last[now[name]] = kernel.id
                writes.append(now[name])
            changes = any(name in kernel.reads and blocks[name].persistent for name in kernel.writes)
            kernels.append(replace(kernel, reads=reads, writes=tuple(writes), pure=kernel.pure if changes else True))
        return rebuilt(graph, kernels, list(blocks.values()))


def _held(block: Block) -> Block:
    """The block; one that no kernel makes lives to the iteration's end."""
    if block.persistent:
        return replace(block, release=None)
    return block if block.host_write is None else replace(block, release=RELEASED_AT_END)
