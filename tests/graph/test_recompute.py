"""Which blocks can be recomputed, by which kernels, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simgpu.graph.recompute import Ancestry, Unrecomputable, unrecomputable
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Recompute
from simgpu.trace.model import Block, BlockKind, Kernel
from simgpu.trace.operators import purity, repeats_with_saved
from tests.semantics.hand_made import BACKWARD, OPTIMIZER, block, graph, held, kernel, run, times

F1 = kernel("F1", 1, "x w", "a")
F2 = kernel("F2", 1, "a", "b")
B1 = kernel("B1", 1, "a b", "g", phase=BACKWARD)
BASE: Sequence[Block] = [held("x", 4), held("w", 4), block("a", 8), block("b", 8), block("g", 8)]


def ancestry(kernels: Sequence[Kernel], more: Sequence[Block] = ()) -> tuple[TaskGraph, Ancestry]:
    """The graph of these kernels with the basic blocks that they use and further blocks."""
    used = {name for each in kernels for name in each.reads + each.writes}
    tasks = graph(kernels, [*(each for each in BASE if each.id in used), *more])
    return tasks, Ancestry(tasks)


def names(tasks: TaskGraph, blocks: Sequence[int]) -> list[str]:
    return [tasks.blocks[b].id for b in blocks]


def reason(kernels: Sequence[Kernel], name: str, *more: Block) -> str | None:
    tasks, result = ancestry(kernels, more)
    return result.why_not(tasks.block(name))


def test_an_output_of_a_pure_kernel_with_live_inputs_is_recomputable():
    assert reason([F1, F2, B1], "a") is None
    assert reason([F1, F2, B1], "b") is None


def test_a_block_that_no_kernel_writes_is_not_recomputable():
    assert reason([F1, F2, B1], "x") == "no kernel writes it"


def test_persistent_and_host_initialized_blocks_are_not_recomputed():
    changed = kernel("F0", 1, "x", "x")
    assert reason([changed, F1, F2, B1], "x") == "it is not computed in the iteration"
    given = block("m", 4, host_write="F1")
    masked = kernel("F3", 1, "m", "m")
    assert reason([F1, F2, masked, kernel("B1", 1, "a b m", "g", phase=BACKWARD)], "m", given) is not None


@pytest.mark.parametrize("op", ["dropout", "rand_like"])
def test_an_output_of_a_random_kernel_without_a_mask_is_not_recomputable(op: str):
    drop = kernel("F1", 1, "x", "a", pure=False, op=op)
    assert reason([drop, F2, B1], "a") == f"kernel F1 ({op}) is not known to be repeatable"


def test_a_block_is_recomputable_while_its_input_stays():
    drop = kernel("F1", 1, "x", "a", pure=False, op="dropout")
    assert reason([drop, F2, B1], "b") is None
    early = kernel("B1", 1, "b", "g", phase=BACKWARD)
    assert reason([drop, F2, early], "b") == "kernel F2 reads a, which is released by then and cannot be recomputed"


def test_an_output_of_a_kernel_of_unknown_purity_is_not_recomputable():
    assert reason([kernel("F1", 1, "x", "a", pure=None), F2, B1], "a") == (
        "kernel F1 (op) is not known to be repeatable"
    )


def test_a_batch_norm_without_saved_statistics_is_not_recomputable():
    alone = kernel("F1", 1, "x", "a", pure=False, op="batch_norm")
    assert "not known to be repeatable" in str(reason([alone, F2, B1], "a"))


def test_a_dropout_whose_mask_is_not_kept_is_not_recomputable():
    """A mask that only forward reads is released before the dropout's recompute would need it."""
    drop = kernel("F1", 1, "x", "a m", pure=False, op="dropout")
    look = kernel("F2", 1, "a m", "b")
    assert "not known to be repeatable" in str(reason([drop, look, B1], "a", block("m", 2)))


NORM = kernel("N", 1, "x w r", "a s r", pure=False, op="batch_norm")
NORM_BLOCKS = [block("s", 2), held("r", 2)]
NORM_BACK = kernel("B1", 1, "x a s w", "g", phase=BACKWARD)


