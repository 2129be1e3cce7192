"""Programs that do not move their blocks (on demand or in host memory): their form, and the checks of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.graph.encodings import EncodedForm
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Encode,
    InitialContents,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.paging import Paged, Remote
from simgpu.program.placement import Placement
from simgpu.program.residency import in_host_memory, on_demand
from simgpu.program.text import from_json, listing, to_json
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import Trace
from tests.semantics.hand_made import block, graph, held, kernel, program
from tests.semantics.random_traces import traces

OTHER = StreamId(0, "compute", 1)
W, A, B = range(3)
TASKS = graph(
    [kernel("make", 1, "w", "a"), kernel("use", 1, "a", "b"), kernel("step", 1, "b w", "w")],
    [held("w", 4), block("a", 8), block("b", 2)],
)
MAKE, USE, STEP = map(Launch, range(3))
ALONE: list[Instruction] = [MAKE, USE, Release((A,)), STEP, Release((B,))]


def paged(code: Sequence[Instruction], **others: Sequence[Instruction]) -> Program:
    streams: dict[StreamId, Sequence[Instruction]] = {COMPUTE: code}
    names = {"other": OTHER, "out": D2H}
    streams |= {names[name]: more for name, more in others.items()}
    return program(streams, [W], residency=Paged())


def refused(code: Program, *words: str) -> None:
    with pytest.raises(ProgramError) as caught:
        verify(code, TASKS)
    for word in words:
        assert word in str(caught.value)


def test_a_launch_needs_no_acquired_memory_for_on_demand_blocks():
    assert on_demand(lower(TASKS, Placement()), Paged()) == paged(ALONE)
    # Nor need a kernel's blocks fit at once.
    verify(paged(ALONE), TASKS, capacity=0)


def test_on_demand_blocks_are_released_exactly_once_per_iteration():
    refused(paged(ALONE[:-1]), "leaves block b in device memory")
    refused(paged([*ALONE, Release((A,))]), "block a holds no device memory")
    refused(paged([Release((A,)), *ALONE]), "block a holds no device memory")


def test_reading_a_released_on_demand_block_is_refused():
    refused(paged([MAKE, Release((A,)), USE, Release((A, B)), STEP]), "block a holds no value")


def test_releasing_a_persistent_on_demand_block_is_refused():
    refused(paged([*ALONE, Release((W,))]), "loses block w")


def test_acquires_and_encoded_forms_of_on_demand_blocks_are_refused():
    refused(paged([Acquire((A,)), *ALONE]), "block a is on demand")
    tasks = replace(TASKS, encoded={B: EncodedForm(A, 1, 1)})
    for move in (Encode(A, B), Copy(A, DEVICE, HOST, into=B)):
        with pytest.raises(ProgramError, match="pages on demand, and these have no encoded forms"):
            verify(paged([MAKE, move, USE, Release((A,)), STEP, Release((B,))]), tasks)


def test_copies_of_blocks_in_host_memory_are_refused():
    code = in_host_memory(lower(TASKS, Placement()))
    (segment,) = code.segments
    copying = replace(segment, streams={**segment.streams, D2H: (Copy(W, HOST, DEVICE),)})
    refused(replace(code, segments=(copying,)), "not its own to move")


@pytest.mark.parametrize("way", [(HOST, DEVICE), (DEVICE, HOST)])
def test_a_copy_of_an_on_demand_block_is_a_hint_that_only_its_releases_must_know(way: tuple[str, str]):
    """It may come before the first value, between uses, or while a kernel runs; not after a release, or during one."""
    hint = Copy(A, *way)
    known = [MAKE, USE, Await(0), Release((A,)), STEP, Release((B,))]
    verify(paged([Signal(1), *known], out=[Await(1), hint, Signal(0)]), TASKS)
    # Persistent blocks are never released.
    verify(paged(ALONE, out=[Copy(W, *way)]), TASKS)
    # Of the next iteration, it may come before this one's release.
    refused(paged(known, out=[hint, Signal(0)]), "block a may still hold device memory")
    unordered = paged([MAKE, USE, Signal(0), hint, STEP, Release((B,))], out=[Await(0), Release((A,))])
    refused(unordered, "a is released while compute may still be migrating it")
    refused(paged([*ALONE, hint]), "leaves block a in device memory")


def test_on_demand_programs_must_still_synchronize_their_streams():
    signalled = paged([MAKE, Signal(0), Await(1), STEP, Release((B,))], other=[Await(0), USE, Release((A,)), Signal(1)])
    verify(signalled, TASKS)
    refused(paged([MAKE, Await(1), STEP, Release((B,))], other=[USE, Release((A,)), Signal(1)]), "block a")


def test_remote_programs_hold_all_blocks_in_host_memory():
    code = in_host_memory(lower(TASKS, Placement()))
    assert code.resident == () and code.other_contents == (InitialContents(HOST, (W,)),)
    assert code.residency == Remote()
    memories = {i.memory for i in code.segments[0].streams[COMPUTE] if isinstance(i, Acquire | Release)}
    assert memories == {HOST}
    verify(code, TASKS, capacity=0)
    refused(replace(code, residency=None), "device memory")


@settings(deadline=None)
@given(traces(streams=3), st.integers(1, 9))
def test_every_trace_has_on_demand_and_remote_programs_that_survive_json(trace: Trace, pages: int):
    tasks = TaskGraph.of(trace)
    plain = lower(tasks, Placement(), recorded_lifetimes=True)
    for code in (on_demand(plain, Paged(page=128 * pages, chunk=128 * pages)), in_host_memory(plain)):
        verify(code, tasks, capacity=0)
        assert from_json(to_json(code)) == code
        assert listing(code, tasks) != listing(plain, tasks)
