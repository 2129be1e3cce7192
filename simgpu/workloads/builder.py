"""`NetworkBuilder` builds a network layer by layer and infers each layer's shape, weights and arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from simgpu.workloads.network import Layer, LayerKind, Network, NetworkInput, Weight
from simgpu.workloads.shapes import (
    Shape,
    Side,
    concatenated,
    matmul_shape,
    pair,
    transposed_window_sides,
    window_sides,
)


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """A value in a network under construction: the layer or input that produces it, and its shape for one sample."""

    name: str
    shape: Shape

    @property
    def channels(self) -> int:
        """Channels of a feature map (channels, height, width)."""
        return self.shape[0]


class NetworkBuilder:
    """Builds one network, layer by layer in forward order; `finish` returns the `Network`.

    Every method takes the layer's name first and returns a `LayerOutput` for the layers that read it. A shape that
    does not fit raises `ValueError`, which names the layer.

    >>> net = NetworkBuilder("tiny", "an example")
    >>> x = net.input("image", (3, 32, 32))
    >>> x = net.relu("relu1", net.convolution("conv1", x, 64, 3, padding=1))
    >>> network = net.finish(net.linear("fc", net.flatten("flatten", x), 10))
    >>> x.shape, network.parameters, network.macs
    ((64, 32, 32), 657162, 2424832)
    """

    def __init__(self, name: str, source: str, form: str = "") -> None:
        self._name = name
        self._source = source
        self._form = form
        self._inputs: list[NetworkInput] = []
        self._layers: list[Layer] = []
        self._shapes: dict[str, Shape] = {}
        self._scope: list[str] = []
        self._stage: str | None = None

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> LayerOutput:
        """Adds an input to the network. dtype: a PyTorch name."""
        added = NetworkInput(name, tuple(shape), dtype)
        self._claim(name, added.shape)
        self._inputs.append(added)
        return LayerOutput(name, added.shape)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of layers added inside with `name` and a dot."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Gives all layers added inside this layer tag, prefixed with the enclosing scopes."""
        before, self._stage = self._stage, self._scoped(name)
        try:
            yield
        finally:
            self._stage = before

    def convolution(
        self,
        name: str,
        x: LayerOutput,
        channels: int,
        kernel: Side,
        *,
        stride: Side = 1,
        padding: Side = 0,
        dilation: Side = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> LayerOutput:
        """A convolution over (channels, height, width)."""
        self._need(name, len(x.shape) == 3, f"needs (channels, height, width), got {x.shape}")
        self._need(
            name,
            x.channels % groups == 0 and channels % groups == 0,
            f"{x.channels} channels in and {channels} out do not divide into {groups} groups",
        )
        window = {"kernel": pair(kernel), "stride": pair(stride), "padding": pair(padding), "dilation": pair(dilation)}
        sides = self._fit(name, window_sides(x.shape[1:], *window.values()))
        weight = (channels, x.channels // groups, *window["kernel"])
        return self._add(
            name,
            LayerKind.CONVOLUTION,
            (x,),
            (channels, *sides),
            weights=_weights(weight, channels if bias else 0),
            macs=prod(sides) * prod(weight),
            attributes={**window, "groups": groups, "transposed": False},
        )

    def transposed_convolution(
        self,
        name: str,
        x: LayerOutput,
        channels: int,
        kernel: Side,
        *,
        stride: Side = 1,
        padding: Side = 0,
        bias: bool = True,
    ) -> LayerOutput:
        """The adjoint of a convolution: enlarges by its stride. Its weight is (channels in, channels out, ...)."""
        self._need(name, len(x.shape) == 3, f"needs (channels, height, width), got {x.shape}")
        window = {"kernel": pair(kernel), "stride": pair(stride), "padding": pair(padding)}
        sides = self._fit(name, transposed_window_sides(x.shape[1:], **window))
        weight = (x.channels, channels, *window["kernel"])
        return self._add(
            name,
            LayerKind.CONVOLUTION,
            (x,),
            (channels, *sides),
            weights=_weights(weight, channels if bias else 0),
            macs=prod(x.shape[1:]) * prod(weight),
            attributes={**window, "dilation": (1, 1), "groups": 1, "transposed": True},
        )

    def linear(
        self, name: str, x: LayerOutput, features: int, *, bias: bool = True, shares: str | None = None
    ) -> LayerOutput:
        """A product with a (features, last dimension) weight. shares: an earlier layer whose weight it uses."""
        own_bias = (Weight("bias", (features,)),) if bias else ()
        return self._add(
            name,
            LayerKind.LINEAR,
            (x,),
            (*x.shape[:-1], features),
            weights=own_bias if shares else _weights((features, x.shape[-1]), features if bias else 0),
            macs=prod(x.shape) * features,
            shares=shares,
        )

    def sampled_linear(self, name: str, x: LayerOutput, rows: int, sampled: int) -> LayerOutput:
        """A product with `sampled` rows of a (rows, last dimension) weight, drawn again in every iteration."""
        return self._add(
            name,
            LayerKind.LINEAR,
            (x,),
            (*x.shape[:-1], sampled),
            weights=_weights((rows, x.shape[-1]), rows),
            macs=prod(x.shape) * sampled,
            attributes={"sampled_rows": sampled},
        )

    def matmul(
        self, name: str, first: LayerOutput, second: LayerOutput, *, transpose_second: bool = False
    ) -> LayerOutput:
        """The matrix product of two values; all dimensions before the last two must be equal."""
        shape = matmul_shape(first.shape, second.shape, transpose_second)
        self._need(name, shape is not None, f"cannot multiply {first.shape} with {second.shape}")
        assert shape is not None
        macs = prod(shape) * first.shape[-1]
        attributes = {"transpose_second": transpose_second}
        return self._add(name, LayerKind.MATMUL, (first, second), shape, macs=macs, attributes=attributes)

    def relu(self, name: str, x: LayerOutput, *, in_place: bool = True) -> LayerOutput:
        """Rectified linear unit; in place by default, as in public implementations."""
        return self._add(name, LayerKind.RELU, (x,), x.shape, attributes={"in_place": in_place})

    def gelu(self, name: str, x: LayerOutput) -> LayerOutput:
        """Gaussian error linear unit."""
        return self._add(name, LayerKind.GELU, (x,), x.shape)

    def tanh(self, name: str, x: LayerOutput) -> LayerOutput:
        """Hyperbolic tangent."""
        return self._add(name, LayerKind.TANH, (x,), x.shape)

    def softmax(self, name: str, x: LayerOutput) -> LayerOutput:
        """Softmax over the last dimension."""
        return self._add(name, LayerKind.SOFTMAX, (x,), x.shape)

    def scale(self, name: str, x: LayerOutput) -> LayerOutput:
        """Multiplication by a constant, or addition of one (a mask, fixed positions)."""
        return self._add(name, LayerKind.SCALE, (x,), x.shape)

    def max_pool(
        self, name: str, x: LayerOutput, kernel: Side, stride: Side, *, padding: Side = 0, ceil: bool = False
    ) -> LayerOutput:
        """The maximum of each window; with `ceil` the last window may extend past the edge."""
        return self._pool(LayerKind.MAX_POOL, name, x, kernel, stride, padding, ceil)

    def avg_pool(
        self, name: str, x: LayerOutput, kernel: Side, stride: Side, *, padding: Side = 0, ceil: bool = False
    ) -> LayerOutput:
        """The mean of each window."""
        return self._pool(LayerKind.AVG_POOL, name, x, kernel, stride, padding, ceil)

    def global_avg_pool(self, name: str, x: LayerOutput) -> LayerOutput:
        """The mean of each channel, shape (channels, 1, 1)."""
        return self._add(name, LayerKind.GLOBAL_AVG_POOL, (x,), (x.channels, 1, 1))

    def batch_norm(self, name: str, x: LayerOutput) -> LayerOutput:
        """Batch normalization with a trained scale and shift for each channel."""
        return self._add(name, LayerKind.BATCH_NORM, (x,), x.shape, weights=_weights((x.channels,), x.channels))

    def layer_norm(self, name: str, x: LayerOutput) -> LayerOutput:
        """Normalization along the last dimension with a trained scale and shift."""
        return self._add(name, LayerKind.LAYER_NORM, (x,), x.shape, weights=_weights((x.shape[-1],), x.shape[-1]))

    def local_response_norm(self, name: str, x: LayerOutput, size: int = 5) -> LayerOutput:
        """Normalization across `size` neighbouring channels."""
        return self._add(name, LayerKind.LOCAL_RESPONSE_NORM, (x,), x.shape, attributes={"size": size})

    def dropout(self, name: str, x: LayerOutput, rate: float) -> LayerOutput:
        """Sets a fraction `rate` of the values to zero."""
        return self._add(name, LayerKind.DROPOUT, (x,), x.shape, attributes={"rate": rate})

    def add(self, name: str, *inputs: LayerOutput, in_place: bool = False) -> LayerOutput:
        """The sum of values of equal shape; `in_place` overwrites the first."""
        self._need(name, len({x.shape for x in inputs}) == 1, f"cannot add {[x.shape for x in inputs]}")
        return self._add(name, LayerKind.ADD, inputs, inputs[0].shape, attributes={"in_place": in_place})

    def multiply(self, name: str, first: LayerOutput, second: LayerOutput) -> LayerOutput:
        """The elementwise product."""
        self._need(name, first.shape == second.shape, f"cannot multiply {first.shape} and {second.shape}")
        return self._add(name, LayerKind.MULTIPLY, (first, second), first.shape)

    def concatenate(self, name: str, inputs: Sequence[LayerOutput], axis: int = 0) -> LayerOutput:
        """The concatenation of values along an axis of the shape for one sample."""
        shape = concatenated([x.shape for x in inputs], axis)
        self._need(name, shape is not None, f"cannot join {[x.shape for x in inputs]} along axis {axis}")
        assert shape is not None
        return self._add(name, LayerKind.CONCATENATE, tuple(inputs), shape, attributes={"axis": axis})

    def crop(self, name: str, x: LayerOutput, sides: Sequence[int]) -> LayerOutput:
        """A window of (height, width) out of each channel."""
        fits = all(small <= large for small, large in zip(sides, x.shape[1:], strict=True))
        self._need(name, fits, f"cannot crop {tuple(sides)} out of {x.shape}")
        return self._add(name, LayerKind.CROP, (x,), (x.channels, *sides))

    def view(self, name: str, x: LayerOutput, shape: Sequence[int]) -> LayerOutput:
        """The same values, or the first of them, in another shape, without a copy."""
        self._need(name, prod(shape) <= prod(x.shape), f"{x.shape} holds too few values for {tuple(shape)}")
        return self._add(name, LayerKind.VIEW, (x,), tuple(shape))

    def flatten(self, name: str, x: LayerOutput) -> LayerOutput:
        """All values in one dimension, without a copy."""
        return self.view(name, x, (prod(x.shape),))

    def permute(self, name: str, x: LayerOutput, shape: Sequence[int]) -> LayerOutput:
        """The same values in another order, copied."""
        self._need(name, prod(shape) == prod(x.shape), f"{tuple(shape)} does not hold the values of {x.shape}")
        return self._add(name, LayerKind.PERMUTE, (x,), tuple(shape))

    def embedding(
        self, name: str, x: LayerOutput, rows: int, width: int, *, sparse_gradient: bool = False
    ) -> LayerOutput:
        """One row of a (rows, width) table for each index."""
        weights = (Weight("weight", (rows, width)),)
        attributes = {"sparse_gradient": sparse_gradient}
        return self._add(name, LayerKind.EMBEDDING, (x,), (*x.shape, width), weights=weights, attributes=attributes)

    def add_weight(self, name: str, x: LayerOutput, rows: int | None = None) -> LayerOutput:
        """Adds the first rows of a trained weight to x. rows: of the weight, by default as many as x has."""
        length, width = x.shape
        self._need(name, length <= (rows or length), f"a weight of {rows} rows is too short for {x.shape}")
        return self._add(name, LayerKind.SCALE, (x,), x.shape, weights=(Weight("weight", (rows or length, width)),))

    def prepend_weight(self, name: str, x: LayerOutput) -> LayerOutput:
        """Prepends a trained row to those of x."""
        rows, width = x.shape
        weights = (Weight("weight", (1, width)),)
        return self._add(name, LayerKind.CONCATENATE, (x,), (rows + 1, width), weights=weights, attributes={"axis": 0})

    def lstm_cell(
        self, name: str, x: LayerOutput, h: LayerOutput, c: LayerOutput, *, shares: str | None = None
    ) -> tuple[LayerOutput, LayerOutput]:
        """One time step of an LSTM: returns its output and its new cell state, both with the shape of c."""
        hidden, width = c.shape[-1], x.shape[-1] + h.shape[-1]
        weights = (
            ()
            if shares
            else (
                Weight("weight_input", (4 * hidden, x.shape[-1])),
                Weight("weight_recurrent", (4 * hidden, h.shape[-1])),
                Weight("bias", (4 * hidden,)),
            )
        )
        both = self._add(
            name,
            LayerKind.LSTM_CELL,
            (x, h, c),
            (2, hidden),
            weights=weights,
            macs=4 * hidden * width,
            shares=shares,
        )
        return self.view(f"{name}.output", both, (hidden,)), self.view(f"{name}.state", both, (hidden,))

    def finish(self, x: LayerOutput, label_shape: Sequence[int] | None = None) -> Network:
        """The network with a cross-entropy loss over the last dimension of x.

        label_shape: of one sample's labels; by default one label for each position in the other dimensions.
        """
        shape = x.shape[:-1] if label_shape is None else tuple(label_shape)
        self._add("loss", LayerKind.LOSS, (x,), ())
        return Network(self._name, tuple(self._inputs), tuple(self._layers), self._source, shape, self._form)

    def _pool(
        self, kind: LayerKind, name: str, x: LayerOutput, kernel: Side, stride: Side, padding: Side, ceil: bool
    ) -> LayerOutput:
        window = {"kernel": pair(kernel), "stride": pair(stride), "padding": pair(padding)}
        sides = window_sides(x.shape[1:], window["kernel"], window["stride"], window["padding"], ceil=ceil)
        shape = (x.channels, *self._fit(name, sides))
        return self._add(name, kind, (x,), shape, attributes={**window, "ceil": ceil})

    def _add(
        self,
        name: str,
        kind: LayerKind,
        inputs: Sequence[LayerOutput],
        shape: Shape,
        *,
        weights: tuple[Weight, ...] = (),
        macs: int = 0,
        attributes: Mapping[str, object] | None = None,
        shares: str | None = None,
    ) -> LayerOutput:
        path = self._scoped(name)
        self._claim(path, shape)
        for x in inputs:
            self._need(name, self._shapes.get(x.name) == x.shape, f"reads {x.name!r}, which is not in this network")
        shared = shares is None or shares in self._shapes
        self._need(name, shared, f"shares the weights of {shares!r}, which is not in this network")
        names = tuple(x.name for x in inputs)
        frozen = MappingProxyType(dict(attributes or {}))
        self._layers.append(Layer(path, kind, names, shape, weights, macs, frozen, shares, self._stage))
        return LayerOutput(path, shape)

    def _claim(self, path: str, shape: Shape) -> None:
        if path in self._shapes:
            raise ValueError(f"network {self._name!r} has two layers or inputs named {path!r}; give each its own name")
        self._shapes[path] = shape

    def _scoped(self, name: str) -> str:
        return ".".join((*self._scope, name))

    def _fit(self, name: str, sides: tuple[int, int] | None) -> tuple[int, int]:
        self._need(name, sides is not None, "the window is larger than the padded feature map")
        assert sides is not None
        return sides

    def _need(self, name: str, condition: bool, problem: str) -> None:
        if not condition:
            raise ValueError(f"network {self._name!r}, layer {self._scoped(name)!r}: {problem}")


def _weights(weight: Shape, bias: int) -> tuple[Weight, ...]:
    return (Weight("weight", weight), Weight("bias", (bias,))) if bias else (Weight("weight", weight),)
