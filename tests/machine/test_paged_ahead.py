"""Pages that migrate ahead of need: closed forms on two or three kernels, and properties of any run.

At 1 GB/s a page of 128 B takes 128 ns each way; a fault costs 1000 ns before its first byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.analysis.breakdown import breakdown
from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex
from simgpu.machine.run import MachineRun, run_program
from simgpu.memory.chunks import Chunk, Reclaim, ResidentChunks, least_recently_used
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    H2D,
    HOST,
    Await,
    Copy,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.paging import Paged
from simgpu.program.placement import Placement
from simgpu.program.residency import on_demand, with_prefetches
from simgpu.program.verify import verify
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Trace
from tests.machine.test_paged import IN, OUT, SINGLE, budgets, paged
from tests.semantics.hand_made import block, graph, held, kernel, node, outcome, program, times
from tests.semantics.random_traces import traces

PAGE, FAULT = 128, 1000
X, Y, Z = range(3)


def run(code: Program, tasks: TaskGraph, budget: int, *, iterations: int = 1, **more: Any) -> MachineRun:
    verify(code, tasks, capacity=budget)
    on = more.pop("on", node())
    return run_program(code, tasks, on, budget=budget, iterations=iterations, **more)


def three_blocks(first: int, *, pages: int = 1) -> TaskGraph:
    """k1 uses x, k2 uses z. In memory for x and y, z begins on the host."""
    sizes = {"x": PAGE, "y": pages * PAGE, "z": pages * PAGE}
    return graph([kernel("k1", first, "x"), kernel("k2", 20, "z")], [held(name, size) for name, size in sizes.items()])


def hinted(*hints: Instruction, how: Paged = SINGLE) -> Program:
    """k1 and k2, and hints that begin with k1, on a copy stream."""
    stream = H2D if isinstance(hints[0], Copy) and hints[0].dst == DEVICE else D2H
    streams = {COMPUTE: (Signal(0), Launch(0), Launch(1)), stream: (Await(0), *hints)}
    return program(streams, [X, Y, Z], residency=how)


FETCH_Z, EVICT_Y = Copy(Z, HOST, DEVICE), Copy(Y, DEVICE, HOST)


# --- prefetches ---------------------------------------------------------------------------------------------


@given(st.integers(1, 600))
def test_a_kernel_waits_exactly_for_the_rest_of_a_prefetch(first: int):
    """y leaves, then z arrives, while k1 computes; k2 does not fault."""
    result = run(hinted(FETCH_Z), three_blocks(first), 2 * PAGE)
    begin = max(first, 2 * PAGE)
    assert times(result) == {
        "k1": (0, first),
        "out:y": (0, PAGE),
        "in:z": (PAGE, 2 * PAGE),
        "k2": (begin, begin + 20),
    }
    waits = [(s.label, s.start_ns, s.end_ns) for s in result.timeline if s.kind.is_stall and s.stream == "compute"]
    assert waits == ([("stall_event", first, begin)] if begin > first else [])
    assert result.notes == ("128 B prefetched in the last iteration",)


def test_a_prefetch_that_begins_with_its_kernel_comes_before_its_faults():
    tasks = graph([kernel("k1", 10, "z"), kernel("k2", 20, "x")], [held(name, PAGE) for name in "xyz"])
    assert times(run(hinted(FETCH_Z), tasks, 2 * PAGE))["k1"] == (2 * PAGE, 2 * PAGE + 10)


def test_without_the_prefetch_the_kernel_faults():
    code = program({COMPUTE: (Launch(0), Launch(1))}, [X, Y, Z], residency=SINGLE)
    assert times(run(code, three_blocks(300), 2 * PAGE))["k2"][0] == 300 + FAULT + 2 * PAGE


@given(st.integers(1, 9), st.integers(0, 40))
def test_chunks_leave_while_others_arrive(pages: int, latency: int):
    """The link's latency counts once for each direction, as chunks follow each other."""
    result = run(hinted(FETCH_Z), three_blocks(10**6, pages=pages), (1 + pages) * PAGE, on=node(latency=latency))
    out, back = ([(s.start_ns, s.end_ns) for s in result.timeline if s.label == label] for label in (OUT, IN))
    first = latency + PAGE
    assert out[0] == (0, first) and back[0] == (first, first + latency + PAGE)
    # A chunk of y begins to leave when the chunk of z before begins to arrive.
    assert [begin for begin, _ in out[1:]] == [begin for begin, _ in back[:-1]]
    assert [begin for begin, _ in back[1:]] == [end for _, end in back[:-1]]
    assert back[-1][1] == 2 * latency + (pages + 1) * PAGE


