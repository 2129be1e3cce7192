"""A slow, simple reference of paged memory, page by page, written from the rules alone."""

from __future__ import annotations

from dataclasses import dataclass, field

#: A page: block and number in the block.
Page = tuple[int, int]


@dataclass
class PlainPages:
    """See the docstring of `simgpu.memory.paged` for the rules."""

    sizes: list[int]
    capacity: int
    page: int
    per_chunk: int
    fault_batch: int
    write_back_clean: bool = True
    by_arrival: bool = False
    prefetch: int = 0
    group: int = 1
    first_touch: bool = False
    resident: set[Page] = field(default_factory=set)
    dirty: set[Page] = field(default_factory=set)
    stored: set[Page] = field(default_factory=set)
    by_host: set[Page] = field(default_factory=set)
    touched: list[tuple[int, int]] = field(default_factory=list)
    arrived: list[tuple[int, int]] = field(default_factory=list)

    def pages(self, b: int) -> list[Page]:
        return [(b, number) for number in range(-(-self.sizes[b] // self.page))]

    def size(self, page: Page) -> int:
        return min(self.page, self.sizes[page[0]] - page[1] * self.page)

    def chunk(self, page: Page) -> tuple[int, int]:
        return page[0], page[1] // self.per_chunk

    @property
    def used(self) -> int:
        return sum(map(self.size, self.resident))

    @staticmethod
    def last(order: list[tuple[int, int]], chunk: tuple[int, int]) -> None:
        if chunk in order:
            order.remove(chunk)
        order.append(chunk)

    def kernel(self, visits: list[tuple[Page, bool]]) -> list[tuple[list[Page], list[Page], int, int]]:
        """Access pages; returns of each batch: the evicted and the fetched pages, how often it is served, and how many
        of its pages the host has written."""
        moved = []
        batch: dict[Page, bool] = {}
        for page, written in visits:
            ends = page in self.resident or (
                len(batch) >= self.fault_batch and self.chunk(page) not in map(self.chunk, batch)
            )
            if batch and ends:
                moved.append(self.serve(batch))
                batch = {}
            if page in self.resident:
                self.last(self.touched, self.chunk(page))
                if written:
                    self.dirty.add(page)
            elif page in batch:
                batch[page] |= written
            elif not self.first_touch and page not in self.stored and self.used + self.size(page) <= self.capacity:
                self.make(page)
            else:
                batch[page] = written
                if len(batch) >= self.fault_batch and not self.is_walk(batch):
                    moved.append(self.serve(batch))
                    batch = {}
        if batch:
            moved.append(self.serve(batch))
        return moved

    def is_walk(self, batch: dict[Page, bool]) -> bool:
        """With prefetching, a batch in a single chunk has all that the kernel accesses there one after the other."""
        first, *others = {self.chunk(page) for page in batch}
        return bool(self.prefetch) and not others and sum(map(self.size, self.in_chunk(first))) <= self.capacity

    def in_chunk(self, chunk: tuple[int, int]) -> list[Page]:
        return [page for page in self.pages(chunk[0]) if self.chunk(page) == chunk]

    def with_prefetched(self, batch: dict[Page, bool]) -> tuple[int, dict[Page, bool]]:
        """How often the faults are served, and all pages that are fetched."""
        if not self.prefetch:
            return 1, batch
        order = dict.fromkeys(self.chunk(page) for page in reversed(batch))
        chunks = {chunk: [page for page in batch if self.chunk(page) == chunk] for chunk in reversed(order)}
        there, times = set(self.resident), 1
        for chunk, pages in chunks.items():
            waiting, times = sorted(pages), 0
            while waiting:
                there |= self.fetched(chunk, waiting[: self.fault_batch], there)
                waiting = [page for page in waiting if page not in there]
                times += 1
        more = {page: batch.get(page, False) for chunk in chunks for page in self.in_chunk(chunk) if page in there}
        more = {page: written for page, written in more.items() if page not in self.resident}
        return (times, more) if sum(map(self.size, more)) <= self.capacity else (1, batch)

    def fetched(self, chunk: tuple[int, int], faulting: list[Page], there: set[Page]) -> set[Page]:
        """What the driver fetches in a chunk: the largest range around each fault that is dense enough."""
        pages = self.in_chunk(chunk)
        place = pages.index
        groups = [place(page) // self.group for page in faulting]
        soon = there | {page for page in pages if place(page) // self.group in groups}
        result = set()
        for page in faulting:
            best = [page]
            ranges = [self.group]
            while ranges[-1] < len(pages):
                ranges.append(2 * ranges[-1])
            for size in ranges:
                around = [each for each in pages if place(each) // size == place(page) // size]
                if 100 * len(soon & set(around)) > self.prefetch * len(around):
                    best = around
            result |= set(best)
        return result

    def make(self, page: Page) -> None:
        self.resident.add(page)
        self.dirty.add(page)
        for order in (self.touched, self.arrived):
            self.last(order, self.chunk(page))

    def serve(self, batch: dict[Page, bool]) -> tuple[list[Page], list[Page], int, int]:
        times, batch = self.with_prefetched(batch)
        for chunk in map(self.chunk, batch):
            if any(self.chunk(page) == chunk for page in self.resident):
                self.last(self.touched, chunk)
        out: list[Page] = []
        while self.used + sum(map(self.size, batch)) > self.capacity:
            victim = (self.arrived if self.by_arrival else self.touched)[0]
            leaving = sorted(page for page in self.resident if self.chunk(page) == victim)
            out += [page for page in leaving if self.write_back_clean or page in self.dirty]
            self.stored |= set(leaving)
            self.drop(leaving)
        back = [page for page in batch if page in self.stored]
        host_pages = len(self.by_host & set(batch))
        self.by_host -= set(batch)
        for page, written in batch.items():
            self.resident.add(page)
            if written or page not in self.stored:
                self.dirty.add(page)
            for order in (self.touched, self.arrived):
                self.last(order, self.chunk(page))
        return out, back, times, host_pages

    def drop(self, pages: list[Page]) -> None:
        self.resident -= set(pages)
        self.dirty -= set(pages)
        present = {self.chunk(page) for page in self.resident}
        self.touched = [chunk for chunk in self.touched if chunk in present]
        self.arrived = [chunk for chunk in self.arrived if chunk in present]

    def give(self, b: int) -> None:
        """The host initializes a block."""
        for page in self.pages(b):
            self.stored.discard(page)
            self.by_host.discard(page)
            if page in self.resident:
                self.last(self.touched, self.chunk(page))
                self.dirty.add(page)
            elif self.used + self.size(page) <= self.capacity:
                self.make(page)
            else:
                self.stored.add(page)
                self.by_host.add(page)

    def forget(self, b: int) -> None:
        """Release a block."""
        self.drop(self.pages(b))
        self.stored -= set(self.pages(b))
        self.by_host -= set(self.pages(b))
