"""Seismic waves from a point source in a layered earth: finite differences in time and space.

Of the kind of 355.seismic: three-dimensional elastic waves in single precision (`simgpu.workloads.solvers.elastic`).
All fields begin as zeros and fill as the waves spread; the memory variables of the absorbing border stay zero in the
interior.

The source's time function may round differently in its last bit on another processor, and all fields after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, pi
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.model import AccessOrder
from simgpu.workloads.solvers import elastic
from simgpu.workloads.solvers.solver import Solver, State, check_size
from simgpu.workloads.solvers.work import Array, Touch, Work
from simgpu.workloads.timemodel.operation import OperationKind

_MODEL = ("lambda", "mu", "buoyancy")
#: The earth from the top, which is z = 0: share of the depth at which a layer ends, speed of P and S waves (m/s),
#: density (kg/m3). Taken: sediment, sandstone, limestone.
_EARTH = ((0.35, 1800.0, 900.0, 2000.0), (0.7, 2500.0, 1400.0, 2200.0), (1.0, 3300.0, 1900.0, 2400.0))
_SPACING = 10.0
#: Time step as a share of the longest stable one.
_COURANT = 0.9
#: Of a derivative: difference, memory variable, their sum.
_DERIVATIVE_FLOPS = 1 + 3 + 1


@dataclass(frozen=True)
class Seismic(Solver):
    """Elastic waves in a cube of `size` points a side.

    border: points of the absorbing layer on every side; 0 makes the walls reflect. steps_per_point: how long it runs,
    in time steps for each point of a side; in 2 the fastest P wave crosses the cube about once. points: in a wave
    length of the slowest P wave at the source's frequency. earth: layers from the top, each the share of the depth at
    which it ends, its P and S speeds in m/s and density in kg/m3.

    >>> solver = Seismic(size=16)
    >>> first, last = solver.snapshots(2)
    >>> int((first["vx"] != 0).sum()) < int((last["vx"] != 0).sum())
    True
    """

    name: ClassVar[str] = "seismic"
    like: ClassVar[str] = "355.seismic"
    what: ClassVar[str] = "elastic waves in a layered earth, finite differences with an absorbing border"
    measure: ClassVar[str] = "points a side"
    usual_size: ClassVar[int] = 48
    least_size: ClassVar[int] = 16

    size: int = usual_size
    border: int = 5
    steps_per_point: int = 2
    points: int = 10
    earth: tuple[tuple[float, float, float, float], ...] = _EARTH

    def __post_init__(self) -> None:
        check_size(type(self), self.size)

    @property
    def steps(self) -> int:
        """Time steps."""
        return self.steps_per_point * self.size

    @property
    def dt(self) -> float:
        """Seconds of a time step."""
        return _COURANT * _SPACING / (3**0.5 * max(layer[1] for layer in self.earth))

    @property
    def frequency(self) -> float:
        """Hertz of the source."""
        return min(layer[1] for layer in self.earth) / (self.points * _SPACING)

    @property
    def source(self) -> tuple[int, int, int]:
        """The point (z, y, x) of the source: in the middle, a third of the depth down."""
        return self.size // 3, self.size // 2, self.size // 2

    def arrays(self) -> dict[str, Array]:
        """Three fields of the earth, nine of the wave, and 18 memory variables; x runs fastest."""
        names = (*_MODEL, *elastic.VELOCITIES, *elastic.STRESSES, *elastic.MEMORIES)
        return {name: Array((self.size,) * 3, "float32") for name in names}

    def states(self) -> Iterator[State]:
        """After each time step."""
        state: State = {name: np.zeros(array.shape, array.dtype) for name, array in self.arrays().items()}
        state |= self._earth()
        fastest = max(layer[1] for layer in self.earth)
        layers = elastic.border_layers(self.size, self.border, _SPACING, self.dt, fastest, self.frequency)
        step = elastic.Step(np.float32(self.dt / _SPACING), layers)
        for number in range(self.steps):
            elastic.advance_stresses(state, step)
            elastic.advance_velocities(state, step)
            # A vertical force: changes the velocity by itself times buoyancy and the step.
            state["vz"][self.source] += np.float32(self.pulse(number)) * state["buoyancy"][self.source]
            yield state

    def pulse(self, number: int) -> float:
        """The force of the source at a time step: the second derivative of a Gaussian (Ricker 1953), at most 1000."""
        delay = 1.2 / self.frequency
        phase = (pi * self.frequency * (number * self.dt - delay)) ** 2
        return 1000.0 * (1 - 2 * phase) * exp(-phase)

    def energy(self, state: Mapping[str, NDArray[Any]]) -> float:
        """Kinetic and elastic energy, in units that depend on the spacing alone; summed in double precision.

        Velocities and stresses are half a step apart, so it trembles by what a step changes.
        """
        wide = {name: state[name].astype(np.float64) for name in (*_MODEL, *elastic.VELOCITIES, *elastic.STRESSES)}
        stiff, shear = wide["lambda"], wide["mu"]
        vx, vy, vz, sxx, syy, szz, sxy, sxz, syz = (wide[name] for name in (*elastic.VELOCITIES, *elastic.STRESSES))
        kinetic = (vx**2 + vy**2 + vz**2) / wide["buoyancy"]
        trace = sxx + syy + szz
        squares = sxx**2 + syy**2 + szz**2 + 2 * (sxy**2 + sxz**2 + syz**2)
        strained = (squares - stiff / (3 * stiff + 2 * shear) * trace**2) / (2 * shear)
        return float((kinetic + strained).sum() / 2)

    def work(self) -> tuple[Work, ...]:
        """Normal stresses, each shear stress, each velocity: a kernel goes once through all that it uses.

        Neighbouring planes come from the L2 cache, which holds several of each array. Thread blocks take whole planes
        and run side by side, so that memory sees all planes visited in step: strides of one plane.
        """
        kernels = [self._kernel("normal_stresses", elastic.NORMAL, ("lambda", "mu"), 3 + 3 * 5)]
        kernels += [self._kernel(f"stress_{name}", (name,), ("mu",), 4) for name in ("sxy", "sxz", "syz")]
        kernels += [self._kernel(f"velocity_{name}", (name,), ("buoyancy",), 5) for name in elastic.VELOCITIES]
        return tuple(kernels)

    def _kernel(self, op: str, changed: tuple[str, ...], constants: tuple[str, ...], flops: int) -> Work:
        """flops: at a point, besides the derivatives."""
        terms = elastic.DERIVATIVES[changed[0]]
        kept = (*(elastic.memory_name(field, axis) for field, axis, _ in terms), *changed)
        read = (*dict.fromkeys(field for field, _, _ in terms), *constants, *kept)
        pairs = [*((name, False) for name in read), *((name, True) for name in kept)]
        arrays = self.arrays()
        plane = max(1, arrays["vx"].entries // self.size)
        touches = tuple(
            Touch(name, write, arrays[name].entries, AccessOrder.STRIDED, stride=plane) for name, write in pairs
        )
        points = self.size**3
        per_point = _DERIVATIVE_FLOPS * len(terms) + flops
        return Work(op, OperationKind.ELEMENTWISE, points * per_point, points * len(changed), False, touches)

    def reference(self) -> Seismic:
        """2.87 GB."""
        return Seismic(size=288, border=10)

    def _earth(self) -> State:
        """Lame's constants and buoyancy, the same in every horizontal plane."""
        depth = np.arange(self.size) / self.size
        layer = np.searchsorted([end for end, *_ in self.earth], depth, side="right")
        p, s, density = (np.array([row[column] for row in self.earth])[layer] for column in (1, 2, 3))
        shear = density * s**2
        planes = {"lambda": density * p**2 - 2 * shear, "mu": shear, "buoyancy": 1 / density}
        shape = (self.size,) * 3
        return {name: np.broadcast_to(plane[:, None, None], shape).astype(np.float32) for name, plane in planes.items()}
