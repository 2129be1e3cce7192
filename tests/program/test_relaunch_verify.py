"""Programs with recomputed blocks, each broken in one place: `verify` names the mistake.

Then programs broken at random: those that `verify` accepts read the right values under any timing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    H2D,
    HOST,
    Acquire,
    Await,
    Copy,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import BlockKind
from tests.program.test_verify_mutations import mutants, replayed
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel
from tests.semantics.random_traces import encoded_graphs, mixed_placements, repeatable_traces
from tests.semantics.random_training import trainings

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)

# F1: x -> a; BN: a -> b with saved statistics s and running statistics r; F3: b -> c; then backward.
TASKS = graph(
    [
        kernel("F1", 1, "x", "a"),
        kernel("BN", 1, "a r", "b s r", pure=False, op="batch_norm"),
        kernel("F3", 1, "b", "c"),
        kernel("odd", 1, "c", "d", pure=None),
        kernel("B3", 1, "c d", "g3", phase=BACKWARD),
        kernel("B2", 1, "a b s g3", "g2", phase=BACKWARD),
        kernel("B1", 1, "x a g2", "g1", phase=BACKWARD),
    ],
    [held("x", 4), held("r", 2), *(block(name, 8) for name in ("a", "b", "s", "c", "d", "g3", "g2", "g1"))],
)
X, R, A, B, S, C, D, G1 = (TASKS.block(name) for name in ["x", "r", "a", "b", "s", "c", "d", "g1"])
BN, F3, ODD, B2 = (TASKS.kernel(name) for name in ["BN", "F3", "odd", "B2"])
#: a is swapped, b is recomputed from it.
PLACEMENT = Placement((Swap(A, BN, B2, B2),), recomputes=(Recompute(B, F3, B2),))
LEGAL = lower(TASKS, PLACEMENT)


def code_of(stream: StreamId) -> list[Instruction]:
    return list(LEGAL.segments[0].streams[stream])


def refused(edited: dict[StreamId, Sequence[Instruction]], *words: str) -> None:
    """The legal program with other code on some streams is refused, with a message that contains these words."""
    streams = {**LEGAL.segments[0].streams, **{stream: tuple(code) for stream, code in edited.items()}}
    with pytest.raises(ProgramError) as caught:
        verify(Program((Segment(streams),), LEGAL.resident), TASKS)
    for word in words:
        assert word in str(caught.value)


AGAIN = Launch(BN, recompute=True, makes=(B,))


def without(code: Sequence[Instruction], *released: Instruction) -> list[Instruction]:
    assert all(each in code for each in released)
    return [each for each in code if each not in released]


def around(code: Sequence[Instruction], at: Instruction) -> int:
    return list(code).index(at)


def test_the_base_relaunch_program_is_legal():
    verify(LEGAL, TASKS)
    assert AGAIN in code_of(COMPUTE)
    # b is dropped after F3 and recomputed; both times its memory is acquired by a separate instruction.
    assert Release((B,)) in code_of(COMPUTE)
    assert code_of(COMPUTE)[around(code_of(COMPUTE), AGAIN) - 1] == Acquire((B,))


def test_a_relaunch_without_memory_for_its_output_is_refused():
    code = code_of(COMPUTE)
    del code[around(code, AGAIN) - 1]
    refused({COMPUTE: code}, "block b holds no device memory")


def test_a_missing_relaunch_is_refused():
    refused({COMPUTE: without(code_of(COMPUTE), AGAIN)}, "block b holds no value")


def replaced(*instead: Instruction) -> dict[StreamId, Sequence[Instruction]]:
    code = code_of(COMPUTE)
    at = around(code, AGAIN)
    return {COMPUTE: [*code[:at], *instead, *code[at + 1 :]]}


@pytest.mark.parametrize("built", [C, X, G1])
def test_a_relaunch_with_a_block_its_kernel_does_not_write_is_refused(built: int):
    name = TASKS.blocks[built].id
    wrong = Launch(BN, recompute=True, makes=(built,))
    refused(replaced(wrong), f"kernel BN does not make block {name} when it runs again")


@pytest.mark.parametrize("saved", [S, R])
def test_a_relaunch_with_batch_norm_statistics_as_output_is_refused(saved: int):
    wrong = Launch(BN, recompute=True, makes=(B, saved))
    refused(replaced(wrong), f"kernel BN does not make block {TASKS.blocks[saved].id} when it runs again")


def test_an_undeclared_relaunch_is_refused():
    refused(replaced(Launch(BN)), "kernel BN is launched a second time without being declared a recompute")


def test_a_relaunch_before_the_first_launch_is_refused():
    code = code_of(COMPUTE)
    at = around(code, Launch(BN))
    code[at:at] = [AGAIN]
    refused({COMPUTE: code}, "kernel BN is recomputed before it ran")


def test_a_relaunch_of_a_kernel_of_unknown_purity_is_refused():
    code = code_of(COMPUTE)
    at = around(code, Launch(ODD)) + 1
    code[at:at] = [Launch(ODD, recompute=True, makes=(D,))]
    refused({COMPUTE: code}, "kernel odd (op) is not known to be pure, it cannot be recomputed")


# F1 writes p and q with a workspace w; p is dropped after F2 and recomputed for B2. Only B1 reads q later.
PAIR = graph(
    [
        kernel("F1", 1, "x", "p q w"),
        kernel("F2", 1, "p q", "c"),
        kernel("B2", 1, "p c", "g2", phase=BACKWARD),
        kernel("B1", 1, "q g2", "g1", phase=BACKWARD),
    ],
    [held("x", 4), *(block(name, 8) for name in ("p", "q", "c", "g2", "g1")), block("w", 99, kind=BlockKind.WORKSPACE)],
)
P, Q, G2, PAIR_G1, W = (PAIR.block(name) for name in ["p", "q", "g2", "g1", "w"])


def pair(
    again: Sequence[int], makes: tuple[int, ...], *, drops: tuple[int, ...], gives: tuple[int, ...] = (W,)
) -> Program:
    """`drops` are released after F2; before B2, F1 is recomputed with memory for `again`, then `gives` are released."""
    c = PAIR.block("c")
    code = [
        *(Acquire((P, Q, W)), Launch(0), Release((W,)), Acquire((c,)), Launch(1), Release(drops)),
        *(Acquire(tuple(again)), Launch(0, recompute=True, makes=makes), Release(gives)),
        *(Acquire((G2,)), Launch(2), Release((P, c)), Acquire((PAIR_G1,)), Launch(3), Release((Q, G2, PAIR_G1))),
    ]
    return Program((Segment({COMPUTE: tuple(code)}),), (PAIR.block("x"),))


def test_a_relaunch_with_memory_for_all_its_outputs_is_legal():
    """q is resident, or acquired and recomputed as well."""
    verify(pair([P, W], (P,), drops=(P,)), PAIR)
    verify(pair([P, Q, W], (P, Q), drops=(P, Q)), PAIR)


@pytest.mark.parametrize("makes", [(P,), (P, Q)])
def test_a_relaunch_without_memory_for_its_workspace_is_refused(makes: tuple[int, ...]):
    drops = makes
    with pytest.raises(ProgramError, match=r"recompute F1 for .*: block w holds no device memory"):
        verify(pair(makes, makes, drops=drops, gives=()), PAIR)


def test_a_relaunch_without_memory_for_an_unused_output_is_refused():
    """F1 writes q again although no kernel reads it then."""
    with pytest.raises(ProgramError, match=r"recompute F1 for p .*: block q holds no device memory"):
        verify(pair([P, W], (P,), drops=(P, Q)), PAIR)


def test_a_release_of_memory_a_running_relaunch_may_write_is_refused():
    """d2h releases the workspace, which is no declared output, without waiting for the relaunch."""
    legal = pair([P, W], (P,), drops=(P,))
    (again,) = (each for each in legal.segments[0].streams[COMPUTE] if isinstance(each, Launch) and each.recompute)
    code = list(legal.segments[0].streams[COMPUTE])
    at = code.index(again)
    code[at : at + 2] = [Signal(0), again, Signal(2), Await(1)]
    streams = {COMPUTE: tuple(code), D2H: (Await(2), Release((W,)), Signal(1))}
    verify(Program((Segment(streams),), legal.resident), PAIR)
    streams[D2H] = (Await(0), Release((W,)), Signal(1))
    with pytest.raises(ProgramError, match="block w is released while compute may still be using it"):
        verify(Program((Segment(streams),), legal.resident), PAIR)


def test_a_block_released_before_its_second_reader_is_refused():
    """b is recomputed and released before B2 reads it."""
    code = code_of(COMPUTE)
    at = around(code, AGAIN) + 1
    code[at:at] = [Release((B,))]
    refused({COMPUTE: code}, "block b holds no")


def test_a_release_of_saved_statistics_before_a_relaunch_is_refused():
    code = code_of(COMPUTE)
    at = around(code, AGAIN)
    code[at:at] = [Release((S,))]
    refused({COMPUTE: code}, "block s holds no")


def test_an_input_fetched_after_the_relaunch_is_refused():
    """The wait for a's prefetch comes after the relaunch that reads a."""
    code = code_of(COMPUTE)
    at = around(code, AGAIN)
    (wait,) = (each for each in code[at - 3 : at] if isinstance(each, Await) and each.event == back_event())
    code.remove(wait)
    at = around(code, AGAIN)
    code[at + 1 : at + 1] = [wait]
    refused({COMPUTE: code}, "recompute BN for b (batch_norm)", "block a holds no value")


