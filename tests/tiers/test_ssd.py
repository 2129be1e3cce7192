"""A third memory needs a node file and a policy: verified, simulated, explained, plotted and exported by name."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.analysis.plots import plot_memory, plot_run
from simgpu.cli.nodes import show_node
from simgpu.cli.screen import Screen
from simgpu.errors import OutOfMemoryError, PolicyError, ProgramError
from simgpu.experiments.bounds import time_lower_bounds
from simgpu.experiments.compare import Comparison, compare
from simgpu.experiments.outputs import write_outputs
from simgpu.experiments.scenarios.model import Outputs, Scenario
from simgpu.explain.explanation import explain_result
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node, load_node_file
from simgpu.hardware.spec import DEVICE, HOST, Duplex, GpuSpec, HostSpec, MemoryLink, MemorySpec, NodeSpec, SwitchSpec
from simgpu.machine.compiled_engine import Engine
from simgpu.machine.run import run_program
from simgpu.program.instructions import (
    COMPUTE,
    Acquire,
    Await,
    Copy,
    InitialContents,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.text import from_json, listing, to_json
from simgpu.program.verify import verify
from simgpu.report.columns import page_data
from simgpu.report.recorded import read_run, recorded_from
from simgpu.report.writing import write_report
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.timeline.streams import StreamId
from simgpu.trace.chain import chain
from tests.machine.test_against_reference import compare as compare_machines
from tests.semantics.hand_made import GB, graph, held, kernel, node, run
from tests.semantics.random_traces import nodes, placements, traces
from tests.tiers.spill import SSD, Spill, spilled

NODE = load_node(Path(__file__).parent / "ssd.yaml")
CHAIN = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
OTHERS = "; ssd 1000 B; host to ssd 5 GB/s, ssd to host 20 GB/s"
TO_SSD, TO_HOST = StreamId(0, "host2ssd"), StreamId(0, "ssd2host")


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(CHAIN, NODE, Spill())


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(CHAIN, NODE, ["ideal", "vdnn", Spill()])


def test_every_copy_takes_its_links_latency_and_bandwidth(result: Result) -> None:
    """By hand: 10 bytes a nanosecond to the host, 5 to the SSD, 20 from it, and 2 ns before each copy of the SSD.

    x1 leaves during F1, x2 during F2; x2 must have returned before B2, and x1 before B1.
    """
    begin = result.timeline.window(-1)[0]
    spans = [span for span in result.timeline if span.iteration == 2 and not span.kind.is_stall]
    assert {(span.label, span.name): (span.start_ns - begin, span.end_ns - begin) for span in spans} == {
        ("compute", "F1"): (0, 5),
        ("copy_d2h", "x1"): (0, 10),
        ("compute", "F2"): (10, 17),
        ("copy_d2h", "x2"): (10, 30),
        ("copy_host2ssd", "x1"): (10, 10 + 2 + 20),
        ("compute", "F3"): (30, 39),
        ("compute", "B3"): (39, 57),
        ("copy_host2ssd", "x2"): (32, 32 + 2 + 40),
        ("copy_ssd2host", "x2"): (74, 74 + 2 + 10),
        ("copy_h2d", "x2"): (86, 106),
        ("compute", "B2"): (106, 120),
        ("copy_ssd2host", "x1"): (106, 106 + 2 + 5),
        ("copy_h2d", "x1"): (113, 123),
        ("compute", "B1"): (123, 133),
    }


def test_the_ssds_memory_is_counted_with_its_alignment(result: Result) -> None:
    curve = result.timeline.memory(SSD)
    begin = result.timeline.window(-1)[0]
    last = curve.time_ns >= begin
    samples = zip(*(column[last].tolist() for column in (curve.time_ns - begin, curve.live, curve.used)), strict=True)
    assert list(samples) == [(10, 100, 128), (32, 300, 384), (86, 100, 128), (113, 0, 0)]
    assert (curve.capacity, result.metrics.shared_peak_bytes) == (1000, {HOST: 300, SSD: 300})


def test_metrics_and_breakdown_name_every_engine(result: Result) -> None:
    parts = result.metrics.breakdown
    assert parts.stalled_copies == {"d2h": 18, "h2d": 23, "host2ssd": 17, "ssd2host": 12}
    assert parts.total == result.iteration_ns == 133
    rows = {row.key: row.value for row in result.metrics.rows()}
    assert (rows["host2ssd_bytes"], rows["ssd2host_bytes"], rows["ssd_peak_bytes"]) == (300, 300, 300)
    assert rows["host2ssd_utilisation"] == 300 / (5 * 133)
    assert rows["host2ssd_overlapped_ns"] + rows["host2ssd_exposed_ns"] == 22 + 42


def test_the_explanation_names_engine_and_decision(result: Result) -> None:
    explanation = explain_result(result)
    assert explanation.engines == {"h2d": 23, "d2h": 18, "host2ssd": 17, "ssd2host": 12}
    causes = {(loss.cause.engine, loss.cause.tensor, loss.cause.decision) for loss in explanation.losses}
    assert ("host2ssd", "x2", "host to ssd copy") in causes
    assert ("ssd2host", "x2", "ssd to host copy during B3 of L3") in causes
    assert sum(step.ns for step in explanation.path) == 133
    assert "host to ssd copy" in repr(explanation)
    assert {row["owner"] for row in explanation.to_dict()["losses"]} >= {"copy_host2ssd", "copy_ssd2host"}


def test_the_listing_and_the_json_name_the_memory(result: Result) -> None:
    text = listing(result.program, result.graph)
    assert "    acquire ssd x1\n    copy x1 from host to ssd\n    release host x1" in text
    assert from_json(to_json(result.program)) == result.program


def test_the_plot_has_a_row_for_each_engine(result: Result) -> None:
    axes = plot_run(result.timeline, budget=result.budget).axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["compute", "D2H copies", "H2D copies", "host to ssd\ncopies", "ssd to host\ncopies"]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"copy host to ssd", "copy ssd to host"} <= set(legend)


def test_the_memory_of_the_ssd_is_plotted_with_its_capacity(result: Result) -> None:
    axes = plot_memory(result.timeline, memory=SSD).axes[0]
    assert axes.get_ylabel() == "ssd memory (B)"
    assert "budget 1000 B" in [text.get_text() for text in axes.get_legend().get_texts()]
    assert any(text.get_text().startswith("peak 300 B") for text in axes.texts)


def test_a_run_is_written_and_read_again(comparison: Comparison, tmp_path: Path) -> None:
    write_outputs(comparison, tmp_path / "run", about={}, timeline=("csv", "perfetto"))
    home = tmp_path / "run" / "spill"
    with (home / "timeline.csv").open(encoding="utf-8") as file:
        assert {"copy_host2ssd", "copy_ssd2host"} <= {row["kind"] for row in csv.DictReader(file)}
    with (home / "memory.csv").open(encoding="utf-8") as file:
        assert ("-1", "ssd") in {(row["gpu"], row["memory"]) for row in csv.DictReader(file)}
    events = json.loads((home / "timeline.perfetto.json").read_text(encoding="utf-8"))["traceEvents"]
    assert "ssd memory" in {event["name"] for event in events if event["ph"] == "C"}
    assert "host2ssd" in {event["args"].get("name") for event in events if event["ph"] == "M"}
    stored, ran = read_run(tmp_path / "run").runs[-1].timeline, comparison["spill"].result
    assert stored is not None and ran is not None
    assert list(stored) == list(ran.timeline)
    assert [(curve.memory, curve.capacity) for curve in stored.memories] == [
        (DEVICE, 1000),
        (HOST, 500),
        (SSD, 1000),
    ]


def test_the_page_and_the_table_show_the_ssd(comparison: Comparison, tmp_path: Path) -> None:
    page, *_ = write_report(comparison, tmp_path / "run.html")
    text = page.read_text(encoding="utf-8")
    for words in ("host-to-ssd", "stalled on host to ssd", "peak ssd memory", "copy host2ssd", OTHERS):
        assert words in text, words


def test_the_run_and_the_page_name_the_ssd_and_its_link(comparison: Comparison) -> None:
    scenario = Scenario("spill", "", CHAIN, NODE, (), None, 3, 0, 0, None, None, Outputs(None, (), (), "png"))
    assert dict(scenario.facts())["node"].endswith(OTHERS)
    looks = {look["label"] for look in page_data(recorded_from(comparison))["looks"]}
    assert {"copy host to ssd", "copy ssd to host"} <= looks


def test_the_node_is_shown_with_its_memories(capsys: pytest.CaptureFixture[str]) -> None:
    show_node(Screen(), load_node_file(Path(__file__).parent / "ssd.yaml"))
    shown = capsys.readouterr().out
    for words in ("memory ssd", "NVMe SSD", "link host-ssd", "to host", "20 GB/s"):
        assert words in shown, words


def test_a_full_ssd_is_out_of_memory_by_name() -> None:
    full = replace(NODE, more_memories=(replace(NODE.more_memories[0], capacity=300),))
    with pytest.raises(OutOfMemoryError, match="ssd memory") as caught:
        simulate(CHAIN, full, Spill())
    assert caught.value.holders == (("x1", 100),)


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_out_of_host_memory_names_the_full_ssd_behind_it(engine: str) -> None:
    full = replace(NODE, more_memories=(replace(NODE.more_memories[0], capacity=128),), host=HostSpec(100))
    with pytest.raises(OutOfMemoryError, match="out of host memory") as caught:
        simulate(chain([5] * 4, [7] * 4, [100] * 4), full, Spill(), engine=engine)
    assert caught.value.others == ("copy of block x2 on host2ssd requests 128 B of ssd memory, 0 B of 128 B are free",)


def test_a_node_without_the_memory_or_its_link_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"policy spill: .* node plain has no memory ssd: it has device, host"):
        simulate(CHAIN, replace(NODE, name="plain", more_memories=(), more_links=()), Spill())
    tasks = TaskGraph.of(CHAIN)
    direct = Program((Segment({COMPUTE: (Acquire((0,), SSD), Copy(0, DEVICE, SSD))}),), resident=(0,))
    with pytest.raises(ProgramError, match="no link between device and ssd: it links device and host, host and ssd"):
        verify(direct, tasks, node=NODE)


def test_verify_follows_values_through_the_third_memory() -> None:
    tasks = TaskGraph.of(CHAIN)
    program = simulate(CHAIN, NODE, Spill()).program
    (segment,) = program.segments
    hasty = tuple(each for each in segment.streams[TO_HOST] if not isinstance(each, Await))
    with pytest.raises(ProgramError, match="ssd2host"):
        verify(replace(program, segments=(replace(segment, streams={**segment.streams, TO_HOST: hasty}),)), tasks)
    leaky = tuple(each for each in segment.streams[TO_HOST] if each != Release((0,), SSD))
    with pytest.raises(ProgramError, match="block x1 in ssd memory"):
        verify(replace(program, segments=(replace(segment, streams={**segment.streams, TO_HOST: leaky}),)), tasks)


def test_gpus_share_the_ssd_and_its_engine() -> None:
    """Each GPU's stream copies a block to the SSD: the second copy waits for the first, and the switch for nobody."""
    tasks = graph([kernel(f"k{n}", 1, f"x{n}") for n in range(2)], [held("x0", 60), held("x1", 60)])
    streams: dict[StreamId, tuple[Instruction, ...]] = {}
    for gpu in range(2):
        streams[StreamId(gpu, "compute")] = (Launch(gpu),)
        streams[StreamId(gpu, "host2ssd")] = (Acquire((gpu,), SSD), Copy(gpu, HOST, SSD), Release((gpu,), SSD))
    program = Program(
        (Segment(streams),),
        resident=(0,),
        other_contents=(InitialContents(DEVICE, (1,), 1), InitialContents(HOST, (0, 1))),
    )
    where = replace(_with_ssd(node(), (GB, GB)), gpus=2)
    verify(program, tasks, node=where)
    spans = [span for span in run(program, tasks, where, iterations=1).timeline if span.label == "copy_host2ssd"]
    assert [(span.gpu, span.start_ns, span.end_ns) for span in spans] == [(0, 0, 60), (1, 60, 120)]


