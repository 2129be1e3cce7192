"""Replicas of a graph: names, sharing, kernels of the exchange; and which gradient belongs to which weight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import InputError
from simgpu.graph.replicate import Exchange, Replicate, replicas
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed, with_encodings
from simgpu.graph.updates import Update, exchanging, updates_of, without_gradient
from simgpu.trace.chain import chain
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from tests.semantics.hand_made import GB, INFO, block, held, kernel
from tests.semantics.networks import network

HOST, GATHER = Exchange.HOST, Exchange.GATHER
TASKS = TaskGraph.of(network([10, 100], momentum=True))


def ids(graph: TaskGraph) -> list[str]:
    return [each.id for each in graph.kernels]


# --- replicas ----------------------------------------------------------------------------------------------


def test_gpu_0_keeps_its_names_and_the_others_add_their_number():
    two = replicas(TASKS, Replicate(2, HOST, GB)).graph
    own = [kernel.id for kernel in TASKS.kernels if kernel.phase is not Phase.OPTIMIZER]
    assert ids(two) == [*own, *(f"{name}.gpu1" for name in own), "update:w1", "update:w2"]
    assert [each.id for each in two.blocks[: len(TASKS.blocks)]] == [each.id for each in TASKS.blocks]


def test_weights_are_shared_and_all_other_blocks_are_replicated():
    two = replicas(TASKS, Replicate(2, HOST, GB)).graph
    added = {each.id for each in two.blocks[len(TASKS.blocks) :]}
    assert added == {f"{name}.gpu1" for name in ("x0", "x1", "x2", "g1", "w1.grad", "w2.grad")}
    assert two.kernels[two.kernel("E2.gpu1")].reads == ("x2.gpu1", "w2")


def test_forward_reads_old_weights_and_only_the_exchange_writes_new_ones():
    for exchange in (HOST, GATHER):
        two = replicas(TASKS, Replicate(3, exchange, GB)).graph
        weight = two.block("w1")
        assert two.last_version[weight] == 1
        for name in ("F1", "F1.gpu1", "F1.gpu2"):
            k = two.kernel(name)
            assert two.read_versions[k][two.reads[k].index(weight)] == 0


def test_gathering_adds_up_all_gradients_before_the_optimizer_runs():
    three = replicas(TASKS, Replicate(3, GATHER, 3 * GB, overhead_ns=4)).graph
    assert ids(three)[-6:] == [
        *("accumulate:w1.grad.gpu1", "accumulate:w1.grad.gpu2"),
        *("accumulate:w2.grad.gpu1", "accumulate:w2.grad.gpu2"),
        *("S1", "S2"),
    ]
    assert three.durations[-6:] == (4 + 10, 4 + 10, 4 + 100, 4 + 100, 5, 5)


def test_the_host_reads_all_gradients_weight_and_state_and_writes_weight_and_state():
    three = replicas(TASKS, Replicate(3, HOST, GB)).graph
    update = three.kernels[three.kernel("update:w2")]
    assert update.reads == ("w2.grad", "w2.grad.gpu1", "w2.grad.gpu2", "w2", "w2.momentum")
    assert update.writes == ("w2", "w2.momentum")
    assert three.durations[three.kernel("update:w2")] == (5 + 2) * 100


def test_optimizer_blocks_exist_once_and_on_the_host_if_it_updates():
    momentum = TASKS.block("w1.momentum")
    gathered, hosted = (replicas(TASKS, Replicate(2, exchange, GB)) for exchange in (GATHER, HOST))
    assert [gathered.blocks[gpu][momentum] for gpu in (0, 1)] == [momentum, None]
    assert [hosted.blocks[gpu][momentum] for gpu in (0, 1)] == [None, None]


def test_rounds_of_a_split_batch_hold_the_kernels_of_all_gpus():
    split = Split(2).apply(TaskGraph.of(network([10], batch=5)))
    two = replicas(split, Replicate(2, HOST, GB)).graph
    assert ids(two) == ["F1", "W1", "F1.gpu1", "W1.gpu1", "F1@1", "W1@1", "F1@1.gpu1", "W1@1.gpu1", "update:w1"]
    assert [(part.first, part.stop, part.repeat) for part in two.rounds] == [(0, 4, 2), (4, 8, 1), (8, 9, 1)]


def test_encoded_forms_are_copied_and_the_hosts_codec_is_shared():
    class Costs:
        def sparsity(self, block: Block) -> float | None:
            return None

        def is_known(self, block: Block, codec: str) -> bool:
            return True

        def encoded_bytes(self, block: Block, codec: str) -> int:
            return 5

        def encode_ns(self, block: Block, encoding: object) -> int:
            return 3

        def decode_ns(self, block: Block, encoding: object) -> int:
            return 4

    from simgpu.graph.encodings import Encoding

    graph = with_encodings(replace(TASKS, costs=Costs()), [Encoding(TASKS.block("x1"), "zvc")])
    form = graph.block("x1:zvc")
    plain, shared = (replicas(graph, Replicate(2, HOST, GB, by_host=by_host)).graph for by_host in ((), (form,)))
    copy = plain.block("x1:zvc.gpu1")
    assert plain.encoded[copy] == (plain.block("x1.gpu1"), 3, 4)
    assert shared.encoded[form] == (graph.block("x1"), 6, 8)
    assert plain.sizes[copy] == 5


def test_the_transform_equals_the_direct_replication():
    how = Replicate(2, HOST, GB)
    assert transformed(TASKS, (how,)).trace == replicas(TASKS, how).graph.trace


# --- which gradient updates which weight -------------------------------------------------------------------


def pairs(graph: TaskGraph) -> dict[str, tuple[str, ...]]:
    names = [each.id for each in graph.blocks]
    return {names[u.weight]: (names[u.gradient], *(names[b] for b in u.state)) for u in updates_of(graph)[0]}


def renamed(trace: Trace, **new: str) -> TaskGraph:
    """The trace with renamed blocks; underscores in the keywords of `new` replace dots."""
    names = {old.replace("_", "."): name for old, name in new.items()}

    def of(kernel: Kernel) -> Kernel:
        reads, writes = (tuple(names.get(b, b) for b in blocks) for blocks in (kernel.reads, kernel.writes))
        return replace(kernel, reads=reads, writes=writes)

    blocks = tuple(replace(each, id=names.get(each.id, each.id)) for each in trace.blocks)
    return TaskGraph.of(replace(trace, kernels=tuple(map(of, trace.kernels)), blocks=blocks))


def test_names_match_weights_and_gradients():
    assert pairs(TASKS) == {"w1": ("w1.grad", "w1.momentum"), "w2": ("w2.grad", "w2.momentum")}
    assert updates_of(TASKS)[1] == TASKS.kernel("S1")


def test_without_names_sizes_match_weights_and_gradients():
    graph = renamed(network([10, 100], momentum=True), w1_grad="a", w2_grad="b", w1_momentum="c", w2_momentum="d")
    assert pairs(graph) == {"w1": ("a", "c"), "w2": ("b", "d")}


def test_equal_sizes_match_the_weight_read_first_with_the_gradient_written_last():
    graph = renamed(network([10, 10], step=None), w1_grad="a", w2_grad="b")
    assert pairs(graph) == {"w1": ("a",), "w2": ("b",)}


def by_hand(kernels: list[Kernel], *blocks: Block) -> TaskGraph:
    """These kernels after the forward of one layer with weight w1; backward begins with g, the gradient of w1."""
    first = [
        kernel("F1", 10, "x0 w1", "x1", phase=Phase.FORWARD),
        kernel("W1", 10, "x1 x0", "g", phase=Phase.BACKWARD),
    ]
    own = (held("x0", 20, kind=BlockKind.INPUT), block("x1", 20), held("w1", 100, kind=BlockKind.WEIGHT))
    return TaskGraph.of(Trace(INFO, (*first, *kernels), (*own, *blocks)))


def step(reads: str, writes: str = "w1") -> Kernel:
    return kernel(f"S{writes}", 5, reads, writes, phase=Phase.OPTIMIZER)


GRADIENT = block("g", 100, kind=BlockKind.WEIGHT_GRADIENT)


def test_what_the_optimizer_reads_to_update_a_weight_is_its_gradient():
    """Another block of the same kind and size is written later."""
    copy = kernel("copy", 10, "g", "h", phase=Phase.BACKWARD)
    other = block("h", 100, kind=BlockKind.WEIGHT_GRADIENT)
    assert pairs(by_hand([copy, step("w1 g")], GRADIENT, other)) == {"w1": ("g",)}
    assert pairs(by_hand([copy, step("w1 h")], GRADIENT, other)) == {"w1": ("h",)}


def test_temporaries_and_state_of_the_optimizer_are_followed_to_the_gradient():
    state = held("m", 100, kind=BlockKind.OPTIMIZER_STATE)
    temporary = block("t", 100, kind=BlockKind.OTHER)
    kernels = [kernel("M", 5, "g m", "m", phase=Phase.OPTIMIZER), kernel("T", 5, "m", "t", phase=Phase.OPTIMIZER)]
    copy = kernel("copy", 10, "g", "h", phase=Phase.BACKWARD)
    other = block("h", 100, kind=BlockKind.WEIGHT_GRADIENT)
    graph = by_hand([copy, *kernels, step("w1 t")], GRADIENT, other, state, temporary)
    assert pairs(graph) == {"w1": ("g", "m")}


def test_a_common_norm_of_all_gradients_leads_to_none_of_them():
    trace = network([10, 10], step=None)
    norm = kernel("norm", 5, "w1.grad w2.grad", "n", phase=Phase.OPTIMIZER)
    steps = [step(f"w{n} n w{n}.grad", f"w{n}") for n in (1, 2)]
    blocks = (*trace.blocks, block("n", 4, kind=BlockKind.OTHER))
    graph = replace(trace, kernels=(*trace.kernels, norm, *steps), blocks=blocks)
    assert pairs(renamed(graph, w1_grad="b", w2_grad="a")) == {"w1": ("b",), "w2": ("a",)}


def test_a_gradient_read_for_one_weight_is_not_matched_to_another_by_name():
    trace = network([10, 10], step=None)
    norm = kernel("norm", 5, "w1.grad w2.grad", "n", phase=Phase.OPTIMIZER)
    steps = [step("w1 w2.grad", "w1"), step("w2 n", "w2")]
    blocks = (*trace.blocks, block("n", 4, kind=BlockKind.OTHER))
    graph = TaskGraph.of(replace(trace, kernels=(*trace.kernels, norm, *steps), blocks=blocks))
    assert pairs(graph) == {"w1": ("w2.grad",), "w2": ("w1.grad",)}


def test_persistent_statistics_of_the_size_of_a_weight_are_no_gradient():
    """Backward updates them and the optimizer reads them, like a gradient."""
    statistics = held("r", 100, kind=BlockKind.OTHER)
    update = kernel("statistics", 10, "g r", "r", phase=Phase.BACKWARD)
    assert pairs(by_hand([update, step("w1 r")], GRADIENT, statistics))["w1"][0] == "g"


@pytest.mark.parametrize("kind", [BlockKind.OTHER, BlockKind.GRADIENT])
def test_a_gradient_of_another_kind_is_found_by_the_optimizer_and_its_size(kind: BlockKind):
    scale = kernel("scale", 1, "x1", "s", phase=Phase.BACKWARD)
    blocks = (replace(GRADIENT, kind=kind), block("s", 4, kind=BlockKind.OTHER))
    assert pairs(by_hand([scale, step("w1 s g")], *blocks)) == {"w1": ("g",)}


def test_the_name_selects_among_several_gradients_of_one_update():
    other = block("w1.grad", 100, kind=BlockKind.WEIGHT_GRADIENT)
    built = kernel("more", 10, "x1", "w1.grad", phase=Phase.BACKWARD)
    assert pairs(by_hand([built, step("w1 g w1.grad")], GRADIENT, other)) == {"w1": ("w1.grad",)}


def test_a_gradient_read_by_the_optimizer_precedes_a_block_of_equal_size():
    """One kernel updates both weights; a partial gradient that is added to a gradient is written last."""
    trace = network([10, 10], together=True)
    part = kernel("part", 1, "x1", "p", phase=Phase.BACKWARD)
    add = kernel("add", 1, "p w1.grad", "w1.grad", phase=Phase.BACKWARD)
    blocks = (*trace.blocks, block("p", 10, kind=BlockKind.WEIGHT_GRADIENT))
    graph = replace(trace, kernels=(*trace.kernels[:-1], part, add, trace.kernels[-1]), blocks=blocks)
    assert pairs(renamed(graph, w1_grad="a", w2_grad="b")) == {"w1": ("a",), "w2": ("b",)}


def test_a_partial_gradient_is_matched_if_nothing_else_fits():
    add = kernel("add", 10, "g", "sum", phase=Phase.BACKWARD)
    assert pairs(by_hand([add], GRADIENT, block("sum", 100, kind=BlockKind.WEIGHT_GRADIENT))) == {"w1": ("sum",)}
    assert pairs(by_hand([add], GRADIENT, block("sum", 50, kind=BlockKind.WEIGHT_GRADIENT))) == {"w1": ("g",)}


def test_one_gradient_updates_one_weight():
    """A second weight that is updated by the same block has none of its own."""
    second = held("w2", 100, kind=BlockKind.WEIGHT)
    graph = by_hand([step("w1 g"), step("w2 g", "w2")], GRADIENT, second)
    assert pairs(graph) == {"w1": ("g",)}
    assert without_gradient(graph) == (graph.block("w2"),)


@pytest.mark.parametrize(("first", "then"), [("g", "h"), ("h", "g")])
def test_the_first_of_two_updates_of_a_weight_reads_its_gradient(first: str, then: str):
    """A later correction of the weight reads another block written by backward, which is not its gradient."""
    copy = kernel("copy", 10, "g", "h", phase=Phase.BACKWARD)
    other = block("h", 100, kind=BlockKind.WEIGHT_GRADIENT)
    correct = replace(step(f"w1 {then}"), id="correct")
    assert pairs(by_hand([copy, step(f"w1 {first}"), correct], GRADIENT, other)) == {"w1": (first,)}


@pytest.mark.parametrize("batch", [4, 1])
def test_pairs_are_the_same_in_sub_batches_and_at_other_batches(batch: int):
    """Although sub-batches change the sizes that pairs are matched by."""
    message = exchanging(renamed(network([10, 10], step=None, batch=4), w1_grad="b", w2_grad="a"))
    assert pairs(message.at_batch(batch)) == pairs(message) == pairs(Split(1).apply(message))


def test_layers_are_matched_before_sizes():
    trace = network([10, 10], step=None)
    layers = {"w1": "low", "w2": "high", "w1.grad": "high", "w2.grad": "low"}
    blocks = tuple(replace(each, layer=layers.get(each.id)) for each in trace.blocks)
    graph = renamed(replace(trace, blocks=blocks), w1_grad="a", w2_grad="b")
    assert pairs(graph) == {"w1": ("b",), "w2": ("a",)}


def test_a_weight_that_the_optimizer_never_writes_is_not_shared():
    trace = network([10, 100])
    kernels = tuple(each for each in trace.kernels if each.id != "S2")
    graph = TaskGraph.of(replace(trace, kernels=kernels))
    assert pairs(graph) == {"w1": ("w1.grad",)}
    assert "w2.gpu1" in replicas(graph, Replicate(2, HOST, GB)).graph.block_number


def test_without_an_optimizer_all_weights_with_gradients_are_updated():
    assert pairs(TaskGraph.of(network([10, 100], step=None))) == {"w1": ("w1.grad",), "w2": ("w2.grad",)}


def test_a_trace_without_gradients_is_refused():
    with pytest.raises(InputError, match="no block is known as the gradient of a weight"):
        updates_of(TaskGraph.of(chain([5], [10], [100])))


def test_an_optimizer_kernel_during_backward_is_refused():
    blocks = [held("w", 4, kind=BlockKind.WEIGHT), block("w.grad", 4, kind=BlockKind.WEIGHT_GRADIENT)]
    kernels = [
        kernel("B", 1, "w", "w.grad", phase=Phase.BACKWARD),
        kernel("S", 1, "w.grad w", "w", phase=Phase.OPTIMIZER),
        kernel("last", 1, phase=Phase.BACKWARD),
    ]
    with pytest.raises(InputError, match="kernel 'S' of the optimizer runs before backward has ended"):
        updates_of(TaskGraph.of(Trace(INFO, tuple(kernels), tuple(blocks))))


def test_an_update_is_described_by_block_numbers():
    assert updates_of(TASKS)[0][0] == Update(TASKS.block("w1"), TASKS.block("w1.grad"), (TASKS.block("w1.momentum"),))
