"""Temporaries that CUDA operators allocate and free when they end, from PyTorch's source.

- Fused attention sums the gradient of the queries in float32 in backward, and the products of gradient and result by
  row (``flash_api.cpp``; ``attention_backward.cu`` and ``kernel_backward.h``, whose blocks are taken as 64 x 64).
  cuDNN's does so in one workspace (cudnn-frontend 1.23, ``node/scaled_dot_product_flash_attention.h``). What its
  library adds to that is not published.
- Layer normalization and softmax copy operands that are not contiguous (``ATen/native/cuda/layer_norm_kernel.cu``,
  ``SoftMax.cu``).
- A loss that is one operator computes the loss of every value, then reduces it. The result of three of them keeps the
  memory of every value (``ATen/native/Loss.cpp``, ``ATen/native/cuda/Loss.cu``): it is resized, which frees nothing.
- The gradient of an embedding of more than 3,072 indices sums pieces of rows in float32
  (``ATen/native/cuda/EmbeddingBackwardKernel.cu``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Any

import torch

from simgpu.recorder.allocation_log import Hidden, Life
from simgpu.recorder.modelled.operations import tensor_bytes

_FLASH_BACKWARD = "_scaled_dot_product_flash_attention_backward"
_CUDNN_BACKWARD = "_scaled_dot_product_cudnn_attention_backward"
_EFFICIENT_BACKWARD = "_scaled_dot_product_efficient_attention_backward"
#: Rows and columns of a block of memory-efficient attention's sums.
_BLOCK = 64
#: Arguments that an operator copies if they are not contiguous.
_COPIED = MappingProxyType(
    {
        "native_layer_norm": ("input",),
        "native_layer_norm_backward": ("input", "grad_out"),
        "_softmax": ("self",),
        "_log_softmax": ("self",),
        "_softmax_backward_data": ("grad_output", "output"),
        "_log_softmax_backward_data": ("grad_output", "output"),
        "embedding_dense_backward": ("grad_output",),
    }
)
#: Losses by the number of temporaries with the loss of every value that they allocate, and whether their result has
#: the memory of one more.
_LOSSES = MappingProxyType(
    {
        "mse_loss": (1, True),
        "smooth_l1_loss": (1, True),
        "huber_loss": (1, False),
        "binary_cross_entropy": (0, True),
        "binary_cross_entropy_with_logits": (2, False),
    }
)
#: Value of a loss's argument `reduction` without one.
_NO_REDUCTION = 0
#: Indices up to which an embedding's gradient is summed without temporaries, and those in each piece beyond that.
_FEW_INDICES, _PIECE = 3_072, 10


def temporaries(name: str, given: Mapping[str, Any]) -> Sequence[Hidden]:
    """Returns the temporaries of an operator, in order. name: without namespace. given: arguments by name."""
    own = _OWN.get(name)
    copied = [given[argument] for argument in _COPIED.get(name, ())]
    copies = [_temporary(tensor_bytes(each), 0, "contiguous copy") for each in copied if not each.is_contiguous()]
    return [*copies, *(own(given) if own is not None else ())]


def has_temporaries(name: str) -> bool:
    """Returns whether an operator may have temporaries."""
    return name in _OWN or name in _COPIED


def _flash_backward(given: Mapping[str, Any]) -> Sequence[Hidden]:
    """Memory of flash attention's backward, after the three gradients."""
    query, key = given["query"], given["key"]
    batch, heads, tokens, width = query.shape
    rows, padded = batch * heads, ceil(tokens / 128) * 128
    sums = _temporary(4 * rows * padded, 3, "row sums")
    query_sums = _temporary(4 * rows * padded * ceil(width / 32) * 32, 3, "gradient of queries")
    if key.shape[1] == heads:
        return sums, query_sums
    expanded = batch * key.shape[2] * heads * width * query.element_size()
    return (sums, query_sums, *[_temporary(expanded, 3, "gradient of each head")] * 2)


def _cudnn_backward(given: Mapping[str, Any]) -> Sequence[Hidden]:
    """The workspace of cuDNN's backward, after the three gradients."""
    batch, heads, tokens, width = given["query"].shape
    return (_temporary(4 * batch * heads * tokens * (1 + width), 3, "gradient of queries and row sums"),)


def _efficient_backward(given: Mapping[str, Any]) -> Sequence[Hidden]:
    """Memory of memory-efficient attention's backward, after the three gradients."""
    query = given["query"]
    batch, heads, tokens, width = query.shape
    rows = batch * heads
    blocks = rows * ceil(tokens / _BLOCK) * ceil(width / _BLOCK)
    workspace = _temporary(blocks * (16 + 4 * _BLOCK * _BLOCK), 3, "gradient of queries")
    sums = _temporary(4 * rows * tokens, 3, "row sums")
    if query.dtype is not torch.float32:
        return sums, workspace
    return Hidden(4 * given["out"].numel(), 3, Life.MOMENT, "gradient times result"), sums, workspace


def _loss(count: int, keeps: bool) -> Callable[[Mapping[str, Any]], Sequence[Hidden]]:
    def of(given: Mapping[str, Any]) -> Sequence[Hidden]:
        values, target = given["self"], given["target"]
        if given["reduction"] == _NO_REDUCTION:
            return ()
        size = torch.broadcast_shapes(values.shape, target.shape).numel() * values.element_size()
        result = [Hidden(size, 0, Life.RESULT, "loss of each value")] if keeps else []
        return [*result, *[_temporary(size, int(keeps), "loss of each value")] * count]

    return of


def _safe_softmax(given: Mapping[str, Any]) -> Sequence[Hidden]:
    """Rows that are minus infinity throughout become zeros (``ATen/native/SoftMax.cpp``)."""
    values = given["self"]
    rows = values.numel() // max(values.shape[given["dim"]], 1)
    return _temporary(values.numel(), 1, "values that are infinite"), _temporary(rows, 1, "rows that are infinite")


def _embedding_backward(given: Mapping[str, Any]) -> Sequence[Hidden]:
    gradient, indices, rows = given["grad_output"], given["indices"], given["num_weights"]
    count, step = indices.numel(), indices.element_size()
    if count <= _FEW_INDICES and not given["scale_grad_by_freq"]:
        return ()
    segments = min(count, rows)
    pieces = count // _PIECE + segments
    accumulated = max(4, gradient.element_size())
    return (
        *[_temporary(count * step, 0, "sorted indices")] * 2,
        *[_temporary(segments * step, 1, "places of rows")] * 3,
        _temporary(pieces * step, 1, "places of pieces"),
        _temporary(pieces * gradient.shape[-1] * accumulated, 1, "sums of pieces"),
    )


_OWN: Mapping[str, Callable[[Mapping[str, Any]], Sequence[Hidden]]] = MappingProxyType(
    {
        _CUDNN_BACKWARD: _cudnn_backward,
        _FLASH_BACKWARD: _flash_backward,
        _EFFICIENT_BACKWARD: _efficient_backward,
        "embedding_dense_backward": _embedding_backward,
        "_safe_softmax": _safe_softmax,
        **{name: _loss(*loss) for name, loss in _LOSSES.items()},
    }
)


def _temporary(size: int, after: int, what: str) -> Hidden:
    return Hidden(size, after, Life.OPERATOR, what)
