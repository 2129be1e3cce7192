"""Each rule of `verify`, by a program that breaks only it; the message names the place and the block or kernel."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.program.instructions import (
    COMPUTE,
    DEVICE,
    HOST,
    Acquire,
    Copy,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
)
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from tests.semantics.hand_made import block, graph, held, kernel, program

OTHER = StreamId(0, "compute", 1)
W, A, B = range(3)
TASKS = graph(
    [
        kernel("make", 1, "w", "a"),
        kernel("change", 1, "a", "a"),
        kernel("use", 1, "a", "b"),
        kernel("step", 1, "b w", "w", pure=False),
    ],
    [held("w", 4), block("a", 8), block("b", 2)],
)
MAKE, CHANGE, USE, STEP = map(Launch, range(4))
ALONE: list[Instruction] = [Acquire((A,)), MAKE, CHANGE, Acquire((B,)), USE, Release((A,)), STEP, Release((B,))]


def refused(code: Sequence[Instruction], *words: str, resident: Sequence[int] = (W,)) -> None:
    """The program on the compute stream is refused with a message that contains all these words."""
    message = refusal({COMPUTE: code}, resident)
    for word in words:
        assert word in message


def refusal(streams: dict[StreamId, Sequence[Instruction]], resident: Sequence[int] = (W,)) -> str:
    with pytest.raises(ProgramError) as caught:
        verify(program(streams, resident), TASKS)
    return str(caught.value)


def edited(at: int, *instead: Instruction, cut: int = 1) -> list[Instruction]:
    """The legal program with `cut` instructions replaced, starting at `at`."""
    return [*ALONE[:at], *instead, *ALONE[at + cut :]]


def test_the_base_program_is_legal():
    verify(program({COMPUTE: ALONE}, [W]), TASKS)


# --- kernels ------------------------------------------------------------------------------------------------


def test_a_missing_kernel_is_refused():
    refused(edited(6), "kernel step is never launched")


def test_a_kernel_launched_twice_is_refused():
    refused(edited(1, MAKE, MAKE, cut=1), "compute[2]", "kernel make", "second time")


def test_a_declared_recompute_is_legal():
    verify(program({COMPUTE: edited(1, MAKE, Launch(0, recompute=True))}, [W]), TASKS)


def test_a_recompute_before_the_first_launch_is_refused():
    refused(edited(1, Launch(0, recompute=True), MAKE), "compute[1]", "kernel make is recomputed before it ran")


def test_a_recompute_of_an_impure_kernel_is_refused():
    refused(edited(6, STEP, Launch(3, recompute=True)), "compute[7]", "kernel step", "pure")


def test_a_recompute_of_a_kernel_of_unknown_purity_is_refused():
    tasks = graph([kernel("k", 1, "", "a", pure=None)], [block("a", 1)])
    code = [Acquire((0,)), Launch(0), Launch(0, recompute=True), Release((0,))]
    with pytest.raises(ProgramError, match=r"compute\[2\].*kernel k.*pure"):
        verify(program({COMPUTE: code}), tasks)


def test_a_recompute_of_an_older_version_than_its_reader_needs_is_refused():
    """`make` recomputes version 1 of a, but `use` reads version 2."""
    refused(edited(2, CHANGE, Launch(0, recompute=True)), "kernel use finds a wrong version of block a")


def test_a_nonexistent_kernel_is_refused():
    with pytest.raises(ProgramError, match=r"compute\[1\]"):
        verify(program({COMPUTE: edited(1, Launch(9))}, [W]), TASKS)
    with pytest.raises(ProgramError, match=r"compute\[6\]"):
        verify(program({COMPUTE: edited(6, Launch(-1))}, [W]), TASKS)


def test_a_nonexistent_block_is_refused():
    with pytest.raises(ProgramError, match=r"compute\[0\]"):
        verify(program({COMPUTE: [Acquire((9,)), *ALONE, Release((9,))]}, [W]), TASKS)


# --- values -------------------------------------------------------------------------------------------------


def test_a_read_of_an_absent_block_is_refused():
    refused(edited(0), "compute[0]", "a holds no device memory")


def test_a_read_of_memory_without_a_value_is_refused():
    refused(edited(3, Release((A,)), Acquire((A, B))), "compute[5]", "block a holds no value")


def test_a_read_of_a_version_that_is_too_old_is_refused():
    refused(edited(2, ALONE[3], USE, CHANGE, cut=3), "compute[3]", "kernel use finds a wrong version of block a")


def test_a_read_of_a_version_that_is_too_new_is_refused():
    refused([ALONE[0], MAKE, CHANGE, Launch(1, recompute=True), *ALONE[3:]], "kernel change finds a wrong version", "a")


def test_kernels_in_the_wrong_order_are_refused():
    refused(edited(1, CHANGE, MAKE, cut=2), "compute[1]", "block a holds no value")


def test_a_write_into_an_absent_block_is_refused():
    refused(edited(3), "compute[3]", "block b holds no device memory")


def test_a_weight_that_is_not_resident_at_the_start_is_refused():
    refused(ALONE, "compute[1]", "block w holds no device memory", resident=())


def test_a_resident_block_that_is_not_persistent_is_refused():
    refused(ALONE, "block a is not persistent", resident=(W, A))


def test_a_block_that_is_resident_twice_is_refused():
    with pytest.raises(ProgramError, match="block w"):
        verify(program({COMPUTE: ALONE}, [W, W]), TASKS)


def test_a_host_initialization_of_a_kernel_output_is_refused():
    refused(edited(1, Initialize((A,)), MAKE), "compute[1]", "block a is made by a kernel")


def test_a_lost_weight_update_is_refused():
    """w is restored to its value before the step; the next iteration would read the old value."""
    code = [
        *(Acquire((W,), HOST), Copy(W, DEVICE, HOST), *ALONE),
        *(Release((W,)), Acquire((W,)), Copy(W, HOST, DEVICE), Release((W,), HOST)),
    ]
    refused(code, "block w holds an older value than its last when the iteration ends")


def test_writers_of_a_persistent_block_in_the_wrong_order_are_refused():
    """No kernel reads w after them, but the next iteration would start with the wrong value."""
    tasks = graph([kernel("first", 1, "", "w"), kernel("second", 1, "", "w")], [held("w", 4)])
    verify(program({COMPUTE: [Launch(0), Launch(1)]}, [0]), tasks)
    with pytest.raises(ProgramError, match="block w holds an older value"):
        verify(program({COMPUTE: [Launch(1), Launch(0)]}, [0]), tasks)


def test_a_lost_weight_value_is_refused():
    refused([*ALONE, Release((W,)), Acquire((W,))], "value", "block w")


# --- copies -------------------------------------------------------------------------------------------------

OUT = [Acquire((A,), HOST), Copy(A, DEVICE, HOST)]
BACK = [Release((A,)), Acquire((A,)), Copy(A, HOST, DEVICE), Release((A,), HOST)]


def test_an_offload_with_a_prefetch_is_legal():
    verify(program({COMPUTE: edited(2, CHANGE, *OUT, *BACK)}, [W]), TASKS)


def test_an_offload_before_its_source_is_written_is_refused():
    refused([ALONE[0], *OUT, MAKE, *ALONE[2:], Release((A,), HOST)], "compute[2]", "block a holds no value")


def test_an_offload_without_host_memory_is_refused():
    refused(edited(2, CHANGE, Copy(A, DEVICE, HOST)), "compute[3]", "block a holds no host memory")


def test_an_offload_of_an_absent_block_is_refused():
    refused([OUT[0], Copy(A, DEVICE, HOST), *ALONE], "compute[1]", "block a holds no device memory")


def test_a_prefetch_without_device_memory_is_refused():
    refused(
        edited(2, CHANGE, *OUT, Release((A,)), Copy(A, HOST, DEVICE)),
        "copy a from host to device",
        "block a holds no device memory",
    )


def test_a_prefetch_of_a_block_never_offloaded_is_refused():
    refused(
        edited(2, CHANGE, Acquire((A,), HOST), Copy(A, HOST, DEVICE)),
        "compute[4]",
        "block a holds no value in host memory",
    )


def test_a_prefetch_of_a_stale_host_copy_is_refused():
    """a is offloaded before `change` and fetched after it."""
    refused(edited(2, *OUT, CHANGE, *BACK), "kernel use finds a wrong version of block a")


# --- memory -------------------------------------------------------------------------------------------------


def test_a_use_after_release_is_refused():
    refused(edited(4, Release((A,)), USE, cut=2), "compute[5]", "block a holds no device memory")


def test_a_double_release_is_refused():
    refused(edited(5, Release((A,)), Release((A,))), "compute[6]", "block a holds no device memory")


def test_a_release_of_host_memory_never_acquired_is_refused():
    refused(edited(2, CHANGE, Release((A,), HOST)), "compute[3]", "block a holds no host memory")


def test_a_double_acquire_is_refused():
    refused(edited(0, Acquire((A,)), Acquire((A,))), "compute[1]", "block a already holds device memory")


def test_a_block_listed_twice_in_one_acquire_is_refused():
    refused(edited(0, Acquire((A, A))), "compute[0]", "block a already holds device memory")


def test_a_temporary_block_left_at_the_end_is_refused():
    refused(edited(7), "leaves block b in device memory at its end")


def test_a_persistent_block_lost_at_the_end_is_refused():
    refused([*ALONE, Release((W,))], "loses block w in device memory at its end")


def test_host_memory_left_at_the_end_is_refused():
    refused(edited(2, CHANGE, Acquire((A,), HOST)), "leaves block a in host memory at its end")


def test_a_segment_may_hand_memory_to_the_next():
    segments = (Segment({COMPUTE: tuple(ALONE[:4])}), Segment({COMPUTE: tuple(ALONE[4:])}))
    verify(Program(segments, (W,)), TASKS)


def test_a_repeated_segment_restores_memory():
    segments = (Segment({COMPUTE: tuple(ALONE[:4])}, repeat=2), Segment({COMPUTE: tuple(ALONE[4:])}))
    with pytest.raises(ProgramError, match="block a"):
        verify(Program(segments, (W,)), TASKS)


def test_a_kernel_larger_than_the_memory_is_out_of_memory_before_anything_runs():
    verify(program({COMPUTE: ALONE}, [W]), TASKS, capacity=12)
    with pytest.raises(OutOfMemoryError) as caught:
        verify(program({COMPUTE: ALONE}, [W]), TASKS, capacity=11)
    assert (caught.value.kernel, caught.value.requested, caught.value.capacity) == ("make", 12, 11)
    assert caught.value.holders == (("a", 8), ("w", 4))


def test_a_kernels_padding_counts_too():
    with pytest.raises(OutOfMemoryError):
        verify(program({COMPUTE: ALONE}, [W]), TASKS, capacity=31, alignment=16)


def test_a_message_shows_the_instruction_its_operator_and_the_lines_around():
    assert refusal({COMPUTE: edited(4, Release((A,)), USE, cut=2)}).splitlines() == [
        "compute[5], launch use (op): block a holds no device memory",
        "      acquire b",
        "      release a",
        "  --> launch use",
        "      launch step",
        "      release b",
    ]
