"""`saved_nodes`: what a compiled graph keeps from forward for backward, as PyTorch's partitioner decides.

``min_cut_rematerialization_partition`` (``torch/_functorch/partitioners.py``, PyTorch 2.13, with its default settings
for TorchInductor): of all sets of values from which backward can be computed without running again what must not run
again, it takes the one with the least bytes, which count more the further a value is from backward. What must not run
again are products, attention, what is no listed operator, what another kernel than a generated one reads in backward,
reductions, and operators that are far from others that read the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import networkx as nx

from simgpu.workloads.compiled.graph import GraphNode, Joint, NodeKind

#: A chain of fusible operators longer than this ends with one that does not run again.
_LONGEST_CHAIN = 100
#: Bytes count this much more for each operator between a value and backward, up to a number of these.
_FURTHER, _MOST_FURTHER = 1.1, 100
#: A distance of what backward does not need.
_UNUSED = 10**9
_FUSIBLE = frozenset((NodeKind.VIEW, NodeKind.POINTWISE, NodeKind.REDUCTION, NodeKind.RESULT))
#: Inputs of forward.
_GIVEN = frozenset((NodeKind.INPUT, NodeKind.STATIC))


def saved_nodes(joint: Joint) -> list[GraphNode]:
    """The nodes, inputs included, whose values forward keeps for backward, in the order of the graph.

    >>> from simgpu.workloads.compiled.graph import simplified
    >>> x = GraphNode("x", NodeKind.INPUT, (), (8,), "float32")
    >>> y = GraphNode("exp", NodeKind.POINTWISE, (x,), (8,), "float32")
    >>> z = GraphNode("neg", NodeKind.POINTWISE, (y,), (8,), "float32")
    >>> grad = GraphNode("grad", NodeKind.TANGENT, (), (8,), "float32")
    >>> of_x = GraphNode("mul", NodeKind.POINTWISE, (grad, y), (8,), "float32", backward=True)
    >>> [node.op for node in saved_nodes(simplified(Joint([x, y, z, grad, of_x], [z], [of_x])))]  # exp runs again
    ['x']
    """
    return _Partition.of(joint).saved()


def forward_nodes(joint: Joint) -> set[GraphNode]:
    """The inputs of forward, and the nodes of which its results depend."""
    needed, stack = set(joint.results), list(joint.results)
    while stack:
        for each in stack.pop().inputs:
            if each not in needed:
                needed.add(each)
                stack.append(each)
    return needed | {node for node in joint.nodes if node.kind in _GIVEN}


def _after(nodes: Iterable[GraphNode]) -> set[GraphNode]:
    """The gradients that backward is given, and what depends on them."""
    result: set[GraphNode] = set()
    for node in nodes:
        if node.kind is NodeKind.TANGENT or any(each in result for each in node.inputs):
            result.add(node)
    return result


def _is_fusible(first: GraphNode, second: GraphNode) -> bool:
    return second.op == "cat" or (first.kind in _FUSIBLE and second.kind in _FUSIBLE)


@dataclass(slots=True)
class _Partition:
    """returned: results of both passes. forward: nodes that its results need, with their order. backward: nodes that
    depend on gradients of results. needed: these, and what backward returns. distance: operators between a node and
    backward. banned: what does not run again."""

    joint: Joint
    returned: frozenset[GraphNode]
    forward: dict[GraphNode, int]
    backward: set[GraphNode]
    needed: set[GraphNode]
    distance: dict[GraphNode, int]
    banned: set[GraphNode]

    @classmethod
    def of(cls, joint: Joint) -> _Partition:
        required, backward = forward_nodes(joint), _after(joint.nodes)
        forward = {node: order for order, node in enumerate(each for each in joint.nodes if each in required)}
        distance: dict[GraphNode, int] = {}
        for node in reversed(joint.nodes):
            closest = min((distance[user] + 1 for user in node.users), default=_UNUSED)
            distance[node] = min(closest, _UNUSED) if node in forward else 0
        returned = frozenset((*joint.results, *joint.gradients))
        return cls(joint, returned, forward, backward, backward | set(joint.gradients), distance, set())

    def saved(self) -> list[GraphNode]:
        if not self.backward:
            return []
        graph: nx.DiGraph[object] = nx.DiGraph()
        for node in self.joint.nodes:
            self._add(graph, node)
        for rule in (self._used_far_apart, self._ends_of_chains):
            for node in rule():
                self._ban(graph, node)
        _, (reachable, _) = nx.minimum_cut(graph, "source", "sink")
        return [
            node
            for node in self.joint.nodes
            if (node, 0) in reachable and graph.has_node((node, 1)) and (node, 1) not in reachable
        ]

    def _add(self, graph: nx.DiGraph[object], node: GraphNode) -> None:
        if node in self.backward:
            graph.add_edge((node, 0), "sink", capacity=inf)
            return
        if node in self.needed:
            graph.add_edge((node, 1), "sink", capacity=inf)
        if node.kind in _GIVEN or (node in self.forward and self._must_not_run_again(node)):
            self._ban(graph, node)
        graph.add_edge((node, 0), (node, 1), capacity=self._weight(node))
        for user in node.users:
            graph.add_edge((node, 1), (user, 0), capacity=inf)

    def _ban(self, graph: nx.DiGraph[object], node: GraphNode) -> None:
        if node.kind is not NodeKind.VIEW:
            self.banned.add(node)
            graph.add_edge("source", (node, 0), capacity=inf)

    def _must_not_run_again(self, node: GraphNode) -> bool:
        if node.kind is NodeKind.RESULT:
            return False
        if node.kind not in _FUSIBLE or self._is_materialized_in_backward(node):
            return True
        return sum(each.bytes for each in node.inputs) > 4 * _size(node)

    def _is_materialized_in_backward(self, node: GraphNode) -> bool:
        """Whether forward returns it, or another kernel than a generated one reads it in backward; also as a view."""
        if node.kind is NodeKind.VIEW:
            return False
        stack, seen = [node], {node}
        while stack:
            current = stack.pop()
            if current in self.returned:
                return True
            for user in current.users:
                if user not in self.forward and not _is_fusible(current, user):
                    return True
                if user.kind is NodeKind.VIEW and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return False

    def _weight(self, node: GraphNode) -> float:
        if node.several:
            return inf
        if node.kind is NodeKind.STATIC:
            return 0
        size = int(node.bytes * _FURTHER ** max(min(self.distance[node], _MOST_FURTHER), 1))
        is_input = node.kind in _GIVEN
        has_memory = is_input or node in self.returned or not all(_is_fusible(node, user) for user in node.users)
        return size if has_memory else 2 * size

    def _used_far_apart(self) -> Iterator[GraphNode]:
        """Operators that read a value behind another reader's chain of fusible operators."""
        for node in self.forward:
            users = [user for user in node.users if user in self.forward]
            if not users:
                continue
            end = self._first_not_fusible(users, max(self.forward[user] for user in users))
            for user in users:
                if self.forward[user] > end and _is_fusible(node, user) and user not in self.banned:
                    yield user

    def _first_not_fusible(self, users: list[GraphNode], last: int) -> int:
        """The order of the first operator that does not fuse with what it reads, up to an order."""
        order = self.forward
        waiting: list[tuple[int, bool]] = []
        by_order = {}
        for user in users:
            by_order[order[user]] = user
            heappush(waiting, (order[user], True))
        seen = set(waiting)
        while waiting:
            place, is_fusible = heappop(waiting)
            if not is_fusible:
                return place
            node = by_order[place]
            for user in node.users:
                if user in order and order[user] <= last:
                    entry = order[user], _is_fusible(node, user)
                    if entry not in seen:
                        seen.add(entry)
                        by_order[order[user]] = user
                        heappush(waiting, entry)
        return last

    def _ends_of_chains(self) -> Iterator[GraphNode]:
        """Operators at the end of long chains of fusible ones."""
        visited: set[GraphNode] = set()
        nodes = list(self.forward)
        for start in nodes:
            waiting = [self.forward[start]]
            while waiting:
                node = nodes[heappop(waiting)]
                if node in visited:
                    continue
                visited.add(node)
                if self.forward[node] > self.forward[start] + _LONGEST_CHAIN and not waiting:
                    yield node
                    break
                for user in node.users:
                    if user in self.forward and _is_fusible(node, user) and user not in self.banned:
                        heappush(waiting, self.forward[user])


def _size(node: GraphNode) -> int:
    """Bytes of all results of a node."""
    if node.several:
        return sum(user.bytes for user in node.users)
    return node.bytes
