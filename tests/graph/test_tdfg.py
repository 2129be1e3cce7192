"""moDNN's task and data flow graph (TDFG) of any trace: task kinds, roles of blocks, I(t), O(t), workspaces."""

from __future__ import annotations

from dataclasses import replace

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.graph.bounds import lower_bound
from simgpu.graph.split import split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Role, TaskAlgorithm, TaskKind, Tdfg
from simgpu.graph.transforms import with_algorithms
from simgpu.hardware.nodes import load_node
from simgpu.trace.folder import load_trace
from simgpu.trace.model import AlgorithmChoice, BlockKind, Trace
from simgpu.workloads.modelled import build_trace
from tests.semantics.hand_made import BACKWARD, OPTIMIZER, block, graph, held, kernel
from tests.semantics.random_traces import traces

WEIGHT, DW, DELTA, STATE, OTHER, SCRATCH, INPUT, LABEL = (
    BlockKind.WEIGHT,
    BlockKind.WEIGHT_GRADIENT,
    BlockKind.GRADIENT,
    BlockKind.OPTIMIZER_STATE,
    BlockKind.OTHER,
    BlockKind.WORKSPACE,
    BlockKind.INPUT,
    BlockKind.LABEL,
)

#: One convolution with momentum, as in figure 1: x -> y, then backward from the loss.
LAYER = graph(
    [
        kernel("F", 50, "x w", "y ws", op="conv2d"),
        kernel("L", 10, "y label", "dy", phase=BACKWARD),
        kernel("BP1", 60, "dy w", "dx", phase=BACKWARD),
        kernel("BP2", 70, "dy x", "dw", phase=BACKWARD),
        kernel("both", 20, "dy", "dz db", phase=BACKWARD),
        kernel("U1", 5, "m dw", "m", phase=OPTIMIZER),
        kernel("U2", 5, "w m b db", "w b", phase=OPTIMIZER),
    ],
    [
        held("x", 10, kind=INPUT),
        held("label", 1, kind=LABEL),
        held("w", 100, kind=WEIGHT),
        held("b", 4, kind=WEIGHT),
        held("m", 101, kind=STATE),
        block("y", 20),
        block("ws", 1000, kind=SCRATCH),
        block("dy", 21, kind=DELTA),
        block("dx", 11, kind=DELTA),
        block("dz", 12, kind=DELTA),
        block("dw", 102, kind=DW),
        block("db", 5, kind=DW),
    ],
    algorithms=(AlgorithmChoice("F", "gemm", 90, 0), AlgorithmChoice("F", "fft", 30, 3000)),
)
TDFG = Tdfg.of(LAYER)
SHIPPED = ("resnet20-cifar-cpu", "digits-cnn-cpu", "vgg11-cifar-cpu", "vgg16-b128-v100")


def names(tdfg: Tdfg, blocks) -> list[str]:
    return [tdfg.graph.blocks[b].id for b in sorted(blocks)]


def view(kernels, blocks, **more) -> Tdfg:
    return Tdfg.of(graph(kernels, blocks, **more))


def test_task_kinds_are_forward_two_backward_steps_and_update():
    kinds = dict(zip((k.id for k in LAYER.kernels), (kind.value for kind in TDFG.kinds), strict=True))
    assert kinds == {
        "F": "FP",
        "L": "BP1",
        "BP1": "BP1",
        "BP2": "BP2",
        "both": "BP1+BP2",
        "U1": "BP3",
        "U2": "BP3",
    }
    assert TDFG.tasks == (0, 1, 2, 3, 4)


def test_blocks_have_the_papers_roles():
    roles = {block.id: role.value for block, role in zip(LAYER.blocks, TDFG.roles, strict=True)}
    assert {name for name, role in roles.items() if role == "X/Y"} == {"x", "label", "y"}
    assert {name for name, role in roles.items() if role == "delta"} == {"dy", "dx", "dz"}
    assert (roles["w"], roles["b"], roles["dw"], roles["db"]) == ("W", "W", "dW", "dW")
    assert (roles["m"], roles["ws"]) == ("state", "workspace")


def test_weights_their_gradients_and_optimizer_state_are_resident_and_inputs_are_not():
    assert names(TDFG, TDFG.resident) == ["w", "b", "m", "dw", "db"]
    assert TDFG.resident_bytes == 100 + 4 + 101 + 102 + 5


def test_task_inputs_and_outputs_exclude_resident_blocks_and_workspaces():
    assert names(TDFG, TDFG.inputs[0]) == ["x"] and names(TDFG, TDFG.outputs[0]) == ["y"]
    assert names(TDFG, TDFG.inputs[3]) == ["x", "dy"] and TDFG.outputs[3] == ()
    assert TDFG.data(5) == TDFG.data(6) == ()


