"""Memory as frameworks hold it that call cuDNN for every layer, beside PyTorch's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Trace
from simgpu.trace.stats import trace_stats
from simgpu.trace.zoo.modelled import build_trace

V100 = simgpu.load_node("v100").gpu
NETWORKS = ("alexnet", "vgg16", "googlenet", "squeezenet", "resnet18", "densenet121", "inception-v3")


def built(name: str, framework: str, batch: int = 8) -> Trace:
    return build_trace(name, batch=batch, gpu=V100, framework=framework)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_a_sound_trace_that_needs_less_memory(name: str) -> None:
    ours, theirs = built(name, "pytorch"), built(name, "cudnn")
    assert check_trace(theirs) == []
    assert _peak(theirs) <= _peak(ours)
    for policy in ("none", "vdnn"):
        result = simgpu.simulate(theirs, simgpu.load_node("v100"), policy)
        assert result.metrics.breakdown.compute == theirs.compute_ns


@pytest.mark.parametrize("name", NETWORKS)
def test_pooling_keeps_no_indices_but_its_result(name: str) -> None:
    trace = built(name, "cudnn")
    assert not [block.id for block in trace.blocks if "indices" in block.id]
    pools = [kernel for kernel in trace.kernels if kernel.op == "max_pool2d_backward"]
    made = {kernel.writes[0]: kernel.reads[0] for kernel in trace.kernels if kernel.op == "max_pool2d"}
    assert len(pools) == len(made) > 0
    for kernel in pools:
        assert any(made.get(name) in kernel.reads for name in kernel.reads), "a result and the input that it is from"


def test_the_gradient_of_a_relu_in_place_is_in_place() -> None:
    trace = built("vgg16", "cudnn")
    relus = [kernel for kernel in trace.kernels if kernel.op == "threshold_backward_"]
    assert len(relus) == 15
    assert all(kernel.writes[0] in kernel.reads for kernel in relus)


def test_a_gradient_that_another_layer_needs_is_not_rewritten() -> None:
    """The gradient of a sum goes to both of its branches in one block."""
    trace = built("resnet18", "cudnn")
    kind = {block.id: block.kind for block in trace.blocks}
    for number, kernel in enumerate(trace.kernels):
        if kernel.op == "threshold_backward_":
            before = [k for k in trace.kernels[:number] if kernel.writes[0] in k.writes]
            assert before and kind[kernel.writes[0]] is BlockKind.GRADIENT
    ops = Counter(kernel.op for kernel in trace.kernels if kernel.op.startswith("threshold_backward"))
    assert ops["threshold_backward_"] > 0


def test_nothing_but_these_layers_differs() -> None:
    ours, theirs = built("vgg16", "pytorch"), built("vgg16", "cudnn")
    assert len(ours.kernels) == len(theirs.kernels)
    for one, other in zip(ours.kernels, theirs.kernels, strict=True):
        if "pool" not in one.op and "threshold" not in one.op:
            assert (one.op, one.phase, one.layer, one.duration_ns, one.flops) == (
                other.op,
                other.phase,
                other.layer,
                other.duration_ns,
                other.flops,
            )
    assert "call cuDNN for all" in theirs.info.notes
    assert replace(theirs.info, notes="") == replace(ours.info, notes="")


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'cudnn'"):
        built("vgg16", "cudn")


def _peak(trace: Trace) -> int:
    peak = trace_stats(trace).peak_recorded
    assert peak is not None
    return peak.bytes
