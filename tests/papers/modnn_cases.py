"""Plans that moDNN's rules are tried on: of the paper's networks, and of small networks drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from simgpu.graph.bounds import lower_bound
from simgpu.graph.split import split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.papers.checks.modnn import NODE, network
from simgpu.policies.base import PlanContext, Trial
from simgpu.policies.modnn.policy import Modnn, Plan
from simgpu.program.instructions import Program
from simgpu.simulation.run import task_graph
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
from tests.papers.modnn_plans import Round, rounds_of


@dataclass(frozen=True)
class Case:
    """A plan to be read back. name: of what network and budget."""

    name: str
    plan: Plan
    graph: TaskGraph
    node: NodeSpec
    budget: int

    def rounds(self) -> list[Round]:
        """Its rounds, each before its first instruction."""
        return rounds_of(self.plan, self.graph, self.node, self.budget)


def planned(graph: TaskGraph, node: NodeSpec, budget: int, name: str = "", sub_batch: int = 0) -> Case:
    """moDNN's plan for a graph. Raises what planning raises."""
    context = PlanContext(graph, node, budget, _no_trial, np.random.default_rng(0))
    return Case(name, Modnn(sub_batch=sub_batch).planned(context), graph, node, budget)


def _no_trial(program: Program) -> Trial:
    raise AssertionError("moDNN plans without trial runs")


def on_networks(cases: Mapping[str, tuple[int, ...]]) -> Iterator[Case]:
    """Plans for networks on a K40, by name the budgets in bytes."""
    node = load_node(NODE)
    for label, budgets in cases.items():
        graph = network(label)
        for budget in budgets:
            yield planned(graph, node, budget, f"{label} in {budget / 1e9:g} GB")


def at_random(count: int, seed: int) -> Iterator[Case]:
    """Plans for small networks with branches and joins, in budgets little over their bounds."""
    draw = Random(seed)
    for number in range(count):
        node = _node(draw)
        graph = task_graph(_drawn(draw), node)
        sub_batch = draw.choice([5, 5, 5, 2, 1])
        bound = lower_bound(Tdfg.of(split(graph, sub_batch), node.gpu.alignment)).bytes
        budget = bound + draw.choice([0, 0, 10, 35, 60, 100, 150, 250])
        yield planned(graph, node, budget, f"random network {number}", sub_batch)


def _node(draw: Random) -> NodeSpec:
    """A K40 with a link on which blocks of some bytes take as long as kernels of some nanoseconds."""
    node = load_node(NODE)
    out, back = (draw.choice([10**8, 10**9, 4 * 10**9]) for _ in range(2))
    link = replace(node.link, d2h_bandwidth=out, h2d_bandwidth=back, latency_ns=draw.choice([0, 0, 7]))
    return replace(node, link=link, gpu=replace(node.gpu, alignment=draw.choice([1, 1, 16])))


_SIZES = (0, 5, 35, 60, 60, 100, 100, 150, 200)
_TIMES = (0, 1, 5, 20, 100, 400)


def _drawn(draw: Random) -> Trace:
    """Layers of one to two inputs each, some in place, and backward through them, some with several algorithms."""
    blocks = [
        Block("x", draw.choice(_SIZES), BlockKind.INPUT, persistent=True),
        Block("label", 5, BlockKind.LABEL, persistent=True),
    ]
    layers: list[tuple[tuple[str, ...], str]] = []
    outputs = ["x"]
    for n in range(draw.randint(2, 8)):
        reads = tuple(draw.sample(outputs[-3:], min(len(outputs), draw.randint(1, 2))))
        in_place = n > 0 and draw.random() < 1 / 6
        out = outputs[-1] if in_place else f"y{n}"
        if not in_place:
            blocks.append(Block(out, draw.choice(_SIZES), BlockKind.ACTIVATION))
            outputs.append(out)
        layers.append((reads, out))
    kernels = [
        Kernel(f"F{n}", "conv2d", Phase.FORWARD, draw.choice(_TIMES), reads, (out,))
        for n, (reads, out) in enumerate(layers)
    ]
    begun: set[str] = set()
    for n, (reads, out) in reversed(list(enumerate(layers))):
        saved = [b for b in dict.fromkeys((*reads, out)) if b == out or draw.random() < 0.5]
        writes = tuple(f"g{b}" for b in reads)
        given = [g for g in dict.fromkeys((f"g{out}", *writes)) if g in begun]
        blocks += [Block(g, draw.choice(_SIZES), BlockKind.GRADIENT) for g in writes if g not in begun]
        begun.update(writes)
        last = ("label",) if n == len(layers) - 1 else ()
        taken = (*saved, *given, *last)
        kernels.append(Kernel(f"B{n}", "conv2d", Phase.BACKWARD, draw.choice(_TIMES), taken, writes))
    return Trace(
        TraceInfo("random", 5, "none", "float32", Origin.MODELLED, "drawn at random"),
        tuple(kernels),
        tuple(blocks),
        algorithms=tuple(
            AlgorithmChoice(kernel.id, name, draw.choice(_TIMES), 0 if name == "gemm" else draw.choice([20, 60, 150]))
            for kernel in kernels
            for name in ("gemm", "winograd", "fft")[: draw.randint(0, 3)]
        ),
    )
