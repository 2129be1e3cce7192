"""The class of an operator, and whether it is pure, by its recorded name.

An operator is pure when, run again on the same inputs, it gives the same values and changes nothing else: it draws no
random numbers and keeps no state. An in-place operator such as ``relu_`` is as pure as ``relu``: running all writers of
the block in order restores it. Kernels that add with atomics, whose last bits vary from run to run, count as pure.
Operators that are not in the table are unknown.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

_PURE = """
conv1d conv2d conv3d convolution cudnn_convolution linear mm addmm bmm baddbmm matmul
relu threshold leaky_relu gelu silu tanh sigmoid hardtanh softmax log_softmax layer_norm native_layer_norm
group_norm native_group_norm local_response_norm lrn add sub mul div neg exp log sqrt rsqrt pow abs clamp sum mean
cat stack clone contiguous copy pad constant_pad_nd max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool2d
adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d embedding nll_loss nll_loss_forward nll_loss2d_forward
cross_entropy_loss binary_cross_entropy_with_logits mse_loss ones_like zeros_like ones zeros fill
view reshape flatten t transpose permute expand slice select split chunk as_strided squeeze unsqueeze
"""

#: Operators that have no forward of the same name: backward of `nll_loss2d_forward`, `embedding` and, in PyTorch 1.5,
#: of a dropout, which scales by the mask that forward drew.
_PURE_IN_BACKWARD = "nll_loss2d_backward embedding_dense_backward masked_scale"

#: Layers in the graphs of G10 whose names, in lower case, are no operator's of PyTorch.
_PURE_IN_G10 = """
maxpool2d adaptiveavgpool2d concat scale gatherv2 divide multiply power softmaxbasic subtract batchmatmul erf
add_multigredient
"""

#: Random numbers (a dropout draws a new mask), and batch norm in training, which moves its running statistics.
#: Backward of cuDNN's and MIOpen's recurrent networks overwrites the reserve that forward left for it.
_IMPURE = """
dropout native_dropout fused_dropout fused_droupout feature_dropout alpha_dropout bernoulli rand randn randint
rand_like randn_like random normal uniform multinomial
batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_impl_index batchnorm2d
cudnn_rnn_backward miopen_rnn_backward
"""

_IS_PURE = {name: True for names in (_PURE, _PURE_IN_BACKWARD, _PURE_IN_G10) for name in names.split()}
_IS_PURE |= dict.fromkeys(_IMPURE.split(), False)

_PREFIX = re.compile(r"^aten::")
_OVERLOAD = re.compile(r"(\..*|_dim_IntList)$")
#: ``relu_backward``, ``_softmax_backward_data``, ``cudnn_convolution_backward_weight``.
_BACKWARD = re.compile(r"(.+?)_backward(_(data|input|weight|bias|reduce|grad_input|a|b))?")
_WITH_SAVED = re.compile(r"batch_?norm|drop_?out|droupout", re.IGNORECASE)


def purity(op: str) -> bool | None:
    """True or False where the name settles it, None where it does not.

    Backward of an operator in the table is pure where the operator is, or where it reads what that saved: backward of
    a dropout applies the mask that was drawn and backward of a batch norm reads the statistics of the batch; neither
    draws or moves anything.

    >>> purity("aten::conv2d"), purity("relu_"), purity("cudnn_batch_norm"), purity("my_kernel")
    (True, True, False, None)
    >>> purity("threshold_backward"), purity("cudnn_batch_norm_backward"), purity("my_kernel_backward")
    (True, True, None)
    """
    name = _OVERLOAD.sub("", _PREFIX.sub("", op)).strip("_")
    if name in _IS_PURE:
        return _IS_PURE[name]
    if backward := _BACKWARD.fullmatch(name):
        forward = backward[1]
        return True if _IS_PURE.get(forward) or (forward in _IS_PURE and repeats_with_saved(forward)) else None
    return None


def repeats_with_saved(op: str) -> bool:
    """Whether an operator that is not pure gives the same values again from what it saved.

    A batch norm can use the statistics that it saved of its batch, and a dropout the mask that it drew.

    >>> repeats_with_saved("aten::native_batch_norm"), repeats_with_saved("native_dropout"), repeats_with_saved("rand")
    (True, True, False)
    """
    return _WITH_SAVED.search(op) is not None and "backward" not in op.lower()


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
    for pattern, result in _COMPILED:
        if pattern.search(name):
            return result
    return OpClass.OTHER
