"""What a network is: layers with shapes, weights and arithmetic, for one sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from types import MappingProxyType


class LayerKind(StrEnum):
    """What a layer computes; its attributes are listed with each."""

    CONVOLUTION = "convolution"  # kernel, stride, padding, dilation: pairs; groups: int; transposed: bool
    LINEAR = "linear"  # on the last side; sampled_rows: int where it reads so many rows of its weight alone
    MATMUL = "matmul"  # of two inputs; transpose_second: bool; batch sides lead
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
    SOFTMAX = "softmax"  # over the last side
    SCALE = "scale"  # by a constant, or a mask or its own weight added: one elementwise kernel
    ADD = "add"  # of two or more inputs; in_place: bool, into the first
    MULTIPLY = "multiply"  # of two inputs
    CONCATENATE = "concatenate"  # axis: int, of the shape for one sample; a weight of its own stands first
    CROP = "crop"
    VIEW = "view"  # flatten, reshape, transpose, take a part, without a copy
    PERMUTE = "permute"  # a copy in another order
    EMBEDDING = "embedding"  # sparse_gradient: bool, whether only the rows that were read get one
    LSTM_CELL = "lstm_cell"  # one time step; inputs: x, h, c; result (2, hidden): output, new c; views take them apart
    LOSS = "loss"  # cross-entropy over the last side, always the last layer


@dataclass(frozen=True, slots=True)
class Weight:
    """One trained parameter of a layer: name within the layer (weight, bias, ...) and shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a network.

    inputs: names of the layers it reads, or names of the network's inputs. shape: of its result for one sample,
    without the batch. macs: multiply-accumulates for one sample in forward. attributes: by `LayerKind`.
    shares: the earlier layer whose weights it uses (time steps of an LSTM, a tied output layer); its own `weights`
    are then those it has besides (the bias of a tied output layer). stage: the layer tag its kernels carry in a
    trace, its own name where None.
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
    """One input for one sample; dtype as PyTorch names it."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Network:
    """A network in forward order; its last layer is the loss.

    source: the publication whose description it follows. label_shape: of one sample's labels. form: what differs from
    that description for the input chosen, and whose form it is; empty where nothing does.
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
        """Number of trained values."""
        return sum(weight.count for layer in self.layers for weight in layer.weights)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of forward for one sample."""
        return sum(layer.macs for layer in self.layers)
