"""`optimizer_on_host`: step time and peak in closed form, with each overlap; the optimizer's kernels that remain."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from simgpu.errors import InputError
from simgpu.graph.host_updates import UpdateOnHost, host_updates
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.simulation.run import Result, simulate
from simgpu.trace.folder import load_trace
from simgpu.trace.model import BlockKind, Trace
from tests.semantics.hand_made import BACKWARD, GB, OPTIMIZER, block, held, kernel, node, trace

LAYERS, WEIGHT, FORWARD_NS, BACKWARD_NS, STEP_NS = 4, 700, 1000, 2000, 900
#: Bytes of an update: gradient, weight and two states are read, weight and states written.
UPDATE = 7 * WEIGHT


def layers(*, temporary: bool = False) -> Trace:
    """Equal layers with Adam, one kernel for all weights; with `temporary`, one that writes a temporary of its own."""
    numbers = range(1, LAYERS + 1)
    kernels = [kernel(f"F{n}", FORWARD_NS, f"x{n - 1} w{n}", f"x{n}") for n in numbers]
    for n in reversed(numbers):
        above, below = (f"g{n}" if n < LAYERS else f"x{n}"), (f" g{n - 1}" if n > 1 else "")
        kernels.append(kernel(f"B{n}", BACKWARD_NS, f"{above} x{n - 1} w{n}", f"w{n}.grad{below}", phase=BACKWARD))
    if temporary:
        squares = [kernel(f"S{n}", 50, f"w{n}.exp_avg", f"t{n}", phase=OPTIMIZER, pure=False) for n in numbers]
        steps = [kernel(f"U{n}", 50, f"t{n} w{n} w{n}.grad", f"w{n}", phase=OPTIMIZER, pure=False) for n in numbers]
        kernels += [each for pair in zip(squares, steps, strict=True) for each in pair]
    else:
        changed = " ".join(f"w{n} w{n}.exp_avg w{n}.exp_avg_sq" for n in numbers)
        read = " ".join((changed, *(f"w{n}.grad" for n in numbers)))
        kernels.append(kernel("step", STEP_NS, read, changed, phase=OPTIMIZER, pure=False))
    states = [f"w{n}.{name}" for n in numbers for name in ("exp_avg", "exp_avg_sq")]
    blocks = [
        held("x0", 5000, kind=BlockKind.INPUT),
        *(block(f"x{n}", 5000) for n in numbers),
        *(block(f"g{n}", 5000, kind=BlockKind.GRADIENT) for n in numbers if n < LAYERS),
        *(held(f"w{n}", WEIGHT, kind=BlockKind.WEIGHT) for n in numbers),
        *(held(name, WEIGHT, kind=BlockKind.OPTIMIZER_STATE) for name in states),
        *(block(f"w{n}.grad", WEIGHT, kind=BlockKind.WEIGHT_GRADIENT, release="end") for n in numbers),
        *(block(f"t{n}", 90, kind=BlockKind.OTHER) for n in numbers if temporary),
    ]
    return trace(kernels, blocks)


def machine(memory_bandwidth: int, *, out: int = GB, back: int = GB) -> NodeSpec:
    """A node whose updates pass at half of this bandwidth."""
    where = node(10**9, out=out, back=back)
    return replace(where, host=replace(where.host, memory_bandwidth=memory_bandwidth))


def run(where: NodeSpec, built: Trace | None = None, **parameters: object) -> Result:
    return simulate(built or layers(), where, "optimizer_on_host", parameters=parameters)


COMPUTE_NS = LAYERS * (FORWARD_NS + BACKWARD_NS)


def pipelined(ready: list[int], *stages: int) -> int:
    """When the last of some works has left a line of stages, each of which takes them one after the other."""
    ends = ready
    for took in stages:
        ends = list(accumulate(ends[1:], lambda end, start, took=took: max(end, start) + took, initial=ends[0] + took))
    return ends[-1]


@pytest.mark.parametrize("bandwidth", [2 * GB, 20 * GB], ids=["slow host", "fast host"])
def test_step_time_is_that_of_the_slowest_stage(bandwidth: int):
    copy, update = WEIGHT, -(-UPDATE * 10**9 // (bandwidth // 2))
    where = machine(bandwidth)
    ready = [LAYERS * FORWARD_NS + (n + 1) * BACKWARD_NS for n in range(LAYERS)]
    after = [COMPUTE_NS] * LAYERS
    assert run(where, overlap="none").iteration_ns == COMPUTE_NS + LAYERS * (2 * copy + update)
    gradients = pipelined(ready, copy) + LAYERS * (update + copy)
    assert run(where, overlap="gradients").iteration_ns == gradients
    assert run(where, overlap="step").iteration_ns == pipelined(after, copy, update, copy)
    # One stream copies: no weight comes back before the last gradient has left.
    sent = list(accumulate(ready[1:], lambda end, start: max(end, start) + copy, initial=ready[0] + copy))
    updated = list(accumulate(sent[1:], lambda end, start: max(end, start) + update, initial=sent[0] + update))
    backward = pipelined([max(each, sent[-1]) for each in updated], copy)
    assert run(where, overlap="backward").iteration_ns == backward
    assert backward <= pipelined(after, copy, update, copy) <= COMPUTE_NS + LAYERS * (2 * copy + update)


def test_the_state_of_the_updated_weights_leaves_the_gpu_to_the_byte():
    plain = simulate(layers(), machine(GB), "none").metrics.device_peak_bytes
    for fraction, weights in ((1.0, 4), (0.5, 2), (0.51, 3), (0.1, 1)):
        result = run(machine(GB), fraction=fraction)
        assert result.metrics.device_peak_bytes == plain - weights * 2 * WEIGHT
        assert result.metrics.copied_bytes == {"d2h": weights * WEIGHT, "h2d": weights * WEIGHT}


def test_free_gradients_leave_the_gpu_when_they_are_copied():
    """At the peak, in the first layer's backward, the gradients of the other layers are gone."""
    kept, freed = (run(machine(GB), free_gradients=each) for each in (False, True))
    at_end = [result.timeline.memory("device").live[-1] for result in (kept, freed)]
    assert at_end[0] == at_end[1]
    # The peak is in the last layer's backward, whose gradient is the first; at the end of backward all are there.
    live = [int(result.timeline.memory("device").live[-2]) for result in (kept, freed)]
    assert live[0] - live[1] >= (LAYERS - 1) * WEIGHT


