"""The solvers by name."""

from __future__ import annotations

from types import MappingProxyType

from simgpu.errors import InputError, did_you_mean
from simgpu.workloads.solvers.conjugate_gradient import ConjugateGradient
from simgpu.workloads.solvers.lattice import Lattice
from simgpu.workloads.solvers.multigrid import Multigrid
from simgpu.workloads.solvers.random_numbers import RandomNumbers
from simgpu.workloads.solvers.seismic import Seismic
from simgpu.workloads.solvers.solver import Solver

_ALL: tuple[type[Solver], ...] = (RandomNumbers, ConjugateGradient, Seismic, Lattice, Multigrid)
#: All solvers, in the order of the paper's table 1.
SOLVERS = MappingProxyType({solver.name: solver for solver in _ALL})


def solver_of(name: str, size: int | None = None) -> Solver:
    """Returns a solver, by default at its usual size. Raises `InputError` for an unknown name or an invalid size.

    >>> solver_of("seismic").bytes, solver_of("seismic", 24).bytes
    (13271040, 1658880)
    """
    if name not in SOLVERS:
        raise InputError.single("", "solver", f"unknown solver {name!r}", did_you_mean(name, SOLVERS))
    return SOLVERS[name].at(size)
