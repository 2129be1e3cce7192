"""Closed forms on chains: the papers' equations, to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.graph.encodings import Encoding
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import with_encodings
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.machine.run import run_program
from simgpu.policies.cswap import swapping_cost_ns
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.program.verify import verify
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from tests.semantics.hand_made import GB, node
from tests.semantics.random_traces import DrawnCosts


@dataclass(frozen=True)
class Chain:
    """A chain of layers: nanoseconds each way, bytes of every layer's input."""

    forward: list[int]
    backward: list[int]
    sizes: list[int]


def copy_ns(size: int, bandwidth: int, latency: int) -> int:
    """Latency plus transfer time, rounded up; zero for an empty block, which is not moved."""
    return latency + (size * GB + bandwidth - 1) // bandwidth if size else 0


def layer_synchronous_ns(net: Chain, on: NodeSpec) -> int:
    """Sum of max(F_n, Off_n) and max(B_n+1, Pre_n); the last layer's input stays."""
    link = on.link
    out = [copy_ns(size, link.d2h_bandwidth, link.latency_ns) for size in net.sizes[:-1]] + [0]
    back = [copy_ns(size, link.h2d_bandwidth, link.latency_ns) for size in net.sizes[:-1]]
    forward = sum(max(pair) for pair in zip(net.forward, out, strict=True))
    return forward + sum(max(pair) for pair in zip(net.backward, [0, *back], strict=True))


