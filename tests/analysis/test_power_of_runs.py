"""Energy of simulated iterations: closed forms on chains, and the statements of moDNN's section 7.4 about ResNet-34.

The figures of the paper are measurements of a real board; the model agrees with what the text says of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from simgpu.analysis.power import measure_power
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load import make_scenario
from simgpu.graph.split import Split, split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.work import work_of
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec, PowerSpec
from simgpu.machine.run import run_program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation.run import Result, simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from simgpu.workloads.rescale.entry import at_batch
from tests.papers.published import published

#: A thousand operations a nanosecond; 50 W idle, 100 W of arithmetic; 1 pJ and 2 pJ a byte; a byte a nanosecond.
GPU = GpuSpec("gpu", 10**6, fp32_rate=10**12, power=PowerSpec(200_000, 50_000, 100_000, dram_fj=1000, link_fj=2000))
NODE = NodeSpec("bench", GPU, LinkSpec("wire", 10**9, 10**9))


def three_layers() -> Trace:
    """Layers of 1000, 2000 and 3000 bytes and 500 operations a nanosecond."""
    built = chain([500, 700, 900], [1000, 1400, 1800], [1000, 2000, 3000])
    return replace(built, kernels=tuple(replace(each, flops=500 * each.duration_ns) for each in built.kernels))


def powered(result: Result) -> dict[str, int | float | None]:
    return {row.key: row.value for row in result.metrics.rows()}


def test_the_energy_of_a_chain_without_transfers_is_that_of_its_kernels() -> None:
    power = simulate(three_layers(), NODE, "ideal").metrics.power
    assert power is not None
    compute = 500 + 700 + 900 + 1000 + 1400 + 1800
    assert power.duration_ns == compute
    assert power.idle_nj == 50 * compute
    assert power.arithmetic_nj == 50 * compute, "half of the full rate in every kernel"
    forward = (1000 + 2000) + (2000 + 3000) + 3000
    assert power.dram_nj == (forward + 1000 + 2000 + 3000) // 1000
    assert power.link_nj == 0


def test_offloading_adds_energy_for_idle_time_and_copies() -> None:
    ideal, vdnn = (simulate(three_layers(), NODE, policy).metrics for policy in ("ideal", "vdnn"))
    assert ideal.power is not None
    assert vdnn.power is not None
    moved = vdnn.copied_bytes["d2h"] + vdnn.copied_bytes["h2d"]
    assert moved > 0
    assert vdnn.power.link_nj == 2 * moved // 1000
    assert vdnn.power.dram_nj == ideal.power.dram_nj + moved // 1000
    assert vdnn.power.arithmetic_nj == ideal.power.arithmetic_nj
    assert vdnn.power.idle_nj == 50 * vdnn.iteration_ns


def test_sub_batches_have_the_energy_of_their_own_kernels() -> None:
    full = three_layers()
    graph = TaskGraph.of(replace(full, info=replace(full.info, batch=5)))
    parts = split(graph, 2)
    program = replace(lower(parts, Placement()), transforms=(Split(2),))
    run = run_program(program, graph, NODE, budget=None)
    work = work_of(parts)
    power = measure_power(run.timeline, work, GPU, "float32")
    repeats = {parts.kernels[k].id: each.repeat for each in parts.rounds for k in range(each.first, each.stop)}
    assert set(repeats.values()) == {1, 2}
    assert power.dram_nj == sum(repeats[name] * done.dram_bytes for name, done in work.kernels.items()) // 1000
    assert power.arithmetic_nj == sum(repeats[name] * done.flops for name, done in work.kernels.items()) // 10


# --- notes ----------------------------------------------------------------------------------------------------------


def test_a_node_without_power_figures_has_no_energy() -> None:
    result = simulate(three_layers(), replace(NODE, gpu=replace(GPU, power=None)), "vdnn")
    assert result.metrics.power is None
    assert powered(result)["energy_nj"] is powered(result)["average_power_w"] is None
    assert result.energy_note == ""
    with pytest.raises(
        InputError, match=r"node bench does not state what its GPU draws; choose a node with gpu\.power"
    ):
        result.plot("power")


def test_a_trace_without_operations_has_no_energy_and_a_reason() -> None:
    result = simulate(chain([5], [7], [100]), NODE, "ideal")
    assert result.metrics.power is None
    assert result.energy_note == "not known: operation counts are missing for 2 of 2 convolutions and matrix products"
    with pytest.raises(InputError, match="operation counts are missing"):
        result.plot("power")


def test_energy_is_reported_with_its_source() -> None:
    result = simulate(three_layers(), NODE, "vdnn")
    assert result.energy_note == (
        "modelled per component of the gpu (sources: `simgpu list nodes`), with kernel times of hand-made"
    )
    own = replace(three_layers(), info=replace(three_layers().info, device="gpu"))
    assert simulate(own, NODE, "vdnn").energy_note == (
        "modelled per component of the gpu (sources: `simgpu list nodes`)"
    )
    message = json.loads(json.dumps(result.to_dict()))
    assert message["energy_note"] == result.energy_note
    metrics = message["metrics"]
    parts = ("energy_idle_nj", "energy_arithmetic_nj", "energy_dram_nj", "energy_link_nj")
    assert metrics["energy_nj"] == sum(metrics[part] for part in parts)
    assert metrics["average_power_w"] == metrics["energy_nj"] / result.iteration_ns


# --- moDNN, section 7.4 ---------------------------------------------------------------------------------------------


@cache
def resnet34_at_256() -> Trace:
    """The network whose power the paper measured, at its batch, modelled for its board."""
    values = {"trace": {"zoo": "resnet34", "batch": 256}, "node": "k40", "policies": "ideal"}
    return make_scenario(values, "a test").trace


def most_that_it_rises() -> float:
    """The largest relative rise of the average power with less memory, as stated in the paper."""
    return float(published()["modnn.power"])


@pytest.fixture(scope="module")
def resnet34() -> dict[int, Result]:
    """One iteration on a K40 in its ideal case, at the paper's batch and at smaller ones."""
    node = load_node("k40")
    return {batch: simulate(at_batch(resnet34_at_256(), batch, node.gpu), node, "ideal") for batch in (256, 64, 16, 4)}


