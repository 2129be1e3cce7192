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
    resident: set[Page] = field(default_factory=set)
    dirty: set[Page] = field(default_factory=set)
    stored: set[Page] = field(default_factory=set)
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

    def kernel(self, visits: list[tuple[Page, bool]]) -> list[tuple[list[Page], list[Page]]]:
        """Access pages; returns the evicted and the fetched pages of each batch."""
        moved = []
        batch: dict[Page, bool] = {}
        for page, written in visits:
            if page in self.resident and batch:
                moved.append(self.serve(batch))
                batch = {}
            if page in self.resident:
                self.last(self.touched, self.chunk(page))
                if written:
                    self.dirty.add(page)
            elif page in batch:
                batch[page] |= written
            elif page not in self.stored and self.used + self.size(page) <= self.capacity:
                self.make(page)
            else:
                batch[page] = written
                if len(batch) == self.fault_batch:
                    moved.append(self.serve(batch))
                    batch = {}
        if batch:
            moved.append(self.serve(batch))
        return moved

    def make(self, page: Page) -> None:
        self.resident.add(page)
        self.dirty.add(page)
        for order in (self.touched, self.arrived):
            self.last(order, self.chunk(page))

    def serve(self, batch: dict[Page, bool]) -> tuple[list[Page], list[Page]]:
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
        for page, written in batch.items():
            self.resident.add(page)
            if written or page not in self.stored:
                self.dirty.add(page)
            for order in (self.touched, self.arrived):
                self.last(order, self.chunk(page))
        return out, back

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
            if page in self.resident:
                self.last(self.touched, self.chunk(page))
                self.dirty.add(page)
            elif self.used + self.size(page) <= self.capacity:
                self.make(page)
            else:
                self.stored.add(page)

    def forget(self, b: int) -> None:
        """Release a block."""
        self.drop(self.pages(b))
        self.stored -= set(self.pages(b))
