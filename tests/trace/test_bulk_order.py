"""The bulk check of a trace's order lets nothing pass in which a look at each block finds a problem."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from simgpu.trace.check import check_trace
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

INFO = TraceInfo("drawn", 1, "hand", "float32", Origin.MODELLED, "test")


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A few kernels and blocks whose order may be wrong in any way; most blocks have no mistake."""
    ids = [f"k{k}" for k in range(draw(st.integers(0, 4)))]
    names = [f"b{b}" for b in range(draw(st.integers(0, 4)))]
    if names and draw(st.integers(0, 9)) == 0:
        names[-1] = names[0]  # an id twice
    named = st.lists(
        st.sampled_from([*names, "unknown"] if draw(st.integers(0, 9)) == 0 else names or [""]), unique=True
    )
    lists = named.map(tuple) if names else st.just(())
    kernels = tuple(Kernel(k, "op", Phase.FORWARD, 1, draw(lists), draw(lists)) for k in ids)
    kernel = st.none() | st.sampled_from([*ids, RELEASED_AT_END, "unknown"] if draw(st.booleans()) else ids or [None])
    blocks = tuple(
        Block(
            name,
            1,
            draw(st.sampled_from([BlockKind.ACTIVATION, BlockKind.ACTIVATION, BlockKind.WORKSPACE])),
            persistent=draw(st.booleans()),
            host_write=draw(st.none() | kernel),
            release=draw(st.sampled_from([None, RELEASED_AT_END]) | kernel),
        )
        for name in names
    )
    return Trace(INFO, kernels, blocks)


@given(traces())
def test_the_bulk_check_changes_no_problem(trace: Trace) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simgpu.trace.check_order._LONG", 0)
        quick = [str(problem) for problem in check_trace(trace)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simgpu.trace.check_order._LONG", 10)
        thorough = [
            str(problem)
            for problem in check_trace(Trace(*(getattr(trace, name) for name in ("info", "kernels", "blocks"))))
        ]
    event("a problem" if thorough else "no problem")
    assert quick == thorough


@pytest.mark.parametrize(
    "block",
    [
        Block("x", 4, BlockKind.ACTIVATION, host_write=RELEASED_AT_END),
        Block("x", 4, BlockKind.ACTIVATION, persistent=True, release="nowhere"),
        Block("x", 4, BlockKind.WORKSPACE, host_write="k0", release="k0"),
    ],
    ids=["written at the end", "released nowhere", "scratch of no kernel"],
)
def test_an_unused_block_may_still_have_a_problem(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simgpu.trace.check_order._LONG", 0)
    kernels = (Kernel("k0", "op", Phase.FORWARD, 1),)
    assert check_trace(Trace(INFO, kernels, (block,)))
