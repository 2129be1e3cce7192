"""Hand-made networks for the tests of the lowering, and a time model that makes sums easy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from simgpu.trace.model import Origin, Trace, TraceInfo
from simgpu.trace.timemodel.operation import Operation
from simgpu.trace.zoo.lowering import lower
from simgpu.trace.zoo.lowering_optimizer import Optimizer
from simgpu.trace.zoo.network import Layer, LayerKind, Network, NetworkInput, Weight


@dataclass(frozen=True)
class Choice:
    name: str
    duration_ns: int
    workspace_bytes: int


@dataclass(frozen=True)
class Flat:
    """A microsecond a kernel; convolutions by `algorithms`, or without any choice."""

    choices: tuple[Choice, ...] = ()

    def duration_ns(self, operation: Operation) -> int:
        return 1000

    def algorithms(self, operation: Operation) -> tuple[Choice, ...]:
        return self.choices if operation.convolution is not None else ()


INFO = TraceInfo("test", 1, "none", "float32", Origin.MODELLED, "a test")


def lowered(network: Network, batch: int, prices: Flat | None = None, optimizer: Optimizer = Optimizer.SGD) -> Trace:
    return lower(network, batch=batch, prices=prices or Flat(), info=INFO, optimizer=optimizer)


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
    """These layers on images, a loss at their end."""
    loss = Layer("loss", LayerKind.LOSS, (layers[-1].name,), ())
    return Network("test", (NetworkInput("input", image),), (*layers, loss), "a test")


def relu(name: str, source: str, shape: tuple[int, ...], in_place: bool = True) -> Layer:
    return plain(LayerKind.RELU, name, source, shape=shape, in_place=in_place)


def vgg11_cifar() -> Network:
    """The network of the recording that ships as vgg11-cifar-cpu, layer by layer with its names."""
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
