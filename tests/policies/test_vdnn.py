"""vDNN compared with the published policy: offloaded blocks, and the kernels that offloads and prefetches overlap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.vdnn import Vdnn, offloading
from simgpu.simulation.run import simulate
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from tests.policies.contract import PLENTY, node_of, trace_of
from tests.policies.networks import (
    INFO,
    NETWORKS,
    Layer,
    in_place,
    inception,
    network,
    optimizer_first,
    residual,
    straight,
    two_passes,
    zero_bytes,
)

Moves = dict[str, tuple[str, str]]


def moves(trace: Trace, mode: str) -> Moves:
    """Swapped blocks: (the kernel that the offload overlaps, the first kernel of the step that the prefetch
    overlaps)."""
    graph = TaskGraph.of(trace)
    swaps = Vdnn(mode).swaps(graph)
    names = [kernel.id for kernel in trace.kernels]
    result = {graph.blocks[swap.block].id: (names[swap.after], names[swap.fetch_with]) for swap in swaps}
    assert len(result) == len(swaps), "a block is swapped once"
    return result


CHAIN = straight(["conv2d", "max_pool2d", "conv2d", "conv2d", "max_pool2d", "linear", "linear"], [100] * 7)


def test_mode_all_offloads_every_input_of_a_chain():
    """B7 begins backward and needs F7's input: y6 stays. A search passes pooling and classifier, not convolutions."""
    assert moves(CHAIN, "all") == {
        "y5": ("F:L6", "B:L7"),
        "y4": ("F:L5", "B:L6"),
        "y3": ("F:L4", "B:L5"),
        "y2": ("F:L3", "B:L4"),
        "y1": ("F:L2", "B:L3"),
        "x": ("F:L1", "B:L2"),
    }


def test_mode_conv_offloads_convolution_inputs_of_a_chain():
    """The search skips layers without offloads: L4 is prefetched during B7. No search passes L4 to reach L3."""
    assert moves(CHAIN, "conv") == {
        "y3": ("F:L4", "B:L7"),
        "y2": ("F:L3", "B:L4"),
        "x": ("F:L1", "B:L3"),
    }


def test_the_prefetch_search_ends_at_a_convolution_that_needs_nothing():
    """conv2's input has no bytes, so it is not offloaded; still no search passes it: x is prefetched during B:conv2."""
    trace = network(
        Layer("conv1", "conv2d", ("x",), "a", 0),
        Layer("conv2", "conv2d", ("a",), "b"),
        Layer("fc1", "linear", ("b",), "c"),
        Layer("fc2", "linear", ("c",), "d", 0),
    )
    assert moves(trace, "all") == {"b": ("F:fc1", "B:fc2"), "x": ("F:conv1", "B:conv2")}
    assert moves(trace, "conv") == {"x": ("F:conv1", "B:conv2")}


def test_prefetches_run_ahead_in_a_window_without_convolutions():
    """Layers without offloaded inputs give the search a head start; then every step fetches one input early."""
    trace = network(
        Layer("fc1", "linear", ("x",), "a"),
        Layer("fc2", "linear", ("a",), "b"),
        Layer("relu1", "relu", ("b",), "c", saved=()),
        Layer("relu2", "relu", ("c",), "d", saved=()),
        Layer("fc3", "linear", ("d",), "e", 0),
    )
    assert moves(trace, "all") == {"a": ("F:fc2", "B:fc3"), "x": ("F:fc1", "B:relu2")}
    assert "no convolution" in " ".join(offloading(TaskGraph.of(trace), "all", {}).notes)
    assert "no convolution" not in " ".join(offloading(TaskGraph.of(CHAIN), "all", {}).notes)


def test_an_activation_with_several_readers_is_offloaded_with_the_last():
    """residual(): a is read by conv2 and the addition, and is offloaded with the addition, which is no convolution."""
    assert moves(residual(), "all") == {
        "d": ("F:pool", "B:fc"),
        "b": ("F:conv3", "B:pool"),
        "a": ("F:add", "B:conv3"),
        "x": ("F:conv1", "B:conv2"),
    }
    assert moves(residual(), "conv") == {"b": ("F:conv3", "B:fc"), "x": ("F:conv1", "B:conv2")}


def test_branch_inputs_are_offloaded_with_their_last_reader():
    """inception(): s is offloaded with the last of three branches, q, changed in place, with the concatenation.

    The concatenation saves nothing: only its input q is needed again, by the activation's backward.
    """
    assert moves(inception(), "all") == {
        "t": ("F:conv", "B:fc"),
        "q": ("F:cat", "B:cat"),
        "s": ("F:pool", "B:conv"),
        "x": ("F:stem", "B:one"),
    }
    assert moves(inception(), "conv") == {"t": ("F:conv", "B:fc"), "x": ("F:stem", "B:one")}


