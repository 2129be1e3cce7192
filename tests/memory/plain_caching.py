"""The caching allocator again, by its rules but with plain lists that are searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass, field

from simgpu.memory.caching.settings import AllocatorSettings

MIB = 2**20
FREE, USED, WAITING, UNMAPPED = "free", "used", "waiting", "unmapped"


@dataclass
class Piece:
    """A part of a segment."""

    address: int
    size: int
    state: str
    waits: set[int] = field(default_factory=set)
    users: set[int] = field(default_factory=set)
    since: int = 0


@dataclass
class PlainSegment:
    """A range of addresses from the device; step: bytes that it grows by, 0 for a fixed size."""

    address: int
    size: int
    stream: int
    small: bool
    step: int
    pieces: list[Piece]


class PlainAllocator:
    """Allocates and frees as PyTorch does, and takes its time."""

    def __init__(self, total: int | None, settings: AllocatorSettings) -> None:
        self.total = total
        self.settings = settings
        self.segments: list[PlainSegment] = []
        self.searches = {True: 0, False: 0}
        fraction = settings.memory_fraction
        self.allowed = int(fraction * total) if fraction is not None and total is not None else None

    @property
    def reserved(self) -> int:
        return sum(piece.size for s in self.segments for piece in s.pieces if piece.state != UNMAPPED)

    def allocate(self, size: int, stream: int) -> tuple[int, int] | None:
        """Address and size of a block."""
        size = self.settings.rounded(size)
        small = size <= MIB
        if self.collects:
            self.searches[small] += 1
        found = self._cached(size, stream, small)
        if found is None and self.collects:
            self._collect()
        for attempt in (lambda: None, self._release_oversized, self._release_all):
            if found is None:
                if attempt(*((size, stream, small) if attempt == self._release_oversized else ())) is False:  # type: ignore[operator]
                    continue
                found = self._new(size, stream, small)
        if found is None:
            return None
        segment, piece = found
        rest = piece.size - size
        splits = rest >= 512 if small or self.settings.expandable_segments else rest > MIB and size < self.limit
        if splits:
            segment.pieces.append(Piece(piece.address + size, rest, FREE, since=self.searches[small]))
            piece.size = size
        piece.state = USED
        return piece.address, piece.size

    def free(self, address: int) -> None:
        _, piece = self._at(address)
        piece.waits, piece.users = piece.users, set()
        piece.state = WAITING
        self._settle()

    def record_stream(self, address: int, stream: int) -> None:
        segment, piece = self._at(address)
        if stream != segment.stream:
            piece.users.add(stream)

    def finish(self, stream: int) -> None:
        """Work of a stream has ended; blocks become free in the order in which they were freed, one by one."""
        for segment in self.segments:
            for piece in segment.pieces:
                piece.waits.discard(stream)
        self._settle()

    def empty_cache(self) -> None:
        self._release_all()

    # ---

    @property
    def limit(self) -> int:
        return self.settings.max_split_size or 2**63

    @property
    def collects(self) -> bool:
        return self.allowed is not None and self.settings.garbage_collection_threshold > 0

    def _at(self, address: int) -> tuple[PlainSegment, Piece]:
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.address == address and piece.state != UNMAPPED:
                    return segment, piece
        raise AssertionError(address)

    def _settle(self) -> None:
        """Pieces that wait for nothing become free, and free neighbours one piece."""
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.state == WAITING and not piece.waits:
                    piece.state, piece.since = FREE, self.searches[segment.small]
            segment.pieces.sort(key=lambda piece: piece.address)
            joined: list[Piece] = []
            for piece in segment.pieces:
                if joined and piece.state == joined[-1].state and piece.state in (FREE, UNMAPPED):
                    joined[-1].size += piece.size
                    joined[-1].since = max(joined[-1].since, piece.since)
                else:
                    joined.append(piece)
            segment.pieces = joined

    def _frees(self, stream: int | None, small: bool) -> list[tuple[PlainSegment, Piece]]:
        self._settle()
        frees = [
            (segment, piece)
            for segment in self.segments
            for piece in segment.pieces
            if piece.state == FREE and segment.small == small and stream in (None, segment.stream)
        ]
        return sorted(frees, key=lambda each: (each[0].stream, each[1].size, each[1].address))

    def _cached(self, size: int, stream: int, small: bool) -> tuple[PlainSegment, Piece] | None:
        fitting = [each for each in self._frees(stream, small) if each[1].size >= size]
        if fitting and fitting[0][0].step:
            at = 0
            while (
                at + 1 < len(fitting)
                and fitting[at][0].step
                and self._reach(fitting[at + 1]) < self._reach(fitting[at])
            ):
                at += 1
            fitting = fitting[at:]
        if not fitting:
            return None
        best = fitting[0][1].size
        if (size < self.limit <= best) or (size >= self.limit and best >= size + self.settings.max_non_split_rounding):
            return None
        return fitting[0]

    @staticmethod
    def _reach(each: tuple[PlainSegment, Piece]) -> int:
        segment, piece = each
        end = piece.address + piece.size
        return piece.size + sum(p.size for p in segment.pieces if p.address == end and p.state == UNMAPPED)

    def _new(self, size: int, stream: int, small: bool) -> tuple[PlainSegment, Piece] | None:
        bytes = (
            2 * MIB if small else self.settings.large_segment if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        )
        if self.allowed is not None and self.reserved + bytes > self.allowed:
            return None
        if self.settings.expandable_segments:
            return self._grown(size, stream, small)
        if self.total is not None and self.reserved + bytes > self.total:
            return None
        piece = Piece(self._place(bytes), bytes, FREE, since=self.searches[small])
        self.segments.append(PlainSegment(piece.address, bytes, stream, small, 0, [piece]))
        return self.segments[-1], piece

    def _place(self, bytes: int) -> int:
        """The lowest range of unused addresses of just this size, else the lowest larger one."""
        taken = sorted((each.address, each.address + each.size) for each in self.segments)
        starts, ends = [0, *(end for _, end in taken)], [*(start for start, _ in taken), 2**62]
        gaps = [(start, end - start) for start, end in zip(starts, ends, strict=True) if end > start]
        return next((start for start, gap in gaps if gap == bytes), next(start for start, gap in gaps if gap >= bytes))

    def _grown(self, size: int, stream: int, small: bool) -> tuple[PlainSegment, Piece] | None:
        self._settle()
        segment, run = self._run(size, stream, small) or self._reserve(stream, small)
        address = run[0].address
        grown = 0
        for piece in run:
            if piece.state == UNMAPPED:
                needed = min(size - grown, piece.size)
                more = -(-needed // segment.step) * segment.step
                if self.total is not None and self.reserved + more > self.total:
                    self._settle()
                    return None
                if piece.size > more:
                    segment.pieces.append(Piece(piece.address + more, piece.size - more, UNMAPPED))
                    piece.size = more
                piece.state, piece.since = FREE, self.searches[small]
            grown += piece.size
            if grown >= size:
                break
        self._settle()
        return self._at_free(address)

    def _at_free(self, address: int) -> tuple[PlainSegment, Piece]:
        return next(
            (s, p)
            for s in self.segments
            for p in s.pieces
            if p.state == FREE and p.address <= address < p.address + p.size
        )

    def _run(self, size: int, stream: int, small: bool) -> tuple[PlainSegment, list[Piece]] | None:
        """Neighbouring pieces without use, one of the first two of them unmapped, that have enough addresses."""
        growing = [s for s in self.segments if s.step and s.stream == stream and s.small == small]
        starts = []
        for segment in growing:
            for number, piece in enumerate(segment.pieces):
                if piece.state == UNMAPPED:
                    first = number - 1 if number and segment.pieces[number - 1].state == FREE else number
                    starts.append((piece.address, segment, first))
        for _, segment, first in sorted(starts, key=lambda each: each[0]):
            run = []
            for piece in segment.pieces[first:]:
                if piece.state not in (FREE, UNMAPPED) or sum(p.size for p in run) >= size:
                    break
                run.append(piece)
            if sum(piece.size for piece in run) >= size:
                return segment, run
        return None

    def _reserve(self, stream: int, small: bool) -> tuple[PlainSegment, list[Piece]]:
        step = 2 * MIB if small else self.settings.large_segment
        total = 2**52 if self.total is None else self.total
        bytes = -(-(total + total // 8) // step) * step
        piece = Piece(self._place(bytes), bytes, UNMAPPED)
        self.segments.append(PlainSegment(piece.address, bytes, stream, small, step, [piece]))
        return self.segments[-1], [piece]

    # --- giving memory back

    def _release_all(self) -> None:
        for segment in self.segments:
            for piece in segment.pieces:
                piece.waits.clear()
        self._settle()
        for segment in list(self.segments):
            unmapped = False
            if segment.step:
                for piece in [each for each in segment.pieces if each.state == FREE]:
                    unmapped |= self._unmap(segment, piece)
                self._settle()
            # Addresses that never got memory, because the first request failed, stay reserved.
            if len(segment.pieces) == 1 and (unmapped if segment.step else segment.pieces[0].state == FREE):
                self.segments.remove(segment)

    @staticmethod
    def _unmap(segment: PlainSegment, piece: Piece) -> bool:
        first = -(-(piece.address - segment.address) // segment.step) * segment.step + segment.address
        end = piece.address + piece.size
        last = (end - segment.address) // segment.step * segment.step + segment.address
        if first < last:
            segment.pieces.remove(piece)
            for start, stop, state in ((piece.address, first, FREE), (first, last, UNMAPPED), (last, end, FREE)):
                if start < stop:
                    segment.pieces.append(Piece(start, stop - start, state, since=piece.since))
        return first < last

    def _release_oversized(self, size: int, stream: int, small: bool) -> bool:
        if self.settings.max_split_size is None:
            return False
        wanted = max(size, self.limit)
        frees = [each for each in self._frees(stream, small) if each[1].size >= self.limit]
        large = [each for each in frees if each[1].size >= wanted]
        if large and not large[0][0].step:
            self.segments.remove(large[0][0])
            return True
        released = 0
        for segment, piece in reversed([each for each in frees if each[1].size < wanted]):
            if released >= wanted:
                break
            if not segment.step:
                released += piece.size
                self.segments.remove(segment)
        return released >= wanted

    def _collect(self) -> None:
        assert self.allowed is not None
        excess = self.reserved - int(self.settings.garbage_collection_threshold * self.allowed)
        free = [(s, p) for s, p in self._frees(None, False) if len(s.pieces) == 1]
        reclaimed = 0
        while reclaimed < excess and free:
            ages = [self.searches[False] - piece.since for _, piece in free]
            old = [
                each for each, age in zip(free, ages, strict=True) if age >= sum(ages) / len(ages) and not each[0].step
            ]
            if not old:
                break
            for segment, piece in old:
                reclaimed += piece.size
                self.segments.remove(segment)
            free = [each for each in free if each not in old]
