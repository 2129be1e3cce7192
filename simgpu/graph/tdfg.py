"""The task and data flow graph of moDNN (Chen et al., TPDS 2019, section 3.2) as a view of a task graph.

The paper defines it for an idealized network. For a trace it is read as follows:

* A task is a kernel. Forward kernels are FP, those of the optimizer BP3. A backward kernel is BP2 where it writes a
  gradient of a weight, BP1 where it writes anything else, and both where it writes both.
* Always resident (weights and their gradients in the paper) are persistent blocks other than inputs and labels that a
  kernel uses, blocks that backward writes for the optimizer or for other GPUs, and gradients of weights other than
  those that backward itself adds to others. Persistent blocks that the recording releases in mid-iteration are not.
* The published tasks are of layers, such as BP1 of layer 4. `layer_tasks` groups neighbouring kernels of a layer into
  such tasks: those of forward, those of backward that write only gradients of weights, and the others of backward.
* A block that is changed in place counts once. A kernel that writes a block that has a value already, without reading
  it, may overwrite only part of it (a piece of a concatenation), so that value is an input of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import algorithm_choices
from simgpu.trace.model import BlockKind, Phase

if TYPE_CHECKING:
    import networkx

HOST_INPUTS = (BlockKind.INPUT, BlockKind.LABEL)


class TaskKind(StrEnum):
    """The step of training that a task is (section 3.1)."""

    FP = "FP"
    BP1 = "BP1"
    BP2 = "BP2"
    BP1_BP2 = "BP1+BP2"
    BP3 = "BP3"


class Role(StrEnum):
    """The role of a block. `STATE`: persistent, but no weight. `OTHER`: does not outlive the iteration."""

    ACTIVATION = "X/Y"
    DELTA = "delta"
    WEIGHT_GRADIENT = "dW"
    WEIGHT = "W"
    STATE = "state"
    WORKSPACE = "workspace"
    OTHER = "other"


_ROLES = {
    BlockKind.INPUT: Role.ACTIVATION,
    BlockKind.LABEL: Role.ACTIVATION,
    BlockKind.ACTIVATION: Role.ACTIVATION,
    BlockKind.GRADIENT: Role.DELTA,
    BlockKind.WEIGHT: Role.WEIGHT,
    BlockKind.WEIGHT_GRADIENT: Role.WEIGHT_GRADIENT,
    BlockKind.OPTIMIZER_STATE: Role.STATE,
}


class TaskAlgorithm(NamedTuple):
    """One way to run a task: an algorithm, None for the graph's own; duration (ns), workspace (bytes, padded)."""

    algorithm: str | None
    duration_ns: int
    workspace: int


