"""The sub-batch for a budget (moDNN, section 5.1.2): fits by equation 8, is rounded, and agrees with its profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec
from simgpu.policies.common.sub_batches import SubBatch, rounded_down, select_sub_batch, window_bytes
from simgpu.trace.chain import chain
from simgpu.trace.model import AlgorithmChoice, Origin, Trace
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch
from tests.semantics.hand_made import graph, held, kernel

GPU = GpuSpec("bench", 10**12)
K40 = load_node("k40").gpu
GB = 10**9


def of_batch(trace: Trace, batch: int) -> TaskGraph:
    """A graph that can be rescaled to other batch sizes."""
    full = replace(trace, info=replace(trace.info, batch=batch))
    return replace(TaskGraph.of(full), rescaled=cache(lambda size: TaskGraph.of(at_batch(full, size, K40))))


def selected(tasks: TaskGraph, budget: int, **more) -> SubBatch:
    return select_sub_batch(tasks, GPU, budget, **more)


@cache
def network(name: str, batch: int, framework: str = "fused") -> TaskGraph:
    trace = build_trace(name, batch=batch, gpu=K40, framework=framework, optimizer="plain-sgd")
    return replace(TaskGraph.of(trace), rescaled=cache(lambda size: TaskGraph.of(at_batch(trace, size, K40))))


def with_workspace(batch: int, bytes_at: Callable[[int], int]) -> TaskGraph:
    """One layer with 1 byte per sample; its forward workspace depends on the batch."""

    def at(size: int) -> TaskGraph:
        trace = chain([5], [7], [size])
        choice = AlgorithmChoice("F1", "fast", 1, bytes_at(size))
        return TaskGraph.of(replace(trace, info=replace(trace.info, batch=size), algorithms=(choice,)))

    return replace(at(batch), rescaled=at)


# --- rounding -----------------------------------------------------------------------------------------------


def test_sizes_are_multiples_of_64_above_64_and_powers_of_two_below():
    assert {rounded_down(batch) for batch in range(1, 400)} == {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384}
    assert all(rounded_down(batch) <= batch < 2 * rounded_down(batch) for batch in range(1, 1000))


def test_the_full_batch_is_never_rounded():
    tasks = of_batch(chain([5, 7], [10, 14], [77, 770]), 77)
    assert selected(tasks, 847) == SubBatch(77, 77, True, ((77, 77),))
    assert selected(tasks, 846).size == 64


# --- equation 8 ---------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 10**5), min_size=1, max_size=8),
    st.integers(1, 300),
    st.sampled_from([1, 64]),
    st.integers(0, 10**6),
)
def test_the_largest_regular_sub_batch_that_fits_is_selected(sizes: list[int], batch: int, alignment: int, budget: int):
    """Without workspaces profiles do not matter: every candidate is tried."""
    count = len(sizes)
    tasks = of_batch(chain([1] * count, [1] * count, [size * batch for size in sizes]), batch)

    def fits(size: int) -> bool:
        return window_bytes(Tdfg.of(tasks.at_batch(size), alignment)) <= budget

    result = select_sub_batch(tasks, GpuSpec("bench", 10**9, alignment=alignment), budget)
    candidates = sorted({*(rounded_down(size) for size in range(1, batch)), batch})
    allowed = [size for size in candidates if fits(size)]
    assert (result.size, result.fits) == (max(allowed, default=1), bool(allowed))


def test_one_sample_is_selected_even_if_it_does_not_fit():
    tasks = of_batch(chain([5, 7], [10, 14], [700, 7000]), 7)
    assert selected(tasks, 1100) == SubBatch(1, 7, True, ((7, 1), (1, 1)))
    assert selected(tasks, 1099) == SubBatch(1, 7, False, ((7, 1), (1, 1)))


def test_a_batch_of_one_is_not_split():
    assert selected(of_batch(chain([5], [7], [100]), 1), 99).size == 1


@pytest.mark.parametrize("name, batch", [("resnet34", 256), ("vgg16", 256), ("fcn32s", 128)])
@pytest.mark.parametrize("counted", ["live", "touched"])
def test_the_selected_sub_batch_fits_by_its_own_profile(name: str, batch: int, counted):
    tasks = network(name, batch)
    for budget in (4 * GB, 8 * GB, 12 * GB):
        result = select_sub_batch(tasks, K40, budget, counted=counted)
        assert result.fits and not result.whole_batch_reason
        assert window_bytes(Tdfg.of(tasks.at_batch(result.size)), counted=counted) <= budget


def test_block_sizes_in_the_search_match_the_rescaled_iteration():
    """The search scales the blocks itself; without workspaces its sizes must equal those of the rescaled iteration."""
    trace = build_trace("resnet34", batch=96, gpu=K40, framework="fused", workspace_limit=0)
    tasks = replace(TaskGraph.of(trace), rescaled=cache(lambda size: TaskGraph.of(at_batch(trace, size, K40))))
    for size in (64, 32, 4):
        need = window_bytes(Tdfg.of(tasks.at_batch(size), 512))
        gpu = replace(K40, alignment=512)
        assert select_sub_batch(tasks, gpu, need).size == size
        assert select_sub_batch(tasks, gpu, need - 1).size < size


def test_resnet34_is_split_below_5_gb_and_not_above():
    """Section 7.4, by live data: the sub-batch is 256 at 5 and 6 GB, and smaller for budgets below 5 GB."""
    tasks = network("resnet34", 256)
    result = {gb: select_sub_batch(tasks, K40, gb * GB, counted="live").size for gb in (2, 3, 4, 5, 6, 12)}
    assert result[5] == result[6] == result[12] == 256
    assert 256 > result[4] >= result[3] >= result[2]


def test_more_memory_never_gives_a_smaller_sub_batch_if_workspaces_are_fixed():
    tasks = of_batch(chain([5, 7, 9], [10, 14, 18], [3000, 60000, 900]), 300)
    sizes = [selected(tasks, budget).size for budget in range(0, 70_000, 500)]
    assert sizes == sorted(sizes) and sizes[-1] == 300


# --- profiles -----------------------------------------------------------------------------------------------


def test_profile_and_selection_are_repeated_until_the_sub_batch_stays():
    """At 256 samples the workspace leaves 72 bytes for data, at 64 it leaves 168, at 128 it leaves 136."""
    result = selected(with_workspace(256, lambda size: size // 2), 200)
    assert result == SubBatch(128, 256, True, ((256, 64), (64, 128), (128, 128)))


def test_if_profiles_cycle_the_largest_fitting_sub_batch_is_selected():
    """192 samples fit by the workspace of one sample, but not by their own, so the selection cycles."""
    tasks = with_workspace(256, lambda size: 4 * size)
    result = selected(tasks, 200)
    assert result.steps[:3] == ((256, 1), (1, 192), (192, 1))
    assert (result.size, result.fits) == (32, True)
    assert window_bytes(Tdfg.of(tasks.at_batch(64))) > 200 >= window_bytes(Tdfg.of(tasks.at_batch(32)))


@given(st.lists(st.integers(0, 400), min_size=64, max_size=64), st.integers(1, 300))
def test_the_search_ends_for_any_workspaces(workspaces: list[int], budget: int):
    tasks = with_workspace(64, lambda size: workspaces[size - 1])
    result = selected(tasks, budget)
    assert result.fits == (window_bytes(Tdfg.of(tasks.at_batch(result.size))) <= budget)
    assert result.fits or result.size == 1
    assert len({batch for batch, _ in result.steps}) <= 8  # the whole batch and the powers of two below it


# --- batches that cannot be partitioned ---------------------------------------------------------------------


def test_an_iteration_without_batch_dependent_blocks_is_not_split():
    tasks = graph([kernel("k", 1, "x", "y")], [held("x", 5), held("y", 5)])
    tasks = of_batch(tasks.trace, 8)
    result = selected(tasks, 9)
    assert (result.size, result.fits) == (8, False)
    assert result.whole_batch_reason == "no block of the iteration grows with the batch"


def test_a_trace_that_cannot_be_rescaled_is_not_split_and_the_reason_is_given():
    trace = chain([5, 7], [10, 14], [640, 1280])
    unread = tuple(replace(each, reads=()) for each in trace.kernels)
    info = replace(trace.info, batch=64, origin=Origin.IMPORTED)
    result = selected(TaskGraph.of(replace(trace, info=info, kernels=unread)), 100)
    assert (result.size, result.fits, result.steps) == (64, False, ((64, 64),))
    assert result.whole_batch_reason.startswith("chain: kernels.reads: the recording does not state what kernels read")
