"""Programs broken at random: either `verify` refuses them, or no timing makes a kernel read a wrong value."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import Instruction, Program, Segment
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from tests.semantics.hand_made import GB, node
from tests.semantics.random_traces import encoded_graphs, placements, traces
from tests.semantics.reference import ReferenceMachine

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)


@st.composite
def mutants(draw: st.DrawFn, program: Program) -> Program:
    """The program with one instruction left out, two neighbours swapped, or one moved to another stream or place."""
    streams = {stream: list(code) for stream, code in program.segments[0].streams.items()}
    places = [(stream, at) for stream, code in streams.items() for at in range(len(code))]
    stream, at = draw(st.sampled_from(places))
    how = draw(st.sampled_from(["drop", "swap", "move", "none"]))
    if how == "drop":
        del streams[stream][at]
    elif how == "swap" and at + 1 < len(streams[stream]):
        streams[stream][at : at + 2] = reversed(streams[stream][at : at + 2])
    elif how == "move":
        taken = streams[stream].pop(at)
        code = streams[draw(st.sampled_from(sorted(streams)))]
        code.insert(draw(st.integers(0, len(code))), taken)
    return Program((Segment(_frozen(streams)),), program.resident)


def _frozen(streams: dict[StreamId, list[Instruction]]) -> dict[StreamId, tuple[Instruction, ...]]:
    return {stream: tuple(code) for stream, code in streams.items()}


def replayed(data: st.DataObject, program: Program, graph: TaskGraph) -> ReferenceMachine:
    """Runs the program with arbitrary durations of kernels and copies."""
    times = st.sampled_from([0, 1, 5, 1000, 10**6])
    durations = data.draw(st.lists(times, min_size=len(graph.kernels), max_size=len(graph.kernels)))
    rates = st.sampled_from([GB // 1000, GB, 1000 * GB])
    where = node(
        out=data.draw(rates), back=data.draw(rates), engines=data.draw(st.sampled_from([1, 2])),
        latency=data.draw(times),
    )  # fmt: skip
    machine = ReferenceMachine(program, graph, where, iterations=3, durations=durations)
    finished = machine.run()
    assert finished or machine.wrong
    return machine


@many
@given(st.data(), st.booleans())
def test_what_verify_accepts_reads_the_right_versions_under_any_timing(data: st.DataObject, barrier: bool):
    graph = data.draw(encoded_graphs(max_kernels=7))
    program = data.draw(mutants(lower(graph, data.draw(placements(graph, layer_barrier=barrier)))))
    try:
        verify(program, graph)
    except ProgramError:
        return
    assert replayed(data, program, graph).wrong == []


@many
@given(st.data())
def test_what_verify_accepts_is_right_with_several_compute_streams(data: st.DataObject):
    graph = TaskGraph.of(data.draw(traces(max_kernels=7, streams=3)))
    program = data.draw(mutants(lower(graph, Placement())))
    try:
        verify(program, graph)
    except ProgramError:
        return
    assert replayed(data, program, graph).wrong == []


@many
@given(st.data(), st.booleans())
def test_every_lowered_program_is_accepted(data: st.DataObject, barrier: bool):
    graph = data.draw(encoded_graphs())
    program = lower(graph, data.draw(placements(graph, layer_barrier=barrier)))
    verify(program, graph)
    assert replayed(data, program, graph).wrong == []
