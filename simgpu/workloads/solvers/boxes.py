"""A grid level as boxes of cells in one allocation: all fields of a box one after another, each with a rim of ghosts.

An array of structs whose members are whole fields, so that what lies in memory changes its nature every few kilobytes.
A field is filled up to whole memory-entries, as HPGMG-FV fills a box's volume up to 64 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.workloads.solvers.work import ENTRY_BYTES, SECTOR_BYTES

Doubles = NDArray[np.float64]

#: The fields of a box in order. temp: the operator's result; true: the solution that the right side is made from;
#: alpha, beta: coefficients, beta at the lower face of a cell; dinv: one over the operator's diagonal; valid: 1 in the
#: domain.
FIELDS = ("temp", "true", "residual", "rhs", "u", "alpha", "beta_x", "beta_y", "beta_z", "dinv", "valid")
#: Weights of both terms of the operator a alpha u - b div(beta grad u).
A = B = 1.0
_INNER = slice(1, -1)
_LOWER, _UPPER = slice(0, -2), slice(2, None)
_BETAS = ("beta_z", "beta_y", "beta_x")


@dataclass(frozen=True, slots=True)
class Shape:
    """`boxes` boxes a side of `side` cells a side.

    >>> Shape(2, 16).cells, Shape(2, 16).shape, Shape(2, 16).entries
    (32, (2, 2, 2, 11, 5840), 365)
    """

    boxes: int
    side: int

    @property
    def cells(self) -> int:
        """Cells of the level a side."""
        return self.boxes * self.side

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the level's array: boxes along z, y, x; fields; cells with their ghosts, x fastest, and what fills up."""
        return (*(self.boxes,) * 3, len(FIELDS), self.entries * ENTRY_BYTES // 8)

    @property
    def entries(self) -> int:
        """Memory-entries of a field in a box."""
        return -(-((self.side + 2) ** 3) * 8 // ENTRY_BYTES)

    def field(self, data: Doubles, name: str) -> Doubles:
        """A view of a field of a level's array, with its ghosts: boxes along z, y, x, then cells along z, y, x."""
        cells = data[..., FIELDS.index(name), : (self.side + 2) ** 3]
        return cells.reshape(*cells.shape[:3], *(self.side + 2,) * 3)

    def inner(self, data: Doubles, name: str) -> Doubles:
        """A view of a field without its ghosts."""
        return self.field(data, name)[..., _INNER, _INNER, _INNER]

    def sectors_of_faces(self, low: int, high: int) -> int:
        """Sectors of a field in a box that hold a cell of its six faces, which are cells `low` and `high` of a side.

        >>> Shape(1, 2).sectors_of_faces(1, -2), Shape(1, 2).sectors_of_faces(0, -1)
        (4, 12)
        """
        cells = np.zeros((self.side + 2,) * 3, bool)
        for axis in range(3):
            np.moveaxis(cells, axis, 0)[[low, high], _INNER, _INNER] = True
        return len(np.unique(np.flatnonzero(cells) * 8 // SECTOR_BYTES))


class Level:
    """One level: its array, and what a GPU does with it in one kernel each."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.data: Doubles = np.zeros(shape.shape)
        self._per_area = float(shape.cells) ** 2
        side = np.arange(shape.side)
        parity = (side[:, None, None] + side[:, None] + side) % 2
        self._colours = tuple((parity == colour).astype(np.float64) for colour in (0, 1))
        self._set_coefficients()

    def field(self, name: str) -> Doubles:
        """A view of a field with its ghosts: boxes along z, y, x, then cells along z, y, x."""
        return self.shape.field(self.data, name)

    def inner(self, name: str) -> Doubles:
        """A view of a field without its ghosts."""
        return self.shape.inner(self.data, name)

    def whole(self, name: str) -> Doubles:
        """A copy of a field as one cube."""
        return self.inner(name).transpose(0, 3, 1, 4, 2, 5).reshape((self.shape.cells,) * 3)

    def put(self, name: str, cube: Doubles) -> None:
        """Fills a field from one cube."""
        boxes, side = self.shape.boxes, self.shape.side
        self.inner(name)[:] = cube.reshape(boxes, side, boxes, side, boxes, side).transpose(0, 2, 4, 1, 3, 5)

    def exchange(self) -> None:
        """Ghosts of u: the neighbour box's cells; beyond the domain what makes u zero at its face."""
        u = self.field("u")
        for axis in range(3):
            boxes, cells = np.moveaxis(u, axis, 0), 3 + axis
            low, high = (np.moveaxis(boxes, cells, 1)[:, index] for index in (0, -1))
            first, last = (np.moveaxis(boxes, cells, 1)[:, index] for index in (1, -2))
            low[1:], high[:-1] = last[:-1], first[1:]
            low[0], high[-1] = -first[0], -last[-1]

    def apply(self) -> None:
        """temp = A u, from u and its ghosts."""
        u, found = self.field("u"), self.inner("temp")
        here = self.inner("u")
        flow = np.zeros_like(here)
        for axis, name in enumerate(_BETAS):
            beta = self.field(name)
            flow += beta[_at(axis, _UPPER)] * (u[_at(axis, _UPPER)] - here)
            flow -= beta[_at(axis, _INNER)] * (here - u[_at(axis, _LOWER)])
        found[:] = A * self.inner("alpha") * here - B * self._per_area * flow

    def smooth(self, sweeps: int) -> None:
        """Gauss-Seidel, red cells before black ones."""
        for _ in range(sweeps):
            for colour in self._colours:
                self.exchange()
                self.apply()
                change = colour * self.inner("dinv") * (self.inner("rhs") - self.inner("temp"))
                self.inner("u")[:] += change

    def set_residual(self) -> None:
        """residual = rhs - A u."""
        self.exchange()
        self.apply()
        self.inner("residual")[:] = self.inner("rhs") - self.inner("temp")

    def _set_coefficients(self) -> None:
        centres, faces = self._places(0.5), self._places(0.0)
        self.field("alpha")[:] = 1.0
        for axis, name in enumerate(_BETAS):
            places = [faces if axis == other else centres for other in range(3)]
            self.field(name)[:] = _on(places, beta)
        valid = self._valid_with_ghosts()
        diagonal = A * self.inner("alpha")
        for axis, name in enumerate(_BETAS):
            for side, face in ((_UPPER, _UPPER), (_LOWER, _INNER)):
                # A ghost beyond the domain is minus the cell itself.
                diagonal = diagonal + B * self._per_area * self.field(name)[_at(axis, face)] * (
                    2.0 - valid[_at(axis, side)]
                )
        self.inner("dinv")[:] = 1.0 / diagonal

    def _valid_with_ghosts(self) -> Doubles:
        """1 where a cell or ghost lies in the domain; `valid` itself then has that too."""
        inside = [(place > 0) & (place < 1) for place in (self._places(0.5),) * 3]
        self.field("valid")[:] = _on(inside, lambda z, y, x: (z & y & x).astype(np.float64))
        return self.field("valid")

    def _places(self, offset: float) -> NDArray[Any]:
        """Coordinates of the cells of each box and their ghosts along any axis: (boxes, cells with ghosts)."""
        cells = np.arange(self.shape.boxes)[:, None] * self.shape.side + np.arange(-1, self.shape.side + 1)
        return (cells + offset) / self.shape.cells


def _at(axis: int, part: slice) -> tuple[Any, ...]:
    """Of boxes with ghosts the cells beside the inner ones along an axis."""
    return (..., *(part if axis == other else _INNER for other in range(3)))


def _on(places: list[NDArray[Any]], function: Callable[..., NDArray[Any]]) -> NDArray[Any]:
    """A function of z, y and x on all boxes."""
    z, y, x = places
    found: NDArray[Any] = function(
        z[:, None, None, :, None, None], y[None, :, None, None, :, None], x[None, None, :, None, None, :]
    )
    return found


def beta(z: NDArray[Any], y: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """The coefficient of the flow, from 0.5 to 1.5."""
    found: NDArray[Any] = 1.0 + 0.5 * np.sin(2 * pi * z) * np.sin(2 * pi * y) * np.sin(2 * pi * x)
    return found


def solution(z: NDArray[Any], y: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """The solution that the right side is made from; zero on the domain's faces."""
    found: NDArray[Any] = np.sin(pi * z) * np.sin(2 * pi * y) * np.sin(3 * pi * x)
    return found


def right_side(z: NDArray[Any], y: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """The operator on `solution`, by calculus: a u - b (grad beta . grad u + beta laplace u)."""
    u, places = solution(z, y, x), (z, y, x)
    found: NDArray[Any] = A * u + B * 14 * pi**2 * beta(*places) * u
    for axis, waves in enumerate((1, 2, 3)):
        sines = [np.sin(2 * pi * place) for place in places]
        sines[axis] = np.cos(2 * pi * places[axis])
        slope = 0.5 * 2 * pi * sines[0] * sines[1] * sines[2]
        parts = [np.sin(number * pi * place) for number, place in zip((1, 2, 3), places, strict=True)]
        parts[axis] = waves * pi * np.cos(waves * pi * places[axis])
        found = found - B * slope * parts[0] * parts[1] * parts[2]
    return found