def test_a_batch_norm_is_recomputed_from_saved_statistics_without_changing_running_ones():
    tasks, result = ancestry([NORM, NORM_BACK], NORM_BLOCKS)
    n, a = tasks.kernel("N"), tasks.block("a")
    assert result.why_not(a) is None
    assert names(tasks, result.inputs[n]) == ["x", "w", "s"]
    assert names(tasks, result.outputs[n]) == ["a"]
    assert names(tasks, result.reread[n]) == ["s"]


def test_saved_statistics_of_a_batch_norm_are_not_recomputable():
    assert reason([NORM, NORM_BACK], "s", *NORM_BLOCKS) == "kernel N (batch_norm) can only run again with it"


def test_an_in_place_dropout_is_recomputed_after_the_writer_of_its_input():
    drop = kernel("F2", 1, "a", "a m", pure=False, op="dropout_")
    tasks, result = ancestry([F1, drop, kernel("B1", 1, "a m", "g", phase=BACKWARD)], [block("m", 2)])
    a = tasks.block("a")
    assert result.writers[a] == (0, 1)
    assert result.why_not(a) is None
    assert names(tasks, result.inputs[1]) == ["a", "m"]


def test_both_outputs_of_a_pure_kernel_are_recomputable():
    pool = kernel("F1", 1, "x w", "a i")
    tasks, result = ancestry([pool, kernel("B1", 1, "a i", "g", phase=BACKWARD)], [block("i", 2)])
    assert [result.why_not(tasks.block(name)) for name in "ai"] == [None, None]
    assert names(tasks, result.outputs[0]) == ["a", "i"]


def test_a_kernel_that_changes_a_persistent_block_is_not_repeatable():
    counts = kernel("F1", 1, "x w", "a w")
    assert reason([counts, F2, B1], "a") == "kernel F1 (op) is not known to be repeatable"


def test_a_block_computed_from_an_overwritten_version_is_not_recomputable():
    relu = kernel("F3", 1, "a", "a")
    why = reason([F1, F2, relu, B1], "b")
    assert why == "kernel F2 reads a, which was overwritten since"


def test_a_block_computed_from_the_last_in_place_version_is_recomputable():
    relu = kernel("F3", 1, "a", "a")
    assert reason([F1, relu, F2, B1], "b") is None
    assert reason([F1, relu, F2, B1], "a") is None


def test_a_released_input_is_not_recomputable_if_its_own_input_is_released():
    late = kernel("B1", 1, "b", "g", phase=BACKWARD)
    tasks = graph([F1, F2, late], [held("x", 4, release="F1"), *BASE[1:]])
    why = "kernel F2 reads a, which is released by then and cannot be recomputed"
    assert Ancestry(tasks).why_not(tasks.block("b")) == why


def test_a_released_input_is_recomputed():
    assert reason([F1, F2, kernel("B1", 1, "b", "g", phase=BACKWARD)], "b") is None


def test_a_released_input_from_the_host_is_not_recomputable():
    tasks = graph([F1, F2, B1], [held("x", 4, release="F2"), *BASE[1:]])
    assert Ancestry(tasks).why_not(tasks.block("a")) == (
        "kernel F1 reads x, which is released by then and cannot be recomputed"
    )


STEP = kernel("S", 1, "g w", "w", phase=OPTIMIZER, pure=False)
STEP_IN_BACKWARD = kernel("S", 1, "w", "w", phase=BACKWARD, pure=False)


def test_a_weight_updated_after_backward_does_not_prevent_recompute():
    assert reason([F1, F2, B1, STEP], "a") is None


def test_a_weight_updated_before_the_next_use_prevents_recompute():
    assert reason([F1, F2, STEP_IN_BACKWARD, B1], "a") == "kernel F1 reads w, which was overwritten since"


def test_a_weight_updated_after_the_last_use_does_not_prevent_recompute():
    assert reason([F1, F2, B1, STEP_IN_BACKWARD], "a") is None


def test_a_weight_updated_by_the_reading_kernel_does_not_prevent_recompute():
    """The inputs of B1 are recomputed before B1 starts, and only then does B1 update w in place."""
    last = kernel("B1", 1, "a b w", "g w", phase=BACKWARD, pure=False)
    tasks, result = ancestry([F1, F2, last])
    a = tasks.block("a")
    assert result.why_not(a) is None
    again = Placement(recomputes=(Recompute(a, after=1, before=2),))
    assert times(run(lower(tasks, again), tasks)) == {"F1": (2, 3), "F2": (1, 2), "B1": (3, 4)}