def test_a_prefetch_of_a_new_block_makes_room_for_its_first_value():
    """Without it, the first value faults, as memory is full."""
    tasks = graph(
        [kernel("k1", 200, "x"), kernel("k2", 20, "x", "w")], [held("x", PAGE), held("y", PAGE), block("w", PAGE)]
    )
    plain = on_demand(lower(tasks, Placement()), SINGLE)
    assert times(run(plain, tasks, 2 * PAGE))["k2"][0] == 200 + FAULT + PAGE
    result = run(with_prefetches(plain, [[tasks.block("w")], []]), tasks, 2 * PAGE)
    assert times(result) == {"k1": (0, 200), "out:y": (0, PAGE), "k2": (200, 220)}


def test_a_kernel_faults_only_on_what_is_not_on_its_way():
    """z is on its way when k2 needs z and u: it waits for z, then faults on u alone."""
    blocks = [held(name, PAGE) for name in "xyzu"]
    tasks = graph([kernel("k1", 10, "x"), kernel("k2", 20, "z u")], blocks)
    code = hinted(FETCH_Z)
    result = run(replace(code, resident=(*code.resident, 3)), tasks, 2 * PAGE)
    assert times(result)["in:z"] == (PAGE, 2 * PAGE)
    # x, which was used longest ago, leaves for u.
    assert times(result)["out:x"] == (2 * PAGE + FAULT, 3 * PAGE + FAULT)
    assert times(result)["in:u"] == (3 * PAGE + FAULT, 4 * PAGE + FAULT)
    assert result.notes[0] == "1 pages in 1 batches of page faults in the last iteration"


def test_a_fault_comes_before_the_next_chunk_of_a_prefetch():
    """While four chunks of z arrive, k2 faults on u: its copies wait for the chunks that pass, not for those after."""
    sizes = {"x": PAGE, "y": 5 * PAGE, "z": 4 * PAGE, "u": PAGE}
    tasks = graph([kernel("k1", 10, "x"), kernel("k2", 20, "u")], [held(name, size) for name, size in sizes.items()])
    code = replace(hinted(FETCH_Z, how=replace(SINGLE, fault_latency_ns=150)), resident=(0, 1, 2, 3))
    result = run(code, tasks, 6 * PAGE)
    arrivals = sorted((s.start_ns, s.name) for s in result.timeline if s.label == IN)
    assert [name for _, name in arrivals] == ["z", "z", "u", "z", "z"]
    assert times(result)["k2"][0] == 4 * PAGE


def test_pages_that_the_host_has_written_cost_the_same_as_in_a_fault():
    result = run(hinted(FETCH_Z, how=replace(SINGLE, host_page_ns=500)), three_blocks(10), 2 * PAGE)
    assert times(result)["in:z"] == (500, 500 + PAGE)


def test_directions_of_a_link_that_exclude_each_other_take_turns():
    ample = {"budget": 4 * PAGE, "tasks": three_blocks(10**6, pages=3)}
    for on in (node(engines=1), node(duplex=Duplex.HALF)):
        result = run(hinted(FETCH_Z), on=on, **ample)
        assert max(s.end_ns for s in result.timeline if s.label == IN) == 2 * 3 * PAGE


# --- evictions ahead of need --------------------------------------------------------------------------------


