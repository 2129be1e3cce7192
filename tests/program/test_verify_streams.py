"""The rules of `verify` that need several streams: events, and races, found for any order of streams."""

from __future__ import annotations

import pytest

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
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from tests.program.test_verify_rules import ALONE, BACK, OUT, TASKS, A, W, refusal
from tests.semantics.hand_made import block, graph, held, kernel, program

OTHER = StreamId(0, "compute", 1)


def swapping(**without: bool) -> dict[StreamId, list[Instruction]]:
    """a is offloaded on d2h after `change` and fetched on h2d before `use`; events may be left out by name."""

    def unless(name: str, instruction: Instruction) -> list[Instruction]:
        return [] if without.get(name) else [instruction]

    return {
        COMPUTE: [*ALONE[:3], Signal(0), *unless("came_back", Await(2)), *ALONE[3:]],
        D2H: [*unless("changed", Await(0)), *OUT, Release((A,)), Signal(1)],
        H2D: [*unless("left", Await(1)), *BACK[1:], Signal(2)],
    }


def test_the_base_swap_program_is_legal():
    verify(program(swapping(), [W]), TASKS)


def test_an_event_that_is_never_signalled_is_refused():
    code = swapping()
    code[D2H].pop()
    assert "h2d[0], await 1: event 1 is never signalled" in refusal(code)


def test_an_event_signalled_at_two_places_is_refused():
    code = swapping()
    code[H2D].append(Signal(1))
    message = refusal(code)
    assert "h2d[5]" in message
    assert "signalled at a second place" in message


def test_a_deadlock_lists_the_cycle_of_streams_with_the_event_each_waits_for():
    """d2h and h2d wait for each other; compute waits for both and is not part of the cycle."""
    code = swapping()
    code[D2H].insert(0, Await(2))
    assert refusal(code).splitlines() == [
        "deadlock: 2 streams wait for each other",
        "h2d[0] waits for event 1, which is signalled at d2h[5]",
        "  --> await 1",
        "      acquire a",
        "      copy a from host to device",
        "d2h[0] waits for event 2, which is signalled at h2d[4]",
        "  --> await 2",
        "      await 0",
        "      acquire host a",
    ]


def test_a_stream_that_waits_for_its_own_later_event_is_a_deadlock():
    code = swapping()
    code[COMPUTE].insert(0, Await(0))
    assert refusal(code).splitlines() == [
        "deadlock: a stream waits for its own later event",
        "compute[0] waits for event 0, which is signalled at compute[4]",
        "  --> await 0",
        "      acquire a",
        "      launch make",
    ]


def test_an_event_of_a_later_segment_cannot_be_awaited():
    both = (Segment({COMPUTE: (Await(0), *ALONE[:4])}), Segment({COMPUTE: (Signal(0), *ALONE[4:])}))
    with pytest.raises(ProgramError) as caught:
        verify(Program(both, (W,)), TASKS)
    first = "segment 0, compute[0]: event 0 is signalled in segment 1, which begins only after this one"
    assert str(caught.value).splitlines()[0] == first


def test_an_event_cannot_be_awaited_from_the_future():
    code = swapping()
    code[COMPUTE][4] = Await(2, lag=-1)
    assert "compute[4]" in (message := refusal(code)) and "lag -1 is negative: give 0 or more" in message


def test_a_copy_that_does_not_wait_for_its_source_is_refused():
    message = refusal(swapping(changed=True))
    assert "d2h" in message
    assert "block a" in message


def test_a_prefetch_that_does_not_wait_for_its_offload_is_refused():
    message = refusal(swapping(left=True))
    assert "h2d" in message
    assert "block a" in message


def test_a_kernel_that_does_not_wait_for_the_prefetch_is_refused():
    message = refusal(swapping(came_back=True))
    assert "block a" in message


@pytest.mark.parametrize("names", [(COMPUTE, OTHER), (OTHER, COMPUTE)])
def test_a_missing_await_is_a_race_for_any_order_of_streams(names: tuple[StreamId, StreamId]):
    tasks = graph([kernel("write", 9, "", "w"), kernel("read", 1, "w")], [held("w", 1)])
    writer, reader = names
    good = {writer: [Await(1, lag=1), Launch(0), Signal(0)], reader: [Await(0), Launch(1), Signal(1)]}
    verify(program(good, [0]), tasks)
    for stream, position in ((reader, 0), (writer, 0)):
        bad = {name: list(code) for name, code in good.items()}
        del bad[stream][position]
        with pytest.raises(ProgramError, match="block w"):
            verify(program(bad, [0]), tasks)


def test_a_release_while_another_stream_may_read_is_refused():
    tasks = graph([kernel("make", 1, "", "a"), kernel("k1", 1, "a"), kernel("k2", 1, "a")], [block("a", 1)])
    code = {
        COMPUTE: [Await(1, lag=1), Acquire((0,)), Launch(0), Signal(0), Launch(1), Await(1), Release((0,))],
        OTHER: [Await(0), Launch(2), Signal(1)],
    }
    verify(program(code), tasks)
    del code[COMPUTE][5]
    with pytest.raises(ProgramError, match="block a"):
        verify(program(code), tasks)


