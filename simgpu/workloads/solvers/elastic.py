"""One time step of elastic waves on a staggered grid with an absorbing border.

Velocities and stresses are leapt over each other in time and staggered in space (Virieux 1986; in three dimensions
Graves 1996), of second order. Near the border every derivative D becomes D + psi with a memory variable psi <- b psi +
a D: the convolutional perfectly matched layer (Komatitsch and Martin 2007). Outside of that border layer a is zero and
psi stays so, but psi fills the whole grid, as in codes that keep their loops simple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

VELOCITIES = ("vx", "vy", "vz")
STRESSES = ("sxx", "syy", "szz", "sxy", "sxz", "syz")
#: Of each field the derivatives that change it: of which field, along which axis, and whether forward on the grid.
DERIVATIVES: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "sxx": (("vx", "x", True), ("vy", "y", False), ("vz", "z", False)),
    "sxy": (("vy", "x", False), ("vx", "y", True)),
    "sxz": (("vz", "x", False), ("vx", "z", True)),
    "syz": (("vz", "y", True), ("vy", "z", True)),
    "vx": (("sxx", "x", False), ("sxy", "y", False), ("sxz", "z", False)),
    "vy": (("sxy", "x", True), ("syy", "y", True), ("syz", "z", False)),
    "vz": (("sxz", "x", True), ("syz", "y", False), ("szz", "z", True)),
}
#: The three normal stresses take the same derivatives.
NORMAL = ("sxx", "syy", "szz")
_AXES = {"z": 0, "y": 1, "x": 2}
#: Of the wave that the layer is met with, what it reflects in theory (Collino and Tsogka 2001).
_REFLECTION = 1e-3


def memory_name(field: str, axis: str) -> str:
    """What the memory variable of a derivative is called."""
    return f"psi_{field}_{axis}"


#: Names of all memory variables: one for each derivative.
MEMORIES = tuple(memory_name(field, axis) for terms in DERIVATIVES.values() for field, axis, _ in terms)


@dataclass(frozen=True, slots=True)
class Layer:
    """The border layer's coefficients along one axis, at grid points and between them, shaped to multiply a grid."""

    decay: tuple[Floats, Floats]
    gain: tuple[Floats, Floats]


def border_layers(side: int, width: int, spacing: float, dt: float, speed: float, frequency: float) -> dict[str, Layer]:
    """The layers of a cube's three axes; a width of 0 is none, and the cube's walls reflect.

    width: points on either side. speed: the fastest wave's. frequency: of the source.
    """
    return {axis: _border_layer(side, width, spacing, dt, speed, frequency, number) for axis, number in _AXES.items()}


def _border_layer(side: int, width: int, spacing: float, dt: float, speed: float, frequency: float, axis: int) -> Layer:
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
    return Layer((decays[0], decays[1]), (gains[0], gains[1]))


@dataclass(frozen=True, slots=True)
class Step:
    """What a time step needs besides the fields: step over spacing, and the border layers by axis."""

    ratio: np.float32
    layers: Mapping[str, Layer]


def advance_stresses(state: Mapping[str, Floats], step: Step) -> None:
    """Stresses from velocities: Hooke's law with Lame's constants `lambda` and `mu` of the state."""
    stiff, shear = state["lambda"], state["mu"]
    grown = _derivatives(state, "sxx", step)
    sum_of_all = stiff * (grown[0] + grown[1] + grown[2])
    for name, own in zip(NORMAL, grown, strict=True):
        field = state[name]
        field += step.ratio * (sum_of_all + 2 * shear * own)
    for name in ("sxy", "sxz", "syz"):
        one, other = _derivatives(state, name, step)
        field = state[name]
        field += step.ratio * (shear * (one + other))


def advance_velocities(state: Mapping[str, Floats], step: Step) -> None:
    """Velocities from stresses: Newton's law with `buoyancy`, one over the density."""
    for name in VELOCITIES:
        one, two, three = _derivatives(state, name, step)
        field = state[name]
        field += step.ratio * (state["buoyancy"] * (one + two + three))


def _derivatives(state: Mapping[str, Floats], changed: str, step: Step) -> list[Floats]:
    """Differences, not yet over the spacing, with what the border layer adds."""
    found = []
    for name, axis, forward in DERIVATIVES[changed]:
        change = _difference(state[name], _AXES[axis], forward)
        layer, memory = step.layers[axis], state[memory_name(name, axis)]
        memory *= layer.decay[forward]
        memory += layer.gain[forward] * change
        change += memory
        found.append(change)
    return found


def _difference(field: Floats, axis: int, forward: bool) -> Floats:
    """To the next value along an axis, or from the one before; zero beyond the grid, where nothing moves."""
    change: NDArray[Any] = np.empty_like(field)
    source, target = np.moveaxis(field, axis, 0), np.moveaxis(change, axis, 0)
    if forward:
        np.subtract(source[1:], source[:-1], out=target[:-1])
        np.negative(source[-1], out=target[-1])
    else:
        np.subtract(source[1:], source[:-1], out=target[1:])
        target[0] = source[0]
    return change