def test_memory_of_a_block_evicted_ahead_is_free_when_it_has_left():
    """The first value of w then needs no fault; and z is fetched with no eviction on the way."""
    tasks = graph(
        [kernel("k1", 200, "x"), kernel("k2", 20, "x", "w")], [held("x", PAGE), held("y", PAGE), block("w", PAGE)]
    )
    streams = {COMPUTE: (Signal(0), Launch(0), Launch(1), Release((2,))), D2H: (Await(0), EVICT_Y)}
    result = run(program(streams, [X, Y], residency=SINGLE), tasks, 2 * PAGE)
    assert times(result) == {"k1": (0, 200), "out:y": (0, PAGE), "k2": (200, 220)}
    memory = result.timeline.memory("device")
    assert list(zip(memory.time_ns.tolist(), memory.used.tolist(), strict=True)) == [
        (0, 2 * PAGE),
        (PAGE, PAGE),
        (200, 2 * PAGE),
        (220, PAGE),
    ]
    assert result.notes == ("128 B evicted ahead of need in the last iteration",)


def test_a_kernel_waits_until_a_block_has_left_and_fetches_it_again():
    tasks = graph([kernel("k1", 10, "x"), kernel("k2", 20, "y")], [held("x", PAGE), held("y", PAGE), held("z", PAGE)])
    result = run(hinted(EVICT_Y), tasks, 2 * PAGE)
    assert times(result)["in:y"] == (PAGE + FAULT, 2 * PAGE + FAULT)


def test_evicting_what_is_not_there_does_nothing():
    result = run(hinted(Copy(Z, DEVICE, HOST)), three_blocks(300), 2 * PAGE)
    assert [s.name for s in result.timeline if s.label == OUT and s.start_ns < 300] == []


# --- the policy's hook --------------------------------------------------------------------------------------


def test_a_prefetch_that_may_evict_nothing_waits_for_the_end_of_kernels():
    """While k1 and k2 run, the policy lets nothing go; y leaves when k2 has ended, and k4 waits for the rest."""
    kernels = [kernel("k1", 100, "x"), kernel("k2", 50, "x"), kernel("k3", 50, "x"), kernel("k4", 20, "z")]
    tasks = graph(kernels, [held(name, PAGE) for name in "xyz"])

    def reclaim(residents: ResidentChunks) -> Chunk | None:
        z_in = residents.uses(Z) if residents.uses else 0
        return None if residents.for_prefetch and z_in >= 2 else least_recently_used(residents)

    streams = {COMPUTE: (Signal(0), *map(Launch, range(4))), H2D: (Await(0), FETCH_Z)}
    code = program(streams, [X, Y, Z], residency=SINGLE)
    result = run(code, tasks, 2 * PAGE, reclaim=reclaim, sees_future=True)
    assert times(result)["out:y"] == (150, 150 + PAGE)
    assert times(result)["k4"] == (150 + 2 * PAGE, 170 + 2 * PAGE)
    waits = [(s.label, s.start_ns, s.end_ns) for s in result.timeline if s.kind.is_stall and s.stream == "h2d"]
    assert waits == [("stall_device_memory", 0, 150), ("stall_event", 150, 150 + PAGE)]


def test_a_prefetch_for_which_nothing_may_leave_ends_when_no_kernel_is_under_way():
    """k2 awaits the prefetch, and then faults."""
    streams = {COMPUTE: (Signal(0), Launch(0), Await(1), Launch(1)), H2D: (Await(0), FETCH_Z, Signal(1))}
    code = program(streams, [X, Y, Z], residency=SINGLE)
    never = run(
        code,
        three_blocks(300),
        2 * PAGE,
        reclaim=lambda residents: None if residents.for_prefetch else least_recently_used(residents),
    )
    assert times(never)["k2"][0] == 300 + FAULT + 2 * PAGE


