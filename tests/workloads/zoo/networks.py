"""Small networks for the tests of the lowering, and a time model with constant durations."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from simgpu.trace.model import Origin, Trace, TraceInfo
from simgpu.workloads.lowering.entry import lower
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.network import Layer, LayerKind, Network, NetworkInput, Weight
from simgpu.workloads.timemodel.operation import Operation


@dataclass(frozen=True)
class Choice:
    name: str
    duration_ns: int
    workspace_bytes: int


@dataclass(frozen=True)
class Flat:
    """A microsecond per kernel; `algorithms` for convolutions, or no choice of algorithms."""

    choices: tuple[Choice, ...] = ()

    def duration_ns(self, operation: Operation) -> int:
        return 1000

    def algorithms(self, operation: Operation) -> tuple[Choice, ...]:
        return self.choices if operation.convolution is not None else ()


#: Of the small examples' feature maps.
MAP = (4, 8, 8)
INFO = TraceInfo("test", 1, "none", "float32", Origin.MODELLED, "a test")


def lowered(
    network: Network,
    batch: int,
    prices: Flat | None = None,
    optimizer: Optimizer = Optimizer.SGD,
    framework: Framework = Framework.PYTORCH,
) -> Trace:
    return lower(network, batch=batch, prices=prices or Flat(), info=INFO, optimizer=optimizer, framework=framework)


def conv(name: str, source: str, before: int, shape: tuple[int, ...], bias: bool = True, **attributes: object) -> Layer:
    """3x3, padded, unless the attributes say otherwise; `before`: channels of its input."""
    attributes = {"kernel": (3, 3), "padding": (1, 1), **attributes}
    rows, columns = attributes["kernel"]
    weights = (Weight("weight", (shape[0], before, rows, columns)), Weight("bias", (shape[0],)))
    macs = prod(shape) * before * rows * columns
    return Layer(name, LayerKind.CONVOLUTION, (source,), shape, weights[: 1 + bias], macs, attributes)


def linear(name: str, source: str, before: int, outputs: int) -> Layer:
    weights = (Weight("weight", (outputs, before)), Weight("bias", (outputs,)))
    return Layer(name, LayerKind.LINEAR, (source,), (outputs,), weights, before * outputs)


def plain(kind: LayerKind, name: str, *inputs: str, shape: tuple[int, ...], **attributes: object) -> Layer:
    return Layer(name, kind, inputs, shape, attributes=attributes)


def batch_norm(name: str, source: str, shape: tuple[int, ...]) -> Layer:
    weights = (Weight("weight", shape[:1]), Weight("bias", shape[:1]))
    return Layer(name, LayerKind.BATCH_NORM, (source,), shape, weights)


def network(*layers: Layer, image: tuple[int, ...] = (3, 8, 8)) -> Network:
    """These layers on images, with a loss at the end."""
    loss = Layer("loss", LayerKind.LOSS, (layers[-1].name,), ())
    return Network("test", (NetworkInput("input", image),), (*layers, loss), "a test")


def relu(name: str, source: str, shape: tuple[int, ...], in_place: bool = True) -> Layer:
    return plain(LayerKind.RELU, name, source, shape=shape, in_place=in_place)


def vgg11_cifar() -> Network:
    """The network of the shipped recording vgg11-cifar-cpu, with the same layers and names."""
    layers: list[Layer] = []
    source, channels, side, stage, place = "input", 3, 32, 1, 1
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width:
            layers.append(conv(f"conv{stage}_{place}", source, channels, (width, side, side)))
            layers.append(relu(f"relu{stage}_{place}", layers[-1].name, (width, side, side)))
            channels, place = width, place + 1
        else:
            side //= 2
            layers.append(plain(LayerKind.MAX_POOL, f"pool{stage}", source, shape=(channels, side, side)))
            stage, place = stage + 1, 1
        source = layers[-1].name
    layers.append(plain(LayerKind.VIEW, "flatten", source, shape=(512,)))
    for number in (6, 7):
        layers.append(linear(f"fc{number}", layers[-1].name, 512, 512))
        layers.append(relu(f"relu{number}", f"fc{number}", (512,)))
        layers.append(plain(LayerKind.DROPOUT, f"drop{number}", f"relu{number}", shape=(512,), rate=0.5))
    layers.append(linear("fc8", "drop7", 512, 10))
    return network(*layers, image=(3, 32, 32))


def residual() -> Network:
    """conv, batch norm, relu; a block with a shortcut; average; linear."""
    return network(
        conv("conv1", "input", 3, MAP, bias=False),
        batch_norm("bn1", "conv1", MAP),
        relu("relu1", "bn1", MAP),
        conv("conv2", "relu1", 4, MAP, bias=False),
        batch_norm("bn2", "conv2", MAP),
        plain(LayerKind.ADD, "add", "bn2", "relu1", shape=MAP),
        relu("relu2", "add", MAP),
        plain(LayerKind.GLOBAL_AVG_POOL, "pool", "relu2", shape=(4, 1, 1)),
        plain(LayerKind.VIEW, "flatten", "pool", shape=(4,)),
        linear("fc", "flatten", 4, 10),
    )


def inception() -> Network:
    """Two branches from one relu, concatenated, as in GoogLeNet."""
    return network(
        conv("conv1", "input", 3, MAP),
        relu("relu1", "conv1", MAP),
        conv("left", "relu1", 4, MAP),
        relu("left_relu", "left", MAP),
        plain(LayerKind.MAX_POOL, "pool", "relu1", shape=MAP, kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
        conv("right", "pool", 4, MAP),
        relu("right_relu", "right", MAP),
        plain(LayerKind.CONCATENATE, "join", "left_relu", "right_relu", shape=(8, 8, 8), axis=0),
        plain(LayerKind.VIEW, "flatten", "join", shape=(512,)),
        linear("fc", "flatten", 512, 10),
    )


def attention() -> Network:
    """Embedded tokens, one attention head, layer norm, gelu; scores use the table of the embedding."""
    shape = (6, 16)
    table = Layer("embedding", LayerKind.EMBEDDING, ("tokens",), shape, (Weight("weight", (50, 16)),))
    square = (Weight("weight", (16, 16)), Weight("bias", (16,)))
    norm = (Weight("weight", (16,)), Weight("bias", (16,)))
    layers = (
        table,
        Layer("query", LayerKind.LINEAR, ("embedding",), shape, square, 6 * 256),
        Layer("key", LayerKind.LINEAR, ("embedding",), shape, square, 6 * 256),
        Layer("scores", LayerKind.MATMUL, ("query", "key"), (6, 6), macs=6 * 96, attributes={"transpose_second": True}),
        plain(LayerKind.SCALE, "scaled", "scores", shape=(6, 6)),
        plain(LayerKind.SOFTMAX, "softmax", "scaled", shape=(6, 6)),
        Layer("mixed", LayerKind.MATMUL, ("softmax", "embedding"), shape, macs=6 * 96),
        plain(LayerKind.ADD, "add", "mixed", "embedding", shape=shape),
        Layer("norm", LayerKind.LAYER_NORM, ("add",), shape, norm),
        plain(LayerKind.GELU, "gelu", "norm", shape=shape),
        Layer("decoder", LayerKind.LINEAR, ("gelu",), (6, 50), macs=6 * 16 * 50, shares="embedding"),
        Layer("loss", LayerKind.LOSS, ("decoder",), ()),
    )
    return Network("attention", (NetworkInput("tokens", (6,), "int64"),), layers, "a test", (6,))


def recurrent(steps: int = 3) -> Network:
    """A long short-term memory over a few tokens; its weights are shared by all time steps."""
    hidden, width = 8, 5
    weights = (
        Weight("weight_input", (4 * hidden, width)),
        Weight("weight_recurrent", (4 * hidden, hidden)),
        Weight("bias", (4 * hidden,)),
    )
    inputs = (
        NetworkInput("tokens", (steps,), "int64"),
        NetworkInput("h", (hidden,)),
        NetworkInput("c", (hidden,)),
    )
    layers = [Layer("embedding", LayerKind.EMBEDDING, ("tokens",), (steps, width), (Weight("weight", (50, width)),))]
    h, c = "h", "c"
    for step in range(steps):
        name, own = f"cell{step}", {"weights": weights} if step == 0 else {"shares": "cell0"}
        layers.append(plain(LayerKind.VIEW, f"x{step}", "embedding", shape=(width,)))
        macs = 4 * hidden * (width + hidden)
        layers.append(Layer(name, LayerKind.LSTM_CELL, (f"x{step}", h, c), (2, hidden), macs=macs, **own))
        h, c = f"{name}.output", f"{name}.state"
        layers += [plain(LayerKind.VIEW, part, name, shape=(hidden,)) for part in (h, c)]
    layers.append(linear("fc", h, hidden, 10))
    layers.append(Layer("loss", LayerKind.LOSS, ("fc",), ()))
    return Network("lstm", inputs, tuple(layers), "a test")


EXAMPLES = {
    "vgg11": vgg11_cifar,
    "residual": residual,
    "inception": inception,
    "attention": attention,
    "recurrent": recurrent,
}
