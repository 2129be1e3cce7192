"""Layers and layer steps of a trace, by its layer tags or derived from its blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat

from simgpu.garbage import no_collection
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


@no_collection()
def layers_of(trace: Trace) -> Layers:
    """The layers of a trace, from its own tags if any kernel has one, else derived.

    A kernel without a tag in a tagged trace belongs to a layer called after its phase.
    """
    derived = all(kernel.layer is None for kernel in trace.kernels)
    tags = _derived(trace) if derived else [kernel.layer or f"({kernel.phase.value})" for kernel in trace.kernels]
    names = tuple(dict.fromkeys(tags))
    # Layers, steps and kernels share one object for each number.
    numbers = list(range(len(tags) + 1))
    number = dict(zip(names, numbers, strict=False))
    of_kernel = tuple([number[tag] for tag in tags])
    ops = [kernel.op for kernel in trace.kernels]
    convolutions = {op for op in set(ops) if op_class(op) is OpClass.CONVOLUTION}
    convolving = {layer for layer, op in zip(of_kernel, ops, strict=True) if op in convolutions}
    convolution = tuple([layer in convolving for layer in range(len(names))])
    steps = _steps(trace.kernels, of_kernel, numbers)
    step_of = tuple([index for index, step in zip(numbers, steps, strict=False) for _ in range(step.first, step.stop)])
    return Layers(names, of_kernel, steps, step_of, convolution, derived)


def _steps(kernels: Sequence[Kernel], of_kernel: Sequence[int], numbers: Sequence[int]) -> tuple[LayerStep, ...]:
    steps: list[LayerStep] = []
    first = 0
    phases = [kernel.phase for kernel in kernels]
    for (layer, phase), run in groupby(zip(of_kernel, phases, strict=True)):
        stop = numbers[first + sum(1 for _ in run)]
        steps.append(LayerStep(first, stop, layer, phase))
        first = stop
    return tuple(steps)


def _derived(trace: Trace) -> list[str]:
    """Tags from the blocks, by the rules of `_derive`."""
    from simgpu.graph.bulk_layers import derived_layers

    found = derived_layers(trace)
    if found is None:
        return _derive(trace)
    begins, layers = found
    names = [_name(number, trace.kernels[k].op) for number, k in enumerate(begins.tolist())]
    tags: list[str] = []
    current = ""
    for kernel, layer in zip(trace.kernels, layers.tolist(), strict=True):
        if kernel.phase is Phase.OPTIMIZER:
            tags.append("(optimizer)")
            continue
        current = names[layer] if layer >= 0 else current or "(backward)"
        tags.append(current)
    return tags


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
    touches = [kernel.reads + kernel.writes for kernel in trace.kernels]
    users = chain.from_iterable(map(repeat, range(len(touches)), map(len, touches)))
    last_use = dict(zip(chain.from_iterable(touches), users, strict=True))
    # Blocks that have a value: the persistent ones have it from the start.
    written = {block.id for block in trace.blocks if block.persistent}
    for k, kernel in enumerate(trace.kernels):
        phase = kernel.phase
        if phase is Phase.FORWARD:
            if not current or any(last_use[name] > k for name in kernel.writes if name not in written):
                current = _name(len(order), kernel.op)
                order[current] = len(order)
            pair = current, op_class(kernel.op)
            for name in touches[k]:
                touched[name].add(pair)
        elif phase is Phase.BACKWARD:
            current = _saved_by(kernel, op_class(kernel.op), touched, order) or current or "(backward)"
        written.update(kernel.writes)
        tags.append("(optimizer)" if phase is Phase.OPTIMIZER else current)
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
    return max(shared, key=lambda layer: (layer in same_class, shared[layer], order.get(layer, -1)))


def _name(number: int, op: str) -> str:
    """The name of a layer, by its number and its first operator, without that one's namespace."""
    return f"{number + 1:03d}-{op.rsplit('::', 1)[-1].rsplit(' ', 1)[-1].strip('_')}"
