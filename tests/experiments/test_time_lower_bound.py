"""The gap between runs and the lower bound on time of any placement of feature maps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.spec import Duplex
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.policies.contract import PLENTY, node_of


def trace_of() -> Trace:
    return chain([30, 5, 40, 5, 30, 10], [60, 10, 80, 10, 60, 20], [100, 140, 180, 100, 140, 180])


ASYNCHRONOUS = [
    {"home": {"particles": 20, "iterations": 5}},
    "superneurons",
    "capuchin",
    {"joint": {"lower_bound": False}},
]


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.integers(500, 1000))
def test_no_asynchronous_policy_is_faster_than_the_lower_bound(budget: int):
    compared = simgpu.compare(trace_of(), node_of(PLENTY), ASYNCHRONOUS, budget=budget, bound=True)
    assert compared.bound is not None
    assert all(result.iteration_ns >= compared.bound.ns for result in compared.results.values())


def test_with_enough_memory_the_lower_bound_is_the_kernel_time():
    trace = trace_of()
    assert simgpu.time_lower_bound(trace, node_of(PLENTY)).ns == trace.compute_ns


def test_a_comparison_has_a_column_for_the_lower_bound():
    compared = simgpu.compare(trace_of(), node_of(PLENTY), ["vdnn", "joint"], budget=700, bound=True)
    assert compared.bound is not None
    over = [row[compared.headings.index("gap")] for row in compared.rows()]
    times = [result.iteration_ns for result in compared.results.values()]
    assert over == [f"{ns / compared.bound.ns - 1:.1%}" for ns in times]
    assert "gap" in repr(compared)
    assert "gap" not in repr(simgpu.compare(trace_of(), node_of(PLENTY), ["vdnn"], budget=700))


def test_a_missing_bound_has_a_reason():
    node = node_of(PLENTY)
    half = replace(node, link=replace(node.link, duplex=Duplex.HALF))
    compared = simgpu.compare(trace_of(), half, ["vdnn"], bound=True)
    assert compared.bound is None
    assert "both directions share the link" in compared.bound_note
    with pytest.raises(InputError, match="both directions share the link"):
        simgpu.time_lower_bound(trace_of(), half)


def test_if_nothing_fits_the_limiting_kernel_is_named():
    with pytest.raises(OutOfMemoryError, match="with all other blocks offloaded"):
        simgpu.time_lower_bound(trace_of(), node_of(PLENTY), budget=100)
