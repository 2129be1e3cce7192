"""Memory footprints of networks in closed form, for frameworks in which every layer keeps its own memory.

`result_bytes`: a result and its gradient for each layer; layers that work in place share those of the previous layer.
It is a lower bound on Caffe's memory.

`caffe_bytes`: `result_bytes` and the buffers of Caffe's layers, according to its source (BVLC/caffe, src/caffe/layers,
built with cuDNN; nothing is freed before the end). Not counted: workspaces of convolutions, the solver's second network
for testing, the CUDA context. For ResNet-50 at batch 16 a user reports 6707 MB
(github.com/antingshen/resnet-protofiles, issue 13): `caffe_bytes` counts 5.9 GB, `result_bytes` 2.4.

`all_at_once_bytes` and `bound_bytes`: moDNN's ideal memory and lower bound (Chen et al., TPDS 2019, sections 7 and
5.1.1).

Table 1 of Buddy Compression (Choukse et al., ISCA 2020) prints footprints without batch sizes. Batch sizes fitted to
these footprints:

============== ===== =============================== =======================================
network        GB    batch fitted by `result_bytes`  batch fitted by `caffe_bytes`
============== ===== =============================== =======================================
alexnet         8.85                             760                                     621
inception-v2    3.21                              61                                      23
squeezenet1.1   2.03                              57                                      50
vgg16          11.08                              78                                      73
resnet50        4.50                              32                                      12
biglstm         2.71                             123                    not run under Caffe
============== ===== =============================== =======================================

Neither column contains only common batch sizes, so neither count is confirmed to be the table's. The paper's section
4.4 does not agree with the table either: there, VGG16 and BigLSTM do not fit 12 GB at a mini-batch of 64, while by
these counts 73 or more samples of VGG16 fit the table's 11.08 GB, and 123 of BigLSTM fit its 2.71 GB. (Figure 13 is
PyTorch on a Titan Xp; table 1's image networks ran under Caffe.) BigLSTM's 2.71 GB cannot hold even one of its two
tables of 793471 x 1024 values (3.25 GB), so we assume that both are in host memory. This follows from the printed size;
the paper does not state it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod

from simgpu.units import ITEMSIZE
from simgpu.workloads.lowering.entry import operations_of
from simgpu.workloads.network import Layer, LayerKind, Network
from simgpu.workloads.timemodel.prices import Prices

_FLOAT = ITEMSIZE["float32"]
#: Layers that overwrite their input, in the models published for Caffe.
_IN_PLACE = frozenset((LayerKind.RELU, LayerKind.BATCH_NORM, LayerKind.DROPOUT, LayerKind.SCALE, LayerKind.VIEW))
#: moDNN's layer is an operation and its activation (equation 1), here with normalizations and sums of its result.
_FUSED = _IN_PLACE | {LayerKind.ADD}
#: Buffers of Caffe's layers, in values per value of the result, without the result and its gradient.
_BUFFERS = {
    # batch_norm_layer: temp_, x_norm_ and its gradient; scale_layer, which follows it: temp_, its input's copy.
    LayerKind.BATCH_NORM: 3 + 1,
    # pooling_layer: max_idx_. cuDNN's pooling is used only for averages (layer_factory).
    LayerKind.MAX_POOL: 1,
    # dropout_layer: rand_vec_.
    LayerKind.DROPOUT: 1,
    # Not lrn_layer's scale_: layer_factory uses cuDNN's layer instead.
}
#: Prefetched batches on the device, including the one in use (base_data_layer; `prefetch` in caffe.proto).
_FETCHED = 4


def result_bytes(network: Network, batch: int) -> int:
    """Bytes of all layers' results and their gradients, the batch, and weights with gradient and momentum.

    Tables of which a sample reads only a few rows (sparse embeddings, sampled softmax) are assumed in host memory.

    >>> from simgpu.workloads.catalogue import build
    >>> result_bytes(build("resnet50"), 32) / 1e9
    4.5...
    """
    return _weights(network) + batch * (_inputs(network) + 2 * _results(network, _IN_PLACE))


def caffe_bytes(network: Network, batch: int) -> int:
    """Bytes of Caffe's layers in training with momentum: `result_bytes`, buffers and prefetched batches.

    Buffers with less than one value per value of a feature map are not counted.

    >>> from simgpu.workloads.catalogue import build
    >>> caffe_bytes(build("resnet50"), 16) / 1e9
    5.8...
    """
    ahead = (_FETCHED - 1) * _inputs(network)
    return result_bytes(network, batch) + batch * (ahead + _FLOAT * _buffers(network))


def all_at_once_bytes(network: Network, batch: int, prices: Prices | None = None) -> int:
    """Bytes of moDNN's ideal case: weights, results, their gradients (one of each per fused layer) and the batch.

    Sums of residual networks, normalizations and ReLUs are part of the previous layer. prices: a time model, to add the
    largest workspace of the convolutions' fastest algorithms; None adds no workspace.

    >>> from simgpu.workloads.catalogue import build
    >>> round(all_at_once_bytes(build("resnet34"), 256) / 1e9, 1)
    8.4
    """
    total = 2 * _FLOAT * network.parameters + batch * (_inputs(network) + 2 * _results(network, _FUSED))
    return total + (_largest_workspace(network, batch, prices) if prices else 0)


def bound_bytes(network: Network) -> int:
    """moDNN's memory lower bound in bytes (equation 7): weights with their gradients, and the largest task.

    A task is one layer's forward, gradient of its input, or gradient of its weights, for one sample without workspace.
    Weights and their gradients are resident (section 3.2). Fused layers count as part of the previous layer.

    >>> from simgpu.workloads.catalogue import build
    >>> round(bound_bytes(build("vgg101")) / 2**30, 2)
    1.4
    """
    shapes = {layer.name: layer.shape for layer in network.layers}
    inputs = {each.name: each.shape for each in network.inputs}
    largest = 0
    for layer in network.layers:
        if layer.kind in _FUSED:
            continue
        read, created = (sum(prod(of[name]) for name in layer.inputs if name in of) for of in (inputs, shapes))
        # The gradient of the result, the gradient of the input, and the input itself if a layer produced it.
        results = 2 if layer.kind is LayerKind.MAX_POOL else 1  # backward of cuDNN's pooling reads its result too
        largest = max(largest, read + 2 * created + results * prod(layer.shape))
    return _FLOAT * (2 * network.parameters + largest)


def fitted_batch(network: Network, size: int, count: Callable[[Network, int], int] = result_bytes) -> int:
    """The batch size, at least 1, at which `count` is closest to `size` bytes; for sizes published without a batch.

    >>> from simgpu.workloads.catalogue import build
    >>> fitted_batch(build("resnet50"), 4_500_000_000), fitted_batch(build("resnet50"), 4_500_000_000, caffe_bytes)
    (32, 12)
    """
    fixed = count(network, 0)
    per_sample = count(network, 1) - fixed
    return max(1, (2 * (size - fixed) + per_sample) // (2 * per_sample))


def _weights(network: Network) -> int:
    on_device = (layer for layer in network.layers if not _is_table(layer))
    return 3 * _FLOAT * sum(weight.count for layer in on_device for weight in layer.weights)


def _is_table(layer: Layer) -> bool:
    return bool(layer.attributes.get("sparse_gradient") or layer.attributes.get("sampled_rows"))


def _inputs(network: Network) -> int:
    return sum(ITEMSIZE[each.dtype] * prod(each.shape) for each in network.inputs)


def _results(network: Network, shared: frozenset[LayerKind]) -> int:
    """Bytes of the results of one sample; layers of the kinds in `shared` have no result of their own."""
    return _FLOAT * sum(prod(layer.shape) for layer in network.layers if layer.kind not in shared)


def _buffers(network: Network) -> int:
    """Values in the buffers of Caffe's layers for one sample, without results and gradients."""
    shapes = {layer.name: layer.shape for layer in network.layers}
    readers = Counter(name for layer in network.layers for name in layer.inputs)
    buffers = sum(_BUFFERS.get(layer.kind, 0) * prod(layer.shape) for layer in network.layers)
    # split_layer: a result with several readers has a gradient for each of them and one for their sum.
    split = sum(readers[name] * prod(shape) for name, shape in shapes.items() if readers[name] > 1)
    # softmax_loss_layer: prob_.
    probabilities = sum(prod(shapes[layer.inputs[0]]) for layer in network.layers if layer.kind is LayerKind.LOSS)
    return buffers + split + probabilities


def _largest_workspace(network: Network, batch: int, prices: Prices) -> int:
    operations = {operation for _, _, operation in operations_of(network, batch) if operation.convolution is not None}
    fastest = (prices.algorithms(operation)[:1] for operation in operations)
    return max((algorithm.workspace_bytes for result in fastest for algorithm in result), default=0)
