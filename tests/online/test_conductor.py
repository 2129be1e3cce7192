"""Programs that are written while a policy decides: legal, and as fast as the clock that the policy saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import DEVICE, HOST, GpuSpec, HostSpec, LinkSpec, MemoryLink, MemorySpec, NodeSpec
from simgpu.online.conductor import Conductor
from simgpu.online.decisions import Decider, Decision, Drop, Evict, Fetch
from simgpu.online.view import Flight, View
from simgpu.policies.belady import Belady
from simgpu.policies.common.deciding import OnlinePolicy, Quiet, evicted
from simgpu.policies.deepum import DeepUm
from simgpu.policies.dtr.policy import Dtr
from simgpu.policies.flashneuron import FlashNeuron
from simgpu.policies.g10.policy import G10
from simgpu.policies.lru import Lru
from simgpu.program.instructions import InitialContents
from simgpu.program.verify import verify
from simgpu.simulation.run import plan_context, simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.chain import chain
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
from tests.semantics.random_traces import repeatable_traces, traces

POLICIES: list[OnlinePolicy] = [Lru(), Belady(), Dtr(heuristic="eq"), G10(), FlashNeuron(), DeepUm(degree=2)]
SLOW: list[OnlinePolicy] = [Dtr(heuristic=each) for each in ("dtr", "local", "msps")]
#: Six layers of 100 bytes whose backward reads what forward saved, on a link of a byte a nanosecond.
CHAIN = chain([10] * 6, [20] * 6, [100] * 6)


def node_of(memory: int, pinned: int | None = None, alignment: int = 1, *, behind: bool = False) -> NodeSpec:
    """With an SSD that has a link of its own, to the device or behind the host, which has so much pinned memory."""
    ssd = MemoryLink((HOST if behind else DEVICE, "ssd"), "wire", (5 * 10**8, 4 * 10**8), latency_ns=3)
    return NodeSpec(
        "bench",
        GpuSpec("gpu", memory, alignment=alignment),
        LinkSpec("link", 10**9, 10**9),
        HostSpec(pinned_memory=pinned),
        more_memories=(MemorySpec("ssd", "SSD"),),
        more_links=(ssd,),
    )


def conducted(trace: Trace, policy: OnlinePolicy, node: NodeSpec) -> Conductor:
    graph = transformed(TaskGraph.of(trace), policy.transforms)
    decider = policy.decider(graph)
    future, elsewhere = policy.clairvoyant, policy.offloads
    return Conductor(graph, node, node.budget, decider, frees=policy.frees, sees_future=future, offloads=elsewhere)


@pytest.mark.parametrize(
    "policy",
    [*POLICIES, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
    ids=lambda policy: f"{policy.name}-{getattr(policy, 'heuristic', '')}",
)
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
@given(data=st.data())
def test_the_clock_of_the_decisions_is_that_of_the_machine(policy: OnlinePolicy, data: st.DataObject) -> None:
    trace: Trace = data.draw(st.one_of(traces(), repeatable_traces()))
    alignment = data.draw(st.sampled_from([1, 64]))
    most = simulate(trace, node_of(10**9, alignment=alignment), "none").metrics.device_peak_used_bytes
    budget, pinned = data.draw(st.integers(most // 4, most)), data.draw(st.one_of(st.none(), st.integers(0, most)))
    node = node_of(budget, pinned, alignment, behind=data.draw(st.booleans()))
    conductor = conducted(trace, policy, node)
    try:
        conductor.run()
    except OutOfMemoryError:
        assume(False)
    result = simulate(trace, node, policy)
    assert result.iteration_ns == conductor.view.now_ns
    assert result.metrics.device_peak_used_bytes <= budget and result.steady


def test_what_was_used_longest_ago_leaves_and_comes_back_on_demand() -> None:
    """Of 600 B, 400 B hold x1 to x4 when F4 needs 100 B more, or 500 B with the gradient of backward."""
    result = simulate(CHAIN, node_of(400), "lru")
    copies = [(span.stream, span.name) for span in result.timeline if span.bytes and span.iteration == 0]
    assert copies[:2] == [("d2h", "x1"), ("d2h", "x2")]
    assert {name for stream, name in copies if stream == "h2d"} == {name for stream, name in copies if stream == "d2h"}


def test_where_the_host_is_full_blocks_go_to_the_ssd() -> None:
    copied = simulate(CHAIN, node_of(400, pinned=100), "lru").metrics.copied_bytes
    assert copied["d2h"] == copied["h2d"] >= 100
    assert copied["device2ssd"] == copied["ssd2device"] > 0


def test_who_knows_the_future_copies_no_more() -> None:
    copied = {
        policy: simulate(CHAIN, node_of(400), policy).metrics.copied_bytes.get("d2h", 0) for policy in ("lru", "belady")
    }
    assert 0 < copied["belady"] <= copied["lru"]


def test_dropping_costs_the_time_of_what_runs_again() -> None:
    result = simulate(CHAIN, node_of(450), "dtr")
    spans = [span for span in result.timeline if span.iteration == 0 and span.kind is SpanKind.RECOMPUTE]
    assert spans and not any(result.metrics.copied_bytes.values())
    assert result.iteration_ns == result.ideal_ns + sum(span.end_ns - span.start_ns for span in spans)


class Script(Quiet):
    """Does before each kernel what a test wants, and notes the copies that it hears of."""

    def __init__(self, what: Callable[[View, int], Iterable[Decision]]) -> None:
        self._what = what
        self.heard: list[Flight] = []

    def before(self, view: View, kernel: int) -> Iterable[Decision]:
        return self._what(view, kernel)

    def ended(self, view: View, flight: Flight) -> Iterable[Decision]:
        self.heard.append(flight)
        return ()


@dataclass(frozen=True)
class Scripted(OnlinePolicy):
    """Decides what a test wants."""

    name = "scripted"
    summary = source = "for tests"
    before: Callable[[View, int], Iterable[Decision]] = lambda view, kernel: ()

    def decider(self, graph: TaskGraph) -> Decider:
        return Script(self.before)


def at(kernel: int, *decisions: Decision) -> Scripted:
    return Scripted(before=lambda view, k: decisions if k == kernel else ())


def test_what_the_host_has_no_memory_for_goes_through_it_to_the_ssd() -> None:
    """Of its 250 bytes, two largest blocks' worth are for copies on their way, so no block of 100 bytes stays there.

    Each block takes 100 ns to the host and 203 ns from there to the SSD; two may be on their way at once.
    """
    policy = Scripted(before=lambda view, k: [Evict(b, "ssd") for b in (1, 2, 3)] if k == 4 else [])
    result = simulate(CHAIN, node_of(1000, 250, behind=True), policy)
    frame = result.timeline.frame()
    copies = frame[(frame["iteration"] == 2) & frame["kind"].isin(["copy_d2h", "copy_host2ssd"])]
    begin = copies["start_ns"].min()
    assert [(each.stream, each.start_ns - begin, each.end_ns - begin) for each in copies.itertuples()] == [
        ("d2h", 0, 100),
        ("d2h", 100, 200),
        ("host2ssd", 100, 303),
        ("d2h", 303, 403),
        ("host2ssd", 303, 506),
        ("host2ssd", 506, 709),
    ]
    assert result.metrics.copied_bytes == {"d2h": 300, "h2d": 300, "host2ssd": 300, "ssd2host": 300}
    assert result.metrics.shared_peak_bytes == {"host": 200, "ssd": 300}


class Eager(Quiet):
    """Fetches what is on the host as soon as there is memory for it, and evicts when memory is short."""

    def before(self, view: View, kernel: int) -> Iterable[Decision]:
        away = [b for b in sorted(view.away[HOST]) if not view.here[b] and not view.busy[b]]
        return [Fetch(b) for b in away[:1] if view.sizes[b] <= view.free]

    def short(self, view: View, need: int) -> Iterable[Decision]:
        return evicted(view, view.candidates(), need)


@pytest.mark.parametrize("memory", [220, 250, 300, 350])
def test_what_is_on_its_way_here_can_leave_again(memory: int) -> None:
    """A kernel that needs its memory waits until it has come."""
    conductor = Conductor(TaskGraph.of(CHAIN), node_of(memory), memory, Eager())
    verify(conductor.run(), TaskGraph.of(CHAIN), capacity=memory)
    assert conductor.view.here.sum() == 1


@pytest.mark.parametrize("behind", [False, True])
def test_weights_that_do_not_fit_begin_and_end_in_another_memory(behind: bool) -> None:
    """Three weights of 100 bytes, each read by a kernel and then updated by one, in 150 bytes."""
    blocks = tuple(Block(name, 100, BlockKind.WEIGHT, persistent=True) for name in "abc")
    reads = [Kernel(f"f{name}", "conv2d", Phase.FORWARD, 10, (name,), ()) for name in "abc"]
    updates = [Kernel(f"u{name}", "sgd", Phase.OPTIMIZER, 10, (name,), (name,)) for name in "cba"]
    info = TraceInfo("weights", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    trace = Trace(info, (*reads, *updates), blocks)
    node = node_of(150, 500, behind=behind)
    result = simulate(trace, node, "lru")
    assert result.program.resident == (0,) and result.program.other_contents == (InitialContents(HOST, (2, 1)),)
    # b and c come for their reads, b comes again for its update, a for its own; c goes home when it has been updated,
    # and b; a was there when the iteration began, and is at its end.
    assert result.metrics.copied_bytes["h2d"] == 400 and result.metrics.copied_bytes["d2h"] == 300
    assert result.metrics.device_peak_bytes == 100 and result.metrics.shared_peak_bytes["host"] == 300
    with pytest.raises(OutOfMemoryError, match="what is persistent"):
        simulate(trace, node, "dtr")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (at(2, Evict(99)), "evict block 99 to host before kernel F3: there is no such block"),
        (at(0, Drop(1)), "drop x2 before kernel F1: its value is not in device memory"),
        (at(2, Drop(0)), "drop x1 before kernel F3: it cannot be recomputed"),
        (at(2, Fetch(1)), "fetch x2 before kernel F3: it is in device memory already"),
        (at(2, Evict(1, "cxl")), "no link goes to memory 'cxl'"),
        (at(2, Evict(1), Evict(1)), "its value is not in device memory; decisions before it: evict x2 to host"),
        (at(2, Drop(1), Fetch(1)), "its value is in no other memory"),
    ],
)
def test_an_illegal_decision_is_refused_with_what_led_to_it(policy: Scripted, message: str) -> None:
    with pytest.raises(ProgramError, match=message.replace("(", r"\(")):
        conducted(CHAIN, policy, node_of(10**6)).run()


def test_a_block_that_is_fetched_early_costs_no_time() -> None:
    """x2 leaves after F2, in 100 ns, and comes back while B5 runs, in 100 ns, before B2 needs it."""
    trace = chain([100] * 6, [100] * 6, [100] * 6)
    plan = {2: (Evict(1),), 7: (Fetch(1),)}
    early = Scripted(before=lambda view, k: plan.get(k, ()))
    late = at(2, Evict(1))
    times = []
    for policy in (early, late):
        conductor = conducted(trace, policy, node_of(10**6))
        conductor.run()
        times.append(conductor.view.now_ns)
    assert times == [1200, 1300]


def test_only_a_clairvoyant_policy_sees_the_future() -> None:
    asking = Scripted(before=lambda view, k: [Drop(view.next_use(0))])
    with pytest.raises(ProgramError, match="not declared clairvoyant"):
        conducted(CHAIN, asking, node_of(10**6)).run()


def test_the_policy_hears_of_copies_that_ended() -> None:
    decider = Script(lambda view, k: (Evict(1),) if k == 2 else ())
    Conductor(TaskGraph.of(CHAIN), node_of(10**6), 10**6, decider).run()
    assert decider.heard[0] == Flight(1, "device", "host", 120)


def test_memory_that_no_policy_can_find_is_named() -> None:
    with pytest.raises(OutOfMemoryError, match=r"kernel .* requests 100 B, .* of 250 B are free"):
        simulate(CHAIN, node_of(250), "dtr")


def test_context_and_budget_are_those_of_the_run() -> None:
    context = plan_context(CHAIN, node_of(10**6), Lru(), budget=400)
    assert context.trial(Lru().plan(context)).iteration_ns == simulate(CHAIN, node_of(400), "lru").iteration_ns
