"""The advice after out of memory: upper and lower bounds of the memory needed, and what to try next."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import yaml

from simgpu.errors import InputError
from simgpu.experiments.advice import advice
from simgpu.experiments.compare import compare
from simgpu.experiments.scenarios.load import make_scenario
from simgpu.experiments.scenarios.model import PolicyChoice, PolicyEntry, Scenario
from simgpu.graph.bounds import memory_bounds
from simgpu.graph.replicate import Exchange
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, HostSpec, LinkSpec, NodeSpec
from simgpu.program.data_parallel import DataParallel
from simgpu.simulation.plain_peak import PeakPart
from simgpu.simulation.run import task_graph
from simgpu.trace.chain import chain
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Trace
from simgpu.units import format_bytes, format_time
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.sparsity.generator import with_sparsity
from tests.policies.contract import node_of
from tests.semantics.networks import network
from tests.workloads.configured.test_decoder_iteration import SMALL as DECODER
from tests.workloads.configured.test_decoder_iteration import built

# Three layers whose feature maps have 100, 200 and 300 bytes: the peak without offloading is all of them, a kernel
# touches some of them.
# The framework let go of each after the iteration's last kernel.
_CHAIN = chain([5, 7, 9], [10, 14, 15], [100, 200, 300])
SMALL = replace(_CHAIN, blocks=tuple(replace(block, release=RELEASED_AT_END) for block in _CHAIN.blocks))


def scenario(budget: int, *policies: str, trace: Trace = SMALL, memory: int | None = None) -> Scenario:
    built = make_scenario({"trace": "resnet20-cifar-cpu", "node": "v100", "policies": "none"}, "a test")
    node = NodeSpec("bench", GpuSpec("a GPU", budget if memory is None else memory), LinkSpec("wire", 10**9, 10**9))
    return replace(
        built, trace=trace, node=node, budget=budget, policies=tuple(PolicyChoice(name, {}) for name in policies)
    )


def advice_on(study: Scenario) -> list[tuple[str, str]]:
    return advice(study, compare(study))


def steps(study: Scenario) -> list[str]:
    return [text for name, text in advice_on(study) if name == "try"]


def needs(trace: Trace) -> tuple[int, int]:
    """Peak bytes of the policy none with enough memory, and the largest working set of a single kernel."""
    sizes = trace.block_by_id
    plenty = compare(scenario(10_000, "none", trace=trace)).results["none"]
    return plenty.high_water, max(sum(sizes[block].bytes for block in {*k.reads, *k.writes}) for k in trace.kernels)


def test_the_advised_memory_needs_match_actual_runs() -> None:
    most, smallest = needs(SMALL)
    assert compare(scenario(most, "none")).results and not compare(scenario(most - 1, "none")).results
    (first, peak), (second, kernel), *_ = advice_on(scenario(most - 1, "none"))
    assert (first, second) == ("peak without offloading", "largest working set")
    assert peak.startswith(f"{most} B at ") and peak.endswith(f"(budget {most - 1} B)")
    assert kernel.startswith(f"{smallest} B, single operator ")


@pytest.mark.parametrize(
    ("pool", "alignment", "counted"),
    [
        (None, 512, "alignment 512 B"),
        pytest.param("addressed", 512, "allocator with addresses, alignment 512 B", marks=pytest.mark.slow),
        ("caching", None, "PyTorch's caching allocator"),
    ],
)
def test_the_advised_peak_is_that_of_budgets_in_percent(pool: str | None, alignment: int | None, counted: str) -> None:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "budget": "60%"}
    study = make_scenario({**values, "pool": pool, "alignment": alignment and f"{alignment} B"}, "a test")
    assert isinstance(study.budget, PeakPart)
    (run,) = compare(replace(study, budget=None))
    assert run.result is not None and run.result.high_water == study.budget.peak
    (_, peak), *_ = advice_on(study)
    assert peak == f"{format_bytes(study.budget.peak)} ({counted}; budget {format_bytes(study.budget)})"


def test_the_fastest_fitting_policy_is_suggested() -> None:
    most, _ = needs(SMALL)
    study = scenario(most - 1, "none", "vdnn")
    by_label = compare(study)
    assert list(by_label.results) == ["vdnn"]
    assert steps(study)[0] == "vdnn: fits"
    both = replace(study, policies=(*study.policies, PolicyChoice("vdnn", {"mode": "dynamic"})))
    results = compare(both).results
    fastest = min(results, key=lambda label: results[label].iteration_ns)
    assert steps(both)[0] == f"{fastest}: fits, the fastest of those compared"


def test_all_fitting_policies_are_suggested_fastest_first() -> None:
    most, _ = needs(SMALL)
    study = scenario(most - 1, "none")
    fitting = [step for step in steps(study) if ": fits, step time " in step]
    times = []
    for step in fitting:
        words, _, advice_on = step.partition(": fits, step time ")
        (run,) = compare(study, policies=[PolicyEntry.read(yaml.safe_load(words))])
        assert run.result is not None
        assert advice_on == f"{run.result.iteration_ns} ns, peak {run.result.metrics.device_peak_bytes} B"
        times.append(run.result.iteration_ns)
    assert times == sorted(times)
    vdnn = {"vdnn", "vdnn: {mode: conv}", "vdnn: {mode: dynamic}"}
    assert {step.partition(": fits")[0] for step in fitting} == {*vdnn, "vdnn+", "modnn"}


def test_advice_writes_policies_in_the_format_of_the_caller() -> None:
    most, _ = needs(SMALL)
    study, advice_on = scenario(most - 1, "none"), list[str]()
    result = advice(study, compare(study), written=lambda policy: f"<{policy}>", progress=advice_on.append)
    assert any(text.startswith("<vdnn: {mode: dynamic}>: fits, ") for _, text in result)
    assert "trying vdnn(mode=dynamic)" in advice_on
    assert "trying none" not in advice_on, "what was tried is not tried again"


def test_advice_suggests_only_what_fits_and_runs() -> None:
    weight = Block("w", 150, BlockKind.WEIGHT, persistent=True)
    reading = replace(SMALL.kernels[0], reads=(*SMALL.kernels[0].reads, "w"))
    with_weight = replace(SMALL, blocks=(*SMALL.blocks, weight), kernels=(reading, *SMALL.kernels[1:]))
    _, smallest = needs(with_weight)
    tight = scenario(smallest, "none", trace=with_weight)
    for name in ("vdnn", "cdma", "cswap"):
        with contextlib.suppress(InputError):  # two of them refuse a trace without sparsity
            assert not compare(tight, policies=[name]).results
    assert steps(tight)[0] == "more memory: none of the built-in policies that support this trace and node fits"


def test_policies_are_not_tried_on_a_long_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    most, _ = needs(SMALL)
    monkeypatch.setattr("simgpu.experiments.advice._MOST_KERNELS", len(SMALL.kernels) - 1)
    too_long = f"with {len(SMALL.kernels)} kernels, this trace is too long to try them all here"
    assert steps(scenario(most - 1, "none"))[0] == f"another policy (simgpu list policies); {too_long}"


@pytest.mark.slow
def test_a_policy_is_not_tried_again_with_another_launch_setting() -> None:
    trace = build_trace("alexnet", batch=8, gpu=load_node("v100").gpu)
    study = replace(scenario(2**30, "none", trace=with_sparsity(trace, 1)), node=load_node("v100"), budget=750 * 2**20)
    tried: list[str] = []
    requested = replace(study, policies=(PolicyChoice("static", {"launch": "random"}),))
    advice(requested, compare(requested), progress=tried.append)
    assert "trying vdnn" in tried and not [label for label in tried if "static" in label]


def test_no_policy_is_suggested_if_a_single_kernel_does_not_fit() -> None:
    _, smallest = needs(SMALL)
    first, *_ = steps(scenario(smallest - 1, "none", "vdnn"))
    assert first == "more memory: no policy reduces the working set of a single kernel"


def test_only_more_memory_is_suggested_if_one_sample_does_not_fit() -> None:
    trace = build_trace("resnet20", batch=64, gpu=load_node("v100").gpu)
    one = f"{format_bytes(2**16)}"
    short = replace(scenario(2**16, "none", trace=trace), node=load_node("v100"))
    assert steps(short) == [f"more memory: a single sample does not fit {one}"]


@pytest.mark.slow
def test_needs_of_sub_batches_are_reported_and_fitting_ones_suggested() -> None:
    node = load_node("v100")
    trace = build_trace("resnet20", batch=512, gpu=node.gpu)
    bounds = memory_bounds(task_graph(trace, node))
    tight = replace(scenario(bounds.bound.bytes, "none", trace=trace), node=node)
    facts = dict(advice_on(tight))
    assert facts["memory lower bound"].startswith(
        f"{format_bytes(bounds.bound.bytes)} with micro-batches of one sample"
    )
    assert steps(tight)[0].startswith("modnn: fits, ")
    assert steps(tight)[0].endswith("; gradient accumulation, 512 micro-batches")


def test_a_larger_budget_is_suggested_if_the_node_has_the_memory() -> None:
    most, _ = needs(SMALL)
    larger = f"a larger budget: bench has {most} B, enough without offloading"
    assert larger in steps(scenario(most - 1, "none", memory=most))
    assert not [step for step in steps(scenario(most - 1, "none", memory=most - 1)) if step.startswith("a larger")]


@pytest.mark.parametrize(
    ("batch", "model", "tool", "expected"),
    [
        (64, "vgg16", "simgpu zoo 1", "a smaller batch: simgpu zoo build vgg16 --batch 32, other options unchanged"),
        (
            64,
            "squeezenet1.0",
            "simgpu zoo 1",
            "a smaller batch: simgpu zoo build squeezenet --batch 32, other options unchanged",
        ),
        (64, "my-net", "simgpu zoo 1", "a smaller batch: simgpu.at_batch(trace, 32) in Python (modelled)"),
        (64, "vgg16", "simgpu record 1", "a smaller batch: simgpu.at_batch(trace, 32) in Python (modelled)"),
        (1, "vgg16", "simgpu zoo 1", None),
    ],
)
def test_a_smaller_batch_is_suggested_if_possible(batch: int, model: str, tool: str, expected: str | None) -> None:
    blocks = tuple(replace(each, bytes=64 * each.bytes) for each in SMALL.blocks)
    trace = replace(SMALL, info=replace(SMALL.info, model=model, batch=batch, tool=tool), blocks=blocks)
    result = [step for step in steps(scenario(64 * 300, "none", trace=trace)) if step.startswith("a smaller batch")]
    assert result == ([] if expected is None else [expected])


def test_the_host_exchange_is_suggested_if_fetched_gradients_do_not_fit() -> None:
    wire = LinkSpec("wire", 10**9, 10**9)
    gpu = GpuSpec("a GPU", 10**6, dram_bandwidth=10**10)
    node = NodeSpec("bench", gpu, wire, HostSpec(accumulate_bandwidth=10**9), gpus=2)
    gathered = replace(
        scenario(10**6, "none", "vdnn", trace=network([100, 200, 300])),
        node=node,
        data_parallel=DataParallel(2, Exchange.GATHER),
    )
    hosted = compare(replace(gathered, data_parallel=DataParallel(2)))
    needs = {label: result.high_water for label, result in hosted.results.items()}
    both = "data_parallel.exchange: host, under which GPU 0 fetches no gradients; none, vdnn would fit"
    assert steps(replace(gathered, budget=max(needs.values())))[0] == both
    assert not any("exchange" in step for step in steps(replace(gathered, budget=min(needs.values()) - 1)))
    assert not any("exchange" in step for step in steps(gathered))


def test_another_memory_that_ran_out_is_named() -> None:
    study = scenario(650, "vdnn")
    study = replace(study, node=replace(study.node, host=HostSpec(50)))
    assert steps(study)[0] == "more host memory (host.pinned_memory): vdnn ran out of it, not of device memory"


def test_there_is_no_peak_where_gradients_do_not_fit_the_host() -> None:
    host = HostSpec(50, accumulate_bandwidth=10**9)
    node = NodeSpec("bench", GpuSpec("a GPU", 10**6), LinkSpec("wire", 10**9, 10**9), host, gpus=2)
    study = scenario(10**6, "none", trace=network([100, 200, 300]))
    study = replace(study, node=node, data_parallel=DataParallel(2))
    assert "peak without offloading" not in dict(advice_on(study))
    assert steps(study)[0].startswith("more host memory")


def sharing(*policies: str, part: int) -> Scenario:
    """A decoder on four GPUs, in this percentage of what `fsdp` needs of each."""
    trace = built({**DECODER, "num_hidden_layers": 3}, 64, batch=4).trace
    study = replace(scenario(2**30, *policies, trace=trace), node=node_of(2**30, gpus=4))
    inside = PolicyEntry.read({"fsdp": {"gpus": 4}})
    (run,) = compare(study, policies=[inside])
    assert run.result is not None
    choices = tuple(PolicyChoice(name, {"gpus": 4} if name == "fsdp" else {}) for name in policies)
    return replace(study, policies=choices, budget=run.result.high_water * part // 100)


def test_advice_under_fsdp_is_about_the_memory_that_gpus_share_and_policies_inside() -> None:
    study = sharing("fsdp", part=70)
    facts, tried = advice_on(study), steps(study)
    assert [name for name, _ in facts if name != "try"] == ["peak without offloading"]
    assert facts[0][1].startswith("fsdp(gpus=4): ")
    fitting = [step for step in tried if ": fits, step time " in step]
    assert any(step.startswith("fsdp: {gpus: 4, inside: checkpoint}: fits") for step in fitting)
    for step in fitting:
        words, _, rest = step.partition(": fits, step time ")
        (run,) = compare(study, policies=[PolicyEntry.read(yaml.safe_load(words))])
        assert run.result is not None and rest.startswith(format_time(run.result.iteration_ns))
    assert "a larger budget: bench has 1 GiB, enough for fsdp(gpus=4) without offloading" in tried


def test_needs_of_one_gpu_alone_are_called_so_next_to_fsdp() -> None:
    facts = [text for name, text in advice_on(sharing("none", "fsdp", part=100)) if name != "try"]
    assert len(facts) > 1 and all(text.startswith("one GPU alone: ") for text in facts)


def test_no_time_bound_of_one_gpu_is_shown_where_gpus_exchange_data() -> None:
    compared = compare(sharing("ideal", "fsdp", part=100), bound=True)
    assert compared.bounds is None
    assert compared.bound_note == "no lower bound is known for GPUs that exchange data, as under fsdp"
    both = compare(sharing("none", "fsdp", part=200), bound=True)
    assert both.bounds is not None and [row[4] == "-" for row in both.rows()] == [False, True]