@pytest.fixture(scope="module")
def budgets() -> list[Result]:
    """moDNN on the same board with less and less memory."""
    return [simulate(resnet34_at_256(), load_node("k40"), "modnn", budget=f"{gib} GiB") for gib in (12, 8, 6, 5, 4, 3)]


@pytest.mark.slow
def test_less_memory_hardly_changes_the_average_power(resnet34: dict[int, Result], budgets: list[Result]) -> None:
    ideal = resnet34[256].metrics.power
    averages = [result.metrics.power.average_w for result in budgets if result.metrics.power]
    assert ideal is not None
    assert len(averages) == len(budgets)
    assert max(averages) <= (1 + most_that_it_rises()) * ideal.average_w


@pytest.mark.slow
def test_less_memory_increases_energy_with_the_time(budgets: list[Result]) -> None:
    by_time = sorted(budgets, key=lambda result: result.iteration_ns)
    energies = [result.metrics.power.energy_nj for result in by_time if result.metrics.power]
    assert energies == sorted(energies)
    assert len(energies) == len(budgets)


@pytest.mark.slow
def test_smaller_sub_batches_reduce_mean_and_peak_power(resnet34: dict[int, Result]) -> None:
    for larger, smaller in pairwise(resnet34.values()):
        assert larger.metrics.power is not None
        assert smaller.metrics.power is not None
        assert smaller.metrics.power.average_w < larger.metrics.power.average_w
        assert smaller.metrics.power.largest_w < larger.metrics.power.largest_w


@pytest.mark.slow
def test_energy_per_sample_grows_as_the_sub_batch_shrinks(resnet34: dict[int, Result]) -> None:
    energies = [result.metrics.power.energy_nj / batch for batch, result in resnet34.items() if result.metrics.power]
    assert energies == sorted(energies)
    assert len(energies) == len(resnet34)


@pytest.mark.slow
def test_continuous_copies_in_both_directions_add_at_most_the_measured_power(resnet34: dict[int, Result]) -> None:
    node, ideal = load_node("k40"), resnet34[256].metrics.power
    assert ideal is not None
    assert node.gpu.power is not None
    both_ways = node.link.d2h_bandwidth + node.link.h2d_bandwidth
    added_w = both_ways * (node.gpu.power.dram_fj + node.gpu.power.link_fj) / 10**15
    assert 0 < added_w / ideal.average_w < most_that_it_rises()


@pytest.mark.slow
def test_the_board_stays_below_its_limit(resnet34: dict[int, Result]) -> None:
    shares = [result.metrics.power.largest_share for result in resnet34.values() if result.metrics.power]
    assert len(shares) == len(resnet34)
    assert max(shares) < 1
