"""Gradients that GPUs exchange live to the end of the iteration, whichever kernel reads them last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import simgpu
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.graph.updates import exchanging
from simgpu.hardware.spec import HostSpec, NodeSpec
from simgpu.importers import import_trace
from simgpu.policies.base import PlanContext, Policy
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation.run import Result, simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import BlockKind, Trace
from simgpu.workloads.rescale import at_batch
from tests.semantics.hand_made import BACKWARD, GB, OPTIMIZER, block, held, kernel, node, trace
from tests.semantics.networks import network, several

EXCHANGES = ["gather", "host"]
DTR = Path(__file__).parents[2] / "shared" / "data" / "titanv-dtr"


def two(memory: int = 10**6) -> NodeSpec:
    """Two GPUs with a nonzero cost for both kinds of exchange."""
    base = node(memory)
    base = replace(base, gpu=replace(base.gpu, dram_bandwidth=10 * GB), host=HostSpec(accumulate_bandwidth=GB))
    return several(2, base=base)


def of_batch(built: Trace, batch: int) -> Trace:
    return replace(built, info=replace(built.info, batch=batch))


def read_in_backward(batch: int = 10) -> Trace:
    """Backward reads the weight's gradient last, for its norm; there is no optimizer."""
    kernels = [
        kernel("F1", 10, "x0 w1", "x1"),
        kernel("W1", 10, "x1 x0", "w1.grad", phase=BACKWARD),
        kernel("norm", 10, "w1.grad", "n", phase=BACKWARD),
        kernel("E1", 10, "x1 w1", "g0", phase=BACKWARD),
    ]
    blocks = [
        held("x0", 20, kind=BlockKind.INPUT),
        block("x1", 20),
        held("w1", 100, kind=BlockKind.WEIGHT),
        block("w1.grad", 100, kind=BlockKind.WEIGHT_GRADIENT),
        block("n", 50, kind=BlockKind.OTHER),
        block("g0", 20, kind=BlockKind.GRADIENT),
    ]
    return of_batch(trace(kernels, blocks), batch)


def with_temporaries(sizes: list[int], temporaries: list[int]) -> Trace:
    """The optimizer makes a temporary of a gradient before it updates the weight; none where it has no bytes."""
    plain = network(sizes, step=None)
    kernels, blocks = list(plain.kernels), list(plain.blocks)
    for n, size in enumerate(temporaries, 1):
        built = f"t{n}" if size else f"w{n}.grad"
        if size:
            kernels.append(kernel(f"M{n}", 5, f"w{n}.grad", built, phase=OPTIMIZER))
            blocks.append(block(built, size, kind=BlockKind.OTHER))
        kernels.append(kernel(f"S{n}", 5, f"w{n} {built}", f"w{n}", phase=OPTIMIZER, pure=False))
    return of_batch(trace(kernels, blocks), 4)


def copies_of_weights(result: Result) -> int:
    """Copies of weights and their gradients in the last iteration."""
    return sum(span.iteration == 2 and span.name.startswith("w") and span.bytes > 0 for span in result.timeline)


# --- the graph that policies see ---------------------------------------------------------------------------


def test_an_exchanged_gradient_lives_to_the_end_under_recorded_and_needed_lifetimes():
    plain = TaskGraph.of(read_in_backward())
    gradient, last = plain.block("w1.grad"), plain.kernel("norm")
    assert (plain.recorded_releases[gradient], plain.needed_releases[gradient]) == (last, last)
    message = exchanging(plain)
    assert (message.recorded_releases[gradient], message.needed_releases[gradient]) == (None, None)
    # It takes memory when it is made, as before.
    assert message.births == plain.births


def test_an_exchanged_gradient_is_resident_and_summed_over_sub_batches():
    plain = TaskGraph.of(read_in_backward(5))
    gradient = plain.block("w1.grad")
    assert gradient not in Tdfg.of(plain).resident
    message = exchanging(plain)
    assert gradient in Tdfg.of(message).resident
    parts = Split(2).apply(message)
    assert "w1.grad@1" not in parts.block_number
    assert parts.blocks[parts.block("w1.grad")].persistent
    assert all(parts.block("w1.grad") in parts.reads[parts.kernel(name)] for name in ("W1", "W1@1"))
    assert parts.exchanged == message.exchanged


