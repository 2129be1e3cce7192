"""The machine compared with a reference machine, written from the rules alone, on random programs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.machine.run import run_program
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.verify import verify
from simgpu.timeline.model import SpanKind
from tests.semantics.random_traces import encoded_graphs, nodes, placements, traces
from tests.semantics.reference import ReferenceMachine

KIND = {
    SpanKind.COMPUTE: "Launch",
    SpanKind.RECOMPUTE: "Launch",
    SpanKind.ENCODE: "Encode",
    SpanKind.DECODE: "Decode",
    SpanKind.COPY: "Copy",
}
slow = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=100,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


def compare(program: Program, graph: TaskGraph, node: NodeSpec, budget: int | None) -> None:
    """Both machines do the same work at the same times, or both run out of memory."""
    reference = ReferenceMachine(program, transformed(graph, program.transforms), node, budget=budget, iterations=3)
    done = reference.run()
    assert not reference.wrong
    try:
        result = run_program(program, graph, node, budget=budget, iterations=3, engine="simpy")
    except OutOfMemoryError as error:
        assert not done
        assert error.at_ns == max([0, *(end for *_, end, _ in reference.works)])
        return
    assert done
    ran = transformed(graph, program.transforms)
    names = [block.id for block in ran.blocks], [kernel.id for kernel in ran.kernels]
    expected = sorted((s, k, names[k == "Launch"][n], a, b, i) for s, k, n, a, b, i in reference.works)
    outcome = sorted(
        (span.stream, KIND[span.kind], span.name, span.start_ns, span.end_ns, span.iteration)
        for span in result.timeline
        if span.kind in KIND
    )
    assert outcome == expected
    assert max(curve.used.max(initial=0) for curve in result.timeline.device_memories) == reference.peak


def agree(data: st.DataObject, barrier: bool, duplex: Duplex, *, tight: bool) -> None:
    graph = data.draw(encoded_graphs())
    program = lower(graph, data.draw(placements(graph, layer_barrier=barrier)))
    verify(program, graph)
    node = data.draw(nodes(duplex, launches=True))
    budget = None
    if tight:
        unit = node.gpu.alignment
        resident = sum(-(-graph.sizes[b] // unit) * unit for b in program.resident)
        budget = resident + data.draw(st.integers(0, sum(graph.sizes)))
        pinned = data.draw(st.none() | st.integers(0, sum(graph.sizes)))
        blocks = data.draw(st.booleans())
        node = replace(node, host=replace(node.host, pinned_memory=pinned, waits_for_copies=blocks))
    compare(program, graph, node, budget)


@slow
@given(st.data(), st.booleans())
def test_with_ample_memory_every_event_matches_the_reference_model(data: st.DataObject, barrier: bool):
    agree(data, barrier, Duplex.FULL, tight=False)


@slow
@given(st.data(), st.booleans())
def test_with_tight_memory_every_event_matches_the_reference_model(data: st.DataObject, barrier: bool):
    agree(data, barrier, Duplex.FULL, tight=True)


@slow
@given(st.data(), st.booleans())
def test_on_a_half_duplex_link_every_event_matches_the_reference_model(data: st.DataObject, barrier: bool):
    agree(data, barrier, Duplex.HALF, tight=False)


@slow
@given(st.data(), st.booleans())
def test_with_half_duplex_and_tight_memory_every_event_matches_the_reference_model(data: st.DataObject, barrier: bool):
    agree(data, barrier, Duplex.HALF, tight=True)


@slow
@given(st.data())
def test_several_compute_streams_match_the_reference_model(data: st.DataObject):
    graph = TaskGraph.of(data.draw(traces(streams=3)))
    compare(lower(graph, Placement()), graph, data.draw(nodes(launches=True)), None)
