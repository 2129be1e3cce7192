"""Policy `buddy`: the policy contract, exact memory, and more bandwidth or overlap never slow a run."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.spec import LinkSpec, NodeSpec
from simgpu.policies.base import PlanContext
from simgpu.simulation.run import Result, simulate, task_graph
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import CompressedSize, Trace
from tests.compression.buddy.compressible import (
    all_of,
    buddy_node,
    buddy_nodes,
    buddy_of,
    compressible,
    grown,
    memory_of,
    pattern,
    with_buddy,
    with_histograms,
    without_buddy,
)
from tests.policies import contract
from tests.policies.contract import ITERATIONS, PLENTY, PolicyContract, context_of, node_of, trace_of
from tests.semantics.hand_made import GB, block, held, kernel, trace
from tests.semantics.random_training import trainings

#: With blocks of up to 150 entries.
NETWORKS = trainings().map(grown)
few = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


# --- the contract of every policy ----------------------------------------------------------------------------------


@cache
def _outcome(given: tuple[tuple[str, object], ...], name: str, budget: int, pool: str) -> Any:
    built, node = pattern(trace_of(name)), contracted(budget)
    try:
        return simulate(built, node, "buddy", parameters=dict(given), iterations=ITERATIONS, seed=7, pool=pool)
    except (OutOfMemoryError, InputError) as error:
        return error


def contracted(budget: int) -> NodeSpec:
    """The contract's node with a compressed memory large enough that device memory is exhausted first."""
    return with_buddy(node_of(budget), dram=900 * GB, carve_out=15)


class TestBuddy(PolicyContract):
    policy = "buddy"
    parameter_sets = ({}, {"when": "needed"})

    def outcome(self, parameters: Any, trace_name: str, budget: int, pool: str = "") -> Any:
        return _outcome(tuple(sorted(parameters.items())), trace_name, budget, pool or self.pools[0])

    def context(self, trace: Trace, seed: int = 0) -> PlanContext:
        node, built = contracted(PLENTY), pattern(trace)

        def trial(program: Any) -> Result:
            return simulate(built, node, contract.Fixed(program), seed=seed)

        return replace(context_of(trace, PLENTY, seed), graph=task_graph(built, node), node=node, trial=trial)


# --- memory --------------------------------------------------------------------------------------------------------


def live_peak(built: Trace, sizes: tuple[int, ...]) -> int:
    """The peak of live blocks (bytes), summed kernel by kernel from the recorded lifetimes."""
    number = {k.id: n for n, k in enumerate(built.kernels)}
    last = len(built.kernels)
    peak = 0
    spans = []
    for b, each in enumerate(built.blocks):
        uses = [n for n, k in enumerate(built.kernels) if each.id in k.reads + k.writes]
        born = 0 if each.persistent else number[each.host_write] if each.host_write else uses[0] if uses else None
        if born is None:
            continue
        if each.release == "end" or (each.release is None and each.persistent):
            spans.append((b, born, last))
        else:
            spans.append((b, born, number[each.release] if each.release else max([born, *uses])))
    for n in range(last):
        peak = max(peak, sum(sizes[b] for b, born, released in spans if born <= n <= released))
    return peak


@few
@given(st.data())
def test_peak_memory_equals_the_peak_of_live_blocks(data: st.DataObject):
    built = data.draw(compressible(NETWORKS))
    assume(built.compressibility)
    node = replace(data.draw(buddy_nodes()), gpu=replace(data.draw(buddy_nodes()).gpu, alignment=1))
    graph = task_graph(built, node)
    result = simulate(built, node, "buddy")
    assert result.timeline.memory("device").live.max(initial=0) == live_peak(built, graph.sizes)
    assert result.buddy_peak == live_peak(built, memory_of(graph).carved)


def test_the_peak_halves_if_every_block_compresses_two_to_one():
    built = all_of(64, chain([10, 10, 10], [10, 10, 10], [1280, 1280, 1280]))
    assert simulate(built, buddy_node(1920), "buddy").high_water == 1920
    with pytest.raises(OutOfMemoryError, match="device memory"):
        simulate(built, buddy_node(1919), "buddy")
    with pytest.raises(OutOfMemoryError):
        simulate(built, buddy_node(3839), "none")