def test_the_variants_of_a_task_are_its_algorithms_and_the_recorded_one():
    assert TDFG.ways[0] == (TaskAlgorithm("fft", 30, 3000), TaskAlgorithm(None, 50, 1000), TaskAlgorithm("gemm", 90, 0))
    assert TDFG.fastest(0).algorithm == "fft" and TDFG.smallest(0).algorithm == "gemm"
    assert TDFG.ways[1] == (TaskAlgorithm(None, 10, 0),)


def test_a_recorded_variant_equal_to_an_algorithm_appears_once():
    listed = view(
        [kernel("F", 50, "x", "y ws")],
        [held("x", 1), block("y", 1), block("ws", 7, kind=SCRATCH)],
        algorithms=(AlgorithmChoice("F", "fft", 50, 7),),
    )
    assert listed.ways[0] == (TaskAlgorithm("fft", 50, 7),)


def test_sizes_and_workspaces_are_padded():
    padded = Tdfg.of(LAYER, alignment=64)
    assert padded.sizes[LAYER.block("x")] == 64 and padded.sizes[LAYER.block("w")] == 128
    assert [way.workspace for way in padded.ways[0]] == [3008, 1024, 0]


def test_a_block_that_is_changed_in_place_counts_once():
    tdfg = view([kernel("c", 1, "x", "y"), kernel("relu_", 1, "y", "y")], [held("x", 1, kind=INPUT), block("y", 2)])
    assert names(tdfg, tdfg.inputs[1]) == names(tdfg, tdfg.outputs[1]) == names(tdfg, tdfg.data(1)) == ["y"]


def test_a_partial_write_also_reads_the_previous_contents():
    kernels = [kernel("left", 1, "x", "both"), kernel("right", 1, "x", "both"), kernel("use", 1, "both", "z")]
    tdfg = view(kernels, [held("x", 1, kind=INPUT), block("both", 4), block("z", 1)])
    assert names(tdfg, tdfg.inputs[0]) == ["x"]
    assert names(tdfg, tdfg.inputs[1]) == ["x", "both"]
    result = tdfg.to_networkx()
    assert result.has_edge(("data", "both", "1"), ("task", "right"))
    assert result.has_edge(("data", "both", "2"), ("task", "use"))


def test_a_gradient_added_to_another_gradient_is_not_resident():
    """A weight that is used twice has two gradients; one is added to the other."""
    kernels = [
        kernel("F", 1, "x w", "y"),
        kernel("B1", 1, "y", "dw1", phase=BACKWARD),
        kernel("B2", 1, "y", "dw2", phase=BACKWARD),
        kernel("add_", 1, "dw1 dw2", "dw1", phase=BACKWARD),
        kernel("U", 1, "w dw1", "w", phase=OPTIMIZER),
    ]
    blocks = [held("x", 1, kind=INPUT), held("w", 8, kind=WEIGHT), block("y", 2)]
    tdfg = view(kernels, [*blocks, block("dw1", 8, kind=DW), block("dw2", 8, kind=DW)])
    assert names(tdfg, tdfg.resident) == ["w", "dw1"]
    assert tdfg.kinds[3] is TaskKind.BP2
    assert names(tdfg, tdfg.data(3)) == ["dw2"]


def test_without_an_optimizer_gradients_written_last_by_backward_are_resident():
    kernels = [kernel("F", 5, "x w", "y", op="conv2d"), kernel("B", 5, "x y", "dw", phase=BACKWARD)]
    blocks = [held("x", 1, kind=INPUT), held("w", 100, kind=WEIGHT), block("y", 2), block("dw", 100, kind=DW)]
    tasks = graph(kernels, blocks)
    assert tasks.block("dw") in Tdfg.of(tasks).resident


@pytest.mark.parametrize("kind", [DELTA, OTHER])
def test_a_backward_output_read_by_the_optimizer_is_a_weight_gradient(kind: BlockKind):
    """Imported recordings do not mark weight gradients."""
    kernels = [
        kernel("F", 1, "x w", "y"),
        kernel("B", 1, "x y", "g", phase=BACKWARD),
        kernel("U", 1, "w g", "w", phase=OPTIMIZER),
    ]
    tdfg = view(kernels, [held("x", 1, kind=INPUT), held("w", 8, kind=WEIGHT), block("y", 2), block("g", 8, kind=kind)])
    assert names(tdfg, tdfg.resident) == ["w", "g"]
    assert tdfg.roles[3] is Role.WEIGHT_GRADIENT and tdfg.kinds[1] is TaskKind.BP2


