"""`weights_on_host`: step time, peak and copied bytes in closed form, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import InputError
from simgpu.simulation.run import Result, simulate
from simgpu.trace.model import BlockKind, Trace
from tests.policies.framework_runs import used, work
from tests.policies.test_optimizer_on_host import (
    BACKWARD_NS,
    COMPUTE_NS,
    FORWARD_NS,
    LAYERS,
    UPDATE,
    WEIGHT,
    layers,
    machine,
)
from tests.semantics.hand_made import GB
from tests.workloads.configured.test_decoder_iteration import SMALL, built

#: Updates reach half of 2 GB/s, a byte each nanosecond.
UPDATES_NS = LAYERS * UPDATE
GROUPS = ["l.2", "l.3", "l.4"]


def tagged() -> Trace:
    """Four layers in modules of their own."""
    plain = layers()
    names = {k.id: f"l.{k.id[1:]}" for k in plain.kernels if k.id != "step"}
    return replace(plain, kernels=tuple(replace(k, layer=names.get(k.id)) for k in plain.kernels))


def run(trace: Trace | None = None, **parameters: object) -> Result:
    return simulate(trace or tagged(), machine(2 * GB), "weights_on_host", parameters=parameters)


def test_copies_of_weights_never_overlap_and_gradients_but_the_last_do() -> None:
    """Three groups come twice and the root once; the root's gradient leaves when backward has ended."""
    assert run(blocks=GROUPS).iteration_ns == COMPUTE_NS + (2 * 3 + 1) * WEIGHT + WEIGHT + UPDATES_NS
    assert run(blocks=GROUPS).metrics.copied_bytes == {"d2h": LAYERS * WEIGHT, "h2d": (2 * 3 + 1) * WEIGHT}
    every = run(blocks=["l.1", *GROUPS])
    assert every.iteration_ns == COMPUTE_NS + 2 * LAYERS * WEIGHT + WEIGHT + UPDATES_NS


def test_weights_that_are_not_resharded_come_once() -> None:
    result = run(blocks=GROUPS, reshard_after_forward=False)
    assert result.iteration_ns == COMPUTE_NS + LAYERS * WEIGHT + WEIGHT + UPDATES_NS
    assert result.metrics.copied_bytes["h2d"] == LAYERS * WEIGHT


def test_gradients_leave_in_groups_when_backward_of_the_group_has_ended() -> None:
    ran = {name: (start, end) for name, start, end in work(run(blocks=GROUPS))}
    groups = [4, 3, 2]
    assert [ran[f"out:w{n}.grad"][0] for n in groups] == [ran[f"B{n}"][1] for n in groups]
    begin = ran["in:w1"][0] + LAYERS * (FORWARD_NS + WEIGHT)
    assert [ran[f"B{n}"] for n in groups] == [
        (begin + at * (BACKWARD_NS + WEIGHT) + WEIGHT, begin + (at + 1) * (BACKWARD_NS + WEIGHT)) for at in range(3)
    ]


@pytest.mark.parametrize("root", [[], ["l.1"]], ids=["first layer in the root", "no root"])
def test_the_peak_has_the_weights_of_one_group_and_of_the_root(root: list[str]) -> None:
    """It is in backward of the last layer: all activations, its gradient for the layer in front, and for its weight."""
    activations = (LAYERS + 1) * 5000
    result = run(blocks=[*root, *GROUPS])
    weights = WEIGHT if root else 2 * WEIGHT
    assert result.metrics.device_peak_bytes == activations + 5000 + weights + WEIGHT
    plain = simulate(tagged(), machine(2 * GB), "none").metrics.device_peak_bytes
    assert plain == activations + 5000 + LAYERS * 3 * WEIGHT + WEIGHT


def test_copies_have_a_staging_buffer_and_gradients_one_until_the_next_group_ends() -> None:
    result = run(blocks=["l.1", *GROUPS])
    ran = {name: (start, end) for name, start, end in work(result)}
    copies = [start + 1 for name, start, _ in work(result) if name == "in:w2"]
    # In forward two activations; in backward a gradient too, that of the weight behind, under way, and its buffer.
    assert [used(result, moment) for moment in copies] == [10000 + 2 * WEIGHT, 15000 + 2 * WEIGHT + 2 * WEIGHT]
    assert used(result, ran["F2"][0] + 1) == 15000 + WEIGHT
    # Three activations and two gradients of activations, a weight and its gradient; that of the next layer has left.
    assert used(result, ran["B3"][1] - 1) == 25000 + 2 * WEIGHT + WEIGHT


def test_compute_waits_for_gradients_of_two_groups_before_where_the_link_is_slow() -> None:
    where, copy = machine(2 * GB, out=GB // 10), 10 * WEIGHT
    result = simulate(tagged(), where, "weights_on_host", parameters={"blocks": ["l.1", *GROUPS]})
    moment, sent = LAYERS * (FORWARD_NS + WEIGHT), [0, 0]
    for _ in range(LAYERS):
        moment = max(moment + WEIGHT + BACKWARD_NS, sent[-2])
        sent.append(max(moment, sent[-1]) + copy)
    assert result.iteration_ns == sent[-1] + UPDATES_NS


def decoder(**options: object) -> Trace:
    return built({**SMALL, "num_hidden_layers": 3}, 256, optimizer="adamw-fused", **options).trace


def test_layers_of_a_decoder_come_again_for_the_checkpoint_inside_and_all_else_once() -> None:
    trace = decoder()
    result = run(trace, inside="checkpoint")
    weights = {b.id: b.bytes for b in trace.blocks if b.kind is BlockKind.WEIGHT}
    of_layers = sum(size for name, size in weights.items() if ".layers." in name)
    assert result.metrics.copied_bytes == {"d2h": sum(weights.values()), "h2d": sum(weights.values()) + of_layers}
    again = [name for name, _, _ in work(result) if name.startswith("again:")]
    assert result.steady and again


def test_weights_that_are_not_trained_come_too_and_have_no_gradients() -> None:
    trace = decoder(lora=4)
    trained = {b.id.removesuffix(".grad") for b in trace.blocks if b.kind is BlockKind.WEIGHT_GRADIENT}
    sizes = {b.id: b.bytes for b in trace.blocks if b.kind is BlockKind.WEIGHT}
    copied = run(trace).metrics.copied_bytes
    assert copied["d2h"] == sum(size for name, size in sizes.items() if name in trained)
    assert copied["h2d"] > sum(sizes.values()) > 10 * copied["d2h"]


def test_micro_batches_are_refused() -> None:
    with pytest.raises(InputError, match="its program has micro-batches, whose gradients the host would add up"):
        run(decoder(), inside={"accumulate": {"micro_batches": 2}})
    with pytest.raises(InputError, match="its program has micro-batches"):
        run(decoder(micro_batches=2))
