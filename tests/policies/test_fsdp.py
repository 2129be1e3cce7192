"""`fsdp`: step time and memory in closed form, what the optimizer does, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import InputError
from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec, PeerSpec
from simgpu.program.shards import ExchangeCosts
from simgpu.simulation.run import Result, simulate
from simgpu.trace.model import BlockKind, Trace
from tests.policies.framework_runs import used, work
from tests.policies.test_optimizer_on_host import BACKWARD_NS, FORWARD_NS, LAYERS, STEP_NS, WEIGHT, machine
from tests.policies.test_weights_on_host import GROUPS, decoder, tagged
from tests.semantics.hand_made import GB

GPUS = 4
#: Kernels of the hand-made layers last microseconds here, as collectives do.
SCALE = 100
#: A shard of a weight, and the buffer of an all-gather, which is a little larger than the weight.
SHARD = -(-WEIGHT // GPUS)
GATHERED = GPUS * SHARD


def node(bandwidth: int = GB) -> NodeSpec:
    """Four GPUs, which exchange this many bytes per second."""
    one = machine(2 * GB)
    gpu = replace(one.gpu, dram_bandwidth=1000 * GB)
    return replace(one, gpus=GPUS, gpu=gpu, peers=PeerSpec("test link", "nvlink", bandwidth))


def layers() -> Trace:
    plain = tagged()
    return replace(plain, kernels=tuple(replace(k, duration_ns=SCALE * k.duration_ns) for k in plain.kernels))


def run(where: NodeSpec | None = None, trace: Trace | None = None, **parameters: object) -> Result:
    given = {"gpus": GPUS, "blocks": GROUPS} | parameters
    return simulate(trace or layers(), where or node(), "fsdp", parameters=given)


def times(where: NodeSpec) -> tuple[int, int, int]:
    """Of an all-gather and a reduce-scatter of a weight, and of the copy of one."""
    group, costs = Group(GPUS), ExchangeCosts(Group(GPUS), where)
    gather, reduce = (
        collective_ns(kind, GATHERED, group, where) for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
    return gather, reduce, costs.copy_ns(GATHERED)


FORWARD, BACKWARD = SCALE * FORWARD_NS, SCALE * BACKWARD_NS
#: The optimizer's kernel accesses shards alone.
STEP = SCALE * STEP_NS // GPUS


def expected(where: NodeSpec) -> tuple[int, int]:
    """The step time and what compute waits for collectives, followed by hand."""
    gather, reduce, copy = times(where)
    now = free = stalled = 0  # compute, the stream of collectives, and what compute has waited

    def wait(until: int) -> None:
        nonlocal now, stalled
        stalled, now = stalled + max(until - now, 0), max(until, now)

    def exchange(earliest: int, ns: int) -> int:
        nonlocal free
        free = max(free, earliest) + ns
        return free

    copied: list[int] = []
    there = [exchange(0, gather), exchange(0, gather)]
    for layer in range(LAYERS):
        if layer > 1:
            there.append(exchange(copied[layer - 2], gather))
        wait(there[layer])
        copied.append(now := now + copy)
        now += FORWARD
    following, reduced = exchange(now, gather), 0
    for layer in reversed(range(LAYERS)):
        if layer > 0:
            wait(following)
            now += copy
            following = exchange(now, gather) if layer > 1 else 0
        now += BACKWARD
        wait(reduced)
        now += copy
        reduced = exchange(now, reduce)
    wait(reduced)
    return now + STEP, stalled


@pytest.mark.parametrize("bandwidth", [GB, GB // 100, GB // 1000], ids=["hidden", "slower", "slowest"])
def test_step_time_and_stalls_are_those_followed_by_hand(bandwidth: int) -> None:
    where = node(bandwidth)
    result = run(where)
    assert (result.iteration_ns, result.metrics.breakdown.stalled_collectives) == expected(where)
    assert result.metrics.by_key["stalled_collectives_ns"] == expected(where)[1]
    assert result.steady


def test_only_the_first_and_the_last_collective_are_exposed_where_compute_is_longer() -> None:
    """That of the root in forward, the first of backward, since no layer follows the groups, and the root's sum."""
    gather, reduce, _ = times(node())
    assert gather + reduce < FORWARD
    assert expected(node())[1] == 2 * gather + reduce


def test_backward_of_a_group_has_three_gathered_weights_its_gradient_and_the_one_that_is_reduced() -> None:
    """Its own weight, the root's, and the buffer of the next group; of the group before the buffer and the part."""
    result = run()
    [start] = [start for name, start, _ in work(result) if name == "B3"]
    activations, shards = (LAYERS - 1) * 5000, LAYERS * 3 * SHARD
    gathered, reduced = 3 * GATHERED, GATHERED + SHARD
    assert used(result, start + 1) == activations + 2 * 5000 + shards + gathered + WEIGHT + reduced


def test_weights_that_are_not_resharded_are_gathered_once() -> None:
    names = [name for name, _, _ in work(run(reshard_after_forward=False)) if name.startswith("all_gather")]
    assert sorted(names) == ["all_gather l.2", "all_gather l.3", "all_gather l.4", "all_gather root"]