def test_buddy_memory_of_live_blocks_must_fit_into_the_carve_out():
    """Every block compresses 4 to 1, so it owns three times its device memory in buddy memory."""
    built = all_of(32, chain([10], [10], [12800]))
    node = buddy_node(3200, mostly_zero=False)
    assert simulate(built, node, "buddy").buddy_peak == 3 * 3200
    zeros = with_histograms(
        trace(
            [kernel("k", 9, "z", "y"), kernel("l", 9, "r", "y")],
            [held("z", 128 * 100, release="k"), block("y", 4), held("r", 128 * 100, kind=built.blocks[0].kind)],
        ),
        {"z": (100, 0, 0, 0, 0, 0, 0, 0), "r": (0, 0, 0, 0, 0, 0, 0, 100)},
    )
    full = buddy_node(12800 + 800 + 4)
    assert simulate(zeros, full, "buddy").buddy_peak == 12000
    small = replace(full, gpu=replace(full.gpu, memory=3999))
    with pytest.raises(OutOfMemoryError, match="buddy memory") as caught:
        simulate(zeros, small, "buddy", budget=12800 + 800 + 4)
    assert (caught.value.requested, caught.value.capacity) == (12000, 3 * 3999)


# --- only where needed ------------------------------------------------------------


def test_nothing_is_compressed_if_the_program_fits_uncompressed():
    built = pattern(chain([900, 900], [900, 900], [6400, 6400]))
    needed = {"when": "needed"}
    plenty = simulate(built, buddy_node(12800), "buddy", parameters=needed)
    assert plenty.iteration_ns == simulate(built, buddy_node(12800), "none").iteration_ns == 3600
    assert plenty.buddy_peak == 0 and any("nothing is compressed" in note for note in plenty.notes)
    short = buddy_node(12799)
    forced, always = (simulate(built, short, "buddy", parameters=given) for given in (needed, {}))
    assert forced.iteration_ns == always.iteration_ns > 3600
    assert forced.buddy_peak == always.buddy_peak > 0


# --- more bandwidth and overlap never slow a run --------------------------------------------------------------


def at(node: NodeSpec, times: Fraction, **changed: object) -> NodeSpec:
    """The node with all links `times` as fast."""

    def link(of: LinkSpec | None) -> LinkSpec | None:
        if of is None:
            return None
        return replace(of, d2h_bandwidth=int(of.d2h_bandwidth * times), h2d_bandwidth=int(of.h2d_bandwidth * times))

    buddy = replace(buddy_of(node), link=link(buddy_of(node).link), **changed)  # type: ignore[arg-type]
    return replace(node, link=link(node.link) or node.link, gpu=replace(node.gpu, buddy=buddy))


@few
@given(st.data(), st.lists(st.fractions(1, 9), min_size=1, max_size=4), st.sampled_from([0.0, 0.3, 1.0]))
def test_a_faster_link_never_slows_a_run(data: st.DataObject, times: list[Fraction], overlap: float):
    built = data.draw(compressible(NETWORKS))
    assume(built.compressibility)
    node = data.draw(buddy_nodes(overlap=overlap))
    result = [simulate(built, at(node, each), "buddy").iteration_ns for each in sorted([Fraction(1), *times])]
    assert all(slow >= fast for slow, fast in pairwise(result))


@few
@given(st.data(), st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_a_larger_overlap_never_slows_a_run(data: st.DataObject, overlaps: list[float]):
    built, node = data.draw(compressible(NETWORKS)), data.draw(buddy_nodes())
    assume(built.compressibility)
    result = [simulate(built, at(node, Fraction(1), overlap=each), "buddy").iteration_ns for each in sorted(overlaps)]
    assert all(slow >= fast for slow, fast in pairwise(result))


def test_faster_links_are_faster_as_in_figure_11():
    """Figure 11: 50, 100, 150, 200 GB/s, each faster than the last; an unlimited one is the fastest."""
    built = load_trace("hpc-multigrid")
    node = replace(contracted(10**11), link=LinkSpec("NVLink2", 50 * GB, 50 * GB))
    times = [simulate(built, at(node, Fraction(n)), "buddy").iteration_ns for n in (1, 2, 3, 4, 10**6)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 5


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_node_without_compressed_memory_is_refused():
    built = pattern(chain([5], [7], [1280]))
    with pytest.raises(InputError, match=r"node.gpu.buddy: node bench has no compressed memory; use .*buddy-gpu"):
        simulate(built, without_buddy(buddy_node()), "buddy")


@pytest.mark.parametrize("rows", [(), (CompressedSize("x1", 0, "zvc", "plain", 1280, 500, 1),)])
def test_a_trace_without_compressed_sizes_is_refused(rows: tuple[CompressedSize, ...]):
    built = replace(chain([5], [7], [1280]), compressibility=rows)
    with pytest.raises(
        InputError, match=r"chain: compressibility: the trace has no compressed sizes .*; record it with"
    ):
        simulate(built, buddy_node(), "buddy")
