"""A network of the zoo as a PyTorch module, to compare the lowering with autograd."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from simgpu.recorder.workload import Workload
from simgpu.workloads.network import Layer, LayerKind, Network


class NetworkModule(nn.Module):  # type: ignore[misc]
    """Runs the layers in order; a value is freed after its last reader, like a local variable of a usual module."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.norms = nn.ModuleDict()
        for layer in network.layers:
            if layer.kind is LayerKind.BATCH_NORM:
                self.norms[_key(layer.name)] = nn.BatchNorm2d(layer.shape[0])
                continue
            for weight in layer.weights:
                self.register_parameter(_key(f"{layer.name}.{weight.name}"), nn.Parameter(torch.zeros(weight.shape)))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        layers = self.network.layers[:-1]
        readers = Counter(name for layer in layers for name in layer.inputs)
        values = {given.name: tensor for given, tensor in zip(self.network.inputs, inputs, strict=True)}
        for layer in layers:
            readers.subtract(layer.inputs)
            values[layer.name] = self._run(
                layer, [values[name] if readers[name] else values.pop(name) for name in layer.inputs]
            )
        (result,) = values.values()
        return result

    def _run(self, layer: Layer, x: list[torch.Tensor]) -> torch.Tensor:
        if layer.kind is LayerKind.BATCH_NORM:
            return self.norms[_key(layer.name)](x[0])
        weight, bias = (
            getattr(self, _key(f"{layer.name}.{name}"), getattr(self, _key(f"{layer.shares}.{name}"), None))
            for name in ("weight", "bias")
        )
        return _RUN[layer.kind](layer, x, weight, bias)


def _key(name: str) -> str:
    return name.replace(".", "__")


def _convolution(layer: Layer, x: list[torch.Tensor], weight: Any, bias: Any) -> torch.Tensor:
    of = layer.attributes
    if of["transposed"]:
        return functional.conv_transpose2d(x[0], weight, bias, of["stride"], of["padding"])
    return functional.conv2d(x[0], weight, bias, of["stride"], of["padding"], of["dilation"], of["groups"])


def _max_pool(layer: Layer, x: list[torch.Tensor], *_: Any) -> torch.Tensor:
    of = layer.attributes
    return functional.max_pool2d(x[0], of["kernel"], of["stride"], of["padding"], ceil_mode=of["ceil"])


def _avg_pool(layer: Layer, x: list[torch.Tensor], *_: Any) -> torch.Tensor:
    of = layer.attributes
    return functional.avg_pool2d(x[0], of["kernel"], of["stride"], of["padding"], ceil_mode=of["ceil"])


def _matmul(layer: Layer, x: list[torch.Tensor], *_: Any) -> torch.Tensor:
    return torch.matmul(x[0], x[1].transpose(-1, -2) if layer.attributes["transpose_second"] else x[1])


def _add(layer: Layer, x: list[torch.Tensor], *_: Any) -> torch.Tensor:
    return x[0].add_(x[1]) if layer.attributes["in_place"] else x[0] + x[1]


def _concatenate(layer: Layer, x: list[torch.Tensor], weight: Any, _: Any) -> torch.Tensor:
    own = [] if weight is None else [weight.expand(x[0].shape[0], *weight.shape)]
    return torch.cat([*own, *x], dim=1 + layer.attributes["axis"])


def _view(layer: Layer, x: list[torch.Tensor], *_: Any) -> torch.Tensor:
    rows = x[0].view(x[0].shape[0], -1)
    return rows[:, : prod(layer.shape)].view(x[0].shape[0], *layer.shape)


_RUN: dict[LayerKind, Any] = {
    LayerKind.CONVOLUTION: _convolution,
    LayerKind.LINEAR: lambda layer, x, weight, bias: functional.linear(x[0], weight, bias),
    LayerKind.MATMUL: _matmul,
    LayerKind.EMBEDDING: lambda layer, x, weight, bias: functional.embedding(x[0], weight),
    LayerKind.RELU: lambda layer, x, *_: functional.relu(x[0], inplace=layer.attributes["in_place"]),
    LayerKind.GELU: lambda layer, x, *_: functional.gelu(x[0]),
    LayerKind.TANH: lambda layer, x, *_: torch.tanh(x[0]),
    LayerKind.SOFTMAX: lambda layer, x, *_: functional.softmax(x[0], dim=-1),
    LayerKind.SCALE: lambda layer, x, weight, _: x[0] * 0.5 if weight is None else x[0] + weight[: x[0].shape[1]],
    LayerKind.DROPOUT: lambda layer, x, *_: functional.dropout(x[0], layer.attributes["rate"]),
    LayerKind.ADD: _add,
    LayerKind.MAX_POOL: _max_pool,
    LayerKind.AVG_POOL: _avg_pool,
    LayerKind.GLOBAL_AVG_POOL: lambda layer, x, *_: functional.adaptive_avg_pool2d(x[0], 1),
    LayerKind.LAYER_NORM: lambda layer, x, weight, bias: functional.layer_norm(x[0], weight.shape, weight, bias),
    LayerKind.CONCATENATE: _concatenate,
    LayerKind.CROP: lambda layer, x, *_: x[0][..., : layer.shape[1], : layer.shape[2]],
    LayerKind.VIEW: _view,
    LayerKind.PERMUTE: lambda layer, x, *_: x[0].clone().view(x[0].shape[0], *layer.shape),
}


def workload(network: Network, batch: int) -> Workload:
    """The network and its loss on a batch of zeros."""
    inputs = tuple(torch.zeros((batch, *given.shape), dtype=getattr(torch, given.dtype)) for given in network.inputs)
    labels = torch.zeros((batch, *network.label_shape), dtype=torch.int64)

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))

    return Workload(NetworkModule(network), inputs, (labels,), loss)
