"""The work behind an operator's call, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as f
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.recorder.modelled.operations import OperatorWork, work_of
from simgpu.workloads.timemodel.operation import (
    AttentionShape,
    ConvolutionShape,
    Direction,
    GemmShape,
    Operation,
    OperationKind,
)


class _Works(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.work_by_name: dict[str, OperatorWork] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "prim":
            return returned
        self.work_by_name[name] = work_of(func, args, kwargs or {}, returned)
        return returned


def works(run: Any) -> dict[str, tuple[Operation, ...]]:
    """What each operator that runs within a call does; every one is known."""
    with _Works() as watcher:
        run()
    assert all(work.is_known for work in watcher.work_by_name.values())
    return {name: work.operations for name, work in watcher.work_by_name.items()}


def _sum(run: Any) -> Any:
    return lambda: torch.autograd.backward(run().sum())


def test_a_convolution_and_the_three_parts_of_its_backward() -> None:
    x, weight, bias = torch.ones(2, 3, 8, 10, requires_grad=True), torch.ones(4, 3, 3, 5), torch.ones(4)
    for tensor in (weight, bias):
        tensor.requires_grad_()
    result = works(_sum(lambda: f.conv2d(x, weight, bias, stride=(1, 2), padding=(1, 2))))
    shape = ConvolutionShape(2, 3, (8, 10), 4, (3, 5), (1, 2), (1, 2))
    flops = 2 * (2 * 4 * 8 * 5) * (3 * 3 * 5)
    x_bytes, w_bytes, y_bytes = 4 * 2 * 3 * 8 * 10, 4 * 4 * 3 * 3 * 5, 4 * 2 * 4 * 8 * 5
    kind = OperationKind.CONVOLUTION
    moved, added = x_bytes + w_bytes + 16 + y_bytes, 2 * y_bytes + 16  # a kernel of its own adds the bias
    assert result["convolution"] == (Operation(kind, flops, moved, y_bytes // 4, convolution=shape, added_bytes=added),)
    data, weights, total = result["convolution_backward"]
    assert data == Operation(
        kind, flops, x_bytes + w_bytes + y_bytes, x_bytes // 4, Direction.BACKWARD_DATA, convolution=shape
    )
    assert weights == Operation(
        kind, flops, x_bytes + w_bytes + y_bytes, w_bytes // 4, Direction.BACKWARD_WEIGHTS, convolution=shape
    )
    assert (total.kind, total.bytes, total.results) == (OperationKind.REDUCTION, y_bytes + 16, 4)


def test_gradients_that_are_not_required_are_not_computed() -> None:
    x, weight = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3, requires_grad=True)
    result = works(_sum(lambda: f.conv2d(x, weight)))
    assert [operation.direction for operation in result["convolution_backward"]] == [Direction.BACKWARD_WEIGHTS]


def test_a_transposed_convolution_is_the_plain_one_the_other_way_round() -> None:
    x, weight = torch.ones(2, 6, 4, 4, requires_grad=True), torch.ones(6, 3, 2, 2, requires_grad=True)
    result = works(_sum(lambda: f.conv_transpose2d(x, weight, stride=2)))
    shape = ConvolutionShape(2, 3, (8, 8), 6, (2, 2), (2, 2))
    assert shape.out_size == (4, 4)
    (forward,) = result["convolution"]
    assert (forward.convolution, forward.direction, forward.flops) == (shape, Direction.BACKWARD_DATA, 2 * shape.macs)
    assert [operation.direction for operation in result["convolution_backward"]] == [
        Direction.FORWARD,
        Direction.BACKWARD_WEIGHTS,
    ]


def test_one_and_three_sided_convolutions() -> None:
    line = works(lambda: f.conv1d(torch.ones(2, 3, 9), torch.ones(4, 3, 3), padding=1))["convolution"][0]
    assert line.convolution == ConvolutionShape(2, 3, (1, 9), 4, (1, 3), padding=(0, 1))
    assert line.flops == 2 * 2 * 4 * 9 * 9
    cube = works(lambda: f.conv3d(torch.ones(2, 3, 5, 5, 5), torch.ones(4, 3, 3, 3, 3)))["convolution"][0]
    assert (cube.kind, cube.gemm) == (OperationKind.GEMM, GemmShape(2 * 27, 4, 3 * 27))


def test_depthwise_convolutions_are_a_kind_of_their_own() -> None:
    (operation,) = works(lambda: f.conv2d(torch.ones(2, 6, 4, 4), torch.ones(6, 1, 3, 3), groups=6))["convolution"]
    assert operation.kind is OperationKind.DEPTHWISE_CONVOLUTION
    assert operation.flops == 2 * (2 * 6 * 2 * 2) * 9


def test_the_backward_of_an_index_adds_to_its_rows_alone() -> None:
    """It reads 3 places and 3 rows of 8 values, and reads and writes as many of zeros for 100 rows."""
    table, places = torch.ones(100, 8, requires_grad=True), torch.tensor([4, 2, 4])
    (added,) = works(lambda: (table[places] * 2).sum().backward())["index_put"]
    assert (added.kind, added.bytes, added.results) == (OperationKind.GATHER, 3 * 8 + 3 * 4 * 24, 24)


def test_matrix_products_have_shape_and_bytes() -> None:
    a, b, bias = torch.ones(5, 7), torch.ones(7, 3), torch.ones(3)
    (added,) = works(lambda: torch.addmm(bias, a, b))["addmm"]
    assert (added.gemm, added.bytes, added.results) == (GemmShape(5, 3, 7, aligned=False), 4 * (35 + 21 + 3 + 15), 15)
    (many,) = works(lambda: torch.bmm(torch.ones(4, 5, 7), torch.ones(4, 7, 3)))["bmm"]
    assert (many.gemm, many.flops) == (GemmShape(5, 3, 7, 4, aligned=False), 2 * 4 * 5 * 3 * 7)
    (vector,) = works(lambda: torch.mv(a, torch.ones(7)))["mv"]
    assert vector.gemm == GemmShape(5, 1, 7, aligned=False)
    (half,) = works(lambda: torch.mm(a.half(), b.half()))["mm"]
    assert (half.dtype, half.bytes) == ("float16", 2 * (35 + 21 + 15))
    (eights,) = works(lambda: torch.mm(torch.ones(5, 8).half(), torch.ones(16, 8).half().T))["mm"]
    assert eights.gemm == GemmShape(5, 16, 8)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_operation_of_two_products_and_backward_of_five(causal: bool) -> None:
    x = torch.ones(2, 3, 32, 16, requires_grad=True)
    aten = torch.ops.aten
    result = works(_sum(lambda: aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.0, causal)[0]))
    (forward,) = result["_scaled_dot_product_flash_attention_for_cpu"]
    assert forward.attention == AttentionShape(6, 32, 32, 16, 16, causal)
    scores = 6 * 32 * 33 // 2 if causal else 6 * 32 * 32
    assert (forward.flops, forward.bytes) == (2 * 2 * scores * 16, 4 * 4 * x.numel())
    (backward,) = result["_scaled_dot_product_flash_attention_for_cpu_backward"]
    assert (backward.flops, backward.bytes) == (5 * 2 * scores * 16, 8 * 4 * x.numel())
    assert backward.direction is Direction.BACKWARD_DATA


def test_cudnns_attention_reads_the_mask_in_both_directions() -> None:
    with FakeTensorMode():
        x, mask = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((2, 3, 32, 16), (2, 1, 32, 32)))
        x.requires_grad_()
        attend = torch.ops.aten._scaled_dot_product_cudnn_attention
        result = works(_sum(lambda: attend(x, x, x, mask, True)[0]))
    (forward,), (backward,) = (result[f"_scaled_dot_product_cudnn_attention{each}"] for each in ("", "_backward"))
    assert forward.attention == backward.attention == AttentionShape(6, 32, 32, 16, 16, cudnn=True)
    read = 2 * 2 * 32 * 32
    assert (forward.bytes, backward.bytes) == (4 * 2 * x.numel() + read, 8 * 2 * x.numel() + read)


def test_operations_count_the_bytes_of_the_views_that_they_access() -> None:
    x, row = torch.ones(6, 4), torch.ones(4)
    (added,) = works(lambda: x + row.expand(6, 4))["add"]
    assert (added.kind, added.bytes, added.flops) == (OperationKind.ELEMENTWISE, 4 * (24 + 4 + 24), 24)
    (twice,) = works(lambda: x * x)["mul"]
    assert twice.bytes == 4 * (24 + 24)
    (in_place,) = works(lambda: x.add_(row))["add_"]
    assert in_place.bytes == 4 * (24 + 4 + 24)
    (cleared,) = works(lambda: x.zero_())["zero_"]
    assert cleared.bytes == 4 * 24
    (part,) = works(lambda: x[:2].clone())["clone"]
    assert (part.kind, part.bytes) == (OperationKind.COPY, 2 * 4 * 8)
    lists = works(lambda: torch._foreach_add_([x, row], [torch.ones(6, 4), torch.ones(4)]))["_foreach_add_"]
    assert (lists[0].kind, lists[0].bytes, lists[0].results) == (OperationKind.ELEMENTWISE, 3 * 4 * 28, 28)
    assert works(lambda: torch.empty(5))["empty"] == ()


def test_an_embedding_reads_only_the_requested_rows() -> None:
    table, tokens = torch.ones(1000, 8, requires_grad=True), torch.arange(3)
    result = works(_sum(lambda: f.embedding(tokens, table)))
    (looked,) = result["embedding"]
    assert (looked.kind, looked.bytes, looked.results) == (OperationKind.GATHER, 24 + 2 * 3 * 8 * 4, 24)
    (scattered,) = result["embedding_dense_backward"]
    assert (scattered.kind, scattered.results) == (OperationKind.GATHER, 8000)


def test_norms_pools_softmax_and_losses_have_their_kind() -> None:
    x = torch.ones(2, 4, 8, 8, requires_grad=True)
    norm = works(_sum(lambda: f.batch_norm(x, None, None, training=True)))
    pool = works(_sum(lambda: f.max_pool2d(x, 2)))
    soft = works(_sum(lambda: f.softmax(x, 1)))
    loss = works(lambda: f.cross_entropy(torch.ones(2, 4), torch.zeros(2, dtype=torch.long)))
    kinds = {
        name: operations[0].kind
        for result in (norm, pool, soft, loss)
        for name, operations in result.items()
        if operations
    }
    assert kinds["native_batch_norm"] is kinds["native_batch_norm_backward"] is OperationKind.NORMALIZATION
    assert kinds["max_pool2d_with_indices"] is kinds["max_pool2d_with_indices_backward"] is OperationKind.POOLING
    assert kinds["_softmax"] is kinds["_softmax_backward_data"] is kinds["_log_softmax"] is OperationKind.SOFTMAX
    assert kinds["sum"] is kinds["nll_loss_forward"] is OperationKind.REDUCTION
    # The gradient, the places of the maxima (eight bytes each) and the result, but not the values that were pooled.
    assert pool["max_pool2d_with_indices_backward"][0].bytes == 128 * 8 + 4 * 512 + 4
