"""The input and output types of the functions that lower layers, shared by all families of layers.

Each function takes a `LayerLowering`, puts the layer's forward kernels on the tape, and returns a `LoweredLayer`: the
result, the values saved for backward, and a function that puts the backward kernels on the tape. So the values that a
layer saves and those that its backward reads are defined together, as in autograd's table of formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from simgpu.trace.model import BlockKind
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.operations import elementwise, summed
from simgpu.workloads.lowering.tape import Tape, TapeBlock, Value
from simgpu.workloads.network import Layer
from simgpu.workloads.timemodel.operation import Operation

_Attribute = TypeVar("_Attribute")

#: Maps the gradient of a layer's result to those of its inputs, None for an input without a gradient.
Backward = Callable[[Value], tuple[Value | None, ...]]


@dataclass(frozen=True, slots=True)
class LoweredLayer:
    """A lowered layer: its result, its backward function, and the values saved until its last backward kernel ends."""

    value: Value
    backward: Backward
    saved: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class LoweredParts:
    """A lowered layer with several results; the views that follow it access them in order.

    backward: takes the gradients of the parts, None for a part without a gradient.
    """

    parts: tuple[Value, ...]
    backward: Callable[[tuple[Value | None, ...]], tuple[Value | None, ...]]
    saved: tuple[Value, ...] = ()


@dataclass(slots=True)
class Gradients:
    """Accumulates gradients during backward, like autograd's engine.

    The second gradient of a value is added to the first: in place if nothing else uses the first gradient's block and
    it covers the entire block, else into a new block.
    """

    tape: Tape
    waiting: dict[str, Value] = field(default_factory=dict)
    of_weight: dict[TapeBlock, Value] = field(default_factory=dict)
    _holders: Counter[TapeBlock] = field(default_factory=Counter)
    _further: list[tuple[Value, Value]] = field(default_factory=list)
    _pieced: set[TapeBlock] = field(default_factory=set)

    def take(self, name: str) -> Value | None:
        """Removes and returns the complete gradient of a value; None if it has none."""
        result = self.waiting.pop(name, None)
        if result is not None:
            self._holders[result.block] -= 1
        return result

    def is_free(self, gradient: Value) -> bool:
        """Whether a taken gradient may be overwritten: it covers its block, and no waiting gradient uses the block."""
        return not self._holders[gradient.block] and not gradient.partial

    def open_to(self, name: str) -> Value | None:
        """The accumulated gradient of a value if a kernel may add to it in place, else None.

        It must cover its block, and no other waiting gradient may use the block.
        """
        first = self.waiting.get(name)
        return first if first is not None and self._holders[first.block] == 1 and not first.partial else None

    def give(self, name: str, gradient: Value) -> None:
        """Adds a gradient of the value `name`, from one of the layers that used it."""
        first = self.waiting.get(name)
        if first is None:
            self._set(name, gradient)
        elif first.block is gradient.block and self._pieces(name) is not None:
            return
        elif self.open_to(name) is not None and first.block is not gradient.block:
            self.tape.launch("add_", _sum_of(first, gradient, first), (first, gradient), (first,))
        else:
            total = self.tape.new(f"{name}.grad", first.shape, BlockKind.GRADIENT)
            self.tape.launch("add", _sum_of(first, gradient, total), (first, gradient), (total,))
            self._holders[first.block] -= 1
            self._set(name, total)

    def _set(self, name: str, gradient: Value) -> None:
        self.waiting[name] = gradient
        self._holders[gradient.block] += 1

    def piece_into(self, name: str, shape: tuple[int, ...]) -> tuple[Value, bool]:
        """The gradient of a value that is assembled from pieces, and whether it has earlier pieces already."""
        result = self._pieces(name)
        if result is not None:
            return result, True
        created = self.tape.new(f"{name}.grad", shape, BlockKind.GRADIENT)
        self._pieced.add(created.block)
        return created, False

    def _pieces(self, name: str) -> Value | None:
        result = self.waiting.get(name)
        return result if result and result.block in self._pieced and self._holders[result.block] == 1 else None

    def into_weight(self, weight: Value, shape: tuple[int, ...] | None = None) -> Value:
        """A block for the next kernel's gradient of this weight; `settle` adds it to an earlier one.

        shape: of the rows that get a gradient; None for the entire weight.
        """
        created = self.tape.new(f"{weight.block.id}.grad", shape or weight.shape, BlockKind.WEIGHT_GRADIENT)
        first = self.of_weight.setdefault(weight.block, created)
        if first is not created:
            self._further.append((first, created))
        return created

    def settle(self) -> None:
        """Adds the kernels that sum the gradients of weights used more than once."""
        for first, further in self._further:
            self.tape.launch("add_", _sum_of(first, further, first), (first, further), (first,))
        self._further.clear()


def _sum_of(first: Value, second: Value, total: Value) -> Operation:
    return elementwise((first, second), (total,), backward=True)


@dataclass(frozen=True, slots=True)
class LayerLowering:
    """One layer that is being lowered.

    batch: samples.
    inputs: the values it reads.
    needed: for each input, whether it needs a gradient.
    weights: by name, the layer's own and those it shares with another layer.
    labels: the labels that a loss reads.
    framework: whose memory behaviour it follows.
    rewrites: whether it overwrites the block of its input, as the framework fuses it with the previous layer.
    """

    tape: Tape
    layer: Layer
    batch: int
    inputs: tuple[Value, ...]
    needed: tuple[bool, ...]
    weights: Mapping[str, Value]
    labels: Value
    gradients: Gradients
    framework: Framework
    rewrites: bool

    @property
    def x(self) -> Value:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the layer's result, the batch first."""
        return (self.batch, *self.layer.shape)

    def attribute(self, name: str, default: _Attribute) -> _Attribute:
        """One of the layer's attributes, of the default's type."""
        result = self.layer.attributes.get(name, default)
        assert isinstance(result, type(default)), f"{self.layer.name}.{name}: {result!r}"
        return result

    def result(self) -> Value:
        """A block for the layer's result."""
        return self.tape.new(self.layer.name, self.shape, BlockKind.ACTIVATION)

    def extra_output(
        self, name: str, shape: tuple[int, ...], dtype: str = "float32", kind: BlockKind = BlockKind.OTHER
    ) -> Value:
        """A block for an additional output of the layer, such as a mask."""
        return self.tape.new(f"{self.layer.name}.{name}", shape, kind, dtype)

    def gradient(self, index: int = 0) -> Value:
        """A block for the gradient of an input."""
        name, shape = self.layer.inputs[index], self.inputs[index].shape
        return self.tape.new(f"{name}.grad", shape, BlockKind.GRADIENT)

    def gathered(self, grad: Value) -> tuple[Value, tuple[Value, ...]]:
        """Where a library kernel that reads `grad` writes the first input's gradient, and the value it adds to, if any.

        With `Framework.FUSED` it adds to an earlier gradient of the input in place; then `give` has nothing to add.
        """
        result = self.gradients.open_to(self.layer.inputs[0]) if self.framework is Framework.FUSED else None
        if result is None or result.block is grad.block:
            return self.gradient(), ()
        return result, (result,)

    def summed(self, grad: Value, index: int = 0) -> Value:
        """The gradient of an input that was broadcast along some dimension, summed by one kernel."""
        total = self.gradient(index)
        self.tape.launch("sum", summed(grad, total), (grad,), (total,))
        return total

    def state(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        """A persistent block of the layer that is not trained, such as running statistics."""
        return self.tape.constant(f"{self.layer.name}.{name}", shape, BlockKind.OTHER, dtype)

    def weight_gradients(self, *names: str) -> tuple[Value, ...]:
        """Blocks for the next kernel's gradients of these weights; names that the layer lacks are skipped."""
        return tuple(self.gradients.into_weight(self.weights[name]) for name in names if name in self.weights)

    def for_first_input(self, value: Value | None) -> tuple[Value | None, ...]:
        """`value` as the gradient of the first input, and None for the others."""
        return (value, *([None] * (len(self.inputs) - 1)))
