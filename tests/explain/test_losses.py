"""Every nanosecond that is not the first run of a kernel is attributed to a tensor, an engine and a decision."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu import load_node, load_scenario, load_trace
from simgpu.analysis.breakdown import Owner
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.explain.losses import Loss, losses, overhead_parts
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.deepum import DeepUm
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind as K
from simgpu.timeline.streams import is_compute
from simgpu.trace.chain import chain
from tests.semantics.random_traces import nodes, traces
from tests.semantics.test_random_runs import placed

many = settings(suppress_health_check=list(HealthCheck), max_examples=40)
CHAIN = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
NODE = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))


def by_owner(result: tuple[Loss, ...]) -> Counter[Owner | str]:
    """Nanoseconds by owner, and by engine where compute waited for copies."""
    sums: Counter[Owner | str] = Counter()
    for loss in result:
        sums[loss.copy_engine or loss.owner] += loss.ns
    return sums


def check_sums(result: Result) -> tuple[Loss, ...]:
    outcome, parts = losses(result), result.metrics.breakdown
    assert by_owner(outcome) == Counter(
        {
            owner: ns
            for owner, ns in {
                Owner.RECOMPUTE: parts.recompute,
                Owner.CODEC: parts.codec,
                "d2h": parts.stalled_copies["d2h"],
                "h2d": parts.stalled_copies["h2d"],
                Owner.MEMORY: parts.stalled_memory,
                Owner.HOST: parts.stalled_host,
                Owner.LAUNCH: parts.stalled_launch,
                Owner.OTHER: parts.stalled_other,
            }.items()
            if ns
        }
    )
    assert sum(dict(overhead_parts(result, outcome)).values()) == result.iteration_ns - result.ideal_ns
    assert [loss.ns for loss in outcome] == sorted((loss.ns for loss in outcome), reverse=True)
    return outcome


def test_losses_of_vdnn_on_a_chain_match_a_count_by_hand() -> None:
    # Each copy begins with its layer's kernel; what is left of it when the kernel has ended is what the next one waits.
    result = check_sums(simulate(CHAIN, NODE, "vdnn"))
    assert [(loss.ns, *loss.cause, loss.tensor_bytes, loss.kernel) for loss in result] == [
        (20 - 7, "x2", "d2h", "offload during F2 of L2", "F3 of L3 waits for this copy", 200, "F3 of L3"),
        (10 - 5, "x1", "d2h", "offload during F1 of L1", "F2 of L2 waits for this copy", 100, "F2 of L2"),
        (20 - 18, "x2", "h2d", "prefetch during B3 of L3", "B2 of L2 uses it", 200, "B2 of L2"),
    ]


def test_a_run_of_ideal_has_no_losses() -> None:
    assert losses(simulate(CHAIN, NODE, "ideal")) == ()


@many
@given(st.data(), st.sampled_from(["counting", "addressed"]))
def test_losses_add_up_to_the_breakdown_for_random_traces_and_budgets(data: st.DataObject, pool: str) -> None:
    trace, node = data.draw(traces()), data.draw(nodes(launches=True))
    most = sum(-(-block.bytes // node.gpu.alignment) for block in trace.blocks) * node.gpu.alignment
    budget = data.draw(st.one_of(st.just(most), st.integers(0, most)))
    try:
        result = simulate(trace, node, data.draw(placed(trace)), budget=budget, pool=pool)
    except OutOfMemoryError:
        return
    check_sums(result)


@pytest.mark.slow
@many
@given(st.data())
def test_attribution_to_copies_equals_a_count_nanosecond_by_nanosecond(data: st.DataObject) -> None:
    """The cause of each stalled nanosecond, found span by span from the definition in the docstring."""
    trace, node = data.draw(traces()), data.draw(nodes())
    result = simulate(trace, node, data.draw(placed(trace)), budget=10**9)
    slowly: Counter[tuple[str, str, str]] = Counter()
    spans = list(result.timeline)
    for instant in range(*result.timeline.window(-1)):
        now = {span.stream: span for span in spans if span.start_ns <= instant < span.end_ns}
        compute = [span for name, span in now.items() if is_compute(name)]
        if any(not span.kind.is_stall for span in compute):
            continue
        span = compute[0]
        while span.kind is K.STALL_EVENT and span.cause in now:
            span = now[span.cause]
        if span.kind is K.STALL_ENGINE:
            span = next(other for other in now.values() if other.kind is K.COPY)
        assert span.kind is K.COPY, "with memory to spare, nothing but copies stalls a placement"
        slowly[span.name, span.stream, span.resource] += 1
    outcome: Counter[tuple[str, str, str]] = Counter()
    for loss in losses(result):
        outcome[loss.cause.tensor, loss.cause.engine, loss.copy_engine] += loss.ns
    assert outcome == slowly


POLICIES = ["none", "vdnn", "superneurons", "capuchin", "home", "modnn", "um", "vdnn+"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_loss_of_a_recorded_network_has_tensor_engine_and_decision(policy: str) -> None:
    scenario = load_scenario("quickstart")
    result = simulate(scenario.trace, scenario.node, policy, budget="50 MiB" if policy == "none" else "20 MiB")
    for loss in check_sums(result):
        assert loss.cause.tensor in {block.id for block in result.graph.blocks}
        assert loss.cause.engine in result.timeline.streams
        assert loss.cause.decision
        assert loss.cause.reason or not loss.stalled
        assert loss.tensor_bytes > 0
        assert loss.what


def test_waits_for_prefetched_pages_name_the_copy_that_they_wait_for() -> None:
    scenario = load_scenario("quickstart")
    policy = DeepUm(degree=2, migrates="pages")
    outcome = check_sums(simulate(scenario.trace, scenario.node, policy, budget="20 MiB"))
    decisions = {(loss.cause.engine, loss.cause.decision) for loss in outcome if loss.stalled}
    assert {("h2d", "pages fetched ahead"), ("d2h1", "pages evicted")} <= decisions
    assert all(loss.cause.reason.endswith("accesses it") for loss in outcome if loss.stalled)


def test_recomputation_is_attributed_to_the_recomputed_tensors() -> None:
    scenario = load_scenario("quickstart")
    result = simulate(scenario.trace, scenario.node, "superneurons")
    again = [loss for loss in losses(result) if loss.owner is Owner.RECOMPUTE]
    assert again
    assert all(loss.cause.decision.startswith("recompute for k") and not loss.stalled for loss in again)


def test_codec_time_is_attributed_to_the_encoded_tensor() -> None:
    scenario = load_scenario("vgg16-v100")
    result = check_sums(simulate(scenario.trace, scenario.node, "static", parameters={"launch": "expert"}))
    coded = {(loss.cause.tensor, loss.cause.decision) for loss in result if loss.owner is Owner.CODEC}
    assert ("conv1_1", "encode before offload") in coded
    assert ("conv1_1", "decode after prefetch") in coded
    travelling = next(loss for loss in result if loss.cause.tensor == "conv1_1:zvc")
    assert travelling.what == "encoded activation of conv1_1"


def test_codecs_of_the_host_come_after_the_offload_and_before_the_prefetch() -> None:
    scenario = load_scenario("vgg16-v100")
    result = simulate(scenario.trace, scenario.node, "vdnn++", epoch=30)
    decisions = {loss.cause.decision for loss in check_sums(result) if loss.cause.engine == "host"}
    assert decisions == {"encode on the host after offload", "decode on the host before prefetch"}
    moved = [loss.cause.decision for loss in losses(result) if loss.cause.engine in ("d2h", "h2d")]
    assert all(decision.startswith(("offload during", "prefetch during")) for decision in moved)


def test_a_stall_on_memory_is_attributed_to_the_offloaded_block() -> None:
    """F2 writes 300 bytes next to 300 that are there: of 500, not before x1 has left, which takes from the end of
    F1."""
    from simgpu.graph.taskgraph import TaskGraph
    from simgpu.program.placement import Placement, Swap
    from tests.semantics.test_random_runs import Placed

    graph = TaskGraph.of(CHAIN)
    placement = Placement((Swap(graph.block("x1"), after=0, before=5, fetch_with=5),))
    slow = NodeSpec("slow", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**9, 10**9))
    result = simulate(CHAIN, slow, Placed(placement, recorded=False), budget=500)
    waited = [loss for loss in check_sums(result) if loss.owner is Owner.MEMORY]
    assert [(loss.cause.tensor, loss.cause.engine, loss.cause.reason) for loss in waited] == [
        ("x1", "d2h", "F2 of L2 waits for device memory")
    ]
    assert waited[0].ns == 100


@pytest.mark.slow
def test_page_migrations_are_attributed_to_their_blocks() -> None:
    node, trace = load_node("buddy-gpu"), load_trace("hpc-seismic")
    result = check_sums(simulate(trace, node, "um", budget="2 GiB"))
    assert {loss.cause.decision for loss in result} == {"page faults", "pages fetched", "pages evicted"}
    pinned = check_sums(simulate(trace, node, "um", parameters={"access": "pinned"}, budget="2 GiB"))
    assert {loss.cause.decision for loss in pinned} <= {"reads from host memory", "writes to host memory"}


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["host", "gather"])
def test_losses_of_data_parallel_runs_name_engines_and_host_cores(exchange: str) -> None:
    scenario = load_scenario("quickstart", {"node": "k40-x4", "data_parallel.gpus": 4})
    result = simulate(scenario.trace, scenario.node, "vdnn", gpus=4, exchange=exchange)
    outcome = check_sums(result)
    engines = {loss.cause.engine for loss in outcome}
    assert engines & ({"host1"} if exchange == "host" else {"gpu1.h2d", "gpu1.d2h"})
    assert all(loss.cause.decision == "runs on the host" for loss in outcome if loss.cause.engine == "host1")
    moved = [loss for loss in outcome if loss.what.startswith("weight")]
    assert moved
    assert all("gradient exchange" in loss.cause.decision for loss in moved)


def test_the_fetch_of_a_weight_updated_on_the_host_is_attributed_to_the_gradient_exchange() -> None:
    """It waits for the host's update, not for the event of the previous copy on its stream."""
    scenario = load_scenario("quickstart", {"node": "k40-x4", "data_parallel.gpus": 4})
    result = simulate(scenario.trace, scenario.node, "vdnn", gpus=4, exchange="host")
    last = next(loss for loss in losses(result) if loss.cause.tensor == "conv1.weight")
    assert last.cause.decision == "gradient exchange, H2D"


def test_a_value_that_is_not_a_result_is_refused_with_a_remedy() -> None:
    from simgpu import compare, explain_result

    comparison = compare(CHAIN, NODE, ["vdnn"])
    with pytest.raises(InputError, match=r"comparison\.results\['vdnn'\]"):
        explain_result(comparison)  # type: ignore[arg-type]
