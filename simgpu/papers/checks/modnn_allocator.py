"""moDNN's allocator a second time, as a list of segments (section 3.3)."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from simgpu.memory.addressed import AddressedPool
from simgpu.papers.checks.found import rule

#: Bytes; few, so that holes of exactly the size asked for happen.
_SIZES = (16, 24, 40, 64, 64, 100)
_SEQUENCES, _REQUESTS, _CAPACITY = 200, 120, 600


class Piece(NamedTuple):
    """A segment of the list; block: None where it is free."""

    start: int
    size: int
    block: int | None


class SegmentList:
    """Segments from the lowest address up, no two free ones beside each other."""

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
        """Give a block's segment back; neighbours that are free become one."""
        joined: list[Piece] = []
        for start, size, held in self.pieces:
            held = None if held == block else held
            if held is None and joined and joined[-1].block is None:
                start, size = joined[-1].start, joined.pop().size + size
            joined.append(Piece(start, size, held))
        self.pieces = joined


def allocator(seed: int = 3) -> dict[str, Any]:
    """Random takes and frees on both; after each, all segments are the same."""
    return {"places": places(Random(seed))}


def places(draw: Random, pool: type[AddressedPool] = AddressedPool) -> dict[str, Any]:
    """Exact fit first, then first fit. pool: what is tried."""
    exact = first = none = 0
    for number in range(_SEQUENCES):
        ours, again = pool(_CAPACITY), SegmentList(_CAPACITY)
        held: list[int] = []
        for block in range(_REQUESTS):
            if held and draw.random() < 0.45:
                gone = held.pop(draw.randrange(len(held)))
                size = next(piece.size for piece in again.pieces if piece.block == gone)
                ours.release(ours.prepare([gone], [size]))
                again.free(gone)
            else:
                size = draw.choice(_SIZES)
                holes = [piece.size for piece in again.pieces if piece.block is None and piece.size >= size]
                taken = again.take(block, size)
                if ours.acquire(ours.prepare([block], [size])) != taken:
                    return rule(False, f"sequence {number}, request {block}: one of both has no room")
                held += [block] if taken else []
                exact, first, none = exact + (size in holes), first + (taken and size not in holes), none + (not taken)
            if [tuple(piece) for piece in ours.segments()] != [tuple(piece) for piece in again.pieces]:
                return rule(False, f"sequence {number}, request {block}: the segments differ")
    return rule(
        True, f"{exact} requests into a hole of their size, {first} into the first large enough, {none} refused"
    )
