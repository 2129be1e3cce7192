"""Seismic waves from a point source in a layered earth: finite differences in time and space.

Similar to 355.seismic: three-dimensional elastic waves in single precision, of second order. Velocities and stresses
alternate in time and are staggered in space (Virieux 1986; in three dimensions Graves 1996). Near the border, every
derivative D becomes D + psi with a memory variable psi <- b psi + a D: the convolutional perfectly matched layer
(Komatitsch and Martin 2007). Outside of that layer, a is zero and psi stays zero; but psi is allocated for the complete
grid, as in codes with simple loops. All fields are initially zero and fill as the waves spread.

The source's time function may round differently in its last bit on another processor, and so may all fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log, pi
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.model import AccessOrder
from simgpu.workloads.solvers.solver import Solver, State, check_size
from simgpu.workloads.solvers.work import Array, KernelWork, Touch
from simgpu.workloads.timemodel.operation import OperationKind

_MODEL = ("lambda", "mu", "buoyancy")
#: The layers of the earth from the top (z = 0): fraction of the depth at which the layer ends, speed of P and S waves
#: (m/s), density (kg/m3). Assumed: sediment, sandstone, limestone.
_EARTH = ((0.35, 1800.0, 900.0, 2000.0), (0.7, 2500.0, 1400.0, 2200.0), (1.0, 3300.0, 1900.0, 2400.0))
_SPACING = 10.0
#: Time step as a fraction of the longest stable one.
_COURANT = 0.9
#: Operations per derivative: difference, memory variable, their sum.
_DERIVATIVE_FLOPS = 1 + 3 + 1


@dataclass(frozen=True)
class Seismic(Solver):
    """Elastic waves in a cube of `size` points per side.

    border: points of the absorbing layer on every side; 0 makes the walls reflect.
    steps_per_point: time steps of the run per point of a side; with 2, the fastest P wave crosses the cube about once.
    points: points per wavelength of the slowest P wave at the source's frequency.
    earth: layers from the top: fraction of the depth at which each ends, P and S speeds in m/s, density in kg/m3.

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
    smallest_size: ClassVar[int] = 16

    size: int = usual_size
    border: int = 5
    steps_per_point: int = 2
    points: int = 10
    earth: tuple[tuple[float, float, float, float], ...] = _EARTH

    def __post_init__(self) -> None:
        check_size(type(self), self.size)

    @property
    def steps(self) -> int:
        """Time steps of the run."""
        return self.steps_per_point * self.size

    @property
    def dt(self) -> float:
        """Length of a time step in seconds."""
        return _COURANT * _SPACING / (3**0.5 * max(layer[1] for layer in self.earth))

    @property
    def frequency(self) -> float:
        """Frequency of the source in hertz."""
        return min(layer[1] for layer in self.earth) / (self.points * _SPACING)

    @property
    def source(self) -> tuple[int, int, int]:
        """Position (z, y, x) of the source: in the middle, at a third of the depth."""
        return self.size // 3, self.size // 2, self.size // 2

    def arrays(self) -> dict[str, Array]:
        """Three fields of the earth, nine of the wave, and 18 memory variables; x is the fastest dimension."""
        names = (*_MODEL, *VELOCITIES, *STRESSES, *MEMORIES)
        return {name: Array((self.size,) * 3, "float32") for name in names}

    def states(self) -> Iterator[State]:
        """Yields the state after each time step."""
        state: State = {name: np.zeros(array.shape, array.dtype) for name, array in self.arrays().items()}
        state |= self._earth()
        fastest = max(layer[1] for layer in self.earth)
        layers = border_layers(self.size, self.border, _SPACING, self.dt, fastest, self.frequency)
        step = WaveStep(np.float32(self.dt / _SPACING), layers)
        for number in range(self.steps):
            advance_stresses(state, step)
            advance_velocities(state, step)
            # A vertical force: the change of velocity is the force times buoyancy.
            state["vz"][self.source] += np.float32(self.pulse(number)) * state["buoyancy"][self.source]
            yield state

    def pulse(self, number: int) -> float:
        """The force of the source at a time step: the second derivative of a Gaussian (Ricker 1953), at most 1000."""
        delay = 1.2 / self.frequency
        phase = (pi * self.frequency * (number * self.dt - delay)) ** 2
        return 1000.0 * (1 - 2 * phase) * exp(-phase)

    def energy(self, state: Mapping[str, NDArray[Any]]) -> float:
        """Kinetic and elastic energy, in units that depend only on the spacing; summed in double precision.

        Velocities and stresses are half a time step apart, so the energy fluctuates by the change within a step.
        """
        wide = {name: state[name].astype(np.float64) for name in (*_MODEL, *VELOCITIES, *STRESSES)}
        stiff, shear = wide["lambda"], wide["mu"]
        vx, vy, vz, sxx, syy, szz, sxy, sxz, syz = (wide[name] for name in (*VELOCITIES, *STRESSES))
        kinetic = (vx**2 + vy**2 + vz**2) / wide["buoyancy"]
        trace = sxx + syy + szz
        squares = sxx**2 + syy**2 + szz**2 + 2 * (sxy**2 + sxz**2 + syz**2)
        strained = (squares - stiff / (3 * stiff + 2 * shear) * trace**2) / (2 * shear)
        return float((kinetic + strained).sum() / 2)

    def work(self) -> tuple[KernelWork, ...]:
        """Kernels: normal stresses, each shear stress, each velocity. A kernel accesses each of its arrays once.

        Neighbouring planes are read from the L2 cache, which holds several planes of each array. Each thread block
        processes complete planes, and blocks run concurrently. So all planes are accessed in step, with a stride of one
        plane.
        """
        kernels = [self._kernel("normal_stresses", NORMAL, ("lambda", "mu"), 3 + 3 * 5)]
        kernels += [self._kernel(f"stress_{name}", (name,), ("mu",), 4) for name in ("sxy", "sxz", "syz")]
        kernels += [self._kernel(f"velocity_{name}", (name,), ("buoyancy",), 5) for name in VELOCITIES]
        return tuple(kernels)

    def _kernel(self, op: str, changed: tuple[str, ...], constants: tuple[str, ...], flops: int) -> KernelWork:
        """Builds a kernel. flops: operations per point, in addition to the derivatives."""
        terms = DERIVATIVES[changed[0]]
        retained = (*(memory_name(field, axis) for field, axis, _ in terms), *changed)
        read = (*dict.fromkeys(field for field, _, _ in terms), *constants, *retained)
        pairs = [*((name, False) for name in read), *((name, True) for name in retained)]
        arrays = self.arrays()
        plane = max(1, arrays["vx"].entries // self.size)
        touches = tuple(
            Touch(name, write, arrays[name].entries, AccessOrder.STRIDED, stride=plane) for name, write in pairs
        )
        points = self.size**3
        per_point = _DERIVATIVE_FLOPS * len(terms) + flops
        return KernelWork(op, OperationKind.ELEMENTWISE, points * per_point, points * len(changed), False, touches)

    def reference(self) -> Seismic:
        """2.87 GB."""
        return Seismic(size=288, border=10)

    def _earth(self) -> State:
        """Lame's constants and buoyancy, constant in each horizontal plane."""
        depth = np.arange(self.size) / self.size
        layer = np.searchsorted([end for end, *_ in self.earth], depth, side="right")
        p, s, density = (np.array([row[column] for row in self.earth])[layer] for column in (1, 2, 3))
        shear = density * s**2
        planes = {"lambda": density * p**2 - 2 * shear, "mu": shear, "buoyancy": 1 / density}
        shape = (self.size,) * 3
        return {name: np.broadcast_to(plane[:, None, None], shape).astype(np.float32) for name, plane in planes.items()}


Floats = NDArray[np.float32]

VELOCITIES = ("vx", "vy", "vz")
STRESSES = ("sxx", "syy", "szz", "sxy", "sxz", "syz")
#: The derivatives that change each field: the differentiated field, the axis, and whether it is a forward difference.
DERIVATIVES: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "sxx": (("vx", "x", True), ("vy", "y", False), ("vz", "z", False)),
    "sxy": (("vy", "x", False), ("vx", "y", True)),
    "sxz": (("vz", "x", False), ("vx", "z", True)),
    "syz": (("vz", "y", True), ("vy", "z", True)),
    "vx": (("sxx", "x", False), ("sxy", "y", False), ("sxz", "z", False)),
    "vy": (("sxy", "x", True), ("syy", "y", True), ("syz", "z", False)),
    "vz": (("sxz", "x", True), ("syz", "y", False), ("szz", "z", True)),
}
#: The three normal stresses use the same derivatives.
NORMAL = ("sxx", "syy", "szz")
_AXES = {"z": 0, "y": 1, "x": 2}
#: Theoretical reflection coefficient of the absorbing layer (Collino and Tsogka 2001).
_REFLECTION = 1e-3


