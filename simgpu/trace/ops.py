"""Operator names of many frameworks sorted into the few classes that policies speak of."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class OpClass(StrEnum):
    """What sort of layer an operator is part of, forward or backward."""

    CONVOLUTION = "convolution"
    POOLING = "pooling"
    ACTIVATION = "activation"
    NORMALIZATION = "normalization"
    LINEAR = "linear"
    DROPOUT = "dropout"
    SOFTMAX_LOSS = "softmax_loss"
    OTHER = "other"


# First match wins, so that "max_pool2d_with_indices_backward" is pooling and "threshold_backward" an activation.
_TABLE: tuple[tuple[str, OpClass], ...] = (
    (r"conv", OpClass.CONVOLUTION),
    (r"pool", OpClass.POOLING),
    (
        r"batch_?norm|layer_?norm|group_?norm|instance_?norm|rms_?norm|local_?response|(^|[^a-z])lrn",
        OpClass.NORMALIZATION,
    ),
    (r"drop_?out|droupout|masked_scale", OpClass.DROPOUT),
    (r"nll_?loss|cross_?entropy|bce|log_?softmax|mse_?loss", OpClass.SOFTMAX_LOSS),
    (r"relu|threshold|sigmoid|tanh|gelu|silu|hardtanh|hardswish|elu|softplus", OpClass.ACTIVATION),
    (r"(^|[^a-z])(addmm|baddbmm|bmm|mm|matmul|linear|addmv)([^a-z]|$)|linear|addmm", OpClass.LINEAR),
)
_COMPILED = tuple((re.compile(pattern), op_class) for pattern, op_class in _TABLE)


@lru_cache(maxsize=4096)
def op_class(op: str) -> OpClass:
    """Class of an operator by its recorded name, in any case and with any prefix.

    >>> op_class("aten::conv2d").value, op_class("autograd::engine::evaluate_function: ReluBackward0").value
    ('convolution', 'activation')
    >>> op_class("cudnn_batch_norm_backward").value, op_class("_cat").value
    ('normalization', 'other')
    """
    name = op.lower()
    for pattern, found in _COMPILED:
        if pattern.search(name):
            return found
    return OpClass.OTHER
