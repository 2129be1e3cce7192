"""What the simulator of G10 does with pages, without its code: so differences to it can be traced to single rules.

Pages leave in the order in which they came. What the framework frees is not released, unless `frees`: it
stays until it is its turn, and is copied out like everything else, or, with DeepUM, dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph

#: Bytes per nanosecond, each way.
LINK = 15.754


class Total(NamedTuple):
    """Of the second iteration: time (ns), bytes that came to the device."""

    time_ns: float
    copied_in: int


@dataclass
class Pages:
    """Device memory as parts of blocks, in the order in which they came."""

    free: int
    parts: deque[tuple[int, int]] = field(default_factory=deque)
    here: dict[int, int] = field(default_factory=dict)

    def come(self, b: int, size: int) -> None:
        """Bytes of a block come."""
        self.free -= size
        self.here[b] = self.here.get(b, 0) + size
        self.parts.append((b, size))

    def make_room(self, size: int, but: set[int]) -> None:
        """Lets the oldest leave until `size` bytes are free, or nothing is left but these blocks."""
        kept: list[tuple[int, int]] = []
        while self.parts and self.free < size:
            b, part = self.parts.popleft()
            leaves = 0 if b in but else min(part, size - self.free)
            self.free += leaves
            self.here[b] -= leaves
            if leaves < part:
                kept.append((b, part - leaves))
        self.parts.extendleft(reversed(kept))

    def drop(self, b: int) -> None:
        """A block's memory is released."""
        self.free += self.here.pop(b, 0)
        self.parts = deque(part for part in self.parts if part[0] != b)


@dataclass
class Simulated:
    """Two iterations. degree: before kernel i, what kernel i + degree uses comes; 0: only what a kernel asks for."""

    graph: TaskGraph
    capacity: int
    frees: bool
    degree: int = 0

    def __post_init__(self) -> None:
        graph = self.graph
        self.pages = Pages(self.capacity)
        self.used = [tuple(dict.fromkeys((*graph.reads[k], *graph.writes[k]))) for k in range(len(graph.kernels))]
        #: Blocks with a value, wherever it is.
        self.alive = {b for b, birth in enumerate(graph.births) if birth is not None and birth < 0}
        self.coming: deque[tuple[int, int]] = deque()
        self.copied_in, self.now, self.link = 0, 0.0, 0.0

    def run(self) -> Total:
        """The second iteration, when memory is as the first has left it."""
        for _ in range(2):
            begin, before = self.now, self.copied_in
            for k in range(len(self.used)):
                self._kernel(k)
        return Total(self.now - begin, self.copied_in - before)

    def _kernel(self, k: int) -> None:
        graph, used = self.graph, self.used[k]
        ahead = {b for j in range(self.degree) for b in self.used[(k + j) % len(self.used)]}
        self._advance(ahead, self.now, None)
        self.link = max(self.link, self.now)
        if self.degree:
            self._prefetch(self.used[(k + self.degree) % len(self.used)], ahead)
        faulted = sum(self._fault(b, set(used)) for b in used)
        self.link += faulted / LINK
        end = self.now + graph.durations[k] + faulted / LINK
        for b in used:
            if any(each == b for each, _ in self.coming):
                self._advance(ahead, None, b)
                end = max(end, self.link)
        self.now = end
        self.alive.update(used)
        for b in used:
            if graph.recorded_releases[b] == k:
                # Without prefetching nobody knows that it is free.
                if self.degree or self.frees:
                    self.alive.discard(b)
                if self.frees:
                    self.pages.drop(b)

    def _fault(self, b: int, but: set[int]) -> int:
        """What of a block is missing comes; returns the bytes that are charged."""
        missing = self.graph.sizes[b] - self.pages.here.get(b, 0)
        if not missing or any(each == b for each, _ in self.coming):
            return 0
        self.pages.make_room(missing, but)
        self.pages.come(b, missing)
        is_charged = b in self.alive or not self.frees
        self.copied_in += missing if b in self.alive else 0
        return missing if is_charged else 0

    def _prefetch(self, blocks: tuple[int, ...], ahead: set[int]) -> None:
        for b in blocks:
            missing = self.graph.sizes[b] - self.pages.here.get(b, 0)
            if not missing or any(each == b for each, _ in self.coming):
                continue
            if b in self.alive:
                self.coming.append((b, missing))
                continue
            self.pages.make_room(missing, {*ahead, *blocks})
            if part := min(missing, self.pages.free):
                self.pages.come(b, part)

    def _advance(self, ahead: set[int], until: float | None, block: int | None) -> None:
        """Lets pages come until a time, or until a block is there."""
        while self.coming and (until is None or self.link < until):
            b, size = self.coming[0]
            part = size if until is None else min(size, int((until - self.link) * LINK) + 1)
            self.pages.make_room(part, ahead)
            part = min(part, self.pages.free)
            if not part:
                if until is not None:
                    return
                self.pages.make_room(size, {b})
                continue
            self.pages.come(b, part)
            self.copied_in += part
            self.link += part / LINK
            self.coming.popleft()
            if part < size:
                self.coming.appendleft((b, size - part))
            elif b == block:
                return
