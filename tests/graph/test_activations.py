"""Which blocks a placement vector decides about, and the gaps in which they may be evicted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simgpu.graph.saved import SMALLEST_PART, Activation, activations
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.chain import chain
from simgpu.trace.model import Block, BlockKind, Kernel
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel


def maps(tasks: TaskGraph) -> dict[str, tuple[str, str, str | None]]:
    """By block id: the kernels before and after its gap, and the kernel that an offload may overlap."""
    kernels = tasks.kernels
    return {
        tasks.blocks[each.block].id: (
            kernels[each.after].id,
            kernels[each.before].id,
            None if each.out_with is None else kernels[each.out_with].id,
        )
        for each in activations(tasks)
    }


def layered(*more: Block, a: int = 80, middle: Sequence[Kernel] = ()) -> TaskGraph:
    """x -> a -> b -> c and backward; a's gap is from B to b.back."""
    kernels = [
        kernel("A", 1, "x", "a", layer="1"),
        kernel("B", 1, "a", "b", layer="2"),
        *middle,
        kernel("C", 1, "b", "c", layer="3"),
        kernel("c.back", 1, "c", "gc", layer="3", phase=BACKWARD),
        kernel("b.back", 1, "b gc", "gb", layer="2", phase=BACKWARD),
        kernel("a.back", 1, "a gb", "ga", layer="1", phase=BACKWARD),
    ]
    blocks = [held("x", 10, kind=BlockKind.INPUT), block("a", a), block("b", 80), block("c", 80)]
    gradients = [block(name, 80, kind=BlockKind.GRADIENT) for name in ("ga", "gb", "gc")]
    return graph(kernels, [*blocks, *gradients, *more])


def test_a_chain_has_an_activation_for_each_layer_input_but_the_first_and_last():
    tasks = TaskGraph.of(chain([1] * 5, [1] * 5, [10] * 5))
    assert maps(tasks) == {"x2": ("F2", "B2", "F2"), "x3": ("F3", "B3", "F3"), "x4": ("F4", "B4", "F4")}
    assert activations(tasks)[0] == Activation(tasks.block("x2"), 1, 8, 1)


def test_only_blocks_with_a_gap_between_forward_and_backward_are_activations():
    assert set(maps(layered())) == {"a", "b"}


def test_a_block_without_a_producing_kernel_is_no_activation():
    assert "x" not in maps(layered())


@pytest.mark.parametrize(
    "kind",
    [BlockKind.WEIGHT, BlockKind.GRADIENT, BlockKind.WORKSPACE, BlockKind.LABEL, BlockKind.OPTIMIZER_STATE],
)
def test_forward_outputs_of_other_kinds_are_no_activations(kind: BlockKind):
    built = kernel("M", 1, "a", "m", layer="2b")
    kernels = [*layered().kernels]
    kernels.insert(2, built)
    kernels[-1] = kernel("a.back", 1, "a gb m", "ga", layer="1", phase=BACKWARD)
    blocks = [*layered().blocks, block("m", 50, kind=kind)]
    if kind is BlockKind.WORKSPACE:
        kernels[-1] = kernel("a.back", 1, "a gb", "ga", layer="1", phase=BACKWARD)
    assert "m" not in maps(graph(kernels, blocks))


def test_a_mask_written_with_an_activation_is_an_activation():
    kernels = [*layered().kernels]
    kernels[1] = kernel("B", 1, "a", "b m", layer="2", op="dropout", pure=False)
    kernels[-2] = kernel("b.back", 1, "m b gc", "gb", layer="2", phase=BACKWARD)
    tasks = graph(kernels, [*layered().blocks, block("m", 50, kind=BlockKind.OTHER)])
    assert maps(tasks)["m"] == ("B", "b.back", None)


def test_a_block_that_only_forward_uses_is_no_activation():
    tasks = layered(block("t", 50), middle=[kernel("T", 1, "a", "t", layer="2"), kernel("U", 1, "t b", "b", layer="2")])
    assert "t" not in maps(tasks)


def test_an_offload_starts_with_the_last_readers_step_once_the_block_is_complete():
    """a's last reader is the second kernel of its step, after a kernel that changes a in place."""
    plain = layered(middle=[kernel("B2", 1, "a b", "b", layer="2")])
    assert maps(plain)["a"] == ("B2", "a.back", "B")
    changed = layered(middle=[kernel("B1", 1, "a", "a", layer="2"), kernel("B2", 1, "a b", "b", layer="2")])
    assert maps(changed)["a"] == ("B2", "a.back", "B2")
    last = layered(middle=[kernel("B1", 1, "a", "a", layer="2")])
    assert maps(last)["a"] == ("B1", "a.back", None)


@pytest.mark.parametrize(
    ("a", "saved", "counts"),
    [
        pytest.param(9_839, 1, True, id="the 10,000th part of all that is saved"),
        pytest.param(9_840, 1, False, id="less"),
        pytest.param(80, 0, False, id="nothing"),
    ],
)
def test_blocks_below_a_ten_thousandth_of_all_saved_bytes_are_ignored(a: int, saved: int, counts: bool):
    kernels = {each.id: each for each in layered().kernels}
    kernels["B"] = kernel("B", 1, "a", "b s", layer="2")
    kernels["b.back"] = kernel("b.back", 1, "s b gc", "gb", layer="2", phase=BACKWARD)
    tasks = graph([*kernels.values()], [*layered(a=a).blocks, block("s", saved)])
    assert SMALLEST_PART == 10_000
    assert ("s" in maps(tasks)) == counts


def test_activations_are_listed_in_order_of_production():
    tasks = TaskGraph.of(chain([1] * 6, [1] * 6, [10] * 6))
    assert list(maps(tasks)) == ["x2", "x3", "x4", "x5"]
