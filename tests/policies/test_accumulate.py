"""`accumulate`: the time and peak of gradient accumulation in closed form, alone and with other policies inside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Decisions
from simgpu.policies.accumulate import GradientAccumulation, adding_rate
from simgpu.policies.base import policy_label
from simgpu.policies.joint.time_bounds import bounds_of
from simgpu.policies.registry import make_policy, policy_written
from simgpu.program.data_parallel import elementwise_rate
from simgpu.simulation.run import Result, simulate, task_graph
from simgpu.trace.folder import load_trace
from simgpu.trace.model import BlockKind, Origin, Trace
from simgpu.units import format_time
from simgpu.workloads.rescale import at_batch
from tests.explain.test_losses import check_sums
from tests.semantics.hand_made import BACKWARD, GB, OPTIMIZER, block, held, kernel, node, trace
from tests.sets import slow_except

LAYERS, BATCH, ACTIVATION, WEIGHT, ADD_NS = 6, 8, 8000, 200, 30


def equal_layers() -> Trace:
    """Equal layers: x0 -> x1 -> ... -> x6, each with a weight; the optimizer moves as many bytes as 6 adds."""
    numbers = range(1, LAYERS + 1)
    weights, gradients = [f"w{n}" for n in numbers], [f"w{n}.grad" for n in numbers]
    kernels = [kernel(f"F{n}", 400, f"x{n - 1} w{n}", f"x{n}", layer=f"L{n}") for n in numbers]
    for n in reversed(numbers):
        above, below = (f"g{n}" if n < LAYERS else f"x{n}"), (f" g{n - 1}" if n > 1 else "")
        reads, writes = f"{above} x{n - 1} w{n}", f"w{n}.grad{below}"
        kernels.append(kernel(f"B{n}", 800, reads, writes, phase=BACKWARD, layer=f"L{n}"))
    step = kernel("step", LAYERS * ADD_NS, " ".join((*weights, *gradients)), " ".join(weights), phase=OPTIMIZER)
    blocks = [
        held("x0", ACTIVATION, kind=BlockKind.INPUT),
        *(block(f"x{n}", ACTIVATION) for n in numbers),
        *(block(f"g{n}", ACTIVATION, kind=BlockKind.GRADIENT) for n in numbers if n < LAYERS),
        *(held(name, WEIGHT, kind=BlockKind.WEIGHT) for name in weights),
        *(block(name, WEIGHT, kind=BlockKind.WEIGHT_GRADIENT, release="end") for name in gradients),
    ]
    built = trace([*kernels, replace(step, pure=False)], blocks)
    return replace(built, info=replace(built.info, batch=BATCH))


def run(built: Trace, where: NodeSpec | None = None, *, budget: int | None = None, **parameters: object) -> Result:
    """A run of `accumulate`."""
    return simulate(built, where or node(10**12), "accumulate", parameters=parameters, budget=budget)


def peak_of(count: int) -> int:
    """At the last layer's backward: the input, 6 activations and a gradient of one micro-batch, the weights, and the
    new gradient of one weight; in later micro-batches also the sums of all."""
    sums = LAYERS * WEIGHT if count > 1 else 0
    return (LAYERS + 2) * ACTIVATION // count + LAYERS * WEIGHT + sums + WEIGHT


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_equal_layers_take_the_micro_steps_the_adds_and_one_optimizer_step(count: int):
    micro = simulate(at_batch(equal_layers(), BATCH // count), node(), "none").iteration_ns - LAYERS * ADD_NS
    result = run(equal_layers(), micro_batches=count)
    assert result.iteration_ns == count * micro + (count - 1) * LAYERS * ADD_NS + LAYERS * ADD_NS
    assert result.iteration_ns == result.graph.ideal_ns()
    assert result.steady


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_equal_layers_have_the_peak_of_one_micro_batch_and_the_sums(count: int):
    assert run(equal_layers(), micro_batches=count).metrics.device_peak_bytes == peak_of(count)


@pytest.mark.parametrize("built", [equal_layers(), load_trace("resnet20-cifar-cpu")], ids=["equal layers", "resnet20"])
def test_one_micro_batch_is_the_plain_step(built: Trace):
    plain, one = simulate(built, node(10**12), "none"), run(built, micro_batches=1)
    assert one.program == plain.program and one.notes == plain.notes
    assert list(one.timeline) == list(plain.timeline)
    assert one.metrics.device_peak_bytes == plain.metrics.device_peak_bytes


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_smallest_number_that_fits_is_chosen(count: int):
    result = run(equal_layers(), budget=peak_of(count))
    assert result.iteration_ns == run(equal_layers(), micro_batches=count).iteration_ns
    assert ("no smaller number fits" in result.notes) == (count > 1)


def test_too_little_memory_for_one_sample_is_out_of_memory():
    with pytest.raises(OutOfMemoryError):
        run(equal_layers(), budget=peak_of(BATCH) - 1)


def test_a_trace_that_cannot_be_split_runs_as_one_micro_batch_unless_a_number_is_given():
    late = kernel("late", 1, "w1", "", phase=BACKWARD)
    built = equal_layers()
    built = replace(built, kernels=(*built.kernels, late))
    with pytest.raises(InputError, match="kernel 'step' of the optimizer runs before backward has ended"):
        run(built, micro_batches=2)
    with pytest.raises(OutOfMemoryError):
        run(built, budget=peak_of(1) - 1)
    assert run(built).program == simulate(built, node(10**12), "none").program


@pytest.mark.parametrize("inside", ["none", "checkpoint", "checkpoint(inputs=waiting)", "save_on_cpu"])
@pytest.mark.parametrize("count", slow_except([2, 4], 2))
def test_a_policy_whose_copies_never_overlap_runs_in_each_micro_batch(inside: str, count: int):
    """Every micro-batch takes its time at that batch, in which adds run alone."""
    built = load_trace("resnet20-cifar-cpu")
    where = load_node("laptop-2gb")
    alone = policy_written(inside)
    micro = simulate(at_batch(built, built.info.batch // count), where, alone.name, parameters=alone.parameters)
    result = run(built, where, micro_batches=count, inside=inside)
    optimizer = sum(k.duration_ns for k in built.kernels if k.phase is OPTIMIZER)
    adds = sum(ns for k, ns in zip(result.graph.kernels, result.graph.durations, strict=True) if is_add(k.id))
    assert result.iteration_ns == count * (micro.iteration_ns - optimizer) + (count - 1) * adds + optimizer
    assert result.steady
    gradients = sum(b.bytes for b in built.blocks if b.kind is BlockKind.WEIGHT_GRADIENT)
    more = result.metrics.device_peak_bytes - micro.metrics.device_peak_bytes
    assert 0 <= more <= 2 * gradients


def is_add(kernel: str) -> bool:
    return kernel.partition("@")[2].partition(":")[2] != ""


@pytest.mark.parametrize("inside", ["vdnn", "superneurons", "capuchin", "async_offload(min_bytes=1)"])
def test_copies_of_a_policy_inside_may_overlap_with_adds(inside: str):
    built, where = load_trace("resnet20-cifar-cpu"), load_node("laptop-2gb")
    parameters = dict(make_policy("async_offload", {"min_bytes": 1}).parameters) if "(" in inside else {}
    name = inside.partition("(")[0]
    micro = simulate(at_batch(built, 8), where, name, parameters=parameters, budget="12 MiB")
    result = run(built, where, micro_batches=4, inside=inside, budget=12 * 2**20)
    assert result.graph.ideal_ns() < result.iteration_ns
    assert result.metrics.device_peak_bytes <= 12 * 2**20
    assert result.metrics.copied_bytes["d2h"] >= 4 * micro.metrics.copied_bytes["d2h"] > 0
    check_sums(result)


def test_checkpointing_inside_halves_the_peak_of_each_micro_batch():
    built, where = load_trace("resnet20-cifar-cpu"), load_node("laptop-2gb")
    alone, both = (run(built, where, micro_batches=4, inside=each) for each in ("none", "checkpoint"))
    assert both.metrics.device_peak_bytes < 0.6 * alone.metrics.device_peak_bytes
    sections = {section.name for section in simulate(built, where, "checkpoint").program.sections}
    assert {section.name for section in both.program.sections} == sections


@pytest.mark.slow
def test_joint_inside_is_never_slower_than_the_policies_that_it_starts_from():
    built, where, budget = load_trace("resnet20-cifar-cpu"), load_node("laptop-2gb"), 12 * 2**20
    joint = {"joint": {"evaluations": 2000, "lower_bound": False}}
    searched = run(built, where, budget=budget, micro_batches=4, inside=joint)
    others = [
        run(built, where, budget=budget, micro_batches=4, inside=each) for each in ("superneurons", "capuchin", "vdnn")
    ]
    assert searched.iteration_ns <= min(each.iteration_ns for each in others)


@pytest.mark.parametrize("inside", ["vdnn+", "modnn", "accumulate", {"accumulate": {"micro_batches": 2}}])
def test_a_policy_inside_that_splits_the_batch_is_refused(inside: object):
    with pytest.raises(InputError, match=r"parameters\.inside: .* splits the batch itself"):
        make_policy("accumulate", {"inside": inside})


@pytest.mark.parametrize(
    ("inside", "place"),
    [
        ("vdn", "parameters.inside"),
        ({"vdnn": {"mode": "some"}}, "parameters.inside.mode"),
        ({"vdnn": {}, "none": {}}, "parameters.inside"),
        ({"vdnn": [1]}, "parameters.inside"),
    ],
)
def test_mistakes_in_the_policy_inside_are_placed_there(inside: object, place: str):
    with pytest.raises(InputError) as caught:
        make_policy("accumulate", {"inside": inside})
    assert [each.place for each in caught.value.problems] == [place]
    assert all(each.remedy for each in caught.value.problems)


@pytest.mark.parametrize("inside", ["vdnn(mode=conv)", {"vdnn": {"mode": "conv"}}, "vdnn: {mode: conv}"])
def test_the_policy_inside_may_be_written_as_in_scenarios_and_in_tables(inside: str | dict[str, object]):
    policy = make_policy("accumulate", {"micro_batches": 2, "inside": inside})
    assert policy == GradientAccumulation(2, "vdnn(mode=conv)")
    assert policy_label(policy) == "accumulate(micro_batches=2, inside=vdnn(mode=conv))"
    assert make_policy("accumulate", policy.parameters) == policy


def test_several_gpus_are_refused():
    two = replace(node(10**12), gpus=2, gpu=replace(node(10**12).gpu, dram_bandwidth=GB))
    with pytest.raises(InputError, match="accumulate does what PyTorch does on one GPU"):
        simulate(equal_layers(), two, "accumulate", parameters={"micro_batches": 2}, gpus=2, exchange="gather")


def test_adds_take_the_time_of_the_optimizers_kernels_where_no_time_model_is_known():
    """Two kernels of 600 B and 6000 B give a line, one kernel a proportion; the node's DRAM is the last resort."""
    built = equal_layers()
    assert adding_rate(built, node()) == (3 * WEIGHT * GB // ADD_NS, 0)
    small = kernel("small", 50 + 60, "w1 w1.grad", "w1", phase=OPTIMIZER)
    large = kernel("large", 50 + 60 * LAYERS, *(" ".join(each) for each in built_names()), phase=OPTIMIZER)
    two = replace(built, kernels=(*built.kernels[:-1], small, large))
    assert adding_rate(two, node()) == (10 * GB, 50)
    without = replace(built, kernels=built.kernels[:-1])
    with_dram = replace(node(), gpu=replace(node().gpu, dram_bandwidth=5 * GB))
    assert adding_rate(without, with_dram) == (5 * GB, 0)
    with pytest.raises(InputError, match=r"node.gpu.dram_bandwidth: is not set"):
        adding_rate(without, node())


def built_names() -> tuple[list[str], list[str]]:
    """The blocks that an optimizer of all layers reads, and those that it writes."""
    weights = [f"w{n}" for n in range(1, LAYERS + 1)]
    return [*weights, *(f"{name}.grad" for name in weights)], weights


def test_adds_take_the_time_model_of_the_traces_gpu():
    v100 = load_node("v100")
    assert adding_rate(load_trace("vgg16-b128-v100"), v100) == elementwise_rate(v100.gpu)
    assert adding_rate(load_trace("vgg16-b128-v100"), load_node("p100")) == elementwise_rate(v100.gpu)


def test_notes_name_the_adds_modelled_times_and_batch_norms():
    built = equal_layers()
    norm = tuple(replace(k, op="batch_norm") if k.id == "F2" else k for k in built.kernels)
    recorded = replace(built, kernels=norm, info=replace(built.info, origin=Origin.RECORDED))
    notes = run(recorded, micro_batches=4).notes
    assert (
        notes[0] == f"4 micro-batches of 2 samples; 6 gradients of weights are added 3 times, {format_time(540)} in all"
    )
    assert notes[1].startswith("times of micro-batches are modelled, not recorded. ")
    assert notes[2] == "batch norms see 2 samples at a time"


def test_no_lower_bound_holds_for_a_batch_in_parts():
    graph = task_graph(equal_layers(), node(10**12))
    bounds = bounds_of(Evaluator(graph, node(10**12), 10**12, Decisions.of(graph)))
    assert bounds.of(run(equal_layers(), micro_batches=2).program) is None
    assert bounds.of(run(equal_layers(), micro_batches=1).program) is not None
