"""Data classes of a network: layers with shapes, weights and arithmetic, for one sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from types import MappingProxyType


class LayerKind(StrEnum):
    """What a layer computes; the comments list its attributes."""

    CONVOLUTION = "convolution"  # kernel, stride, padding, dilation: pairs; groups: int; transposed: bool
    LINEAR = "linear"  # on the last dimension; sampled_rows: int, if it reads only that many rows of its weight
    MATMUL = "matmul"  # of two inputs; transpose_second: bool; leading dimensions are batches
    RELU = "relu"  # in_place: bool
    GELU = "gelu"
    TANH = "tanh"
    MAX_POOL = "max_pool"  # kernel, stride, padding: pairs; ceil: bool
    AVG_POOL = "avg_pool"  # kernel, stride, padding: pairs; ceil: bool
    GLOBAL_AVG_POOL = "global_avg_pool"
    BATCH_NORM = "batch_norm"
    LAYER_NORM = "layer_norm"
    LOCAL_RESPONSE_NORM = "local_response_norm"  # size: int
    DROPOUT = "dropout"  # rate: float
    SOFTMAX = "softmax"  # over the last dimension
    SCALE = "scale"  # multiplies by a constant, or adds a mask or its own weight: one elementwise kernel
    ADD = "add"  # of two or more inputs; in_place: bool, into the first
    MULTIPLY = "multiply"  # of two inputs
    CONCATENATE = "concatenate"  # axis: int, of the shape for one sample; its own weight, if any, comes first
    CROP = "crop"
    VIEW = "view"  # flatten, reshape, transpose or slice, without a copy
    PERMUTE = "permute"  # a copy in another order
    EMBEDDING = "embedding"  # sparse_gradient: bool, whether the gradient has only the rows that were read
    LSTM_CELL = "lstm_cell"  # one time step; inputs: x, h, c; result (2, hidden): output, new c; views split them
    LOSS = "loss"  # cross-entropy over the last dimension, always the last layer


@dataclass(frozen=True, slots=True)
class Weight:
    """One trained parameter of a layer. name: within the layer (weight, bias, ...)."""

    name: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of values."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a network.

    inputs: names of the layers, or of the network's inputs, that it reads.
    shape: of its result for one sample, without the batch dimension.
    weights: its own weights; with `shares`, additional ones such as the bias of a tied output layer.
    macs: multiply-accumulates of forward for one sample.
    attributes: listed with each `LayerKind`.
    shares: the earlier layer whose weights it uses (time steps of an LSTM, a tied output layer); None if its own.
    stage: the layer tag of its kernels in a trace; None for its own name.
    """

    name: str
    kind: LayerKind
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    weights: tuple[Weight, ...] = ()
    macs: int = 0
    attributes: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    shares: str | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """One input of a network, for one sample. dtype: a PyTorch name."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Network:
    """A network, its layers in forward order; the last layer is the loss.

    source: the publication that it follows.
    label_shape: of one sample's labels.
    form: how it differs from the publication for the chosen input, and the source of that form; empty if it does not.
    """

    name: str
    inputs: tuple[NetworkInput, ...]
    layers: tuple[Layer, ...]
    source: str
    label_shape: tuple[int, ...] = ()
    form: str = ""

    @property
    def provenance(self) -> str:
        """Source and form in one line."""
        return "; ".join(filter(None, (self.source, self.form)))

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(weight.count for layer in self.layers for weight in layer.weights)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of forward for one sample."""
        return sum(layer.macs for layer in self.layers)
