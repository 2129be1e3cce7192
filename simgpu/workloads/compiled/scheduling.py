"""`scheduled` turns one pass of a split graph into kernels, as TorchInductor fuses operators.

A pointwise operator has no memory: whatever reads it computes it, unless a product, attention or a caller of the graph
reads it, or computing it takes many reads or operators and several others need it (``should_realize_on_reuse`` in
``torch/_inductor/ir.py``, PyTorch 2.13). Reductions have memory. Values that have memory are computed in one kernel if
they read common values or each other and no other kernel has to run in between.

Approximated: Inductor ranks fusions by score and splits kernels that get too large, and orders kernels for a low peak.
Here they run in the order of the graph, each as late as its result is needed. No kernel writes over what it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from simgpu.workloads.compiled.graph import GraphNode, NodeKind

#: An operator that several read is computed once if it reads more values (``realize_reads_threshold``), or takes more
#: operators (``realize_opcount_threshold``); and in any case from a number of reads (``realize_acc_reads_threshold``).
_READS, _OPERATORS, _MOST_READS = 4, 30, 8


@dataclass(slots=True, eq=False)
class GraphKernel:
    """One kernel. extern: its node if it is not generated. reads: nodes whose memory it reads. writes: nodes whose
    values it stores. computed: its operators. All in the order of the graph."""

    extern: GraphNode | None = None
    reads: dict[GraphNode, None] = field(default_factory=dict)
    writes: dict[GraphNode, None] = field(default_factory=dict)
    computed: dict[GraphNode, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Made:
    """reads: nodes with memory of which a value is computed. computed: the operators that do it, that of the value
    included."""

    reads: dict[GraphNode, None]
    computed: dict[GraphNode, None]


def scheduled(
    nodes: Sequence[GraphNode], given: Collection[GraphNode], outputs: Collection[GraphNode], *, backward: bool
) -> list[GraphKernel]:
    """The kernels that compute the outputs, in order.

    nodes: all that may run. given: those whose values exist. outputs: those that are stored. backward: whether nodes of
    the forward pass run only where one of the backward pass needs them.
    """
    exist = {*given, *(node.base for node in given)}
    needed = _needed(nodes, exist, outputs)
    pass_ = _Pass(exist, {node.base for node in outputs}, frozenset(needed))
    for node in needed:
        pass_.add(node)
    pass_.join(backward=backward)
    roots = [node for node in pass_.stored if node.backward or not backward or node in pass_.outputs]
    return pass_.kernels(roots)


def _needed(
    nodes: Sequence[GraphNode], given: Collection[GraphNode], outputs: Collection[GraphNode]
) -> list[GraphNode]:
    """The nodes that have to run, in order."""
    needed = set(outputs)
    for node in reversed(nodes):
        if node in needed and node not in given:
            needed.update(node.inputs)
    return [node for node in nodes if node in needed and node not in given]


class _Pass:
    """stored: the nodes that get memory. level: of each, the number of kernels that are not generated and have to run
    before. inlined: the others."""

    def __init__(
        self, given: Collection[GraphNode], outputs: Collection[GraphNode], needed: Collection[GraphNode]
    ) -> None:
        self.given, self.outputs, self.needed = given, outputs, needed
        self.stored: dict[GraphNode, _Made] = {}
        self.inlined: dict[GraphNode, _Made] = {}
        self.level: dict[GraphNode, int] = {}
        self._same: dict[object, GraphNode] = {}

    def add(self, node: GraphNode) -> None:
        """Decides whether a node gets memory."""
        made = _Made({}, {})
        for each in node.inputs:
            if each in self.given:
                made.reads[each.base] = None
            elif each in self.stored and not each.several:
                made.reads[each] = None
            else:
                inner = self.inlined.get(each) or self.stored[each]
                made.reads.update(inner.reads)
                made.computed.update(inner.computed)
        if node.kind is not NodeKind.VIEW:
            made.computed[node] = None
        if not self._has_memory(node, made):
            self.inlined[node] = made
            return
        self.stored[node] = made
        before = max((self.level.get(each, 0) for each in made.reads), default=0)
        self.level[node] = before + self._is_extern(node)

    def join(self, *, backward: bool) -> None:
        """Puts stored nodes in kernels. What backward computes again, and what reads nothing, runs as late as it is
        needed."""
        needed_at: dict[GraphNode, int] = {}
        for node in reversed(self.stored):
            is_late = not self.stored[node].reads or (backward and not node.backward)
            if is_late and not self._is_extern(node):
                self.level[node] = max(self.level[node], needed_at.get(node, 0))
            before = self.level[node] - self._is_extern(node)
            for each in self.stored[node].reads:
                needed_at[each] = min(before, needed_at.get(each, before))
        for node in self.stored:
            self._join(node)

    @staticmethod
    def _is_extern(node: GraphNode) -> bool:
        return node.kind is NodeKind.EXTERN or (node.kind is NodeKind.RESULT and node.inputs[0].kind is NodeKind.EXTERN)

    def _has_memory(self, node: GraphNode, made: _Made) -> bool:
        if node.kind is NodeKind.VIEW or node.several:
            return node.kind is NodeKind.EXTERN
        if node.kind in (NodeKind.EXTERN, NodeKind.REDUCTION, NodeKind.RESULT) or node in self.outputs:
            return True
        if any(self._readers_outside(node)):
            return True
        reads = len(made.reads)
        is_long = reads > _READS or len(made.computed) > _OPERATORS
        return reads > _MOST_READS or (is_long and sum(user in self.needed for user in node.users) > 1)

    def _readers_outside(self, node: GraphNode) -> Iterator[bool]:
        """For each reader, also of views, whether it is a kernel that is not generated."""
        for user in node.users:
            if user in self.needed:
                if user.kind is NodeKind.VIEW:
                    yield from self._readers_outside(user)
                yield user.kind is NodeKind.EXTERN

    def _join(self, node: GraphNode) -> None:
        """Puts a node in one kernel with those of its level that read what it reads, or that it reads."""
        self._same[node] = node
        if self._is_extern(node):
            if node.kind is NodeKind.RESULT:
                self._unite(node, node.inputs[0])
            return
        level = self.level[node]
        for each in self.stored[node].reads:
            if each in self.stored and self.level[each] == level and not self._is_extern(each):
                self._unite(node, each)
            key = each, level
            if key in self._same:
                self._unite(node, self._same[key])
            else:
                self._same[key] = node

    def _first(self, node: GraphNode) -> GraphNode:
        while (other := self._same[node]) is not node:
            self._same[node] = self._same[other]
            node = other
        return node

    def _unite(self, node: GraphNode, other: GraphNode) -> None:
        self._same[self._first(node)] = self._first(other)

    def kernels(self, roots: Sequence[GraphNode]) -> list[GraphKernel]:
        """The kernels, those of the roots in their order, others before the first that needs them."""
        kernel_of: dict[GraphNode, GraphKernel] = {}
        for node, made in self.stored.items():
            kernel = kernel_of.setdefault(self._first(node), GraphKernel())
            kernel_of[node] = kernel
            kernel.reads.update(made.reads)
            kernel.computed.update(made.computed)
            if node.kind is NodeKind.EXTERN:
                kernel.extern = node
        read = {each for node, made in self.stored.items() for each in self._outside(node, kernel_of)}
        for node in self.stored:
            kernel = kernel_of[node]
            kernel.reads.pop(node, None)
            if not node.several and (node in read or node in self.outputs or kernel.extern is not None):
                kernel.writes[node] = None
        return _in_order([kernel_of[node] for node in roots], kernel_of)

    def _outside(self, node: GraphNode, kernel_of: dict[GraphNode, GraphKernel]) -> Iterator[GraphNode]:
        """What a node reads that another kernel computes."""
        return (each for each in self.stored[node].reads if kernel_of.get(each) is not kernel_of[node])


def _in_order(roots: Sequence[GraphKernel], kernel_of: dict[GraphNode, GraphKernel]) -> list[GraphKernel]:
    """Each kernel behind those whose results it reads."""
    result: dict[GraphKernel, None] = {}
    for root in roots:
        stack = [root]
        while stack:
            kernel = stack[-1]
            before = [kernel_of[each] for each in kernel.reads if each in kernel_of and kernel_of[each] not in result]
            if kernel not in result and before:
                stack += before
                continue
            stack.pop()
            result.setdefault(kernel)
    return list(result)
