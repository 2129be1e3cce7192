"""`um`: its parameters, the cost of oversubscription, and the effect of faster links and other eviction orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.program.paging import Paged, Remote
from simgpu.program.text import from_json, listing, to_json
from simgpu.simulation.run import Result, simulate, task_graph
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from tests.policies.contract import Parameters, PolicyContract
from tests.semantics.hand_made import held, kernel, node, trace

VGG16 = "vgg16-b128-v100"
DRIVER = Paged(8192, entries_per_page=32, prefetch=51, host_page_ns=1350, first_touch=True)


class TestUm(PolicyContract):
    policy = "um"
    pools = ("counting",)
    parameter_sets: ClassVar[tuple[Parameters, ...]] = (
        {},
        {"page": 65536, "entries_per_page": 1, "prefetch": 0, "host_page_ns": 0, "eviction": "touched"},
        {"page": 4096, "chunk": 65536, "fault_batch": 16, "first_touch": True, "eviction": "touched"},
        {"write_back": "dirty", "bandwidth": 10**9},
    )

    def settles(self, parameters: Parameters) -> bool:
        """By age of faults, chunks that are used in turn leave in turn, from one iteration on into the next."""
        return parameters.get("eviction") == "touched"


class TestUmPinned(PolicyContract):
    policy = "um"
    pools = ("counting",)
    parameter_sets = ({"access": "pinned"},)

    def test_every_offloaded_block_is_fetched_again(self, parameters: Parameters, trace_name: str):
        """No block is copied: kernels read and write host memory."""
        result = self.run(parameters, trace_name)
        assert result.timeline.memory("device").live.max() == 0
        read, written = (
            {graph_block for k in getattr(result.graph, way) for graph_block in k if result.graph.sizes[graph_block]}
            for way in ("reads", "writes")
        )
        spans = {label: {s.name for s in result.timeline if s.label == label} for label in ("copy_d2h", "copy_h2d")}
        assert spans["copy_h2d"] == {result.graph.blocks[b].id for b in read}
        assert spans["copy_d2h"] == {result.graph.blocks[b].id for b in written}


def run(where: NodeSpec | str = "v100", budget: int | None = None, of: Trace | None = None, **given: Any) -> Result:
    on = load_node(where) if isinstance(where, str) else where
    return simulate(of or load_trace(VGG16), on, "um", parameters=given, budget=budget, iterations=4)


@pytest.fixture(scope="module")
def plain() -> Result:
    """A run of `none` with ample memory."""
    return simulate(load_trace(VGG16), load_node("v100"), "none")


@pytest.mark.slow
def test_a_program_that_just_fits_has_no_faults_and_no_slowdown(plain: Result):
    result = run(budget=plain.high_water)
    assert result.timeline.iteration_ends_ns[:3] == plain.timeline.iteration_ends_ns
    assert result.high_water == plain.high_water
    assert result.metrics.copied_bytes["d2h"] == result.metrics.copied_bytes["h2d"] == 0


@pytest.mark.slow
def test_more_oversubscription_takes_longer(plain: Result):
    """Buddy Compression, figure 12: footprint over memory from 1 to 1.5."""
    slowdowns = [run(budget=plain.high_water * 10 // (10 + x)).metrics.slowdown for x in range(6)]
    assert slowdowns == sorted(slowdowns) and slowdowns[0] == 1 < slowdowns[1]
    assert slowdowns[-1] < run(access="pinned").metrics.slowdown


@pytest.mark.slow
def test_a_faster_link_speeds_up_migration_and_pinned_access(plain: Result):
    slow, fast = load_node("v100"), load_node("v100-nvlink2-75")
    for given in ({}, {"access": "pinned"}):
        budget = plain.high_water * 2 // 3
        assert run(fast, budget, **given).iteration_ns < run(slow, budget, **given).iteration_ns


def test_a_solver_that_sweeps_its_arrays_is_faster_with_pinned_memory():
    """Every page faults and waits for an eviction; remote reads and writes use both directions at once."""
    size, sweeps = 64 * 2**20, 4
    kernels = [kernel(f"sweep{i}", 1_000_000, "u", "v") for i in range(sweeps)]
    solver = trace(kernels, [held("u", size), held("v", size)])
    on = node(10**9, out=75 * 10**9, back=75 * 10**9)
    migrating = run(on, budget=2 * size * 10 // 11, of=solver)
    assert migrating.metrics.copied_bytes["h2d"] == migrating.metrics.copied_bytes["d2h"] == 2 * size * sweeps
    assert migrating.iteration_ns > run(on, of=solver, access="pinned").iteration_ns


def test_accesses_without_faults_change_the_lru_order_but_not_the_drivers():
    """LRU keeps x; the driver does not see accesses without a fault."""
    kernels = [kernel(f"k{i}", 10, name) for i, name in enumerate(["x", "a", "x", "b", "x", "a"])]
    small = trace(kernels, [held(name, 256) for name in "xab"])
    brought = {
        order: run(node(), budget=512, of=small, page=256, chunk=256, eviction=order).metrics.copied_bytes["h2d"]
        for order in ("touched", "arrived")
    }
    # First in, first out evicts x for b, a for x, and b for a.
    assert brought == {"touched": 2 * 256, "arrived": 3 * 256}


def test_clean_pages_are_dropped_if_the_host_keeps_its_copy():
    kernels = [kernel("k1", 10, "x"), kernel("k2", 10, "y")]
    small = trace(kernels, [held("x", 256), held("y", 256)])
    metrics = [
        run(node(), budget=256, of=small, page=256, chunk=256, write_back=how).metrics for how in ("all", "dirty")
    ]
    assert [(m.copied_bytes["d2h"], m.copied_bytes["h2d"]) for m in metrics] == [(512, 512), (0, 512)]


@pytest.mark.slow
def test_fault_cost_depends_on_latency_and_batch_size(plain: Result):
    budget = plain.high_water * 10 // 15
    base = run(budget=budget)
    free = run(budget=budget, fault_latency_ns=0, host_page_ns=0)
    assert free.metrics.breakdown.stalled_memory == 0
    assert base.iteration_ns - free.iteration_ns == base.metrics.breakdown.stalled_memory > 0
    pages = {"page": 65536, "entries_per_page": 1, "prefetch": 0}
    assert run(budget=budget, fault_batch=16, **pages).iteration_ns > run(budget=budget, **pages).iteration_ns


@pytest.mark.slow
def test_the_result_reports_faults_and_device_and_host_peaks(plain: Result):
    result = run(budget=plain.high_water * 10 // 15)
    assert any("batches of page faults" in note for note in result.notes)
    assert result.metrics.shared_peak_bytes["host"] > 0
    peak = result.metrics.device_peak_bytes + result.metrics.shared_peak_bytes["host"]
    assert result.metrics.device_peak_bytes <= result.budget <= peak


def test_um_programs_contain_no_copies_and_survive_json():
    small = trace([kernel("k1", 10, "x", "y")], [held("x", 256), held("y", 256)])
    for given, residency, first in (
        ({"page": 8192, "first_touch": True}, DRIVER, "on demand: pages of 8192 B"),
        ({"access": "pinned"}, Remote(), "in host memory, where kernels reach it"),
    ):
        program = run(node(), of=small, **given).program
        assert program.residency == residency
        assert from_json(to_json(program)) == program
        assert listing(program, task_graph(small, node())).splitlines()[0] == first


def test_unified_memory_does_not_use_compressed_memory():
    """Pages are moved uncompressed, so the run takes as long as with `none`."""
    small = load_trace("vgg11-cifar-cpu")
    buddy = load_node("buddy-gpu")
    assert run(buddy, of=small).iteration_ns == simulate(small, buddy, "none").iteration_ns


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"page": 100}, "page"),
        ({"page": 0}, "page"),
        ({"chunk": 65537}, "chunk"),
        ({"fault_batch": 0}, "fault_batch"),
        ({"entries_per_page": 0}, "entries_per_page"),
        ({"fault_latency_ns": -1}, "fault_latency_ns"),
        ({"prefetch": 101}, "prefetch"),
        ({"host_page_ns": -1}, "host_page_ns"),
        ({"bandwidth": -1}, "bandwidth"),
    ],
)
def test_impossible_page_and_fault_parameters_are_refused(given: dict[str, int], place: str):
    with pytest.raises(InputError) as caught:
        run(node(), of=trace([kernel("k", 1, "x")], [held("x", 1)]), **given)
    assert [problem.place for problem in caught.value.problems] == [f"parameters.{place}"]


def test_several_wrong_parameters_are_reported_together():
    with pytest.raises(InputError) as caught:
        Paged(page=1, fault_batch=0, fault_latency_ns=-1, bandwidth=0)
    assert len(caught.value.problems) == 4


def test_several_gpus_and_pools_with_addresses_are_refused():
    small = load_trace("vgg11-cifar-cpu")
    with pytest.raises(InputError, match="um supports one GPU"):
        simulate(small, replace(load_node("v100"), gpus=2), "um", gpus=2)
    with pytest.raises(InputError, match="have no addresses"):
        simulate(small, load_node("v100"), "um", pool="addressed")
