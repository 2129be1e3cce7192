"""What a layer is lowered with, and what comes of it: the words shared by all families of layers.

Each family's functions take a `LayerLowering`, put the layer's forward kernels on the tape, and return `LoweredLayer`:
the result, what is saved for backward, and a function that puts the backward kernels on the tape. So what a layer saves
and what its backward reads stand side by side, as in autograd's table of formulas.
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

#: From the gradient of a layer's result to those of its inputs, None where nothing flows back.
Backward = Callable[[Value], tuple[Value | None, ...]]


@dataclass(frozen=True, slots=True)
class LoweredLayer:
    """A lowered layer: its result, what it saved for backward, and backward itself.

    A layer keeps what it saved until the last of its backward kernels has ended.
    """

    value: Value
    backward: Backward
    saved: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class LoweredParts:
    """A lowered layer with several results, which the views that follow it tell apart in order.

    backward: from the gradients of the parts, None for a part that nothing flows back to.
    """

    parts: tuple[Value, ...]
    backward: Callable[[tuple[Value | None, ...]], tuple[Value | None, ...]]
    saved: tuple[Value, ...] = ()


@dataclass(slots=True)
class Gradients:
    """Gradients on their way back, as autograd's engine gathers them.

    Where a value was used twice, the second gradient is added into the first: in place where nobody else holds the
    first and it is a whole block, else into a new block.
    """

    tape: Tape
    waiting: dict[str, Value] = field(default_factory=dict)
    of_weight: dict[TapeBlock, Value] = field(default_factory=dict)
    _holders: Counter[TapeBlock] = field(default_factory=Counter)
    _further: list[tuple[Value, Value]] = field(default_factory=list)
    _pieced: set[TapeBlock] = field(default_factory=set)

    def take(self, name: str) -> Value | None:
        """The whole gradient of a value that no further layer adds to; None where nothing flows back."""
        result = self.waiting.pop(name, None)
        if result is not None:
            self._holders[result.block] -= 1
        return result

    def is_free(self, gradient: Value) -> bool:
        """Whether a gradient that was taken may be rewritten: nobody else waits for its block, and it is all of it."""
        return not self._holders[gradient.block] and not gradient.partial

    def open_to(self, name: str) -> Value | None:
        """The gradient of a value so far, where a kernel may add to it: a whole block that nobody else waits for."""
        first = self.waiting.get(name)
        return first if first is not None and self._holders[first.block] == 1 and not first.partial else None

    def give(self, name: str, gradient: Value) -> None:
        """A gradient of the value called `name`, from one of the layers that used it."""
        first = self.waiting.get(name)
        if first is None:
            self._hold(name, gradient)
        elif first.block is gradient.block and self._pieces(name) is not None:
            return
        elif self.open_to(name) is not None and first.block is not gradient.block:
            self.tape.launch("add_", _sum_of(first, gradient, first), (first, gradient), (first,))
        else:
            total = self.tape.new(f"{name}.grad", first.shape, BlockKind.GRADIENT)
            self.tape.launch("add", _sum_of(first, gradient, total), (first, gradient), (total,))
            self._holders[first.block] -= 1
            self._hold(name, total)

    def _hold(self, name: str, gradient: Value) -> None:
        self.waiting[name] = gradient
        self._holders[gradient.block] += 1

    def piece_into(self, name: str, shape: tuple[int, ...]) -> tuple[Value, bool]:
        """The gradient of a value that comes back in pieces, and whether earlier pieces are in it already."""
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
        """Where the next kernel writes a gradient of this weight; `settle` adds it where one is there already.

        shape: of the rows alone that get a gradient, where that is not all of the weight.
        """
        created = self.tape.new(f"{weight.block.id}.grad", shape or weight.shape, BlockKind.WEIGHT_GRADIENT)
        first = self.of_weight.setdefault(weight.block, created)
        if first is not created:
            self._further.append((first, created))
        return created

    def settle(self) -> None:
        """Adds up the gradients of weights that were used more than once."""
        for first, further in self._further:
            self.tape.launch("add_", _sum_of(first, further, first), (first, further), (first,))
        self._further.clear()


def _sum_of(first: Value, second: Value, total: Value) -> Operation:
    return elementwise((first, second), (total,), backward=True)


@dataclass(frozen=True, slots=True)
class LayerLowering:
    """One layer on its way onto the tape.

    inputs: the values it reads; needed: for each, whether a gradient flows back to it. weights: by name, those of
    the one whose weights it shares and the layer's own. labels: what a loss compares its input with.
    framework: whose habits with memory it follows. rewrites: whether that has it write over the block of its input.
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
        """Of the layer's result, the batch first."""
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
        """A block for what the layer makes next to its result, such as a mask."""
        return self.tape.new(f"{self.layer.name}.{name}", shape, kind, dtype)

    def gradient(self, index: int = 0) -> Value:
        """A block for the gradient of an input."""
        name, shape = self.layer.inputs[index], self.inputs[index].shape
        return self.tape.new(f"{name}.grad", shape, BlockKind.GRADIENT)

    def gathered(self, grad: Value) -> tuple[Value, tuple[Value, ...]]:
        """Where a library's kernel that reads `grad` writes the gradient of the first input, and what it adds to there.

        It adds where the framework fuses and the gradient has begun; then nothing is left to give.
        """
        result = self.gradients.open_to(self.layer.inputs[0]) if self.framework is Framework.FUSED else None
        if result is None or result.block is grad.block:
            return self.gradient(), ()
        return result, (result,)

    def summed(self, grad: Value, index: int = 0) -> Value:
        """The gradient of an input that was repeated along some side: one kernel sums it."""
        total = self.gradient(index)
        self.tape.launch("sum", summed(grad, total), (grad,), (total,))
        return total

    def state(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        """A block of the layer's that outlives the iteration and is not trained, such as running statistics."""
        return self.tape.constant(f"{self.layer.name}.{name}", shape, BlockKind.OTHER, dtype)

    def weight_gradients(self, *names: str) -> tuple[Value, ...]:
        """Where the next kernel writes the gradients of these weights; of those that the layer has."""
        return tuple(self.gradients.into_weight(self.weights[name]) for name in names if name in self.weights)

    def for_first_input(self, value: Value | None) -> tuple[Value | None, ...]:
        """That gradient for the first input, and none for the others."""
        return (value, *([None] * (len(self.inputs) - 1)))