def back_event() -> int:
    (event,) = (each.event for each in code_of(H2D) if isinstance(each, Signal))
    return event


def test_an_input_without_a_wait_is_refused():
    refused({COMPUTE: without(code_of(COMPUTE), Await(back_event()))}, "block a")


def test_a_relaunch_with_an_unfetched_input_is_refused():
    refused({H2D: without(code_of(H2D), Copy(A, HOST, DEVICE))}, "block a")


def test_an_offload_before_its_block_is_written_is_refused():
    waits = [each for each in code_of(D2H) if isinstance(each, Await)]
    refused({D2H: without(code_of(D2H), *waits)}, "copy a from device to host", "block a")


def test_memory_for_a_fetch_acquired_before_the_offload_ends_is_refused():
    away = next(each.event for each in code_of(D2H) if isinstance(each, Signal))
    refused({COMPUTE: without(code_of(COMPUTE), Await(away))}, "block a")


def test_a_block_offloaded_twice_is_refused():
    code = code_of(D2H)
    at = around(code, Copy(A, DEVICE, HOST))
    code[at + 1 : at + 1] = [Release((A,))]
    refused({D2H: code}, "block a")


IN_PLACE = graph(
    [
        kernel("F1", 1, "x", "a"),
        kernel("relu", 1, "a", "a m"),
        kernel("B2", 1, "m", "g2", phase=BACKWARD),
        kernel("B1", 1, "x a g2", "g1", phase=BACKWARD),
    ],
    [held("x", 4), *(block(name, 8) for name in ("a", "m", "g2", "g1"))],
)