# --- runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("policy", ["ideal", "none", "vdnn", "vdnn+", "modnn"])
def test_a_gradient_may_be_read_last_in_backward(policy: str, exchange: str):
    result = simulate(read_in_backward(), two(), policy, gpus=2, exchange=exchange)
    assert result.steady
    assert copies_of_weights(result) == 4


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("sub_batch", [1, 2, 3, 5])
@pytest.mark.parametrize("policy", ["vdnn+", "modnn"])
def test_a_gradient_is_exchanged_once_for_all_sub_batches(policy: str, sub_batch: int, exchange: str):
    """Each GPU has 5 samples; sub-batches of 2 and 3 leave a smaller one."""
    options = {"sub_batch": sub_batch}
    result = simulate(read_in_backward(), two(), policy, parameters=options, gpus=2, exchange=exchange)
    assert result.steady
    assert copies_of_weights(result) == 4


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_exchanged_gradient_may_be_a_part_that_is_added_to_a_sum(exchange: str):
    """Only the part that backward adds to the sum has the weight's size, so it is held though not resident."""
    kernels = [
        kernel("F1", 10, "x0 w1", "x1"),
        kernel("W1", 10, "x1 x0", "part", phase=BACKWARD),
        kernel("add", 10, "part", "sum", phase=BACKWARD),
        kernel("E1", 10, "x1 w1", "g0", phase=BACKWARD),
    ]
    blocks = [
        held("x0", 20, kind=BlockKind.INPUT),
        block("x1", 20),
        held("w1", 100, kind=BlockKind.WEIGHT),
        block("part", 100, kind=BlockKind.WEIGHT_GRADIENT),
        block("sum", 50, kind=BlockKind.WEIGHT_GRADIENT),
        block("g0", 100, kind=BlockKind.GRADIENT),
    ]
    assert simulate(of_batch(trace(kernels, blocks), 2), two(), "modnn", gpus=2, exchange=exchange).steady


@pytest.mark.parametrize("sizes", [[100, 100, 100], [50, 100, 100], [10, 100, 200]])
@pytest.mark.parametrize("temporaries", [[0, 0, 100], [100, 0, 100], [100, 100, 100], [200, 10, 0]])
@pytest.mark.parametrize("policy", ["none", "modnn"])
def test_a_fetched_gradient_is_released_before_the_optimizer_allocates(
    sizes: list[int], temporaries: list[int], policy: str
):
    result = simulate(with_temporaries(sizes, temporaries), two(), policy, gpus=2, exchange="gather")
    assert result.steady
    last = [span for span in result.timeline if span.iteration == 2 and span.kind is SpanKind.COMPUTE]
    added = [span.end_ns for span in last if span.name.startswith("accumulate")]
    steps = [span.start_ns for span in last if span.name[0] in "MS"]
    assert max(added) <= min(steps)


@pytest.mark.parametrize("policy", ["none", "vdnn"])
def test_a_run_with_held_gradients_that_fits_one_gpu_fits_several_with_host_exchange(policy: str):
    """Without an optimizer, a single GPU would free each gradient right after it is written."""
    built = network([100, 200, 300], step=None)
    held_bytes = 20 + 2 * (100 + 200 + 300)
    alone = simulate(at_batch(built, 2), two(), policy).metrics.device_peak_bytes
    assert alone < held_bytes
    need = simulate(built, two(), policy, gpus=2).metrics.device_peak_bytes
    assert need >= held_bytes
    assert simulate(built, two(), policy, gpus=2, budget=need).steady
    with pytest.raises(OutOfMemoryError):
        simulate(built, two(), policy, gpus=2, budget=need - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet32-b56", "unet-b6", "transformer-b10"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_recordings_in_which_backward_reads_gradients_run_on_two_gpus(name: str, exchange: str):
    if not DTR.exists():
        pytest.skip("the recordings are not next to the repository (../shared/data/titanv-dtr)")
    recorded, _ = import_trace(DTR / f"{name}.log")
    on = simgpu.load_node("k40-x4")
    assert simulate(recorded, on, "modnn", gpus=2, exchange=exchange, budget="1 GiB", iterations=2).iteration_ns


@pytest.mark.parametrize("policy", ["none", "vdnn", "modnn"])
def test_gathering_explains_why_a_plan_runs_out_of_memory(policy: str):
    """A run that fits with the host's exchange lacks memory for the gradient that GPU 0 fetches first."""
    built = network([100, 200, 300], batch=4)
    need = simulate(built, two(), policy, gpus=2).high_water
    with pytest.raises(OutOfMemoryError) as caught:
        simulate(built, two(), policy, gpus=2, exchange="gather", budget=need)
    assert "copy of block w1.grad.gpu1 on " in str(caught.value)
    why = "which GPU 0 fetches to add it up, in addition to the policy's plan (not needed with exchange: host),"
    assert f"{why} requests 100 B" in str(caught.value)
    with pytest.raises(OutOfMemoryError) as plain:
        simulate(built, two(), policy, gpus=2, exchange="gather", budget=need // 2)
    assert "fetches" not in str(plain.value)


# --- what is refused ---------------------------------------------------------------------------------------


class _LetsGo(Policy):
    name, summary, source = "lets-go", "gives gradients back after their last use", "a mistake"

    def plan(self, context: PlanContext) -> Program:
        return lower(replace(context.graph, exchanged=()), Placement())


def test_a_policy_that_frees_an_exchanged_gradient_is_refused():
    with pytest.raises(InputError, match=r"releases 'w1\.grad' before it is exchanged"):
        simulate(read_in_backward(), two(), _LetsGo(), gpus=2)