def test_a_switch_is_shared_with_the_ssd_behind_it() -> None:
    """A GPU's copy to the host and one from the SSD to the host pass the same switch, each at half its bandwidth."""
    tasks = graph([kernel("k", 1, "a")], [held("a", 100), held("b", 100)])
    streams: dict[StreamId, tuple[Instruction, ...]] = {
        COMPUTE: (Launch(0),),
        StreamId(0, "d2h"): (Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST)),
        TO_HOST: (Acquire((1,), HOST), Copy(1, SSD, HOST), Release((1,), HOST)),
    }
    program = Program((Segment(streams),), resident=(0,), other_contents=(InitialContents(SSD, (1,)),))
    where = replace(_with_ssd(node(), (GB, GB)), switches=(SwitchSpec((0,), GB, GB, links=("host-ssd",)),))
    verify(program, tasks, node=where)
    ends = {span.label: span.end_ns for span in run(program, tasks, where, iterations=1).timeline}
    assert (ends["copy_d2h"], ends["copy_ssd2host"]) == (200, 200)


ENGINES: tuple[Engine, ...] = ("simpy", "compiled")
DIRECT = MemoryLink((DEVICE, SSD), "wire", (GB, GB), over_gpu_link=True)


@pytest.mark.parametrize(
    ("duplex", "engines", "ends"),
    [(Duplex.FULL, 2, (200, 200, 100)), (Duplex.HALF, 2, (301, 301, 301)), (Duplex.HALF, 1, (200, 200, 300))],
)
def test_copies_of_an_ssd_without_the_host_share_the_gpus_link(
    duplex: Duplex, engines: Literal[1, 2], ends: tuple[int, int, int]
) -> None:
    """To the host and to the SSD at the same time, each with half of the link; the other way has its own, or none."""
    tasks = graph([kernel("k", 1, "a")], [held(name, 100) for name in "abc"])
    streams: dict[StreamId, tuple[Instruction, ...]] = {
        COMPUTE: (Launch(0),),
        StreamId(0, "d2h"): (Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST)),
        StreamId(0, "device2ssd"): (Acquire((1,), SSD), Copy(1, DEVICE, SSD), Release((1,), SSD)),
        StreamId(0, "h2d"): (Acquire((2,)), Copy(2, HOST, DEVICE), Release((2,))),
    }
    contents = (InitialContents(HOST, (2,)),)
    program = Program((Segment(streams),), resident=(0, 1), other_contents=contents)
    base = node()
    gpu, link = replace(base.gpu, copy_engines=engines), replace(base.link, duplex=duplex)
    where = replace(base, gpu=gpu, link=link, more_memories=(MemorySpec(SSD, "SSD"),), more_links=(DIRECT,))
    verify(program, tasks, node=where)
    compare_machines(program, tasks, where, None)
    for engine in ENGINES:
        ran = run_program(program, tasks, where, budget=None, iterations=1, engine=engine)
        found = {span.label: span.end_ns for span in ran.timeline}
        assert (found["copy_d2h"], found["copy_device2ssd"], found["copy_h2d"]) == ends


