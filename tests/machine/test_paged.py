"""Unified Memory over time: closed forms, comparison with the reference pages, and properties of any run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.analysis.breakdown import breakdown
from simgpu.compression.buddy.streams import EntryAccesses, seed_of, stream_of
from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.machine.page_accesses import pages_of
from simgpu.machine.run import MachineRun, run_program
from simgpu.memory.chunks import Chunk, ResidentChunks, least_recently_used
from simgpu.memory.transfer import stream_ns
from simgpu.program.instructions import Initialize, Launch, Release
from simgpu.program.lowering import lower
from simgpu.program.paging import Paged
from simgpu.program.placement import Placement
from simgpu.program.residency import on_demand
from simgpu.program.verify import verify
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Access, AccessOrder
from tests.machine.paged_reference import Page, PlainPages
from tests.semantics.hand_made import GB, block, graph, held, kernel, node, times
from tests.semantics.random_traces import traces

#: One page to a chunk and to a batch: at 1 GB/s a page takes 128 ns each way.
SINGLE = Paged(page=128, chunk=128, fault_batch=1, fault_latency_ns=1000)
FAULT, OUT, IN = "stall_device_memory", "copy_d2h", "copy_h2d"


def run(
    tasks: TaskGraph, how: Paged, budget: int | None, *, on: NodeSpec | None = None, iterations: int = 3, **more: object
) -> MachineRun:
    program = on_demand(lower(tasks, Placement(), recorded_lifetimes=True), how)
    verify(program, tasks, capacity=budget)
    return run_program(program, tasks, on or node(), budget=budget, iterations=iterations, **more)  # type: ignore[arg-type]


def lasted(result: MachineRun) -> list[int]:
    """Nanoseconds of each iteration."""
    windows = (result.timeline.window(i) for i in range(len(result.timeline.iteration_ends_ns)))
    return [end - start for start, end in windows]


def two_blocks() -> TaskGraph:
    """Two kernels that use one block each."""
    return graph([kernel("k1", 10, "x"), kernel("k2", 20, "y")], [held("x", 128), held("y", 128)])


def test_a_fault_costs_latency_then_eviction_then_fetch():
    result = run(two_blocks(), SINGLE, 128, iterations=2)
    assert times(result) == {
        "k1": (0, 10),
        "out:x": (1010, 1138),
        "in:y": (1138, 1266),
        "k2": (1266, 1286),
    }
    assert lasted(result) == [1286, 2 * (1000 + 256) + 30]
    waits = [(s.label, s.cause, s.start_ns, s.end_ns) for s in result.timeline if s.kind.is_stall and not s.iteration]
    assert waits == [
        (FAULT, "", 10, 1010),
        ("stall_event", "d2h", 1010, 1138),
        ("stall_event", "h2d", 1138, 1266),
    ]


def test_lost_time_is_reported_by_cause():
    parts = breakdown(run(two_blocks(), SINGLE, 128).timeline)
    assert (parts.compute, parts.stalled_memory) == (30, 2000)
    assert (parts.stalled_copies["d2h"], parts.stalled_copies["h2d"], parts.stalled_other) == (256, 256, 0)


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(1, 8), st.data())
def test_lru_faults_on_every_page_of_a_cyclic_working_set_that_is_too_large(
    pages: int, batch: int, data: st.DataObject
):
    """Each of N pages is fetched and another evicted; batches are limited by their size and by the excess pages."""
    free = data.draw(st.integers(-(-pages // 2), pages - 1))
    tasks = graph([kernel("k", 10, "x")], [held("x", 128 * pages)])
    result = run(tasks, replace(SINGLE, fault_batch=batch), 128 * free, iterations=4)
    together = min(batch, pages - free)
    assert lasted(result)[-1] == 10 + -(-pages // together) * 1000 + 2 * 128 * pages
    assert sum(s.bytes for s in result.timeline if s.label == IN and s.iteration == 3) == 128 * pages


def test_pages_about_to_be_overwritten_are_not_fetched():
    tasks = graph([kernel("k1", 10, "x", "y"), kernel("k2", 10, "y")], [held("x", 128), block("y", 128)])
    result = run(tasks, SINGLE, 128, iterations=2)
    # k1: x is evicted for y, which is new. In the next iteration y is released, x is fetched and evicted again for y.
    assert lasted(result) == [1000 + 128 + 20, 1000 + 128 + 1000 + 128 + 20]
    assert [(s.name, s.bytes) for s in result.timeline if s.label == IN] == [("x", 128)]


def test_migrations_are_shown_block_by_block_and_add_up():
    tasks = graph([kernel("k1", 10, "a b"), kernel("k2", 10, "c d")], [held(name, 192) for name in "abcd"])
    result = run(tasks, replace(SINGLE, fault_batch=4), 384, on=node(out=3 * GB, back=7 * GB), iterations=1)
    moved = [(s.label, s.name, s.start_ns, s.end_ns, s.bytes) for s in result.timeline if s.label in (OUT, IN)]
    start, between, end = 1010, 1010 + 128, 1010 + 128 + 55
    assert moved == [
        (OUT, "a", start, start + 64, 192),
        (OUT, "b", start + 64, between, 192),
        (IN, "c", between, between + 27, 192),
        (IN, "d", between + 27, end, 192),
    ]


def test_migrations_may_be_slower_than_the_link():
    fast = lasted(run(two_blocks(), SINGLE, 128))[-1]
    slow = lasted(run(two_blocks(), replace(SINGLE, bandwidth=GB // 2), 128))[-1]
    assert slow - fast == 4 * 128
    assert lasted(run(two_blocks(), replace(SINGLE, bandwidth=9 * GB), 128))[-1] == fast


def test_every_migration_waits_for_the_latency_of_the_link():
    assert lasted(run(two_blocks(), SINGLE, 128, on=node(latency=50)))[-1] == 2 * (1000 + 256 + 100) + 30


def test_a_batch_that_is_larger_than_the_memory_is_out_of_memory():
    tasks = graph([kernel("k1", 10, "x y")], [held("x", 256), held("y", 128)])
    with pytest.raises(OutOfMemoryError) as caught:
        run(tasks, replace(SINGLE, fault_batch=3), 100)
    error = caught.value
    assert (error.requested, error.capacity, error.kernel) == (384, 100, "k1")
    assert error.holders == (("x", 256), ("y", 128))


def test_pages_that_do_not_fit_are_on_the_host():
    result = run(two_blocks(), SINGLE, 128)
    assert (
        set(result.timeline.memory("device").used.tolist())
        == set(result.timeline.memory("host").used.tolist())
        == {128}
    )
    assert result.high_water == 128


def test_the_hook_picks_the_evicted_pages():
    """k1 uses x, which arrived first, so LRU keeps it for k3."""
    blocks = [held("x", 128), held("y", 128), held("z", 128)]
    tasks = graph([kernel("k1", 10, "x"), kernel("k2", 10, "z"), kernel("k3", 10, "x")], blocks)
    left = []
    for hook in (None, lambda residents: next(iter(residents.arrived))):
        result = run(tasks, SINGLE, 256, iterations=1, **({"reclaim": hook} if hook else {}))
        left.append([s.name for s in result.timeline if s.label == OUT])
    assert left == [["y"], ["x", "y"]]


def test_iterations_are_steady_only_if_memory_is_equal_too():
    assert [run(two_blocks(), SINGLE, 128, iterations=n).steady for n in (1, 2, 3)] == [None, False, True]
    one = graph([kernel("k1", 10, "x")], [held("y", 128), held("x", 128)])
    # Nothing moves, but x becomes the most recently used.
    assert [run(one, SINGLE, 256, iterations=n).steady for n in (2, 3)] == [True, True]


@pytest.mark.parametrize("order", AccessOrder)
def test_a_recorded_access_pattern_is_followed_page_by_page(order: AccessOrder):
    """16 entries are 4 pages of 4 entries; two pages fit. The order is 1 2 3 0 1, 1 3 2 0, or random."""
    plain = graph([kernel("k", 10, "x")], [held("x", 2048)])
    first = 0 if order is AccessOrder.RANDOM else 6
    access = Access("k", "x", False, order, 4, entries=16, stride=8, first=first)
    tasks = TaskGraph.of(replace(plain.trace, accesses=(access,)))
    result = run(tasks, replace(SINGLE, page=512, chunk=512), 1024, iterations=5)
    walk = EntryAccesses(0, 16, False, order, 4, accesses=16, stride=8, seed=seed_of("k", "x"), begin=first)
    pages = PlainPages([2048], 1024, 512, 1, 1)
    pages.give(0)
    visits = [((0, page), False) for page in pages_of(walk, 512).tolist()]
    assert lasted(result) == [10 + len(pages.kernel(visits)) * (1000 + 1024) for _ in range(5)]


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from([AccessOrder.SEQUENTIAL, AccessOrder.STRIDED]), st.integers(1, 300), st.integers(1, 9), st.data()
)
def test_a_walk_accesses_pages_in_the_order_of_its_entries(
    order: AccessOrder, entries: int, each: int, data: st.DataObject
):
    """The walk accesses exactly these pages, in the order of the entries."""
    visits, begin = data.draw(st.integers(1, 2 * entries)), data.draw(st.integers(0, entries - 1))
    stride = data.draw(st.integers(1, 400)) if order is AccessOrder.STRIDED else 1
    result = pages_of(EntryAccesses(0, entries, False, order, 4, visits, stride, begin=begin), 128 * each).tolist()
    every = [entry for column in range(min(stride, entries)) for entry in range(column, entries, stride)]
    literal = [(begin + entry) % entries // each for entry in every[:visits]]
    in_order = iter(literal)
    assert all(page in in_order for page in result), "no subsequence"
    assert set(result) == set(literal)
    assert all(one != other for one, other in pairwise(result))


@pytest.mark.parametrize(("visits", "pages"), [(1, [0]), (4, [0]), (5, [0, 1]), (16, [0, 1, 2, 3]), (99, [0, 1, 2, 3])])
def test_a_walk_has_the_recorded_number_of_accesses(visits: int, pages: list[int]):
    assert pages_of(EntryAccesses(0, 16, False, AccessOrder.SEQUENTIAL, 4, visits), 512).tolist() == pages
    assert pages_of(EntryAccesses(0, 16, False, AccessOrder.STRIDED, 4, visits, stride=1), 512).tolist() == pages


def test_a_walk_that_begins_within_a_page_wraps_around_to_it():
    walk = EntryAccesses(0, 16, False, AccessOrder.SEQUENTIAL, 4, accesses=16, begin=6)
    assert pages_of(walk, 512).tolist() == [1, 2, 3, 0, 1]
    assert pages_of(replace(walk, accesses=14), 512).tolist() == [1, 2, 3, 0]
    assert pages_of(replace(walk, order=AccessOrder.STRIDED, stride=8), 512).tolist() == [1, 3, 2, 0]


def test_a_strided_walk_from_an_offset_accesses_the_columns_of_every_box():
    """Three boxes of 10 entries; the walk accesses the fourth to the seventh of each."""
    walk = EntryAccesses(0, 30, False, AccessOrder.STRIDED, 4, accesses=12, stride=10, begin=3)
    assert pages_of(walk, 128).tolist() == [3, 13, 23, 4, 14, 24, 5, 15, 25, 6, 16, 26]
    assert pages_of(walk, 512).tolist() == [0, 3, 5, 1, 6, 4]


def test_resident_chunks_are_ordered_by_their_last_access_in_a_walk():
    plain = graph([kernel("k", 10, "x"), kernel("l", 10, "y")], [held("x", 2048), held("y", 128)])
    tasks = TaskGraph.of(replace(plain.trace, accesses=(Access("k", "x", False, AccessOrder.RANDOM, 1, entries=40),)))
    seen: list[list[tuple[int, int]]] = []

    def look(residents: ResidentChunks) -> Chunk:
        seen.append([(chunk.block, chunk.index) for chunk in residents.touched])
        return least_recently_used(residents)

    run(tasks, SINGLE, 2048, iterations=1, reclaim=look)
    walk = EntryAccesses(0, 16, False, AccessOrder.RANDOM, 1, accesses=40, seed=seed_of("k", "x"))
    last = {page: place for place, page in enumerate(stream_of([walk], 1).lines.tolist())}
    never = [page for page in range(16) if page not in last]
    assert seen[0] == [(0, page) for page in [*never, *sorted(last, key=last.__getitem__)]]


# --- several compute streams --------------------------------------------------------------------------------


def test_batches_of_several_streams_are_served_one_after_the_other():
    tasks = graph(
        [kernel("k1", 10, "x"), kernel("k2", 20, "y", stream=1)],
        [held("a", 128), held("b", 128), held("x", 128), held("y", 128)],
    )
    result = run(tasks, SINGLE, 256, iterations=1)
    step = 1000 + 256
    assert times(result) == {
        "out:a": (1000, 1128),
        "in:x": (1128, step),
        "k1": (step, step + 10),
        "out:b": (step + 1000, step + 1128),
        "in:y": (step + 1128, 2 * step),
        "k2": (2 * step, 2 * step + 20),
    }
    assert {s.stream for s in result.timeline if s.label == OUT} == {"d2h", "d2h1"}


def test_a_page_fetched_by_another_stream_is_not_fetched_again():
    tasks = graph(
        [kernel("k1", 10, "x"), kernel("k2", 20, "x", stream=1)], [held("a", 128), held("b", 128), held("x", 128)]
    )
    result = run(tasks, SINGLE, 256, iterations=1)
    assert [s.name for s in result.timeline if s.label == IN] == ["x"]
    assert times(result)["k1"][0] == times(result)["k2"][0] == 1000 + 256


# --- any trace ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(traces(streams=2))
def test_with_ample_memory_paging_takes_the_same_time_as_the_plain_framework(trace):  # type: ignore[no-untyped-def]
    tasks = TaskGraph.of(trace)
    plain = run_program(lower(tasks, Placement(), recorded_lifetimes=True), tasks, node(), budget=None)
    paged = run(tasks, SINGLE, plain.high_water)
    for simulated, its in zip(paged.timeline.device_memories, plain.timeline.device_memories, strict=True):
        assert simulated.used.max() == its.used.max()
    assert paged.timeline.iteration_ends_ns == plain.timeline.iteration_ends_ns
    assert not any(s.kind.is_stall and s.kind is not SpanKind.STALL_EVENT for s in paged.timeline)


def budgets(tasks: TaskGraph, how: Paged, data: st.DataObject) -> int:
    """From a single batch to everything."""
    return data.draw(st.integers(how.page * how.fault_batch, max(sum(tasks.sizes), how.page * how.fault_batch)))


@st.composite
def paged(draw: st.DrawFn) -> Paged:
    page = draw(st.sampled_from([128, 256]))
    return Paged(
        page,
        page * draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 50)),
        draw(st.integers(0, 100)),
        draw(st.integers(0, 5)),
        draw(st.booleans()),
        draw(st.sampled_from([None, GB // 3])),
        draw(st.booleans()),
    )


@settings(deadline=None, max_examples=60)
@given(traces(), paged(), st.data())
def test_a_run_takes_the_kernel_time_plus_the_faults_of_the_reference_model(trace, how: Paged, data: st.DataObject):  # type: ignore[no-untyped-def]
    tasks = TaskGraph.of(trace)
    budget = budgets(tasks, how, data)
    on = node(out=data.draw(st.integers(1, 3 * GB)), back=data.draw(st.integers(1, 3 * GB)), latency=3)
    result = run(tasks, how, budget, on=on)
    assert list(result.timeline.iteration_ends_ns) == ends(tasks, how, budget, on)
    assert max(curve.used.max() for curve in result.timeline.device_memories) <= result.high_water <= budget


def ends(tasks: TaskGraph, how: Paged, budget: int, on: NodeSpec) -> list[int]:
    """The ends of compute of three iterations, by the reference pages."""
    program = on_demand(lower(tasks, Placement(), recorded_lifetimes=True), how)
    each = how.chunk // how.page
    pages = PlainPages(list(tasks.sizes), budget, how.page, each, how.pages_per_batch, how.write_back_clean)
    pages.prefetch, pages.group, pages.first_touch = how.prefetch, 64 * 2**10 // how.page, how.first_touch
    for b in program.resident:
        pages.give(b)
    now, result = 0, []
    for _ in range(3):
        end = now
        (segment,) = program.segments
        (code,) = segment.streams.values()
        for instruction in code:
            if isinstance(instruction, Release | Initialize):
                for b in instruction.blocks:
                    (pages.forget if isinstance(instruction, Release) else pages.give)(b)
            elif isinstance(instruction, Launch):
                k = instruction.kernel
                order = dict.fromkeys((*tasks.reads[k], *tasks.writes[k]))
                visits = [(page, b in tasks.writes[k]) for b in order for page in pages.pages(b)]
                for out, back, times, host_pages in pages.kernel(visits):
                    now += times * how.fault_latency_ns + host_pages * how.host_page_ns
                    for moved, link in ((out, on.link.d2h_bandwidth), (back, on.link.h2d_bandwidth)):
                        now += passing(pages, moved, min(link, how.bandwidth or link), on.link.latency_ns)
                end = now = now + tasks.durations[k]
        result.append(end)
    return result


def passing(pages: PlainPages, moved: list[Page], rate: int, latency: int) -> int:
    return latency + stream_ns(sum(map(pages.size, moved)), rate) if moved else 0


@settings(deadline=None, max_examples=40)
@given(traces(), paged(), st.data(), st.sampled_from(Duplex))
def test_a_faster_link_never_slows_a_paged_run(trace, how: Paged, data: st.DataObject, duplex: Duplex):  # type: ignore[no-untyped-def]
    tasks = TaskGraph.of(trace)
    budget = budgets(tasks, how, data)
    slow = data.draw(st.integers(1, 2 * GB))
    fast = data.draw(st.integers(slow, 4 * GB))
    slower, faster = (run(tasks, how, budget, on=node(out=at, back=at, duplex=duplex)) for at in (slow, fast))
    assert all(map(int.__le__, lasted(faster), lasted(slower)))


@settings(deadline=None, max_examples=50)
@given(traces(streams=3), paged(), st.data())
def test_several_streams_respect_the_budget_and_their_times_add_up(trace, how: Paged, data: st.DataObject):  # type: ignore[no-untyped-def]
    tasks = TaskGraph.of(trace)
    budget = budgets(tasks, how, data)
    result = run(tasks, how, budget)
    for memory in result.timeline.device_memories:
        assert memory.used.max() <= budget
    for iteration in range(3):
        start, end = result.timeline.window(iteration)
        parts = breakdown(result.timeline, iteration)
        assert parts.total == end - start
        busy = [s for s in result.timeline if s.kind is SpanKind.COMPUTE and s.iteration == iteration]
        assert sum(s.end_ns - s.start_ns for s in busy) == sum(tasks.durations)


def test_several_gpus_are_refused():
    tasks = two_blocks()
    code = on_demand(lower(tasks, Placement()), SINGLE)
    (segment,) = code.segments
    second = {stream._replace(gpu=1): instructions for stream, instructions in segment.streams.items()}
    both = replace(code, segments=(replace(segment, streams={**segment.streams, **second}),))
    with pytest.raises(ProgramError, match="one GPU"):
        run_program(both, tasks, replace(node(), gpus=2), budget=None)
