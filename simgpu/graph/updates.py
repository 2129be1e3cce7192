"""Which gradient updates which weight, and graphs of GPUs that exchange gradients.

The optimizer is the best evidence: a kernel that updates a single weight reads its gradient, or what the optimizer has
computed from it. Where one kernel updates many weights, names decide (``conv1.weight``, ``conv1.weight.grad``,
``conv1.weight.momentum_buffer`` in recordings and in the zoo). Otherwise blocks of one layer and size belong together,
then blocks of one size; of several, the weight that forward reads first goes with the gradient that backward writes
last. Gradients that the optimizer reads come before others that are live at the end of backward, and these before those
that backward itself adds to another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from simgpu.errors import InputError
from simgpu.graph.taskgraph import Exchanged, TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.trace.model import BlockKind, Phase


class Update(NamedTuple):
    """A weight, its gradient, and its optimizer's state: numbers of blocks."""

    weight: int
    gradient: int
    state: tuple[int, ...] = ()


def exchanging(graph: TaskGraph) -> TaskGraph:
    """The graph of a GPU that exchanges gradients with others, at its own batch and at any other.

    Its field `exchanged` is set, and those gradients live to the end of the iteration. Raises `InputError` as
    `updates_of` does.

    >>> from simgpu.trace.model import Block, Kernel, Origin, Trace, TraceInfo
    >>> weight = Block("w", 100, BlockKind.WEIGHT, persistent=True)
    >>> backward = Kernel("B", "op", Phase.BACKWARD, 10, ("w",), ("g",))
    >>> info = TraceInfo("one layer", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> graph = TaskGraph.of(Trace(info, (backward,), (weight, Block("g", 100, BlockKind.WEIGHT_GRADIENT))))
    >>> graph.needed_releases, exchanging(graph).needed_releases, exchanging(graph).exchanged
    ((None, 0), (None, None), (Exchanged(weight='w', gradient='g', state=()),))
    """
    updates, _ = updates_of(graph)

    def name(b: int) -> str:
        return graph.blocks[b].id

    exchanged = (
        Exchanged(name(weight), name(gradient), tuple(map(name, state))) for weight, gradient, state in updates
    )
    return _with_exchange(graph, tuple(exchanged))


def _with_exchange(graph: TaskGraph, exchanged: tuple[Exchanged, ...]) -> TaskGraph:
    return replace(
        graph, exchanged=exchanged, rescaled=cache(lambda batch: _with_exchange(graph.at_batch(batch), exchanged))
    )


def updates_of(graph: TaskGraph) -> tuple[tuple[Update, ...], int]:
    """The weights with a known gradient, in block order, and the first kernel of the optimizer.

    Weights that the optimizer never writes are left out, unless the trace has no optimizer at all. Raises `InputError`
    where the optimizer does not come last, or where no gradient is known.
    """
    end = _end_of_backward(graph)
    if graph.exchanged:
        known = graph.block
        exchanged = (
            Update(known(weight), known(gradient), tuple(map(known, s))) for weight, gradient, s in graph.exchanged
        )
        return tuple(sorted(exchanged)), end
    gradient_of = _paired(graph, end, _weights(graph, end))
    if not gradient_of:
        what = "no block is known as the gradient of a weight, which other GPUs or the host would need"
        remedy = "run it on one GPU with a policy that leaves updates there, or import it with the kinds of its blocks"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "blocks.kind", what, remedy)
    state = _states(graph, list(gradient_of))
    return tuple(Update(weight, gradient_of[weight], tuple(state[weight])) for weight in sorted(gradient_of)), end


def without_gradient(graph: TaskGraph) -> tuple[int, ...]:
    """The weights that are updated but have no known gradient, so that GPUs cannot exchange it."""
    updates, end = updates_of(graph)
    known = {update.weight for update in updates}
    return tuple(b for b in _weights(graph, end) if b not in known)


def _weights(graph: TaskGraph, end: int) -> list[int]:
    """The weights that the optimizer updates; without an optimizer, all that are used."""
    written = {b for k in range(end, len(graph.kernels)) for b in graph.writes[k]}
    return [
        b
        for b in _of(graph, BlockKind.WEIGHT)
        if graph.blocks[b].persistent
        and graph.recorded_releases[b] is None
        and (b in written if written else bool(graph.uses[b]))
    ]


def _of(graph: TaskGraph, kind: BlockKind) -> list[int]:
    return [b for b, block in enumerate(graph.blocks) if block.kind is kind]


def _end_of_backward(graph: TaskGraph) -> int:
    """The first kernel of the optimizer, which must come after everything else."""
    phases = [kernel.phase for kernel in graph.kernels]
    end = phases.index(Phase.OPTIMIZER) if Phase.OPTIMIZER in phases else len(phases)
    if any(phase is not Phase.OPTIMIZER for phase in phases[end:]):
        what = f"kernel '{graph.kernels[end].id}' of the optimizer runs before backward has ended"
        remedy = "exchanging gradients and updating on the host need a trace whose optimizer comes last"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "kernels.phase", what, remedy)
    return end


