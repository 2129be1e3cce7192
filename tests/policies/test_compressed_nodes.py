"""Every policy on nodes with compressed memory: equal results without compression, and limits of any run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.transforms import transformed
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import BuddyMode, Duplex, LinkSpec, MetadataCacheSpec, NodeSpec
from simgpu.simulation.run import Result, simulate, task_graph
from simgpu.timeline.export import write_csv, write_memory_csv
from simgpu.timeline.model import SpanKind
from simgpu.timeline.perfetto import write_perfetto
from simgpu.trace.chain import chain
from simgpu.trace.model import CompressedSize, Trace
from simgpu.workloads.rescale import at_batch
from tests.compression.buddy.compressible import (
    all_of,
    buddy_node,
    buddy_nodes,
    buddy_of,
    compressible,
    grown,
    pattern,
    with_buddy,
    with_histograms,
    without_buddy,
)
from tests.semantics.hand_made import GB
from tests.semantics.random_training import trainings

POLICIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("none", {}),
    ("ideal", {}),
    ("buddy", {}),
    ("vdnn", {"mode": "all"}),
    ("vdnn", {"mode": "dynamic"}),
    ("superneurons", {}),
    ("capuchin", {}),
    ("home", {"particles": 6, "iterations": 3}),
    ("swapadvisor", {"population": 4, "generations": 1}),
)
#: With blocks of up to 150 entries.
NETWORKS = trainings().map(grown)
few = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


# --- equal to a node without compressed memory ----------------------------------------------------------------


def written(result: Result, folder: Path) -> list[bytes]:
    """The timeline's files in all formats."""
    parts = []
    for name, write in (("s.csv", write_csv), ("m.csv", write_memory_csv), ("t.json", write_perfetto)):
        write(result.timeline, folder / name)
        parts.append((folder / name).read_bytes())
    return parts


