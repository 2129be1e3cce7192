"""Whether an operator, run again on the same inputs, gives the same values and changes nothing else.

Lives here: a table of operator names for recordings that say no more than the name. Names not in the table are
unknown, and said to be unknown. An in-place operator such as ``relu_`` is as pure as ``relu``: what it changes is a
block it declares to write, and running all writers of that block in order gives the block again.
"""

from __future__ import annotations

import re

_PURE = """
conv1d conv2d conv3d convolution cudnn_convolution linear mm addmm bmm baddbmm matmul
relu threshold leaky_relu gelu silu tanh sigmoid hardtanh softmax log_softmax layer_norm native_layer_norm
group_norm native_group_norm local_response_norm lrn add sub mul div neg exp log sqrt rsqrt pow abs clamp sum mean
cat stack clone contiguous copy pad constant_pad_nd max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool2d
adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d embedding nll_loss nll_loss_forward nll_loss2d_forward
cross_entropy_loss binary_cross_entropy_with_logits mse_loss ones_like zeros_like ones zeros fill
view reshape flatten t transpose permute expand slice select split chunk as_strided squeeze unsqueeze
"""

#: Random numbers (a dropout draws a new mask), and batch norm in training, which moves its running statistics.
_IMPURE = """
dropout native_dropout fused_dropout fused_droupout feature_dropout alpha_dropout bernoulli rand randn randint
rand_like randn_like random normal uniform multinomial
batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_impl_index
"""

_IS_PURE = dict.fromkeys(_PURE.split(), True) | dict.fromkeys(_IMPURE.split(), False)

_PREFIX = re.compile(r"^aten::")
_OVERLOAD = re.compile(r"(\..*|_dim_IntList)$")


def purity(op: str) -> bool | None:
    """True or False where the name settles it, None where it does not.

    >>> purity("aten::conv2d"), purity("relu_"), purity("cudnn_batch_norm"), purity("my_kernel")
    (True, True, False, None)
    """
    return _IS_PURE.get(_OVERLOAD.sub("", _PREFIX.sub("", op)).strip("_"))


_WITH_SAVED = re.compile(r"batch_?norm|drop_?out|droupout", re.IGNORECASE)


def repeats_with_saved(op: str) -> bool:
    """Whether an operator that is not pure gives the same values again from what it saved.

    A batch norm can use the statistics that it saved of its batch, and a dropout the mask that it drew.

    >>> repeats_with_saved("aten::native_batch_norm"), repeats_with_saved("native_dropout"), repeats_with_saved("rand")
    (True, True, False)
    """
    return _WITH_SAVED.search(op) is not None and "backward" not in op.lower()
