"""`deepum` under Unified Memory: what it prefetches and evicts, on kernels that can be followed by hand."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.chunks import Chunk, ResidentChunks
from simgpu.policies.deepum import DeepUm
from simgpu.program.paging import DRIVER
from simgpu.simulation.run import Result, simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from tests.semantics.hand_made import GB, held, kernel, node, trace

MB = 2 * 2**20  # a chunk


def run(of: Trace, budget: int, on: NodeSpec | None = None, **given: Any) -> Result:
    where = on or node(out=10 * GB, back=10 * GB)
    return simulate(of, where, "deepum", parameters={"migrates": "pages", **given}, budget=budget, iterations=4)


def cycle(blocks: int, ns: int) -> Trace:
    """As many kernels as blocks; each uses one of a chunk."""
    names = [f"b{i}" for i in range(blocks)]
    return trace([kernel(f"k{name}", ns, name) for name in names], [held(name, MB) for name in names])


def test_a_cycle_has_no_stalls_where_kernels_take_longer_than_copies():
    """Four blocks in memory for three: while a kernel runs, the block of the next one comes and that before leaves."""
    slow = 10**6  # a chunk takes 210 us each way
    result = run(cycle(4, slow), 3 * MB, degree=1)
    assert result.timeline.window(-1)[1] - result.timeline.window(-1)[0] == 4 * slow == result.ideal_ns
    assert result.metrics.copied_bytes == {"d2h": 4 * MB, "h2d": 4 * MB}
    faulting = simulate(cycle(4, slow), node(out=10 * GB, back=10 * GB), "um", budget=3 * MB, iterations=4)
    assert faulting.iteration_ns > result.iteration_ns


def test_a_cycle_is_as_fast_as_the_link_where_kernels_are_short():
    """Each of the blocks leaves before the next one comes: a chunk each way, one after the other."""
    link = node(out=10 * GB, back=10 * GB)
    copy = -(-MB * 10**9 // (10 * GB))
    result = run(cycle(4, 1000), 2 * MB, link, degree=1)
    start, end = result.timeline.window(-1)
    assert 4 * copy <= end - start <= 4 * (2 * copy + 1000)
    assert "page faults" not in " ".join(result.notes)


def test_it_evicts_what_came_first_and_no_kernel_just_ahead_uses():
    chunks = [Chunk(b, 0, 1) for b in range(4)]
    ahead = {0: 1, 1: 3, 2: 9, 3: 4}
    residents = ResidentChunks(ahead.__getitem__)
    residents.arrived = OrderedDict.fromkeys(chunks)
    assert [DeepUm(degree, "pages").reclaim(residents) for degree in (1, 2, 3, 4)] == [chunks[i] for i in (1, 1, 2, 2)]
    assert DeepUm(9, "pages").reclaim(residents) is chunks[0]
    residents.for_prefetch = True
    assert DeepUm(9, "pages").reclaim(residents) is None


def test_first_values_find_memory_free():
    """A chain whose feature maps do not fit: without prefetches every one of them faults."""
    layers = 12
    deep = chain([400_000] * layers, [800_000] * layers, [MB] * layers)
    on = node(out=10 * GB, back=10 * GB)
    faulting = simulate(deep, on, "um", budget=8 * MB, iterations=4)
    result = run(deep, 8 * MB, on, degree=2)
    assert result.metrics.breakdown.stalled_memory == 0 < faulting.metrics.breakdown.stalled_memory
    assert result.iteration_ns < faulting.iteration_ns
    assert result.metrics.device_peak_bytes <= 8 * MB


def test_it_runs_inside_a_loop_of_one_micro_batch():
    """Gradient accumulation passes on what it knows of the future."""
    alone = run(cycle(4, 1000), 2 * MB, degree=1)
    inside = {"inside": "deepum(migrates=pages, degree=1)", "micro_batches": 1}
    looped = simulate(cycle(4, 1000), alone.node, "accumulate", parameters=inside, budget=2 * MB, iterations=4)
    assert looped.timeline.iteration_ends_ns == alone.timeline.iteration_ends_ns


@pytest.mark.slow
def test_it_is_between_ideal_and_unified_memory_on_a_recording():
    vgg16, v100 = load_trace("vgg16-b128-v100"), load_node("v100")
    budget = simulate(vgg16, v100, "none").high_water * 2 // 3
    faulting = simulate(vgg16, v100, "um", budget=budget)
    pages = simulate(vgg16, v100, "deepum", parameters={"migrates": "pages"}, budget=budget)
    assert pages.ideal_ns < pages.iteration_ns < faulting.iteration_ns


def test_its_blocks_are_paged_as_the_driver_does():
    program = run(cycle(2, 10), MB).program
    assert program.residency == DRIVER
    assert simulate(cycle(2, 10), node(), "um", budget=2 * MB).program.residency == DRIVER


def test_what_is_not_modelled_is_refused():
    small = load_trace("vgg11-cifar-cpu")
    with pytest.raises(InputError, match="deepum supports one GPU"):
        simulate(small, replace(load_node("v100"), gpus=2), DeepUm(migrates="pages"), gpus=2)
    for migrates in ("blocks", "pages"):
        with pytest.raises(InputError, match=r"parameters\.degree: 0 is less than 1"):
            simulate(small, load_node("v100"), "deepum", parameters={"degree": 0, "migrates": migrates})
    with pytest.raises(InputError, match="deepum is for an undivided iteration"):
        inside = {"inside": "deepum(migrates=pages)", "micro_batches": 2}
        simulate(small, load_node("v100"), "accumulate", parameters=inside)
    two = trace([kernel("k1", 10, "x"), kernel("k2", 10, "x", stream=1)], [held("x", 8)])
    with pytest.raises(InputError, match="2 compute streams"):
        run(two, MB)