def test_next_uses_are_counted_in_kernels_and_end_with_the_last_one():
    """Of x, a and w, while k2 waits for w."""
    kernels = [kernel("k1", 10, "x", "a"), kernel("k2", 10, "a w"), kernel("k3", 10, "w")]
    tasks = graph(kernels, [held("x", PAGE), block("a", PAGE), held("w", PAGE)])
    seen: list[dict[int, int]] = []

    def reclaim(residents: ResidentChunks) -> Chunk:
        seen.append({chunk.block: residents.next_use(chunk) for chunk in residents.touched})
        return least_recently_used(residents)

    plain = on_demand(lower(tasks, Placement()), SINGLE)
    run(plain, tasks, 2 * PAGE, reclaim=reclaim, sees_future=True)
    # k1 evicts for a, when x and w are there; k2 for w. x is used next by the first kernel of the next iteration.
    assert seen == [{0: 0, 2: 1}, {0: 2, 1: 0}] or seen == [{2: 1, 0: 0}, {0: 2, 1: 0}]
    with pytest.raises(ProgramError, match="not declared clairvoyant"):
        run(plain, tasks, 2 * PAGE, reclaim=reclaim)


def farthest(residents: ResidentChunks) -> Chunk:
    """Belady's rule."""
    return max(residents.touched, key=residents.next_use)


@settings(deadline=None)
@given(st.integers(2, 9), st.data())
def test_beladys_rule_keeps_what_a_cycle_needs_first(blocks: int, data: st.DataObject):
    """In a cycle over n blocks, LRU misses all in memory for m; Belady's rule one of n - 1, for each of n - m."""
    memory = data.draw(st.integers(1, blocks - 1))
    names = [f"b{i}" for i in range(blocks)]
    tasks = graph([kernel(f"k{name}", 10, name) for name in names], [held(name, PAGE) for name in names])
    code, rounds = on_demand(lower(tasks, Placement()), SINGLE), blocks - 1
    fetched = []
    for reclaim in (least_recently_used, farthest):
        result = run(code, tasks, memory * PAGE, iterations=2 * rounds + 1, reclaim=reclaim, sees_future=True)
        fetched.append(sum(s.label == IN and s.iteration > rounds for s in result.timeline))
    assert fetched == [rounds * blocks, (blocks - memory) * blocks]


# --- any trace ----------------------------------------------------------------------------------------------


@st.composite
def hints(draw: st.DrawFn, tasks: TaskGraph, code: Program) -> Program:
    """Migrations of blocks at random kernels before their release, in both directions."""
    (compute,) = code.segments[0].streams.values()
    released: dict[int, int] = {}
    k = -1
    for each in compute:
        k += isinstance(each, Launch)
        if isinstance(each, Release):
            released |= dict.fromkeys(each.blocks, k)
    count = len(tasks.kernels)
    one = st.tuples(st.integers(0, count - 1), st.integers(0, len(tasks.sizes) - 1))
    ahead: list[list[int]] = [[] for _ in range(count)]
    for at, b in draw(st.lists(one, max_size=3 * count)):
        if b in code.resident or at <= released.get(b, -1):
            ahead[at].append(b)
    hinted = with_prefetches(code, ahead)
    (segment,) = hinted.segments
    back = draw(st.sets(st.integers(0, 3 * count)))
    moves = [
        Copy(each.block, each.dst, each.src) if isinstance(each, Copy) and place in back else each
        for place, each in enumerate(segment.streams[H2D])
    ]
    return replace(hinted, segments=(replace(segment, streams={**segment.streams, H2D: tuple(moves)}),))


def declining(residents: ResidentChunks) -> Chunk | None:
    """As DeepUM with a degree of 1."""
    for chunk in residents.arrived:
        if residents.next_use(chunk) > 1:
            return chunk
    return None if residents.for_prefetch else least_recently_used(residents)


