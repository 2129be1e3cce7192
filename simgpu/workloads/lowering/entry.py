"""`lower` converts a network to a trace of one training iteration as a framework such as PyTorch runs it.

Backward runs in the reverse order of forward, like autograd's engine. A feature map is freed after its last reader in
forward, or, if backward needs it, after the last kernel of the last layer that saved it; a gradient after the last
kernel of the layer whose backward reads it; gradients of weights after the optimizer step. The training loop's
variables hold the network's output and the loss to the end, which a trace of the zoo states (`TraceInfo.output`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from simgpu.trace.model import BlockKind, Phase, Trace, TraceInfo
from simgpu.workloads.lowering import (
    optimizer,
    pointwise,
    pooling_and_norm,
    products,
)
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.joins import joined_in_place
from simgpu.workloads.lowering.operations import elementwise
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.lowering.priced import trace_of_tape
from simgpu.workloads.lowering.step import Gradients, LayerLowering, LoweredLayer, LoweredParts
from simgpu.workloads.lowering.tape import Tape, Value
from simgpu.workloads.network import Layer, LayerKind, Network
from simgpu.workloads.timemodel.operation import Operation
from simgpu.workloads.timemodel.prices import Prices

_FAMILIES: dict[LayerKind, Callable[[LayerLowering], LoweredLayer | LoweredParts]] = {
    LayerKind.CONVOLUTION: products.convolution,
    LayerKind.LINEAR: products.linear,
    LayerKind.MATMUL: products.matmul,
    LayerKind.EMBEDDING: products.embedding,
    LayerKind.RELU: pointwise.relu,
    LayerKind.GELU: pointwise.gelu,
    LayerKind.TANH: pointwise.tanh,
    LayerKind.SOFTMAX: pointwise.softmax,
    LayerKind.SCALE: pointwise.scale,
    LayerKind.DROPOUT: pointwise.dropout,
    LayerKind.ADD: pointwise.add,
    LayerKind.MULTIPLY: pointwise.multiply,
    LayerKind.MAX_POOL: pooling_and_norm.max_pool,
    LayerKind.AVG_POOL: pooling_and_norm.avg_pool,
    LayerKind.GLOBAL_AVG_POOL: pooling_and_norm.global_avg_pool,
    LayerKind.BATCH_NORM: pooling_and_norm.batch_norm,
    LayerKind.LAYER_NORM: pooling_and_norm.layer_norm,
    LayerKind.LOCAL_RESPONSE_NORM: pooling_and_norm.local_response_norm,
    LayerKind.CONCATENATE: pointwise.concatenate,
    LayerKind.VIEW: pointwise.view,
    LayerKind.CROP: pointwise.view,
    LayerKind.PERMUTE: pointwise.permute,
    LayerKind.LSTM_CELL: products.lstm_cell,
    LayerKind.LOSS: pointwise.loss,
}


def operations_of(
    network: Network,
    batch: int,
    optimizer: Optimizer = Optimizer.SGD,
    framework: Framework = Framework.PYTORCH,
) -> Iterator[tuple[str, str, Operation]]:
    """Every kernel of one iteration in order: id and operator as in the trace from `lower`, and its operation."""
    for kernel in _tape_of(network, batch, optimizer, framework).kernels:
        for operation in kernel.operations:
            yield kernel.id, kernel.op, operation


def lower(
    network: Network,
    *,
    batch: int,
    prices: Prices,
    info: TraceInfo,
    optimizer: Optimizer = Optimizer.SGD,
    framework: Framework = Framework.PYTORCH,
) -> Trace:
    """The trace of one training iteration of `batch` samples.

    prices: the time model, for durations and workspaces. info: the trace's description. A convolution runs its fastest
    algorithm; the trace lists all of them.
    """
    tape = _tape_of(network, batch, optimizer, framework)
    trace = trace_of_tape(tape, prices, info, network.name)
    return joined_in_place(trace) if framework is Framework.JOINED else trace


def _tape_of(network: Network, batch: int, optimizer: Optimizer, framework: Framework) -> Tape:
    walked = _without_relu_in_place(network) if framework is Framework.PYTORCH_1_5 else network
    return _Walk(walked, batch, optimizer, framework).run()


def _without_relu_in_place(network: Network) -> Network:
    layers = (
        replace(layer, attributes=MappingProxyType({**layer.attributes, "in_place": False}))
        if layer.kind is LayerKind.RELU
        else layer
        for layer in network.layers
    )
    return replace(network, layers=tuple(layers))


@dataclass(slots=True)
class _Done:
    """A layer whose forward is on the tape. results: names of the values whose gradients its backward reads."""

    step: LayerLowering
    lowered: LoweredLayer | LoweredParts
    results: list[str]


@dataclass(slots=True)
class _Walk:
    """Puts the network's forward, backward and optimizer step on one tape."""

    network: Network
    batch: int
    optimizer: Optimizer
    framework: Framework
    tape: Tape = field(default_factory=Tape)
    values: dict[str, Value] = field(default_factory=dict)
    weights: dict[str, dict[str, Value]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    done: dict[str, _Done] = field(default_factory=dict)
    readers: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = Counter(name for layer in self.network.layers for name in layer.inputs)

    def run(self) -> Tape:
        """The tape of the iteration."""
        tape, gradients = self.tape, Gradients(self.tape)
        labels = self._constants()
        weights = [value for layer in self.network.layers for value in self.weights[layer.name].values()]
        state = optimizer.states(tape, self.optimizer, weights)
        for layer in self.network.layers:
            self._forward(layer, labels, gradients)
        self._backward(gradients)
        optimizer.update(tape, self.optimizer, weights, gradients.of_weight, state)
        loss = self.network.layers[-1]
        for name in (loss.name, *loss.inputs):
            self.values[name].block.release = None
        return tape

    def _constants(self) -> Value:
        tape, batch = self.tape, self.batch
        for each in self.network.inputs:
            self.values[each.name] = tape.constant(each.name, (batch, *each.shape), BlockKind.INPUT, each.dtype)
        labels = tape.constant("label", (batch, *self.network.label_shape), BlockKind.LABEL, "int64")
        for layer in self.network.layers:
            tape.layer = layer.stage or layer.name
            self.weights[layer.name] = {
                weight.name: tape.constant(f"{layer.name}.{weight.name}", weight.shape, BlockKind.WEIGHT)
                for weight in layer.weights
            }
        return labels

    def _forward(self, layer: Layer, labels: Value, gradients: Gradients) -> None:
        parent = self.done.get(layer.inputs[0])
        if parent is not None and isinstance(parent.lowered, LoweredParts):
            self._part(layer, parent, parent.lowered)
            return
        inputs = tuple(self.values[name] for name in layer.inputs)
        needed = tuple(name in self.trained for name in layer.inputs)
        weights = {**self.weights.get(layer.shares or "", {}), **self.weights[layer.name]}
        rewrites = self._rewrites(layer)
        step = LayerLowering(
            self.tape, layer, self.batch, inputs, needed, weights, labels, gradients, self.framework, rewrites
        )
        self.tape.layer = self.tags[layer.name] = self._tag(layer)
        created = _FAMILIES[layer.kind](step)
        if isinstance(created, LoweredLayer):
            self.values[layer.name] = created.value
        if any(needed) or weights:
            self.trained.add(layer.name)
        self.done[layer.name] = _Done(step, created, [layer.name] if isinstance(created, LoweredLayer) else [])

    def _part(self, layer: Layer, parent: _Done, lowered: LoweredParts) -> None:
        """Lowers a view of a layer with several results: the first view is the first result, and so on."""
        self.values[layer.name] = lowered.parts[len(parent.results)]
        self.tags[layer.name] = self.tags[parent.step.layer.name]
        parent.results.append(layer.name)
        if parent.step.layer.name in self.trained:
            self.trained.add(layer.name)

    def _tag(self, layer: Layer) -> str:
        """The layer tag of its kernels; an in-place activation belongs to the layer whose result it overwrites.

        With `Framework.FUSED`, an in-place normalization or sum belongs to the previous layer if it reads that layer.
        """
        in_place = bool(layer.attributes.get("in_place"))
        joined = self.tags.get(layer.inputs[0]) if layer.kind is LayerKind.RELU and in_place else None
        fuses = self._rewrites(layer) or (
            self.framework is Framework.FUSED and layer.kind is LayerKind.ADD and in_place
        )
        if fuses and self.tape.layer in (self.tags.get(name) for name in layer.inputs):
            joined = self.tape.layer
        return layer.stage or joined or layer.name

    def _rewrites(self, layer: Layer) -> bool:
        """Whether a normalization overwrites its input: a product, whose backward does not read its result."""
        if self.framework is not Framework.FUSED or layer.kind is not LayerKind.BATCH_NORM:
            return False
        (source,) = layer.inputs
        maker = self.done.get(source)
        created = maker is not None and maker.step.layer.kind in (LayerKind.CONVOLUTION, LayerKind.LINEAR)
        return created and self.readers[source] == 1

    def _backward(self, gradients: Gradients) -> None:
        """Lowers backward from the loss; the loss's gradient, a one, is live until backward ends."""
        tape, loss = self.tape, self.network.layers[-1]
        tape.phase = Phase.BACKWARD
        tape.layer = self.tags[loss.name]
        one = tape.new(f"{loss.name}.grad", self.values[loss.name].shape, BlockKind.GRADIENT)
        tape.launch("ones_like", elementwise((), (one,), backward=True), (), (one,))
        gradients.give(loss.name, one)
        for done in reversed(self.done.values()):
            self._layer_backward(done, gradients)
        tape.keep((one,))

    def _layer_backward(self, done: _Done, gradients: Gradients) -> None:
        step, created = done.step, done.lowered
        grads = tuple(gradients.take(name) for name in done.results)
        result = tuple(grad for grad in grads if grad is not None)
        if not result or step.layer.name not in self.trained:
            return
        self.tape.layer = self.tags[step.layer.name]
        results = created.backward(grads) if isinstance(created, LoweredParts) else created.backward(result[0])
        self.tape.keep((*created.saved, *result))
        for name, needed, gradient in zip(step.layer.inputs, step.needed, results, strict=True):
            if needed and gradient is not None:
                gradients.give(name, gradient)
        gradients.settle()
