"""Geometric multigrid for finite volumes on boxes of cells: V-cycles with full weighting.

Similar to FF_HPGMG (HPGMG-FV, Adams et al., LBNL-6630E): solves a u - b div(beta grad u) = f on the unit cube with
u = 0 on its faces, with variable coefficients, second-order cells in boxes, and red-black Gauss-Seidel. The coarser
level receives the residual as the mean of eight cells; the correction is interpolated trilinearly.

A level is one allocation of boxes. The fields of a box are stored one after another, each with a layer of ghost cells
and padded to full memory-entries, as HPGMG-FV pads a box's volume to 64 bytes. So the kind of data in memory changes
every few kilobytes.

The coefficients are computed from sines, whose last bits may differ between processors; so may the last bits of all
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import pi
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import InputError
from simgpu.trace.model import AccessOrder
from simgpu.workloads.solvers.solver import Solver, State, check_size
from simgpu.workloads.solvers.work import ENTRY_BYTES, SECTOR_BYTES, Array, KernelWork, Touch
from simgpu.workloads.timemodel.operation import OperationKind

#: Smoothing sweeps before and after the coarser level's correction, and on the coarsest level.
_SWEEPS, _BOTTOM_SWEEPS = 2, 20
#: Cells per side of the coarsest level, and of the smallest box on other levels.
_COARSEST, _LEAST_BOX = 2, 4
#: The fields that an application of the operator reads.
_OPERATOR = ("u", "alpha", "beta_x", "beta_y", "beta_z")
#: Operations per cell: for A u (along each axis two differences, two products, two sums; the other term 2, the scale
#: 1, the difference 1); in addition for a smoothing step, counted only for the cells it changes, every second one; for
#: an interpolation (seven sums and eight products) and its sum.
_APPLY_FLOPS, _SMOOTH_FLOPS, _INTERPOLATE_FLOPS = 3 * 6 + 4, 3, 7 + 8 + 1


@dataclass(frozen=True)
class Multigrid(Solver):
    """V-cycles on `size` cells per side, a power of two, in boxes of `box` cells per side.

    >>> solver = Multigrid(size=16, box=8, steps=4)
    >>> norms = [solver.residual(state) for state in solver.states()]
    >>> norms[3] < 0.01 * norms[0]
    True
    """

    name: ClassVar[str] = "multigrid"
    like: ClassVar[str] = "FF_HPGMG"
    what: ClassVar[str] = "multigrid V-cycles for finite volumes, several fields in one allocation"
    measure: ClassVar[str] = "cells a side"
    usual_size: ClassVar[int] = 32
    smallest_size: ClassVar[int] = 8

    size: int = usual_size
    box: int = 16
    steps: int = 10

    def __post_init__(self) -> None:
        check_size(type(self), self.size)
        if self.size & (self.size - 1):
            near = 1 << (self.size.bit_length() - 1)
            what, remedy = f"{self.size} is not a power of two", f"use for example {near} or {2 * near}"
            raise InputError.single(self.name, "size", what, remedy)
        if self.box < _LEAST_BOX or self.box & (self.box - 1):
            remedy = f"use a power of two, at least {_LEAST_BOX}"
            raise InputError.single(self.name, "box", f"{self.box} cells per side is not a supported box size", remedy)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the levels, finest first: boxes shrink with the level, and are joined when they get small."""
        cells, side = self.size, min(self.box, self.size)
        result = []
        while cells >= _COARSEST:
            result.append(Shape(cells // side, side))
            cells //= 2
            side = min(cells, max(_LEAST_BOX, side // 2))
        return tuple(result)

    def arrays(self) -> dict[str, Array]:
        """One allocation per level."""
        return {f"level{number}": Array(shape.shape, "float64") for number, shape in enumerate(self.shapes)}

    def states(self) -> Iterator[State]:
        """Yields the state after each V-cycle, starting from u = 0."""
        levels = [Level(shape) for shape in self.shapes]
        finest = levels[0]
        centres = (np.arange(self.size) + 0.5) / self.size
        places = (centres[:, None, None], centres[:, None], centres)
        finest.put("true", solution(*places))
        finest.put("rhs", right_side(*places))
        state: State = {f"level{number}": level.data for number, level in enumerate(levels)}
        for _ in range(self.steps):
            _cycle(levels)
            finest.set_residual()
            yield state

    def residual(self, state: State) -> float:
        """The root mean square of the residual on the finest level."""
        return _root_mean_square(self.shapes[0].inner(state["level0"], "residual"))

    def error(self, state: State) -> float:
        """The root mean square of the difference between u and the solution of the continuous problem."""
        u, true = (self.shapes[0].inner(state["level0"], name) for name in ("u", "true"))
        return _root_mean_square(u - true)

    def work(self) -> tuple[KernelWork, ...]:
        """Kernels of one V-cycle, down to the coarsest level and up again, and of the finest level's residual."""
        arrays, shapes = self.arrays(), self.shapes
        down: list[KernelWork] = []
        up: list[KernelWork] = []
        for number, shape in enumerate(shapes[:-1]):
            here, below = _Kernels(f"level{number}", shape), _Kernels(f"level{number + 1}", shapes[number + 1])
            down += [*here.smooth(_SWEEPS), *here.residual(), here.restrict(below), below.clear()]
            up = [below.exchange(), here.interpolate(below), *here.smooth(_SWEEPS), *up]
        bottom = _Kernels(f"level{len(arrays) - 1}", shapes[-1])
        return (*down, bottom.solve(), *up, *_Kernels("level0", shapes[0]).residual())

    def reference(self) -> Multigrid:
        """2.09 GB."""
        return Multigrid(size=256, box=32, steps=self.steps)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The kernels on one level; `name` is the name of its array."""

    name: str
    shape: Shape

    def smooth(self, sweeps: int) -> list[KernelWork]:
        flops = self.cells // 2 * (_APPLY_FLOPS + _SMOOTH_FLOPS)
        kernel = KernelWork("smooth", OperationKind.ELEMENTWISE, flops, self.cells // 2, True, self._relaxation())
        return [self.exchange(), kernel] * (2 * sweeps)

    def residual(self) -> list[KernelWork]:
        flops = self.cells * (_APPLY_FLOPS + 1)
        touches = (self.fields(False, "rhs", *_OPERATOR), self.fields(True, "residual"))
        return [self.exchange(), KernelWork("residual", OperationKind.ELEMENTWISE, flops, self.cells, True, touches)]

    def restrict(self, below: _Kernels) -> KernelWork:
        touches = (self.fields(False, "residual"), below.fields(True, "rhs"))
        return KernelWork("restrict", OperationKind.ELEMENTWISE, self.cells, below.cells, True, touches)

    def clear(self) -> KernelWork:
        return KernelWork("clear", OperationKind.ELEMENTWISE, 0, self.cells, True, (self.fields(True, "u"),))

    def interpolate(self, below: _Kernels) -> KernelWork:
        touches = (below.fields(False, "u"), self.fields(False, "u"), self.fields(True, "u"))
        flops = self.cells * _INTERPOLATE_FLOPS
        return KernelWork("interpolate", OperationKind.ELEMENTWISE, flops, self.cells, True, touches)

    def solve(self) -> KernelWork:
        """All sweeps in one kernel, which holds the few cells on the chip."""
        flops = self.cells * (_APPLY_FLOPS + _SMOOTH_FLOPS) * _BOTTOM_SWEEPS
        return KernelWork("bottom", OperationKind.ELEMENTWISE, flops, self.cells, True, self._relaxation())

    def exchange(self) -> KernelWork:
        """The copy of the six faces of each box: accesses every entry of u, with the rounded mean of sectors in use.

        For rows of at most two or three entries, most entries of the field contain an end of a row.
        """
        cells = (self.fields(False, "u"), self.shape.sectors_of_faces(1, -2))
        ghosts = (self.fields(True, "u"), self.shape.sectors_of_faces(0, -1))
        touches = tuple(
            replace(touch, sectors=max(1, round(sectors / self.shape.entries))) for touch, sectors in (cells, ghosts)
        )
        return KernelWork(
            "exchange", OperationKind.COPY, 0, 6 * self.shape.side**2 * self.shape.boxes**3, True, touches
        )

    @property
    def cells(self) -> int:
        return self.shape.cells**3

    def fields(self, write: bool, *names: str) -> Touch:
        """The access to complete, contiguous fields of every box, including ghosts.

        Each thread block processes complete boxes, and blocks run concurrently. So all boxes are accessed in step, with
        a stride of one box.
        """
        at, each = FIELDS.index(names[0]), self.shape.entries
        assert FIELDS[at : at + len(names)] == names
        visits = self.shape.boxes**3 * len(names) * each
        return Touch(self.name, write, visits, AccessOrder.STRIDED, stride=len(FIELDS) * each, first=at * each)

    def _relaxation(self) -> tuple[Touch, ...]:
        return self.fields(False, "rhs", *_OPERATOR, "dinv"), self.fields(True, "u")


def _cycle(levels: list[Level]) -> None:
    here, *below = levels
    if not below:
        here.smooth(_BOTTOM_SWEEPS)
        return
    here.smooth(_SWEEPS)
    here.set_residual()
    below[0].put("rhs", _mean_of_eight(here.as_cube("residual")))
    below[0].field("u")[:] = 0.0
    _cycle(below)
    here.put("u", here.as_cube("u") + _interpolated(below[0].as_cube("u")))
    here.smooth(_SWEEPS)


def _mean_of_eight(fine: Doubles) -> Doubles:
    pairs = fine.reshape([part for side in fine.shape for part in (side // 2, 2)])
    # Sum one axis after another, so that the order of sums is fixed.
    result: Doubles = 0.125 * np.add.reduce(np.add.reduce(np.add.reduce(pairs, axis=5), axis=3), axis=1)
    return result


def _interpolated(coarse: Doubles) -> Doubles:
    """Linear interpolation along each axis: three quarters of the cell itself, a quarter of the nearer neighbour."""
    for axis in range(3):
        cells = np.moveaxis(coarse, axis, 0)
        lower = np.concatenate([-cells[:1], cells[:-1]])
        upper = np.concatenate([cells[1:], -cells[-1:]])
        fine = np.stack([0.75 * cells + 0.25 * lower, 0.75 * cells + 0.25 * upper], axis=1)
        coarse = np.moveaxis(fine.reshape(-1, *cells.shape[1:]), 0, axis)
    return coarse


def _root_mean_square(values: Doubles) -> float:
    return float(np.sqrt(np.add.reduce(np.ascontiguousarray(values).reshape(-1) ** 2) / values.size))


Doubles = NDArray[np.float64]

#: The fields of a box in order. temp: the operator's result; true: the solution from which the right-hand side is
#: computed; alpha, beta: coefficients, beta at the lower face of a cell; dinv: one over the operator's diagonal; valid:
#: 1 in the domain.
FIELDS = ("temp", "true", "residual", "rhs", "u", "alpha", "beta_x", "beta_y", "beta_z", "dinv", "valid")
#: Weights of both terms of the operator a alpha u - b div(beta grad u).
A = B = 1.0
_INNER = slice(1, -1)
_LOWER, _UPPER = slice(0, -2), slice(2, None)
_BETAS = ("beta_z", "beta_y", "beta_x")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a level: `boxes` boxes per side, with `side` cells per side each.

    >>> Shape(2, 16).cells, Shape(2, 16).shape, Shape(2, 16).entries
    (32, (2, 2, 2, 11, 5840), 365)
    """

    boxes: int
    side: int

    @property
    def cells(self) -> int:
        """Cells per side of the level."""
        return self.boxes * self.side

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the level's array: boxes along z, y, x; fields; cells with ghosts, x fastest, and padding."""
        return (*(self.boxes,) * 3, len(FIELDS), self.entries * ENTRY_BYTES // 8)

    @property
    def entries(self) -> int:
        """Memory-entries of a field in a box."""
        return -(-((self.side + 2) ** 3) * 8 // ENTRY_BYTES)

    def field(self, data: Doubles, name: str) -> Doubles:
        """A view of a field in a level's array, with ghosts: boxes along z, y, x, then cells along z, y, x."""
        cells = data[..., FIELDS.index(name), : (self.side + 2) ** 3]
        return cells.reshape(*cells.shape[:3], *(self.side + 2,) * 3)

    def inner(self, data: Doubles, name: str) -> Doubles:
        """A view of a field without its ghosts."""
        return self.field(data, name)[..., _INNER, _INNER, _INNER]

    def sectors_of_faces(self, low: int, high: int) -> int:
        """Sectors of a field in a box that contain a cell of its six faces, which are cells `low` and `high` of a side.

        >>> Shape(1, 2).sectors_of_faces(1, -2), Shape(1, 2).sectors_of_faces(0, -1)
        (4, 12)
        """
        cells = np.zeros((self.side + 2,) * 3, bool)
        for axis in range(3):
            np.moveaxis(cells, axis, 0)[[low, high], _INNER, _INNER] = True
        return len(np.unique(np.flatnonzero(cells) * 8 // SECTOR_BYTES))


class Level:
    """One level: its array, and one method per GPU kernel."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.data: Doubles = np.zeros(shape.shape)
        self._per_area = float(shape.cells) ** 2
        side = np.arange(shape.side)
        parity = (side[:, None, None] + side[:, None] + side) % 2
        self._colours = tuple((parity == colour).astype(np.float64) for colour in (0, 1))
        self._set_coefficients()

    def field(self, name: str) -> Doubles:
        """A view of a field with ghosts: boxes along z, y, x, then cells along z, y, x."""
        return self.shape.field(self.data, name)

    def inner(self, name: str) -> Doubles:
        """A view of a field without its ghosts."""
        return self.shape.inner(self.data, name)

    def as_cube(self, name: str) -> Doubles:
        """A copy of a field as one cube."""
        return self.inner(name).transpose(0, 3, 1, 4, 2, 5).reshape((self.shape.cells,) * 3)

    def put(self, name: str, cube: Doubles) -> None:
        """Sets a field from one cube."""
        boxes, side = self.shape.boxes, self.shape.side
        self.inner(name)[:] = cube.reshape(boxes, side, boxes, side, boxes, side).transpose(0, 2, 4, 1, 3, 5)

    def exchange(self) -> None:
        """Sets the ghosts of u: cells of the neighbour box, or beyond the domain the values for u = 0 on its face."""
        u = self.field("u")
        for axis in range(3):
            boxes, cells = np.moveaxis(u, axis, 0), 3 + axis
            low, high = (np.moveaxis(boxes, cells, 1)[:, index] for index in (0, -1))
            first, last = (np.moveaxis(boxes, cells, 1)[:, index] for index in (1, -2))
            low[1:], high[:-1] = last[:-1], first[1:]
            low[0], high[-1] = -first[0], -last[-1]

    def apply(self) -> None:
        """Sets temp = A u, from u and its ghosts."""
        u, result = self.field("u"), self.inner("temp")
        here = self.inner("u")
        flow = np.zeros_like(here)
        for axis, name in enumerate(_BETAS):
            beta = self.field(name)
            flow += beta[_at(axis, _UPPER)] * (u[_at(axis, _UPPER)] - here)
            flow -= beta[_at(axis, _INNER)] * (here - u[_at(axis, _LOWER)])
        result[:] = A * self.inner("alpha") * here - B * self._per_area * flow

    def smooth(self, sweeps: int) -> None:
        """Gauss-Seidel sweeps, red cells before black ones."""
        for _ in range(sweeps):
            for colour in self._colours:
                self.exchange()
                self.apply()
                change = colour * self.inner("dinv") * (self.inner("rhs") - self.inner("temp"))
                self.inner("u")[:] += change

    def set_residual(self) -> None:
        """Sets residual = rhs - A u."""
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
        """Sets and returns `valid`: 1 for cells and ghosts inside the domain."""
        inside = [(place > 0) & (place < 1) for place in (self._places(0.5),) * 3]
        self.field("valid")[:] = _on(inside, lambda z, y, x: (z & y & x).astype(np.float64))
        return self.field("valid")

    def _places(self, offset: float) -> NDArray[Any]:
        """Coordinates of the cells of each box and their ghosts along any axis: (boxes, cells with ghosts)."""
        cells = np.arange(self.shape.boxes)[:, None] * self.shape.side + np.arange(-1, self.shape.side + 1)
        return (cells + offset) / self.shape.cells


def _at(axis: int, part: slice) -> tuple[Any, ...]:
    """The index of the inner cells of boxes with ghosts, shifted by one cell along an axis for `_LOWER` or `_UPPER`."""
    return (..., *(part if axis == other else _INNER for other in range(3)))


def _on(places: list[NDArray[Any]], function: Callable[..., NDArray[Any]]) -> NDArray[Any]:
    """Evaluates a function of z, y and x on all boxes."""
    z, y, x = places
    result: NDArray[Any] = function(
        z[:, None, None, :, None, None], y[None, :, None, None, :, None], x[None, None, :, None, None, :]
    )
    return result


def beta(z: NDArray[Any], y: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """The coefficient of the flow, from 0.5 to 1.5."""
    result: NDArray[Any] = 1.0 + 0.5 * np.sin(2 * pi * z) * np.sin(2 * pi * y) * np.sin(2 * pi * x)
    return result


def solution(z: NDArray[Any], y: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """The exact solution, from which the right-hand side is computed; zero on the domain's faces."""
    result: NDArray[Any] = np.sin(pi * z) * np.sin(2 * pi * y) * np.sin(3 * pi * x)
    return result


def right_side(z: NDArray[Any], y: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """The operator applied to `solution`, analytically: a u - b (grad beta . grad u + beta laplace u)."""
    u, places = solution(z, y, x), (z, y, x)
    result: NDArray[Any] = A * u + B * 14 * pi**2 * beta(*places) * u
    for axis, waves in enumerate((1, 2, 3)):
        sines = [np.sin(2 * pi * place) for place in places]
        sines[axis] = np.cos(2 * pi * places[axis])
        slope = 0.5 * 2 * pi * sines[0] * sines[1] * sines[2]
        parts = [np.sin(number * pi * place) for number, place in zip((1, 2, 3), places, strict=True)]
        parts[axis] = waves * pi * np.cos(waves * pi * places[axis])
        result = result - B * slope * parts[0] * parts[1] * parts[2]
    return result
