"""The order in which blocks are recomputed, and how long recomputed blocks stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import COMPUTE, Acquire, Launch, Signal
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.program.schedule import ComputeSchedule, schedule
from simgpu.program.verify import verify
from simgpu.trace.chain import chain
from simgpu.trace.model import Block, BlockKind, Kernel
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel


def dropped(tasks: TaskGraph, *names: str) -> Placement:
    """A placement that drops these blocks after forward and recomputes them for their next use."""
    return Placement(recomputes=tuple(gap(tasks, name) for name in names))


def gap(tasks: TaskGraph, name: str) -> Recompute:
    b = tasks.block(name)
    after = max(k for k in tasks.uses[b] if tasks.kernels[k].phase is not BACKWARD)
    before = tasks.next_use(b, after)
    assert before is not None
    return Recompute(b, after, before)


def swapped(tasks: TaskGraph, name: str, fetch_with: str) -> Swap:
    b, after, before = (result := gap(tasks, name)).block, result.after, result.before
    return Swap(b, after, before, tasks.kernel(fetch_with))


def planned(tasks: TaskGraph, placement: Placement) -> ComputeSchedule:
    births = [[b for b in writes if tasks.births[b] == k] for k, writes in enumerate(tasks.writes)]
    deaths = [[b for b, last in enumerate(tasks.needed_releases) if last == k] for k in range(len(tasks.kernels))]
    verify(lower(tasks, placement), tasks)
    return schedule(tasks, placement, births, deaths)


def order(tasks: TaskGraph, placement: Placement) -> list[str]:
    """Launches in order; a relaunch with the blocks it acquires (+), recomputes (=) and releases (-)."""

    def words(blocks: Sequence[int]) -> str:
        return " ".join(tasks.blocks[b].id for b in blocks)

    return [
        f"{tasks.kernels[step.kernel].id}: +{words(step.takes)} ={words(step.makes)} -{words(step.gives)}"
        if step.again
        else tasks.kernels[step.kernel].id
        for step in planned(tasks, placement).steps
    ]


FIVE = TaskGraph.of(chain([1] * 5, [1] * 5, [10] * 5))


def test_a_block_of_a_chain_is_recomputed_right_before_its_reader():
    assert order(FIVE, dropped(FIVE, "x3")) == [
        *("F1", "F2", "F3", "F4", "F5", "B5", "B4"),
        *("F2: +x3 =x3 -", "B3", "B2", "B1"),
    ]


def test_a_chain_is_recomputed_once_and_each_block_kept_until_its_use():
    """x2 and x3 are recomputed as ancestors of x4, and neither F1 nor F2 runs a third time."""
    assert order(FIVE, dropped(FIVE, "x2", "x3", "x4")) == [
        *("F1", "F2", "F3", "F4", "F5", "B5"),
        *("F1: +x2 =x2 -", "F2: +x3 =x3 -", "F3: +x4 =x4 -"),
        *("B4", "B3", "B2", "B1"),
    ]


def test_a_resident_ancestor_is_not_recomputed():
    assert order(FIVE, dropped(FIVE, "x2", "x4"))[6:] == ["F3: +x4 =x4 -", "B4", "B3", "F1: +x2 =x2 -", "B2", "B1"]


def test_a_block_last_used_by_the_next_kernel_can_still_be_an_ancestor():
    """x2 is computed from x1, whose last use is in B1, the last kernel."""
    assert order(FIVE, dropped(FIVE, "x2"))[-3:] == ["F1: +x2 =x2 -", "B2", "B1"]


def network(forward: Sequence[Kernel], backward: Sequence[Kernel], blocks: Sequence[Block]) -> TaskGraph:
    """Kernels of one layer each; x is resident from the beginning, a loss of zero bytes ends forward."""
    return graph([*forward, *backward], [held("x", 10, kind=BlockKind.INPUT), *blocks])


def back(name: str, reads: str) -> Kernel:
    return kernel(name, 1, reads, f"g.{name}", phase=BACKWARD)


def blocks(*names: str) -> list[Block]:
    return [block(name, 10) for name in names]


DIAMOND = network(
    [kernel("A", 1, "x", "a"), kernel("L", 1, "a", "l"), kernel("R", 1, "a", "r"), kernel("S", 1, "l r", "s")],
    [back("s", "s"), back("lr", "l r"), back("a", "a")],
    blocks("a", "l", "r", "s", "g.s", "g.lr", "g.a"),
)


def test_both_sides_of_a_diamond_share_their_ancestor():
    assert order(DIAMOND, dropped(DIAMOND, "a", "l", "r"))[5:] == [
        *("A: +a =a -", "L: +l =l -", "R: +r =r -", "lr", "a"),
    ]


def test_one_dropped_side_of_a_diamond_recomputes_only_that_side():
    assert order(DIAMOND, dropped(DIAMOND, "a", "r"))[5:] == ["A: +a =a -", "R: +r =r -", "lr", "a"]


PASSING = network(
    [kernel("A", 1, "x", "a"), kernel("L", 1, "a", "l"), kernel("R", 1, "a", "r"), kernel("S", 1, "l r", "s")],
    [back("s", "s"), back("lr", "r l"), back("l", "l")],
    blocks("a", "l", "r", "s", "g.s", "g.lr", "g.l"),
)


def test_an_ancestor_recomputed_for_several_readers_is_released_after_the_last():
    assert order(PASSING, dropped(PASSING, "l", "r"))[5:] == [
        *("A: +a =a -", "R: +r =r -", "L: +l =l -a", "lr", "l"),
    ]


def test_readers_recomputed_at_different_times_recompute_their_ancestor_twice():
    tasks = network(
        [kernel("A", 1, "x", "a"), kernel("L", 1, "a", "l"), kernel("R", 1, "a", "r"), kernel("S", 1, "l r", "s")],
        [back("s", "s"), back("r", "r"), back("l", "l")],
        blocks("a", "l", "r", "s", "g.s", "g.r", "g.l"),
    )
    assert order(tasks, dropped(tasks, "l", "r"))[5:] == [
        *("A: +a =a -", "R: +r =r -a", "r", "A: +a =a -", "L: +l =l -a", "l"),
    ]


def test_other_outputs_of_a_relaunch_are_released_at_once():
    tasks = network(
        [kernel("P", 1, "x", "p i"), kernel("Q", 1, "p i", "q"), kernel("S", 1, "q", "s")],
        [back("s", "s"), back("q", "q"), back("p", "p")],
        blocks("p", "i", "q", "s", "g.s", "g.q", "g.p"),
    )
    assert order(tasks, dropped(tasks, "p"))[5:] == ["P: +p i =p i -i", "p"]


def test_another_dropped_output_of_a_relaunch_is_kept_until_its_use():
    tasks = network(
        [kernel("P", 1, "x", "p i"), kernel("Q", 1, "p", "q"), kernel("S", 1, "q", "s")],
        [back("s", "s"), back("i", "i"), back("p", "p")],
        blocks("p", "i", "q", "s", "g.s", "g.i", "g.p"),
    )
    assert order(tasks, dropped(tasks, "p", "i"))[4:] == ["P: +p i =i p -", "i", "p"]


def test_a_relaunch_does_not_write_a_second_copy_of_a_resident_output():
    tasks = network(
        [kernel("P", 1, "x", "p i"), kernel("Q", 1, "p", "q"), kernel("S", 1, "q", "s")],
        [back("s", "s"), back("p", "p"), back("i", "i")],
        blocks("p", "i", "q", "s", "g.s", "g.i", "g.p"),
    )
    assert order(tasks, dropped(tasks, "p"))[4:] == ["P: +p =p -", "p", "i"]


def test_a_workspace_is_acquired_and_released_with_the_relaunch():
    tasks = network(
        [kernel("C", 1, "x", "c ws"), kernel("D", 1, "c", "d"), kernel("S", 1, "d", "s")],
        [back("s", "s"), back("c", "c")],
        [*blocks("c", "d", "s", "g.s", "g.c"), block("ws", 99, kind=BlockKind.WORKSPACE)],
    )
    assert order(tasks, dropped(tasks, "c"))[4:] == ["C: +c ws =c ws -ws", "c"]


def test_all_writers_of_a_block_run_again_and_its_memory_is_acquired_once():
    tasks = network(
        [kernel("C", 1, "x", "c"), kernel("relu", 1, "c", "c"), kernel("D", 1, "c", "d"), kernel("S", 1, "d", "s")],
        [back("s", "s"), back("c", "c")],
        blocks("c", "d", "s", "g.s", "g.c"),
    )
    assert order(tasks, dropped(tasks, "c"))[5:] == ["C: +c =c -", "relu: + =c -", "c"]


def test_an_output_changed_later_in_place_is_only_scratch_in_a_relaunch():
    """A relaunch of P alone does not restore the version of i that its readers need."""
    tasks = network(
        [kernel("P", 1, "x", "p i"), kernel("relu", 1, "i", "i"), kernel("Q", 1, "p i", "q"), kernel("S", 1, "q", "s")],
        [back("s", "s"), back("p", "p"), back("i", "i")],
        blocks("p", "i", "q", "s", "g.s", "g.i", "g.p"),
    )
    assert order(tasks, dropped(tasks, "p", "i"))[5:] == [
        *("P: +p i =p i -i", "p", "P: +p i =i p -p", "relu: + =i -", "i"),
    ]


def test_a_swapped_ancestor_keeps_its_prefetch_distance_to_the_relaunch():
    """x3 would be fetched with B4, a step before B3; x4 is recomputed from it before B4, so it is fetched with B5."""
    placement = Placement((swapped(FIVE, "x3", "B4"),), recomputes=(gap(FIVE, "x4"),))
    result = planned(FIVE, placement)
    (swap,) = placement.swaps
    assert result.needed == {swap: FIVE.kernel("B4")}
    fetching = [(FIVE.kernels[step.kernel].id, step.again) for step in result.steps if step.fetched]
    assert fetching == [("F3", True)]
    events = fetch_order(FIVE, placement)
    assert events.index("fetch x3") < events.index("B5") < events.index("F3 again") < events.index("B4")


def test_an_offloaded_output_of_a_relaunch_is_fetched_before_it():
    """P also writes i, so i needs memory by then, although no kernel reads it before backward's last one."""
    tasks = network(
        [kernel("P", 1, "x", "p i"), kernel("Q", 1, "p i", "q"), kernel("S", 1, "q", "s")],
        [back("s", "s"), back("p", "p"), back("i", "i")],
        blocks("p", "i", "q", "s", "g.s", "g.p", "g.i"),
    )
    placement = Placement((swapped(tasks, "i", "i"),), recomputes=(gap(tasks, "p"),))
    result = planned(tasks, placement)
    assert result.needed == {placement.swaps[0]: tasks.kernel("p")}
    assert [(tasks.kernels[step.kernel].id, step.again) for step in result.steps if step.fetched] == [("P", True)]