@pytest.mark.parametrize("policy", ["vdnn", "capuchin", "joint"])
def test_who_copies_to_the_host_alone_runs_as_without_an_ssd(policy: str) -> None:
    trace = chain([5, 7, 9, 9, 6, 8], [10, 14, 18, 18, 12, 16], [100, 200, 300, 400, 200, 100])
    base = replace(node(), gpu=GpuSpec("gpu", 1000))
    where = replace(base, more_memories=(MemorySpec(SSD, "SSD"),), more_links=(DIRECT,))
    plain, with_ssd = (simulate(trace, each, policy) for each in (base, where))
    assert plain.iteration_ns == with_ssd.iteration_ns > plain.ideal_ns
    assert plain.notes == with_ssd.notes


def test_transfers_in_tables_are_those_of_all_links_of_the_gpu() -> None:
    base = replace(node(), gpu=GpuSpec("gpu", 850), host=HostSpec(pinned_memory=0))
    where = replace(base, more_memories=(MemorySpec(SSD, "SSD"),), more_links=(DIRECT,))
    trace = chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400])
    metrics = simulate(trace, where, "lru").metrics
    assert metrics.link_bytes == metrics.copied_bytes["device2ssd"] + metrics.copied_bytes["ssd2device"] > 0
    # What moves between other memories is not the GPU's.
    assert simulate(CHAIN, NODE, Spill()).metrics.link_bytes == 600


