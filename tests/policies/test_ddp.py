"""`ddp`: step time and memory in closed form, with all weights on each GPU and with parts of the optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import InputError
from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.program.shards import ExchangeCosts
from simgpu.simulation.run import Result, simulate
from simgpu.trace.model import Trace
from tests.policies.framework_runs import used, work
from tests.policies.test_fsdp import BACKWARD, FORWARD, GPUS, SCALE, layers, node
from tests.policies.test_optimizer_on_host import LAYERS, STEP_NS, WEIGHT
from tests.policies.test_weights_on_host import decoder
from tests.semantics.hand_made import GB

#: A gradient of the hand-made layers has more than a MiB here, so each is a bucket.
TIMES = 2000
GRADIENT = TIMES * WEIGHT


def large() -> Trace:
    plain = layers()
    return replace(plain, blocks=tuple(replace(block, bytes=TIMES * block.bytes) for block in plain.blocks))


def run(where: NodeSpec, **parameters: object) -> Result:
    return simulate(large(), where, "ddp", parameters={"gpus": GPUS, "bucket_mib": 1} | parameters)


@pytest.mark.parametrize("rate", [100 * GB, GB], ids=["hidden", "slow"])
@pytest.mark.parametrize("shards", ["none", "optimizer"])
def test_step_time_is_that_of_backward_with_a_collective_for_each_bucket(rate: int, shards: str) -> None:
    where = node(rate)
    copy = ExchangeCosts(Group(GPUS), where).copy_ns(GRADIENT)
    reduced, gather = (
        collective_ns(kind, GRADIENT, Group(GPUS), where)
        for kind in (Collective.ALL_REDUCE if shards == "none" else Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    )
    now, free, done = LAYERS * FORWARD, 0, []
    for _ in range(LAYERS):
        now += BACKWARD + copy
        done.append(free := max(free, now) + reduced)
    for end in done:
        now = max(now, end) + (copy if shards == "none" else 0)
    now += SCALE * STEP_NS if shards == "none" else SCALE * STEP_NS // GPUS + LAYERS * gather
    result = run(where, shards=shards)
    assert result.iteration_ns == now
    assert result.steady


def test_buckets_come_on_top_of_gradients_where_all_gpus_update_all_weights() -> None:
    plain = simulate(large(), node(), "none").metrics.device_peak_bytes
    assert run(node()).metrics.device_peak_bytes == plain + LAYERS * GRADIENT


def test_buckets_replace_gradients_where_each_gpu_updates_a_part() -> None:
    result = run(node(), shards="optimizer")
    [start] = [start for name, start, _ in work(result) if name == "B1"]
    [end] = [start for name, start, _ in work(result) if name == "step"]
    lasting = LAYERS * (GRADIENT + 2 * GRADIENT // GPUS + GRADIENT)
    assert used(result, end + 1) == lasting + TIMES * 5000
    # The batch, the gradient of the activation, and of the first layer's weight.
    assert used(result, start + 1) == lasting + 2 * TIMES * 5000 + GRADIENT


@pytest.mark.parametrize(("shards", "gradients"), [("none", [1, 3]), ("optimizer", [4])])
def test_buckets_have_the_capacity_of_the_framework(shards: str, gradients: list[int]) -> None:
    """1 MiB, then 25 MiB; 40 million numbers."""
    graph = run(node(), shards=shards, bucket_mib=0).graph
    sizes = [graph.sizes[b] for b, block in enumerate(graph.blocks) if block.id.startswith("bucket ")]
    assert sizes == [count * GRADIENT for count in gradients]


def test_recorded_micro_batches_exchange_in_the_last_one() -> None:
    result = simulate(decoder(micro_batches=2), load_node("h100-x8"), "ddp")
    ran = work(result)
    first = min(start for name, start, _ in ran if name.startswith("all_reduce"))
    forward = [k.id for k in result.graph.kernels if k.phase == "forward"]
    assert first > max(start for name, start, _ in ran if name in forward)


def test_one_gpu_is_the_policy_inside() -> None:
    assert run(node(), gpus=1).program == simulate(large(), node(), "none").program


def test_micro_batches_of_a_policy_and_wrong_buckets_are_refused() -> None:
    with pytest.raises(InputError, match="record or model the iteration in micro-batches"):
        simulate(decoder(), load_node("h100-x8"), "ddp", parameters={"inside": {"accumulate": {"micro_batches": 2}}})
    with pytest.raises(InputError, match=r"parameters\.bucket_mib: -1 is negative; give 0 or more"):
        run(node(), bucket_mib=-1)
