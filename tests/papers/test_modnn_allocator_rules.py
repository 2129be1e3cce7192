"""The rule of moDNN's allocator (section 3.3), against a list of segments."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

import pytest

from simgpu.memory.addressed import AddressedPool
from simgpu.memory.pool import Request
from tests.papers.rules import fails

#: Bytes; few sizes, so that exact fits occur.
_SIZES = (16, 24, 40, 64, 64, 100)
_SEQUENCES, _REQUESTS, _CAPACITY = 200, 120, 600


class Piece(NamedTuple):
    """A segment of the list; block: None where it is free."""

    start: int
    size: int
    block: int | None


class SegmentList:
    """Segments from the lowest address up, no two free ones next to each other."""

    def __init__(self, capacity: int) -> None:
        self.pieces = [Piece(0, capacity, None)]

    def take(self, block: int, size: int) -> bool:
        """The first free segment of exactly this size, else the first that is larger; False where there is none."""
        free = [piece for piece in self.pieces if piece.block is None and piece.size >= size]
        place = next((piece for piece in free if piece.size == size), free[0] if free else None)
        if place is None:
            return False
        at = self.pieces.index(place)
        rest = [Piece(place.start + size, place.size - size, None)] if place.size > size else []
        self.pieces[at : at + 1] = [Piece(place.start, size, block), *rest]
        return True

    def free(self, block: int) -> None:
        """Free a block's segment; free neighbours become one."""
        joined: list[Piece] = []
        for start, size, held in self.pieces:
            held = None if held == block else held
            if held is None and joined and joined[-1].block is None:
                start, size = joined[-1].start, joined.pop().size + size
            joined.append(Piece(start, size, held))
        self.pieces = joined


@pytest.mark.rule
def test_memory_is_the_first_hole_of_exactly_its_size_else_the_first_larger_one() -> None:
    """Random takes and frees on both; after each, all segments are the same."""
    hits = compared(AddressedPool)
    assert min(hits.values()) > 100, "each kind of request has to occur"


def compared(pool: type[AddressedPool]) -> Counter[str]:
    """How requests ended. pool: what is compared with the list."""
    draw = Random(3)
    hits: Counter[str] = Counter()
    for number in range(_SEQUENCES):
        addressed, segments = pool(_CAPACITY), SegmentList(_CAPACITY)
        held: list[int] = []
        for block in range(_REQUESTS):
            if held and draw.random() < 0.45:
                released = held.pop(draw.randrange(len(held)))
                size = next(piece.size for piece in segments.pieces if piece.block == released)
                addressed.release(addressed.prepare([released], [size]))
                segments.free(released)
            else:
                size = draw.choice(_SIZES)
                holes = [piece.size for piece in segments.pieces if piece.block is None and piece.size >= size]
                taken = segments.take(block, size)
                assert addressed.acquire(addressed.prepare([block], [size])) == taken, (number, block)
                held += [block] if taken else []
                hits["exact fit" if size in holes else "first fit" if taken else "out of memory"] += 1
            assert [tuple(piece) for piece in addressed.segments()] == [tuple(piece) for piece in segments.pieces]
    return hits


class FirstFit(AddressedPool):
    """The lowest hole that is large enough, whatever its size."""

    def acquire(self, request: Request) -> bool:
        (piece,) = request[2]
        for start, size, block in list(self.segments()):
            if block is None and size >= piece[1]:
                return super().acquire((request[0], request[1], request[2], (start,)))
        return False


def test_the_list_takes_the_first_hole_of_that_size_else_the_first_large_enough() -> None:
    memory = SegmentList(100)
    assert all(memory.take(block, size) for block, size in enumerate((30, 10, 20, 10, 30)))
    memory.free(0)
    memory.free(2)
    assert memory.take(5, 20) and memory.take(6, 25) and not memory.take(7, 6)
    assert [tuple(piece) for piece in memory.pieces][:4] == [(0, 25, 6), (25, 5, None), (30, 10, 1), (40, 20, 5)]


def test_neighbours_that_are_free_become_one() -> None:
    memory = SegmentList(60)
    assert all(memory.take(block, 20) for block in range(3))
    for block in (0, 2, 1):
        memory.free(block)
    assert [tuple(piece) for piece in memory.pieces] == [(0, 60, None)]


def test_first_fit_alone_is_not_the_papers_allocator() -> None:
    assert fails(compared, FirstFit)
