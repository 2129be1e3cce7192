"""The allowed contents of a program, checked alike by `verify` and by the machine: no object passes only one of
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.run import run_program
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    HOST,
    HOST_CORES,
    INSTRUCTIONS,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    InitialContents,
    Initialize,
    Launch,
    Program,
    Release,
    Section,
    Segment,
    Signal,
)
from simgpu.program.paging import Paged
from simgpu.program.placement import Placement
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from tests.program.test_verify_rules import ALONE, TASKS, A, B, W
from tests.semantics.hand_made import node, program


def verified(code: Program) -> None:
    verify(code, TASKS)


def executed(code: Program) -> None:
    run_program(code, TASKS, node(), budget=1000)


both = pytest.mark.parametrize("check", [verified, executed])


def refusal(check: Callable[[Program], None], code: Any) -> str:
    with pytest.raises(ProgramError) as caught:
        check(code)
    return str(caught.value)


class Evict(Release):
    """An unknown instruction that the machine would treat as a release."""


class Changing(dict[StreamId, Any]):
    """A mapping that may return different contents on each access."""


@dataclass(frozen=True)
class Giving:
    """A transform that returns or raises a given object."""

    what: Any

    def apply(self, graph: TaskGraph) -> Any:
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what


FAR = StreamId(10**9, "compute")
SECTION = Section("first", ("conv",), 100, 5)


@dataclass(frozen=True, slots=True)
class Hint:
    block: int


@both
@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        (Evict((A,)), "Evict is not an instruction: use Release itself, its subclasses are refused"),
        (None, "None: a NoneType is not an instruction"),
        ("launch", "'launch': a str is not an instruction"),
        (Release, "a type is not an instruction"),
        (Hint(A), "Hint is not an instruction"),
    ],
)
def test_an_object_that_is_no_instruction_is_refused(check: Callable[[Program], None], unknown: Any, words: str):
    """At the end of the iteration, where a release seen only by the machine would make memory use negative."""
    message = refusal(check, program({COMPUTE: [*ALONE, unknown]}, [W]))
    assert message.startswith("compute[8]") and words in message


@both
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Launch(4), "kernel 4 is out of range: the graph has 4 kernels, from 0"),
        (Launch(-1), "kernel -1 is out of range"),
        (Launch(np.int64(2)), "kernel 2 is a numpy.int64, not an int: write int(...)"),
        (Launch(True), "kernel True is a bool, not an int"),
        (Launch("use"), "kernel 'use' is a str, not an int: graph.kernel('use') gives the number of a kernel"),
        (Launch(2.0), "kernel 2.0 is a float, not an int"),
        (Launch(2, recompute=1), "recompute 1 is an int, not a bool"),
        (Launch(0, True, (3,)), "block 3 is out of range: the graph has 3 blocks, from 0"),
        (Launch(0, makes=(A,)), "makes names blocks, and only a recompute has any"),
        (Acquire([B]), "blocks is a list, not a tuple"),
        (Acquire((np.int32(B),)), "block 2 is a numpy.int32, not an int: write int(...)"),
        (Acquire((B,), 3), "memory 3 is an int, not the name of a memory, such as device or host"),
        (Release((A,), "Host"), "memory 'Host' is not the name of a memory: names have two or more small letters"),
        (Copy(A, HOST, HOST), "it copies from host memory to itself"),
        (Acquire((B,), offsets=(0, 1)), "offsets (0, 1) are not one for each of its 1 blocks"),
        (Acquire((B,), offsets=(-1,)), "offset -1 is negative"),
        (Release(("a",)), "block 'a' is a str, not an int: graph.block('a') gives the number of a block"),
        (Release((-1,)), "block -1 is out of range"),
        (Initialize((7,)), "block 7 is out of range"),
        (Copy(9, DEVICE, HOST), "block 9 is out of range"),
        (Copy(A, DEVICE, HOST, B), "block b is not an encoded form of block a"),
        (Copy(None, HOST, DEVICE), "block None is a NoneType, not an int"),
        (Encode(A, B), "block b is not an encoded form of block a"),
        (Decode(A, 8), "form 8 is out of range"),
        (Signal(0.5), "event 0.5 is a float, not an int"),
        (Await(np.uint8(1)), "event 1 is a numpy.uint8, not an int: write int(...)"),
        (Await(1, -1), "lag -1 is negative"),
        (Await(1), "event 1 is never signalled"),
    ],
)
def test_an_instruction_field_of_wrong_type_or_range_is_refused(
    check: Callable[[Program], None], wrong: Any, words: str
):
    message = refusal(check, program({COMPUTE: [*ALONE, wrong]}, [W]))
    assert message.startswith("compute[8]") and words in message


@both
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resident": (9,)}, "resident: block 9 is out of range"),
        ({"resident": [W]}, "resident is a list, not a tuple"),
        ({"segments": (None,)}, "segment 0 is a NoneType, not a Segment"),
        ({"segments": (Segment({COMPUTE: tuple(ALONE)}, 0),)}, "segment 0: repeat 0 is not 1 or more"),
        ({"segments": (Segment({COMPUTE: list(ALONE)}),)}, "segment 0, compute: its instructions are a list"),
        ({"segments": (Segment({"compute": tuple(ALONE)}),)}, "stream 'compute' is a str, not a StreamId"),
        ({"segments": (Segment({StreamId(-1, "d2h"): ()}),)}, "gpu -1 is negative"),
        ({"other_contents": (InitialContents(DEVICE, (W,), 3),)}, "resident on GPU 3, which the program does not use"),
        ({"other_contents": ((None, (W,)),)}, "not an InitialContents"),
        ({"transforms": (7,)}, "its transforms (7,) cannot be applied"),
        ({"unlimited_memory": "no"}, "unlimited_memory 'no' is a str, not a bool"),
        ({"pool": "buddies"}, "pool 'buddies' is not known"),
        ({"residency": "paged"}, "residency 'paged' is not known"),
        ({"residency": Paged(np.int64(65536))}, "residency: page 65536 is a numpy.int64, not an int"),
        ({"segments": (Segment(Changing({COMPUTE: tuple(ALONE)})),)}, "streams is a tests.Changing, not a dict"),
        ({"segments": (Segment({StreamId(0, "copies"): tuple(ALONE)}),)}, "role 'copies' is not known: give compute,"),
        ({"segments": (Segment({D2H: tuple(ALONE)}),)}, "kernels do not run on a d2h stream: launch them on compute"),
        ({"segments": (Segment({COMPUTE: tuple(ALONE), FAR: ()}),)}, "GPU 1 has no stream, and GPU 1000000000 has"),
        ({"segments": (Segment({COMPUTE: tuple(ALONE)}, 10**9),)}, "executes more than 100000000 instructions"),
        ({"segments": (Segment({COMPUTE: tuple(ALONE)}), Segment({}, 10**9))}, "executes more than 100000000"),
        ({"segments": (Segment({COMPUTE: (object.__new__(Launch),)}),)}, "its contents cannot be read: AttributeError"),
        ({"transforms": (Giving(None),)}, "they give a NoneType, not a TaskGraph"),
        ({"transforms": (Giving(replace(TASKS, durations=(1,))),)}, "they give 1 durations, where there are"),
        ({"transforms": (Giving(replace(TASKS, sizes=(-1, 1, 1))),)}, "cannot be applied: sizes -1 is negative"),
        ({"transforms": (Giving(SystemExit(3)),)}, "cannot be applied: SystemExit: 3"),
        ({"notes": ("fine", 3)}, "notes[1]: 3 is an int, not a str"),
        ({"sections": [SECTION]}, "sections is a list, not a tuple"),
        ({"sections": (SECTION, "second")}, "sections[1]: 'second' is a str, not a Section"),
        (
            {"sections": (replace(SECTION, layers=("conv", 3)),)},
            "layers ('conv', 3) is not a tuple of str",
        ),
        ({"sections": (replace(SECTION, held_bytes=-1),)}, "sections[0]: held_bytes -1 is negative"),
    ],
)
def test_a_program_field_of_wrong_type_or_range_is_refused(
    check: Callable[[Program], None], change: dict[str, Any], words: str
):
    assert words in refusal(check, replace(program({COMPUTE: ALONE}, [W]), **change))


@both
def test_a_program_with_kernels_only_on_the_host_is_refused(check: Callable[[Program], None]):
    """The step time is that of the GPU's kernels and would be zero."""
    moved = [replace(each, memory=HOST) if isinstance(each, Acquire | Release) else each for each in ALONE]
    on_host = replace(program({HOST_CORES: moved}), other_contents=(InitialContents(HOST, (W,)),))
    assert refusal(check, on_host).startswith("no kernel runs on a compute stream")


