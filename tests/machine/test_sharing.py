"""Several GPUs that run the same program at the same time: closed form, shares of one GPU, and the reference model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.errors import InputError
from simgpu.graph.replicate import Exchange, Replicate
from simgpu.hardware.sharing import one_of
from simgpu.hardware.spec import Duplex, HostSpec, NodeSpec, SwitchSpec
from simgpu.machine.run import run_program
from simgpu.program.lowering import lower
from simgpu.simulation.run import simulate
from simgpu.timeline.model import Timeline
from tests.machine.test_against_reference import compare
from tests.machine.test_several_gpus import copy_ends
from tests.semantics.hand_made import GB, node
from tests.semantics.networks import moved, networks, on_all, several, sharing

GROUPS: list[list[tuple[int, ...]]] = [[], [(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0,), (1,), (2,), (3,)]]
quick = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)


@st.composite
def alike(draw: st.DrawFn) -> NodeSpec:
    """Four GPUs behind equal switches, or none, in front of a host whose memory may be slower than their links."""
    rate = st.integers(GB // 3, 5 * GB)
    base = replace(several(4, switch=None), host=HostSpec(memory_bandwidth=draw(st.none() | rate)))
    out, back, duplex = draw(rate), draw(rate), draw(st.sampled_from(Duplex))
    groups = draw(st.sampled_from(GROUPS))
    return replace(base, switches=tuple(SwitchSpec(group, out, back, duplex) for group in groups))


@quick
@given(alike(), st.integers(1, 10_000))
def test_copies_of_all_gpus_take_the_bytes_over_the_smallest_share(where: NodeSpec, size: int) -> None:
    shares = [
        (max(s.d2h_bandwidth, s.h2d_bandwidth) if s.duplex is Duplex.HALF else s.d2h_bandwidth) // len(s.gpus)
        for s in where.switches
    ]
    host = where.host.memory_bandwidth
    rate = min([where.link.d2h_bandwidth, *shares, *([] if host is None else [host // 4])])
    expected = -(-size * 10**9 // rate)
    assert copy_ends(4, where, size) == [expected] * 4


@quick
@given(st.data(), alike())
def test_one_gpu_with_its_shares_is_as_all_gpus_together(data: st.DataObject, where: NodeSpec) -> None:
    tasks = data.draw(networks())
    graph = sharing(tasks)
    program = lower(graph, data.draw(moved(graph, layer_barrier=False)))
    every = on_all(program, graph, where, Replicate(4, Exchange.NONE, 0))
    together = run_program(every, graph, where, budget=None, iterations=3).timeline
    one = run_program(program, graph, one_of(where, 4), budget=None, iterations=3).timeline
    alone = run_program(program, graph, where, budget=None, iterations=3).timeline

    def spans(timeline: Timeline) -> list[tuple[object, ...]]:
        return sorted(
            (s.label, s.start_ns, s.end_ns) for s in timeline if s.gpu == 0 and not s.label.startswith("stall")
        )

    assert spans(together) == spans(one)
    assert together.iteration_ends_ns[-1] >= alone.iteration_ends_ns[-1]


@quick
@given(st.data(), alike())
def test_replicas_match_the_reference_model(data: st.DataObject, where: NodeSpec) -> None:
    graph = sharing(data.draw(networks()))
    program = lower(graph, data.draw(moved(graph, layer_barrier=False)))
    compare(on_all(program, graph, where, Replicate(4, Exchange.NONE, 0)), graph, where, None)


@pytest.mark.parametrize("policy", ["vdnn", "save_on_cpu", "optimizer_on_host"])
def test_any_policy_takes_as_long_on_its_share_as_together(policy: str) -> None:
    trace = simgpu.load_trace("digits-cnn-cpu")
    where = simgpu.load_node("k40-x4", {"host.memory_bandwidth": "6 GB/s"})
    together = simulate(trace, where, policy, gpus=4, exchange="none")
    one, alone = simulate(trace, one_of(where, 4), policy), simulate(trace, where, policy)
    assert together.iteration_ns == one.iteration_ns > alone.iteration_ns
    assert together.parallel_run is not None
    assert together.parallel_run.alone_ns == alone.iteration_ns
    assert together.trace.batch == 4 * trace.info.batch


def test_more_gpus_than_the_node_has_are_refused() -> None:
    with pytest.raises(InputError, match="node test has one GPU, not 2"):
        one_of(replace(node(), name="test"), 2)
