"""Operators in the form that PyTorch gives them on a CUDA device, on fake tensors of a CPU.

Fake CUDA tensors need a build of PyTorch with CUDA; fake CPU tensors work everywhere, and nearly all operators are
dispatched alike. Those that are not, and change what a model takes in memory, are put into their CUDA form here:
dropout (one operator whose mask has one byte a value), attention (one fused operator that keeps no scores) and
optimizers (all weights in one multi-tensor operator; step counts on the host). Left as on a CPU: the name of batch
normalisation, which cuDNN's differs by alone, and recurrent layers, which cuDNN fuses over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.library import Library

#: Generations of GPUs that PyTorch's flash attention runs on, with half-precision numbers.
_FLASH = frozenset(("ampere", "ada", "hopper", "blackwell"))
_HALF = (torch.float16, torch.bfloat16)
#: Heads of fused attention are as wide as a multiple of this.
_WIDTH = 8
#: A mask that is added to scores has rows whose memory is a multiple of this many values long.
_MASK_WIDTH = 16


@contextmanager
def gpu_forms(architecture: str | None) -> Iterator[None]:
    """Within, dropout and attention on CPU tensors run as they would on a GPU of this generation.

    On real tensors attention fails then: its fused operators have no code for a CPU.
    """
    library, onednn = Library("aten", "IMPL"), torch.backends.mkldnn
    was_on = onednn.enabled
    try:
        onednn.enabled = False
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _Attention(architecture in _FLASH), "AutogradCPU")
        yield
    finally:
        onednn.enabled = was_on
        library._destroy()


def step_as_on_gpu(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer that was told nothing else step all weights at once, as it does by itself on a GPU."""
    for group in optimizer.param_groups:
        chosen = group.get("fused") or group.get("differentiable")
        if "foreach" in group and group["foreach"] is None and not chosen:
            group["foreach"] = True


def step_counts(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The state that a GPU's optimizer keeps on the host: how many steps each weight has seen."""
    on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    counts = [state.get("step") for state in optimizer.state.values()]
    return [] if on_device else [count for count in counts if isinstance(count, torch.Tensor)]


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0 or x.numel() == 0:
        return x
    return torch.native_dropout(x, p, train)[0] if p < 1 else x * torch.zeros((), dtype=x.dtype)


class _Attention:
    """``scaled_dot_product_attention`` by PyTorch's choice on CUDA: flash, memory-efficient, or plain products."""

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
    """What is added to the scores: for a mask of what may be seen, minus infinity elsewhere; seen for every head."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    tokens = mask.shape[-1]
    if tokens % _MASK_WIDTH:
        padded = torch.nn.functional.pad(mask, (0, _MASK_WIDTH - tokens % _MASK_WIDTH))
        mask = padded[..., :tokens]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
