"""Regions of forward that run again: which kernels, what was saved inside, and what cannot be recomputed."""

from __future__ import annotations

import pytest

from simgpu.graph.recompute import Ancestry
from simgpu.graph.regions import Region, regions_of, rerun_of, saved_inside
from simgpu.graph.saved import Saved
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel

KERNELS = [
    kernel("f0", 1, "x", "u", layer="stem"),
    kernel("f1", 1, "u w", "v ws", layer="a.1"),
    kernel("f2", 1, "v", "v", layer="a.2"),
    kernel("f3", 1, "v", "y", layer="a.3"),
    kernel("f4", 1, "y", "z", layer="b.1"),
    kernel("f5", 1, "z", "l", layer="a.1"),
    kernel("b5", 1, "l z", "g5", layer="a.1", phase=BACKWARD),
    kernel("b4", 1, "y g5", "g4", layer="b.1", phase=BACKWARD),
    kernel("b3", 1, "v g4", "g3", layer="a.3", phase=BACKWARD),
    kernel("b1", 1, "u w g3", "g1", layer="a.1", phase=BACKWARD),
]
BLOCKS = [
    held("x", 1),
    held("w", 1, kind=BlockKind.WEIGHT),
    *(block(name, 1) for name in ("u", "v")),
    block("ws", 5, kind=BlockKind.WORKSPACE),
    *(block(name, 1) for name in ("y", "z", "l", "g5", "g4", "g3", "g1")),
]
TASKS = graph(KERNELS, BLOCKS)
SECTIONS = {"a.1": "a", "a.2": "a", "a.3": "a", "b.1": "b"}
A, B, AGAIN = Region("a", 1, 4), Region("b", 4, 5), Region("a", 5, 6)
B5, B4, B3, B1 = range(6, 10)
W, U, V, WS, Y = (TASKS.block(name) for name in ("w", "u", "v", "ws", "y"))


def rerun(tasks: TaskGraph, saved: list[Saved], held: tuple[int, ...] = ()):
    return rerun_of(tasks, Ancestry(tasks), A, saved, held, start=min(tensor.before for tensor in saved))


def test_an_interrupted_section_has_several_regions():
    assert regions_of(TASKS, SECTIONS) == (A, B, AGAIN)
    assert regions_of(TASKS, {"a.1": "a"}) == (Region("a", 1, 2), AGAIN)


@pytest.mark.parametrize(
    ("tensor", "place"),
    [
        (Saved(U, 1, 0, B1, 1), 0),  # read by a's first kernel, saved before it
        (Saved(V, 1, 2, B3, 3), 0),
        (Saved(Y, 1, 3, B4, 4), 1),  # made by a's last kernel, saved for b
        (Saved(Y, 1, 3, B3, 4), 0),  # the same, saved for a
        (Saved(W, 1, -1, B1, None), None),  # saved before all of forward: not in section a
    ],
)
def test_the_region_of_a_saved_tensor_follows_from_its_backward_kernel(tensor: Saved, place: int | None) -> None:
    result = saved_inside(TASKS, [A, B, AGAIN], SECTIONS, [tensor])
    assert [number for number, inside in enumerate(result) if inside] == ([] if place is None else [place])


def test_without_a_backward_kernel_the_next_reader_decides_the_region():
    """This is the case if backward kernels have no layer."""
    assert saved_inside(TASKS, [A, B], {"a.1": "a", "b.1": "b"}, [Saved(Y, 1, 3, B3, 4)])[1]
    assert saved_inside(TASKS, [A, B], {"a.1": "a", "b.1": "b"}, [Saved(V, 1, 3, B3, 4)])[0]


def test_a_region_runs_again_up_to_its_last_save_including_in_place_changes():
    result = rerun(TASKS, [Saved(U, 1, 0, B1, 1), Saved(V, 1, 2, B3, 3)])
    assert result == (((1, (V, WS)), (2, (V,))), frozenset(), ())


def test_a_block_held_anyway_is_not_recomputed():
    """f1 runs again without changing it; f2 would change it."""
    result = rerun(TASKS, [Saved(V, 1, 2, B3, 3), Saved(Y, 1, 3, B3, 4)], held=(V,))
    assert result == (((1, (WS,)), (3, (Y,))), frozenset({V}), (2,))


def test_a_block_changed_by_an_unrepeatable_kernel_is_not_recomputed():
    """f2 changes v in place: v is kept as written by f2, and f1 does not write it when it runs again."""
    kernels = [*KERNELS[:2], kernel("f2", 1, "v", "v", layer="a.2", pure=None), *KERNELS[3:]]
    result = rerun(graph(kernels, BLOCKS), [Saved(V, 1, 2, B3, 3), Saved(Y, 1, 3, B3, 4)])
    assert result == (((1, (WS,)), (3, (Y,))), frozenset({V}), (2,))


def test_a_region_with_an_input_changed_in_place_does_not_run_again():
    """f3 changes u in place after f1 has read it, so f1's output is kept."""
    kernels = [*KERNELS[:3], kernel("f3", 1, "v u", "y u", layer="a.3"), *KERNELS[4:]]
    reruns = rerun(graph(kernels, BLOCKS), [Saved(V, 1, 2, B3, 3)])
    assert reruns.retained == {V} and reruns.runs == ()


def test_a_kernel_that_changes_an_outside_block_does_not_run_again():
    kernels = [*KERNELS[:3], kernel("f3", 1, "v u", "y u", layer="a.3"), *KERNELS[4:]]
    tasks = graph(kernels, BLOCKS)
    reruns = rerun(tasks, [Saved(Y, 1, 3, B3, 4)])
    assert 3 in reruns.left_out and Y in reruns.retained
