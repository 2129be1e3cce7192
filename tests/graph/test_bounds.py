"""Memory lower bounds (moDNN, equations 6 and 7, section 7): closed forms, and comparison with programs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.bounds import (
    all_at_once,
    check_bound,
    lower_bound,
    lower_bound_offloaded,
    memory_bounds,
    task_bytes,
)
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import TaskKind, Tdfg
from simgpu.graph.transforms import with_algorithms
from simgpu.hardware.nodes import load_node
from simgpu.program.budget import check_kernels_fit
from simgpu.trace.chain import chain
from simgpu.trace.model import AlgorithmChoice, BlockKind, Trace
from simgpu.workloads.catalogue import build
from simgpu.workloads.footprint import all_at_once_bytes
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch
from tests.graph.test_tdfg import LAYER
from tests.semantics.hand_made import BACKWARD, OPTIMIZER, block, graph, held, kernel
from tests.semantics.random_traces import traces

K40 = load_node("k40").gpu
LISTS = st.lists(st.integers(0, 10**6), min_size=2, max_size=12)


def of_batch(trace: Trace, batch: int) -> TaskGraph:
    """A graph that can be rescaled to other batch sizes."""
    full = replace(trace, info=replace(trace.info, batch=batch))
    return replace(TaskGraph.of(full), rescaled=cache(lambda size: TaskGraph.of(at_batch(full, size, K40))))


def padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


@given(LISTS, st.sampled_from([1, 64, 512]))
def test_a_chain_needs_the_largest_two_neighbours_and_no_weights(sizes: list[int], alignment: int):
    """F(n) needs x(n) and x(n+1), B(n) only x(n), since gradients are empty; nothing is resident."""
    count = len(sizes)
    tdfg = Tdfg.of(TaskGraph.of(chain([1] * count, [1] * count, sizes)), alignment)
    in_memory = [padded(size, alignment) for size in sizes]
    needs = [task_bytes(tdfg, k, tdfg.smallest(k)) for k in range(count)]
    assert needs == [a + b for a, b in zip(in_memory, [*in_memory[1:], 0], strict=True)]
    bound = lower_bound(tdfg)
    assert bound.bytes == max(needs)
    assert all_at_once(tdfg).bytes == sum(in_memory)
    assert lower_bound_offloaded(tdfg) == bound


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12), st.integers(1, 300))
def test_the_bound_of_a_chain_is_its_bound_at_one_sample(sizes: list[int], batch: int):
    count = len(sizes)
    full_batch = chain([1] * count, [1] * count, [size * batch for size in sizes])
    bounds = memory_bounds(of_batch(full_batch, batch))
    assert (bounds.batch, bounds.whole_batch_reason) == (1, "")
    assert bounds.bound == lower_bound(Tdfg.of(TaskGraph.of(chain([1] * count, [1] * count, sizes))))
    assert bounds.all_at_once.bytes == sum(sizes) * batch


def test_the_bound_of_a_layer_with_weights_matches_the_hand_calculation():
    """LAYER: all but x, y, deltas and the workspace is resident; its tasks use the algorithm without workspace."""
    tdfg = Tdfg.of(LAYER)
    resident = 100 + 4 + 101 + 102 + 5
    needs = {kernel.id: task_bytes(tdfg, k, tdfg.smallest(k)) for k, kernel in enumerate(LAYER.kernels)}
    assert needs == {"F": 30, "L": 20 + 1 + 21, "BP1": 32, "BP2": 31, "both": 33, "U1": 0, "U2": 0}
    assert task_bytes(tdfg, 0, tdfg.fastest(0)) == 10 + 20 + 3000
    bound = lower_bound(tdfg)
    assert (bound.bytes, bound.kernel) == (resident + 42, LAYER.kernel("L"))
    assert bound.shares == {
        BlockKind.WEIGHT_GRADIENT: 107,
        BlockKind.WEIGHT: 104,
        BlockKind.OPTIMIZER_STATE: 101,
        BlockKind.GRADIENT: 21,
        BlockKind.ACTIVATION: 20,
        BlockKind.LABEL: 1,
    }


def test_blocks_used_only_by_the_optimizer_are_not_resident():
    """w and dw are resident, 200 bytes; t lives only from U1 to U2, so U1 and U2 need 50 more, and F and B 30."""
    tasks = graph(
        [
            kernel("F", 1, "x w", "y"),
            kernel("B", 1, "x y", "dw", phase=BACKWARD),
            kernel("U1", 1, "dw", "t", phase=OPTIMIZER),
            kernel("U2", 1, "t w", "w", phase=OPTIMIZER),
        ],
        [
            held("x", 10, kind=BlockKind.INPUT),
            held("w", 100, kind=BlockKind.WEIGHT),
            block("y", 20),
            block("dw", 100, kind=BlockKind.WEIGHT_GRADIENT),
            block("t", 50, kind=BlockKind.OTHER),
        ],
    )
    bound = lower_bound(Tdfg.of(tasks))
    assert (bound.bytes, bound.kernel) == (250, tasks.kernel("U1"))


def test_offloaded_weights_are_resident_only_during_their_own_tasks():
    tdfg = Tdfg.of(LAYER)
    offloaded = lower_bound_offloaded(tdfg)
    assert (offloaded.bytes, offloaded.kernel) == (100 + 101 + 4 + 5, LAYER.kernel("U2"))
    without = lower_bound_offloaded(tdfg, updates=False)
    assert (without.bytes, without.kernel) == (21 + 10 + 102, LAYER.kernel("BP2"))
    assert lower_bound_offloaded(Tdfg.of(TaskGraph.of(chain([1], [1], [7])))).bytes == 7


def test_all_at_once_is_all_data_plus_the_largest_workspace_of_the_fastest_algorithms():
    together = all_at_once(Tdfg.of(LAYER))
    data = sum(block.bytes for block in LAYER.blocks if block.kind is not BlockKind.WORKSPACE)
    assert (together.bytes, together.kernel) == (data + 3000, LAYER.kernel("F"))
    assert together.shares[BlockKind.WORKSPACE] == 3000


def test_shares_add_up_to_the_bound():
    tdfg = Tdfg.of(LAYER, alignment=16)
    for amount in (all_at_once(tdfg), lower_bound(tdfg), lower_bound_offloaded(tdfg)):
        assert sum(amount.shares.values()) == amount.bytes


def test_all_at_once_of_a_network_matches_a_count_over_its_layers():
    """One output and one gradient for each fused layer, counted from the network definition, and a few statistics."""
    network = build("resnet34")
    trace = build_trace("resnet34", batch=256, gpu=K40, framework="fused", optimizer="plain-sgd", workspace_limit=0)
    assert all_at_once(Tdfg.of(TaskGraph.of(trace))).bytes == pytest.approx(all_at_once_bytes(network, 256), rel=0.001)


def test_one_kernel_updating_all_weights_limits_the_bound_with_offloaded_weights():
    graph = TaskGraph.of(build_trace("vgg16", batch=2, gpu=K40))
    bounds = memory_bounds(graph)
    offloaded, without = bounds.offloaded.kernel, bounds.without_updates.kernel
    assert offloaded is not None and bounds.graph.kernels[offloaded].op == "_foreach_add_"
    assert without is not None and bounds.graph.kernels[without].layer == "fc6"
    assert bounds.without_updates.bytes < bounds.offloaded.bytes < bounds.bound.bytes < bounds.all_at_once.bytes


def test_the_bound_uses_the_recorded_batch_if_the_trace_cannot_be_rescaled():
    def refuses(batch: int) -> TaskGraph:
        return TaskGraph.of(at_batch(graph.trace, 0))

    graph = replace(of_batch(chain([1, 2], [3, 4], [300, 600]), 3), rescaled=refuses)
    bounds = memory_bounds(graph)
    assert (bounds.batch, bounds.bound.bytes) == (3, 900)
    assert bounds.whole_batch_reason == "chain: batch: 0 is not a batch size"


@given(traces(max_kernels=12), st.sampled_from([1, 16, 512]))
def test_one_byte_below_the_bound_is_refused_naming_the_kernel(trace: Trace, alignment: int):
    graph = TaskGraph.of(trace)
    bound = lower_bound(Tdfg.of(graph, alignment))
    check_bound(graph, bound.bytes, alignment)
    if not bound.bytes:
        return
    with pytest.raises(OutOfMemoryError) as caught:
        check_bound(graph, bound.bytes - 1, alignment)
    assert bound.kernel is not None
    kernel = graph.kernels[bound.kernel]
    assert (caught.value.kernel, caught.value.requested) == (kernel.id, bound.bytes)
    assert sum(size for _, size in caught.value.holders) == bound.bytes
    assert f"kernel {kernel.id} " in str(caught.value)


def test_the_error_shows_exact_bytes_if_rounded_sizes_are_equal():
    graph = TaskGraph.of(chain([1, 1], [1, 1], [10**9, 10**9]))
    with pytest.raises(OutOfMemoryError) as caught:
        check_bound(graph, 2 * 10**9 - 1)
    assert "kernel F1 (conv2d) with all persistent blocks needs 2000000000 B" in str(caught.value)
    assert "which exceeds the 1999999999 B capacity" in str(caught.value)


@given(traces(max_kernels=12), st.sampled_from([1, 16, 512]))
def test_with_offloaded_weights_the_bound_is_the_largest_working_set_of_a_kernel(trace: Trace, alignment: int):
    """A kernel cannot run without its own blocks, and `verify` refuses programs with less memory."""
    graph = TaskGraph.of(trace)
    bound = lower_bound_offloaded(Tdfg.of(graph, alignment)).bytes
    check_kernels_fit(graph, bound, alignment)
    if bound:
        with pytest.raises(OutOfMemoryError):
            check_kernels_fit(graph, bound - 1, alignment)


@given(traces(max_kernels=12), st.data())
def test_no_choice_of_algorithms_is_below_the_bound(trace: Trace, data: st.DataObject):
    listed = tuple(
        AlgorithmChoice(kernel.id, name, 1, data.draw(st.integers(0, 99))) for kernel in trace.kernels for name in "ab"
    )
    graph = TaskGraph.of(replace(trace, algorithms=listed))
    chosen = {k: data.draw(st.sampled_from("ab")) for k in range(len(trace.kernels)) if data.draw(st.booleans())}
    assert lower_bound(Tdfg.of(with_algorithms(graph, chosen))).bytes >= lower_bound(Tdfg.of(graph)).bytes


@given(traces(max_kernels=12))
def test_memory_bounds_are_ordered(trace: Trace):
    tdfg = Tdfg.of(TaskGraph.of(trace))
    assert lower_bound_offloaded(tdfg, updates=False).bytes <= lower_bound_offloaded(tdfg).bytes
    assert lower_bound_offloaded(tdfg).bytes <= lower_bound(tdfg).bytes <= all_at_once(tdfg).bytes
    assert set(tdfg.kinds) == {TaskKind.BP3} or lower_bound_offloaded(tdfg, updates=False).kernel is not None
