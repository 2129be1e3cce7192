"""What GPUs share, derived from their copies: closed forms, and simulated nodes that get their capacities back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.hardware.spec import Duplex, HostSpec, NodeSpec
from simgpu.recorder.machine.shared_capacities import Mode, Rates, SharedCapacities, shared_capacities
from simgpu.recorder.machine.together import measure_together
from tests.recorder.simulated_node import GB, SimulatedNode, fair_rates, node, switch

SIZE = 100_000_000
COPIES = 2


def derived(where: NodeSpec) -> SharedCapacities:
    return shared_capacities(measure_together(SimulatedNode(where), SIZE, COPIES))


def agrees(result: SharedCapacities, where: NodeSpec) -> None:
    assert result.duplex is where.link.duplex
    assert [s.gpus for s in result.switches] == [s.gpus for s in where.switches]
    for got, true in zip(result.switches, where.switches, strict=True):
        assert got.duplex is true.duplex
        assert got.d2h_bandwidth == pytest.approx(true.d2h_bandwidth, rel=1e-3)
        assert got.h2d_bandwidth == pytest.approx(true.h2d_bandwidth, rel=1e-3)
    assert (result.memory_bandwidth is None) == (where.host.memory_bandwidth is None)
    if where.host.memory_bandwidth is not None:
        assert result.memory_bandwidth == pytest.approx(where.host.memory_bandwidth, rel=1e-3)


@pytest.mark.parametrize(
    "where",
    [
        node(1),
        node(8),
        node(2, [switch((0, 1), 32, 30)]),
        node(4, [switch((0, 1), 30, 25), switch((2, 3), 30, 25)]),
        node(8, [switch(range(4), 32, 25), switch(range(4, 8), 32, 25)]),
        node(8, [switch(range(8), 60, 50)]),
        node(4, [switch((0, 1), 46, 46, Duplex.HALF), switch((2, 3), 46, 46, Duplex.HALF)]),
        node(4, [switch((1, 2), 30, 30)]),
        node(8, memory=150),
        node(4, [switch((0, 1), 30, 25), switch((2, 3), 30, 25)], memory=80),
        node(8, [switch(range(4), 70, 70), switch(range(4, 8), 70, 70)]),
    ],
    ids=["one", "apart", "two", "pairs", "quads", "all", "half", "some", "host", "pairs-and-host", "wide-quads"],
)
def test_a_node_s_capacities_come_out_as_they_are(where: NodeSpec) -> None:
    agrees(derived(where), where)


def test_a_half_duplex_link_is_recognized() -> None:
    where = node(4, link=(20, 20))
    where = replace(where, link=replace(where.link, duplex=Duplex.HALF))
    agrees(derived(where), where)


def test_gpus_that_share_nothing_are_not_measured_in_pairs() -> None:
    alone = SimulatedNode(node(4))
    measure_together(alone, SIZE, COPIES)
    assert alone.measured == [(gpu,) for gpu in range(4) for _ in range(3)] + [(0, 1, 2, 3)] * 3


def test_gpus_of_a_slower_slot_share_nothing() -> None:
    own = [switch((3,), 12, 12)]  # half the lanes
    result = derived(node(4, own))
    assert result == SharedCapacities(Duplex.FULL)


def test_less_than_the_noise_is_no_sharing() -> None:
    alone = {(gpu,): (100,) for gpu in range(2)}
    rates: Rates = {mode: {**alone, (0, 1): (96, 96)} for mode in Mode}
    rates[Mode.BOTH] = {(0,): (200,), (1,): (200,), (0, 1): (192, 192)}
    assert shared_capacities(rates) == SharedCapacities(Duplex.FULL)


@st.composite
def nodes(draw: st.DrawFn) -> NodeSpec:
    """Nodes whose capacities can be seen: each limit is well below what the parts behind it reach together."""
    link = draw(st.integers(10, 400)), draw(st.integers(10, 400))
    groups = draw(st.sampled_from([(), ((0, 1),), ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2), (3, 4, 5))]))
    gpus = draw(st.integers(max([2, *(max(group) + 1 for group in groups)]), 6))
    assume(not groups or len(groups[0]) < gpus)
    switches = []
    if groups:  # one GPU passes its switch at its link's full rate, all of those behind it do not
        duplex, times = draw(st.sampled_from(Duplex)), draw(st.floats(1.05, 0.85 * len(groups[0])))
        rates = (sum(link), sum(link)) if duplex is Duplex.HALF else link
        switches = [switch(group, round(times * rates[0]), round(times * rates[1]), duplex) for group in groups]
    return node(gpus, switches, link=link)


quick = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)


@quick
@given(nodes())
def test_switches_of_simulated_nodes_come_out_as_they_are(where: NodeSpec) -> None:
    agrees(derived(where), where)


@quick
@given(nodes(), st.floats(0.3, 0.9))
def test_the_host_s_memory_comes_out_where_copies_of_all_gpus_reach_it(where: NodeSpec, share: float) -> None:
    memory = round(share * sum(fair_rates(where, range(where.gpus), [0, 1])) / GB)
    shared = replace(where, host=HostSpec(memory_bandwidth=memory * GB))
    limits = [switch.d2h_bandwidth + switch.h2d_bandwidth for switch in where.switches]
    links = where.link.d2h_bandwidth + where.link.h2d_bandwidth
    assume(memory * GB > 1.2 * max([links * min(where.gpus - 1, 2), *limits]))
    if any(len(switch.gpus) > 2 for switch in where.switches):  # seen where no limit of the host hides it
        assume(memory * GB > 1.1 * max(sum(fair_rates(where, range(where.gpus), [way])) for way in (0, 1)))
    agrees(derived(shared), shared)