def test_inputs_of_a_join_are_offloaded_and_fetched_together():
    trace = network(
        Layer("one", "conv2d", ("x",), "a", saved=()),
        Layer("two", "conv2d", ("x",), "b", saved=()),
        Layer("mul", "mul", ("a", "b"), "c"),
        Layer("pool", "max_pool2d", ("c",), "d"),
        Layer("fc", "linear", ("d",), "e", 0),
    )
    assert moves(trace, "all") == {
        "c": ("F:pool", "B:fc"),
        "a": ("F:mul", "B:pool"),
        "b": ("F:mul", "B:pool"),
    }


def test_a_block_changed_in_place_is_offloaded_with_the_reader_of_its_result():
    assert moves(in_place(), "all") == {
        "b": ("F:fc", "B:loss"),
        "a": ("F:conv2", "B:fc"),
        "x": ("F:conv1", "B:conv2"),
    }
    assert moves(in_place(), "conv") == {"a": ("F:conv2", "B:loss"), "x": ("F:conv1", "B:conv2")}


def test_a_block_last_written_in_forward_is_not_offloaded():
    trace = network(
        Layer("conv", "conv2d", ("x",), "a"),
        Layer("relu", "relu_", ("a",), "a"),
        Layer("other", "linear", ("x",), "b"),
        Layer("fc", "linear", ("b",), "c", 0),
    )
    assert "a" not in moves(trace, "all")


def test_blocks_not_read_by_backward_are_released_and_not_offloaded():
    trace = network(
        Layer("conv", "conv2d", ("x",), "a"),
        Layer("flat", "clone", ("a",), "b", saved=()),
        Layer("fc", "linear", ("b",), "c"),
        Layer("loss", "nll_loss", ("c",), "d", 0),
    )
    assert moves(trace, "all").keys() == {"x", "b"}
    result = simulate(trace, node_of(PLENTY), "vdnn")
    assert "a" not in {span.name for span in result.timeline if span.label == "copy_d2h"}


def test_inputs_of_the_first_backward_step_are_prefetched_in_the_last_forward_step():
    trace = network(
        Layer("conv", "conv2d", ("x",), "a"),
        Layer("keep", "linear", ("a",), "b", saved=()),
        Layer("loss", "nll_loss", ("b",), "c", 0, saved=("a",)),
    )
    graph = moves(trace, "all")
    assert graph["a"] == ("F:keep", "F:loss")


def test_empty_blocks_weights_labels_and_gradients_are_never_moved():
    assert moves(zero_bytes(), "all").keys() == {"y1"}
    base = straight(["conv2d", "max_pool2d", "linear"], [100, 100, 100])
    for kind in set(BlockKind) - {BlockKind.INPUT, BlockKind.ACTIVATION, BlockKind.OTHER}:
        blocks = tuple(
            Block(block.id, block.bytes, kind if block.id == "y1" else block.kind, block.persistent)
            for block in base.blocks
        )
        trace = Trace(INFO, base.kernels, blocks)
        assert moves(trace, "all").keys() == {"x"}, kind


def test_the_input_is_the_only_persistent_block_that_moves():
    base = straight(["conv2d", "max_pool2d", "linear"], [100, 100, 100])
    for kind in BlockKind:
        blocks = tuple(Block(b.id, b.bytes, kind if b.id == "x" else b.kind, b.persistent) for b in base.blocks)
        expected = {"x", "y1"} if kind is BlockKind.INPUT else {"y1"}
        assert moves(Trace(INFO, base.kernels, blocks), "all").keys() == expected


def test_each_use_of_a_layer_is_a_step_of_its_own():
    """Layer A runs, then B, then A again: each run is a separate step, in forward and in backward."""
    names = {"L1": "A", "L2": "B", "L3": "A", "L4": "C", "L5": "D"}
    base = straight(["max_pool2d"] * 5, [100] * 5)
    kernels = tuple(
        Kernel(k.id, k.op, k.phase, k.duration_ns, k.reads, k.writes, names[k.layer or ""]) for k in base.kernels
    )
    assert moves(Trace(INFO, kernels, base.blocks), "all") == moves(base, "all")
    assert moves(base, "all")["y2"] == ("F:L3", "B:L4")


