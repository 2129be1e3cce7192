"""Kernels of the multigrid access the fields that the algorithm uses, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
import pytest

from simgpu.compression.buddy.streams import EntryAccesses, stream_of
from simgpu.compression.codecs.entries import ENTRY_BYTES, SECTOR_BYTES
from simgpu.machine.page_accesses import pages_of
from simgpu.workloads.solvers.multigrid import FIELDS, Level, Multigrid, Shape, _cycle
from simgpu.workloads.solvers.work import Touch

#: Levels of eight boxes, eight smaller ones, one, and one that is smaller still.
SOLVER = Multigrid(size=16, box=8)
SHAPES = dict(zip(SOLVER.arrays(), SOLVER.shapes, strict=True))

OPERATOR = {"u", "alpha", "beta_x", "beta_y", "beta_z"}
#: What a kernel reads and writes on its level, and on the one below it.
USED = {
    "exchange": ({"u"}, {"u"}, set(), set()),
    "smooth": ({"rhs", "dinv", *OPERATOR}, {"u"}, set(), set()),
    "bottom": ({"rhs", "dinv", *OPERATOR}, {"u"}, set(), set()),
    "residual": ({"rhs", *OPERATOR}, {"residual"}, set(), set()),
    "restrict": ({"residual"}, set(), set(), {"rhs"}),
    "clear": (set(), {"u"}, set(), set()),
    "interpolate": ({"u"}, {"u"}, {"u"}, set()),
}

#: A field of a box: the box's number in the level, counted as they lie, and the field's name.
Place = tuple[int, str]


def entries_at(shape: Shape, places: Iterable[Place]) -> set[int]:
    """The entries that contain a cell of these fields, cell by cell."""
    volume = shape.shape[-1]
    return {
        ((box * len(FIELDS) + FIELDS.index(name)) * volume + cell) * 8 // ENTRY_BYTES
        for box, name in places
        for cell in range((shape.side + 2) ** 3)
    }


def walk_of(touch: Touch) -> EntryAccesses:
    entries = SOLVER.arrays()[touch.array].entries
    return EntryAccesses(
        0, entries, touch.write, touch.order, touch.sectors, touch.visits, touch.stride, begin=touch.first
    )


def check(touches: Iterable[Touch], entries: set[int]) -> None:
    """The accesses visit these entries, their metadata lines, and their pages."""
    walks = [walk_of(touch) for touch in touches]
    for each in (1, 4, 64):
        expected = {entry // each for entry in entries}
        assert set(stream_of(walks, each).lines.tolist()) == expected
        assert {page for walk in walks for page in pages_of(walk, ENTRY_BYTES * each).tolist()} == expected


@pytest.mark.parametrize("number", range(len(SOLVER.work())))
def test_a_kernel_visits_each_entry_of_its_fields_once(number: int) -> None:
    work = SOLVER.work()[number]
    here, below = {touch.array for touch in work.touches}, set[str]()
    if work.op in ("restrict", "interpolate"):
        here, below = {min(here)}, {max(here)}
    reads, writes, reads_below, writes_below = USED[work.op]
    result = {(touch.array, touch.write): touch for touch in work.touches}
    expected = {
        (array, write): names
        for arrays, both in ((here, (reads, writes)), (below, (reads_below, writes_below)))
        for array in arrays
        for write, names in zip((False, True), both, strict=True)
        if names
    }
    assert result.keys() == expected.keys()
    for (array, write), names in expected.items():
        shape, touch = SHAPES[array], result[array, write]
        entries = entries_at(shape, product(range(shape.boxes**3), names))
        check([touch], entries)
        assert touch.visits == len(entries)


def touched(levels: list[Level], number: int) -> Iterator[Place]:
    """Fields of a level that a V-cycle writes or depends on, found by setting each to NaN."""
    before = [level.data.copy() for level in levels]
    for box, (field, name) in product(np.ndindex(levels[number].data.shape[:3]), enumerate(FIELDS)):
        for level, data in zip(levels, before, strict=True):
            level.data[:] = data
        place = levels[number].data[(*box, field)]
        place[:] = np.nan
        _cycle(levels)
        levels[0].set_residual()
        written = not np.isnan(place).all()
        place[:] = 0
        # The operator's result is made where it is used: it stays on the chip.
        if name != "temp" and (written or any(np.isnan(level.data).any() for level in levels)):
            yield int(np.ravel_multi_index(box, levels[number].data.shape[:3])), name


@pytest.mark.slow
@pytest.mark.parametrize("array", SHAPES)
def test_a_v_cycle_visits_exactly_the_fields_that_affect_it(array: str) -> None:
    levels = [Level(shape) for shape in SOLVER.shapes]
    levels[0].put("rhs", np.random.default_rng(3).random((16, 16, 16)))
    _cycle(levels)
    places = list(touched(levels, list(SHAPES).index(array)))
    touches = [touch for work in SOLVER.work() for touch in work.touches if touch.array == array]
    check(touches, entries_at(SHAPES[array], places))
    used = {name for _, name in places}
    coarsest = array == list(SHAPES)[-1]
    assert used == {"rhs", "dinv", *OPERATOR} | (set() if coarsest else {"residual"})


@pytest.mark.parametrize("side", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("planes", [(1, -2), (0, -1)])
def test_an_exchange_requests_the_sectors_of_the_faces(side: int, planes: tuple[int, int]) -> None:
    length = side + 2
    on = {plane % length for plane in planes}
    sectors = {
        ((z * length + y) * length + x) * 8 // SECTOR_BYTES
        for z, y, x in product(range(length), repeat=3)
        if any(
            place in on and not {0, length - 1} & {*others} for place, others in ((z, (y, x)), (y, (z, x)), (x, (z, y)))
        )
    }
    assert Shape(1, side).sectors_of_faces(*planes) == len(sectors)


def test_an_exchange_moves_complete_sectors_of_each_entry() -> None:
    exchange = next(work for work in Multigrid(size=64, box=16).work() if work.op == "exchange")
    assert [(touch.write, touch.sectors) for touch in exchange.touches] == [(False, 2), (True, 2)]
    assert exchange.dram_bytes == 2 * 4**3 * 365 * 2 * SECTOR_BYTES
