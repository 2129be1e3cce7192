"""Small networks with weights, gradients and an optimizer, for data-parallel training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from simgpu.graph.replicate import Exchange, Replicate
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.updates import exchanging
from simgpu.hardware.spec import Duplex, NodeSpec, SwitchSpec
from simgpu.machine.run import run_program
from simgpu.program.instructions import Program
from simgpu.program.placement import Placement
from simgpu.program.replication import replicated
from simgpu.trace.model import Block, BlockKind, Kernel, Trace
from tests.semantics.hand_made import BACKWARD, FORWARD, GB, OPTIMIZER, block, held, kernel, node, trace
from tests.semantics.random_traces import nodes, placements


def network(
    sizes: Sequence[int],
    *,
    forward: int = 10,
    error: int = 10,
    gradient: int = 10,
    step: int | None = 5,
    momentum: bool = False,
    together: bool = False,
    batch: int = 4,
) -> Trace:
    """Layers with weights of these sizes; times of one layer's forward, BP1, BP2 and optimizer kernels.

    step: None for no optimizer. together: one kernel updates all weights.
    """
    count = len(sizes)
    numbers = range(1, count + 1)
    kernels = [kernel(f"F{n}", forward, f"x{n - 1} w{n}", f"x{n}", phase=FORWARD) for n in numbers]
    for n in reversed(numbers):
        coming = f"g{n}" if n < count else f"x{n}"
        kernels.append(kernel(f"W{n}", gradient, f"{coming} x{n - 1}", f"w{n}.grad", phase=BACKWARD))
        if n > 1:
            kernels.append(kernel(f"E{n}", error, f"{coming} w{n}", f"g{n - 1}", phase=BACKWARD))
    kernels += _optimizer(list(numbers), step, momentum, together)
    blocks: list[Block] = [held("x0", 20, kind=BlockKind.INPUT)]
    blocks += [block(f"x{n}", 20) for n in numbers]
    blocks += [block(f"g{n}", 20, kind=BlockKind.GRADIENT) for n in numbers if n < count]
    for n, size in zip(numbers, sizes, strict=True):
        blocks.append(held(f"w{n}", size, kind=BlockKind.WEIGHT))
        blocks.append(block(f"w{n}.grad", size, kind=BlockKind.WEIGHT_GRADIENT))
        if momentum and step is not None:
            blocks.append(held(f"w{n}.momentum", size, kind=BlockKind.OPTIMIZER_STATE))
    built = trace(kernels, blocks)
    return replace(built, info=replace(built.info, batch=batch))


def _optimizer(numbers: list[int], step: int | None, momentum: bool, together: bool) -> list[Kernel]:
    if step is None:
        return []
    stored = "w{n} w{n}.momentum" if momentum else "w{n}"
    if together:
        all_resident = " ".join(stored.format(n=n) for n in numbers)
        gradients = " ".join(f"w{n}.grad" for n in numbers)
        return [kernel("step", step, f"{gradients} {all_resident}", all_resident, phase=OPTIMIZER, pure=False)]
    return [
        kernel(f"S{n}", step, f"w{n}.grad {stored.format(n=n)}", stored.format(n=n), phase=OPTIMIZER, pure=False)
        for n in numbers
    ]


def sharing(trace: Trace) -> TaskGraph:
    """The tasks of one of several GPUs."""
    return exchanging(TaskGraph.of(trace))


def several(gpus: int, *, switch: int | None = GB, base: NodeSpec | None = None) -> NodeSpec:
    """A node of equal GPUs with links of 1 GB/s, all behind one switch of that capacity (None: no switch)."""
    on = replace(base or node(), gpus=gpus)
    return on if switch is None else replace(on, switches=(SwitchSpec(tuple(range(gpus)), switch, switch),))


def on_all(program: Program, graph: TaskGraph, where: NodeSpec, how: Replicate) -> Program:
    """The program of one GPU, replicated to all GPUs."""
    trial = run_program(program, graph, where, budget=None, iterations=2).timeline
    return replicated(program, graph, where, how, trial)


@st.composite
def networks(draw: st.DrawFn) -> Trace:
    """Up to three layers, any optimizer, small times and sizes so that many events coincide."""
    times = st.one_of(st.integers(0, 3), st.integers(0, 30), st.integers(0, 300))
    return network(
        draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 200)), min_size=1, max_size=3)),
        forward=draw(times),
        error=draw(times),
        gradient=draw(times),
        step=draw(st.none() | times),
        momentum=draw(st.booleans()),
        together=draw(st.booleans()),
    )


@st.composite
def switched_nodes(draw: st.DrawFn, gpus: int) -> NodeSpec:
    """Nodes of several GPUs: all, some or none of them behind a switch."""
    behind = draw(st.sets(st.integers(0, gpus - 1)))
    rate = st.sampled_from([GB, 2 * GB, 10**8, 3 * 10**8 + 7])
    switches = (SwitchSpec(tuple(sorted(behind)), draw(rate), draw(rate), draw(st.sampled_from(Duplex))),)
    return replace(draw(nodes(launches=True)), gpus=gpus, switches=switches if behind else ())


@st.composite
def exchanges(draw: st.DrawFn, gpus: int) -> Replicate:
    """Either way of exchanging gradients, at any speed."""
    rate = draw(st.sampled_from([GB, 10 * GB, 10**8]))
    return Replicate(gpus, draw(st.sampled_from(Exchange)), rate, draw(st.sampled_from([0, 0, 7])))


@st.composite
def moved(draw: st.DrawFn, graph: TaskGraph, *, layer_barrier: bool) -> Placement:
    """Any swaps of what is not exchanged between GPUs."""
    drawn = draw(placements(graph, layer_barrier=layer_barrier))
    fixed = (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE)
    return replace(drawn, swaps=tuple(swap for swap in drawn.swaps if graph.blocks[swap.block].kind not in fixed))
