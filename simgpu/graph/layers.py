"""Layers and layer steps of a trace, by its layer tags or derived from its blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simgpu.trace.model import Kernel, Phase, Trace
from simgpu.trace.operators import OpClass, op_class


@dataclass(frozen=True, slots=True)
class LayerStep:
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

    names[l]: name of layer l, in order of first appearance. of_kernel[k]: layer of kernel k. steps: the iteration as
    layer steps; step_of[k]: the step of kernel k. convolution[l]: whether the layer has a convolution.
    derived: whether the layers were derived from the blocks, because no kernel has a tag.
    """

    names: tuple[str, ...]
    of_kernel: tuple[int, ...]
    steps: tuple[LayerStep, ...]
    step_of: tuple[int, ...]
    convolution: tuple[bool, ...]
    derived: bool

    def name_of(self, k: int) -> str:
        """Layer name of kernel k."""
        return self.names[self.of_kernel[k]]


def layers_of(trace: Trace) -> Layers:
    """The layers of a trace, from its own tags if any kernel has one, else derived.

    A kernel without a tag in a tagged trace belongs to a layer called after its phase.
    """
    derived = all(kernel.layer is None for kernel in trace.kernels)
    tags = _derive(trace) if derived else [kernel.layer or f"({kernel.phase.value})" for kernel in trace.kernels]
    names = tuple(dict.fromkeys(tags))
    number = {name: index for index, name in enumerate(names)}
    of_kernel = tuple(number[tag] for tag in tags)
    convolution = [False] * len(names)
    for layer, kernel in zip(of_kernel, trace.kernels, strict=True):
        convolution[layer] = convolution[layer] or op_class(kernel.op) is OpClass.CONVOLUTION
    steps = _steps(trace.kernels, of_kernel)
    step_of = tuple(index for index, step in enumerate(steps) for _ in range(step.first, step.stop))
    return Layers(names, of_kernel, steps, step_of, tuple(convolution), derived)


def _steps(kernels: Sequence[Kernel], of_kernel: tuple[int, ...]) -> tuple[LayerStep, ...]:
    steps: list[LayerStep] = []
    first = 0
    for k in range(1, len(of_kernel) + 1):
        same = k < len(of_kernel) and (of_kernel[k] == of_kernel[first] and kernels[k].phase == kernels[first].phase)
        if not same:
            steps.append(LayerStep(first, k, of_kernel[first], kernels[first].phase))
            first = k
    return tuple(steps)


def _derive(trace: Trace) -> list[str]:
    """Tags from the blocks.

    Forward: a kernel begins a layer when it writes a new block that is used later; views, in-place kernels and
    bookkeeping stay in the current layer. Backward: a kernel belongs to the forward layer with which it shares most of
    the blocks it reads, layers with its own operator class first; one that reads nothing saved in forward (the sum of
    two gradients) stays in the current layer. The optimizer is one layer.
    """
    tags: list[str] = []
    # By block: the forward layers that touched it, with the classes of the operators that did.
    touched: defaultdict[str, set[tuple[str, OpClass]]] = defaultdict(set)
    current = ""
    order: dict[str, int] = {}
    last_use = {name: k for k, kernel in enumerate(trace.kernels) for name in (*kernel.reads, *kernel.writes)}
    # Blocks that have a value: the persistent ones have it from the start.
    written = {block.id for block in trace.blocks if block.persistent}
    for k, kernel in enumerate(trace.kernels):
        new = [name for name in kernel.writes if name not in written]
        written.update(kernel.writes)
        if kernel.phase is Phase.OPTIMIZER:
            tags.append("(optimizer)")
            continue
        kind = op_class(kernel.op)
        if kernel.phase is Phase.FORWARD:
            if not current or any(last_use[name] > k for name in new):
                current = f"{len(order) + 1:03d}-{_short(kernel.op)}"
                order[current] = len(order)
            for name in kernel.reads + kernel.writes:
                touched[name].add((current, kind))
        else:
            current = _saved_by(kernel, kind, touched, order) or current or "(backward)"
        tags.append(current)
    return tags


def _saved_by(
    kernel: Kernel, kind: OpClass, touched: Mapping[str, set[tuple[str, OpClass]]], order: Mapping[str, int]
) -> str | None:
    """The forward layer whose saved blocks a backward kernel reads, or None."""
    shared: dict[str, int] = {}
    same_class: set[str] = set()
    for name in kernel.reads:
        for layer, layer_kind in touched.get(name, ()):
            shared[layer] = shared.get(layer, 0) + 1
            if kind is layer_kind and kind is not OpClass.OTHER:
                same_class.add(layer)
    if len(shared) < 2:
        return next(iter(shared), None)
    return max(shared, key=lambda layer: (layer in same_class, shared[layer], order[layer]))


def _short(op: str) -> str:
    """Operator name without its namespace."""
    return op.rsplit("::", 1)[-1].rsplit(" ", 1)[-1].strip("_")
