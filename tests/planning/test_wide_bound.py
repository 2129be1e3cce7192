"""No program of the full batch is faster than the wide bound, and none fits if it reports that none does."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.bounds import time_lower_bound, time_lower_bounds
from simgpu.experiments.compare import compare
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import GpuSpec, HostSpec, LinkSpec, NodeSpec
from simgpu.planning.bound import Filling, by_rate
from simgpu.planning.options import Decisions
from simgpu.planning.wide_bound import wide_bound
from simgpu.policies.joint.time_bounds import NOT_BOUNDED, is_bounded, moves_only_activations
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import BlockKind, Trace
from simgpu.trace.stats import trace_stats
from tests.semantics.hand_made import BACKWARD, block, graph, kernel
from tests.semantics.random_training import trainings

POLICIES = {
    "none": {},
    "vdnn": {},
    "modnn": {},
    "superneurons": {},
    "capuchin": {"version": "published"},
    "home": {"particles": 10, "iterations": 3},
    "joint": {"evaluations": 200, "lower_bound": False},
    "async_offload": {},
    "checkpoint": {},
    "save_on_cpu": {},
    "um": {},
    "lru": {},
    "belady": {},
    "swapadvisor": {"population": 6, "generations": 2},
    "dtr": {},
    "g10": {},
    "flashneuron": {},
    "deepum": {},
    "checkmate": {"groups": 8},
}


@st.composite
def chains(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(4, 9))
    times, sizes = st.lists(st.integers(1, 100), min_size=count, max_size=count), st.integers(50, 300)
    return chain(draw(times), draw(times), draw(st.lists(sizes, min_size=count, max_size=count)))


@pytest.mark.slow
def test_no_policy_is_faster_than_its_bound_or_fits_where_the_bound_does_not() -> None:
    """Every policy on random training, with budgets from one byte below the minimum peak to the peak of everything."""
    seen: Counter[str] = Counter()

    @settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)
    @given(
        st.one_of(chains(), trainings(max_layers=6)),
        st.integers(0, 7),
        st.sampled_from([10**9, 10**10]),
        st.sampled_from([0, 0, 3, 40]),
    )
    def check(trace: Trace, step: int, rate: int, launch_ns: int) -> None:
        tasks = TaskGraph.of(trace)
        smallest = max(
            sum(tasks.sizes[b] for b in {*tasks.reads[k], *tasks.writes[k]}) for k in range(len(tasks.kernels))
        )
        peak = trace_stats(trace).peak_needed
        budget = max(smallest - 1 + step * max((peak.bytes if peak else 0) - smallest + 1, 0) // 6, 1)
        host = HostSpec(launch_ns=launch_ns)
        node = NodeSpec("drawn", GpuSpec("gpu", 10**12), LinkSpec("pcie", rate, rate), host)
        try:
            bounds = time_lower_bounds(trace, node, budget=budget)
        except OutOfMemoryError:
            bounds = None
        except InputError:
            return
        for policy, parameters in POLICIES.items():
            try:
                result = simulate(trace, node, policy, parameters=parameters, budget=budget, iterations=2)
            except (InputError, OutOfMemoryError):
                continue
            if not is_bounded(result.program):
                seen["not bounded"] += 1
                continue
            assert bounds is not None, f"{policy} fits where the bound says that nothing does"
            bound = bounds.of(result.program)
            assert bound is not None
            assert result.iteration_ns >= bound.ns, policy
            seen["narrow" if bound is bounds.of_activations else "wide"] += 1
            seen["launches"] += "launches" in bound.how
            seen["more than the kernels"] += bound.ns > bound.compute_ns
            seen["wide, more than the kernels"] += bounds.of_all.ns > bound.compute_ns

    check()
    assert min(seen["narrow"], seen["wide"], seen["launches"], seen["more than the kernels"]) > 0, seen


def test_if_no_activation_placement_fits_the_bound_of_all_programs_is_reported() -> None:
    """`joint` adopts a program that moves more than feature maps; moving only these, a kernel needs 300 bytes."""
    trace = chain([5] * 8, [10] * 8, [100] * 8)
    node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**9, 10**9))
    bounds = time_lower_bounds(trace, node, budget=250)
    assert (bounds.of_activations.fits, bounds.of_all.fits) == (False, True)
    assert time_lower_bound(trace, node, budget=250) == bounds.of_all
    compared = compare(trace, node, ["joint", "ideal"], budget=250, bound=True)
    assert compared.bounds is not None
    why = "No placement of feature maps alone fits (a kernel needs 300 B"
    assert why in compared.bound_note and NOT_BOUNDED in compared.bound_note
    assert any(why in note for note in compared.results["joint"].notes)
    over = [row[compared.headings.index("gap")] for row in compared.rows()]
    taken = compared.results["joint"].iteration_ns
    assert over == [f"{taken / bounds.of_all.ns - 1:.1%}", "-"]
    assert taken >= bounds.of_all.ns


def test_the_bound_of_a_chain_is_the_fastest_mix_of_copies_and_recomputation() -> None:
    """x2 and x3 are live while F4 runs: 300 bytes, of which 200 fit. Copies take 2000 ns each; 250 ns of kernels, of
    400 in all, lie between F1's end and B3's start. Recomputing 100 bytes takes 50 ns. With t ns more than 400:
    100 (250 + t) / 2000 + 100 t / 50 reaches 100 at t = 43, since each part is rounded up."""
    tasks = TaskGraph.of(chain([50] * 4, [50] * 4, [100] * 4))
    node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**8, 10**8))
    assert wide_bound(tasks, node, 200).ns == 443
    assert wide_bound(tasks, node, 400).ns == 400


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=8), st.integers(-5, 300))
def test_what_can_be_freed_in_a_time_is_that_of_items_taken_one_by_one(items: list[tuple[int, int]], ns: int) -> None:
    ordered, freed, left = by_rate(items), 0, ns
    assert all(a[1] * b[0] <= b[1] * a[0] for a, b in pairwise(ordered))
    for size, each in ordered:
        if each > left:
            freed += ceil(Fraction(size * max(left, 0), each)) if each else 0
            break
        freed, left = freed + size, left - each
    assert Filling(ordered).most_bytes(ns) == freed


def test_the_minimum_peak_is_the_largest_working_set_of_a_kernel() -> None:
    tasks = TaskGraph.of(chain([50] * 4, [50] * 4, [100] * 4))
    node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**8, 10**8))
    assert wide_bound(tasks, node, 200).fits
    result = wide_bound(tasks, node, 199)
    assert (result.fits, result.peak_lower_bound, result.kernel) == (False, 200, 0)


def test_a_program_that_moves_a_gradient_moves_more_than_activations() -> None:
    tasks = graph(
        [
            kernel("F", 50, "", "y"),
            kernel("B1", 10, "y", "g", phase=BACKWARD),
            kernel("B2", 60, "", "h", phase=BACKWARD),
            kernel("B3", 60, "g h", "i", phase=BACKWARD),
        ],
        [block("y", 10), *(block(name, 10, kind=BlockKind.GRADIENT) for name in "ghi")],
    )
    moved = lower(tasks, Placement((Swap(tasks.block("g"), 1, 3, 3),)))
    decisions, count = Decisions.of(tasks), len(tasks.blocks)
    assert not moves_only_activations(moved, decisions, count)
    assert moves_only_activations(lower(tasks, Placement()), decisions, count)
