"""A simulated run as a PyTorch memory snapshot: it is read again, and PyTorch's own viewer takes it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import simgpu
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.compare import compare
from simgpu.experiments.outputs import write_outputs
from simgpu.experiments.scenarios.load import make_scenario
from simgpu.explain.allocations import explain_allocations
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.memory.caching.recorded import reproduce
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.policies.registry import make_policy
from simgpu.simulation.addresses import address_ranges
from simgpu.simulation.config import RunConfig
from simgpu.simulation.result import Result
from simgpu.simulation.snapshot import (
    failed_snapshot,
    memory_snapshot,
    write_memory_snapshot,
    write_snapshot_document,
)
from simgpu.trace.allocations import AllocatorAction
from simgpu.trace.chain import chain
from tests.sets import slow_rows_except

MIB = 2**20


def run(policy: str = "vdnn", pool: str = "caching", allocator: str | None = None) -> Result:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    return simgpu.simulate(trace, node, policy, pool=pool, allocator=allocator)


@pytest.mark.parametrize(
    ("policy", "allocator"),
    slow_rows_except(
        [(policy, how) for policy in ("none", "vdnn", "superneurons") for how in (None, "expandable_segments:True")],
        ("none", None),
        ("vdnn", "expandable_segments:True"),
    ),
)
def test_the_snapshot_of_a_run_reserves_and_allocates_what_the_run_did(
    policy: str, allocator: str | None, tmp_path: Path
) -> None:
    result = run(policy, allocator=allocator)
    write_memory_snapshot(result, tmp_path / "run.pickle")
    trace = load_snapshot(tmp_path / "run.pickle")
    again = reproduce(trace)
    assert again.deviations == []
    assert again.allocator.statistics.reserved_peak == result.high_water
    assert again.allocator.statistics.allocated_peak == max(
        curve.used.max() for curve in result.timeline.device_memories
    )
    assert again.allocator.statistics.requested_peak == max(
        curve.live.max() for curve in result.timeline.device_memories
    )
    assert trace.events[-1].time_us == result.timeline.device_memories[0].time_ns[-1] // 1000


def waiting_run(allocator: str | None = None) -> Result:
    """A run in which requests wait for memory, and free unused segments."""
    sizes = (12, 14, 12, 14, 12, 16)
    trace = chain([100] * 6, [100] * 6, [size * 2**20 for size in sizes])
    size = 60 if allocator == "expandable_segments:True" else 54
    node = NodeSpec("example", GpuSpec("gpu", size * 2**20), LinkSpec("pcie", 10**13, 10**12))
    result = simgpu.simulate(trace, node, "superneurons", pool="caching", allocator=allocator)
    assert result.metrics.breakdown.stalled_memory > 0
    return result


@pytest.mark.parametrize("allocator", [None, "expandable_segments:True"])
def test_the_snapshot_of_a_run_that_waits_for_memory_is_that_of_its_allocator(
    allocator: str | None, tmp_path: Path
) -> None:
    result = waiting_run(allocator)
    write_memory_snapshot(result, tmp_path / "run.pickle")
    trace = load_snapshot(tmp_path / "run.pickle")
    assert not [event for event in trace.events if event.action == AllocatorAction.OOM]
    again = reproduce(trace)
    assert again.deviations == []
    assert again.allocator.statistics.reserved_peak == result.high_water
    blocks = {(each.address, each.bytes) for each in address_ranges(result) if each.block}
    assert blocks <= {(each.address, AllocatorSettings().rounded(each.size)) for each in trace.allocations}


@pytest.mark.parametrize("allocator", [None, "expandable_segments:True", "max_split_size_mb:20"])
@pytest.mark.parametrize("make", [lambda how: run("vdnn", allocator=how), waiting_run], ids=["fits", "waits"])
def test_address_ranges_are_those_of_the_runs_curves(
    make: Callable[[str | None], Result], allocator: str | None
) -> None:
    """At every time, blocks lie in segments, apart from one another, and both have the bytes of the curves."""
    result = make(allocator)
    ranges = address_ranges(result)
    curve = result.timeline.device_memories[0]
    assert curve.reserved is not None
    last = dict(zip(curve.time_ns.tolist(), zip(curve.used, curve.reserved, strict=True), strict=True))
    for time, (used, reserved) in last.items():
        there = [each for each in ranges if each.start_ns <= time < each.end_ns]
        blocks = sorted((each.address, each.address + each.bytes) for each in there if each.block)
        segments = sorted((each.address, each.address + each.bytes) for each in there if not each.block)
        if time < max(each.end_ns for each in ranges):
            assert (sum(b - a for a, b in blocks), sum(b - a for a, b in segments)) == (used, reserved)
        for found in (blocks, segments):
            assert all(one[1] <= other[0] for one, other in pairwise(found))
        assert allocator or all(any(low <= a and b <= high for low, high in segments) for a, b in blocks)


@pytest.mark.slow
def test_several_gpus_have_a_snapshot_and_address_ranges_each(tmp_path: Path) -> None:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    node = replace(node, gpus=2, gpu=replace(node.gpu, dram_bandwidth=10**12))
    result = simgpu.simulate(trace, node, "none", pool="caching", gpus=2, exchange="gather")
    write_memory_snapshot(result, tmp_path / "run.pickle")
    for gpu in range(2):
        snapshot = load_snapshot(tmp_path / "run.pickle", gpu)
        reserved = max(
            curve.reserved.max()
            for curve in result.timeline.memories
            if curve.gpu == gpu and curve.reserved is not None
        )
        assert reproduce(snapshot).allocator.statistics.reserved_peak == reserved
        assert sum(each.size for each in snapshot.after) == sum(
            each.bytes for each in address_ranges(result) if each.gpu == gpu and not each.block
        )


def test_other_pools_have_no_address_ranges() -> None:
    assert address_ranges(run("none", pool="counting")) == ()


def test_tensors_stand_in_place_of_stacks(tmp_path: Path) -> None:
    write_memory_snapshot(run("none"), tmp_path / "run.pickle")
    trace = load_snapshot(tmp_path / "run.pickle")
    names = {str(trace.stacks[each.stack][0]) for each in trace.allocations if each.stack is not None}
    assert "input input" in names and any(name.endswith("activation of conv1") for name in names)


def test_a_run_with_another_pool_is_shown_with_unlimited_memory() -> None:
    actions = [event["action"] for event in memory_snapshot(run("none", pool="counting"))["device_traces"][0]]
    assert "oom" not in actions and actions.count("alloc") > actions.count("segment_alloc") > 0


def test_a_run_without_allocations_is_refused() -> None:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    with pytest.raises(InputError, match="policy um does not allocate blocks"):
        memory_snapshot(simgpu.simulate(trace, node, "um"))


@pytest.mark.parametrize(
    ("budget", "allocator"),
    [(30, None), (40, "expandable_segments:True"), (45, None), (55, "expandable_segments:True")],
)
def test_the_snapshot_of_a_run_out_of_memory_ends_with_the_oom(
    budget: int, allocator: str | None, tmp_path: Path
) -> None:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    config = RunConfig(budget=budget * MIB, pool="caching", allocator=allocator)
    with pytest.raises(OutOfMemoryError) as error:
        simgpu.simulate(trace, node, "none", config)
    document = failed_snapshot(trace, node, make_policy("none"), config)
    last = document["device_traces"][0][-1]
    assert last["action"] == "oom" and last["time_us"] == error.value.at_ns // 1000
    write_snapshot_document(document, tmp_path / "oom.pickle")
    recorded = load_snapshot(tmp_path / "oom.pickle")
    assert reproduce(recorded).deviations == []
    report = explain_allocations(recorded)
    assert report.failure is not None and report.failure.recorded
    assert report.failure.event == len(recorded.events) - 1
    assert report.capacity == budget * MIB == report.state.reserved + report.failure.free
    assert report.trials[0].failed == report.failure.event


@pytest.mark.parametrize(
    "policy", ["vdnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("superneurons", "capuchin"))]
)
def test_a_snapshot_follows_requests_that_have_to_wait(policy: str, tmp_path: Path) -> None:
    """In the smallest budget that suffices, requests are refused and granted later."""
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    config = RunConfig(pool="caching", iterations=2)
    result = simgpu.smallest_budget(trace, node, policy, config).result
    write_memory_snapshot(result, tmp_path / "tight.pickle")
    again = reproduce(load_snapshot(tmp_path / "tight.pickle"))
    assert again.allocator.statistics.reserved_peak == result.high_water


def test_a_run_that_does_not_fail_has_no_snapshot_of_a_failure() -> None:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    with pytest.raises(InputError, match="does not run out of device memory; show its result"):
        failed_snapshot(trace, node, make_policy("none"), RunConfig(pool="caching"))
    with pytest.raises(InputError, match="is shown with pool caching only, and pool is counting"):
        failed_snapshot(trace, node, make_policy("none"), RunConfig(pool="counting"))
    with pytest.raises(InputError, match="several GPUs train together"):
        failed_snapshot(trace, simgpu.load_node("k40-x4"), make_policy("none"), RunConfig(pool="caching", gpus=2))


def test_a_scenario_writes_snapshots_of_runs_out_of_memory_too(tmp_path: Path) -> None:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": ["none", "superneurons"]}
    scenario = make_scenario({**values, "budget": "45 MiB", "pool": "caching"}, "an example")
    for name in ("first", "second"):
        write_outputs(compare(scenario), tmp_path / name, about={}, timeline=("snapshot",))
    written = [(tmp_path / name / "none" / "snapshot.pickle").read_bytes() for name in ("first", "second")]
    assert written[0] == written[1]
    assert load_snapshot(tmp_path / "first" / "none" / "snapshot.pickle").events[-1].action == "oom"
    assert [file.name for file in (tmp_path / "first" / "none").iterdir()] == ["snapshot.pickle"]
    write_outputs(compare(scenario), tmp_path / "third", about={}, timeline=("csv",))
    assert not (tmp_path / "third" / "none").exists()


def test_a_scenario_writes_snapshots(tmp_path: Path) -> None:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "pool": "caching"}
    write_outputs(compare(make_scenario(values, "an example")), tmp_path / "run", about={}, timeline=("snapshot",))
    assert load_snapshot(tmp_path / "run" / "none" / "snapshot.pickle").gpu == 0


def test_pytorchs_viewer_takes_the_snapshot(tmp_path: Path) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz", reason="PyTorch is not installed")
    write_memory_snapshot(run(), tmp_path / "run.pickle")
    snapshot = pickle.loads((tmp_path / "run.pickle").read_bytes())
    events = snapshot["device_traces"][0]
    assert f"{len(events)} entries" in viewer.trace(snapshot)
    assert "total_reserved: 30.0MiB" in viewer.segsum(snapshot)
    assert "Active Memory Timeline" in viewer.trace_plot(snapshot)
    assert "Allocator State History" in viewer.segment_plot(snapshot)
