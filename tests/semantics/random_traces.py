"""Random legal traces, nodes and placements for properties that must hold on all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import strategies as st

from simgpu.graph.encodings import Encoding
from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import with_encodings
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.trace.check import check_trace
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase, Trace
from tests.semantics.hand_made import INFO, node

KINDS = (BlockKind.ACTIVATION, BlockKind.INPUT, BlockKind.GRADIENT, BlockKind.WEIGHT, BlockKind.OTHER)
# Mostly small numbers, so that many events coincide.
_TIMES = st.one_of(st.integers(0, 3), st.integers(0, 3), st.integers(0, 30), st.integers(0, 2000))
_SIZES = st.one_of(st.integers(0, 3), st.integers(0, 40), st.integers(0, 2000))


@st.composite
def traces(draw: st.DrawFn, max_kernels: int = 10, streams: int = 1) -> Trace:
    """Kernels that read, write and change random blocks; each block's kind follows from its first use."""
    names = [f"b{index}" for index in range(draw(st.integers(1, 7)))]
    some = st.lists(st.sampled_from(names), unique=True, max_size=3).map(tuple)
    count = draw(st.integers(1, max_kernels))
    phases = sorted(draw(st.lists(st.sampled_from(range(3)), min_size=count, max_size=count)))
    tags = draw(st.sampled_from([(None,), ("A", "B", "C"), ("A", "B", "C", "D", "E")]))
    kernels = tuple(
        Kernel(
            f"k{index}",
            draw(st.sampled_from(["conv2d", "relu", "add"])),
            tuple(Phase)[phases[index]],
            draw(_TIMES),
            draw(some),
            draw(some),
            draw(st.sampled_from(tags)),
            draw(st.integers(0, streams - 1)),
            pure=draw(st.sampled_from([True, False, None])),
        )
        for index in range(count)
    )
    trace = Trace(INFO, kernels, tuple(draw(_block(name, kernels, streams == 1)) for name in names))
    assert not check_trace(trace), [str(problem) for problem in check_trace(trace)]
    return trace


@st.composite
def repeatable_traces(draw: st.DrawFn) -> Trace:
    """Forward kernels that are mostly repeatable, each with its own output; they read and change random blocks."""
    names = ["b0"]
    kernels = []
    forward, backward = draw(st.integers(2, 8)), draw(st.integers(1, 6))
    for index in range(forward + backward):
        old = st.lists(st.sampled_from(names), unique=True, max_size=2)
        reads, writes = draw(old), draw(old) if draw(st.integers(0, 3)) == 0 else []
        if index < forward:
            names.append(f"b{index + 1}")
            writes.insert(draw(st.integers(0, len(writes))), names[-1])
        op = draw(st.sampled_from(["conv2d", "conv2d", "dropout", "batch_norm"]))
        phase = Phase.FORWARD if index < forward else Phase.BACKWARD
        pure = op == "conv2d" and draw(st.integers(0, 7)) > 0
        kernels.append(
            Kernel(f"k{index}", op, phase, draw(_TIMES), tuple(reads), tuple(writes), f"L{index}", pure=pure)
        )
    blocks = tuple(draw(_block(name, tuple(kernels), True, seldom_held=True)) for name in names)
    trace = Trace(INFO, tuple(kernels), blocks)
    assert not check_trace(trace), [str(problem) for problem in check_trace(trace)]
    return trace


@st.composite
def _block(
    draw: st.DrawFn, name: str, kernels: tuple[Kernel, ...], may_be_born: bool, seldom_held: bool = False
) -> Block:
    uses = [index for index, kernel in enumerate(kernels) if name in kernel.reads + kernel.writes]
    block = Block(name, draw(_SIZES), draw(st.sampled_from(KINDS)))
    last = uses[-1] if uses else 0
    read_first = bool(uses) and name in kernels[uses[0]].reads
    held = draw(st.integers(0, 7)) == 0 if seldom_held else draw(st.booleans())
    if not uses or held or (read_first and not may_be_born):
        block = replace(block, persistent=True)
    elif read_first or (may_be_born and draw(st.integers(0, 3)) == 0):
        block = replace(block, host_write=kernels[draw(st.integers(0, uses[0]))].id)
    releases = [None, RELEASED_AT_END, *(kernel.id for kernel in kernels[last:])]
    return replace(block, release=draw(st.sampled_from(releases)))


@dataclass(frozen=True)
class DrawnCosts:
    """Encoding costs by block id: bytes of the encoded form, times to encode and to decode."""

    of: dict[str, tuple[int, int, int]]

    def sparsity(self, block: Block) -> float | None:
        return None

    def is_known(self, block: Block, codec: str) -> bool:
        return True

    def encoded_bytes(self, block: Block, codec: str) -> int:
        return self.of[block.id][0]

    def encode_ns(self, block: Block, encoding: Encoding) -> int:
        return self.of[block.id][1]

    def decode_ns(self, block: Block, encoding: Encoding) -> int:
        return self.of[block.id][2]


