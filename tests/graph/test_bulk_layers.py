"""Layers derived in bulk are those of a walk over the kernels."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from simgpu.graph.bulk_layers import derived_layers
from simgpu.graph.layers import _derive, _derived
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

INFO = TraceInfo("drawn", 1, "hand", "float32", Origin.MODELLED, "test")
OPS = ("aten::conv2d", "aten::relu_", "ConvolutionBackward0", "threshold_backward", "aten::add", "my op")


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Kernels that read and write a few blocks; in most traces, backward follows forward."""
    names = [f"b{b}" for b in range(draw(st.integers(1, 7)))]
    lists = st.lists(st.sampled_from(names), unique=True, max_size=4).map(tuple)
    phases = draw(st.lists(st.sampled_from(list(Phase)), min_size=1, max_size=14))
    if draw(st.integers(0, 5)):
        phases.sort(key=list(Phase).index)
    kernels = tuple(
        Kernel(f"k{k}", draw(st.sampled_from(OPS)), phase, 1, draw(lists), draw(lists))
        for k, phase in enumerate(phases)
    )
    blocks = tuple(Block(name, 1, BlockKind.ACTIVATION, persistent=draw(st.integers(0, 3)) == 0) for name in names)
    return Trace(INFO, kernels, blocks)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(traces())
def test_layers_in_bulk_are_those_of_a_walk(trace: Trace) -> None:
    event("in bulk" if derived_layers(trace) is not None else "walked")
    assert _derived(trace) == _derive(trace)