F, B = [10, 20, 30, 40], [15, 25, 35, 45]
CASES = {
    "shorter": Chain(F, B, [5, 10, 15, 20]),
    "equal": Chain([20] * 4, [20] * 4, [20] * 4),
    "longer": Chain(F, B, [100, 200, 300, 400]),
    "mixed": Chain(F, B, [10, 21, 1, 400]),
    "zero bytes": Chain(F, B, [0, 0, 0, 0]),
    "some zero bytes": Chain(F, B, [50, 0, 50, 0]),
    "zero durations": Chain([0] * 4, [0] * 4, [7, 0, 3, 9]),
    "one layer": Chain([5], [6], [70]),
    "two layers": Chain([5, 6], [7, 8], [70, 80]),
}
NODES = {
    "even": node(),
    "slow back": node(out=2 * GB, back=GB // 3),
    "slow out": node(out=GB // 7, back=3 * GB),
    "latency": node(latency=13),
    "one engine": node(engines=1, latency=3),
    "half duplex": node(duplex=Duplex.HALF, back=GB // 2, latency=3),
}


@pytest.mark.parametrize("net", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("on", NODES.values(), ids=NODES.keys())
def test_layer_synchronous_vdnn_takes_the_sum_of_step_maxima(net: Chain, on: NodeSpec):
    result = simulate(chain(net.forward, net.backward, net.sizes), on, "vdnn", parameters={"mode": "all"})
    assert result.iteration_ns == layer_synchronous_ns(net, on)
    assert result.steady
    assert result.metrics.copied_bytes["d2h"] == result.metrics.copied_bytes["h2d"] == sum(net.sizes[:-1])


durations = st.one_of(st.integers(0, 5), st.integers(0, 10**6))
sizes = st.one_of(st.integers(0, 5), st.integers(0, 10**6))
bandwidths = st.one_of(st.sampled_from([GB, 3 * GB]), st.integers(10**6, 10**11))


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    count = draw(st.integers(1, 8))
    return Chain(*(draw(st.lists(values, min_size=count, max_size=count)) for values in (durations, durations, sizes)))


@st.composite
def links(draw: st.DrawFn) -> NodeSpec:
    return node(
        10**9,
        out=draw(bandwidths),
        back=draw(bandwidths),
        latency=draw(st.integers(0, 1000)),
        engines=draw(st.sampled_from([1, 2])),
        duplex=draw(st.sampled_from(Duplex)),
    )


@settings(deadline=None, max_examples=40)
@given(chains(), links(), st.sampled_from(["counting", "addressed"]))
def test_layer_synchronous_vdnn_takes_the_sum_of_step_maxima_on_any_chain(net: Chain, on: NodeSpec, pool: str):
    result = simulate(chain(net.forward, net.backward, net.sizes), on, "vdnn", pool=pool, iterations=2)
    assert result.iteration_ns == layer_synchronous_ns(net, on)


@settings(deadline=None, max_examples=50)
@given(st.data(), chains(), links())
def test_swaps_encoded_by_the_gpu_cost_as_in_the_equations_of_cswap(data: st.DataObject, net: Chain, on: NodeSpec):
    """Equations 1-4 (section IV-B): any subset of the inputs encoded, latency off, one tensor a layer."""
    on = replace(on, link=replace(on.link, latency_ns=0))
    count = len(net.forward)
    forms = {layer: data.draw(st.tuples(sizes, durations, durations)) for layer in range(count - 1)}
    encoded = {layer for layer in forms if data.draw(st.booleans())}
    costs = DrawnCosts({f"x{layer + 1}": form for layer, form in forms.items()})
    plain = replace(TaskGraph.of(chain(net.forward, net.backward, net.sizes)), costs=costs)
    inputs = [plain.block(f"x{layer + 1}") for layer in range(count)]
    graph = with_encodings(plain, [Encoding(inputs[layer], "drawn") for layer in sorted(encoded)])
    form = {of.block: number for number, of in graph.encoded.items()}
    swaps = [
        Swap(inputs[layer], layer, 2 * count - 1 - layer, 2 * count - 2 - layer, form.get(inputs[layer]))
        for layer in range(count - 1)
    ]
    program = lower(graph, Placement(tuple(swaps), layer_barrier=True))
    verify(program, graph)
    rates = on.link.d2h_bandwidth, on.link.h2d_bandwidth
    overhead = 0
    for layer, (small, encode, decode) in forms.items():
        hidden = net.forward[layer], net.backward[layer + 1]
        if layer in encoded:
            overhead += swapping_cost_ns(small, hidden, rates, encode + decode)
        else:
            overhead += swapping_cost_ns(net.sizes[layer], hidden, rates)
    run = run_program(program, graph, on, budget=None, iterations=2)
    assert run.timeline.iteration_ends_ns[0] == sum(net.forward) + sum(net.backward) + overhead
    assert run.steady


@settings(deadline=None, max_examples=25)
@given(chains(), links())
def test_ideal_takes_the_sum_of_the_durations(net: Chain, on: NodeSpec):
    result = simulate(chain(net.forward, net.backward, net.sizes), on, "ideal", budget=0)
    assert result.iteration_ns == result.ideal_ns == sum(net.forward) + sum(net.backward)


def true_dependencies_ns(net: Chain, on: NodeSpec, fetch_ahead: list[int]) -> int:
    """Step time if every input is offloaded after its forward and fetched `fetch_ahead` kernels early.

    Two engines, full duplex, unlimited memory: each of three streams executes in order and waits only for its
    dependencies.
    """
    link, count = on.link, len(net.forward)
    now = out_free = 0
    at_host = []
    for ns, size in zip(net.forward, net.sizes, strict=True):
        now += ns
        out_free = max(out_free, now) + link.latency_ns + -(-size * GB // link.d2h_bandwidth)
        at_host.append(out_free)
    reached: dict[int, int] = {}
    back_free = 0
    arrived: dict[int, int] = {}
    order = list(reversed(range(count)))
    wanted = {layer: max(place - fetch_ahead[layer], 0) for place, layer in enumerate(order)}
    for place, layer in enumerate(order):
        reached[place] = now
        for other in (o for o in order if wanted[o] == place):
            back_free = (
                max(back_free, now, at_host[other]) + link.latency_ns + -(-net.sizes[other] * GB // link.h2d_bandwidth)
            )
            arrived[other] = back_free
        now = max(now, arrived[layer]) + net.backward[layer]
    return now


@settings(deadline=None, max_examples=50)
@given(st.data(), chains(), links())
def test_without_a_layer_barrier_a_chain_follows_its_recurrence(data: st.DataObject, net: Chain, on: NodeSpec):
    on = node(10**9, out=on.link.d2h_bandwidth, back=on.link.h2d_bandwidth, latency=on.link.latency_ns)
    count = len(net.forward)
    ahead = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    graph = TaskGraph.of(chain(net.forward, net.backward, net.sizes))
    swaps = []
    for layer in range(count):
        place = count - 1 - layer
        before = count + place
        swaps.append(Swap(graph.block(f"x{layer + 1}"), layer, before, count + max(place - ahead[layer], 0)))
    program = lower(graph, Placement(tuple(swaps)))
    verify(program, graph)
    result = run_program(program, graph, on, budget=None, iterations=3)
    expected = true_dependencies_ns(net, on, ahead)
    assert result.timeline.iteration_ends_ns == (expected, 2 * expected, 3 * expected)
    assert result.steady