def test_one_kernel_for_all_weights_takes_time_in_proportion_to_what_is_left():
    result = run(machine(100 * GB), fraction=0.5, overlap="none")
    (step,) = {s.end_ns - s.start_ns for s in result.timeline if s.name == "step"}
    assert step == STEP_NS // 2


def test_kernels_of_the_optimizer_go_with_their_temporaries():
    built = layers(temporary=True)
    hosted = host_updates(TaskGraph.of(built), UpdateOnHost((built.blocks.index(weight(built, 1)),), GB))
    left = [kernel.id for kernel in hosted.graph.kernels if kernel.phase is OPTIMIZER]
    assert left == ["S2", "U2", "S3", "U3", "S4", "U4", "update:w1"]
    assert "t1" in {built.blocks[b].id for b in hosted.gone}


def weight(built: Trace, n: int):
    return next(each for each in built.blocks if each.id == f"w{n}")


@pytest.mark.parametrize("inside", ["checkpoint", "offload_activations(min_offload_size=1)", "save_on_cpu", "vdnn"])
def test_the_policy_inside_has_its_own_time_and_the_state_leaves(inside: str):
    built, where = load_trace("digits-cnn-adam-cpu"), load_node("laptop-2gb", {"host.memory_bandwidth": "1 TB/s"})
    name, _, rest = inside.rstrip(")").partition("(")
    alone = simulate(built, where, name, parameters={"min_offload_size": 1} if rest else {})
    result = run(where, built, inside=inside, overlap="step")
    state = sum(b.bytes for b in built.blocks if b.kind is BlockKind.OPTIMIZER_STATE)
    assert alone.metrics.device_peak_bytes - result.metrics.device_peak_bytes == pytest.approx(state, abs=400)
    optimizer = sum(k.duration_ns for k in built.kernels if k.phase is OPTIMIZER)
    weights = sum(b.bytes for b in built.blocks if b.kind is BlockKind.WEIGHT)
    assert result.iteration_ns - alone.iteration_ns + optimizer >= where_ns(where, weights)
    assert result.steady


def where_ns(where: NodeSpec, size: int) -> int:
    return size * 10**9 // where.link.d2h_bandwidth


def test_gradients_of_micro_batches_are_copied_once():
    built, where = load_trace("digits-cnn-adam-cpu"), load_node("laptop-2gb", {"host.memory_bandwidth": "50 GB/s"})
    inside = {"accumulate": {"micro_batches": 4, "inside": "checkpoint"}}
    result = run(where, built, inside=inside, free_gradients=True)
    weights = sum(b.bytes for b in built.blocks if b.kind is BlockKind.WEIGHT)
    assert result.metrics.copied_bytes == {"d2h": weights, "h2d": weights}
    assert result.metrics.device_peak_bytes < run(where, built, free_gradients=True).metrics.device_peak_bytes


