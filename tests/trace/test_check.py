"""Traces built by hand: what `check_trace` refuses and accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.trace.check import check_trace
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from simgpu.trace.operators import purity
from tests.trace.small import SMALL


def with_kernel(position: int, **changes: object) -> Trace:
    kernels = list(SMALL.kernels)
    kernels[position] = replace(kernels[position], **changes)
    return replace(SMALL, kernels=tuple(kernels))


def with_block(position: int, **changes: object) -> Trace:
    blocks = list(SMALL.blocks)
    blocks[position] = replace(blocks[position], **changes)
    return replace(SMALL, blocks=tuple(blocks))


def of(*kernels: Kernel, blocks: tuple[Block, ...]) -> Trace:
    return Trace(SMALL.info, kernels, blocks)


def test_a_valid_trace_has_no_problems():
    assert check_trace(SMALL) == []


@pytest.mark.parametrize(
    ("trace", "place", "reported"),
    [
        (with_kernel(1, duration_ns=1.5), "kernels[1].duration_ns", "1.5 is not a whole number"),
        (with_kernel(1, duration_ns=-3), "kernels[1].duration_ns", "-3 is negative"),
        (with_kernel(1, duration_ns=True), "kernels[1].duration_ns", "True is not a whole number"),
        (with_kernel(1, flops=2**63), "kernels[1].flops", "is too large"),
        (with_kernel(1, stream=-1), "kernels[1].stream", "-1 is negative"),
        (with_kernel(1, phase="forwards"), "kernels[1].phase", "'forwards' is not a member of Phase"),
        (with_kernel(1, op=""), "kernels[1].op", "blank"),
        (with_kernel(1, layer=" L1"), "kernels[1].layer", "is not a name"),
        (with_kernel(1, op="two\nlines"), "kernels[1].op", "is not a name"),
        (with_kernel(0, id="k\u00a01"), "kernels[0].id", "is not an id"),
        (with_block(0, bytes=16.0), "blocks[0].bytes", "16.0 is not a whole number"),
        (with_block(0, kind="weights"), "blocks[0].kind", "not a member of BlockKind"),
        (with_block(0, shape=(2, -2)), "blocks[0].shape", "is not a shape"),
        (with_block(0, dtype=""), "blocks[0].dtype", "is not a name"),
        (with_block(1, release="k4"), "blocks[1].release", "is used by kernel 'k5' after its release at kernel 'k4'"),
        (with_block(5, release="k"), "blocks[5].release", "'k' is not a kernel"),
        (replace(SMALL, info=replace(SMALL.info, notes="\ud800")), "info.notes", "characters that no file can"),
        (replace(SMALL, info=replace(SMALL.info, device="")), "info.device", "blank"),
    ],
)
def test_invalid_values_are_refused(trace, place, reported):
    result = [(problem.place, problem.what) for problem in check_trace(trace)]
    assert any(where == place and reported in what for where, what in result), result


def test_unused_block_is_reported_unless_persistent_or_initialized():
    lone = Block("lone", 4, BlockKind.OTHER)
    assert ["lone" in p.what for p in check_trace(replace(SMALL, blocks=(*SMALL.blocks, lone)))] == [True]
    for legal in (
        replace(lone, persistent=True),
        replace(lone, host_write="k2"),
        replace(lone, host_write="k2", release="k2"),
    ):
        assert check_trace(replace(SMALL, blocks=(*SMALL.blocks, legal))) == []
    early = replace(lone, host_write="k2", release="k1")
    (problem,) = check_trace(replace(SMALL, blocks=(*SMALL.blocks, early)))
    assert "before the host writes it" in problem.what


def test_a_kernel_that_reads_a_block_before_its_first_writer_is_reported():
    trace = of(
        Kernel("late", "a", Phase.FORWARD, 1, ("x",), ("y",)),
        Kernel("first", "b", Phase.FORWARD, 1, (), ("x",)),
        blocks=(Block("x", 1, BlockKind.OTHER), Block("y", 1, BlockKind.OTHER)),
    )
    (problem,) = check_trace(trace)
    assert problem.place == "kernels[0].reads"
    assert "'late' reads block 'x' before its first writer, kernel 'first'" in problem.what


def test_in_place_kernel_on_an_unwritten_block_reads_before_write():
    trace = of(Kernel("k", "relu_", Phase.FORWARD, 1, ("x",), ("x",)), blocks=(Block("x", 1, BlockKind.OTHER),))
    (problem,) = check_trace(trace)
    assert "before anything wrote it" in problem.what


def test_a_valid_trace_made_with_lists_is_checked_again_after_it_changed():
    for trace in (replace(SMALL, kernels=list(SMALL.kernels)), with_kernel(0, reads=list(SMALL.kernels[0].reads))):
        assert check_trace(trace) == []
        table = trace.kernels if isinstance(trace.kernels, list) else trace.kernels[0].reads
        table.append(table[0] if table is trace.kernels else "missing")
        assert check_trace(trace) != []


def test_each_cycle_is_reported_once():
    def pair(name: str) -> tuple[Kernel, Kernel]:
        return (
            Kernel(f"{name}1", "a", Phase.FORWARD, 1, (f"{name}b",), (f"{name}a",)),
            Kernel(f"{name}2", "b", Phase.FORWARD, 1, (f"{name}a",), (f"{name}b",)),
        )

    blocks = tuple(Block(f"{name}{part}", 1, BlockKind.OTHER) for name in "pq" for part in "ab")
    problems = check_trace(of(*pair("p"), *pair("q"), blocks=blocks))
    assert [problem.what.partition(": ")[2] for problem in problems] == ["p1 -> p2 -> p1", "q1 -> q2 -> q1"]


def test_start_times_on_one_stream_must_not_decrease():
    kernels = (
        Kernel("a", "x", Phase.FORWARD, 1, start_ns=10),
        Kernel("b", "x", Phase.FORWARD, 1, start_ns=5, stream=1),
        Kernel("c", "x", Phase.FORWARD, 1),
        Kernel("d", "x", Phase.FORWARD, 1, start_ns=10),
    )
    assert check_trace(of(*kernels, blocks=())) == []
    (problem,) = check_trace(of(*kernels, Kernel("e", "x", Phase.FORWARD, 1, start_ns=9), blocks=()))
    assert problem.place == "kernels[4].start_ns"


def test_purity_is_unknown_for_unknown_operators():
    assert purity("aten::native_dropout") is False
    assert purity("_fused_dropout_") is False
    assert purity("sum_dim_IntList") is True
    assert purity("mean.dim") is True
    assert purity("add_") is True
    assert purity("my_norm_backward") is None


@pytest.mark.parametrize(
    "op",
    [
        "threshold_backward",
        "aten::convolution_backward",
        "cudnn_convolution_backward_weight",
        "avg_pool2d_backward",
        "max_pool2d_with_indices_backward",
        "_log_softmax_backward_data",
        "cudnn_batch_norm_backward",
        "aten::native_layer_norm_backward",
        "native_dropout_backward",
        "_masked_scale",
        "slice_backward",
    ],
)
def test_backward_of_a_known_operator_is_pure(op: str):
    """It draws no random numbers: it applies the saved mask of dropout and the saved statistics of batch norm."""
    assert purity(op) is True


def test_backward_that_overwrites_forward_state_is_not_pure():
    assert purity("aten::_cudnn_rnn_backward") is False


@pytest.mark.parametrize("op", ["rrelu_with_noise_backward", "my_kernel_backward", "bernoulli_backward", "backward"])
def test_backward_of_an_unknown_or_random_operator_stays_unknown(op: str):
    assert purity(op) is None
