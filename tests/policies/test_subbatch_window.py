"""Equation 8 of moDNN: the largest window of consecutive tasks, against sums written out by hand and by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from operator import le

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.graph.bounds import all_at_once, lower_bound
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.policies.common.sub_batches import Counted, fastest_workspaces, window_bytes
from simgpu.trace.chain import chain
from simgpu.trace.model import AlgorithmChoice, Trace
from tests.graph.test_tdfg import LAYER
from tests.semantics.random_traces import traces

ALPHAS = st.sampled_from([0.05, 0.15, 0.3, 0.5, 1.0])


def blocks_of(tdfg: Tdfg, task: Sequence[int]) -> set[int]:
    return {b for k in task for b in tdfg.data(k)}


def by_brute_force(tdfg: Tdfg, alpha: float, counted: Counted) -> int:
    """The largest window, from the resident blocks of every task of every window."""
    tasks = tdfg.layer_tasks
    width = ceil(Fraction(str(alpha)) * len(tasks))
    touching = {b: [t for t, task in enumerate(tasks) if b in blocks_of(tdfg, task)] for b in range(len(tdfg.sizes))}
    most = 0
    if not tasks:
        return tdfg.resident_bytes
    for begin in range(len(tasks) - width + 1):
        window = range(begin, begin + width)
        data = {b for t in window for b in blocks_of(tdfg, tasks[t])}
        if counted == "touched":
            fullest = tdfg.bytes_of(data)
        else:
            fullest = max(tdfg.bytes_of(b for b in data if touching[b][0] <= t <= touching[b][-1]) for t in window)
        workspace = max(tdfg.fastest(k).workspace for t in window for k in tasks[t])
        most = max(most, fullest + workspace)
    return tdfg.resident_bytes + most


def with_choices(trace: Trace, data: st.DataObject) -> Trace:
    few = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3000)), max_size=2)
    listed = [
        AlgorithmChoice(kernel.id, f"way{number}", *choice)
        for kernel in trace.kernels
        for number, choice in enumerate(data.draw(few))
    ]
    return replace(trace, algorithms=tuple(listed))


@given(traces(max_kernels=20), ALPHAS, st.sampled_from([1, 64]), st.data())
@pytest.mark.parametrize("counted", ["live", "touched"])
def test_the_largest_window_equals_brute_force(counted, trace: Trace, alpha: float, alignment: int, data) -> None:
    tdfg = Tdfg.of(TaskGraph.of(with_choices(trace, data)), alignment)
    assert window_bytes(tdfg, alpha, counted) == by_brute_force(tdfg, alpha, counted)


@given(traces(max_kernels=20), st.sampled_from([1, 64]), st.data())
def test_the_fastest_workspaces_are_those_of_the_task_graph(trace: Trace, alignment: int, data) -> None:
    graph = TaskGraph.of(with_choices(trace, data))
    tdfg = Tdfg.of(graph, alignment)
    assert fastest_workspaces(graph, alignment) == [tdfg.fastest(k).workspace for k in range(len(graph.kernels))]


@given(traces(max_kernels=12), ALPHAS)
@pytest.mark.parametrize("counted", ["live", "touched"])
def test_windows_of_bytes_beyond_64_bits_are_exact(counted, trace: Trace, alpha: float) -> None:
    factor = 2**62
    tdfg = Tdfg.of(TaskGraph.of(trace))
    huge = replace(
        tdfg,
        sizes=tuple(size * factor for size in tdfg.sizes),
        ways=tuple(tuple(way._replace(workspace=way.workspace * factor) for way in ways) for ways in tdfg.ways),
    )
    assert window_bytes(huge, alpha, counted) == factor * window_bytes(tdfg, alpha, counted)


@pytest.mark.parametrize("counted", ["live", "touched"])
def test_on_a_chain_windows_slide_over_the_activations(counted: Counted) -> None:
    """Twelve tasks, two in a window: F4 and F5 touch x4, x5 and x6."""
    sizes = [1, 2, 3, 100, 200, 4]
    tdfg = Tdfg.of(TaskGraph.of(chain([1] * 6, [1] * 6, sizes)))
    assert len(tdfg.layer_tasks) == 12
    assert window_bytes(tdfg, 0.15, counted) == 100 + 200 + 4
    assert window_bytes(tdfg, 1.0, counted) == sum(sizes)


def test_live_data_exclude_released_and_later_blocks() -> None:
    """LAYER's tasks are F, (L, BP1), BP2 and (both): at BP2, y and label are released, and dz does not exist yet."""
    tdfg = Tdfg.of(LAYER)
    assert [len(task) for task in tdfg.layer_tasks] == [1, 2, 1, 1]
    reside, workspace = tdfg.resident_bytes, 3000
    assert window_bytes(tdfg, 1.0, "touched") == reside + workspace + 10 + 20 + 1 + 21 + 11 + 12
    assert window_bytes(tdfg, 1.0, "live") == reside + workspace + 10 + 20 + 1 + 21 + 11
    assert window_bytes(tdfg, 0.5, "live") == reside + workspace + 10 + 20 + 1 + 21 + 11
    assert window_bytes(tdfg, 0.25, "live") == reside + workspace + 10 + 20


@given(traces(max_kernels=20), st.data())
def test_windows_lie_between_the_bound_and_the_ideal_memory(trace: Trace, data) -> None:
    """Wider windows touch more. Every task of the paper's graph fits a budget that equation 8 allows."""
    tdfg = Tdfg.of(TaskGraph.of(with_choices(trace, data)))
    alphas = (0.05, 0.15, 0.3, 0.5, 1.0)
    touched = [window_bytes(tdfg, alpha, "touched") for alpha in alphas]
    live = [window_bytes(tdfg, alpha, "live") for alpha in alphas]
    assert touched == sorted(touched) and touched[-1] <= all_at_once(tdfg).bytes
    assert all(map(le, live, touched))
    bound = lower_bound(tdfg)
    if bound.kernel in tdfg.tasks:
        assert bound.bytes <= min(live)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.01])
def test_a_window_of_no_tasks_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="give a share of the tasks over 0 and up to 1"):
        window_bytes(Tdfg.of(LAYER), alpha)
