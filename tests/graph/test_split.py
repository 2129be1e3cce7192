"""A batch split into sub-batches: rounds of forward and backward, accumulated gradients, one optimizer step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import simulate
from simgpu.errors import InputError
from simgpu.graph.split import Split, split
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.graph.transforms import WithAlgorithms
from simgpu.hardware.nodes import load_node
from simgpu.policies.base import PlanContext, Policy
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.text import from_json, to_json
from simgpu.simulation.run import task_graph
from simgpu.trace.chain import chain
from simgpu.trace.model import BlockKind, Phase, Trace
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch
from tests.semantics.hand_made import BACKWARD, OPTIMIZER, block, held, kernel, node, trace
from tests.semantics.random_traces import traces

DW = BlockKind.WEIGHT_GRADIENT


def training(batch: int) -> Trace:
    """One layer with its weight and `batch` samples: x -> y, the gradient of w twice, then the update."""
    built = trace(
        [
            kernel("F", 60, "x w", "y"),
            kernel("B", 120, "y x", "dw", phase=BACKWARD),
            kernel("U", 7, "dw w", "w", phase=OPTIMIZER, pure=False),
        ],
        [
            held("x", 600, kind=BlockKind.INPUT),
            held("w", 50, kind=BlockKind.WEIGHT),
            block("y", 1200, release="end"),
            block("dw", 50, kind=DW, release="U"),
        ],
    )
    return replace(built, info=replace(built.info, batch=batch))


class KeepAll(Policy):
    """A policy that keeps every block until its last use, with sub-batches."""

    name, summary, source = "kept", "tests", "tests"

    def __init__(self, batch: int) -> None:
        object.__setattr__(self, "batch", batch)

    @property
    def parameters(self) -> dict[str, object]:
        return {}

    def plan(self, context: PlanContext) -> Program:
        change = Split(self.batch)  # type: ignore[attr-defined]
        return replace(lower(change.apply(context.graph), Placement()), transforms=(change,))


def test_equal_rounds_are_followed_by_a_smaller_one_and_the_optimizer():
    graph = split(TaskGraph.of(training(6)), 4)
    assert [kernel.id for kernel in graph.kernels] == ["F", "B", "F@2", "B@2", "U"]
    assert graph.rounds == (Round(0, 2, 1), Round(2, 4, 1), Round(4, 5, 1))
    assert split(TaskGraph.of(training(6)), 2).rounds == (Round(0, 2, 3), Round(2, 3, 1))


def test_batch_dependent_blocks_shrink_and_others_are_shared():
    graph = split(TaskGraph.of(training(6)), 4)
    sizes = {block.id: block.bytes for block in graph.blocks}
    assert sizes == {"x": 400, "y": 800, "x@2": 200, "y@2": 400, "w": 50, "dw": 50}
    assert [block.id for block in graph.blocks if block.persistent and block.release in (None, "end")] == ["w", "dw"]


def test_weight_gradients_accumulate_over_rounds():
    graph = split(TaskGraph.of(training(6)), 4)
    for k in (graph.kernel("B"), graph.kernel("B@2")):
        assert graph.block("dw") in graph.reads[k]
    versions = dict(zip(graph.reads[4], graph.read_versions[4], strict=True))
    assert versions[graph.block("dw")] == 2


def test_inputs_and_outputs_are_released_in_each_round():
    graph = split(TaskGraph.of(training(6)), 4)
    releases = {block.id: block.release for block in graph.blocks}
    assert (releases["x"], releases["x@2"], releases["y"], releases["y@2"]) == ("B", "B@2", "B", "B@2")


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1] * 6), (2, [2] * 3), (4, [4, 2]), (6, [6])])
def test_an_iteration_takes_the_time_of_its_rounds_and_one_optimizer_step(batch: int, sizes: list[int]):
    full = training(6)
    rounds = [sum(kernel.duration_ns for kernel in at_batch(full, size).kernels[:2]) for size in sizes]
    result = simulate(full, node(), KeepAll(batch))
    assert result.iteration_ns == sum(rounds) + 7 == result.graph.ideal_ns()
    assert result.steady
    assert result.ideal_ns == 60 + 120 + 7
    assert set(result.phases.values()) == set(Phase)


@pytest.mark.parametrize(("batch", "peak"), [(1, 300 + 100), (2, 600 + 100), (4, 1200 + 100), (6, 1800 + 100)])
def test_peak_memory_is_one_sub_batch_and_the_weights(batch: int, peak: int):
    assert simulate(training(6), node(), KeepAll(batch)).metrics.device_peak_bytes == peak


def test_the_full_batch_needs_no_other_trace():
    full = training(6)
    graph = split(replace(TaskGraph.of(full), rescaled=None), 6)
    assert graph.durations == (60, 120, 7)
    assert graph.rounds == (Round(0, 2, 1), Round(2, 3, 1))


@pytest.mark.parametrize("batch", [0, 7, -1])
def test_a_sub_batch_larger_than_the_batch_is_refused(batch: int):
    with pytest.raises(InputError, match=f"sub-batch: {batch} is no part of a batch of 6; give 1 to 6"):
        split(TaskGraph.of(training(6)), batch)


def test_an_optimizer_in_the_middle_prevents_splitting_the_batch():
    built = training(6)
    late = replace(built, kernels=(*built.kernels, kernel("after", 1, "w", "", phase=BACKWARD)))
    assert split(TaskGraph.of(late), 6).rounds == (Round(0, 4, 1),)
    with pytest.raises(InputError, match="kernel 'U' of the optimizer runs before backward has ended"):
        split(TaskGraph.of(late), 3)


def test_a_split_program_survives_json():
    program = KeepAll(4).plan(PlanContext(TaskGraph.of(training(6)), node(), 0, None, None))  # type: ignore[arg-type]
    assert from_json(to_json(program)) == program


def test_rounds_of_a_zoo_trace_have_the_modelled_times_of_their_batch():
    """Rounds take as long as the network at their batch; algorithms can be chosen for each round."""
    gpu = load_node("k40").gpu
    full = build_trace("vgg11", batch=48, gpu=gpu, input="cifar10")
    graph = split(task_graph(full, load_node("k40")), 32)
    for part, batch in zip(graph.rounds, (32, 16), strict=False):
        alone = build_trace("vgg11", batch=batch, gpu=gpu, input="cifar10")
        expected = [kernel.duration_ns for kernel in alone.kernels if kernel.phase is not Phase.OPTIMIZER]
        assert list(graph.durations[part.first : part.stop]) == expected
    choices = {(choice.kernel, choice.algorithm): choice for choice in graph.trace.algorithms}
    name = next(kernel for kernel, _ in choices if kernel.endswith("@16"))
    slow = choices[name, "implicit_gemm"]
    chosen = WithAlgorithms(((graph.kernel(name), "implicit_gemm"),)).apply(graph)
    assert chosen.durations[graph.kernel(name)] == slow.duration_ns
    assert chosen.rounds == graph.rounds


@settings(max_examples=40, deadline=None)
@given(traces(max_kernels=12), st.sampled_from([1, 2, 4, 6]))
def test_any_trace_runs_in_sub_batches(full: Trace, batch: int):
    full = replace(full, info=replace(full.info, batch=6))
    result = simulate(full, node(), KeepAll(batch))
    assert result.iteration_ns == result.graph.ideal_ns()
    assert result.steady


@pytest.mark.parametrize("sub_batch", [1, 2, 4, 6])
@pytest.mark.parametrize("mode", ["all", "conv"])
def test_vdnn_plus_is_vdnn_round_by_round(sub_batch: int, mode: str):
    """Its step time is the sum of vDNN's times for each sub-batch, since no copy crosses the layer barrier."""
    built = chain([60, 120, 90, 30], [120, 180, 150, 60], [600, 1200, 1800, 2400], op="conv2d")
    # Inputs are released in the round, as in a split graph.
    blocks = tuple(replace(b, release="B1") if b.id == "x1" else b for b in built.blocks)
    full = replace(built, info=replace(built.info, batch=6), blocks=blocks)
    times = [
        simulate(at_batch(full, size), node(), "vdnn", parameters={"mode": mode}).iteration_ns
        for size in (*(sub_batch for _ in range(6 // sub_batch)), *([6 % sub_batch] if 6 % sub_batch else []))
    ]
    parameters = {"sub_batch": sub_batch, "mode": mode, "algorithms": "recorded"}
    result = simulate(full, node(), "vdnn+", parameters=parameters)
    assert result.iteration_ns == sum(times)
    assert result.notes[0] == f"sub-batches of {sub_batch} of 6 samples, as requested"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sub_batch": 7}, "parameters.sub_batch: 7 is no part of a batch of 6; give 1 to 6, or 0"),
        ({"alpha": 0.0}, "parameters.alpha: 0.0 is not a share of the tasks; give a number over 0 and up to 1"),
        ({"alpha": 1.5}, "parameters.alpha: 1.5 is not a share of the tasks"),
    ],
)
@pytest.mark.parametrize("policy", ["vdnn+", "modnn"])
def test_invalid_sub_batches_and_shares_are_refused(policy: str, parameters: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        simulate(training(6), node(), policy, parameters=parameters)
