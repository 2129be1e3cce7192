"""A stream's instructions as numbers read like a tuple of them, and only plain instructions become numbers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.check import check_program
from simgpu.program.code import Code, CodeWriter, DoubtfulError, coded
from simgpu.program.instructions import (
    COMPUTE,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.opcodes import COPY, RELEASE
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.program.verify import verify
from simgpu.trace.chain import chain

number = st.integers(0, 2**31 - 1)
numbers = st.lists(number, max_size=4).map(tuple)
memory = st.sampled_from([DEVICE, HOST, "ssd", "cxl"])
acquire = st.builds(Acquire, numbers, memory) | numbers.map(lambda blocks: Acquire(blocks, offsets=blocks))
instruction = st.one_of(
    number.map(Launch),
    st.builds(Launch, number, st.just(True), numbers),
    st.builds(Copy, number, memory, memory, st.none() | number),
    acquire,
    st.builds(Release, numbers, memory),
    st.builds(Initialize, numbers, memory),
    st.builds(Encode, number, number, memory),
    st.builds(Decode, number, number, memory),
    number.map(Signal),
    st.builds(Await, number, number),
)
instructions = st.lists(instruction, max_size=30).map(tuple)


@given(instructions)
def test_code_reads_like_the_tuple_of_its_instructions(given_tuple: tuple[Instruction, ...]) -> None:
    code = coded(given_tuple)
    assert tuple(code) == given_tuple
    assert len(code) == len(given_tuple)
    assert code == given_tuple
    assert given_tuple == code
    assert hash(code) == hash(given_tuple)
    assert repr(code) == repr(given_tuple)
    assert [code[at] for at in range(len(code))] == list(given_tuple)
    assert code[1:-1] == given_tuple[1:-1]
    assert (*code, *code) == code + code == code * 2
    assert given_tuple + code == given_tuple * 2
    assert pickle.loads(pickle.dumps(code)) == code


@given(instructions, instructions)
def test_code_is_equal_where_its_instructions_are(one: tuple[Instruction, ...], other: tuple[Instruction, ...]) -> None:
    assert (coded(one) == coded(other)) == (one == other)
    assert coded(one) != list(one)


@given(instructions)
def test_code_is_the_same_when_it_is_written_in_small_parts(given_tuple: tuple[Instruction, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simgpu.program.code._PART", 2)
        in_parts = coded(given_tuple)
    assert tuple(in_parts) == given_tuple
    assert in_parts == coded(given_tuple)


def test_code_cannot_be_changed() -> None:
    code = coded((Launch(0), Release((1,))))
    for array in (code.rows, code.blocks):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


class Evict(Release):
    """An instruction that nothing knows."""


@pytest.mark.parametrize(
    "doubtful",
    [
        Evict((1,)),
        Launch(True),
        Launch(np.int64(1)),  # type: ignore[arg-type]
        Launch(2**31),
        Launch(1, recompute=1),  # type: ignore[arg-type]
        Launch(1, makes=(1,)),
        Acquire([1]),  # type: ignore[arg-type]
        Acquire((1.0,)),  # type: ignore[arg-type]
        Acquire((1,), offsets=[0]),  # type: ignore[arg-type]
        Release((1,), memory=1),  # type: ignore[arg-type]
        Copy(1, DEVICE, HOST, into=-1),
        Copy(1, DEVICE, HOST, into=False),
        Copy(1, DEVICE, 1),  # type: ignore[arg-type]
        Signal(2**40),
        Await(1, lag=None),  # type: ignore[arg-type]
        None,
    ],
    ids=repr,
)
def test_what_is_not_a_plain_instruction_does_not_become_numbers(doubtful: object) -> None:
    with pytest.raises(DoubtfulError):
        coded((Launch(0), doubtful))


def placements() -> list[Placement]:
    graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    x2 = graph.block("x2")
    swap = Swap(x2, after=1, before=4, fetch_with=3)
    return [Placement(), Placement((swap,)), Placement((swap,), True), Placement(recomputes=(Recompute(x2, 1, 4),))]


@pytest.mark.parametrize("placement", placements())
def test_a_lowered_program_and_its_instructions_have_the_same_columns(placement: Placement) -> None:
    graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    program = lower(graph, placement)
    plain = Program(
        tuple(Segment({stream: tuple(code) for stream, code in each.streams.items()}) for each in program.segments),
        resident=program.resident,
    )
    assert all(type(code) is Code for segment in program.segments for code in segment.streams.values())
    one, other = check_program(program, graph).columns, check_program(plain, graph).columns
    assert one is not None
    assert other is not None
    assert one.rows.tolist() == other.rows.tolist()
    assert one.blocks.tolist() == other.blocks.tolist()
    assert one.events.tolist() == other.events.tolist()
    assert plain == program


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (lambda w: w.launch(7), "kernel 7 is out of range: the graph has 2 kernels"),
        (lambda w: w.release((9,)), "block 9 is out of range"),
        (lambda w: w.acquire((1,), "ssd"), "block x1 holds no device memory"),
        (lambda w: w.wait(3), "event 3 is never signalled"),
        (lambda w: [w.signal(0), w.signal(0)], "event 0 is signalled at a second place"),
        (lambda w: w.copy(1, HOST, HOST), "copies from host memory to itself"),
        (lambda w: w.encode(0, 1), "is not an encoded form of block"),
        (lambda w: w.acquire((1,), offsets=(0, 1)), "offsets"),
    ],
    ids=["kernel", "block", "memory", "wait", "signal", "copy", "form", "offsets"],
)
def test_mistakes_in_numbers_are_reported_as_those_of_instructions(code, words: str) -> None:  # type: ignore[no-untyped-def]
    graph = TaskGraph.of(chain([5], [7], [100]))
    writer = CodeWriter()
    writer.launch(0)
    code(writer)
    written = writer.code()
    messages = []
    for each in (written, tuple(written)):
        with pytest.raises(Exception) as error:
            verify(Program((Segment({COMPUTE: each}),)), graph)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert words in messages[0]


def test_offsets_of_no_request_are_not_taken_for_those_of_another() -> None:
    """They stand for nothing: the instructions are what `Code` reads as."""
    graph = TaskGraph.of(chain([5], [7], [100]))
    program = lower(graph, Placement())
    code = program.segments[0].streams[COMPUTE]
    assert isinstance(code, Code)
    assert code[0] == Acquire((1,))
    odd = Code(code.rows, code.blocks, code.memories, code.ways, {-len(code): (0,)})
    checked = check_program(Program((Segment({COMPUTE: odd}),), resident=program.resident), graph)
    assert checked.columns is None


@pytest.mark.parametrize(
    "damaged",
    [
        Code(np.array([[99, 0, 0, 0]], dtype=np.int32), np.zeros(0, dtype=np.int32)),
        Code(np.array([[-1, 0, 0, 0]], dtype=np.int32), np.zeros(0, dtype=np.int32)),
        Code(np.array([[COPY, 0, 5, -1]], dtype=np.int32), np.zeros(0, dtype=np.int32)),
        Code(np.array([[RELEASE, 8, 0, 0]], dtype=np.int32), np.zeros(0, dtype=np.int32)),
    ],
    ids=["code", "negative code", "way", "memory"],
)
def test_numbers_that_stand_for_nothing_are_refused(damaged: Code) -> None:
    graph = TaskGraph.of(chain([5], [7], [100]))
    with pytest.raises(Exception, match="its contents cannot be read"):
        check_program(Program((Segment({COMPUTE: damaged}),)), graph)
