"""Properties of all solvers: declared arrays, reproducible runs, snapshots, counted work, refused sizes."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.errors import InputError
from simgpu.workloads.solvers.catalogue import SOLVERS, solver_of
from simgpu.workloads.solvers.solver import Solver
from tests.sets import slow_except

#: Small runs of each, and the footprint of its benchmark in Buddy Compression's table 1 (GB).
SMALL = {"ep": 64, "cg": 300, "seismic": 16, "lbm": 8, "multigrid": 8}
FOOTPRINTS = {"ep": 2.75, "cg": 1.23, "seismic": 2.83, "lbm": 1.94, "multigrid": 2.32}

each = pytest.mark.parametrize("name", SOLVERS)


def small(name: str) -> Solver:
    return solver_of(name, SMALL[name])


@each
def test_every_state_has_the_declared_arrays(name: str) -> None:
    solver, steps = small(name), 0
    for state in solver.states():
        steps += 1
        assert list(state) == list(solver.arrays())
        for array, declared in zip(state.values(), solver.arrays().values(), strict=True):
            assert (array.shape, str(array.dtype)) == (declared.shape, declared.dtype)
            assert array.flags.c_contiguous
            assert np.isfinite(array).all()
    assert steps == solver.steps


@each
def test_repeated_runs_are_bit_identical(name: str) -> None:
    for one, other in zip(small(name).snapshots(3), small(name).snapshots(3), strict=True):
        assert all(one[array].tobytes() == other[array].tobytes() for array in one)


@each
def test_snapshots_are_states_at_equal_intervals_and_are_not_overwritten(name: str) -> None:
    solver = small(name)
    moments = solver.moments(5)
    assert moments == tuple(part * solver.steps // 5 for part in (1, 2, 3, 4, 5))
    taken = list(solver.snapshots(5))
    then = {
        step: {key: array.tobytes() for key, array in state.items()}
        for step, state in enumerate(small(name).states(), 1)
    }
    for moment, snapshot in zip(moments, taken, strict=True):
        assert {key: array.tobytes() for key, array in snapshot.items()} == then[moment]


@each
def test_consecutive_snapshots_differ(name: str) -> None:
    first, last = small(name).snapshots(2)
    assert any(first[array].tobytes() != last[array].tobytes() for array in first)


@each
@pytest.mark.parametrize("count", [0, -1, 10_000])
def test_more_snapshots_than_steps_are_refused(name: str, count: int) -> None:
    with pytest.raises(InputError, match=f"{name}: snapshots: cannot take {count} snapshots of a run of"):
        list(small(name).snapshots(count))


@each
def test_the_reference_is_about_as_large_as_the_benchmark(name: str) -> None:
    """Multigrid's is a tenth smaller: with the next power of two of cells per side it would be eight times as large."""
    share = solver_of(name).reference().bytes / 1e9 / FOOTPRINTS[name]
    assert share == pytest.approx(1, abs=0.1 if name == "multigrid" else 0.04)


@each
@pytest.mark.parametrize("size", [0, -8, 3])
def test_impossible_sizes_are_refused(name: str, size: int) -> None:
    with pytest.raises(InputError, match=f"{name}: size: {size} {SOLVERS[name].measure} is not a supported size"):
        solver_of(name, size)


def test_unknown_solvers_are_refused_with_a_guess() -> None:
    with pytest.raises(InputError, match="unknown solver 'seismik'; did you mean 'seismic'"):
        solver_of("seismik")


@each
def test_every_kernel_lists_each_array_once_per_direction(name: str) -> None:
    solver = small(name)
    for work in solver.work():
        touched = [(touch.array, touch.write) for touch in work.touches]
        assert len(set(touched)) == len(touched)
        assert {array for array, _ in touched} <= solver.arrays().keys()
        assert any(write for _, write in touched) or work.op in ("dot", "sum")


@pytest.mark.parametrize("name", slow_except(SOLVERS, *({*SOLVERS} - {"lbm"})))
def test_sequential_accesses_visit_each_entry_at_most_once(name: str) -> None:
    """A sequential walk visits no entry twice, and the work of a step does not depend on a run."""
    solver = solver_of(name).reference()
    arrays = solver.arrays()
    for touch in (touch for work in solver.work() for touch in work.touches):
        assert 1 <= touch.sectors <= 4
        if touch.order == "sequential":
            assert 1 <= touch.visits <= arrays[touch.array].entries