@st.composite
def encoded_graphs(draw: st.DrawFn, max_kernels: int = 10, of: st.SearchStrategy[Trace] | None = None) -> TaskGraph:
    """A random trace's graph in which some blocks have an encoded form, larger or smaller than they are."""
    graph = TaskGraph.of(draw(traces(max_kernels) if of is None else of))
    costs = DrawnCosts({block.id: (draw(_SIZES), draw(_TIMES), draw(_TIMES)) for block in graph.blocks})
    chosen = [Encoding(b, "drawn") for b in range(len(graph.blocks)) if draw(st.booleans())]
    return with_encodings(replace(graph, costs=costs), chosen)


@st.composite
def placements(draw: st.DrawFn, graph: TaskGraph, *, layer_barrier: bool) -> Placement:
    """Any swaps that the lowering supports."""
    swaps = []
    for b, uses in enumerate(graph.uses):
        for after, before in pairwise(uses):
            choices = _fetches(graph, b, after, before, layer_barrier)
            if choices and draw(st.sampled_from([True, True, True, False])):
                form = draw(st.sampled_from([None, *(f for f, of in graph.encoded.items() if of.block == b)]))
                swaps.append(Swap(b, after, before, draw(st.sampled_from(choices)), form, draw(st.booleans())))
    return Placement(tuple(swaps), layer_barrier)


@st.composite
def mixed_placements(draw: st.DrawFn, graph: TaskGraph) -> Placement:
    """Any swaps and recomputations that the lowering supports without a barrier, for any gaps."""
    ancestry = Ancestry(graph)
    swaps, again = [], []
    for b, uses in enumerate(graph.uses):
        can = ancestry.why_not(b) is None
        moved = -1
        for after, before in pairwise(uses):
            how = draw(st.sampled_from(["keep", "swap", "recompute", "recompute"]))
            if how == "recompute" and can and ancestry.writers[b][-1] <= after and before <= ancestry.latest[b]:
                again.append(Recompute(b, after, before))
                moved = before
            elif how == "swap":
                fetch = draw(st.integers(after + 1, before))
                form = draw(st.sampled_from([None, *(f for f, of in graph.encoded.items() if of.block == b)]))
                on_host = draw(st.booleans())
                early = range(max(_complete(graph, b, after), moved) + 1, after + 1)
                with_ = draw(st.sampled_from([None, *early])) if form is None or on_host else None
                swaps.append(Swap(b, after, before, fetch, form, on_host, with_))
                moved = before
    return Placement(tuple(swaps), recomputes=tuple(again))


@st.composite
def careless_placements(draw: st.DrawFn, graph: TaskGraph) -> Placement:
    """A few decisions about gaps that may be impossible or contradict each other."""
    ancestry = Ancestry(graph)
    gaps = [(b, after, before) for b, uses in enumerate(graph.uses) for after, before in pairwise(uses)]
    again = [gap for gap in gaps if ancestry.why_not(gap[0]) is None]
    swaps, recomputes = [], []
    for b, after, before in draw(st.lists(st.sampled_from(gaps), max_size=3)) if gaps else []:
        with_ = draw(st.none() | st.integers(0, after))
        swaps.append(Swap(b, after, before, draw(st.integers(after + 1, before)), out_with=with_))
    for gap in draw(st.lists(st.sampled_from(again), max_size=3)) if again else []:
        recomputes.append(Recompute(*gap))
    return Placement(tuple(swaps), recomputes=tuple(recomputes))


def _complete(graph: TaskGraph, b: int, after: int) -> int:
    """The kernel that writes the value that a block has after kernel `after`."""
    birth = graph.births[b]
    born = birth if graph.blocks[b].host_write is not None and birth is not None else -1
    return max([born, *(k for k in graph.uses[b] if k <= after and b in graph.writes[k])])


def _fetches(graph: TaskGraph, b: int, after: int, before: int, layer_barrier: bool) -> list[int]:
    """Kernels with which a prefetch may be issued."""
    if not layer_barrier:
        return list(range(after + 1, before + 1))
    step_of = graph.layers.step_of
    first = graph.layers.steps[step_of[after]].first
    if any(b in graph.writes[k] or graph.births[b] == k for k in range(first, after + 1)):
        return []
    return [k for k in range(after + 1, before) if step_of[after] < step_of[k] < step_of[before]]


@st.composite
def nodes(draw: st.DrawFn, duplex: Duplex | None = None, *, launches: bool = False) -> NodeSpec:
    """One or two engines, full or half duplex, any latency, bandwidths of about a byte per nanosecond.

    launches: whether they may take time, which policies that plan with times do not know.
    """
    bandwidth = st.one_of(st.sampled_from([10**9, 10**9, 2 * 10**9]), st.integers(10**8, 10**10))
    drawn = node(
        10**9,
        engines=draw(st.sampled_from([1, 2])),
        out=draw(bandwidth),
        back=draw(bandwidth),
        latency=draw(st.sampled_from([0, 0, 1, 10, 350])),
        duplex=duplex or draw(st.sampled_from(Duplex)),
        alignment=draw(st.sampled_from([1, 1, 16, 512])),
    )
    launch_ns = draw(st.sampled_from([0, 0, 1, 10, 200])) if launches else 0
    return replace(drawn, host=replace(drawn.host, launch_ns=launch_ns))
