"""Programs of a framework that runs one operator after another, with host copies as separate forms of a block."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Unpacked, WithUnpacked
from simgpu.machine.run import run_program
from simgpu.policies.common.framework import plain_framework
from simgpu.program.eager import Eager
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    HOST,
    Await,
    Copy,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
)
from simgpu.program.text import from_json, listing, to_json
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from tests.policies.networks import NETWORKS
from tests.semantics.hand_made import BACKWARD, block, graph, kernel, node, times

TRACES = {**NETWORKS, "resnet20": lambda: load_trace("resnet20-cifar-cpu")}


@pytest.mark.parametrize("name", TRACES)
def test_an_eager_program_without_copies_equals_the_plain_framework(name: str) -> None:
    graph = TaskGraph.of(TRACES[name]())
    writer = Eager(graph, graph.recorded_releases)
    for k in range(len(graph.kernels)):
        writer.run(k)
        writer.release_ended(k)
    assert writer.program() == plain_framework(graph)
    assert writer.program().notes == plain_framework(graph).notes


#: 12 of x2's 20 B are saved: they are offloaded after F1 and fetched for B2; F2 reads x2 in place.
GRAPH = TaskGraph.of(chain([10, 10], [10, 10], [5, 20]))
X2, F2, B2 = GRAPH.block("x2"), 1, 2
FORM = len(GRAPH.blocks)
SAVED = WithUnpacked((Unpacked(X2, 12, (B2,)),))


def offloaded() -> Program:
    releases = list(GRAPH.needed_releases)
    releases[X2] = F2
    writer = Eager(GRAPH, releases)
    for k in range(4):
        if k == B2:
            writer.acquire((FORM,))
            writer.wait(writer.copy_h2d(FORM, after=writer.signal()))
            writer.release_after(FORM, B2)
        writer.run(k)
        if k == 0:
            left = writer.copy_d2h(X2, FORM, after=writer.signal())
        if k == F2:
            writer.wait(left)
        writer.release_ended(k)
    return writer.program((SAVED,))


def test_a_copy_has_the_size_of_its_form_on_the_host():
    """12 ns at a byte per nanosecond: offloaded during F2, which takes 10; prefetched before B2."""
    program = offloaded()
    verify(program, GRAPH)
    result = run_program(program, GRAPH, node(), budget=10**6, iterations=2)
    assert times(result) == {
        "F1": (0, 10), "out:x2:saved": (10, 22), "F2": (10, 20),
        "in:x2:saved": (22, 34), "B2": (34, 44), "B1": (44, 54),
    }  # fmt: skip
    assert result.timeline.memory("host").used.max() == 12
    assert result.timeline.memory("device").used.max() == 5 + 20


def test_an_eager_program_lists_its_host_copies_and_survives_json():
    program = offloaded()
    assert "    copy x2 from device to host as x2:saved" in listing(program, GRAPH).splitlines()
    assert from_json(to_json(program)) == program
    assert '["Copy",1,"device","host"]' in to_json(
        changed(D2H, {Copy(X2, DEVICE, HOST, FORM): (Copy(X2, DEVICE, HOST),)})
    )


def test_a_form_of_a_wrong_version_is_refused():
    """y is offloaded before it is changed in place, but backward reads the changed version."""
    tasks = graph(
        [kernel("make", 1, "", "y"), kernel("change", 1, "y", "y"), kernel("use", 1, "y", "g", phase=BACKWARD)],
        [block("y", 8), block("g", 1)],
    )
    for after, fault in ((0, "kernel use finds a wrong version of block y:saved"), (1, "")):
        writer = Eager(tasks, [1, 2])
        for k in range(3):
            if k == 2:
                writer.acquire((2,))
                writer.wait(writer.copy_h2d(2, after=writer.signal()))
                writer.release_after(2, 2)
            writer.run(k)
            if k == after:
                writer.wait(writer.copy_d2h(0, 2, after=writer.signal()))
            writer.release_ended(k)
        program = writer.program((WithUnpacked((Unpacked(0, 8, (2,)),)),))
        if fault:
            with pytest.raises(ProgramError, match=fault):
                verify(program, tasks)
        else:
            verify(program, tasks)


def changed(stream: StreamId, change: dict[Instruction, tuple[Instruction, ...]]) -> Program:
    """The program with some instructions of a stream replaced."""
    program = offloaded()
    code = dict(program.segments[0].streams)
    code[stream] = tuple(new for old in code[stream] for new in change.get(old, (old,)))
    return replace(program, segments=(Segment(code),))


@pytest.mark.parametrize(
    ("stream", "change", "words"),
    [
        # The offload runs during the kernel that writes the block.
        (D2H, {Await(0): ()}, "block x2 may not hold its value in device memory yet"),
        # Memory is released while the copy may still read it.
        (COMPUTE, {Await(1): ()}, "block x2 holds no device memory"),
        # The block is copied without a form, for which there is no host memory.
        (D2H, {Copy(X2, DEVICE, HOST, FORM): (Copy(X2, DEVICE, HOST),)}, "block x2 holds no host memory"),
        # No stream waits for the copy in.
        (COMPUTE, {Await(3): ()}, "block x2:saved"),
        # A form of another block.
        (
            D2H,
            {Copy(X2, DEVICE, HOST, FORM): (Copy(X2 - 1, DEVICE, HOST, FORM),)},
            "block x2:saved is not an encoded form of block x1",
        ),
        (COMPUTE, {Launch(B2): (Release((FORM,)), Launch(B2))}, "block x2:saved holds no"),
    ],
)
def test_a_broken_eager_program_is_refused(
    stream: StreamId, change: dict[Instruction, tuple[Instruction, ...]], words: str
) -> None:
    with pytest.raises(ProgramError) as caught:
        verify(changed(stream, change), GRAPH)
    assert words in str(caught.value)
