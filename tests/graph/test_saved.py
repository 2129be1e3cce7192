"""Tensors saved by autograd, recorded or derived from the reads of backward; their readers and lifetimes."""

from __future__ import annotations

from dataclasses import replace

from simgpu.graph.saved import Saved, backward_ends, readers, saved_tensors
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import RELEASED_AT_END, BlockKind, SavedTensor
from tests.policies.networks import in_place, two_passes
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel

KERNELS = [
    kernel("f1", 1, "x w", "y", layer="one"),
    kernel("f2", 1, "y", "y", layer="act"),
    kernel("f3", 1, "y", "z", layer="two"),
    kernel("b3", 1, "z y", "gz", layer="two", phase=BACKWARD),
    kernel("b2", 1, "y gz", "gy", layer="act", phase=BACKWARD),
    kernel("b1", 1, "x w gy", "gw", layer="one", phase=BACKWARD),
]
BLOCKS = [
    held("x", 1),
    held("w", 2, kind=BlockKind.WEIGHT),
    *(block(name, 10) for name in ("y", "z")),
    *(block(name, 0) for name in ("gz", "gy", "gw")),
]
TASKS = graph(KERNELS, BLOCKS)
X, W, Y, Z = range(4)
F1, F2, F3, B3, B2, B1 = range(6)


# --- recorded -----------------------------------------------------------------------------------------------


def test_recorded_saved_tensors_are_used_unless_backward_never_reads_them():
    saved = (
        SavedTensor("w", 2, None, "b1", RELEASED_AT_END),
        SavedTensor("y", 5, "f2", "b2", "f3"),
        SavedTensor("y", 10, "f2", released_after="f3"),
        SavedTensor("z", 10, "f3", "b3"),
    )
    result = saved_tensors(graph(KERNELS, BLOCKS, saved=saved))
    assert result.recorded
    assert result.tensors == (Saved(W, 2, -1, B1, None), Saved(Y, 5, F2, B2, F3), Saved(Z, 10, F3, B3, F3))


def test_a_block_released_at_the_end_is_never_dropped():
    blocks = [replace(b, release=RELEASED_AT_END) if b.id == "z" else b for b in BLOCKS]
    saved = saved_tensors(graph(KERNELS, blocks, saved=(SavedTensor("z", 10, "f3", "b3"),)))
    assert saved.tensors == (Saved(Z, 10, F3, B3, None),)
    assert {each.dropped for each in saved_tensors(graph(KERNELS, blocks)).tensors if each.block == Z} == {None}


def test_a_block_initialized_by_the_host_is_not_saved_before_its_initialization():
    kernels = [kernel("f0", 1, "x", "v"), kernel("f1", 1, "v c", "y"), kernel("b1", 1, "y c", "g", phase=BACKWARD)]
    blocks = [held("x", 1), block("c", 4, host_write="f1"), *(block(name, 1) for name in ("v", "y", "g"))]
    saved = saved_tensors(graph(kernels, blocks, saved=(SavedTensor("c", 4, "f0", "b1", "f1"),)))
    assert saved.tensors[0].after == 1
    assert next(each.after for each in saved_tensors(graph(kernels, blocks)).tensors if each.block == 1) == 1


# --- derived ------------------------------------------------------------------------------------------------


def test_an_operator_saves_its_inputs_just_before_it_runs():
    """f1 writes y; f2 and f3 do not use it; f4 reads it, and so saves it after f3."""
    kernels = [
        kernel("f1", 1, "x", "y", layer="one"),
        kernel("f2", 1, "x", "u", layer="two"),
        kernel("f3", 1, "u", "v", layer="three"),
        kernel("f4", 1, "y v", "z", layer="four"),
        kernel("b4", 1, "y z", "g", layer="four", phase=BACKWARD),
    ]
    saved = saved_tensors(graph(kernels, [held("x", 1), *(block(name, 10) for name in "yuvzg")]))
    assert saved.tensors == (Saved(1, 10, 2, 4, 3), Saved(4, 10, 3, 4, 3))


def test_operators_save_inputs_before_and_outputs_after_they_run():
    """y is saved by the activation that changed it and by the layer that then reads it, both just before f3."""
    saved = saved_tensors(TASKS)
    assert not saved.recorded
    assert saved.tensors == (
        Saved(X, 1, -1, B1, None),
        Saved(W, 2, -1, B1, None),
        Saved(Y, 10, F2, B2, F3),
        Saved(Y, 10, F2, B3, F3),
        Saved(Z, 10, F3, B3, F3),
    )


def test_without_layer_tags_a_block_is_saved_after_its_last_use_in_the_same_forward_pass():
    """No block of the first pass is saved in the second, which has no layer tags."""
    tasks = TaskGraph.of(two_passes())
    assert all(each.after < each.before for each in saved_tensors(tasks).tensors)
    again = [each for each in saved_tensors(tasks).tensors if tasks.blocks[each.block].id.endswith("-again")]
    assert again and all(tasks.kernels[each.after].id.endswith("-again") for each in again)


def test_a_block_changed_in_place_later_is_saved_as_changed():
    tasks = TaskGraph.of(in_place())
    a = tasks.block("a")
    changed = max(k for k in tasks.uses[a] if a in tasks.writes[k])
    assert {each.after for each in saved_tensors(tasks).tensors if each.block == a} == {changed}


# --- readers ------------------------------------------------------------------------------------------------


def test_a_kernel_reads_the_last_fetched_copy_of_its_version():
    tensors = [
        Saved(Y, 10, F1, B3, F3),  # before it was changed: no kernel reads this version
        Saved(Y, 10, F2, B3, F3),
        Saved(Y, 10, F2, B2, F3),
        Saved(X, 1, -1, B1, None),
    ]
    assert readers(TASKS, tensors) == ((), (B3,), (B2,), (B1,))


def test_a_kernel_reads_all_copies_fetched_together():
    views = [Saved(Y, 4, F2, B3, F3), Saved(Y, 6, F2, B3, F3)]
    assert readers(TASKS, views) == ((B3, B2), (B3, B2))


def test_a_kernel_that_changes_a_block_reads_the_block_itself():
    kernels = [*KERNELS[:3], kernel("b3", 1, "z y", "y", layer="two", phase=BACKWARD), *KERNELS[4:5], KERNELS[5]]
    blocks = [*BLOCKS[:4], held("gz", 0), *BLOCKS[5:]]
    tasks = graph(kernels, blocks)
    assert readers(tasks, [Saved(Y, 10, F2, B3, F3)]) == ((),)


def test_an_operator_holds_all_its_saved_tensors_until_it_ends():
    taken = [Saved(W, 2, -1, B3, None), Saved(Y, 10, F2, B3, F3), Saved(Z, 10, F3, B3, F3), Saved(X, 1, -1, B2, None)]
    assert readers(TASKS, taken) == ((B1,), (B3, B2), (B3,), (B1,))
    assert backward_ends(TASKS, taken) == (B1, B1, B1, B1)
    assert backward_ends(TASKS, taken[1:]) == (B2, B2, B1)
