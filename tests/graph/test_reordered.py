"""Another order of the kernels: every kernel reads the values that it read, or the order is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.graph.reordered import Reordered, reordered
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.planning.listing import BY_PRIORITY, FRUGAL, NEWEST
from simgpu.planning.slot_planner import SlotPlanner
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.text import from_json, to_json
from simgpu.program.verify import verify
from simgpu.trace.check import check_trace
from simgpu.trace.model import RELEASED_AT_END, Block, Kernel, SavedTensor, Trace
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel
from tests.semantics.random_traces import traces
from tests.semantics.random_training import trainings

NODE = NodeSpec("bench", GpuSpec("gpu", 10**6), LinkSpec("link", 10**9, 10**9))

Value = tuple[object, ...]


def values_of(kernels: Sequence[Kernel], blocks: Sequence[Block]) -> tuple[dict[str, Value], dict[str, Value]]:
    """What each kernel reads, and what each block holds at the end, as terms. A kernel that is not pure draws a number
    from a generator, unless its operator is known to change its operands only."""
    held: dict[str, Value] = {block.id: ("initial", block.id) for block in blocks if block.persistent}
    read: dict[str, Value] = {}
    drawn = 0
    for each in kernels:
        held |= {block.id: ("host", block.id) for block in blocks if block.host_write == each.id}
        read[each.id] = tuple(held[name] for name in each.reads)
        if each.pure is not True and each.op not in ("conv2d", "relu", "add", "sgd"):
            read[each.id] = (*read[each.id], drawn)
            drawn += 1
        held |= {name: (each.id, name, hash(read[each.id])) for name in each.writes}
    return read, held


@settings(deadline=None)
@given(st.one_of(traces(max_kernels=12), trainings(max_layers=4)), st.data())
def test_every_kernel_reads_what_it_read_or_the_order_is_refused(trace: Trace, data: st.DataObject) -> None:
    count = len(trace.kernels)
    order = list(range(count))
    for at in data.draw(st.lists(st.integers(0, max(count - 2, 0)), max_size=6)):
        order[at : at + 2] = order[at : at + 2][::-1]
    tasks = TaskGraph.of(trace)
    try:
        changed = reordered(tasks, order)
    except ProgramError:
        return
    assert values_of(changed.kernels, changed.blocks) == values_of(trace.kernels, trace.blocks)
    assert not check_trace(changed.trace)
    assert changed.durations == tuple(tasks.durations[k] for k in order)
    assert [changed.layers.name_of(at) for at in range(count)] == [tasks.layers.name_of(k) for k in order]
    assert (changed.sizes, changed.ideal_ns()) == (tasks.sizes, tasks.ideal_ns())


@settings(deadline=None)
@given(
    st.one_of(traces(max_kernels=12), trainings(max_layers=4)),
    st.sampled_from([BY_PRIORITY, NEWEST, FRUGAL]),
    st.data(),
)
def test_list_scheduling_gives_orders_that_are_not_refused(trace: Trace, rule: int, data: st.DataObject) -> None:
    tasks = TaskGraph.of(trace)
    priorities = np.array(data.draw(st.permutations(range(len(trace.kernels)))), dtype=np.int64)
    order = tuple(SlotPlanner(tasks, NODE, 1).listed(rule, priorities).tolist())
    program = replace(lower(Reordered(order).apply(tasks), Placement()), transforms=(Reordered(order),))
    verify(program, tasks)
    assert from_json(to_json(program)) == program
    back = np.argsort(order)
    again = reordered(reordered(tasks, order), back.tolist())
    assert [each.id for each in again.kernels] == [each.id for each in tasks.kernels]


#: Two branches from y, and a kernel that draws random numbers in each.
BRANCHES = graph(
    [
        kernel("F", 10, "x", "y"),
        kernel("L", 10, "y", "l"),
        kernel("R", 10, "y", "r"),
        kernel("L'", 10, "l", "l", pure=None),
        kernel("R'", 10, "r", "r", pure=None),
        kernel("J", 10, "l r", "y", phase=BACKWARD),
    ],
    [
        held("x", 8),
        block("y", 8),
        block("l", 8),
        block("r", 8),
    ],
)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([1, 0, 2, 3, 4, 5], "kernel L before kernel F, which it must follow"),
        ([0, 1, 5, 2, 3, 4], "kernel J before kernel R"),
        ([0, 1, 2, 4, 3, 5], "kernel R' before kernel L', which it must follow"),
        ([0, 1, 2, 3, 4], "no permutation of the 6 kernels"),
        ([0, 0, 2, 3, 4, 5], "no permutation"),
    ],
    ids=["read after write", "write after read", "random numbers", "one missing", "one twice"],
)
def test_orders_that_break_a_dependency_are_refused(order: list[int], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        Reordered(tuple(order)).apply(BRANCHES)


def test_branches_may_run_one_after_the_other() -> None:
    changed = Reordered((0, 1, 3, 2, 4, 5)).apply(BRANCHES)
    assert [each.id for each in changed.kernels] == ["F", "L", "L'", "R", "R'", "J"]
    assert changed.uses[changed.block("l")] == (1, 2, 5)


def test_a_recorded_release_follows_the_last_use() -> None:
    tasks = graph(
        [kernel("A", 1, "", "a"), kernel("B", 1, "a", "b"), kernel("C", 1, "a", "c")],
        [replace(block("a", 8), release="C"), replace(block("b", 8), release=RELEASED_AT_END), block("c", 8)],
    )
    changed = reordered(tasks, [0, 2, 1])
    assert [each.release for each in changed.blocks] == ["B", RELEASED_AT_END, None]
    assert changed.recorded_releases[:2] == (2, None)


def test_a_batch_in_rounds_is_refused() -> None:
    with pytest.raises(ProgramError, match="the batch runs in rounds"):
        reordered(replace(BRANCHES, rounds=(Round(0, 3, 1), Round(3, 6, 1))), range(6))


def test_what_the_host_writes_is_there_before_any_kernel_uses_it() -> None:
    """B overwrites what the host wrote for A; before A, the host would overwrite the result of B."""
    tasks = graph(
        [kernel("A", 1, "x"), kernel("B", 1, "x", "s"), kernel("C", 1, "s")],
        [held("x", 8), block("s", 8, host_write="A")],
    )
    with pytest.raises(ProgramError, match="kernel B before kernel A"):
        reordered(tasks, [1, 0, 2])


def test_derived_layers_stay_those_of_the_recorded_order() -> None:
    recorded = [BRANCHES.layers.name_of(k) for k in range(6)]
    changed = Reordered((0, 2, 1, 3, 4, 5)).apply(BRANCHES)
    assert BRANCHES.layers.derived and recorded[1] != recorded[2]
    assert [changed.layers.name_of(at) for at in range(6)] == [recorded[k] for k in (0, 2, 1, 3, 4, 5)]


def test_what_lies_between_kernels_of_the_recorded_order_is_left_out() -> None:
    saved = SavedTensor("y", 8, packed_after="L", unpacked_before="J")
    tasks = replace(BRANCHES, trace=replace(BRANCHES.trace, saved=(saved,)))
    assert Reordered((0, 2, 1, 3, 4, 5)).apply(tasks).trace.saved == ()
