"""Maps operator names to the time model's operation kinds."""

from __future__ import annotations

from simgpu.trace.operators import OpClass, op_class
from simgpu.workloads.timemodel.operation import OperationKind

_ATTENTION = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
_NAMES = {
    OperationKind.ATTENTION: " ".join(
        f"_scaled_dot_product_{name}{suffix}" for name in _ATTENTION for suffix in ("", "_backward")
    ),
    OperationKind.NORMALIZATION: """
        native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward
        _native_batch_norm_legit _native_batch_norm_legit_no_training _native_batch_norm_legit_functional
        _batch_norm_with_update batch_norm_backward native_layer_norm native_layer_norm_backward native_group_norm
        native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward
        batch_norm layer_norm layer_norm_backward local_response_norm local_response_norm_backward
    """,
    OperationKind.POOLING: """
        max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
        max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
        adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward
        adaptive_avg_pool2d adaptive_avg_pool2d_backward
    """,
    OperationKind.SOFTMAX: """
        _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax
        _masked_softmax _masked_softmax_backward
        softmax softmax_backward log_softmax log_softmax_backward liger_cross_entropy_kernel
    """,
    OperationKind.REDUCTION: """
        sum mean amax amin max min argmax argmin prod var var_mean std std_mean norm linalg_vector_norm any all
        logsumexp cumsum cumprod count_nonzero nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss
        binary_cross_entropy _foreach_norm
        conv2d_backward_bias conv_transpose2d_backward_bias linear_backward_bias
    """,
    OperationKind.GATHER: """
        embedding embedding_dense_backward index index_put index_put_ _index_put_impl_ index_select index_add
        index_add_ gather gather_backward scatter scatter_ scatter_add scatter_add_ masked_select take
        embedding_sparse_backward sparse_update_
    """,
    OperationKind.COPY: """
        copy_ clone _to_copy contiguous cat stack constant_pad_nd reflection_pad2d replication_pad2d repeat flip roll
        slice_backward select_backward slice_scatter select_scatter as_strided_scatter diagonal_backward unfold_backward
        _foreach_copy_ _local_scalar_dense pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im tril triu
        _unsafe_view reshape _reshape_copy split_with_sizes_copy unfold_copy
    """,
    OperationKind.ELEMENTWISE: """
        zero_ fill_ zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor arange eye
        rand randn randint rand_like randn_like randperm bernoulli bernoulli_ normal_ uniform_ random_ exponential_
        native_dropout native_dropout_backward nll_loss_backward nll_loss2d_backward mse_loss_backward
        smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward masked_fill masked_fill_
        threshold_backward gelu_backward silu_backward mish_backward elu_backward leaky_relu_backward
        hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward log_sigmoid_forward
        log_sigmoid_backward tanh_backward sigmoid_backward glu glu_backward _prelu_kernel _prelu_kernel_backward
        upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward
        _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_
        element_mul_kernel
        _fused_sgd_ _fused_adam_ _fused_adamw_ _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
    """,
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_OF_CLASS = {
    OpClass.CONVOLUTION: OperationKind.CONVOLUTION,
    OpClass.LINEAR: OperationKind.GEMM,
    OpClass.POOLING: OperationKind.POOLING,
    OpClass.NORMALIZATION: OperationKind.NORMALIZATION,
    OpClass.SOFTMAX_LOSS: OperationKind.SOFTMAX,
}


def listed_kind(name: str) -> OperationKind | None:
    """The kind of a listed operator name without its library prefix, in place or not; None if not listed.

    >>> listed_kind("relu_"), listed_kind("index_select").value
    (None, 'gather')
    """
    return _KIND_OF.get(name) or _KIND_OF.get(name.rstrip("_"))


def kind_of(op: str) -> OperationKind:
    """The kind of an operator by its recorded name: as listed, else by its class, else elementwise.

    >>> [kind_of(op).value for op in ("aten::cat", "cudnn_convolution", "autograd::engine: ReluBackward0")]
    ['copy', 'convolution', 'elementwise']
    """
    name = op.rpartition("::")[2]
    listed = listed_kind(name) or listed_kind(name.lstrip("_"))
    return listed or _OF_CLASS.get(op_class(op), OperationKind.ELEMENTWISE)
