"""A batch split into micro-batches, with gradients summed as PyTorch's AccumulateGrad does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.graph.accumulation import Accumulate, accumulated
from simgpu.graph.saved import saved_tensors
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.registry import make_policy
from simgpu.program.instructions import Program
from simgpu.program.text import from_json, to_json
from simgpu.simulation.run import simulate
from simgpu.trace.model import BlockKind, SavedTensor, Trace
from tests.semantics.hand_made import BACKWARD, GB, OPTIMIZER, block, held, kernel, node, trace
from tests.semantics.random_traces import traces

DW = BlockKind.WEIGHT_GRADIENT


def training(batch: int = 6, *, optimizer: bool = True, release: str | None = "U") -> Trace:
    """One layer with a weight of 50 B: x -> y, the gradient of w, then the update."""
    kernels = [kernel("F", 60, "x w", "y"), kernel("B", 120, "y x", "dw", phase=BACKWARD)]
    if optimizer:
        kernels.append(kernel("U", 7, "dw w", "w", phase=OPTIMIZER, pure=False))
    built = trace(
        kernels,
        [
            held("x", 600, kind=BlockKind.INPUT),
            held("w", 50, kind=BlockKind.WEIGHT),
            block("y", 1200, release="end"),
            block("dw", 50, kind=DW, release=release),
        ],
    )
    return replace(built, info=replace(built.info, batch=batch))


def in_parts(built: Trace, count: int, overhead_ns: int = 0) -> TaskGraph:
    return accumulated(TaskGraph.of(built), Accumulate(count, GB, overhead_ns))


def test_the_first_micro_batch_writes_the_gradient_and_later_ones_add_to_it():
    graph = in_parts(training(), 3)
    assert [(k.id, k.reads, k.writes) for k in graph.kernels[1::2]] == [
        ("B", ("y", "x"), ("dw",)),
        ("B@2-3", ("y@2-3", "x@2-3"), ("dw@2-3",)),
        ("U", ("dw", "w"), ("w",)),
    ]
    assert (graph.kernels[4].op, graph.kernels[4].reads, graph.kernels[4].writes) == (
        "aten::add_",
        ("dw", "dw@2-3"),
        ("dw",),
    )
    assert graph.rounds == (Round(0, 2, 1), Round(2, 5, 2), Round(5, 6, 1))


def test_a_new_gradient_lives_until_it_is_added():
    blocks = {block.id: block for block in in_parts(training(), 3).blocks}
    assert (blocks["dw@2-3"].release, blocks["dw@2-3"].persistent) == ("B@2-3:dw", False)
    assert (blocks["dw"].release, blocks["dw"].persistent) == ("U", False)


def test_an_add_reads_two_gradients_and_writes_one():
    assert in_parts(training(), 2, overhead_ns=4).durations[4] == 4 + 3 * 50


def test_activations_and_inputs_end_with_their_micro_batch():
    releases = {block.id: block.release for block in in_parts(training(), 2).blocks}
    assert (releases["x"], releases["y"], releases["x@2"], releases["y@2"]) == ("B", "B", "B@2:dw", "B@2:dw")


def test_without_an_optimizer_gradients_are_resident():
    graph = in_parts(training(optimizer=False, release="end"), 3)
    assert graph.blocks[graph.block("dw")].persistent
    assert graph.rounds == (Round(0, 2, 1), Round(2, 5, 2))


def test_a_gradient_that_backward_adds_to_what_it_was_gets_no_other_add():
    built = training()
    kernels = (built.kernels[0], replace(built.kernels[1], reads=("y", "x", "dw")), built.kernels[2])
    blocks = tuple(replace(b, persistent=True, release=None) if b.id == "dw" else b for b in built.blocks)
    graph = in_parts(replace(built, kernels=kernels, blocks=blocks), 2)
    assert [k.id for k in graph.kernels] == ["F", "B", "F@2", "B@2", "U"]
    assert graph.kernels[3].writes == ("dw",)


def test_a_gradient_is_added_after_the_last_kernel_that_completes_it():
    built = training()
    norm = kernel("N", 5, "dw", "", phase=BACKWARD)
    graph = in_parts(replace(built, kernels=(*built.kernels[:2], norm, built.kernels[2])), 2)
    assert [k.id for k in graph.kernels] == ["F", "B", "N", "F@2", "B@2", "N@2", "N@2:dw", "U"]
    assert graph.kernels[5].reads == ("dw@2",)


def test_saved_tensors_belong_to_their_micro_batch():
    saved = (
        SavedTensor("x", 600, None, "B", "end", "B", "end"),
        SavedTensor("y", 1200, "F", "B", "B", "B", "B"),
    )
    graph = in_parts(replace(training(), saved=saved), 3)
    tensors = [(graph.blocks[s.block].id, s.bytes, s.after, s.before, s.freed) for s in saved_tensors(graph).tensors]
    assert tensors == [("x", 200, -1, 1, 1), ("y", 400, 0, 1, 1), ("x@2-3", 200, 1, 3, 3), ("y@2-3", 400, 2, 3, 3)]


@pytest.mark.parametrize(("count", "near"), [(4, "1, 2, 3, 6"), (7, "1, 2, 3, 6"), (-1, "1, 2, 3, 6")])
def test_a_number_that_does_not_divide_the_batch_is_refused(count: int, near: str):
    with pytest.raises(InputError, match=f"a batch of 6 cannot be split into {count} equal micro-batches; .* {near}"):
        in_parts(training(), count)


def test_an_optimizer_within_backward_prevents_splitting():
    built = training()
    late = replace(built, kernels=(*built.kernels, kernel("after", 1, "w", "", phase=BACKWARD)))
    with pytest.raises(InputError, match="kernel 'U' of the optimizer runs before backward has ended"):
        in_parts(late, 2)


def test_gradients_with_rows_for_each_sample_are_refused():
    built = training()
    blocks = tuple(
        replace(b, bytes=60, shape=(6, 5)) if b.id == "dw" else replace(b, shape=(6, 25)) if b.id == "x" else b
        for b in built.blocks
    )
    with pytest.raises(InputError, match="'dw' has rows for each sample"):
        in_parts(replace(built, blocks=blocks), 2)


class Planned(Policy):
    """Another policy on the graph in micro-batches."""

    name, summary, source = "planned", "tests", "tests"

    def __init__(self, how: Accumulate, inside: str, parameters: dict[str, object]) -> None:
        object.__setattr__(self, "how", how)
        object.__setattr__(self, "inside", make_policy(inside, parameters))

    @property
    def parameters(self) -> dict[str, object]:
        return {}

    def plan(self, context: PlanContext) -> Program:
        how: Accumulate = self.how  # type: ignore[attr-defined]
        planned = self.inside.plan(replace(context, graph=transformed(context.graph, (how,))))  # type: ignore[attr-defined]
        program: Program = replace(planned, transforms=(how, *planned.transforms))
        assert from_json(to_json(program)) == program
        return program


@pytest.mark.parametrize(
    ("inside", "parameters"),
    [("none", {}), ("checkpoint", {}), ("save_on_cpu", {}), ("async_offload", {"min_bytes": 1})],
)
@settings(max_examples=25, deadline=None)
@given(full=traces(max_kernels=12), count=st.sampled_from([2, 3, 6]))
def test_any_trace_runs_in_micro_batches(inside: str, parameters: dict[str, object], full: Trace, count: int):
    full = replace(full, info=replace(full.info, batch=6))
    try:
        graph = in_parts(full, count)
    except InputError as error:
        assert "rows for each sample" in str(error)
        return
    result = simulate(full, node(), Planned(Accumulate(count, GB), inside, parameters))
    assert result.steady
    assert result.iteration_ns >= graph.ideal_ns()
    assert inside != "none" or result.iteration_ns == graph.ideal_ns()
