"""Which gradient updates which weight, as far as a trace tells.

Lives here: pairing weights, their gradients and their optimizer's state. Does not live here: who updates them
(`simgpu.graph.replicate`).

Names tell it in recordings and in the zoo (``conv1.weight``, ``conv1.weight.grad``, ``conv1.weight.momentum_buffer``).
Where they do not, blocks of one layer and size belong together, else those of one size; of several, the weight that
forward reads first goes with the gradient that backward makes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind, Phase


class Update(NamedTuple):
    """A weight, its gradient, and the state that its optimizer keeps: numbers of blocks."""

    weight: int
    gradient: int
    state: tuple[int, ...] = ()


def updates_of(graph: TaskGraph) -> tuple[tuple[Update, ...], int]:
    """The weights with a known gradient, in block order, and the first kernel of the optimizer.

    Weights that the optimizer never writes are left out, unless the trace has no optimizer at all. Raises `InputError`
    where the optimizer does not come last, or where no gradient is known.
    """
    end = _end_of_backward(graph)
    written = {b for k in range(end, len(graph.kernels)) for b in graph.writes[k]}
    weights = [
        b
        for b in _of(graph, BlockKind.WEIGHT)
        if graph.blocks[b].persistent
        and graph.recorded_releases[b] is None
        and (b in written if written else bool(graph.uses[b]))
    ]
    gradients = [b for b in _of(graph, BlockKind.WEIGHT_GRADIENT) if any(b in graph.writes[k] for k in graph.uses[b])]
    gradients = [b for b in gradients if graph.uses[b][0] < end]
    found = _paired(graph, weights, gradients)
    if not found:
        what = "no block is known as the gradient of a weight, so there is nothing to exchange between GPUs"
        remedy = "run it on one GPU, or import it with the kinds of its blocks"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "blocks.kind", what, remedy)
    state = _states(graph, list(found))
    return tuple(Update(weight, found[weight], tuple(state[weight])) for weight in sorted(found)), end


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


def _paired(graph: TaskGraph, weights: list[int], gradients: list[int]) -> dict[int, int]:
    """Gradient by weight."""
    blocks = graph.blocks
    by_name = {blocks[b].id: b for b in gradients}
    found = {w: by_name[name] for w in weights if (name := f"{blocks[w].id}.grad") in by_name}
    keys: tuple[Callable[[int], object], ...] = (
        lambda b: (blocks[b].layer, blocks[b].bytes),
        lambda b: blocks[b].bytes,
    )
    for key in keys:
        taken = set(found.values())
        of_weights = _grouped((w for w in weights if w not in found), key)
        of_gradients = _grouped((b for b in gradients if b not in taken), key)
        for group, members in of_weights.items():
            first_read_first = sorted(members, key=lambda w: graph.uses[w][0])
            last_made_first = sorted(of_gradients.get(group, ()), key=lambda b: -graph.uses[b][0])
            found.update(zip(first_read_first, last_made_first, strict=False))
    return found


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
