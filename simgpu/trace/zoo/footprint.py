"""How much memory a network takes in a framework that gives every layer its own, held throughout, as Caffe does.

Lives here: that count, in closed form from the network. Does not live here: what a framework that frees and reuses
memory needs at once (the peak over a trace's recorded lifetimes: `simgpu.trace.stats`).

Caffe keeps for each layer one blob of data and one of gradients (Jia et al. 2014, section 3.1, and its source: a `Blob`
has `data` and `diff`, allocated when first used and never freed); layers that work in place (ReLU, dropout, batch norm
in the published models) share that of the layer before. Weights have data, gradient and momentum. moDNN (section 7.1)
counts its *ideal memory* the same way, one result and one gradient for each fused layer.
"""

from __future__ import annotations

from math import prod

from simgpu.trace.zoo.lowering.tape import ITEMSIZE
from simgpu.trace.zoo.network import Layer, LayerKind, Network

_IN_PLACE = {LayerKind.RELU, LayerKind.BATCH_NORM, LayerKind.DROPOUT, LayerKind.SCALE, LayerKind.VIEW}
_FLOAT = ITEMSIZE["float32"]


def blob_bytes(network: Network, batch: int) -> int:
    """Bytes of all layers' results and their gradients, the batch, and weights with gradient and momentum.

    Tables of which a sample reads a few rows alone (sparse embeddings, sampled softmax) count as kept by the host.
    Workspaces of convolutions are left out.

    >>> from simgpu.trace.zoo.catalogue import build
    >>> blob_bytes(build("resnet50"), 32) / 1e9
    4.5...
    """
    return _fixed(network) + batch * _per_sample(network)


def fitted_batch(network: Network, size: int) -> int:
    """The batch whose `blob_bytes` come nearest to `size`, at least 1: for footprints published without a batch.

    >>> from simgpu.trace.zoo.catalogue import build
    >>> fitted_batch(build("resnet50"), 4_500_000_000)
    32
    """
    each = _per_sample(network)
    return max(1, (2 * (size - _fixed(network)) + each) // (2 * each))


def _fixed(network: Network) -> int:
    kept = (layer for layer in network.layers if not _is_table(layer))
    return 3 * _FLOAT * sum(weight.count for layer in kept for weight in layer.weights)


def _is_table(layer: Layer) -> bool:
    return bool(layer.attributes.get("sparse_gradient") or layer.attributes.get("sampled_rows"))


def _per_sample(network: Network) -> int:
    given = sum(ITEMSIZE[each.dtype] * prod(each.shape) for each in network.inputs)
    results = sum(prod(layer.shape) for layer in network.layers if layer.kind not in _IN_PLACE)
    return given + 2 * _FLOAT * results
