"""Choosing convolution algorithms changes only durations and workspaces, in a new graph."""

from __future__ import annotations

import pytest

from simgpu.errors import ProgramError
from simgpu.graph.transforms import algorithm_choices, with_algorithms
from simgpu.trace.model import AlgorithmChoice, BlockKind
from tests.semantics.hand_made import block, graph, held, kernel

TASKS = graph(
    [
        kernel("plain", 50, "x", "y", op="conv2d"),
        kernel("scratch", 40, "y", "z ws", op="conv2d"),
        kernel("other", 30, "z", "u"),
    ],
    [held("x", 1), block("y", 2), block("ws", 100, kind=BlockKind.WORKSPACE), block("z", 3), block("u", 4)],
    algorithms=(
        AlgorithmChoice("scratch", "gemm", 60, 0),
        AlgorithmChoice("scratch", "fft", 20, 500),
        AlgorithmChoice("plain", "gemm", 60, 0),
        AlgorithmChoice("plain", "fft", 20, 500),
        AlgorithmChoice("plain", "tile", 20, 400),
    ),
)
PLAIN, SCRATCH = 0, 1


def workspace(tasks, k: int) -> dict[str, int]:
    """Workspace blocks that a kernel writes, with their bytes, except empty ones."""
    blocks = [(tasks.blocks[b], tasks.sizes[b]) for b in tasks.writes[k]]
    return {one.id: size for one, size in blocks if one.kind is BlockKind.WORKSPACE and size}


def test_choices_are_listed_from_fastest_to_slowest_less_workspace_first():
    result = algorithm_choices(TASKS)
    assert {k: [c.algorithm for c in choices] for k, choices in result.items()} == {
        PLAIN: ["tile", "fft", "gemm"],
        SCRATCH: ["fft", "gemm"],
    }


def test_a_kernel_has_the_duration_of_its_chosen_algorithm():
    assert with_algorithms(TASKS, {PLAIN: "fft"}).durations == (20, 40, 30)


def test_a_kernel_without_workspace_gets_one():
    chosen = with_algorithms(TASKS, {PLAIN: "fft"})
    assert workspace(chosen, PLAIN) == {"workspace:plain": 500}
    b = chosen.block("workspace:plain")
    assert (chosen.births[b], chosen.needed_releases[b], chosen.recorded_releases[b]) == (PLAIN, PLAIN, PLAIN)


def test_a_kernels_workspace_is_resized():
    assert workspace(with_algorithms(TASKS, {SCRATCH: "fft"}), SCRATCH) == {"ws": 500}


def test_an_algorithm_without_workspace_needs_none():
    assert workspace(with_algorithms(TASKS, {SCRATCH: "gemm"}), SCRATCH) == {}
    assert workspace(with_algorithms(TASKS, {PLAIN: "gemm"}), PLAIN) == {}


def test_kernels_without_a_choice_stay_as_recorded():
    chosen = with_algorithms(TASKS, {PLAIN: "fft"})
    assert (chosen.durations[SCRATCH], workspace(chosen, SCRATCH)) == (40, {"ws": 100})


def test_choosing_algorithms_does_not_change_the_old_graph():
    with_algorithms(TASKS, {SCRATCH: "gemm", PLAIN: "fft"})
    assert (TASKS.durations, len(TASKS.blocks), workspace(TASKS, SCRATCH)) == ((50, 40, 30), 5, {"ws": 100})


def test_ids_of_kernels_and_blocks_match_their_numbers_after_a_choice():
    chosen = with_algorithms(TASKS, {SCRATCH: "gemm", PLAIN: "fft"})
    assert [one.id for one in chosen.kernels] == [one.id for one in TASKS.kernels]
    assert [one.id for one in chosen.blocks[:5]] == [one.id for one in TASKS.blocks]


def test_the_order_in_which_algorithms_are_named_does_not_matter():
    both = graph(
        [kernel("k0", 5, "", "b", op="conv2d"), kernel("k1", 5, "b", op="conv2d")],
        [block("b", 1)],
        algorithms=(AlgorithmChoice("k0", "fft", 1, 10), AlgorithmChoice("k1", "fft", 1, 20)),
    )
    there, back = with_algorithms(both, {0: "fft", 1: "fft"}), with_algorithms(both, {1: "fft", 0: "fft"})
    assert [one.id for one in there.blocks] == [one.id for one in back.blocks]


def test_choosing_again_replaces_the_first_choice():
    twice = with_algorithms(with_algorithms(TASKS, {PLAIN: "fft"}), {PLAIN: "tile"})
    assert (twice.durations[PLAIN], workspace(twice, PLAIN)) == (20, {"workspace:plain": 400})


@pytest.mark.parametrize(("k", "name"), [(PLAIN, "winograd"), (2, "gemm")])
def test_an_unknown_algorithm_is_an_error_that_names_the_kernel(k: int, name: str):
    with pytest.raises(ProgramError, match=f"{TASKS.kernels[k].id}.*{name}"):
        with_algorithms(TASKS, {k: name})
