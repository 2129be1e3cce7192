"""The geometry of flow through a porous medium, as a list of fluid sites and their neighbours.

Codes for sparse geometries keep values of fluid sites alone, one after another, and a table that tells for each site
and direction where the value comes from. Sites are listed brick by brick, so that neighbours in all directions lie near
each other in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.workloads.solvers import nas_random
from simgpu.workloads.solvers.work import ENTRY_BYTES, SECTOR_BYTES

#: The directions (z, y, x) of D3Q19, rest first, each beside its opposite.
DIRECTIONS = (
    (0, 0, 0),
    *(
        signed
        for d in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (0, 1, -1), (1, 0, 1), (1, 0, -1), (1, 1, 0), (1, -1, 0))
        for signed in (d, tuple(-part for part in d))
    ),
)
#: Of each direction its opposite.
OPPOSITE = tuple(DIRECTIONS.index(tuple(-part for part in d)) for d in DIRECTIONS)
#: Sites a side of a brick.
BRICK = 4
#: Threads of a block, one for each site; what they ask for of one entry at a time comes from memory once.
THREADS = 128
_SEED = 271828183

Fluid = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Requests:
    """What thread blocks ask of memory when they pull all values: visits to entries, and sectors asked in them."""

    visits: int
    sectors: int


def spheres(side: int, solid: float) -> Fluid:
    """A periodic cube with solid spheres placed at random until at least `solid` of it is solid; True where fluid.

    Spheres overlap and have a seventh of the side as diameter, at least four sites.

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
    """The number of every site in the list of fluid sites, -1 where solid: brick by brick, in each plane by plane."""
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
    """Where each value comes from: for each direction but rest and each site, a place in the values of all directions.

    Values are listed direction by direction. One that would come out of a solid is the opposite one of the site itself,
    thrown back at the wall half a link away. The geometry is periodic. Shape (18, sites).
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
    """What blocks of `THREADS` threads ask for, direction by direction, when each pulls its site's values.

    >>> requests(np.arange(256, dtype=np.int32).reshape(1, 256))
    Requests(visits=16, sectors=64)
    """
    directions, sites = table.shape
    block = np.arange(directions)[:, None] * sites + np.arange(sites) // THREADS
    at = table.astype(np.int64) * itemsize
    found = [
        np.unique(np.stack([block.reshape(-1), (at // grain).reshape(-1)]), axis=1).shape[1]
        for grain in (ENTRY_BYTES, SECTOR_BYTES)
    ]
    return Requests(*found)


def channel(side: int, height: int) -> Fluid:
    """A flat channel between two walls, periodic along y and x; `height` planes of fluid.

    >>> channel(4, 5).shape, int(channel(4, 5).sum())
    ((6, 4, 4), 80)
    """
    fluid = np.ones((height + 1, side, side), bool)
    fluid[0] = False
    return fluid
