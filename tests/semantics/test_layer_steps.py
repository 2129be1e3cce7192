"""The layer step of vDNN: its begin and end, and the copies that overlap it."""

from __future__ import annotations

import pytest

from simgpu.errors import ProgramError
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel, node, run, times

LAYERED = graph(
    [
        kernel("f1", 10, "x", "y", layer="L1"),
        kernel("f1b", 10, "y", "y", layer="L1"),
        kernel("f2", 10, "y", "z", layer="L2"),
        kernel("f2b", 10, "z", "z", layer="L2"),
        kernel("f3", 10, "z", "u", layer="L3"),
        kernel("b3", 10, "z u", "gz", layer="L3", phase=BACKWARD),
        kernel("b2", 10, "y gz", "gy", layer="L2", phase=BACKWARD),
        kernel("b1", 10, "x gy", layer="L1", phase=BACKWARD),
    ],
    [held("x", 35), block("y", 25), block("z", 1), block("u", 1), block("gz", 1), block("gy", 1)],
)
X, Y = LAYERED.block("x"), LAYERED.block("y")
K = LAYERED.kernel


def moved(*swaps: Swap, **on: int) -> dict[str, tuple[int, int]]:
    return times(run(lower(LAYERED, Placement(swaps, layer_barrier=True)), LAYERED, node(**on)))


def test_a_step_is_a_sequence_of_kernels_of_one_layer_and_phase():
    steps = [[LAYERED.kernels[k].id for k in range(s.first, s.stop)] for s in LAYERED.layers.steps]
    assert steps == [["f1", "f1b"], ["f2", "f2b"], ["f3"], ["b3"], ["b2"], ["b1"]]


def test_a_layer_tag_that_recurs_is_a_separate_layer_step():
    tasks = graph([kernel(f"k{i}", 1, layer=tag) for i, tag in enumerate("ABBA")], [])
    assert [(s.first, s.stop) for s in tasks.layers.steps] == [(0, 1), (1, 3), (3, 4)]


def test_an_offload_begins_with_the_step_of_its_reader():
    assert moved(Swap(Y, K("f2"), K("b2"), K("b3")))["out:y"] == (20, 45)


def test_the_step_ends_when_its_kernels_and_its_transfers_have_ended():
    result = moved(Swap(X, K("f1"), K("b1"), K("b2")))
    assert result["out:x"] == (0, 35)
    assert (result["f1b"], result["f2"]) == ((10, 20), (35, 45))


def test_a_transfer_shorter_than_its_step_costs_nothing():
    assert moved(Swap(X, K("f1"), K("b1"), K("b2")), out=7 * 10**9, back=7 * 10**9)["b1"] == (70, 80)


def test_a_prefetch_overlaps_the_step_it_is_issued_with():
    result = moved(Swap(X, K("f1"), K("b1"), K("b2")))
    assert (result["b2"], result["in:x"], result["b1"]) == ((75, 85), (75, 110), (110, 120))


def test_transfers_of_one_step_run_in_turn_and_the_step_waits_for_all():
    result = moved(Swap(X, K("f1"), K("b1"), K("b3")), Swap(Y, K("f2"), K("b2"), K("b3")))
    assert (result["in:y"], result["in:x"]) == ((70, 95), (95, 130))
    assert result["b2"] == (130, 140)


def test_a_step_without_transfers_waits_for_nothing():
    result = moved()
    assert [result[k.id][0] for k in LAYERED.kernels] == list(range(0, 80, 10))


def test_vdnn_prefetches_during_the_step_before_the_first_backward_reader():
    result = simulate(chain([5] * 4, [5] * 4, [9] * 4), node(), "vdnn", iterations=1)
    outcome = {s.name: s.start_ns for s in result.timeline if s.label == "copy_h2d"}
    starts = {s.name: s.start_ns for s in result.timeline if s.label == "compute"}
    assert outcome == {"x3": starts["B4"], "x2": starts["B3"], "x1": starts["B2"]}


def test_vdnn_does_not_offload_a_block_between_adjacent_steps():
    result = simulate(chain([5], [5], [900]), node(), "vdnn")
    assert (result.iteration_ns, result.metrics.copied_bytes["d2h"]) == (10, 0)


def test_a_block_written_by_a_step_is_not_offloaded_with_it():
    tasks = graph(
        [kernel("a", 1, "", "x", layer="A"), kernel("b", 1, layer="B"), kernel("c", 1, "x", layer="C")], [block("x", 9)]
    )
    with pytest.raises(ProgramError, match=r"x.*still being written"):
        lower(tasks, Placement((Swap(0, 0, 2, 1),), layer_barrier=True))


def test_a_block_initialized_during_a_step_is_not_offloaded_with_it():
    """A block initialized at the second kernel of a step does not exist when the step begins."""
    tasks = graph(
        [
            kernel("a", 1, layer="A"),
            kernel("a2", 1, "x", layer="A"),
            kernel("b", 1, layer="B"),
            kernel("c", 1, "x", layer="C"),
        ],
        [block("x", 9, host_write="a2")],
    )
    with pytest.raises(ProgramError, match="swap of x"):
        lower(tasks, Placement((Swap(0, 1, 3, 2),), layer_barrier=True))


def test_vdnn_does_not_offload_a_block_initialized_during_its_readers_step():
    tasks = graph(
        [
            kernel("f1", 10, "", "y", layer="L1"),
            kernel("f1b", 10, "s", layer="L1"),
            kernel("f2", 10, "y", layer="L2"),
            kernel("b2", 10, "y", layer="L2", phase=BACKWARD),
            kernel("b1", 10, "s", layer="L1", phase=BACKWARD),
        ],
        [block("y", 4), block("s", 9, host_write="f1b")],
    )
    assert simulate(tasks.trace, node(), "vdnn").iteration_ns == 50


@pytest.mark.parametrize("fetch", ["f2", "f2b", "b2", "b1"])
def test_a_prefetch_outside_its_gap_is_refused(fetch: str):
    with pytest.raises(ProgramError, match="outside the gap"):
        lower(LAYERED, Placement((Swap(Y, K("f2"), K("b2"), K(fetch)),), layer_barrier=True))


def test_a_swap_across_another_use_is_refused():
    with pytest.raises(ProgramError, match="not consecutive uses"):
        lower(LAYERED, Placement((Swap(Y, K("f1b"), K("b2"), K("b3")),)))
