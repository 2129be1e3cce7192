"""Closed forms on chains (HOME, section 3.4 and figure 4), by the evaluator and by the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import run_program
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Decisions
from simgpu.policies.common.placing import program_of
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.program.verify import verify
from simgpu.trace.chain import chain
from tests.planning.evaluated import Case, iteration_ns, peak_of
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel, node

some = settings(deadline=None, max_examples=50)
AMPLE = 10**9
KEEP, SWAP, RECOMPUTE = range(3)


def case(tasks: TaskGraph, vector: Sequence[int], budget: int = AMPLE, *, early: bool = True, on: NodeSpec) -> Case:
    return Case(Evaluator(tasks, on, budget, Decisions.of(tasks), early=early, threads=1), tuple(vector))


def both(of: Case) -> int:
    """The step time, after asserting that evaluator and machine agree on it."""
    run = of.run()
    assert run is not None
    assert (iteration_ns(run), peak_of(run)) == (of.costs.time_ns[0], of.costs.peak[0])
    return iteration_ns(run)


@st.composite
def chains(draw: st.DrawFn, smallest: int = 3) -> tuple[list[int], list[int], list[int]]:
    count = draw(st.integers(smallest, 8))
    times = st.lists(st.integers(0, 100), min_size=count, max_size=count)
    return draw(times), draw(times), draw(st.lists(st.integers(1, 100), min_size=count, max_size=count))


@some
@given(chains())
def test_keeping_everything_takes_the_sum_of_the_kernels(of: tuple[list[int], list[int], list[int]]):
    tasks = TaskGraph.of(chain(*of))
    everything = case(tasks, [KEEP] * (len(of[0]) - 2), on=node())
    assert both(everything) == sum(of[0]) + sum(of[1])
    assert everything.costs.peak[0] == sum(of[2])


@some
@given(st.data(), chains())
def test_a_recomputed_block_costs_its_forward_kernel_once(
    data: st.DataObject, of: tuple[list[int], list[int], list[int]]
):
    """A dropped ancestor stays once it is recomputed, so it is not recomputed twice."""
    forward, backward, sizes = of
    tasks = TaskGraph.of(chain(forward, backward, sizes))
    again = data.draw(st.lists(st.booleans(), min_size=len(sizes) - 2, max_size=len(sizes) - 2))
    dropped = case(tasks, [RECOMPUTE if each else KEEP for each in again], on=node())
    # Entry i is for x(i+2), which F(i+1) writes.
    extra = sum(ns for ns, each in zip(forward, again, strict=False) if each)
    assert both(dropped) == tasks.ideal_ns() + extra
    assert dropped.costs.relaunched_ns[0] == extra
    assert sum(dropped.evaluator.overheads(dropped.vector)) == extra


@some
@given(chains(smallest=4), st.integers(1, 100), st.integers(1, 5), st.integers(0, 20))
def test_figure_4_a_swap_costs_the_part_of_its_copies_not_overlapped_by_kernels(
    of: tuple[list[int], list[int], list[int]], size: int, rate: int, latency: int
):
    """F(n) overlaps the offload of tensor n, whose memory F(n+1) needs; B(n+1) overlaps its prefetch for B(n).

    All tensors have one size and all but one fit, so F(n+1), which writes the last one, waits.
    """
    forward, backward, sizes = of
    count = len(sizes)
    tasks = TaskGraph.of(chain(forward, backward, [size] * count))
    n = count - 2
    where = node(out=10**9 * 2 // rate, back=10**9 // rate, latency=latency)
    out = latency + -(-size * 10**9 // where.link.d2h_bandwidth)
    back = latency + -(-size * 10**9 // where.link.h2d_bandwidth)
    vector = [SWAP if x == n else KEEP for x in range(2, count)]
    tight = case(tasks, vector, (count - 1) * size, on=where)
    assert forward[n - 1] == tasks.durations[n - 1]
    left = max(out - forward[n - 1], 0) + max(back - backward[n], 0)
    assert both(tight) == tasks.ideal_ns() + left
    assert tight.evaluator.overheads(vector)[n - 2] == left
    late = case(tasks, vector, (count - 1) * size, early=False, on=where)
    assert both(late) == tasks.ideal_ns() + out + max(back - backward[n], 0)
    assert case(tasks, vector, (count - 1) * size - 1, on=where).costs.short[0] == 1
    assert case(tasks, [KEEP] * (count - 2), (count - 1) * size, on=where).costs.short[0] == size


SIX = TaskGraph.of(chain([10] * 6, [50] * 6, [100] * 6))
SLOW = node(out=10**9, back=10**10)


def test_a_kernel_without_memory_waits_for_the_first_pending_offload():
    """x2 and x3 are offloaded one after the other, 100 ns each; F5 needs the memory of one, and x2's is free first.

    F2 begins at 10 and x2's offload ends at 110. F5 would begin at 40.
    """
    vector = [SWAP, SWAP, KEEP, KEEP]
    one = case(SIX, vector, 500, on=SLOW)
    assert one.evaluator.overheads(vector) == (70, 0, 0, 0)
    assert both(one) == 360 + 70


def test_with_less_memory_the_next_offload_is_waited_for_too():
    """Now F4, which would begin at 30, waits for x2 until 110, and F5 for x3, from 120 to 210."""
    vector = [SWAP, SWAP, KEEP, KEEP]
    two = case(SIX, vector, 400, on=SLOW)
    assert two.costs.short[0] == 0
    assert two.evaluator.overheads(vector) == (80, 90, 0, 0)
    assert both(two) == 360 + 80 + 90


def test_without_pending_offloads_the_error_names_the_missing_bytes():
    assert case(SIX, [SWAP, SWAP, KEEP, KEEP], 399, on=SLOW).costs.short[0] == 1
    assert case(SIX, [SWAP, SWAP, KEEP, KEEP], 399, on=SLOW).run() is None


def test_a_prefetch_waits_for_the_end_of_the_tensors_offload():
    """The back-flag rule: x5 is offloaded from 40 to 1040, and would be fetched with B6, at 60."""
    slow = node(out=10**8, back=10**9)
    vector = [KEEP, KEEP, KEEP, SWAP]
    waits = case(SIX, vector, on=slow)
    assert both(waits) == 360 + (1040 - 60) + (100 - 50)
    assert waits.evaluator.overheads(vector) == (0, 0, 0, 1030)


def test_draining_changes_nothing_on_a_chain():
    slow = node(out=10**8, back=10**9)
    vectors = list(product(range(3), repeat=4))
    of = Evaluator(SIX, slow, AMPLE, Decisions.of(SIX), threads=1)
    assert of.costs(vectors).time_ns.tolist() == replace(of, drain=True).costs(vectors).time_ns.tolist()


def test_a_draining_fetch_also_waits_for_later_offloads():
    """a's offload ends at 1010 and b's at 2010. a's fetch during c.back waits for its own, or, draining, for both.

    Then a.back runs, during b's fetch. Without draining, b's fetch waits until 2010, takes 100 ns, and b.back begins at
    2110; with draining, it begins when a's fetch has ended, and b.back 100 ns later.
    """
    tasks = graph(
        [
            kernel("A", 10, "x", "a", layer="1"),
            kernel("T", 10, "a", "t", layer="2"),
            kernel("B", 10, "t", "b", layer="3"),
            kernel("C", 10, "b", "c", layer="4"),
            kernel("c.back", 50, "c", "gc", layer="4", phase=BACKWARD),
            kernel("a.back", 50, "a gc", "ga", layer="1", phase=BACKWARD),
            kernel("b.back", 50, "b ga", "gb", layer="3", phase=BACKWARD),
        ],
        [held("x", 10), *(block(name, 100) for name in ("a", "b", "c", "t", "ga", "gb", "gc"))],
    )
    slow = node(out=10**8, back=10**9)
    plain = case(tasks, [SWAP, SWAP], on=slow)
    drained = Case(replace(plain.evaluator, drain=True), plain.vector)
    assert (both(plain), both(drained)) == (2160, 2260)


def swapped_early(kernels: int) -> Placement:
    """All six tensors are offloaded after their last use in forward and fetched `kernels` kernels early."""
    swaps = []
    for n in range(1, 7):
        b = EVEN.block(f"x{n}")
        after, before = EVEN.uses[b][-2:]
        swaps.append(Swap(b, after, before, max(after + 1, before - kernels)))
    return Placement(tuple(swaps))


EVEN = TaskGraph.of(chain([5] * 6, [10] * 6, [100] * 6))


@pytest.mark.parametrize(("kernels", "needed"), [(0, 200), (1, 200), (2, 300), (3, 400), (4, 500), (6, 600)])
@pytest.mark.parametrize("rate", [10**7, 10**9, 10**12])
def test_whether_a_plan_fits_does_not_depend_on_timing(kernels: int, needed: int, rate: int):
    """A kernel needs two tensors, plus one for each kernel that a fetch is early, up to all six."""
    program = lower(EVEN, swapped_early(kernels))
    verify(program, EVEN)
    where = node(out=rate, back=rate)
    run = run_program(program, EVEN, where, budget=needed, iterations=2)
    assert peak_of(run) == needed
    with pytest.raises(OutOfMemoryError):
        run_program(program, EVEN, where, budget=needed - 1, iterations=2)


@pytest.mark.parametrize("early", [True, False])
def test_the_smallest_budget_of_a_vector_does_not_depend_on_link_speed(early: bool):
    decisions = Decisions.of(EVEN)
    for vector in ([SWAP] * 4, [SWAP, RECOMPUTE] * 2, [RECOMPUTE, SWAP] * 2, [RECOMPUTE] * 4):
        budgets = set()
        for rate in (10**7, 10**9, 10**12):
            where = node(out=rate, back=rate)
            smallest = int(case(EVEN, vector, 0, early=early, on=where).costs.short[0])
            program = program_of(EVEN, decisions, vector, early=early)
            run_program(program, EVEN, where, budget=smallest, iterations=2)
            with pytest.raises(OutOfMemoryError):
                run_program(program, EVEN, where, budget=smallest - 1, iterations=2)
            budgets.add(smallest)
        assert len(budgets) == 1
