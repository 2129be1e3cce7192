"""Gives operators on fake CPU tensors the form that they have on a CUDA device.

Fake CUDA tensors need a PyTorch built with CUDA; fake CPU tensors work everywhere, and nearly all operators are
dispatched alike. Operators that differ and affect a model's memory get their CUDA form here: dropout (one operator
whose mask has one byte per value), attention (one fused operator that stores no scores) and optimizers (one
multi-tensor operator for all weights; step counts on the host). Two differences remain: the name of batch
normalization, which is the only difference of cuDNN's, and recurrent layers, which cuDNN fuses over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.library import Library

#: GPU architectures that PyTorch's flash attention supports, for half-precision numbers.
_FLASH = frozenset(("ampere", "ada", "hopper", "blackwell"))
_HALF = (torch.float16, torch.bfloat16)
#: Fused attention needs heads whose width is a multiple of this.
_WIDTH = 8
#: The memory of each row of a mask that is added to scores is padded to a multiple of this many values.
_MASK_WIDTH = 16


@contextmanager
def gpu_forms(architecture: str | None) -> Iterator[None]:
    """Inside the context, dropout and attention on CPU tensors use the operators of a GPU of this architecture.

    Attention then fails on real tensors, because its fused operators have no CPU implementation.
    """
    library, onednn = Library("aten", "IMPL"), torch.backends.mkldnn
    was_enabled = onednn.enabled
    try:
        onednn.enabled = False
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _Attention(architecture in _FLASH), "AutogradCPU")
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


class _Attention:
    """``scaled_dot_product_attention`` as PyTorch runs it on CUDA: flash, memory-efficient, or plain products."""

    def __init__(self, has_flash: bool) -> None:
        self._has_flash = has_flash

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        aten = torch.ops.aten
        widths = (query.shape[-1], value.shape[-1])
        fits = query.dim() == 4 and not enable_gqa and not any(width % _WIDTH for width in widths)
        if not fits:
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        if self._has_flash and attn_mask is None and query.dtype in _HALF and max(widths) <= 256:
            return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        saves = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, saves, dropout_p, is_causal, scale=scale
        )[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns the bias that is added to the scores, expanded to all heads; a boolean mask becomes 0 or -infinity."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    tokens = mask.shape[-1]
    if tokens % _MASK_WIDTH:
        padded = torch.nn.functional.pad(mask, (0, _MASK_WIDTH - tokens % _MASK_WIDTH))
        mask = padded[..., :tokens]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