def test_blocks_released_during_the_iteration_are_not_resident():
    kernels = [kernel("F", 1, "old x", "y"), kernel("G", 1, "y", "z")]
    tdfg = view(
        kernels, [held("x", 1, kind=INPUT), held("old", 8, kind=OTHER, release="F"), block("y", 2), block("z", 3)]
    )
    assert tdfg.resident == frozenset()
    assert names(tdfg, tdfg.data(0)) == ["x", "old", "y"]


def test_an_input_without_readers_stays_resident():
    """The batch has a mask that this network ignores: its 7 bytes stay while x and y take 3."""
    tdfg = view([kernel("F", 1, "x", "y")], [held("x", 1, kind=INPUT), held("mask", 7, kind=INPUT), block("y", 2)])
    assert names(tdfg, tdfg.resident) == ["mask"]
    assert lower_bound(tdfg).bytes == 7 + 1 + 2


def test_kernels_of_a_layer_are_grouped_into_its_tasks():
    trace = build_trace("resnet20", batch=4, gpu=load_node("k40").gpu, framework="cudnn")
    tdfg = Tdfg.of(TaskGraph.of(trace))
    joined = [{trace.kernels[k].op for k in task} for task in tdfg.layer_tasks]
    assert {"add_", "batch_norm", "relu_"} in joined  # the counter of the statistics, the normalization, and its reader
    assert [k for task in tdfg.layer_tasks for k in task] == list(tdfg.tasks)
    for task in tdfg.layer_tasks:
        assert len({(trace.kernels[k].layer, tdfg.kinds[k] is TaskKind.BP2) for k in task}) == 1


def test_the_networkx_graph_of_tasks_is_acyclic_and_excludes_updates():
    result = TDFG.to_networkx()
    assert networkx.is_directed_acyclic_graph(result)
    assert ("task", "U1") not in result
    assert result.nodes["task", "F"] == {"kind": "FP", "op": "conv2d", "layer": None, "duration_ns": 50}
    assert result.nodes["data", "w", "0"] == {"role": "W", "bytes": 100, "resident": True}
    assert set(result.predecessors(("task", "BP1"))) == {("data", "dy", "1"), ("data", "w", "0")}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_trace_has_a_tdfg(name: str):
    tasks = TaskGraph.of(load_trace(name))
    tdfg = Tdfg.of(tasks)
    kinds = {kind for b, kind in enumerate(block.kind for block in tasks.blocks) if b in tdfg.resident}
    assert {WEIGHT, DW, STATE} <= kinds and not kinds & {BlockKind.ACTIVATION, DELTA, INPUT, LABEL}
    assert {TaskKind.FP, TaskKind.BP1, TaskKind.BP2, TaskKind.BP3} <= set(tdfg.kinds)
    assert networkx.is_directed_acyclic_graph(tdfg.to_networkx())


@given(traces(max_kernels=12))
def test_any_trace_has_a_tdfg(trace: Trace):
    tasks = TaskGraph.of(trace)
    tdfg = Tdfg.of(tasks)
    assert networkx.is_directed_acyclic_graph(tdfg.to_networkx())
    for k in range(len(tasks.kernels)):
        touched = set(tasks.reads[k]) | set(tasks.writes[k])
        assert touched - tdfg.resident == set(tdfg.data(k))


@given(traces(max_kernels=12), st.data())
def test_the_bytes_of_a_task_equal_those_of_its_kernel_with_that_algorithm(trace: Trace, data: st.DataObject):
    """The TDFG's workspaces equal those of the kernel after choosing the algorithm."""
    k = data.draw(st.integers(0, len(trace.kernels) - 1))
    choice = AlgorithmChoice(trace.kernels[k].id, "tried", 1, data.draw(st.integers(0, 50)))
    tasks = TaskGraph.of(replace(trace, algorithms=(choice,)))
    tdfg = Tdfg.of(tasks)
    way = next(way for way in tdfg.ways[k] if way.algorithm == "tried")
    chosen = with_algorithms(tasks, {k: "tried"})
    touched = set(chosen.reads[k]) | set(chosen.writes[k])
    assert sum(chosen.sizes[b] for b in touched - tdfg.resident) == tdfg.bytes_of(tdfg.data(k)) + way.workspace


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_split_iteration_has_the_same_resident_blocks(batch: int):
    full = TaskGraph.of(load_trace("digits-cnn-cpu"))
    parts = split(full, batch)
    assert names(Tdfg.of(parts), Tdfg.of(parts).resident) == names(Tdfg.of(full), Tdfg.of(full).resident)