def _paired(graph: TaskGraph, end: int, weights: list[int]) -> dict[int, int]:
    """Gradient by weight."""
    gradient_of = _by_optimizer(graph, end, weights)
    blocks = graph.blocks
    gradients = [b for b in _of(graph, BlockKind.WEIGHT_GRADIENT) if any(b in graph.writes[k] for k in graph.uses[b])]
    gradients = [b for b in gradients if graph.uses[b][0] < end and b not in set(gradient_of.values())]
    by_name = {blocks[b].id: b for b in gradients}
    gradient_of.update(
        {w: by_name[name] for w in weights if w not in gradient_of and (name := f"{blocks[w].id}.grad") in by_name}
    )
    if len(gradient_of) == len(weights):
        return gradient_of
    resident = Tdfg.of(graph).resident

    def rank(b: int) -> int:
        return 0 if graph.uses[b][-1] >= end else 1 if b in resident else 2

    keys: tuple[Callable[[int], object], ...] = (
        lambda b: (blocks[b].layer, blocks[b].bytes),
        lambda b: blocks[b].bytes,
    )
    for best in range(3):
        for key in keys:
            paired = set(gradient_of.values())
            of_weights = _grouped((w for w in weights if w not in gradient_of), key)
            of_gradients = _grouped((b for b in gradients if b not in paired and rank(b) == best), key)
            for group, members in of_weights.items():
                first_read_first = sorted(members, key=lambda w: graph.uses[w][0])
                last_written_first = sorted(of_gradients.get(group, ()), key=lambda b: -graph.uses[b][0])
                gradient_of.update(zip(first_read_first, last_written_first, strict=False))
    return gradient_of


def _by_optimizer(graph: TaskGraph, end: int, weights: list[int]) -> dict[int, int]:
    """Gradient by weight where a kernel that updates this weight alone reads one, or something computed from one."""
    writers: defaultdict[int, list[int]] = defaultdict(list)
    for k in range(end, len(graph.kernels)):
        for b in graph.writes[k]:
            writers[b].append(k)
    wanted, gradient_of, paired = set(weights), dict[int, int](), set[int]()
    for k in range(end, len(graph.kernels)):
        updated = wanted.intersection(graph.writes[k])
        if len(updated) == 1 and not updated <= gradient_of.keys():
            weight = updated.pop()
            gradient = _nearest_gradient(graph, end, writers, k, weight)
            if gradient is not None and gradient not in paired:
                gradient_of[weight] = gradient
                paired.add(gradient)
    return gradient_of


def _nearest_gradient(graph: TaskGraph, end: int, writers: dict[int, list[int]], k: int, weight: int) -> int | None:
    """The block from backward that kernel k reads, or its nearest such ancestor; None unless it is a single block."""
    seen = {weight}
    near = [(b, k) for b in dict.fromkeys(graph.reads[k]) if b != weight]
    while near:
        seen.update(b for b, _ in near)
        if gradients := [b for b, _ in near if _may_update(graph, end, b, weight)]:
            name = f"{graph.blocks[weight].id}.grad"
            named = [b for b in gradients if graph.blocks[b].id == name]
            of_kind = [b for b in gradients if graph.blocks[b].kind is BlockKind.WEIGHT_GRADIENT]
            best = named or of_kind or gradients
            return best[0] if len(best) == 1 else None
        further: dict[int, int] = {}
        for b, at in near:
            before = bisect_left(writers[b], at)
            if before:
                writer = writers[b][before - 1]
                further.update((source, writer) for source in graph.reads[writer] if source not in seen)
        near = list(further.items())
    return None


def _may_update(graph: TaskGraph, end: int, b: int, weight: int) -> bool:
    """Whether a block may be the gradient of a weight: backward writes it, and it has the kind or the weight's size."""
    block = graph.blocks[b]
    if all(k >= end or b not in graph.writes[k] or graph.kernels[k].phase is not Phase.BACKWARD for k in graph.uses[b]):
        return False
    if block.kind is BlockKind.WEIGHT_GRADIENT:
        return True
    passing = block.kind in (BlockKind.GRADIENT, BlockKind.OTHER) and not block.persistent
    return passing and block.bytes == graph.blocks[weight].bytes


def _grouped(blocks: Iterable[int], key: Callable[[int], object]) -> dict[object, list[int]]:
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for b in blocks:
        groups[key(b)].append(b)
    return groups


def _states(graph: TaskGraph, weights: list[int]) -> dict[int, list[int]]:
    """State of the optimizer by weight; state without a weight of its size is omitted."""
    blocks = graph.blocks
    state_of: dict[int, list[int]] = {w: [] for w in weights}
    by_name = {blocks[w].id: w for w in weights}
    by_size = _grouped(weights, lambda b: blocks[b].bytes)
    met: defaultdict[int, int] = defaultdict(int)
    for b in _of(graph, BlockKind.OPTIMIZER_STATE):
        owner = by_name.get(blocks[b].id.rpartition(".")[0])
        if owner is None and (same := by_size.get(blocks[b].bytes)):
            owner = same[met[blocks[b].bytes] % len(same)]
            met[blocks[b].bytes] += 1
        if owner is not None:
            state_of[owner].append(b)
    return state_of
