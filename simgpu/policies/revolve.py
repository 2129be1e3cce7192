"""`revolve`: recomputation of a chain with a number of snapshots (Griewank and Walther, Algorithm 799, TOMS 2000).

Of a chain of layers, the results of some, the snapshots, are kept while forward runs. In backward the others are
computed again from the last snapshot before them, and snapshots that are no longer needed make room for new ones on
the way. Where they lie follows from binomial numbers: no other choice runs fewer layers again, if all take the same
time and all results the same memory. It generalises the checkpointing of Chen et al. (2016), which recomputes once.

Layers are kernels, or groups of them where the iteration has more than `groups` (as for policy `checkmate`). A network
is a chain if each layer of forward reads results of the layer before it alone; others are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb

from simgpu.errors import InputError
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream, require_undivided
from simgpu.policies.common.node_schedule import Kept, NodeSchedule, written
from simgpu.policies.common.nodes import Nodes, groups_of
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class Revolve(Policy):
    """Binomial checkpointing of chains."""

    name = "revolve"
    summary = "recomputes a chain from snapshots, placed by binomial numbers"
    source = "Griewank and Walther, Algorithm 799: Revolve, ACM TOMS 2000"

    snapshots: int = parameter(0, "number of snapshots; 0: the most that fit")
    groups: int = parameter(400, "most groups of kernels that are layers of their own")

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for a network that is no chain, for several compute streams and for a
        split batch."""
        graph = context.graph
        require_one_stream(graph, self.name)
        require_undivided(graph, self.name)
        for name, value in (("snapshots", self.snapshots), ("groups", self.groups - 1)):
            if value < 0:
                raise InputError.single("", f"parameters.{name}", "the number is too small", "give a larger one")
        nodes = Nodes(graph, groups_of(graph, self.groups), context.node.gpu.alignment)
        layers = layers_of(nodes)
        if self.snapshots:
            schedule, count = NodeSchedule.of(nodes, _kept(nodes, layers, self.snapshots)), self.snapshots
        else:
            schedule, count = most_snapshots(nodes, layers, context.budget)
        return replace(written(nodes, schedule), notes=(f"snapshots: {count}, of {layers} layers",))


def most_snapshots(nodes: Nodes, layers: int, budget: int) -> tuple[NodeSchedule, int]:
    """The schedule with the most snapshots that fit, and their number; without any where none fits."""
    low, high = 0, max(layers - 1, 0)
    while low < high:
        middle = (low + high + 1) // 2
        fits = NodeSchedule.of(nodes, _kept(nodes, layers, middle)).peak() <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return NodeSchedule.of(nodes, _kept(nodes, layers, low)), low


def layers_of(nodes: Nodes) -> int:
    """The number of layers of forward. Raises `InputError` where one reads what is not of the layer before it."""
    graph = nodes.graph
    layers = sum(1 for group in nodes.groups if graph.is_forward[group[0]])
    for n in range(1, layers):
        other = next((b for b in nodes.inputs[n] if nodes.maker[b] != n - 1), None)
        if other is not None:
            kernel, block = graph.kernels[nodes.groups[n][0]].id, graph.blocks[other].id
            what = f"the network is no chain: kernel {kernel} reads {block}, which is not of the layer before it"
            raise InputError.single(graph.trace.name, "kernels", what, "choose checkmate, or checkpoint")
    return layers


def _kept(nodes: Nodes, layers: int, snapshots: int) -> Kept:
    """The values that are kept for each node: snapshots, and what the node before it and the node itself read."""
    stacks = dict(zip(range(layers - 1, -1, -1), stacks_of(layers, snapshots), strict=True))
    count = len(nodes.groups)
    kept: list[frozenset[int]] = [frozenset()] * count
    held, before = stacks.get(layers - 1, ()), frozenset[int]()
    for t in range(count):
        needed = frozenset(b for b in nodes.inputs[t] if nodes.maker[b] < layers)
        if t >= layers and needed:
            # The layer whose backward this is begins with what the layer before it made.
            held = stacks[min(min(nodes.maker[b] for b in needed) + 1, layers - 1)]
        states = frozenset(b for m in held for b in nodes.outputs[m - 1] if m - 1 < t)
        if t + 1 < count:
            following = frozenset(nodes.inputs[t + 1])
            made = frozenset(nodes.outputs[t])
            others = frozenset(b for b in nodes.inputs[t + 1] if nodes.maker[b] >= layers)
            kept[t + 1] = states | ((needed | made | before) & following) | others | _lasting(nodes, t, layers)
        before = needed
    return kept


def _lasting(nodes: Nodes, t: int, layers: int) -> frozenset[int]:
    """Results of backward that a later node reads: they stay."""
    return frozenset(b for b, n in nodes.maker.items() if layers <= n <= t and nodes.users[b][-1] > t)


def stacks_of(layers: int, snapshots: int) -> Iterator[tuple[int, ...]]:
    """For each layer, the last one first, the snapshots that are there when its backward runs.

    A snapshot m is what layer m reads. What the first layer reads is always there.

    >>> list(stacks_of(4, 1))
    [(2,), (2,), (1,), ()]
    """

    def reversed_(first: int, stop: int, free: int, held: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if stop - first <= 1 or not free:
            yield from (held for _ in range(first, stop))
            return
        middle = first + _advance(stop - first, free)
        yield from reversed_(middle, stop, free - 1, (*held, middle))
        yield from reversed_(first, middle, free, held)

    yield from reversed_(0, layers, snapshots, ())


def _advance(layers: int, snapshots: int) -> int:
    """How many layers run before the next snapshot.

    With s states in memory, of which one is what the first layer reads, and r repetitions, binomial(s + r, s) layers
    can be reversed.
    """
    states, repetitions = snapshots + 1, 1
    while comb(states + repetitions, states) < layers:
        repetitions += 1
    before, after = comb(states + repetitions - 1, states), comb(states + repetitions - 2, states - 1)
    return max(1, min(before, layers - after))
