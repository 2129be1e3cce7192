"""Exchanges of a layer whose tensors several GPUs share, as PyTorch's tensor parallelism with sequence parallelism.

Source: torchtitan's `apply_tp` (`torchtitan/models/llama3/parallelize_llama.py` at 820504e2, June 2025; as at 9dec370a,
December 2024). Between the parts of a layer each GPU has some tokens of every sample. Tokens are gathered before
attention and the feed-forward part, and their sums scattered after them; in backward the other way round. With scales
of whole tensors, float8 is gathered (torchao's `float8_tensor_parallel.py`), with scales of rows bfloat16.

The operators stand for the exchange alone: its order of tokens is not that of the source, and the maximum over all GPUs
that a scale needs is left out.
"""

from __future__ import annotations

from typing import Any

import torch

#: Any name: no group of processes is needed where nothing is computed.
_GROUP = "tp"


def gathered(x: torch.Tensor, parts: int, linear: Any = None) -> torch.Tensor:
    """All tokens of each sample. linear: a layer that reads them, if they are gathered in its float8; else None."""
    result: torch.Tensor = _Gathered.apply(x, parts, linear)
    return result


def scattered(x: torch.Tensor, parts: int, linear: Any = None) -> torch.Tensor:
    """The sum over all GPUs, of which each keeps its tokens. linear: the layer whose result x is, as in `gathered`."""
    result: torch.Tensor = _Scattered.apply(x, parts, linear)
    return result


def in_float8(linear: Any) -> Any:
    """The layer if it has torchao's scales of whole tensors, so that its factors are converted where they are gathered
    from; None for others."""
    config = getattr(linear, "config", None)
    granularity = getattr(getattr(config, "cast_config_input", None), "scaling_granularity", None)
    return linear if getattr(granularity, "name", "") == "TENSORWISE" else None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parts: int, linear: Any) -> torch.Tensor:
        ctx.parts = parts
        return _gather(x, parts) if linear is None else _gather_converted(x, parts, linear, of_gradient=False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _scatter(gradients[0], ctx.parts), None, None


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parts: int, linear: Any) -> torch.Tensor:
        ctx.parts, ctx.linear = parts, linear
        return _scatter(x, parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.linear is None:
            return _gather(gradients[0], ctx.parts), None, None
        return _gather_converted(gradients[0], ctx.parts, ctx.linear, of_gradient=True), None, None


def _gather(x: torch.Tensor, parts: int) -> torch.Tensor:
    rows = torch.ops._c10d_functional.all_gather_into_tensor(x.flatten(0, 1), parts, _GROUP)
    return rows.view(x.size(0), -1, x.size(2))


def _scatter(x: torch.Tensor, parts: int) -> torch.Tensor:
    rows = torch.ops._c10d_functional.reduce_scatter_tensor(x.flatten(0, 1), "sum", parts, _GROUP)
    return rows.view(x.size(0), -1, x.size(2))


def _gather_converted(x: torch.Tensor, parts: int, linear: Any, *, of_gradient: bool) -> torch.Tensor:
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import Float8TrainingTensor, GemmInputRole

    cast = linear.config.cast_config_grad_output if of_gradient else linear.config.cast_config_input
    role = GemmInputRole.GRAD_OUTPUT if of_gradient else GemmInputRole.INPUT
    own = hp_tensor_to_float8_dynamic(x, cast.target_dtype, linear.linear_mm_config, gemm_input_role=role)
    everyone = _gather(own._data.view(torch.uint8), parts).view(own._data.dtype)
    result: torch.Tensor = Float8TrainingTensor(everyone, own._scale, x.dtype, linear.linear_mm_config, role)
    return result