def test_a_weight_updated_before_a_recompute_prevents_it():
    """a's own next use comes before the update, but b is recomputed from a after it."""
    first, last = kernel("B2", 1, "a", "g", phase=BACKWARD), kernel("B1", 1, "b g", "g", phase=BACKWARD)
    kernels = [F1, F2, first, STEP_IN_BACKWARD, last]
    assert reason(kernels, "a") == "kernel F1 reads w, which was overwritten since"


def test_blocks_overwritten_in_backward_prevent_recompute():
    reuse = kernel("R", 1, "", "a", phase=BACKWARD)
    assert reason([F1, F2, B1, reuse], "a") == "it is overwritten after forward"
    assert reason([F1, F2, B1, reuse], "b") == "kernel F2 reads a, which was overwritten since"


def test_a_recompute_allocates_a_new_workspace_that_is_no_output():
    with_space = kernel("F1", 1, "x w", "a ws")
    space = block("ws", 99, kind=BlockKind.WORKSPACE)
    tasks, result = ancestry([with_space, F2, B1], [space])
    assert result.why_not(tasks.block("a")) is None
    assert names(tasks, result.outputs[0]) == ["a", "ws"]


@pytest.mark.parametrize("op", ["aten::native_batch_norm", "cudnn_batch_norm", "BatchNorm2d", "native_dropout"])
def test_batch_norms_and_dropouts_repeat_with_their_saved_outputs(op: str):
    assert repeats_with_saved(op)


@pytest.mark.parametrize("op", ["native_batch_norm_backward", "dropout_backward", "layer_norm", "rand", "bernoulli_"])
def test_other_operators_do_not_repeat_with_saved_outputs(op: str):
    assert not repeats_with_saved(op)
    assert purity(op) is not False or op in ("rand", "bernoulli_")


def test_unrecomputable_bytes_are_attributed_to_the_preventing_operator():
    """Backward reads a to e, 8 B each, and s, 2 B. b would need a recomputed only after a's release; a is not released.
    d needs c, which is released by then and written by a kernel of unknown purity; F6 overwrites the input of e."""
    kernels = [
        kernel("F1", 1, "x", "a", pure=False, op="rand_like"),
        kernel("F2", 1, "a", "b"),
        kernel("F3", 1, "b", "c", pure=None, op="mine"),
        kernel("F4", 1, "c", "d"),
        kernel("F5", 1, "f", "e", op="copy"),
        kernel("F6", 1, "f", "f", op="relu_"),
        kernel("F7", 1, "d", "h s r", pure=False, op="batch_norm"),
        kernel("B1", 1, "a b d e f h s", "g", phase=BACKWARD),
    ]
    first = kernel("F0", 1, "x", "f")
    blocks = [*BASE, *(block(name, 8) for name in "cdefh"), block("s", 2), held("r", 2)]
    result = unrecomputable(graph([first, *kernels], [each for each in blocks if each.id != "w"]))
    assert result == Unrecomputable(
        saved=6 * 8 + 2,
        lost=3 * 8 + 2,
        by_operator=(
            ("mine", "purity unknown", 8),
            ("rand_like", "not repeatable", 8),
            ("relu_", "overwrites an input", 8),
            ("batch_norm", "reruns with it", 2),
        ),
    )
    assert result.text() == (
        "26 B of 50 B of saved activations: mine (purity unknown) 8 B, rand_like (not repeatable) 8 B, "
        "relu_ (overwrites an input) 8 B, 1 more 2 B"
    )


def test_a_kernel_that_changes_another_input_in_place_cannot_be_recomputed():
    fused = kernel("F2", 1, "a", "b a", op="fused_")
    tasks = graph([F1, fused, B1], BASE)
    assert unrecomputable(tasks).by_operator == (("fused_", "overwrites an input", 8),)


def test_a_block_with_a_released_input_is_attributed_to_no_operator():
    tasks = graph([F1, F2, B1], [held("x", 4, release="F2"), *BASE[1:]])
    assert unrecomputable(tasks).by_operator == (("", "", 8),)
    assert unrecomputable(tasks).text() == "8 B of 16 B of saved activations: released inputs 8 B"