@dataclass(frozen=True, eq=False)
class Tdfg:
    """The task and data flow graph: everything indexed by kernel position k and block b, as in the task graph.

    sizes[b]: bytes with padding. kinds[k], roles[b]: see `TaskKind`, `Role`. resident: blocks that always reside.
    inputs[k], outputs[k]: I(t) and O(t), the blocks that task k reads and writes, without resident blocks and its
    workspace. ways[k]: how task k can be run, fastest first, then by workspace and name.

    >>> from simgpu.trace.chain import chain
    >>> tdfg = Tdfg.of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200])))
    >>> [kind.value for kind in tdfg.kinds]
    ['FP', 'FP', 'BP1', 'BP1']
    >>> [tdfg.graph.blocks[b].id for b in tdfg.inputs[2]], tdfg.bytes_of(tdfg.data(2))
    (['x2', 'x3'], 200)
    """

    graph: TaskGraph
    sizes: tuple[int, ...]
    kinds: tuple[TaskKind, ...]
    roles: tuple[Role, ...]
    resident: frozenset[int]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    ways: tuple[tuple[TaskAlgorithm, ...], ...]

    @classmethod
    def of(cls, graph: TaskGraph, alignment: int = 1) -> Tdfg:
        """The view of any graph, split or not. alignment: block sizes are multiples of this number of bytes."""
        sizes = tuple(padded(size, alignment) for size in graph.sizes)
        resident = _resident(graph)
        roles = _roles(graph, resident)
        inputs, outputs = [], []
        for k, (reads, writes) in enumerate(zip(graph.reads, graph.writes, strict=True)):
            needed = [*reads, *_partly_overwritten(graph, k)]
            inputs.append(_data(needed, resident, roles))
            outputs.append(_data(writes, resident, roles))
        return cls(
            graph,
            sizes,
            tuple(_kind(graph, roles, k) for k in range(len(graph.kernels))),
            roles,
            resident,
            tuple(inputs),
            tuple(outputs),
            _ways(graph, sizes, roles, alignment),
        )

    def data(self, k: int) -> tuple[int, ...]:
        """The blocks that task t reads or writes: moDNN's input set I(t) and output set O(t), without duplicates."""
        return tuple(dict.fromkeys((*self.inputs[k], *self.outputs[k])))

    def bytes_of(self, blocks: Iterable[int]) -> int:
        """Their sizes together."""
        return sum(self.sizes[b] for b in blocks)

    @cached_property
    def resident_bytes(self) -> int:
        """S_W: bytes of the always resident blocks."""
        return self.bytes_of(self.resident)

    @cached_property
    def tasks(self) -> tuple[int, ...]:
        """The tasks in order, without BP3, which the published graph omits."""
        return tuple(k for k, kind in enumerate(self.kinds) if kind is not TaskKind.BP3)

    @cached_property
    def layer_tasks(self) -> tuple[tuple[int, ...], ...]:
        """FP, BP1 and BP2 of each layer in order: the kernels of each, which are neighbours among `tasks`."""
        step_of = self.graph.layers.step_of
        groups = groupby(self.tasks, key=lambda k: (step_of[k], self.kinds[k] is TaskKind.BP2))
        return tuple(tuple(kernels) for _, kernels in groups)

    def fastest(self, k: int) -> TaskAlgorithm:
        """The fastest way to run task k."""
        return self.ways[k][0]

    def smallest(self, k: int) -> TaskAlgorithm:
        """The way of task k with the smallest workspace, the fastest of these (implicit GEMM, which needs none)."""
        return min(self.ways[k], key=lambda way: way.workspace)

    def to_networkx(self) -> networkx.DiGraph[tuple[str, ...]]:
        """Tasks and data blocks as an acyclic networkx graph, without BP3 as in figure 1.

        Nodes are ``("task", kernel id)`` with kind, op, layer and duration_ns, and ``("data", block id, version)`` with
        role, bytes and resident: each write creates a version; ``"0"`` is the one before the first write.
        """
        import networkx

        graph = self.graph
        network: networkx.DiGraph[tuple[str, ...]] = networkx.DiGraph()
        for k in self.tasks:
            kernel = graph.kernels[k]
            task = ("task", kernel.id)
            network.add_node(
                task, kind=self.kinds[k].value, op=kernel.op, layer=kernel.layer, duration_ns=graph.durations[k]
            )
            versions = dict(zip(graph.writes[k], graph.write_versions[k], strict=True))
            needed = dict(zip(graph.reads[k], graph.read_versions[k], strict=True))
            needed |= {b: versions[b] - 1 for b in _partly_overwritten(graph, k)}
            for b, version in needed.items():
                network.add_edge(self._node(network, b, version), task)
            for b, version in versions.items():
                network.add_edge(task, self._node(network, b, version))
        return network

    def _node(self, network: networkx.DiGraph[tuple[str, ...]], b: int, version: int) -> tuple[str, ...]:
        node = ("data", self.graph.blocks[b].id, str(version))
        network.add_node(node, role=self.roles[b].value, bytes=self.graph.sizes[b], resident=b in self.resident)
        return node


