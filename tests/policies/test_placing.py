"""Placement vectors and the programs that they describe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from simgpu.graph.encodings import Encoding
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithEncodings, with_encodings
from simgpu.planning.options import KEEP, RECOMPUTE, SWAP, Action, Decisions, Option, fetch_kernel
from simgpu.policies.common.placing import actions_text, placement_of, program_of
from simgpu.program.instructions import COMPUTE, D2H, Acquire, Copy, Encode, Launch
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.program.verify import verify
from simgpu.trace.chain import chain
from tests.planning.evaluated import Case, cases
from tests.semantics.random_traces import DrawnCosts

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)
FIVE = TaskGraph.of(chain([1] * 5, [1] * 5, [10] * 5))
CHAIN = Decisions.of(FIVE)
X2, X3, X4 = (FIVE.block(name) for name in ("x2", "x3", "x4"))
#: Kernels F1 to F5 and B5 to B1 by position.
F2, F3, F4 = 1, 2, 3
B5, B4, B3, B2 = 5, 6, 7, 8


def test_action_numbers_match_the_paper():
    assert [int(action) for action in Action] == [0, 1, 2]
    assert CHAIN.options == ((KEEP, SWAP, RECOMPUTE),) * 3
    assert [each.block for each in CHAIN.maps] == [X2, X3, X4]


def test_keep_adds_no_swap_and_no_recompute():
    assert placement_of(FIVE, CHAIN, [0, 0, 0]) == Placement()


def test_a_swap_is_offloaded_with_its_last_reader_and_prefetched_one_layer_step_ahead():
    swaps = (Swap(X2, F2, B2, B3, out_with=F2), Swap(X4, F4, B4, B5, out_with=F4))
    assert placement_of(FIVE, CHAIN, [1, 0, 1]) == Placement(swaps)


def test_a_swap_that_is_not_early_is_offloaded_after_its_last_reader():
    assert placement_of(FIVE, CHAIN, [0, 1, 0], early=False) == Placement((Swap(X3, F3, B3, B4),))


def test_a_recomputed_block_is_released_in_the_same_gap():
    assert placement_of(FIVE, CHAIN, [0, 0, 2]) == Placement(recomputes=(Recompute(X4, F4, B4),))


def test_a_draining_fetch_is_marked():
    result = placement_of(FIVE, CHAIN, [1, 1, 0], drained=[True, False, True])
    assert [(swap.block, swap.drain) for swap in result.swaps] == [(X2, True), (X3, False)]


@pytest.mark.parametrize(("ahead", "fetch"), [(0, B2), (1, B3), (2, B4), (3, B5), (4, 4), (6, 2), (7, 2), (100, 2)])
def test_a_swap_several_layer_steps_ahead_is_never_fetched_before_its_last_reader_has_ended(ahead: int, fetch: int):
    decisions = CHAIN.with_options([[Option(Action.SWAP, ahead)], [], []])
    assert fetch_kernel(FIVE, F2, B2, ahead) == fetch
    assert placement_of(FIVE, decisions, [3, 0, 0]).swaps[0].fetch_with == fetch
    verify(program_of(FIVE, decisions, [3, 0, 0]), FIVE)


COSTED = replace(FIVE, costs=DrawnCosts({block.id: (4, 2, 3) for block in FIVE.blocks}))
ENCODED = CHAIN.with_options([[Option(Action.SWAP, 1, Encoding(each.block, "zvc"))] for each in CHAIN.maps])


def test_an_encoded_swap_copies_its_encoded_form_after_its_last_reader():
    encoded = with_encodings(COSTED, [Encoding(X2, "zvc"), Encoding(X4, "zvc")])
    forms = [encoded.block(name) for name in ("x2:zvc", "x4:zvc")]
    assert placement_of(encoded, ENCODED, [3, 0, 3]).swaps == (
        Swap(X2, F2, B2, B3, form=forms[0]),
        Swap(X4, F4, B4, B5, form=forms[1]),
    )


def test_a_program_contains_the_encoded_forms_of_its_vector():
    program = program_of(COSTED, ENCODED, [3, 1, 2])
    assert program.transforms == (WithEncodings((Encoding(X2, "zvc"),)),)
    code = program.segments[0].streams
    assert [each.block for each in code[COMPUTE] if isinstance(each, Encode)] == [X2]
    assert [each.block for each in code[D2H] if isinstance(each, Copy)] == [
        len(FIVE.blocks),
        X3,
    ]
    verify(program, COSTED)
    assert program_of(COSTED, ENCODED, [0, 1, 2]).transforms == ()


def test_a_vector_has_an_entry_for_each_activation():
    with pytest.raises(ValueError, match="argument"):
        placement_of(FIVE, CHAIN, [0, 0])


def test_the_actions_text_counts_activations_by_action():
    assert actions_text(CHAIN, [0, 1, 2]) == "3 feature maps: 1 kept, 1 swapped, 1 recomputed"
    assert actions_text(CHAIN, [0, 0, 0]) == "3 feature maps: 3 kept, 0 swapped, 0 recomputed"
    assert actions_text(ENCODED, [3, 3, 1]) == "3 feature maps: 0 kept, 1 swapped, 2 swapped encoded, 0 recomputed"


@many
@given(cases())
def test_every_vector_is_a_legal_program_that_runs_every_kernel_in_order(case: Case):
    graph, program = case.evaluator.graph, case.program
    verify(program, graph)
    code = program.segments[0].streams[COMPUTE]
    launches = [each for each in code if isinstance(each, Launch)]
    assert [each.kernel for each in launches if not each.recompute] == list(range(len(graph.kernels)))
    chosen = [options[n] for options, n in zip(case.evaluator.decisions.options, case.vector, strict=True)]
    dropped = any(option.action is Action.RECOMPUTE for option in chosen)
    assert any(each.recompute for each in launches) == dropped


@many
@given(cases())
def test_all_device_memory_is_taken_by_the_compute_stream(case: Case):
    """So no other stream can hold memory that it waits for."""
    for stream, code in case.program.segments[0].streams.items():
        for each in code:
            if isinstance(each, Acquire) and stream != COMPUTE:
                assert each.memory == "host"