@pytest.mark.parametrize(
    ("again", "word"),
    [
        pytest.param([Launch(1, recompute=True, makes=(2,))], "finds a wrong version of block a", id="changed since"),
        pytest.param(
            [Launch(0, recompute=True, makes=(1,))], "finds a wrong version of block a", id="not all its writers"
        ),
        pytest.param(
            [Launch(0, recompute=True, makes=(1,)), Launch(1, recompute=True, makes=(2,))],
            "changes block a in place",
            id="as if it left alone what it changes",
        ),
    ],
)
def test_a_relaunch_with_an_input_changed_in_place_is_refused(again: list[Instruction], word: str):
    """a and m stay resident; relaunches must not corrupt a."""
    (segment,) = lower(IN_PLACE, Placement()).segments
    code = list(segment.streams[COMPUTE])
    at = code.index(Launch(2)) - 1
    code[at:at] = again
    with pytest.raises(ProgramError, match=word):
        verify(Program((Segment({COMPUTE: tuple(code)}),), (0,)), IN_PLACE)


@many
@given(st.data())
def test_what_verify_accepts_reads_the_right_values_under_any_timing(data: st.DataObject):
    graph = data.draw(encoded_graphs(of=st.one_of(repeatable_traces(), trainings(max_layers=4))))
    program = data.draw(mutants(lower(graph, data.draw(mixed_placements(graph)))))
    try:
        verify(program, graph)
    except ProgramError:
        return
    assert replayed(data, program, graph).wrong == []


@pytest.mark.slow
@many
@given(st.data())
def test_every_lowered_program_is_accepted_and_reads_the_right_values(data: st.DataObject):
    graph = data.draw(encoded_graphs(of=st.one_of(repeatable_traces(), trainings(max_layers=5))))
    program = lower(graph, data.draw(mixed_placements(graph)))
    verify(program, graph)
    assert replayed(data, program, graph).wrong == []