@few
@given(st.data(), st.sampled_from(POLICIES))
def test_target_1_everywhere_equals_a_node_without_compressed_memory(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chosen: tuple[str, dict[str, object]]
):
    """The timeline's files are equal to the byte."""
    policy, parameters = chosen
    built = all_of(128, data.draw(NETWORKS))
    assume(built.compressibility)
    budget = data.draw(st.sampled_from([10**8, max(1, sum(b.bytes for b in built.blocks) * 2 // 3)]))
    node = data.draw(buddy_nodes(threshold=0.0, mostly_zero=data.draw(st.booleans())))
    other = ("none", {}) if policy == "buddy" else (policy, parameters)
    pairs = ((built, node, policy, parameters), (built, without_buddy(node), *other))
    outcomes: list[Any] = []
    for traced, where, name, given_ in pairs:
        try:
            result = simulate(traced, where, name, parameters=given_, budget=budget)
            outcomes.append((result.iteration_ns, result.ideal_ns, written(result, tmp_path_factory.mktemp("run"))))
        except (InputError, OutOfMemoryError) as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@few
@given(st.data(), st.sampled_from(["none", "ideal"]))
def test_plain_frameworks_allocate_nothing_as_compressed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, policy: str
):
    built, node = data.draw(compressible(NETWORKS)), data.draw(buddy_nodes())
    one, other = (simulate(built, where, policy, budget=10**8) for where in (node, without_buddy(node)))
    assert one.buddy_peak == 0
    assert written(one, tmp_path_factory.mktemp("with")) == written(other, tmp_path_factory.mktemp("without"))


@pytest.mark.parametrize("policy", ["none", "buddy", "vdnn"])
def test_bandwidth_only_compression_takes_the_same_memory(policy: str):
    built = pattern(chain([900, 900, 900], [900, 900, 900], [6400, 6400, 6400]))
    node = buddy_node()
    only = with_buddy(node, mode=BuddyMode.BANDWIDTH_ONLY)
    result = [
        simulate(built, where, policy, budget=10**8) for where in (only, without_buddy(node)) if policy != "buddy"
    ]
    if policy == "buddy":
        result = [simulate(built, only, "buddy"), simulate(built, without_buddy(node), "none")]
    assert result[0].high_water == result[1].high_water
    assert result[0].iteration_ns <= result[1].iteration_ns


# --- every policy on every node ------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(few, max_examples=50)
@given(st.data(), st.sampled_from(POLICIES))
def test_random_runs_respect_memory_time_and_link_limits(data: st.DataObject, chosen: tuple[str, dict[str, object]]):
    policy, parameters = chosen
    built, node = data.draw(compressible(NETWORKS)), data.draw(buddy_nodes())
    assume(built.compressibility)
    graph = task_graph(built, node)
    most = sum(-(-size // node.gpu.alignment) * node.gpu.alignment for size in graph.sizes)
    budget = data.draw(st.sampled_from([10**8, most, (2 * most) // 3, most // 3]))
    try:
        result = simulate(built, node, policy, parameters=parameters, budget=max(budget, 1))
    except OutOfMemoryError as error:
        assert error.requested > 0
        return
    except InputError:
        # Some policies refuse such a trace; they must also refuse it without compressed memory.
        with pytest.raises(InputError):
            simulate(built, without_buddy(node), policy, parameters=parameters, budget=10**8)
        return
    ran = transformed(graph, result.program.transforms)
    if not result.program.unlimited_memory:
        assert result.high_water <= budget
    assert result.metrics.breakdown.total == result.iteration_ns
    start, end = result.timeline.window(-1)
    mine = [s for s in result.timeline if s.iteration == result.iterations - 1]
    ran_spans = [s for s in mine if s.kind in (SpanKind.COMPUTE, SpanKind.RECOMPUTE)]
    number = ran.kernel_number
    memory = ran.compressed
    if memory is None:
        assert (result.buddy_peak, policy in ("none", "ideal")) == (0, True)
        return
    link = buddy_of(node).link or node.link
    read = written_ = 0
    for span in ran_spans:
        k = number[span.name]
        demand = memory.demands[k] if k < len(memory.demands) else None
        assert span.end_ns - span.start_ns >= ran.durations[k], "nobody is faster than with the link alone"
        if demand is not None:
            assert span.end_ns - span.start_ns >= memory.device_ns[k]
            read, written_ = read + demand.read, written_ + demand.written
    assert result.iteration_ns >= sum(memory.device_ns[number[s.name]] for s in ran_spans)
    both = link.duplex is Duplex.HALF
    shared = buddy_of(node).link is None
    out, into = (sum(s.bytes for s in mine if s.label == kind) for kind in ("copy_d2h", "copy_h2d"))
    # Copies may begin in the iteration before; traffic of kernels does not.
    assert end - start >= ceil(Fraction(read * GB, max(link.h2d_bandwidth, both * link.d2h_bandwidth)))
    assert end - start >= ceil(Fraction(written_ * GB, max(link.d2h_bandwidth, both * link.h2d_bandwidth)))
    if both:
        assert end - start >= ceil(Fraction((read + written_) * GB, max(link.d2h_bandwidth, link.h2d_bandwidth)))
    if shared:
        first = min((s.start_ns for s in mine), default=start)
        last = max((s.end_ns for s in mine), default=end)
        assert last - first >= ceil(Fraction((read + into) * GB, max(link.h2d_bandwidth, both * link.d2h_bandwidth)))
        assert last - first >= ceil(Fraction((written_ + out) * GB, max(link.d2h_bandwidth, both * link.h2d_bandwidth)))


# --- next to a compressing DMA engine -------------------------------------------------------------------------------


def test_a_node_may_have_a_compressing_engine_and_compressed_memory():
    """Targets set the memory of blocks and the engine sets the bytes of copies, both in one run."""
    sizes = [6400, 6400, 6400]
    built = chain([900] * 3, [900] * 3, sizes)
    zvc = [CompressedSize(b.id, 0, "zvc", "plain", b.bytes, b.bytes // 8, 1) for b in built.blocks if b.bytes]
    built = pattern(built)
    built = replace(built, compressibility=(*built.compressibility, *zvc))
    engine = CdmaSpec("zvc", 200 * GB, buffer=10**6, latency_ns=350, kernel_bandwidth=0)
    node = buddy_node()
    both = replace(node, gpu=replace(node.gpu, cdma=engine))
    graph = task_graph(built, both)
    assert graph.sizes == task_graph(built, node).sizes
    assert graph.copy_sizes == task_graph(built, without_buddy(both)).copy_sizes
    assert {graph.copy_sizes[b] for b in range(len(sizes))} == {800}
    result = simulate(built, both, "vdnn", parameters={"mode": "all"})
    copies = [s for s in result.timeline if s.label == "copy_d2h"]
    assert copies and {s.bytes for s in copies} == {800}
    assert result.buddy_peak > 0
    assert result.iteration_ns >= graph.ideal_ns()
    assert result.iteration_ns <= simulate(built, node, "vdnn", parameters={"mode": "all"}).iteration_ns


def test_every_policy_refuses_histograms_that_do_not_add_up():
    wrong = (CompressedSize("x1", 0, "bpc", "plain", 128, 32, 3),)
    built = replace(chain([5], [7], [1280]), compressibility=wrong)
    for policy, parameters in POLICIES:
        with pytest.raises(InputError, match="block x1, epoch 0: counts 3 entries, its 1280 bytes have 10"):
            simulate(built, buddy_node(), policy, parameters=parameters)


# --- several GPUs --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["buddy", "vdnn", "modnn"])
@pytest.mark.parametrize("exchange", ["gather", "host"])
def test_each_of_several_gpus_compresses_like_a_single_gpu(policy: str, exchange: str):
    trace = pattern(simgpu.load_trace("resnet20-cifar-cpu"))
    node = with_buddy(simgpu.load_node("k40-x4"), mostly_zero=False)
    together = simulate(trace, node, policy, gpus=2, exchange=exchange).metrics.compression
    alone = simulate(at_batch(trace, trace.info.batch // 2), node, policy).metrics.compression
    assert together is not None
    assert alone is not None
    assert (together.ratio, together.drift, together.hit_rate) == (alone.ratio, alone.drift, alone.hit_rate)
    assert together.overflow_share > 0
    assert together.read_bytes > alone.read_bytes


# --- identical bytes ------------------------------------------------------------------------------------------------

SCRIPT = """
import hashlib, json, tempfile
from pathlib import Path
from simgpu.simulation.run import simulate
from tests.policies.test_compressed_nodes import POLICIES, many_sided, written
made, nodes = many_sided()
for node in nodes:
    for policy, parameters in POLICIES:
        for pool in ("counting", "addressed"):
            found = simulate(made, node, policy, parameters=parameters, pool=pool, seed=7, budget=40_000)
            with tempfile.TemporaryDirectory() as folder:
                print([hashlib.sha256(part).hexdigest() for part in written(found, Path(folder))])
            print(json.dumps(found.to_dict(), sort_keys=False))
            print(found)
"""


def many_sided() -> tuple[Trace, list[NodeSpec]]:
    """A mix of all targets, own and shared links, and both duplexes."""
    built = chain([900, 700, 800, 400], [900, 1400, 1800, 300], [6400, 2560, 3840, 1280])
    histograms = [(0, 0, 0, 40, 0, 0, 0, 10), (18, 0, 0, 0, 0, 0, 0, 2), (0, 0, 0, 0, 25, 0, 0, 5), (0,) * 7 + (10,)]
    built = with_histograms(built, {f"x{n}": counts for n, counts in enumerate(histograms, start=1)})
    small = MetadataCacheSpec(64, slices=2, ways=2, line=32, entries=4)
    half = LinkSpec("bus", GB, 2 * GB, 5, Duplex.HALF)
    nodes = [buddy_node(cache=small), buddy_node(link=half, cache=small, overlap=0.3)]
    return built, [*nodes, replace(nodes[0], link=half)]


@pytest.mark.slow
def test_two_processes_write_the_same_bytes():
    root = Path(__file__).parents[2]
    result = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        result.append(done.stdout)
    assert result[0].count(b"iteration_ns") == 3 * 2 * len(POLICIES)
    assert result[0] == result[1]