def test_a_prefetch_two_steps_ahead_stays_two_steps_ahead_of_the_relaunch():
    placement = Placement((swapped(FIVE, "x2", "B4"),), recomputes=(gap(FIVE, "x3"),))
    events = fetch_order(FIVE, placement)
    assert events.index("fetch x2") < events.index("B5") < events.index("B4") < events.index("F2 again")
    unneeded = fetch_order(FIVE, Placement((swapped(FIVE, "x2", "B4"),)))
    assert unneeded.index("B5") < unneeded.index("fetch x2") < unneeded.index("B4")


def fetch_order(tasks: TaskGraph, placement: Placement) -> list[str]:
    """Backward launches, and the positions at which the compute stream acquires memory for fetches."""
    code = lower(tasks, placement).segments[0].streams[COMPUTE]
    message = []
    for here, after in pairwise(code):
        if isinstance(here, Launch):
            message.append(tasks.kernels[here.kernel].id + (" again" if here.recompute else ""))
        elif isinstance(here, Acquire) and isinstance(after, Signal):
            message.append(f"fetch {tasks.blocks[here.blocks[0]].id}")
    return message


def refusal(tasks: TaskGraph, placement: Placement) -> str:
    with pytest.raises(ProgramError) as caught:
        lower(tasks, placement)
    return str(caught.value)


