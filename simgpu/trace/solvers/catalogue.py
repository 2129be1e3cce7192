"""The solvers by name.

Does not live here: any of them; each has a module of its own.
"""

from __future__ import annotations

from types import MappingProxyType

from simgpu.errors import InputError, did_you_mean
from simgpu.trace.solvers.conjugate_gradient import ConjugateGradient
from simgpu.trace.solvers.lattice import Lattice
from simgpu.trace.solvers.multigrid import Multigrid
from simgpu.trace.solvers.random_numbers import RandomNumbers
from simgpu.trace.solvers.seismic import Seismic
from simgpu.trace.solvers.solver import Solver

_ALL: tuple[type[Solver], ...] = (RandomNumbers, ConjugateGradient, Seismic, Lattice, Multigrid)
#: All solvers, in the order of the paper's table 1.
SOLVERS = MappingProxyType({solver.name: solver for solver in _ALL})


def solver_of(name: str, size: int | None = None) -> Solver:
    """A solver at a size, its usual one where none is given. Raises `InputError` for an unknown name or a bad size.

    >>> solver_of("seismic").bytes, solver_of("seismic", 24).bytes
    (13271040, 1658880)
    """
    if name not in SOLVERS:
        raise InputError.single("", "solver", f"{name!r} is not known", did_you_mean(name, SOLVERS))
    return SOLVERS[name].at(size)