def test_the_optimizer_accesses_shards_of_rows() -> None:
    trace = decoder()
    result = simulate(trace, load_node("h100-x8"), "fsdp", parameters={"gpus": 3})
    graph = result.graph
    weight = next(b for b in trace.blocks if b.kind is BlockKind.WEIGHT and b.shape and b.shape[0] % 3)
    assert weight.shape is not None
    rows, row = weight.shape[0], weight.bytes // weight.shape[0]
    assert graph.sizes[graph.block(f"{weight.id}:shard")] == -(-rows // 3) * row
    assert graph.sizes[graph.block(weight.id)] == 3 * -(-rows // 3) * row
    optimizer = [k for k, kernel in enumerate(graph.kernels) if kernel.phase == "optimizer"]
    assert not any(graph.blocks[b].id == weight.id for k in optimizer for b in (*graph.reads[k], *graph.writes[k]))
    before = {k.id: k.duration_ns for k in trace.kernels}
    assert all(before[graph.kernels[k].id] / 3 <= graph.durations[k] <= before[graph.kernels[k].id] for k in optimizer)


def test_mixed_precision_keeps_and_adds_up_in_single_precision_and_gathers_in_half() -> None:
    trace = decoder()
    half, single = (
        simulate(trace, load_node("h100-x8"), "fsdp", parameters={"mixed_precision": mixed}).graph
        for mixed in (False, True)
    )
    sizes = {block.id: (half.sizes[b], single.sizes[b]) for b, block in enumerate(half.blocks)}
    name = "model.layers.1"
    assert len(set(sizes[f"gathered {name}"])) == 1
    twice = [f"{name}.mlp.up_proj.weight:shard", f"{name}.mlp.up_proj.weight.exp_avg", f"to reduce {name}"]
    for block in (*twice, f"gradients {name}"):
        assert sizes[block][1] == 2 * sizes[block][0] > 0


def test_layers_of_a_decoder_are_gathered_again_for_the_checkpoint_inside() -> None:
    result = simulate(decoder(), load_node("h100-x8"), "fsdp", parameters={"inside": "checkpoint"})
    ran = work(result)
    starts = {name: start for name, start, _ in ran}
    again = [start for name, start, _ in ran if name.startswith("again:")]
    assert min(again) >= starts["split_with_sizes_copy model.layers.2, backward"]
    assert result.steady


def test_one_gpu_is_the_policy_inside() -> None:
    alone = run(gpus=1, inside="checkpoint")
    plain = simulate(layers(), node(), "checkpoint")
    assert list(alone.timeline) == list(plain.timeline)
    assert alone.program == plain.program


@pytest.mark.parametrize(
    ("where", "parameters", "message"),
    [
        (replace(node(), peers=None), {}, "node.peers: is not set for node .*; choose a node that states it"),
        (node(), {"gpus": 8}, "has 4 GPUs, not 8"),
        (node(), {"gpus": 4, "nodes": 3}, "4 GPUs cannot be divided evenly among 3 nodes"),
        (node(), {"gpus": 8, "nodes": 2}, "node.network: is not set for node"),
        (
            node(),
            {"inside": "weights_on_host"},
            "parameters.inside: weights_on_host moves weights, gradients or",
        ),
        (node(), {"inside": {"ddp": {"gpus": GPUS}}}, "parameters.inside: ddp inside fsdp would divide the GPUs twice"),
        (node(), {"mixed_precision": True}, "parameters.mixed_precision: no weight is in half precision"),
        (node(), {"inside": "um"}, "parameters.inside: the policy inside has blocks paged or in host memory"),
    ],
)
def test_unsupported_parameters_are_refused(where: NodeSpec, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(where, **parameters)


@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
@pytest.mark.parametrize("op", [Collective.ALL_REDUCE, "recv"])
def test_a_trace_of_one_of_several_gpus_is_refused(policy: str, op: str) -> None:
    first, *others = layers().kernels
    trace = replace(layers(), kernels=(replace(first, op=op), *others))
    with pytest.raises(InputError, match="exchanges data: the trace is already that of one of several GPUs"):
        simulate(trace, node(), policy, parameters={"gpus": GPUS})


def test_each_recorded_micro_batch_gathers_weights_and_adds_to_the_sum_of_its_gradients() -> None:
    trace = decoder(micro_batches=2)
    result = simulate(trace, load_node("h100-x8"), "fsdp")
    ran = work(result)
    starts = {name: start for name, start, _ in ran}
    layer = "model.layers.1"
    for kernel in ("all_gather", "split_with_sizes_copy", "chunk_cat", "reduce_scatter"):
        assert starts[f"{kernel} {layer}"] < starts[f"{kernel} {layer}, micro-batch 2"]
    assert starts[f"reduce_scatter {layer}, micro-batch 2"] < starts[f"add_ {layer}, micro-batch 2"]
    adds = [k.id for k in trace.kernels if k.op == "add_" and k.writes[0].endswith(".weight.grad")]
    assert adds and not starts.keys() & set(adds)
    assert result.steady


def test_micro_batches_that_a_policy_makes_are_refused() -> None:
    with pytest.raises(InputError, match="record or model the iteration in micro-batches"):
        simulate(decoder(), load_node("h100-x8"), "fsdp", parameters={"inside": {"accumulate": {"micro_batches": 2}}})