@settings(deadline=None, max_examples=150)
@given(traces(), paged(), st.data(), st.sampled_from([least_recently_used, farthest, declining]))
def test_runs_with_hints_respect_memory_link_and_time(
    trace: Trace, how: Paged, data: st.DataObject, reclaim: Reclaim
) -> None:
    tasks = TaskGraph.of(trace)
    code = data.draw(hints(tasks, on_demand(lower(tasks, Placement(), recorded_lifetimes=True), how)))
    budget = budgets(tasks, how, data)
    on = node(engines=data.draw(st.integers(1, 2)), latency=3)
    results = [
        run(code, tasks, budget, on=on, iterations=3, reclaim=reclaim, sees_future=True, engine=engine)
        for engine in ("simpy", "compiled")
    ]
    assert outcome(results[0]) == outcome(results[1])
    result = results[0]
    assert max(curve.used.max() for curve in result.timeline.device_memories) <= result.high_water <= budget
    for iteration in range(3):
        start, end = result.timeline.window(iteration)
        assert end - start >= sum(tasks.durations)
        assert breakdown(result.timeline, iteration).total == end - start
    spans = list(result.timeline)
    assert Counter(s.name for s in spans if s.kind is SpanKind.COMPUTE) == {k.id: 3 for k in trace.kernels}
    moved = {label: sorted((s.start_ns, s.end_ns) for s in spans if s.label == label) for label in (OUT, IN)}
    ways = [sorted(moved[OUT] + moved[IN])] if on.gpu.copy_engines == 1 else list(moved.values())
    assert all(one[1] <= other[0] for way in ways for one, other in pairwise(way)), "two copies at once"
    # What has come was on the host before: from the start, or since it left. Resident blocks are never released.
    sizes = {tasks.blocks[b].id: tasks.sizes[b] for b in code.resident}
    total = {label: Counter[str]() for label in (OUT, IN)}
    for s in spans:
        if s.label in total:
            total[s.label][s.name] += s.bytes
    if how.write_back_clean:
        for name, size in sizes.items():
            assert -size <= total[OUT][name] - total[IN][name] <= size


@settings(deadline=None, max_examples=80)
@given(traces(streams=3), paged(), st.data())
def test_hints_that_nothing_awaits_next_to_several_streams_of_kernels(
    trace: Trace, how: Paged, data: st.DataObject
) -> None:
    """Two copy streams migrate blocks that are never released, in any order."""
    tasks = TaskGraph.of(trace)
    plain = on_demand(lower(tasks, Placement(), recorded_lifetimes=True), how)
    (segment,) = plain.segments
    move = st.builds(Copy, st.sampled_from(plain.resident or (0,)), st.just(HOST), st.just(DEVICE))
    moves = st.lists(move | move.map(lambda copy: Copy(copy.block, DEVICE, HOST)), max_size=8 if plain.resident else 0)
    streams = {**segment.streams, H2D: tuple(data.draw(moves)), D2H: tuple(data.draw(moves))}
    code = replace(plain, segments=(replace(segment, streams=streams),))
    budget = budgets(tasks, how, data)
    result = run(code, tasks, budget, iterations=3)
    assert outcome(run(code, tasks, budget, iterations=3)) == outcome(result)
    assert max(curve.used.max() for curve in result.timeline.device_memories) <= result.high_water <= budget
    for iteration in range(3):
        start, end = result.timeline.window(iteration)
        assert breakdown(result.timeline, iteration).total == end - start
    assert Counter(s.name for s in result.timeline if s.kind is SpanKind.COMPUTE) == {k.id: 3 for k in trace.kernels}


def lasts(code: Program, tasks: TaskGraph, budget: int) -> Sequence[int]:
    return run(code, tasks, budget, iterations=3).timeline.iteration_ends_ns


@settings(deadline=None, max_examples=50)
@given(traces())
def test_with_ample_memory_hints_change_no_time(trace: Trace) -> None:
    """Whatever is used is prefetched one kernel ahead; nothing has to move."""
    tasks = TaskGraph.of(trace)
    plain = on_demand(lower(tasks, Placement(), recorded_lifetimes=True), SINGLE)
    used = [[*dict.fromkeys((*tasks.reads[k], *tasks.writes[k]))] for k in range(len(tasks.kernels))]
    ample = 2 * sum(tasks.sizes) + PAGE
    assert lasts(with_prefetches(plain, [*used[1:], []]), tasks, ample) == lasts(plain, tasks, ample)


def test_a_segment_that_does_not_prefetch_is_that_of_um():
    tasks = three_blocks(10)
    plain = on_demand(lower(tasks, Placement()), SINGLE)
    (segment,) = plain.segments
    code = replace(plain, segments=(Segment({**segment.streams, H2D: ()}),))
    assert times(run(code, tasks, 2 * PAGE)) == times(run(plain, tasks, 2 * PAGE))
