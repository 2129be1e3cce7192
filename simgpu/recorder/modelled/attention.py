"""``scaled_dot_product_attention`` as PyTorch 2.13 runs it on CUDA: one of three fused operators, or plain products.

The conditions are those of ``ATen/native/transformers/cuda/sdp_utils.cpp``. On Hopper and Blackwell, PyTorch asks
cuDNN's attention first, with a mask or without (``can_use_cudnn_attention``):

- ``torch.backends.cuda.enable_cudnn_sdp`` and ``torch.nn.attention.sdpa_kernel`` may turn it off, and so do
  deterministic algorithms that do not only warn;
- operands of four dimensions in half precision, with values next to each other in memory, tokens, and one batch size;
  no more than 65,535 samples or heads; no single key, and no single query with dropout;
- widths of heads and rate of dropout: `simgpu.workloads.eager.attention.prefers_cudnn`;
- as many heads of keys and values as of queries, or with ``enable_gqa`` numbers that divide it;
- a mask of two or four dimensions, each of one or all positions, with values next to each other; none that is trained.

A mask is read as it is: it needs no aligned rows. A boolean one becomes values first. Without gradients, CUDA stores no
sums of the scores, which PyTorch's fake tensors have until the operator ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from simgpu.workloads.eager.attention import WITH_FLASH, prefers_cudnn

_HALF = (torch.float16, torch.bfloat16)
#: Architectures whose tensor cores compute half-precision numbers only.
_FIRST_TENSOR_CORES = frozenset(("volta", "turing"))
#: The widest heads that flash attention supports. It pads their width to a multiple of `_FLASH_WIDTH`.
_WIDEST, _FLASH_WIDTH = 256, 8
#: The rows of a mask that is added to scores are aligned to this many values.
_MASK_WIDTH = 8
#: The most samples, and heads, of cuDNN's attention.
_MOST = 65_535


class Attention:
    """``scaled_dot_product_attention`` on a GPU of this architecture; None: of one without tensor cores."""

    def __init__(self, architecture: str | None) -> None:
        self._architecture = architecture
        self._has_flash = architecture in WITH_FLASH
        self._on_tensor_cores: Sequence[torch.dtype] = ()
        if self._has_flash or architecture in _FIRST_TENSOR_CORES:
            self._on_tensor_cores = (*_HALF, torch.float32) if self._has_flash else _HALF

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
        """Computes attention; the arguments are those of ``torch.nn.functional.scaled_dot_product_attention``."""
        aten = torch.ops.aten
        saves = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        if self._uses_cudnn(query, key, value, attn_mask, dropout_p, enable_gqa):
            mask = _as_values(attn_mask, query.dtype)
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, saves, dropout_p, is_causal, scale=scale
            )[0]
        if self._uses_flash(query, key, value, attn_mask, is_causal, enable_gqa):
            width = query.shape[-1]
            factor = width**-0.5 if scale is None else scale
            padded = [pad(x, (0, -width % _FLASH_WIDTH)) if width % _FLASH_WIDTH else x for x in (query, key, value)]
            result = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, scale=factor)[0]
            return result[..., :width] if width % _FLASH_WIDTH else result
        if self._uses_efficient(query, key, value, attn_mask):
            bias = None if attn_mask is None else _bias(attn_mask, query, key)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, saves, dropout_p, is_causal, scale=scale
            )[0]
        if attn_mask is None and not is_causal:
            return aten._scaled_dot_product_attention_math(
                query, key, value, None, dropout_p, False, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        mask = _as_values(attn_mask, query.dtype)
        return _masked_products(query, key, value, mask, dropout_p, scale, enable_gqa)

    def _uses_cudnn(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float,
        enable_gqa: bool,
    ) -> bool:
        if not torch.backends.cuda.cudnn_sdp_enabled() or _is_deterministic() or not _are_dense(query, key, value):
            return False
        dtype, values = str(query.dtype).removeprefix("torch."), value.shape[-1]
        queries, *others = _heads(query, key, value)
        return (
            prefers_cudnn(self._architecture, dtype, query.shape[-1], values, dropout)
            and all(queries % each == 0 if enable_gqa else queries == each for each in others)
            and max(query.shape[:2]) <= _MOST
            and key.shape[2] != 1
            and (query.shape[2] != 1 or not dropout)
            and (mask is None or _suits(mask, (*query.shape[:3], key.shape[2])))
        )

    def _uses_flash(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        is_causal: bool,
        enable_gqa: bool,
    ) -> bool:
        width, heads = query.shape[-1], _heads(query, key, value)
        return (
            self._has_flash
            and query.dtype in _HALF
            and attn_mask is None
            and _are_dense(query, key, value)
            and (len(set(heads)) == 1 or (enable_gqa and heads[1] == heads[2] and heads[0] % heads[1] == 0))
            and width == key.shape[-1] == value.shape[-1] <= _WIDEST
            and not (is_causal and query.shape[-2] != key.shape[-2])
        )

    def _uses_efficient(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None
    ) -> bool:
        if query.dtype not in (*_HALF, torch.float32) or (query.dtype is torch.bfloat16 and not self._has_flash):
            return False
        step = 128 // torch.finfo(query.dtype).bits if query.dtype in self._on_tensor_cores else 1
        return (
            _are_dense(query, key, value)
            and (attn_mask is None or attn_mask.stride(-1) == 1)
            and len(set(_heads(query, key, value))) == 1
            and query.shape[-1] == key.shape[-1]
            and query.shape[-1] % step == value.shape[-1] % step == 0
        )


def _are_dense(*tensors: torch.Tensor) -> bool:
    """Returns whether all have four dimensions, one batch size, tokens, and values next to each other in memory."""
    return (
        all(x.dim() == 4 and x.shape[-2] > 0 and x.stride(-1) == 1 for x in tensors)
        and len({x.shape[0] for x in tensors}) == 1
    )


def _is_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def _suits(mask: torch.Tensor, scores: Sequence[int]) -> bool:
    """Whether cuDNN's attention can add a mask to scores of this shape (``check_attn_mask_shape``)."""
    sides = zip(reversed(mask.shape), reversed(scores), strict=False)
    has_sides = mask.dim() in (2, 4) and all(side in (1, whole) for side, whole in sides)
    return has_sides and mask.stride(-1) == 1 and not mask.requires_grad


