"""The compiled simulator gives what the simulator gives, byte for byte, on random programs and nodes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import HOST, Duplex, GpuSpec, LinkSpec, MemoryLink, MemorySpec, NodeSpec, SwitchSpec
from simgpu.machine import compiled_engine
from simgpu.machine.log import Ran
from simgpu.machine.run import run_program
from simgpu.machine.simulator import Simulator
from simgpu.machine.stopped import StoppedRun
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.config import RunConfig
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from tests.semantics.hand_made import GB, outcome
from tests.semantics.networks import exchanges, moved, networks, on_all, sharing, switched_nodes
from tests.semantics.random_traces import (
    encoded_graphs,
    mixed_placements,
    nodes,
    placements,
    repeatable_traces,
    traces,
)
from tests.tiers.spill import SSD, spilled

POOLS = st.sampled_from(["counting", "addressed"])
GPU_POOLS = st.sampled_from(["counting", "addressed", "caching"])
#: Alignments of the blocks under PyTorch's caching allocator, which distinguishes requests by their size in MiB.
COARSE = st.sampled_from([1, 300 * 2**10, 2**20 + 7, 5 * 2**20, 11 * 2**20])


def check(
    data: st.DataObject,
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    budget: int | None = None,
    iterations: int = 3,
) -> None:
    """Both engines give the same, or the same error; the compiled one runs it to its end, or to where it stops."""
    how: dict[str, Any] = {"budget": budget, "pool": data.draw(GPU_POOLS), "iterations": iterations}
    if how["pool"] == "caching":
        node = replace(node, gpu=replace(node.gpu, alignment=data.draw(COARSE)))
        unit = max(node.gpu.alignment, 2**20)
        how["budget"] = None if budget is None else data.draw(st.integers(0, 4 * len(graph.sizes))) * unit
    try:
        expected = run_program(program, graph, node, engine="simpy", **how)
    except OutOfMemoryError as error:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(OutOfMemoryError) as caught:
            patch.setattr(Simulator, "run", lambda self: pytest.fail("SimPy ran what the compiled engine can explain"))
            run_program(program, graph, node, engine="compiled", **how)
        assert vars(caught.value) == vars(error)
        return
    ran: list[Ran | StoppedRun | None] = []
    original = compiled_engine.run_compiled

    def watched(*arguments: Any) -> Ran | StoppedRun | None:
        ran.append(original(*arguments))
        return ran[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simgpu.machine.run.run_compiled", watched)
        result = run_program(program, graph, node, engine="compiled", **how)
    assert ran and ran[0] is not None, "the compiled simulator gave up"
    assert outcome(result) == outcome(expected)


def budget_of(data: st.DataObject, graph: TaskGraph, node: NodeSpec) -> int | None:
    """No limit, or one that may be too small."""
    unit = node.gpu.alignment
    return data.draw(st.none() | st.integers(0, sum(-(-size // unit) * unit for size in graph.sizes)))


def swaps_and_codecs(data: st.DataObject) -> None:
    """Also with little memory on the GPU and the host, and with up to four iterations."""
    graph, node = data.draw(encoded_graphs()), data.draw(nodes(launches=True))
    program = lower(graph, data.draw(placements(graph, layer_barrier=data.draw(st.booleans()))))
    pinned = data.draw(st.none() | st.integers(0, 2 * sum(graph.copy_sizes)))
    blocks = data.draw(st.booleans())
    node = replace(node, host=replace(node.host, pinned_memory=pinned, waits_for_copies=blocks))
    check(data, program, graph, node, budget_of(data, graph, node), data.draw(st.integers(1, 4)))


def recomputation(data: st.DataObject) -> None:
    graph, node = data.draw(encoded_graphs()), data.draw(nodes(launches=True))
    check(data, lower(graph, data.draw(mixed_placements(graph))), graph, node, budget_of(data, graph, node))


def several_compute_streams(data: st.DataObject) -> None:
    graph, node = TaskGraph.of(data.draw(traces(streams=3))), data.draw(nodes())
    program = lower(graph, Placement(), recorded_lifetimes=data.draw(st.booleans()))
    check(data, program, graph, node, budget_of(data, graph, node))


def segments_that_repeat(data: st.DataObject) -> None:
    full, sub_batch = data.draw(networks()), data.draw(st.integers(1, 4))
    full = replace(full, info=replace(full.info, batch=data.draw(st.integers(sub_batch, 9))))
    graph = Split(sub_batch).apply(TaskGraph.of(full))
    program = lower(graph, data.draw(moved(graph, layer_barrier=data.draw(st.booleans()))))
    check(data, program, graph, data.draw(nodes(launches=True)))


def recorded_lifetimes(data: st.DataObject) -> None:
    graph, node = TaskGraph.of(data.draw(repeatable_traces())), data.draw(nodes(launches=True))
    check(data, lower(graph, Placement(), recorded_lifetimes=True), graph, node, budget_of(data, graph, node))


def several_gpus(data: st.DataObject) -> None:
    tasks, gpus = sharing(data.draw(networks())), data.draw(st.integers(2, 4))
    one = lower(tasks, data.draw(moved(tasks, layer_barrier=data.draw(st.booleans()))))
    node, duplex = data.draw(switched_nodes(gpus)), data.draw(st.sampled_from(Duplex))
    node = replace(node, switches=tuple(replace(switch, duplex=duplex) for switch in node.switches))
    check(data, on_all(one, tasks, node, data.draw(exchanges(gpus))), tasks, node)


def a_third_memory(data: st.DataObject) -> None:
    tasks = TaskGraph.of(data.draw(traces()))
    program = spilled(lower(tasks, data.draw(placements(tasks, layer_barrier=data.draw(st.booleans())))))
    rates = st.sampled_from([GB // 2, GB, 3 * GB])
    wire = MemoryLink(
        (HOST, SSD),
        "wire",
        (data.draw(rates), data.draw(rates)),
        data.draw(st.sampled_from([0, 3, 200])),
        data.draw(st.sampled_from(Duplex)),
        data.draw(st.sampled_from([1, 2])),
    )
    capacity = data.draw(st.none() | st.integers(0, sum(tasks.sizes)))
    disk = MemorySpec(SSD, "SSD", capacity, data.draw(st.sampled_from([1, 4])), data.draw(POOLS))
    node = replace(data.draw(nodes(launches=True)), more_memories=(disk,), more_links=(wire,))
    if data.draw(st.booleans()):
        node = replace(node, switches=(SwitchSpec((0,), GB, 2 * GB, links=("host-ssd",)),))
    check(data, program, tasks, node)


PROPERTIES = (
    swaps_and_codecs,
    recomputation,
    several_compute_streams,
    segments_that_repeat,
    recorded_lifetimes,
    several_gpus,
    a_third_memory,
)
#: Each of the long tests draws so many programs: 100,800 together.
PARTS, IN_A_PART = 16, 900


def drawn(programs: Callable[[st.DataObject], None], examples: int) -> Callable[[], None]:
    """A test of random programs of one sort."""
    how = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples, database=None)
    return how(given(st.data())(programs))


@pytest.mark.slow
@pytest.mark.parametrize("programs", PROPERTIES)
def test_both_engines_give_the_same(programs: Callable[[st.DataObject], None]) -> None:
    drawn(programs, 60)()


@pytest.mark.slow
@pytest.mark.parametrize("programs", [swaps_and_codecs, several_gpus, a_third_memory])
def test_both_engines_give_the_same_where_requests_are_looked_up_in_small_parts(
    programs: Callable[[st.DataObject], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simgpu.machine.arrays._PART", 2)
    drawn(programs, 30)()


@pytest.mark.slow
@pytest.mark.parametrize("programs", PROPERTIES)
def test_both_engines_give_the_same_for_many_programs(programs: Callable[[st.DataObject], None]) -> None:
    drawn(programs, 250)()


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("programs", PROPERTIES)
def test_both_engines_give_the_same_for_very_many_programs(
    programs: Callable[[st.DataObject], None], part: int
) -> None:
    seed(part)(drawn(programs, IN_A_PART))()


def test_a_run_whose_numbers_pass_64_bits_is_left_to_the_simulator() -> None:
    """A copy of 10 GB has more than 2**63 billionths of a byte, in which the bytes on a shared link are counted."""
    graph = TaskGraph.of(chain([5, 7], [10, 14], [10**10, 2 * 10**10]))
    node = NodeSpec("wide", GpuSpec("gpu", 10**12), LinkSpec("pcie", 10**10, 10**10, duplex=Duplex.HALF))
    program = lower(graph, Placement((Swap(0, 0, 3, 3),)))
    expected = run_program(program, graph, node, budget=None, engine="simpy")
    assert outcome(run_program(program, graph, node, budget=None, engine="compiled")) == outcome(expected)


def test_a_program_that_the_compiled_engine_lacks_runs_on_simpy_with_a_note() -> None:
    trace, node = chain([5, 7], [10, 14], [1000, 2000]), NodeSpec("n", GpuSpec("gpu", 2560), LinkSpec("pcie", GB, GB))
    explicit = simulate(trace, node, "um", parameters={"page": 128, "chunk": 128}, engine="compiled")
    assert any("ran on SimPy" in note and "its kernels access host memory" in note for note in explicit.notes)
    usual = simulate(trace, node, "um", parameters={"page": 128, "chunk": 128})
    assert not any("SimPy" in note for note in usual.notes)
    assert list(explicit.timeline) == list(usual.timeline)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="'fast' is not one of the choices; known: auto, compiled, simpy"):
        RunConfig(engine="fast")  # type: ignore[arg-type]


@pytest.mark.slow
def test_short_runs_do_not_wait_for_numba() -> None:
    """In a process of its own: numba takes longer to load than the run takes."""
    code = (
        "import sys, simgpu; "
        "simgpu.simulate(simgpu.load_trace('vgg11-cifar-cpu'), simgpu.load_node('v100'), 'none'); "
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_without_numba_long_runs_stay_on_simpy_and_the_compiled_engine_names_the_package() -> None:
    """In a process of its own, where numba cannot be found."""
    code = (
        "import sys, simgpu; from importlib import util; "
        "sys.modules['numba'] = None; found = util.find_spec; "
        "util.find_spec = lambda name, *more: None if name == 'numba' else found(name, *more); "
        "trace, node = simgpu.load_trace('vgg11-cifar-cpu'), simgpu.load_node('v100'); "
        "assert simgpu.simulate(trace, node, 'none', iterations=1000).steady; "
        "simgpu.simulate(trace, node, 'none', engine='compiled')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "running compiled functions needs numba" in ran.stderr, ran.stderr