def memory_name(field: str, axis: str) -> str:
    """The name of a derivative's memory variable."""
    return f"psi_{field}_{axis}"


#: Names of all memory variables, one per derivative.
MEMORIES = tuple(memory_name(field, axis) for terms in DERIVATIVES.values() for field, axis, _ in terms)


@dataclass(frozen=True, slots=True)
class AbsorbingLayer:
    """The border layer's coefficients along one axis, at grid points and between them, shaped to multiply a grid."""

    decay: tuple[Floats, Floats]
    gain: tuple[Floats, Floats]


def border_layers(
    side: int, width: int, spacing: float, dt: float, speed: float, frequency: float
) -> dict[str, AbsorbingLayer]:
    """The layers along a cube's three axes; with a width of 0 there are none, and the walls reflect.

    side, width: points of the cube's side, and of the layer at either end.
    spacing: distance of two points, m. dt: time step, s.
    speed: speed of the fastest wave, m/s. frequency: frequency of the source, Hz.
    """
    return {axis: _border_layer(side, width, spacing, dt, speed, frequency, number) for axis, number in _AXES.items()}


def _border_layer(
    side: int, width: int, spacing: float, dt: float, speed: float, frequency: float, axis: int
) -> AbsorbingLayer:
    shape = [1, 1, 1]
    shape[axis] = side
    decays, gains = [], []
    for offset in (0.0, 0.5):
        place = np.arange(side) + offset
        depth = np.maximum(np.maximum(width - place, place - (side - 1 - width)), 0.0)
        depth = depth / width if width else np.zeros(side)
        strength = -3 * speed * log(_REFLECTION) / (2 * max(width, 1) * spacing)
        damping = strength * depth**2
        shifted = damping + pi * frequency * (1 - depth)
        decay = np.exp(-shifted * dt)
        gain = damping * (decay - 1) / np.where(shifted > 0, shifted, 1.0)
        decays.append(np.where(depth > 0, decay, 0.0).astype(np.float32).reshape(shape))
        gains.append(gain.astype(np.float32).reshape(shape))
    return AbsorbingLayer((decays[0], decays[1]), (gains[0], gains[1]))


