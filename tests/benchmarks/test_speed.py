"""What a simulation costs, as ratios against bare SimPy in the same run.

Run with ``pytest tests/benchmarks``; the unit tests do not come here. Spans are kernels and copies. A run is the whole
part of the machine: translating the program once, the iterations, and the timeline. The floors are for long runs; the
same figures for three iterations, which a user runs by default, stand next to them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, PIPE
from typing import Any, NoReturn

import numpy as np
import pytest
import simpy

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.importers import import_trace
from simgpu.machine.compiled_engine import Engine
from simgpu.machine.run import MachineRun, run_program
from simgpu.online.conductor import Conductor
from simgpu.policies.base import PlanContext, policy_label
from simgpu.policies.belady import Belady
from simgpu.policies.common.deciding import OnlinePolicy
from simgpu.policies.dtr.policy import Dtr
from simgpu.policies.lru import Lru
from simgpu.policies.registry import make_policy
from simgpu.program.check import check_program
from simgpu.program.instructions import Program
from simgpu.program.verify import verify
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from simgpu.workloads.modelled import build_trace
from tests.benchmarks.conftest import Report

DENSENET = Path(__file__).parents[3] / "shared" / "data" / "titanv-dtr" / "densenet121-b84.log"
NODE = NodeSpec("benchmark", GpuSpec("gpu", 12 * 2**30), LinkSpec("pcie", 12 * 10**9, 12 * 10**9))
#: Long enough that the translation, which is paid once, does not decide the figure.
ITERATIONS = 25


@pytest.fixture(scope="module")
def densenet() -> TaskGraph:
    if not DENSENET.exists():
        pytest.skip("the DenseNet-121 recording is not at hand (../shared/data)")
    trace, _ = import_trace(DENSENET)
    return TaskGraph.of(trace)


def planned(graph: TaskGraph, policy: str) -> Program:
    def no_trial(program: Program) -> NoReturn:
        pytest.fail(f"{policy} needs no trial run")

    return make_policy(policy).plan(PlanContext(graph, NODE, NODE.budget, no_trial, np.random.default_rng(0)))


def run(
    program: Program, graph: TaskGraph, pool: str, iterations: int = ITERATIONS, engine: Engine = "simpy"
) -> MachineRun:
    checked = check_program(program, graph, NODE)
    return run_program(
        program, graph, NODE, budget=2**62, iterations=iterations, pool=pool, engine=engine, checked=checked
    )


def spans_of(run: MachineRun) -> int:
    return int((run.timeline.kind < SpanKind.STALL_EVENT).sum())


def bare_simpy_ns(events: int = 50_000) -> float:
    """Nanoseconds per event of a process that does nothing but wait."""

    def process(env: simpy.Environment) -> object:
        for _ in range(events):
            yield env.timeout(1)

    env = simpy.Environment()
    env.process(process(env))
    begin = time.perf_counter_ns()
    env.run()
    return (time.perf_counter_ns() - begin) / events


def interleaved(work: Callable[[], object], rounds: int = 7) -> tuple[float, float]:
    """Medians (ns) of the work and of one bare SimPy event, measured in turn so that both see the same machine."""
    work_ns, bare_ns = [], []
    for _ in range(rounds):
        bare_ns.append(bare_simpy_ns())
        begin = time.perf_counter_ns()
        work()
        work_ns.append(time.perf_counter_ns() - begin)
    return median(work_ns), median(bare_ns)


@pytest.mark.parametrize(
    ("policy", "pool", "floor", "aim"),
    [("none", "counting", 0.08, 0.15), ("none", "addressed", 0.06, 0.12), ("vdnn", "counting", 0.04, 0.08)],
)
def test_spans_per_second(
    densenet: TaskGraph, policy: str, pool: str, floor: float, aim: float, benchmark: Any, report: Report
) -> None:
    program = planned(densenet, policy)
    spans = spans_of(run(program, densenet, pool))
    total, bare = interleaved(lambda: run(program, densenet, pool), rounds=3)
    ratio = bare * spans / total
    benchmark.extra_info["spans per second over bare SimPy events per second"] = ratio
    benchmark.pedantic(run, args=(program, densenet, pool), rounds=3)
    what = f"{policy}, {pool} pool: spans/s over SimPy events/s"
    report(what, ratio, f"floor {floor}, aim {aim}", ratio >= floor)
    total, bare = interleaved(lambda: run(program, densenet, pool, iterations=3), rounds=5)
    report("  the same, three iterations", bare * spans * 3 / ITERATIONS / total, "", None)


@pytest.mark.parametrize(
    ("policy", "pool", "least", "aim", "of_three"),
    [("none", "counting", 4, 10, 1), ("none", "addressed", 2, 5, 0.6), ("vdnn", "counting", 2.5, 6, 0.6)],
)
def test_spans_per_second_compiled(
    densenet: TaskGraph, policy: str, pool: str, least: float, aim: float, of_three: float, report: Report
) -> None:
    program = planned(densenet, policy)
    for iterations, floor, goal in ((ITERATIONS, least, aim), (3, of_three, 3)):
        spans = spans_of(run(program, densenet, pool, iterations, "compiled"))
        total, bare = interleaved(lambda times=iterations: run(program, densenet, pool, times, "compiled"))
        ratio = bare * spans / total
        what = f"compiled, {policy}, {pool} pool, {iterations} iterations: spans/s over events/s"
        report(what, ratio, f"at least {floor}, aim {goal}", ratio >= floor)


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_the_caching_allocator_is_at_least_half_as_fast_as_addresses(
    densenet: TaskGraph, engine: Engine, report: Report
) -> None:
    for policy in ("none", "vdnn"):
        program = planned(densenet, policy)

        def ran(pool: str, program: Program = program) -> float:
            begin = time.perf_counter_ns()
            run(program, densenet, pool, ITERATIONS, engine)
            return time.perf_counter_ns() - begin

        ran("caching")
        times = [(ran("addressed"), ran("caching")) for _ in range(5)]
        ratio = median(a for a, _ in times) / median(c for _, c in times)
        report(f"{engine}, {policy}: caching over addressed pool, speed", ratio, "at least 0.5", ratio >= 0.5)


@pytest.mark.parametrize(("policy", "most", "aim"), [("ideal", 6, 2), ("vdnn", 8, 3), ("superneurons", 12, 4)])
def test_a_whole_run_per_simulated_kernel(policy: str, most: float, aim: float, report: Report) -> None:
    """Checks, graph, plan, verify, three iterations and metrics of a trace that was not used before."""
    if not DENSENET.exists():
        pytest.skip("the DenseNet-121 recording is not at hand (../shared/data)")
    trace, _ = import_trace(DENSENET)

    def whole() -> None:
        assert simulate(copy(trace), NODE, policy, engine="compiled").metrics.iteration_ns

    whole()
    total, bare = interleaved(whole, rounds=5)
    events = total / bare / (3 * len(trace.kernels))
    report(f"{policy}, all in: SimPy events per simulated kernel", events, f"at most {most}, aim {aim}", events <= most)


@pytest.mark.parametrize("online", [Lru(), Belady(), Dtr(), Dtr(heuristic="dtr")], ids=policy_label)
def test_a_decision_while_the_iteration_runs(densenet: TaskGraph, online: OnlinePolicy, report: Report) -> None:
    """At half of the plain peak. Each answer is a decision, also that nothing is to be done: a policy is asked before
    each kernel, at the end of each copy, and about each block that leaves. What is known of a graph is found once."""
    graph, budget = transformed(densenet, online.transforms), 5510374680
    decided = 0

    def whole() -> None:
        nonlocal decided
        conductor = Conductor(graph, NODE, budget, online.decider(graph), sees_future=online.clairvoyant)
        conductor.run()
        decided = conductor.answers

    def first() -> None:
        graph.kept.clear()
        whole()

    what = f"{policy_label(online)}, SimPy events per decision while the iteration runs"
    whole()
    total, bare = interleaved(whole)
    events = total / bare / decided
    report(what, events, "at most 10", events <= 10)
    total, bare = interleaved(first)
    report("  the first time that anything is asked about the graph", total / bare / decided, "", None)


def test_the_same_trace_again_with_another_link(report: Report) -> None:
    if not DENSENET.exists():
        pytest.skip("the DenseNet-121 recording is not at hand (../shared/data)")
    trace, _ = import_trace(DENSENET)
    rates = count(NODE.link.d2h_bandwidth, 10**6)

    def again() -> None:
        node = replace(NODE, link=replace(NODE.link, d2h_bandwidth=next(rates)))
        assert simulate(trace, node, "vdnn", engine="compiled").metrics.iteration_ns

    again()
    total, bare = interleaved(again)
    events = total / bare / (3 * len(trace.kernels))
    report("vdnn, again with another link: SimPy events per simulated kernel", events, "at most 3, aim 1", events <= 3)


@pytest.mark.parametrize("kernels", [100_000, pytest.param(10**6, marks=pytest.mark.exhaustive)])
def test_many_kernels(kernels: int, report: Report) -> None:
    """In a process of its own, whose peak memory is read at its end."""
    code = (
        "import resource, sys, time; from simgpu import simulate, load_node; from simgpu.trace.chain import chain; "
        "layers = int(sys.argv[1]); sizes = [1000 + 37 * (n % 101) for n in range(layers)]; "
        "trace = chain([20] * layers, [40] * layers, sizes); "
        "simulate(chain([20] * 9, [40] * 9, [100] * 9), load_node('v100'), 'vdnn', engine='compiled'); "
        "begin = time.perf_counter(); simulate(trace, load_node('v100'), 'vdnn', iterations=1); "
        "print((time.perf_counter() - begin) / layers, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )

    def measured(layers: int) -> tuple[float, float]:
        ran = subprocess.run([sys.executable, "-c", code, str(layers)], capture_output=True, text=True, check=True)
        seconds, kibibytes = ran.stdout.split()
        return float(seconds), float(kibibytes)

    short = median(measured(5_000)[0] for _ in range(3))
    long, kibibytes = measured(kernels // 2)
    ratio = long / short
    report(f"vdnn: time per kernel of {kernels:,}, over that of 10,000", ratio, "at most 1.3", ratio <= 1.3)
    peak = kibibytes / 2**20
    report(f"vdnn: peak memory of {kernels:,} kernels, GiB", peak, "at most 2 for a million", peak <= 2)


@pytest.mark.parametrize("policy", ["none", "vdnn"])
def test_verify_costs_less_than_the_run_it_guards(densenet: TaskGraph, policy: str, report: Report) -> None:
    program = planned(densenet, policy)
    verifying, _ = interleaved(lambda: verify(program, densenet))
    running, _ = interleaved(lambda: run(program, densenet, "counting", iterations=3))
    share = verifying / running
    report(f"{policy}: verify over a run of three iterations", share, "below 1", share < 1)


@pytest.mark.parametrize(
    ("policy", "pool"),
    [
        ("none", "counting"),
        ("none", "addressed"),
        pytest.param("vdnn", "addressed", marks=pytest.mark.exhaustive),
    ],
)
def test_cost_grows_linearly(policy: str, pool: str, report: Report) -> None:
    def cost_per_kernel(layers: int) -> float:
        sizes = [1000 + 37 * (n % 101) for n in range(layers)]
        graph = TaskGraph.of(chain([20] * layers, [40] * layers, sizes))
        program = planned(graph, policy)
        total, bare = interleaved(lambda: run(program, graph, pool, iterations=1), rounds=3)
        return total / bare / len(graph.kernels)

    growth = cost_per_kernel(40_000) / cost_per_kernel(4_000)
    report(f"{policy}, {pool} pool: cost per kernel, 80,000 over 8,000", growth, "near 1; 10 if quadratic", growth < 3)


def test_memory_per_span(densenet: TaskGraph, report: Report) -> None:
    program = planned(densenet, "vdnn")
    tracemalloc.start()
    result = run(program, densenet, "counting")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    share = peak / spans_of(result) / 1024
    report("vdnn: peak KiB per span while running", share, "below 1", share < 1)


def test_building_vgg16(tmp_path: Path, report: Report) -> None:
    """The second time, when everything is loaded."""
    for _ in range(2):
        begin = time.process_time()
        write_trace(build_trace("vgg16", batch=128, gpu=load_node("v100").gpu), tmp_path / "vgg16")
        seconds = time.process_time() - begin
    report("modelling VGG-16 and writing its trace: seconds of CPU", seconds, "below 1", seconds < 1)


def test_start_up(tmp_path: Path, report: Report) -> None:
    """Whole processes, whose modules Python has compiled before, as pip does when it installs them."""
    env = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "compiled")
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def seconds(*arguments: str, until: str = "") -> float:
        begin = time.perf_counter()
        command = [sys.executable, *arguments]
        with subprocess.Popen(command, stdout=PIPE, stderr=DEVNULL, text=True, env=env, cwd=tmp_path) as ran:
            assert ran.stdout is not None
            printed = any(until and line.startswith(until) for line in ran.stdout)
            if printed:
                spent = time.perf_counter() - begin
            ran.stdout.read()
        assert ran.returncode == 0 and printed == bool(until)
        return spent if until else time.perf_counter() - begin

    def over_bare(*words: str, rounds: int = 5, until: str = "") -> float:
        seconds("-m", "simgpu", *words)
        pairs = [(seconds("-c", "pass"), seconds("-m", "simgpu", *words, until=until)) for _ in range(rounds)]
        return median(ran for _, ran in pairs) / median(bare for bare, _ in pairs)

    ratio = over_bare("--help", rounds=9)
    report("simgpu --help over a bare interpreter", ratio, "at most 15", ratio <= 15)
    ratio = over_bare("run", "quickstart")
    report("simgpu run quickstart over a bare interpreter", ratio, "at most 60, aim 40", ratio <= 60)
    report("  until it has printed its table", over_bare("run", "quickstart", until="peak host memory"), "", None)
    report("  the same with figures", over_bare("run", "quickstart", "--set", "outputs.plots=[run]"), "", None)
    report("  simgpu compare quickstart", over_bare("compare", "quickstart"), "", None)