def test_a_run_says_how_many_steps_an_ssd_lasts() -> None:
    where = replace(NODE, more_memories=(replace(NODE.more_memories[0], endurance=10**6),))
    assert "writes 300 B a step to ssd, whose 976.6 KiB last 3,333 steps" in simulate(CHAIN, where, Spill()).notes


def test_a_second_link_of_the_gpu_has_no_part_in_the_lower_bound() -> None:
    """A program that copies over it is not bounded, unless its copies pass the GPU's link."""
    trace = chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400])
    for direct, is_bounded in ((DIRECT, True), (replace(DIRECT, over_gpu_link=False), False)):
        base = replace(node(), gpu=GpuSpec("gpu", 850), host=HostSpec(pinned_memory=0))
        where = replace(base, more_memories=(MemorySpec(SSD, "SSD"),), more_links=(direct,))
        result = simulate(trace, where, "lru")
        assert result.metrics.copied_bytes["device2ssd"] > 0
        both = time_lower_bounds(trace, replace(where, host=HostSpec()))
        bound = both.of(result.program)
        assert (bound is not None) == is_bounded
        assert bound is None or bound.ns <= result.iteration_ns


slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)


@slow
@given(st.data(), st.booleans(), st.booleans())
def test_random_programs_with_an_ssd_match_the_reference_model(data: st.DataObject, barrier: bool, tight: bool) -> None:
    tasks = TaskGraph.of(data.draw(traces()))
    program = spilled(lower(tasks, data.draw(placements(tasks, layer_barrier=barrier))))
    rates = st.sampled_from([GB // 2, GB, 3 * GB])
    where = _with_ssd(
        data.draw(nodes()),
        (data.draw(rates), data.draw(rates)),
        latency_ns=data.draw(st.sampled_from([0, 3, 200])),
        duplex=data.draw(st.sampled_from(Duplex)),
        copy_engines=data.draw(st.sampled_from([1, 2])),
    )
    if data.draw(st.booleans()):
        where = replace(where, switches=(SwitchSpec((0,), GB, 2 * GB, links=("host-ssd",)),))
    if data.draw(st.booleans()):
        where = replace(where, more_links=(*where.more_links, DIRECT))
    if tight:
        most = data.draw(st.integers(0, sum(tasks.sizes)))
        where = replace(where, more_memories=(replace(where.more_memories[0], capacity=most),))
    verify(program, tasks, node=where)
    compare_machines(program, tasks, where, None)


def _with_ssd(base: NodeSpec, rates: tuple[int, int], **more: object) -> NodeSpec:
    wire = MemoryLink((HOST, SSD), "wire", rates, **more)  # type: ignore[arg-type]
    return replace(base, more_memories=(MemorySpec(SSD, "SSD", alignment=4),), more_links=(wire,))


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_a_copy_to_the_ssd_on_compute_takes_the_links_engine_and_delays_kernels(engine: Engine) -> None:
    tasks = TaskGraph.of(CHAIN)
    plain = lower(tasks, Placement())
    (segment,) = plain.segments
    offload = (Acquire((0,), HOST), Copy(0, DEVICE, HOST), Acquire((0,), SSD), Copy(0, HOST, SSD))
    leave = (*offload, Release((0,), SSD), Release((0,), HOST))
    program = replace(plain, segments=(replace(segment, streams={COMPUTE: (*leave, *segment.streams[COMPUTE])}),))
    verify(program, tasks, node=NODE)
    spans = list(run_program(program, tasks, NODE, budget=None, iterations=1, engine=engine).timeline)
    assert [(span.stream, span.label) for span in spans[:3]] == [
        ("compute", "copy_d2h"),
        ("compute", "copy_host2ssd"),
        ("compute", "compute"),
    ]
    assert spans[0].end_ns == spans[1].start_ns
    assert spans[1].end_ns == spans[2].start_ns == 10 + 22