def _heads(*tensors: torch.Tensor) -> list[int]:
    return [x.shape[-3] if x.dim() > 2 else 0 for x in tensors]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns the bias that is added to the scores, expanded to all heads; a boolean mask becomes 0 or -infinity.

    It is padded where its rows are not aligned (``preprocess_mask`` in ``ATen/native/transformers/attention.cpp``).
    """
    mask = _added(mask, query.dtype) if mask.dtype is torch.bool else mask
    tokens = mask.shape[-1]
    if any(stride % _MASK_WIDTH for stride in mask.stride()[:-1]):
        mask = pad(mask, (0, _MASK_WIDTH - tokens % _MASK_WIDTH))[..., :tokens]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _as_values(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return _added(mask, dtype) if mask is not None and mask.dtype is torch.bool else mask


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a boolean mask as values that are added to the scores: 0 where it is true, else -infinity."""
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=dtype), float("-inf"))


def _masked_products(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attention by plain products, with a mask; None: a causal one.

    The operators are those of ``_scaled_dot_product_attention_math``, but the mask is added in place. PyTorch does so
    too, except while operators are intercepted.
    """
    dtype, root = query.dtype, (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    if dtype in _HALF:
        query, key, value = query.float(), key.float(), value.float()
    query = query * root
    if mask is None:
        mask = _added(torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(), query.dtype)
    if enable_gqa and query.shape[-3] > key.shape[-3]:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ (key.transpose(-2, -1) * root)
    scores.add_(mask)
    weights = torch.ops.aten._safe_softmax(scores, -1)
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    returned_weights = weights.to(dtype)  # the operator returns them too, so they occupy memory until it ends
    result = (weights @ value).to(dtype)
    del returned_weights
    return result
