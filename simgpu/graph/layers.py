"""Layers: kernels that share a layer tag, forward with the backward that reads what it saved; and layer steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import Phase
from simgpu.trace.operators import OpClass, op_class


@dataclass(frozen=True, slots=True)
class Step:
    """A layer step: the maximal run of kernels [first, stop) with one layer and one phase.

    Forward and backward of one layer are two steps even where they follow each other directly.
    """

    first: int
    stop: int
    layer: int
    phase: Phase


@dataclass(frozen=True)
class Layers:
    """The layer view of an operator-level trace.

    names[l]: name of layer l, in order of first appearance. of_kernel[k]: layer of kernel k. steps: the iteration
    as layer steps; step_of[k]: the step of kernel k. derived: whether the tags were derived from the blocks.
    convolution[l]: whether the layer has a convolution.
    """

    names: tuple[str, ...]
    of_kernel: tuple[int, ...]
    steps: tuple[Step, ...]
    step_of: tuple[int, ...]
    convolution: tuple[bool, ...]
    derived: bool

    def name_of(self, k: int) -> str:
        """Layer name of kernel k."""
        return self.names[self.of_kernel[k]]


def layers_of(graph: TaskGraph) -> Layers:
    """The layers of a graph, from the trace's own tags if any kernel has one, else derived.

    A kernel without a tag in a tagged trace belongs to a layer called after its phase.
    """
    derived = all(kernel.layer is None for kernel in graph.kernels)
    tags = _derive(graph) if derived else [kernel.layer or f"({kernel.phase.value})" for kernel in graph.kernels]
    names = tuple(dict.fromkeys(tags))
    number = {name: index for index, name in enumerate(names)}
    of_kernel = tuple(number[tag] for tag in tags)
    convolution = [False] * len(names)
    for layer, kernel in zip(of_kernel, graph.kernels, strict=True):
        convolution[layer] = convolution[layer] or op_class(kernel.op) is OpClass.CONVOLUTION
    steps = _steps(graph, of_kernel)
    step_of = tuple(index for index, step in enumerate(steps) for _ in range(step.first, step.stop))
    return Layers(names, of_kernel, steps, step_of, tuple(convolution), derived)


def _steps(graph: TaskGraph, of_kernel: tuple[int, ...]) -> tuple[Step, ...]:
    steps: list[Step] = []
    first = 0
    for k in range(1, len(of_kernel) + 1):
        same = k < len(of_kernel) and (
            of_kernel[k] == of_kernel[first] and graph.kernels[k].phase == graph.kernels[first].phase
        )
        if not same:
            steps.append(Step(first, k, of_kernel[first], graph.kernels[first].phase))
            first = k
    return tuple(steps)


def _derive(graph: TaskGraph) -> list[str]:
    """Tags from the blocks.

    Forward: a kernel begins a layer when it makes a new block that somebody reads later; views, in-place kernels and
    bookkeeping stay in the layer at hand. Backward: a kernel belongs to the forward layer with which it shares most
    of the blocks it reads, kernels of its own operator class first; one that reads nothing saved in forward (the sum
    of two gradients) stays in the layer at hand. The optimizer is one layer.
    """
    tags: list[str] = []
    touched: defaultdict[int, list[tuple[str, OpClass]]] = defaultdict(list)
    current = ""
    order: dict[str, int] = {}
    for k, kernel in enumerate(graph.kernels):
        if kernel.phase is Phase.OPTIMIZER:
            tags.append("(optimizer)")
            continue
        kind = op_class(kernel.op)
        if kernel.phase is Phase.FORWARD:
            if not current or _begins_layer(graph, k):
                current = f"{len(order) + 1:03d}-{_short(kernel.op)}"
                order[current] = len(order)
            for b in dict.fromkeys(graph.reads[k] + graph.writes[k]):
                touched[b].append((current, kind))
        else:
            current = _saved_by(graph, k, kind, touched, order) or current or "(backward)"
        tags.append(current)
    return tags


def _begins_layer(graph: TaskGraph, k: int) -> bool:
    """Whether kernel k makes a block that another kernel reads."""
    return any(
        version == 1 and not graph.blocks[b].persistent and graph.uses[b][-1] > k
        for b, version in zip(graph.writes[k], graph.write_versions[k], strict=True)
    )


def _saved_by(
    graph: TaskGraph,
    k: int,
    kind: OpClass,
    touched: defaultdict[int, list[tuple[str, OpClass]]],
    order: dict[str, int],
) -> str | None:
    """The forward layer whose saved blocks backward kernel k reads, or None."""
    shared: Counter[str] = Counter()
    same_class: set[str] = set()
    for b in graph.reads[k]:
        for layer, layer_kind in set(touched.get(b, ())):
            shared[layer] += 1
            if kind is layer_kind and kind is not OpClass.OTHER:
                same_class.add(layer)
    if not shared:
        return None
    return max(shared, key=lambda layer: (layer in same_class, shared[layer], order[layer]))


def _short(op: str) -> str:
    """Operator name without its namespace."""
    return op.rsplit("::", 1)[-1].rsplit(" ", 1)[-1].strip("_")