@both
def test_an_object_that_is_no_program_is_refused(check: Callable[[Program], None]):
    assert refusal(check, None) == "None is not a Program: a plan must return one"
    assert refusal(check, Placement()) == (
        "a Placement is not a Program: return simgpu.program.lowering.lower(context.graph, placement)"
    )


@both
def test_all_mistakes_are_reported_with_the_lines_around_the_first(check: Callable[[Program], None]):
    code = [*ALONE[:3], Launch(9), *ALONE[3:], None]
    assert refusal(check, program({COMPUTE: code}, [W])).splitlines() == [
        "the program has 2 mistakes:",
        "compute[3], Launch(kernel=9, recompute=False, makes=()): "
        "kernel 9 is out of range: the graph has 4 kernels, from 0",
        "compute[9], None: a NoneType is not an instruction",
        "around compute[3]:",
        "      launch make",
        "      launch change",
        "  --> Launch(kernel=9, recompute=False, makes=())",
        "      acquire b",
        "      launch use",
    ]


@both
def test_more_than_twenty_mistakes_are_counted(check: Callable[[Program], None]):
    lines = refusal(check, program({COMPUTE: [*ALONE, *[None] * 50]}, [W])).splitlines()
    assert lines[0] == "the program has 50 mistakes:"
    assert lines[1:21] == [f"compute[{at}], None: a NoneType is not an instruction" for at in range(8, 28)]
    assert lines[21] == "and 30 more"


@both
def test_every_known_instruction_passes(check: Callable[[Program], None]):
    """All but codecs, since these tasks have no encoded forms; so the tests above do not refuse every program."""
    code = [
        *(Initialize((W,)), Acquire((A,), offsets=None), Launch(0), Launch(0, recompute=True), Signal(0), Await(0)),
        *(Acquire((A,), HOST), Copy(A, DEVICE, HOST), Copy(A, HOST, DEVICE), Release((A,), HOST), *ALONE[2:]),
    ]
    assert {type(each) for each in code} == set(INSTRUCTIONS) - {Encode, Decode}
    check(program({COMPUTE: code}, [W]))
