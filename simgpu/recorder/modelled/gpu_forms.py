"""Gives operators on fake CPU tensors the form that they have on a CUDA device.

Fake CUDA tensors need a PyTorch built with CUDA; fake CPU tensors work everywhere, and nearly all operators are
dispatched alike. Operators that differ and affect a model's memory get their CUDA form here: dropout (one operator
whose mask has one byte per value), attention (one fused operator that stores no scores), linear layers (the bias is
added in place, except while operators are intercepted), RMS normalization (one operator), softmax of float16 in float32
(one operator), ``one_hot`` (zeros and a scatter) and optimizers (one multi-tensor operator for all weights; step counts
on the host). Two differences remain: the name of batch normalization, which is the only difference of cuDNN's, and
recurrent layers, which cuDNN fuses over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

import torch
from torch.library import Library

from simgpu.recorder.modelled.attention import Attention


@contextmanager
def gpu_forms(architecture: str | None) -> Iterator[None]:
    """Inside the context, layers on CPU tensors use the operators of a GPU of this architecture.

    Attention then fails on real tensors, because its fused operators have no CPU implementation.
    """
    library, onednn = Library("aten", "IMPL"), torch.backends.mkldnn
    was_enabled = onednn.enabled
    try:
        onednn.enabled = False
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("linear", _linear, "AutogradCPU")
        library.impl("one_hot", _one_hot, "AutogradCPU")
        library.impl("softmax.int", _softmax, "AutogradCPU")
        library.impl("rms_norm", _rms_norm, "AutogradCPU")
        library.impl("scaled_dot_product_attention", Attention(architecture), "AutogradCPU")
        yield
    finally:
        onednn.enabled = was_enabled
        library._destroy()


def step_as_on_gpu(optimizer: torch.optim.Optimizer) -> None:
    """Makes an optimizer use multi-tensor operators (foreach), its default on a GPU, unless configured otherwise."""
    for group in optimizer.param_groups:
        chosen = group.get("fused") or group.get("differentiable")
        if "foreach" in group and group["foreach"] is None and not chosen:
            group["foreach"] = True


def step_counts(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the optimizer state that stays on the host with a GPU: the step count of each weight."""
    on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    counts = [state.get("step") for state in optimizer.state.values()]
    return [] if on_device else [count for count in counts if isinstance(count, torch.Tensor)]


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0 or x.numel() == 0:
        return x
    return torch.native_dropout(x, p, train)[0] if p < 1 else x * torch.zeros((), dtype=x.dtype)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Computes a linear layer as ``ATen/native/Linear.cpp`` does on CUDA."""
    if bias is None:
        return torch.matmul(x, weight.t())
    if bias.dim() == 1 and (x.dim() == 2 or x.is_contiguous()):
        rows = torch.addmm(bias, x.reshape(prod(x.shape[:-1]), x.shape[-1]), weight.t())
        return rows.view(*x.shape[:-1], weight.shape[0])
    return torch.matmul(x, weight.t()).add_(bias)


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Computes it as ``ATen/native/Onehot.cpp`` does where tensors have values; that of fake tensors compares."""
    if num_classes < 1:  # it depends on values, or is refused
        result: torch.Tensor = torch.ops.aten.one_hot.default.decompose(x, num_classes)
        return result
    zeros = torch.zeros(*x.shape, num_classes, dtype=x.dtype, device=x.device)
    return zeros.scatter_(-1, x.unsqueeze(-1), 1)


def _softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Computes it as ``ATen/native/SoftMax.cpp`` does on CUDA, where float16 becomes float32 within the operator."""
    if x.dtype is torch.float16 and dtype is torch.float32:
        return torch._softmax(x, dim, True)
    result: torch.Tensor = torch.ops.aten.softmax.int.decompose(x, dim, dtype)
    return result


def _rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Computes RMS normalization, which CUDA fuses if input and weight have one format (``layer_norm.cpp``).

    It is modelled as layer normalization, which stores a mean per row in addition.
    """
    if weight is not None and weight.dtype is not x.dtype:
        result: torch.Tensor = torch.ops.aten.rms_norm.default.decompose(x, normalized_shape, weight, eps)
        return result
    epsilon = torch.finfo(x.dtype).eps if eps is None else eps
    return torch.native_layer_norm(x, normalized_shape, weight, None, epsilon)[0]
