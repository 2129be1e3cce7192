"""Memory under other frameworks and PyTorch before 1.10, compared with today's PyTorch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.modelled import build_trace
from tests.sets import slow_except

V100 = simgpu.load_node("v100").gpu
NETWORKS = ("alexnet", "vgg16", "googlenet", "squeezenet", "resnet18", "densenet121", "inception-v3")


def built(name: str, framework: str, batch: int = 8) -> Trace:
    return build_trace(name, batch=batch, gpu=V100, framework=framework)


@pytest.mark.parametrize("name", slow_except(NETWORKS, "alexnet", "squeezenet", "resnet18"))
def test_a_cudnn_trace_is_valid_and_needs_no_more_memory(name: str) -> None:
    simulated, expected = built(name, "pytorch"), built(name, "cudnn")
    assert check_trace(expected) == []
    assert _peak(expected) <= _peak(simulated)
    for policy in ("none", "vdnn"):
        result = simgpu.simulate(expected, simgpu.load_node("v100"), policy)
        assert result.metrics.breakdown.compute == expected.compute_ns


@pytest.mark.parametrize("name", NETWORKS)
def test_cudnn_pooling_saves_its_result_and_no_indices(name: str) -> None:
    trace = built(name, "cudnn")
    assert not [block.id for block in trace.blocks if "indices" in block.id]
    pools = [kernel for kernel in trace.kernels if kernel.op == "max_pool2d_backward"]
    created = {kernel.writes[0]: kernel.reads[0] for kernel in trace.kernels if kernel.op == "max_pool2d"}
    assert len(pools) == len(created) > 0
    for kernel in pools:
        assert any(created.get(name) in kernel.reads for name in kernel.reads), "a result and the input that it is from"


def test_the_gradient_of_an_in_place_relu_is_in_place() -> None:
    trace = built("vgg16", "cudnn")
    relus = [kernel for kernel in trace.kernels if kernel.op == "threshold_backward_"]
    assert len(relus) == 15
    assert all(kernel.writes[0] in kernel.reads for kernel in relus)


def test_a_gradient_that_another_layer_needs_is_not_rewritten() -> None:
    """Both branches of a sum share one gradient block."""
    trace = built("resnet18", "cudnn")
    kind = {block.id: block.kind for block in trace.blocks}
    for number, kernel in enumerate(trace.kernels):
        if kernel.op == "threshold_backward_":
            before = [k for k in trace.kernels[:number] if kernel.writes[0] in k.writes]
            assert before and kind[kernel.writes[0]] is BlockKind.GRADIENT
    ops = Counter(kernel.op for kernel in trace.kernels if kernel.op.startswith("threshold_backward"))
    assert ops["threshold_backward_"] > 0


def test_cudnn_traces_differ_only_in_pooling_and_relu() -> None:
    simulated, expected = built("vgg16", "pytorch"), built("vgg16", "cudnn")
    assert len(simulated.kernels) == len(expected.kernels)
    for one, other in zip(simulated.kernels, expected.kernels, strict=True):
        if "pool" not in one.op and "threshold" not in one.op:
            assert (one.op, one.phase, one.layer, one.duration_ns, one.flops) == (
                other.op,
                other.phase,
                other.layer,
                other.duration_ns,
                other.flops,
            )
    assert "call cuDNN for all" in expected.info.notes
    assert replace(expected.info, notes="") == replace(simulated.info, notes="")


@pytest.mark.parametrize("name", slow_except(NETWORKS, "alexnet", "vgg16", "squeezenet", "resnet18"))
def test_before_1_10_the_input_of_a_relu_is_held_until_its_backward(name: str) -> None:
    trace = built(name, "pytorch-1.5")
    assert check_trace(trace) == []
    relus = [kernel for kernel in trace.kernels if kernel.op == "relu"]
    backward = {kernel.reads[1]: kernel for kernel in trace.kernels if kernel.op == "threshold_backward"}
    in_place = [kernel for kernel in built(name, "pytorch").kernels if kernel.op == "relu_"]
    assert len(relus) == len(in_place) > 0
    assert not [kernel for kernel in trace.kernels if kernel.op == "relu_"]
    for kernel in relus:
        assert kernel.reads != kernel.writes
        assert backward[kernel.reads[0]].layer == kernel.layer
        assert kernel.layer != next(each.layer for each in trace.kernels if kernel.reads[0] in each.writes)


def test_before_1_10_a_normalized_convolution_has_three_activations() -> None:
    """The results of the convolution, the normalization and the ReLU."""
    held = {}
    for framework in ("pytorch", "pytorch-1.5"):
        trace = build_trace("vgg16", batch=8, gpu=V100, framework=framework, batch_norm=True)
        size = next(block.bytes for block in trace.blocks if block.id == "conv2_2")
        ends = {kernel.id: kernel.phase for kernel in trace.kernels}
        held[framework] = [
            block.id
            for block in trace.blocks
            if block.layer
            and block.layer.endswith("2_2")
            and block.bytes == size
            and ends.get(block.release or "") == "backward"
            and block.kind is BlockKind.ACTIVATION
        ]
    assert held == {"pytorch": ["conv2_2", "norm2_2"], "pytorch-1.5": ["conv2_2", "norm2_2", "relu2_2"]}


def test_a_network_without_relus_is_the_same_under_pytorch_1_5() -> None:
    simulated, expected = built("bert-base", "pytorch"), built("bert-base", "pytorch-1.5")
    assert (simulated.kernels, simulated.blocks) == (expected.kernels, expected.blocks)


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'cudnn'"):
        built("vgg16", "cudn")


def _peak(trace: Trace) -> int:
    peak = trace_stats(trace).peak_recorded
    assert peak is not None
    return peak.bytes


@pytest.mark.parametrize("name", ["squeezenet", "googlenet", "inception-v3"])
def test_branches_write_into_a_joined_concatenation(name: str) -> None:
    """No kernel copies, parts and result are one block, and all else is as it was."""
    copied, joined = built(name, "cudnn"), built(name, "cudnn-joined")
    assert check_trace(joined) == []
    joins = [kernel for kernel in copied.kernels if kernel.op == "cat"]
    assert [k.id for k in joined.kernels] == [k.id for k in copied.kernels if k.op != "cat"]
    assert joined.compute_ns == copied.compute_ns - sum(join.duration_ns for join in joins)
    parts = {part for join in joins for part in join.reads}
    assert [b.id for b in joined.blocks] == [b.id for b in copied.blocks if b.id not in parts]
    whole = {join.writes[0] for join in joins if join.writes[0] not in parts}
    for result in whole:
        first = next(kernel for kernel in joined.kernels if result in kernel.writes)
        assert first.id != next(join.id for join in joins if result in join.writes)


@pytest.mark.parametrize(
    "name", slow_except(["alexnet", "vgg16", "resnet18", "densenet121"], "alexnet", "resnet18", "densenet121")
)
def test_a_network_that_concatenates_nothing_or_the_same_part_twice_is_not_joined(name: str) -> None:
    """DenseNet concatenates every result again in each later layer, so it copies, but for parts used once."""
    copied, joined = built(name, "cudnn"), built(name, "cudnn-joined")
    assert (joined.kernels, joined.blocks) == (copied.kernels, copied.blocks)