def padded(size: int, alignment: int) -> int:
    """Size rounded up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


def _partly_overwritten(graph: TaskGraph, k: int) -> list[int]:
    """Blocks that a kernel writes without reading them, though they have a value already."""
    reads = set(graph.reads[k])
    return [
        b
        for b, version in zip(graph.writes[k], graph.write_versions[k], strict=True)
        if b not in reads and (version > 1 or graph.blocks[b].persistent or graph.blocks[b].host_write is not None)
    ]


def _data(blocks: Iterable[int], resident: frozenset[int], roles: tuple[Role, ...]) -> tuple[int, ...]:
    return tuple(b for b in dict.fromkeys(blocks) if b not in resident and roles[b] is not Role.WORKSPACE)


def _resident(graph: TaskGraph) -> frozenset[int]:
    return frozenset(b for b in range(len(graph.blocks)) if _resides(graph, b))


def _resides(graph: TaskGraph, b: int) -> bool:
    if b in graph.held:
        return True
    block, uses = graph.blocks[b], graph.uses[b]
    phases = {graph.kernels[k].phase for k in uses}
    left_to_optimizer = Phase.OPTIMIZER in phases and len(phases) > 1
    if block.persistent:
        passing = block.kind in HOST_INPUTS or graph.recorded_releases[b] is not None
        return left_to_optimizer or not (uses and passing)
    return left_to_optimizer or (block.kind is BlockKind.WEIGHT_GRADIENT and not _added_to_another(graph, b))


def _added_to_another(graph: TaskGraph, b: int) -> bool:
    """Whether backward itself reads a gradient last: it is part of the gradient that is written there."""
    last = graph.uses[b][-1] if graph.uses[b] else None
    return last is not None and b not in graph.writes[last] and graph.kernels[last].phase is not Phase.OPTIMIZER


def _roles(graph: TaskGraph, resident: frozenset[int]) -> tuple[Role, ...]:
    return tuple(_role(graph, b, b in resident) for b in range(len(graph.blocks)))


def _role(graph: TaskGraph, b: int, resides: bool) -> Role:
    block, uses = graph.blocks[b], graph.uses[b]
    if block.kind is BlockKind.WORKSPACE and not block.persistent:
        return Role.WORKSPACE
    if block.kind in (BlockKind.GRADIENT, BlockKind.OTHER) and resides and not block.persistent:
        created_by = next((graph.kernels[k].phase for k in uses if b in graph.writes[k]), None)
        if created_by is Phase.BACKWARD:
            return Role.WEIGHT_GRADIENT
    return _ROLES.get(block.kind, Role.STATE if block.persistent else Role.OTHER)


def _kind(graph: TaskGraph, roles: tuple[Role, ...], k: int) -> TaskKind:
    phase = graph.kernels[k].phase
    if phase is not Phase.BACKWARD:
        return TaskKind.FP if phase is Phase.FORWARD else TaskKind.BP3
    written = {roles[b] for b in graph.writes[k]} - {Role.WORKSPACE}
    if Role.WEIGHT_GRADIENT not in written:
        return TaskKind.BP1
    return TaskKind.BP2 if len(written) == 1 else TaskKind.BP1_BP2


def _ways(
    graph: TaskGraph, sizes: tuple[int, ...], roles: tuple[Role, ...], alignment: int
) -> tuple[tuple[TaskAlgorithm, ...], ...]:
    choices = algorithm_choices(graph)
    ways = []
    for k, duration_ns in enumerate(graph.durations):
        listed = [
            TaskAlgorithm(choice.algorithm, choice.duration_ns, padded(choice.workspace_bytes, alignment))
            for choice in choices.get(k, ())
        ]
        own = TaskAlgorithm(None, duration_ns, sum(sizes[b] for b in graph.writes[k] if roles[b] is Role.WORKSPACE))
        if all((way.duration_ns, way.workspace) != (own.duration_ns, own.workspace) for way in listed):
            listed.append(own)
        ways.append(tuple(sorted(listed, key=lambda way: (way.duration_ns, way.workspace, way.algorithm or ""))))
    return tuple(ways)