def test_an_impossible_recompute_is_refused_with_the_reason():
    assert "block x1 cannot be recomputed: no kernel writes it" in refusal(
        FIVE, Placement(recomputes=(Recompute(FIVE.block("x1"), 0, 9),))
    )


def test_a_block_is_not_recomputed_before_its_last_write():
    tasks = network(
        [kernel("C", 1, "x", "c"), kernel("D", 1, "x", "d"), kernel("relu", 1, "c", "c")],
        [back("c", "c d")],
        blocks("c", "d", "g.c"),
    )
    assert "kernel relu writes it later" in refusal(tasks, Placement(recomputes=(Recompute(1, 0, 2),)))


def test_a_recompute_between_two_backward_uses_is_refused():
    """A block's ancestors are only known to be available up to its first use after forward."""
    tasks = network(
        [kernel("C", 1, "x", "c"), kernel("D", 1, "c", "d")],
        [back("c", "c"), back("d", "d"), back("again", "c")],
        blocks("c", "d", "g.c", "g.d", "g.again"),
    )
    assert "not for kernel again" in refusal(tasks, Placement(recomputes=(Recompute(1, 2, 4),)))


def test_two_actions_for_one_gap_are_refused():
    once, x2 = swapped(FIVE, "x2", "B3"), gap(FIVE, "x2")
    assert "block x2 is swapped or recomputed twice after kernel 1" in refusal(FIVE, Placement((once, once)))
    assert "twice" in refusal(FIVE, Placement((once,), recomputes=(x2,)))
    assert "twice" in refusal(FIVE, Placement(recomputes=(x2, x2)))


@pytest.mark.parametrize("how", ["swap", "recompute"])
def test_an_offload_before_the_end_of_an_earlier_gap_is_refused(how: str):
    tasks = network(
        [kernel("C", 1, "x", "c"), kernel("D", 1, "c", "d"), kernel("E", 1, "d", "e"), kernel("F", 1, "c e", "f")],
        [back("f", "f"), back("c", "c")],
        blocks("c", "d", "e", "f", "g.f", "g.c"),
    )
    first = (Swap(1, 1, 3, 3),) if how == "swap" else ()
    again = (Recompute(1, 1, 3),) if how == "recompute" else ()
    for early in (1, 2, 3):
        placement = Placement((*first, Swap(1, 3, 5, 5, out_with=early)), recomputes=again)
        assert "issued before it has returned from an earlier gap" in refusal(tasks, placement)
    verify(lower(tasks, Placement((*first, Swap(1, 3, 5, 5)), recomputes=again)), tasks)


def test_a_layer_barrier_excludes_recomputation():
    assert "without a layer barrier" in refusal(FIVE, Placement((), True, (gap(FIVE, "x2"),)))