def test_kernels_of_one_layer_are_one_step():
    """A layer of convolution and pooling: the block between the two stays, the layer's input is offloaded with both."""
    base = straight(["conv2d", "max_pool2d", "conv2d", "linear"], [100, 100, 100, 100])
    names = {"L1": "block", "L2": "block", "L3": "next", "L4": "last"}
    kernels = tuple(
        Kernel(k.id, k.op, k.phase, k.duration_ns, k.reads, k.writes, names[k.layer or ""]) for k in base.kernels
    )
    assert moves(Trace(INFO, kernels, base.blocks), "all") == {"y2": ("F:L3", "B:L4"), "x": ("F:L1", "B:L3")}


def test_optimizer_kernels_before_forward_are_not_a_backward_step():
    assert moves(optimizer_first(), "all") == {
        "y2": ("F:L3", "B:L4"),
        "y1": ("F:L2", "B:L3"),
        "x": ("F:L1", "B:L2"),
    }


def test_blocks_are_fetched_only_after_their_offload():
    """Two passes over one input: the second pass's search cannot begin in the first one's backward."""
    result = moves(two_passes(), "all")
    assert result == {
        "y2": ("F:L3", "B:L4"),
        "y1": ("F:L2", "B:L3"),
        "x": ("F:L1-again", "B:L2-again"),
        "y2-again": ("F:L3-again", "B:L4-again"),
        "y1-again": ("F:L2-again", "B:L3-again"),
    }


# --- the published search, reimplemented from its description ----------------------------------------------------


def published(ops: Sequence[str], sizes: Sequence[int], mode: str) -> Moves:
    """A chain by layer numbers: a layer's input is offloaded with it; before its own backward every layer searches for
    one earlier layer whose offloaded input is not yet fetched, no further than the first convolution.
    """
    count = len(ops)
    sent = {
        n for n in range(1, count) if sizes[n - 1] and (mode == "all" or ops[n - 1] == "conv2d")
    }  # the last layer keeps its input
    fetched: dict[int, int] = {}
    for current in range(count, 0, -1):
        for n in range(current - 1, 0, -1):
            if n in sent and n not in fetched:
                fetched[n] = current
                break
            if ops[n - 1] == "conv2d":
                break
    names = ["x", *(f"y{n}" for n in range(1, count))]
    return {names[n - 1]: (f"F:L{n}", f"B:L{fetched[n]}") for n in sent}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["all", "conv"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
def test_every_short_chain_follows_the_published_search(mode, length):
    """All chains of convolutions, poolings and layers whose input has zero bytes."""
    kinds = [("conv2d", 100), ("max_pool2d", 100), ("conv2d", 0), ("max_pool2d", 0)]
    for layers in itertools.product(kinds, repeat=length):
        ops, sizes = [op for op, _ in layers], [size for _, size in layers]
        assert moves(straight(ops, sizes), mode) == published(ops, sizes, mode), layers


# --- the layer step, on the timeline -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["all", "conv"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_layer_step_ends_when_its_kernels_and_copies_have_ended(name, mode):
    trace = trace_of(name)
    graph = TaskGraph.of(trace)
    result = simulate(trace, node_of(PLENTY), "vdnn", parameters={"mode": mode})
    spans = {(span.label, span.name): span for span in result.timeline if span.iteration == 1}
    steps = graph.layers.steps
    copies: dict[int, list[int]] = {}

    def step_span(index: int) -> tuple[int, int]:
        first, last = (spans["compute", trace.kernels[k].id] for k in (steps[index].first, steps[index].stop - 1))
        return first.start_ns, last.end_ns

    for swap in Vdnn(mode).swaps(graph):
        block = graph.blocks[swap.block].id
        out, back = spans["copy_d2h", block], spans["copy_h2d", block]
        assert out.start_ns >= step_span(graph.layers.step_of[swap.after])[0]
        assert back.start_ns >= step_span(graph.layers.step_of[swap.fetch_with])[0]
        for place_, copy in ((swap.after, out), (swap.fetch_with, back)):
            copies.setdefault(graph.layers.step_of[place_], []).append(copy.end_ns)
    for index in range(len(steps) - 1):
        assert step_span(index + 1)[0] == max(step_span(index)[1], *copies.get(index, []), 0)


@pytest.mark.parametrize("mode", ["all", "conv", "dynamic"])
def test_a_trace_with_several_compute_streams_is_refused(mode):
    trace = residual()
    kernels = (*trace.kernels, Kernel("side", "add", Phase.BACKWARD, 5, ("e",), (), "fc", stream=1))
    with pytest.raises(InputError, match=r"kernels\.stream: .*2 compute streams.*record the trace on one stream"):
        simulate(Trace(INFO, kernels, trace.blocks, name="t"), node_of(PLENTY), "vdnn", parameters={"mode": mode})
