"""Other transforms applied to tasks in compressed memory, compared with hand calculations."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.graph.compressed import NO_DEMAND, CompressedMemory, Demand
from simgpu.graph.encodings import Encoding
from simgpu.graph.replicate import Exchange, Replicate, replicas
from simgpu.graph.split import split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Uncompressed, uncompressed, with_algorithms, with_encodings
from simgpu.graph.updates import exchanging
from simgpu.hardware.spec import NodeSpec
from simgpu.simulation.tasks import task_graph
from simgpu.trace.model import AlgorithmChoice, BlockKind, Trace
from simgpu.workloads.rescale import at_batch
from tests.compression.buddy.compressible import (
    buddy_node,
    buddy_nodes,
    compressible,
    entries,
    memory_of,
    with_histograms,
    without_buddy,
)
from tests.semantics.hand_made import BACKWARD, GB, OPTIMIZER, block, held, kernel, trace
from tests.semantics.random_traces import DrawnCosts, traces

many = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))


def training(batch: int = 6) -> Trace:
    """One layer with `batch` samples of 512 B; one of every four entries is raw, the others take one sector."""
    built = trace(
        [
            kernel("F", 600, "x w", "y"),
            kernel("B", 1200, "y x", "dw", phase=BACKWARD),
            kernel("U", 70, "dw w", "w", phase=OPTIMIZER, pure=False),
        ],
        [
            held("x", 512 * batch, kind=BlockKind.INPUT),
            held("w", 1024, kind=BlockKind.WEIGHT),
            block("y", 1024 * batch, release="end"),
            block("dw", 1024, kind=BlockKind.WEIGHT_GRADIENT, release="U"),
        ],
    )
    quarters = {b.id: entries(b.bytes) // 4 for b in built.blocks}
    built = with_histograms(built, {name: (0, 0, 0, 3 * n, 0, 0, 0, n) for name, n in quarters.items()})
    return replace(built, info=replace(built.info, batch=batch))


def quarter_ns(plain: TaskGraph, k: int, duration: int) -> tuple[int, int]:
    """Device time and total time of a kernel that accesses such blocks, at 10 B/ns on the device and 1 on the link.

    Each accessed entry reads 32 B of device memory, and every fourth one 96 B of buddy memory as well.
    """
    read = sum(entries(plain.blocks[b].bytes) for b in plain.reads[k])
    written = sum(entries(plain.blocks[b].bytes) for b in plain.writes[k])
    without, with_it = ceil(Fraction(128 * (read + written), 10)), ceil(Fraction(32 * (read + written), 10))
    share = min(duration, without)
    device = duration - share + ceil(Fraction(with_it * share, without))
    return device, device + max(24 * read, 24 * written)


# --- sub-batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 6])
def test_sub_batches_compress_like_the_full_batch(batch: int):
    built, on = training(), buddy_node()
    graph, plain = split(task_graph(built, on), batch), split(task_graph(built, without_buddy(on)), batch)
    assert [b.id for b in graph.blocks] == [b.id for b in plain.blocks]
    assert graph.rounds == plain.rounds
    memory = memory_of(graph)
    assert set(memory.targets) == {32}
    assert graph.sizes == tuple(size // 4 for size in plain.sizes)
    assert memory.carved == tuple(size * 3 // 4 for size in plain.sizes)
    assert memory.overflow == tuple(entries(size) // 4 * 96 for size in plain.sizes)
    assert graph.copy_sizes == plain.copy_sizes
    times = [quarter_ns(plain, k, plain.durations[k]) for k in range(len(plain.kernels))]
    assert list(zip(memory.device_ns, graph.durations, strict=True)) == times
    assert uncompressed(graph).durations == plain.durations


@many
@given(st.data(), st.integers(1, 3))
def test_a_split_graph_has_a_row_for_every_kernel_and_block_and_all_bytes(data: st.DataObject, batch: int):
    built = data.draw(compressible(traces(), accesses=False))
    built = replace(built, info=replace(built.info, batch=3))
    on = data.draw(buddy_nodes())
    try:
        plain = split(task_graph(built, without_buddy(on)), batch)
    except InputError as error:
        with pytest.raises(type(error)):
            split(task_graph(built, on), batch)
        return
    graph = split(task_graph(built, on), batch)
    memory = memory_of(graph)
    assert len(memory.demands) == len(memory.device_ns) == len(graph.kernels)
    for b, size in enumerate(plain.sizes):
        if memory.targets[b] == 128:
            assert (graph.sizes[b], memory.carved[b], memory.overflow[b]) == (size, 0, 0)
        else:
            assert graph.sizes[b] + memory.carved[b] == 128 * entries(size)
    assert uncompressed(graph).durations == plain.durations


# --- algorithms -------------------------------------------------------------------------------------------------------


def chosen(workspace: bool) -> tuple[TaskGraph, TaskGraph]:
    built = training()
    choices = tuple(AlgorithmChoice("F", name, ns, size) for name, ns, size in (("slow", 5000, 0), ("fast", 300, 640)))
    built = replace(built, algorithms=choices)
    if workspace:
        first = replace(built.kernels[0], writes=("y", "ws"))
        built = replace(
            built,
            kernels=(first, *built.kernels[1:]),
            blocks=(*built.blocks, block("ws", 1280, kind=BlockKind.WORKSPACE)),
        )
        built = with_histograms(
            built, {"ws": (10, 0, 0, 0, 0, 0, 0, 0), **{b.id: _quarters(b.bytes) for b in built.blocks[:4]}}
        )
    on = buddy_node(mostly_zero=False)
    return task_graph(built, on), task_graph(built, without_buddy(on))


def _quarters(size: int) -> tuple[int, ...]:
    return (0, 0, 0, entries(size) * 3 // 4, 0, 0, 0, entries(size) // 4)


@pytest.mark.parametrize(("name", "ns"), [("slow", 5000), ("fast", 300)])
def test_another_algorithm_moves_the_same_compressed_bytes(name: str, ns: int):
    graph, plain = chosen(workspace=False)
    assert memory_of(graph).demands[0].memory_ns > 300, "the fast one is all memory"
    changed = with_algorithms(graph, {0: name})
    device, all_of_it = quarter_ns(plain, 0, ns)
    assert (memory_of(changed).device_ns[0], changed.durations[0]) == (device, all_of_it)
    assert memory_of(changed).demands == memory_of(graph).demands
    assert changed.durations[1:] == graph.durations[1:]
    assert graph.durations[0] == quarter_ns(plain, 0, 600)[1], "the old graph is untouched"


def test_a_new_workspace_is_not_compressed():
    graph, _ = chosen(workspace=False)
    changed = with_algorithms(graph, {0: "fast"})
    ws = changed.block("workspace:F")
    assert changed.sizes[ws] == 640
    assert memory_of(changed).carved_by([ws]) == 0


def test_a_resized_workspace_is_not_compressed():
    """The contents of the recorded workspace say nothing about those of the new one."""
    graph, _ = chosen(workspace=True)
    ws = graph.block("ws")
    assert (graph.sizes[ws], memory_of(graph).carved_by([ws])) == (320, 960)
    for name, size in (("fast", 640), ("slow", 0)):
        changed = with_algorithms(graph, {0: name})
        assert (changed.sizes[ws], memory_of(changed).carved_by([ws])) == (size, 0)
        others = [b for b in range(len(graph.blocks)) if b != ws]
        assert [memory_of(changed).carved[b] for b in others] == [memory_of(graph).carved[b] for b in others]


# --- encoded forms ----------------------------------------------------------------------------------------------------


@many
@given(st.data())
def test_encoded_forms_are_not_compressed_again(data: st.DataObject):
    on = data.draw(buddy_nodes())
    graph = task_graph(data.draw(compressible(traces())), on)
    costs = DrawnCosts({b.id: (data.draw(st.integers(0, 900)), 3, 4) for b in graph.blocks})
    coded = [Encoding(b, "drawn") for b in range(len(graph.blocks)) if data.draw(st.booleans())]
    changed = with_encodings(replace(graph, costs=costs), coded)
    count = len(graph.blocks)
    assert changed.sizes[:count] == graph.sizes
    assert changed.sizes[count:] == tuple(costs.of[graph.blocks[each.block].id][0] for each in coded)
    assert changed.durations == graph.durations
    assert memory_of(changed).carved_by(range(count, len(changed.blocks))) == 0
    assert memory_of(changed).carved_by(range(len(changed.blocks))) == sum(memory_of(graph).carved)


# --- several GPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [2, 3])
@pytest.mark.parametrize("exchange", Exchange)
def test_every_gpu_has_the_same_compressed_memory(gpus: int, exchange: Exchange):
    one = exchanging(task_graph(training(), buddy_node()))
    every = replicas(one, Replicate(gpus, exchange, GB))
    graph, memory, alone = every.graph, memory_of(every.graph), memory_of(one)
    own = [0] * len(graph.kernels)
    for gpu in range(gpus):
        for k, number in enumerate(every.kernels[gpu]):
            if number is None:
                assert k >= every.end
                continue
            own[number] = 1
            assert graph.durations[number] == one.durations[k]
            assert (memory.demands[number], memory.device_ns[number]) == (alone.demands[k], alone.device_ns[k])
        for b, number in enumerate(every.blocks[gpu]):
            if number is not None:
                assert graph.sizes[number] == one.sizes[b]
                assert (memory.carved[number], memory.overflow[number]) == (alone.carved[b], alone.overflow[b])
    assert len(memory.carved) == len(graph.blocks)
    new = [number for number, known in enumerate(own) if not known]
    assert bool(new) == (exchange is not Exchange.NONE), "somebody adds up the gradients"
    assert all(memory.demands[number] == NO_DEMAND for number in new)


# --- closed forms -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_single_kernel_ends_with_the_later_of_device_and_link_time(device: int, link: int, hidden: int):
    rows = (Demand(0, 0, link, 0, link),)
    memory = CompressedMemory(rows, (device,), (), (), (), (), hidden)
    kernel_ns = device * hidden // 10**6
    assert memory.head_ns(0) == device - kernel_ns
    assert memory.alone_ns(0) == device + max(0, link - kernel_ns)


def test_without_compression_tasks_and_exchanged_blocks_are_unchanged():
    built, on = training(), buddy_node()
    graph = task_graph(built, on)
    plain = uncompressed(graph)
    assert (plain.durations, plain.sizes, plain.compressed) == ((600, 1200, 70), (3072, 1024, 6144, 1024), None)
    assert Uncompressed().apply(graph) is plain and uncompressed(plain) is plain
    assert uncompressed(exchanging(graph)).exchanged == exchanging(graph).exchanged != ()


@many
@given(st.data())
def test_at_another_batch_memory_is_compressed_too(data: st.DataObject):
    on: NodeSpec = data.draw(buddy_nodes())
    batch = data.draw(st.integers(1, 12))
    built = training()
    assert task_graph(built, on).at_batch(batch).sizes == task_graph(at_batch(built, batch), on).sizes
    assert task_graph(built, on).at_batch(batch).durations == task_graph(at_batch(built, batch), on).durations