def test_micro_batches_are_chosen_by_the_memory_without_the_state():
    built, where = load_trace("digits-cnn-adam-cpu"), load_node("laptop-2gb", {"host.memory_bandwidth": "50 GB/s"})
    fits = run(where, built).metrics.device_peak_bytes
    result = simulate(built, where, "optimizer_on_host", parameters={"inside": "accumulate"}, budget=fits)
    assert result.iteration_ns == run(where, built).iteration_ns


def test_unsupported_cases_name_the_remedy():
    with pytest.raises(InputError, match=r"node.host.memory_bandwidth: is not set.*two channels of DDR4-3200"):
        run(node(10**9))
    with pytest.raises(
        InputError, match=r"(?s)parameters.fraction: 0.0 is not a share.*update_share: 1.5 is not a share"
    ):
        run(machine(GB), fraction=0.0, update_share=1.5)
    with pytest.raises(InputError, match=r"parameters.inside: its blocks are not its own to move"):
        run(machine(GB), inside="um")
    with pytest.raises(InputError, match=r"parameters.inside.mode: 'al'"):
        run(machine(GB), inside={"vdnn": {"mode": "al"}})
    built = layers()
    without = replace(built, kernels=tuple(k for k in built.kernels if k.phase is not OPTIMIZER))
    with pytest.raises(InputError, match="the trace has no optimizer"):
        run(machine(GB), without)


#: timm's vit_giant_patch14_dinov2: parameters, in 40 blocks.
VIT_GIANT, BLOCKS = 1_136_480_768, 40


def vit_giant(step_s: float) -> Trace:
    """An iteration with the weights of this model in bfloat16 and a measured step time, in equal blocks.

    Checkpointing recomputes each block in backward, so backward takes three quarters. The optimizer passes over seven
    times the weights at the 672 GB/s of the board's memory.
    """
    size = 2 * VIT_GIANT // BLOCKS
    optimizer = 7 * size * BLOCKS * 1000 // 672_000
    rest = int(step_s * 10**9) - optimizer
    numbers = range(BLOCKS)
    kernels = [kernel(f"F{n}", rest // 4 // BLOCKS, f"w{n}", "x") for n in numbers]
    kernels += [kernel(f"B{n}", rest * 3 // 4 // BLOCKS, f"x w{n}", f"w{n}.grad", phase=BACKWARD) for n in numbers]
    changed = " ".join(f"w{n} w{n}.exp_avg w{n}.exp_avg_sq" for n in numbers)
    read = " ".join((changed, *(f"w{n}.grad" for n in numbers)))
    kernels.append(kernel("step", optimizer, read, changed, phase=OPTIMIZER, pure=False))
    states = [f"w{n}.{name}" for n in numbers for name in ("exp_avg", "exp_avg_sq")]
    blocks = [
        block("x", 1),
        *(held(f"w{n}", size, kind=BlockKind.WEIGHT) for n in numbers),
        *(held(name, size, kind=BlockKind.OPTIMIZER_STATE) for name in states),
        *(block(f"w{n}.grad", size, kind=BlockKind.WEIGHT_GRADIENT, release="end") for n in numbers),
    ]
    return trace(kernels, blocks)


@pytest.mark.parametrize(
    ("overlap", "without_s", "measured_s", "memory_gb", "error"),
    [("step", 1.18, 1.75, 9.90 - 5.33, 0.05), ("backward", 1.27, 1.52, 9.82 - 5.24, 0.15)],
    ids=["compiled", "eager"],
)
def test_torchao_on_a_desktop_is_slower_by_about_what_was_measured(
    overlap: str, without_s: float, measured_s: float, memory_gb: float, error: float
):
    """README of torchao/optim (commit 072500ab): RTX 4070 Ti SUPER, Ryzen 5600, DDR4, whose rate is not stated; two
    channels of DDR4-3200, that processor's fastest, are assumed. Compiled as a whole, the model runs its hooks after
    backward. The step without offload is the measured one; what the offload adds is simulated."""
    where = load_node("rtx4070ti-super", {"host.memory_bandwidth": "51.2 GB/s"})
    built = vit_giant(without_s)
    plain, hosted = simulate(built, where, "none"), run(where, built, overlap=overlap)
    saved = plain.metrics.device_peak_bytes - hosted.metrics.device_peak_bytes
    assert saved == pytest.approx(memory_gb * 10**9, rel=0.01)
    assert hosted.iteration_ns > plain.iteration_ns
    assert hosted.iteration_ns == pytest.approx(measured_s * 10**9, rel=error)