def test_a_release_by_another_stream_while_a_kernel_may_read_is_refused():
    tasks = graph([kernel("make", 1, "", "a"), kernel("k1", 1, "a")], [block("a", 1)])
    code = {
        COMPUTE: [Acquire((0,)), Launch(0), Launch(1), Signal(0), Await(1)],
        OTHER: [Await(0), Release((0,)), Signal(1)],
    }
    verify(program(code), tasks)
    code[COMPUTE][2:4] = [Signal(0), Launch(1)]
    with pytest.raises(ProgramError, match=r"compute1\[1\].*block a is released while compute may still be using it"):
        verify(program(code), tasks)


def test_a_prefetch_over_a_block_a_kernel_may_read_is_refused():
    """The copy has the same value, but may be incomplete when the kernel reads."""
    tasks = graph([kernel("make", 1, "", "a"), kernel("use", 1, "a")], [block("a", 1)])
    code = {
        COMPUTE: [
            Acquire((0,)),
            Launch(0),
            *(Acquire((0,), HOST), Copy(0, DEVICE, HOST)),
            Launch(1),
            Signal(0),
            Await(1),
            Release((0,)),
        ],
        H2D: [Await(0), Copy(0, HOST, DEVICE), Release((0,), HOST), Signal(1)],
    }
    verify(program(code), tasks)
    code[COMPUTE][4:6] = [Signal(0), Launch(1)]
    with pytest.raises(ProgramError, match=r"h2d\[1\].*block a is overwritten while compute may still be using it"):
        verify(program(code), tasks)


def test_an_offload_over_a_host_copy_being_read_is_refused():
    tasks = graph([kernel("make", 1, "", "a")], [block("a", 1)])
    code = {
        COMPUTE: [
            Acquire((0,)),
            Launch(0),
            *(Acquire((0,), HOST), Copy(0, DEVICE, HOST)),
            Copy(0, HOST, DEVICE),
            Signal(0),
            Await(1),
            Release((0,)),
        ],
        D2H: [Await(0), Copy(0, DEVICE, HOST), Release((0,), HOST), Signal(1)],
    }
    verify(program(code), tasks)
    code[COMPUTE][4:6] = [Signal(0), Copy(0, DEVICE, HOST)]
    with pytest.raises(ProgramError, match=r"d2h\[1\].*block a is overwritten in host memory while compute may still"):
        verify(program(code), tasks)


def test_a_release_while_a_copy_may_read_is_refused():
    code = swapping()
    code[D2H].remove(Release((A,)))
    code[COMPUTE][4:4] = [Release((A,))]
    assert "block a" in refusal(code)


def test_an_acquire_while_another_stream_may_hold_the_memory_is_refused():
    """The release on d2h comes first in any round-robin walk, but nothing orders it before the acquire on h2d."""
    code = swapping()
    code[D2H].remove(Release((A,)))
    code[D2H].append(Release((A,)))
    message = refusal(code)
    assert "block a may still hold device memory" in message or "block a already holds" in message


def test_an_overwrite_while_another_stream_may_read_is_refused():
    tasks = graph([kernel("read", 9, "w"), kernel("write", 1, "", "w")], [held("w", 1)])
    code = {COMPUTE: [Await(1, lag=1), Launch(0), Signal(0)], OTHER: [Await(0), Launch(1), Signal(1)]}
    verify(program(code, [0]), tasks)
    del code[OTHER][0]
    with pytest.raises(ProgramError, match="block w"):
        verify(program(code, [0]), tasks)


def test_an_overwrite_while_an_offload_may_read_is_refused():
    code = {
        COMPUTE: [*ALONE[:2], Signal(0), *ALONE[2:6], Await(1), *ALONE[6:]],
        D2H: [Await(0), *OUT, Release((A,), HOST), Signal(1)],
    }
    assert "block a" in refusal(code)


def test_an_unfinished_copy_used_by_the_next_iteration_is_a_race():
    """d2h offloads w after the step, and no stream waits for it before the next iteration's step."""
    code = {
        COMPUTE: [*ALONE, Signal(0)],
        D2H: [Await(0), Acquire((W,), HOST), Copy(W, DEVICE, HOST), Release((W,), HOST), Signal(1)],
    }
    assert "block w" in refusal(code)
    verify(program({**code, COMPUTE: [Await(1, lag=1), *code[COMPUTE]]}, [W]), TASKS)


def test_races_between_repetitions_of_a_segment_are_refused():
    code = {
        COMPUTE: [*ALONE, Signal(0)],
        D2H: [Await(0), Acquire((W,), HOST), Copy(W, DEVICE, HOST), Release((W,), HOST), Signal(1)],
    }
    with pytest.raises(ProgramError, match="block w"):
        verify(program(code, [W], repeat=2), TASKS)


def test_a_second_segment_may_read_what_the_first_left_in_a_persistent_block():
    """Backward writes the gradient in one segment, the optimizer reads it in the next."""
    tasks = graph([kernel("backward", 1, "", "g"), kernel("step", 1, "g w", "w")], [held("g", 1), held("w", 1)])
    segments = (Segment({COMPUTE: (Launch(0),)}, repeat=3), Segment({COMPUTE: (Launch(1),)}))
    verify(Program(segments, (0, 1)), tasks)
