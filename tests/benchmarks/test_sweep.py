"""What a sweep costs next to its points: how two processes share the work, and what 100,000 points take of memory.

Run with ``pytest tests/benchmarks``. What other programs would spoil is skipped when the machine is busy.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from simgpu.experiments.processes import in_processes
from simgpu.experiments.scenarios.load_sweep import load_sweep, make_sweep
from simgpu.experiments.scenarios.sweep import Points, Sweep
from simgpu.experiments.sweep.point import OK, PointRows, died
from simgpu.experiments.sweep.run import run_points, run_sweep
from tests.benchmarks.conftest import Report
from tests.benchmarks.test_speed import bare_simpy_ns

#: Real points of over a tenth of a second each: long enough that starting two processes does not decide the figure.
REAL_POINTS = 160
STUB_POINTS = 100_000
#: Budgets of the sweep whose points are measured, and the most events of bare SimPy that may take as long as one point.
POINT_BUDGETS, POINT_EVENTS = 240, 17_000
BARE_EVENTS = 500_000
#: By how much the parent's memory may grow in the second half of the run.
GROWTH_MIB = 2
#: What pyarrow and a part of the table take at the end, however long the table is.
TABLES_MIB = 128
MIB = 2**20


def swept(points: int, **settings: object) -> Sweep:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "vdnn", **settings}
    return make_sweep({**values, "sweep": {"grid": {"seed": list(range(points))}}}, "benchmark")


def cpu_seconds(work: Callable[[], object]) -> float:
    """What this process works on it, whatever else the machine does."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def memory_sweep(budgets: int) -> Sweep:
    """The shipped scenario `memory-sweep`, on both of its links, with more budgets between its smallest and largest."""
    least, most = 16 * 1024, 52 * 1024
    sizes = [f"{least + (most - least) * number // (budgets - 1)} KiB" for number in range(budgets)]
    return load_sweep("memory-sweep", {"sweep.grid.budget": sizes})


def test_a_point_of_a_sweep_costs_few_events_of_bare_simpy(report: Report) -> None:
    """A point has four policies, most of whose budgets differ from the last point's only slightly."""
    run_sweep(memory_sweep(20))  # loads what is compiled
    sweep = memory_sweep(POINT_BUDGETS)
    before = cpu_seconds(partial(bare_simpy_ns, BARE_EVENTS))
    spent = cpu_seconds(partial(run_sweep, sweep))
    after = cpu_seconds(partial(bare_simpy_ns, BARE_EVENTS))
    events = spent / sweep.count / ((before + after) / 2 / BARE_EVENTS)
    report("sweep of 240 budgets: bare SimPy events a point", events, f"at most {POINT_EVENTS}", events <= POINT_EVENTS)
    report("  points a second of one process", sweep.count / spent, "", None)
    assert events <= POINT_EVENTS


def spin(seconds: float) -> int:
    """How often a process gets through a loop in that time."""
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += sum(range(1000)) > 0
    return count


def require_two_idle_cores() -> None:
    """Skips where two processes do not get twice as much done as one: then nobody could."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two processes need two cores")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(spin, [0.1, 0.1]))
        alone = pool.submit(spin, 1.0).result()
        together = sum(pool.map(spin, [1.0, 1.0]))
    if together < 1.9 * alone:
        pytest.skip(f"the machine is busy: two loops get {together / alone:.2f} times as far as one")


@pytest.mark.exhaustive
def test_two_processes_give_almost_twice_the_points(report: Report) -> None:
    """On SimPy, since this process may have loaded the compiled engine already, and the others have not."""
    require_two_idle_cores()
    sweep = swept(REAL_POINTS, iterations=35, engine="simpy")
    seconds = {}
    for jobs in (1, 2):
        begin = time.perf_counter()
        assert run_sweep(sweep, jobs=jobs).counts["ok"] == REAL_POINTS
        seconds[jobs] = time.perf_counter() - begin
    require_two_idle_cores()
    ratio = seconds[1] / seconds[2]
    report("sweep: two processes over one, with their start", ratio, "at least 1.7", ratio >= 1.7)
    report("  one process: seconds a point", seconds[1] / REAL_POINTS, "", None)
    assert ratio >= 1.7


def stub(points: Points, point: int) -> PointRows:
    """A point that takes no time, with as many numbers as a real one."""
    numbers = {f"metric_{number}_ns": point * number for number in range(40)}
    return PointRows(point, False, ({"policy": "stub", "outcome": OK, **numbers},))


@contextmanager
def memory_curve() -> Iterator[list[float]]:
    """MiB that this process holds, sampled ten times a second while the block runs."""
    page, statm = os.sysconf("SC_PAGESIZE"), Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not report how much memory a process holds")
    curve: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.1):
            curve.append(int(statm.read_text().split()[1]) * page / MIB)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield curve
    finally:
        over.set()
        sampler.join()


@pytest.mark.exhaustive
def test_memory_stays_flat_over_a_hundred_thousand_points(tmp_path: Path, report: Report) -> None:
    sweep = make_sweep(
        {
            "trace": "resnet20-cifar-cpu",
            "node": "laptop-2gb",
            "policies": "none",
            "sweep": {"grid": {"seed": list(range(100)), "epoch": list(range(100)), "iterations": list(range(1, 11))}},
        },
        "benchmark",
    )
    assert sweep.count == STUB_POINTS
    moments: dict[int, float] = {}
    with memory_curve() as tables, memory_curve() as curve:
        begin = time.perf_counter()

        def progress(done: int, total: int) -> None:
            if done in (0, total):
                moments[done] = time.perf_counter() - begin
            if done == total:
                running.extend(curve)
                tables.clear()

        running: list[float] = []
        engine = partial(in_processes, sweep, jobs=2, run=stub, died=died)
        result = run_points(sweep, engine, folder=tmp_path / "sweep", progress=progress)
        full = time.perf_counter() - begin
    assert result.counts["ok"] == STUB_POINTS
    tenths = [running[len(running) * tenth // 10] for tenth in range(10)]
    print(f"\nMiB of the parent after each tenth of the run: {', '.join(f'{held:.1f}' for held in tenths)}")
    growth, beyond = max(running[len(running) // 2 :]) - tenths[5], max(tables) - running[-1]
    rate = STUB_POINTS / (moments[STUB_POINTS] - moments[0])
    report("sweep of 100,000 stub points: thousand points a second", rate / 1000, "", None)
    report("  MiB that the parent grows in the second half", growth, f"below {GROWTH_MIB}", growth < GROWTH_MIB)
    report("  seconds to write both tables", full - moments[STUB_POINTS], "", None)
    report("  MiB that the parent takes for that", beyond, f"below {TABLES_MIB}", beyond < TABLES_MIB)
    assert growth < GROWTH_MIB
