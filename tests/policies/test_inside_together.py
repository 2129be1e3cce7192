"""Every policy inside `fsdp` and `ddp`: it runs within the memory of one GPU, is out of memory, or is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from simgpu.errors import InputError, OutOfMemoryError, PolicyError
from simgpu.hardware.nodes import load_node
from simgpu.policies.calling import planned
from simgpu.policies.common.together import TrainsTogether
from simgpu.policies.none import NoPolicy
from simgpu.policies.registry import make_policy, policy_class, policy_names
from simgpu.program.instructions import DEVICE
from simgpu.program.shards import ExchangeCosts
from simgpu.program.verify import verify
from simgpu.simulation.run import Result, plan_context, simulate
from simgpu.trace.model import BlockKind, SparsitySample, Trace
from simgpu.trace.stats import trace_stats
from tests.policies.contract import node_of
from tests.workloads.configured.test_decoder_iteration import SMALL, built

GPUS = 4
OUTER: dict[str, dict[str, object]] = {"fsdp": {}, "ddp": {}, "ddp, optimizer": {"shards": "optimizer"}}
#: Parameters with which a search is short, or anything moves.
QUICK: dict[str, dict[str, object]] = {
    "joint": {"evaluations": 200},
    "home": {"particles": 10, "iterations": 3},
    "checkmate": {"groups": 8, "evaluations": 500},
    "swapadvisor": {"population": 4, "generations": 1},
    "static": {"launch": "expert"},
    "cswap": {"launch": "expert"},
    "async_offload": {"min_bytes": 1},
    "offload_activations": {"min_offload_size": 1},
    "offload_groups": {"min_elements": 1},
    "fsdp": {"gpus": GPUS},
    "ddp": {"gpus": GPUS},
}
OTHERS = ("capuchin(version=published)", "dtr(deallocation=ignore)", "deepum(migrates=pages)")
#: Policies that are refused, and why. An accumulation is, too, where one micro-batch does not fit.
MICRO_BATCHES = "is for micro-batches that it makes of the batch"
REFUSED = {
    **dict.fromkeys(("vdnn+", "modnn"), MICRO_BATCHES),
    **dict.fromkeys(("optimizer_on_host", "weights_on_host"), "moves weights, gradients or optimizer state"),
    "save_on_cpu": "the policy inside moves",
    **dict.fromkeys(("um", "deepum(migrates=pages)"), "has blocks paged or in host memory"),
    **dict.fromkeys(("fsdp", "ddp"), "would divide the GPUs twice"),
    "buddy": "has no compressed memory",
    "revolve": "the network is no chain",
}
#: Policies that keep more than the tight memory has, whatever the budget of their plan.
TOO_LARGE = {"none", "vdnn++", "static", "cswap", "oracle", "superneurons"}
#: The search of these takes a second and more.
LONG = ("joint", "home", "checkmate")


@cache
def decoder() -> Trace:
    """Two layers, with activations of mostly zeros."""
    trace = built({**SMALL, "num_hidden_layers": 2}, 64, optimizer="adamw-fused", batch=4).trace
    maps = [block.id for block in trace.blocks if block.kind is BlockKind.ACTIVATION]
    return replace(trace, sparsity=tuple(SparsitySample(name, 0, 0.8) for name in maps))


def together(outer: str, inside: object) -> TrainsTogether:
    policy = make_policy(outer.partition(",")[0], {"gpus": GPUS, "inside": inside} | OUTER[outer])
    assert isinstance(policy, TrainsTogether)
    return policy


def run(outer: str, inside: object, memory: int) -> Result:
    node = node_of(memory, gpus=GPUS, compressing=inside == "cdma")
    return simulate(decoder(), node, together(outer, inside), iterations=3)


@cache
def memories(outer: str) -> dict[str, int]:
    """Of one GPU: enough without a policy inside, and half-way to where all activations leave."""
    most, least = (
        run(outer, inside, 2**30).metrics.device_peak_bytes for inside in ("none", "async_offload(min_bytes=1)")
    )
    return {"roomy": most, "tight": (most + least) // 2}


def cases() -> list[Any]:
    built_in = [name for name in policy_names() if policy_class(name).__module__.startswith("simgpu.")]
    return [
        pytest.param(
            outer,
            name,
            memory,
            marks=pytest.mark.slow if outer != "fsdp" or (name in LONG and memory != "tight") else (),
            id=f"{outer}-{name}-{memory}",
        )
        for outer in OUTER
        for name in (*built_in, *OTHERS)
        for memory in ("roomy", "tight")
    ]


@pytest.mark.parametrize(("outer", "name", "memory"), cases())
def test_a_policy_inside_keeps_to_the_memory_of_one_gpu_or_says_why_not(outer: str, name: str, memory: str) -> None:
    inside: object = {name: QUICK[name]} if name in QUICK else name
    budget = memories(outer)[memory]
    refused = REFUSED.get(name, MICRO_BATCHES if (name, memory) == ("accumulate", "tight") else "")
    if refused:
        with pytest.raises(InputError, match=refused) as caught:
            run(outer, inside, budget)
        assert not isinstance(caught.value, PolicyError) and all(each.remedy for each in caught.value.problems)
    elif memory == "tight" and name in TOO_LARGE:
        with pytest.raises(OutOfMemoryError) as lacking:
            run(outer, inside, budget)
        assert lacking.value.capacity == budget
        assert not any(fits(outer, inside, budget, part) for part in range(13))
    else:
        result = run(outer, inside, budget)
        verify(result.program, plan_context(decoder(), result.node, NoPolicy()).graph, node=result.node)
        assert result.high_water <= budget or name == "ideal"
        assert {k.id for k in decoder().kernels} <= {span.name for span in result.timeline}
        assert not [note for note in result.notes if "lower bound" in note or "best possible" in note]


def fits(outer: str, inside: object, budget: int, part: int) -> bool:
    """Whether the policy's plan for so many twelfths of what one GPU needs alone fits when the GPUs share."""
    policy = together(outer, inside)
    context = plan_context(decoder(), node_of(budget, gpus=GPUS), policy)
    change = policy.exchanging(context.graph, ExchangeCosts(policy.group, context.node))
    peak = trace_stats(decoder()).peak_recorded
    assert peak is not None
    kept = policy.shared(context.graph)
    graph = replace(context.graph, sizes=tuple(0 if b in kept else n for b, n in enumerate(context.graph.sizes)))
    alone = replace(context, graph=graph, budget=peak.bytes * part // 12, resident=policy.shared)
    try:
        context.trial(change(planned(policy.inner, replace(alone, trial=lambda each: context.trial(change(each))))))
    except (OutOfMemoryError, InputError):
        return False
    return True


@pytest.mark.parametrize("name", ["dtr", "lru", "belady", "g10", "deepum", "flashneuron", "capuchin"])
def test_a_policy_inside_fsdp_fits_in_less_than_the_state_that_one_gpu_alone_has(name: str) -> None:
    """Weights, gradients and optimizer state are shards, and stay; activations leave or are computed again."""
    wide = {**SMALL, "num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 256}
    trace = built(wide, 64, optimizer="adamw-fused").trace
    kept = (BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE)
    state = {block.id: block.bytes for block in trace.blocks if block.persistent and block.kind in kept}
    budget = sum(state.values()) * 9 // 10
    node, parameters = node_of(budget, gpus=GPUS), {"gpus": GPUS, "inside": name}
    with pytest.raises(OutOfMemoryError):
        simulate(trace, node, "fsdp", parameters={"gpus": GPUS})
    result = simulate(trace, node, "fsdp", parameters=parameters)
    assert result.high_water <= budget
    assert not state.keys() & {span.name for span in result.timeline if span.label.startswith("copy_")}
    assert any(f"{name} planned with" in note for note in result.notes)


def test_the_budget_of_the_plan_is_as_large_as_the_memory_allows() -> None:
    """What leaves only when memory is short leaves hardly more than it must."""
    for outer in ("fsdp", "ddp"):
        budget = memories(outer)["tight"]
        assert run(outer, "lru", budget).timeline.memory(DEVICE).used.max() > budget * 9 // 10


@pytest.mark.parametrize("outer", ["fsdp", "ddp"])
def test_several_compute_streams_are_refused(outer: str) -> None:
    first, *others = decoder().kernels
    trace = replace(decoder(), kernels=(replace(first, stream=7), *others))
    with pytest.raises(InputError, match=f"kernels ran on 2 compute streams, {outer} runs one layer at a time; record"):
        simulate(trace, node_of(2**30, gpus=GPUS), outer, parameters={"gpus": GPUS})


@pytest.mark.parametrize("outer", ["fsdp", "ddp"])
def test_gradients_that_backward_adds_up_in_float32_are_refused(outer: str) -> None:
    trace = built(SMALL, master_weights="main-grad").trace
    with pytest.raises(InputError, match=r"gradients are added up in float32, .*without --master-weights main-grad"):
        simulate(trace, load_node("h100-x8"), outer)


def test_gradients_of_later_micro_batches_stay_until_they_are_reduced() -> None:
    trace = built(SMALL, 64, optimizer="adamw-fused", batch=4, micro_batches=2).trace

    def within(percent: int, inside: str) -> Result:
        return simulate(trace, node_of(most * percent // 100, gpus=GPUS), together("fsdp", inside), iterations=3)

    most = simulate(trace, node_of(2**30, gpus=GPUS), together("fsdp", "none")).high_water
    for percent, inside in ((55, "lru"), (50, "capuchin(version=published)")):
        result = within(percent, inside)
        assert result.steady and result.high_water <= most * percent // 100
    with pytest.raises(InputError, match="new memory where a kernel adds to it, and GPUs exchange one sum"):
        within(50, "dtr")


def test_what_runs_again_before_forward_has_ended_has_the_weights_of_forward() -> None:
    """Checkmate computes results of a layer again in forward when memory is short."""
    most, middle = memories("fsdp").values()
    result = run("fsdp", {"checkmate": QUICK["checkmate"]}, 2 * middle - most)
    first = next(span for span in result.timeline if span.label == "recompute")
    assert first.start_ns < min(s.start_ns for s in result.timeline if s.name == "loss._log_softmax")
    assert result.steady
