"""Which gradient updates which weight, as far as a trace tells, and holding gradients for GPUs that exchange them.

The optimizer itself tells it best: a kernel that updates one weight reads its gradient, or what the optimizer has made
of that before. Where one kernel updates many weights, names tell it (``conv1.weight``, ``conv1.weight.grad``,
``conv1.weight.momentum_buffer`` in recordings and in the zoo). Else blocks of one layer and size belong together, else
those of one size; of several, the weight that forward reads first goes with the gradient that backward makes last.
Gradients that the optimizer reads come before others that are left when backward ends, and these before those that
backward itself adds to another.
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
    """A weight, its gradient, and the state that its optimizer keeps: numbers of blocks."""

    weight: int
    gradient: int
    state: tuple[int, ...] = ()


def exchanging(graph: TaskGraph) -> TaskGraph:
    """The graph of a GPU that exchanges gradients with others, at its own batch and at any other.

    It tells what is exchanged, and those gradients live to the end of the iteration. Raises `InputError` as
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

    told = (Exchanged(name(weight), name(gradient), tuple(map(name, state))) for weight, gradient, state in updates)
    return _telling(graph, tuple(told))


def _telling(graph: TaskGraph, told: tuple[Exchanged, ...]) -> TaskGraph:
    return replace(graph, exchanged=told, rescaled=cache(lambda batch: _telling(graph.at_batch(batch), told)))


def updates_of(graph: TaskGraph) -> tuple[tuple[Update, ...], int]:
    """The weights with a known gradient, in block order, and the first kernel of the optimizer.

    Weights that the optimizer never writes are left out, unless the trace has no optimizer at all. Raises `InputError`
    where the optimizer does not come last, or where no gradient is known.
    """
    end = _end_of_backward(graph)
    if graph.exchanged:
        known = graph.block
        told = (Update(known(weight), known(gradient), tuple(map(known, s))) for weight, gradient, s in graph.exchanged)
        return tuple(sorted(told)), end
    found = _paired(graph, end, _weights(graph, end))
    if not found:
        what = "no block is known as the gradient of a weight, so there is nothing to exchange between GPUs"
        remedy = "run it on one GPU, or import it with the kinds of its blocks"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "blocks.kind", what, remedy)
    state = _states(graph, list(found))
    return tuple(Update(weight, found[weight], tuple(state[weight])) for weight in sorted(found)), end


def without_gradient(graph: TaskGraph) -> tuple[int, ...]:
    """The weights that are updated but have no known gradient, so that GPUs cannot exchange it."""
    updates, end = updates_of(graph)
    known = {update.weight for update in updates}
    return tuple(b for b in _weights(graph, end) if b not in known)


def _weights(graph: TaskGraph, end: int) -> list[int]:
    """What the optimizer updates; where there is none, what is used."""
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
        remedy = "gradients can be exchanged between GPUs where the optimizer comes last"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "kernels.phase", what, remedy)
    return end


def _paired(graph: TaskGraph, end: int, weights: list[int]) -> dict[int, int]:
    """Gradient by weight."""
    found = _told_by_optimizer(graph, end, weights)
    blocks = graph.blocks
    gradients = [b for b in _of(graph, BlockKind.WEIGHT_GRADIENT) if any(b in graph.writes[k] for k in graph.uses[b])]
    gradients = [b for b in gradients if graph.uses[b][0] < end and b not in set(found.values())]
    by_name = {blocks[b].id: b for b in gradients}
    found.update({w: by_name[name] for w in weights if w not in found and (name := f"{blocks[w].id}.grad") in by_name})
    if len(found) == len(weights):
        return found
    resident = Tdfg.of(graph).resident

    def rank(b: int) -> int:
        return 0 if graph.uses[b][-1] >= end else 1 if b in resident else 2

    keys: tuple[Callable[[int], object], ...] = (
        lambda b: (blocks[b].layer, blocks[b].bytes),
        lambda b: blocks[b].bytes,
    )
    for best in range(3):
        for key in keys:
            taken = set(found.values())
            of_weights = _grouped((w for w in weights if w not in found), key)
            of_gradients = _grouped((b for b in gradients if b not in taken and rank(b) == best), key)
            for group, members in of_weights.items():
                first_read_first = sorted(members, key=lambda w: graph.uses[w][0])
                last_made_first = sorted(of_gradients.get(group, ()), key=lambda b: -graph.uses[b][0])
                found.update(zip(first_read_first, last_made_first, strict=False))
    return found


def _told_by_optimizer(graph: TaskGraph, end: int, weights: list[int]) -> dict[int, int]:
    """Gradient by weight where a kernel that updates this weight alone reads one, or something made of one."""
    makers: defaultdict[int, list[int]] = defaultdict(list)
    for k in range(end, len(graph.kernels)):
        for b in graph.writes[k]:
            makers[b].append(k)
    wanted, found, taken = set(weights), dict[int, int](), set[int]()
    for k in range(end, len(graph.kernels)):
        updated = wanted.intersection(graph.writes[k])
        if len(updated) == 1 and not updated <= found.keys():
            weight = updated.pop()
            gradient = _nearest_gradient(graph, end, makers, k, weight)
            if gradient is not None and gradient not in taken:
                found[weight] = gradient
                taken.add(gradient)
    return found


def _nearest_gradient(graph: TaskGraph, end: int, makers: dict[int, list[int]], k: int, weight: int) -> int | None:
    """What kernel k reads that backward has made, or else what that was made of; None where it is not one block."""
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
            before = bisect_left(makers[b], at)
            if before:
                made = makers[b][before - 1]
                further.update((source, made) for source in graph.reads[made] if source not in seen)
        near = list(further.items())
    return None


def _may_update(graph: TaskGraph, end: int, b: int, weight: int) -> bool:
    """Whether a block may be the gradient of a weight: backward makes it, and it has the kind or the weight's size."""
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
    """State of the optimizer by weight; what is of no weight's size stays with none."""
    blocks = graph.blocks
    found: dict[int, list[int]] = {w: [] for w in weights}
    by_name = {blocks[w].id: w for w in weights}
    by_size = _grouped(weights, lambda b: blocks[b].bytes)
    met: defaultdict[int, int] = defaultdict(int)
    for b in _of(graph, BlockKind.OPTIMIZER_STATE):
        owner = by_name.get(blocks[b].id.rpartition(".")[0])
        if owner is None and (same := by_size.get(blocks[b].bytes)):
            owner = same[met[blocks[b].bytes] % len(same)]
            met[blocks[b].bytes] += 1
        if owner is not None:
            found[owner].append(b)
    return found
