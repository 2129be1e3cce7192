"""Flow through a porous medium by the lattice Boltzmann method, on a list of fluid sites.

Similar to 360.ilbdc: D3Q19 in double precision with two relaxation times (Ginzburg, Verhaeghe and d'Humieres 2008) and
a constant force. Values are stored for fluid sites only. A table contains the source of the value for each site and
direction. Two copies of the values alternate: a step reads one and writes the other. Sites are listed brick by brick,
so that neighbours in all directions are close in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.model import AccessOrder
from simgpu.workloads.solvers import nas_random
from simgpu.workloads.solvers.solver import Solver, State, check_size
from simgpu.workloads.solvers.work import ENTRY_BYTES, SECTOR_BYTES, Array, KernelWork, Touch, entries_of, once
from simgpu.workloads.timemodel.operation import OperationKind

#: The directions (z, y, x) of D3Q19: rest first, then each direction followed by its opposite.
DIRECTIONS = (
    (0, 0, 0),
    *(
        signed
        for d in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (0, 1, -1), (1, 0, 1), (1, 0, -1), (1, 1, 0), (1, -1, 0))
        for signed in (d, tuple(-part for part in d))
    ),
)
#: Index of the opposite of each direction.
OPPOSITE = tuple(DIRECTIONS.index(tuple(-part for part in d)) for d in DIRECTIONS)
#: Sites per side of a brick.
BRICK = 4
#: Threads per block, one per site; simultaneous requests of a block for one memory-entry cause one memory access.
THREADS = 128
_SEED = 271828183

Fluid = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Requests:
    """Memory requests of all thread blocks when they pull all values: accesses to entries, and requested sectors."""

    visits: int
    sectors: int


def spheres(side: int, solid: float) -> Fluid:
    """A periodic cube with random solid spheres, which make up at least the fraction `solid`; True where fluid.

    Spheres may overlap. Their diameter is a seventh of the side, at least four sites.

    >>> round(float(spheres(16, 0.3).mean()), 3)
    0.696
    """
    radius = max(2.0, side / 14)
    fluid = np.ones((side,) * 3, bool)
    places = np.arange(side)
    seed = _SEED
    while fluid.mean() > 1 - solid:
        seeds = nas_random.sequence(seed, 3)
        seed = int(seeds[-1])
        away = [np.abs(places - centre) for centre in nas_random.uniform(seeds) * side]
        z, y, x = (np.minimum(one, side - one) ** 2 for one in away)
        fluid &= z[:, None, None] + y[:, None] + x > radius**2
    return fluid


def listed(fluid: Fluid) -> NDArray[np.int64]:
    """The index of each site in the list of fluid sites, -1 if solid; ordered by brick, then by plane."""
    sides = fluid.shape
    z, y, x = (np.arange(side) for side in sides)
    brick = ((z // BRICK)[:, None, None] * -(-sides[1] // BRICK) + (y // BRICK)[:, None]) * -(-sides[2] // BRICK)
    brick = brick + x // BRICK
    within = ((z % BRICK)[:, None, None] * BRICK + (y % BRICK)[:, None]) * BRICK + x % BRICK
    order = np.argsort((brick * BRICK**3 + within).reshape(-1), kind="stable")
    order = order[fluid.reshape(-1)[order]]
    numbers = np.full(fluid.size, -1, np.int64)
    numbers[order] = np.arange(order.size)
    return numbers.reshape(sides)


def sources(fluid: Fluid) -> NDArray[np.int32]:
    """The source of each value: for each direction except rest and each site, an index into all values.

    Values are ordered by direction. If the source is solid, the value is that of the opposite direction at the site
    itself, bounced back from a wall half a link away. The geometry is periodic. Shape (18, sites).
    """
    numbers = listed(fluid)
    place = np.nonzero(fluid)
    order = np.argsort(numbers[place])
    z, y, x = (axis[order] for axis in place)
    sites = order.size
    table = np.empty((len(DIRECTIONS) - 1, sites), np.int32)
    for number, (dz, dy, dx) in enumerate(DIRECTIONS[1:], start=1):
        sides = fluid.shape
        origin = numbers[(z - dz) % sides[0], (y - dy) % sides[1], (x - dx) % sides[2]]
        own = OPPOSITE[number] * sites + np.arange(sites)
        table[number - 1] = np.where(origin >= 0, number * sites + origin, own)
    return table


def requests(table: NDArray[np.int32], itemsize: int = 8) -> Requests:
    """Memory requests of blocks of `THREADS` threads when each thread pulls its site's values, by direction.

    >>> requests(np.arange(256, dtype=np.int32).reshape(1, 256))
    Requests(visits=16, sectors=64)
    """
    directions, sites = table.shape
    block = np.arange(directions)[:, None] * sites + np.arange(sites) // THREADS
    at = table.astype(np.int64) * itemsize
    result = [
        np.unique(np.stack([block.reshape(-1), (at // grain).reshape(-1)]), axis=1).shape[1]
        for grain in (ENTRY_BYTES, SECTOR_BYTES)
    ]
    return Requests(*result)


def channel(side: int, height: int) -> Fluid:
    """A flat channel between two walls, periodic along y and x; `height` planes of fluid.

    >>> channel(4, 5).shape, int(channel(4, 5).sum())
    ((6, 4, 4), 80)
    """
    fluid = np.ones((height + 1, side, side), bool)
    fluid[0] = False
    return fluid


#: Weights of the directions: rest, along an axis, diagonal.
WEIGHTS = tuple((1 / 3, 1 / 18, 1 / 36)[sum(map(abs, d))] for d in DIRECTIONS)
#: The product of both relaxation parameters for which a wall is exactly half a link away.
_MAGIC = 3 / 16
_SOLID = 0.35
#: Operations per site: density (18 sums), momentum (27 sums and half the force), velocity (3 divisions), squared
#: velocity term (6), rest (6). For each of the 9 direction pairs: c.u (1; one more sum for 6 diagonals), weighted
#: density (1), even and odd part of the equilibrium (6), relaxation of both (8; one more for 5 pairs with a force
#: term), two results (4).
FLOPS = 18 + 28 + 3 + 6 + 6 + 9 * (1 + 1 + 6 + 8 + 4) + 6 + 5


@dataclass(frozen=True, eq=False)
class Lattice(Solver):
    """Flow along x through overlapping spheres in a periodic cube of `size` sites per side.

    tiles: copies of the cube along z, y and x.
    viscosity, force: in lattice units.
    geometry: a periodic geometry to use instead of the spheres; True where fluid.

    >>> solver = Lattice(size=8, steps=4)
    >>> *_, last = solver.states()
    >>> bool(abs(last["values_even"].sum() - solver.sites) < 1e-9)
    True
    """

    name: ClassVar[str] = "lbm"
    like: ClassVar[str] = "360.ilbdc"
    what: ClassVar[str] = "lattice Boltzmann flow through a porous medium, on a list of fluid sites"
    measure: ClassVar[str] = "sites a side"
    usual_size: ClassVar[int] = 32
    smallest_size: ClassVar[int] = 8

    size: int = usual_size
    steps: int = 200
    tiles: tuple[int, int, int] = (1, 1, 1)
    viscosity: float = 0.1
    force: float = 1e-5
    geometry: Fluid | None = None

    def __post_init__(self) -> None:
        check_size(type(self), self.size, multiple_of=BRICK)

    @property
    def scale(self) -> str:
        """Sites along x, y and z."""
        return " x ".join(str(self.size * tiles) for tiles in self.tiles) + " sites"

    @cached_property
    def tile(self) -> Fluid:
        """One tile of the geometry."""
        return spheres(self.size, _SOLID) if self.geometry is None else self.geometry

    @property
    def sites(self) -> int:
        """Fluid sites of all tiles."""
        return int(self.tile.sum()) * int(np.prod(self.tiles))

    def arrays(self) -> dict[str, Array]:
        """Values before even and before odd steps, ordered by direction, and the table of their sources."""
        directions, sites = len(DIRECTIONS), self.sites
        return {
            "values_even": Array((directions, sites), "float64"),
            "values_odd": Array((directions, sites), "float64"),
            "sources": Array((directions - 1, sites), "int32"),
        }

    def states(self) -> Iterator[State]:
        """Yields the state after each step, starting at rest."""
        table = sources(np.tile(self.tile, self.tiles))
        values = np.repeat(np.array(WEIGHTS)[:, None], table.shape[1], axis=1)
        state: State = {"values_even": values, "values_odd": np.zeros_like(values), "sources": table}
        for step in range(self.steps):
            before, after = ("values_odd", "values_even") if step % 2 else ("values_even", "values_odd")
            self._advance(state[before], table, state[after])
            yield state

    def velocity(self, values: NDArray[Any]) -> NDArray[Any]:
        """Velocity along x at each site, in lattice units. values: state after a step, before propagation."""
        along = np.array([direction[2] for direction in DIRECTIONS], np.float64)
        # A step adds the full momentum of the force; the velocity is defined at half of it.
        momentum: NDArray[Any] = np.add.reduce(along[:, None] * values) - self.force / 2
        result: NDArray[Any] = momentum / np.add.reduce(values)
        return result

    def work(self) -> tuple[KernelWork, ...]:
        """Kernels: a step from the even values to the odd ones, and a step back.

        Values are pulled by direction, so the parts of the array for all directions are accessed concurrently. The
        simultaneous requests of a block for one entry cause one memory access; other blocks access it again. Accesses
        and sectors are counted for one tile, and the mean number of sectors per access is rounded.
        """
        arrays = self.arrays()
        result = requests(sources(self.tile))
        tiles = int(np.prod(self.tiles))
        rest = entries_of(8 * self.sites)
        visits, sectors = result.visits * tiles + rest, result.sectors * tiles + 4 * rest
        requested = max(1, round(sectors / visits))
        pull = Touch("", False, round(sectors / requested), AccessOrder.STRIDED, requested, stride=rest)

        def step(before: str, after: str) -> KernelWork:
            own = Touch(before, False, pull.visits, pull.order, pull.sectors, pull.stride)
            touches = (own, *once(arrays, ["sources"], [after]))
            results = len(DIRECTIONS) * self.sites
            return KernelWork("stream_collide", OperationKind.GATHER, FLOPS * self.sites, results, True, touches)

        return step("values_even", "values_odd"), step("values_odd", "values_even")

    def reference(self) -> Lattice:
        """The number of tiles closest to 1.94 GB, added along x, y and z in turn."""
        one = Lattice(size=self.size).bytes
        tiles = [1, 1, 1]
        axis = 2
        while (tiles[0] * tiles[1] * tiles[2]) * one * (1 + 0.5 / tiles[axis]) < 1.94e9:
            tiles[axis] += 1
            axis = (axis - 1) % 3
        return Lattice(size=self.size, steps=self.steps, tiles=(tiles[0], tiles[1], tiles[2]))

    def _advance(self, before: NDArray[Any], table: NDArray[np.int32], after: NDArray[Any]) -> None:
        """Pull values, then relax the even and odd parts of opposite directions, each with its own rate."""
        flat = before.reshape(-1)
        values = np.empty_like(before)
        values[0] = before[0]
        np.take(flat, table, out=values[1:])
        density = np.add.reduce(values)
        momentum = [_moment(values, axis) for axis in range(3)]
        momentum[2] += self.force / 2
        velocity = [part / density for part in momentum]
        square = 1.5 * (velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2)
        even_rate = 1 / (3 * self.viscosity + 0.5)
        odd_rate = 1 / (_MAGIC / (1 / even_rate - 0.5) + 0.5)
        after[0] = values[0] + even_rate * (WEIGHTS[0] * density * (1 - square) - values[0])
        for number in range(1, len(DIRECTIONS), 2):
            other, direction = OPPOSITE[number], DIRECTIONS[number]
            along = 3 * _along(velocity, direction)
            weighted = WEIGHTS[number] * density
            even = weighted * (1 + 0.5 * along**2 - square)
            odd = weighted * along
            even_change = even_rate * (even - 0.5 * (values[number] + values[other]))
            odd_change = odd_rate * (odd - 0.5 * (values[number] - values[other]))
            odd_change += (1 - 0.5 * odd_rate) * 3 * WEIGHTS[number] * direction[2] * self.force
            after[number] = values[number] + even_change + odd_change
            after[other] = values[other] + even_change - odd_change


def _moment(values: NDArray[Any], axis: int) -> NDArray[Any]:
    result: NDArray[Any] = np.zeros_like(values[0])
    for number, direction in enumerate(DIRECTIONS):
        if direction[axis]:
            result += direction[axis] * values[number]
    return result


def _along(velocity: list[NDArray[Any]], direction: tuple[int, ...]) -> NDArray[Any]:
    parts = [sign * part for sign, part in zip(direction, velocity, strict=True) if sign]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]
