"""Splitting off the last repetition of a segment does not change the run."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.replication import events_of, with_last_repetition_split
from simgpu.program.verify import verify
from tests.semantics.hand_made import graph, held, kernel, node, program, run
from tests.semantics.networks import moved, networks
from tests.semantics.random_traces import nodes

HOST = HOST


def happened(code: Program, tasks: TaskGraph, where: object = None, iterations: int = 3) -> list[tuple[object, ...]]:
    """The spans without waits, as a wait may be attributed to another instruction."""
    timeline = run(code, tasks, where, iterations=iterations).timeline  # type: ignore[arg-type]
    return [
        (span.stream, span.label, span.name, span.start_ns, span.end_ns, span.iteration)
        for span in timeline
        if not span.kind.is_stall
    ]


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
@given(st.data(), st.integers(1, 4), st.booleans())
def test_splitting_off_the_last_repetition_does_not_change_the_run(data: st.DataObject, sub_batch: int, barrier: bool):
    full = data.draw(networks())
    full = replace(full, info=replace(full.info, batch=data.draw(st.integers(sub_batch, 9))))
    tasks = Split(sub_batch).apply(TaskGraph.of(full))
    code = lower(tasks, data.draw(moved(tasks, layer_barrier=barrier)))
    where = replace(data.draw(nodes()), gpu=replace(node().gpu, memory=10**9))
    apart = with_last_repetition_split(code, 0)
    assert len(apart.segments) == len(code.segments) + (code.segments[0].repeat > 1)
    assert happened(apart, tasks, where) == happened(code, tasks, where)


def test_waits_for_an_earlier_repetition_work_across_segments_and_iterations():
    """Each offload must end before the next but one kernel starts: 10 ns of compute during copies of 30."""
    tasks = graph([kernel("k0", 10, "x")], [held("x", 30)])
    copy = (Await(0), Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST), Signal(1))
    for lag in (1, 2):
        code = program({COMPUTE: (Await(1, lag), Launch(0), Signal(0)), D2H: copy}, [0], repeat=4)
        apart = with_last_repetition_split(code, 0)
        verify(apart, tasks)
        before, after = happened(code, tasks), happened(apart, tasks)
        assert len(before) == len(after)
        assert all(late[4] >= early[4] for early, late in zip(before, after, strict=True))  # type: ignore[operator]
        if lag == 1:
            assert before == after


def test_waits_of_a_later_segment_are_unchanged_by_the_split():
    tasks = graph([kernel("k0", 10, "x"), kernel("k1", 5, "x")], [held("x", 30)])
    copy = (Await(0), Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST), Signal(1))
    for lag in (0, 1, 2, 3):
        segments = (
            Segment({COMPUTE: (Await(1, 1), Launch(0), Signal(0)), D2H: copy}, repeat=3),
            Segment({COMPUTE: (Await(1, lag), Launch(1))}),
        )
        code = Program(segments, resident=(0,))
        assert happened(with_last_repetition_split(code, 0), tasks) == happened(code, tasks)


def test_a_segment_that_runs_once_is_not_split():
    code = program({COMPUTE: (Launch(0),)}, [0])
    assert with_last_repetition_split(code, 0) is code


def test_new_events_have_unused_numbers():
    code = program({COMPUTE: (Await(7, 1), Signal(3)), D2H: (Await(3), Signal(7))}, repeat=2)
    assert events_of(code) == 8
    assert events_of(with_last_repetition_split(code, 0)) == 10


def test_an_empty_program_has_no_events():
    assert events_of(lower(graph([kernel("k0", 1)], []), Placement())) == 0