@dataclass(frozen=True, slots=True)
class WaveStep:
    """Constants of a time step: ratio of time step to spacing, and the border layers by axis."""

    ratio: np.float32
    layers: Mapping[str, AbsorbingLayer]


def advance_stresses(state: Mapping[str, Floats], step: WaveStep) -> None:
    """Updates the stresses from the velocities: Hooke's law with Lame's constants `lambda` and `mu`."""
    stiff, shear = state["lambda"], state["mu"]
    changes = _derivatives(state, "sxx", step)
    sum_of_all = stiff * (changes[0] + changes[1] + changes[2])
    for name, own in zip(NORMAL, changes, strict=True):
        field = state[name]
        field += step.ratio * (sum_of_all + 2 * shear * own)
    for name in ("sxy", "sxz", "syz"):
        one, other = _derivatives(state, name, step)
        field = state[name]
        field += step.ratio * (shear * (one + other))


def advance_velocities(state: Mapping[str, Floats], step: WaveStep) -> None:
    """Updates the velocities from the stresses: Newton's law with `buoyancy`, one over the density."""
    for name in VELOCITIES:
        one, two, three = _derivatives(state, name, step)
        field = state[name]
        field += step.ratio * (state["buoyancy"] * (one + two + three))


def _derivatives(state: Mapping[str, Floats], changed: str, step: WaveStep) -> list[Floats]:
    """The derivatives that change a field, not divided by the spacing, with the border layer's memory variables."""
    result = []
    for name, axis, forward in DERIVATIVES[changed]:
        change = _difference(state[name], _AXES[axis], forward)
        layer, memory = step.layers[axis], state[memory_name(name, axis)]
        memory *= layer.decay[forward]
        memory += layer.gain[forward] * change
        change += memory
        result.append(change)
    return result


def _difference(field: Floats, axis: int, forward: bool) -> Floats:
    """Forward or backward differences along an axis; the field is zero beyond the grid."""
    change: NDArray[Any] = np.empty_like(field)
    source, target = np.moveaxis(field, axis, 0), np.moveaxis(change, axis, 0)
    if forward:
        np.subtract(source[1:], source[:-1], out=target[:-1])
        np.negative(source[-1], out=target[-1])
    else:
        np.subtract(source[1:], source[:-1], out=target[1:])
        target[0] = source[0]
    return change
