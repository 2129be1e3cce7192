"""The compiled walk accepts a program exactly where the walk over its instructions does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.policies.registry import make_policy
from simgpu.program.check import check_program
from simgpu.program.fast_walk import keeps_rules
from simgpu.program.instructions import Acquire, Initialize, Instruction, Launch, Program, Release, Segment
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.verify import ProgramWalk, verify, writes_of
from simgpu.simulation.run import plan_context
from simgpu.trace.model import Trace
from simgpu.workloads.modelled import build_trace
from tests.semantics.networks import exchanges, moved, networks, on_all, sharing, switched_nodes
from tests.semantics.random_traces import encoded_graphs, mixed_placements, placements, traces
from tests.tiers.spill import spilled


def swapped(data: st.DataObject) -> tuple[Program, TaskGraph]:
    graph = data.draw(encoded_graphs())
    return lower(graph, data.draw(placements(graph, layer_barrier=data.draw(st.booleans())))), graph


def recomputed(data: st.DataObject) -> tuple[Program, TaskGraph]:
    graph = data.draw(encoded_graphs())
    return lower(graph, data.draw(mixed_placements(graph))), graph


def on_streams(data: st.DataObject) -> tuple[Program, TaskGraph]:
    graph = TaskGraph.of(data.draw(traces(streams=3)))
    return lower(graph, Placement(), recorded_lifetimes=data.draw(st.booleans())), graph


def split(data: st.DataObject) -> tuple[Program, TaskGraph]:
    full, sub_batch = data.draw(networks()), data.draw(st.integers(1, 4))
    full = replace(full, info=replace(full.info, batch=data.draw(st.integers(sub_batch, 9))))
    graph = Split(sub_batch).apply(TaskGraph.of(full))
    return lower(graph, data.draw(moved(graph, layer_barrier=data.draw(st.booleans())))), graph


def on_gpus(data: st.DataObject) -> tuple[Program, TaskGraph]:
    tasks, gpus = sharing(data.draw(networks())), data.draw(st.integers(2, 3))
    one = lower(tasks, data.draw(moved(tasks, layer_barrier=data.draw(st.booleans()))))
    return on_all(one, tasks, data.draw(switched_nodes(gpus)), data.draw(exchanges(gpus))), tasks


def to_an_ssd(data: st.DataObject) -> tuple[Program, TaskGraph]:
    graph = TaskGraph.of(data.draw(traces()))
    return spilled(lower(graph, data.draw(placements(graph, layer_barrier=data.draw(st.booleans()))))), graph


def changed(data: st.DataObject, program: Program, blocks: int) -> Program:
    """The program with an instruction removed, repeated, moved, or with another block."""
    segments = list(program.segments)
    at = data.draw(st.integers(0, len(segments) - 1))
    streams = {stream: list(code) for stream, code in segments[at].streams.items()}
    codes = [code for code in streams.values() if code]
    if not codes:
        return program
    code: list[Instruction] = data.draw(st.sampled_from(codes))
    place = data.draw(st.integers(0, len(code) - 1))
    instruction = code[place]
    how = data.draw(st.sampled_from(["remove", "repeat", "move", "block"]))
    if how == "remove":
        del code[place]
    elif how == "repeat":
        code.insert(data.draw(st.integers(0, len(code))), instruction)
    elif how == "move":
        code.insert(data.draw(st.integers(0, len(code) - 1)), code.pop(place))
    elif isinstance(instruction, Acquire | Release | Initialize) and blocks:
        code[place] = replace(instruction, blocks=(*instruction.blocks[1:], data.draw(st.integers(0, blocks - 1))))
    elif isinstance(instruction, Launch):
        code[place] = replace(instruction, recompute=not instruction.recompute, makes=())
    segments[at] = Segment({stream: tuple(each) for stream, each in streams.items()}, segments[at].repeat)
    return replace(program, segments=tuple(segments))


@pytest.mark.slow
@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_compiled_walk_accepts_what_the_walk_over_instructions_accepts(data: st.DataObject) -> None:
    make = data.draw(st.sampled_from([swapped, recomputed, on_streams, split, on_gpus, to_an_ssd]))
    program, graph = make(data)
    for _ in range(data.draw(st.integers(0, 2))):
        program = changed(data, program, len(graph.blocks))
    try:
        checked = check_program(program, graph)
        writes = writes_of(checked)
    except ProgramError:
        return
    try:
        ProgramWalk(program, checked, writes).run()
        accepted = True
    except ProgramError:
        accepted = False
    assert keeps_rules(checked, writes) == accepted


@pytest.fixture(scope="module")
def network() -> Trace:
    return build_trace("resnet18", batch=4, gpu=load_node("k40").gpu)


@pytest.mark.parametrize("policy", ["ideal", "vdnn", "superneurons", "modnn"])
def test_verify_takes_the_compiled_walk_for_long_programs(
    policy: str, network: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = plan_context(network, load_node("k40"), make_policy(policy))
    program = make_policy(policy).plan(context)
    walked: list[bool] = []

    def noted(*arguments: object) -> bool:
        walked.append(keeps_rules(*arguments))  # type: ignore[arg-type]
        return walked[-1]

    monkeypatch.setattr("simgpu.program.fast_walk.keeps_rules", noted)
    monkeypatch.setattr("simgpu.program.verify._LONG", 1)
    monkeypatch.setattr("simgpu.program.verify.is_ready", lambda module, function: True)
    monkeypatch.setattr(ProgramWalk, "run", lambda self: None)
    verify(program, context.graph)
    assert walked == [True]
