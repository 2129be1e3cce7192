"""Writes an iteration in which groups of saved tensors are offloaded and fetched by a schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simgpu.graph.saved import Saved, backward_ends, readers
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Unpacked
from simgpu.policies.common.framework import releases_with_savers
from simgpu.policies.offload_groups.schedules import GroupSchedule
from simgpu.program.eager import Eager
from simgpu.program.instructions import D2H, DATA, DEVICE, H2D, HOST
from simgpu.timeline.streams import StreamId


class Copied(NamedTuple):
    """One copy on the host, of a saved tensor or of several that are the same. numbers: theirs, in order of saving."""

    numbers: tuple[int, ...]
    schedule: GroupSchedule


class _At(NamedTuple):
    """What happens after a kernel, by kind: copies by their positions. entering, buffers: before it."""

    out: defaultdict[int, list[int]]
    entering: defaultdict[int, list[int]]
    awaited: defaultdict[int, list[int]]
    dropped: defaultdict[int, list[int]]
    fetched: defaultdict[int, list[int]]
    arrived: defaultdict[int, list[int]]
    buffers: defaultdict[int, list[int]]


class GroupedOffload:
    """Writes the iteration. Copies are named by their positions in `copies`.

    one_stream: whether one stream copies in both directions. starts: the first kernels of the passes.
    """

    def __init__(
        self,
        graph: TaskGraph,
        tensors: Sequence[Saved],
        copies: Sequence[Copied],
        starts: Mapping[int, int],
        *,
        one_stream: bool,
    ) -> None:
        self._graph, self._tensors, self._copies = graph, tensors, copies
        self._streams: tuple[StreamId, StreamId] = (DATA, DATA) if one_stream else (D2H, H2D)
        self._first = [tensors[each.numbers[0]] for each in copies]
        self._ends = backward_ends(graph, tensors)
        of_tensor = readers(graph, tensors)
        self._read = [tuple(sorted({k for n in each.numbers for k in of_tensor[n]})) for each in copies]
        left = {n: self._left(each, n) for each in copies for n in each.numbers}
        read = {n: self._read[place] for place, each in enumerate(copies) for n in each.numbers}
        self._releases = releases_with_savers(graph, tensors, left, read)
        self.writer = Eager(graph, self._releases)
        self._freed = self._freed_by_copies()
        self._used: defaultdict[int, list[int]] = defaultdict(list)
        self._at = _At(*[defaultdict[int, list[int]](list) for _ in _At._fields])
        self._place(starts)
        #: Events at the ends of the copies out and back.
        self._left_at: dict[int, int] = {}
        self._arrived_at: dict[int, int] = {}
        self._waited: set[int] = set()
        #: The last block that the copy stream released in the round, and the events of such releases.
        self._last_free: list[int] = []
        self._free_at: dict[int, int] = {}

    def unpacked(self) -> Iterator[Unpacked]:
        """The copies as memory of their own, in order."""
        for first, read in zip(self._first, self._read, strict=True):
            yield Unpacked(first.block, first.bytes, read)

    def _left(self, copied: Copied, n: int) -> int:
        """The kernel after which a tensor leaves the device."""
        left = copied.schedule.left
        return max(self._tensors[n].after, copied.schedule.group.commit) if left is None else left

    def _freed_by_copies(self) -> defaultdict[int, set[int]]:
        """By kernel, the blocks that the copy stream releases after it, since compute never waits for their copies."""
        freed: defaultdict[int, set[int]] = defaultdict(set)
        for place, each in enumerate(self._copies):
            b = self._first[place].block
            k = self._releases[b]
            if each.schedule.left is None and k is not None and self._graph.births[b] is not None:
                freed[k].add(b)
        for k, blocks in freed.items():
            self.writer.not_after(k, blocks)
        return freed

    def _place(self, starts: Mapping[int, int]) -> None:
        begins = {part.first for part in self._graph.rounds}
        for place, (numbers, schedule) in enumerate(self._copies):
            for name in ("awaited", "dropped", "fetched", "arrived"):
                if (moment := getattr(schedule, name)) is not None:
                    getattr(self._at, name)[moment].append(place)
            if schedule.copied is not None:
                self._at.out[schedule.copied].append(place)
            elif (after := self._tensors[numbers[0]].after) + 1 in begins:
                self._at.entering[after + 1].append(place)
            else:
                self._at.out[after].append(place)
            if schedule.buffered:
                self._at.buffers[starts[place]].append(place)
            for n in numbers:
                self._used[self._tensors[n].before].append(place)

    def write(self) -> None:
        """Write all kernels with the copies, waits and releases between them."""
        ends = {part.stop - 1 for part in self._graph.rounds}
        for k in range(len(self._graph.kernels)):
            self.writer.acquire(self._form(place) for place in self._at.buffers[k])
            for place in self._at.entering[k]:
                self._copy_out(place)
            self._wait(self._used[k], self._arrived_at)
            self.writer.run(k)
            for place in self._at.out[k]:
                self._copy_out(place)
            self._wait(self._at.awaited[k], self._left_at)
            self._free(sorted(self._freed[k]))
            if k in ends:
                self._drop(self._at.dropped[k])
                self._wait(self._last_free, self._free_at)
                self._last_free.clear()
                self.writer.release_ended(k)
                continue
            self.writer.release_ended(k)
            self._drop(self._at.dropped[k])
            self._wait((each for each in self._at.arrived[k] if each in self._arrived_at), self._arrived_at)
            for place in self._at.fetched[k]:
                self._fetch(place)
            self._wait(self._at.arrived[k], self._arrived_at)

    def _free(self, blocks: Sequence[int]) -> None:
        """The copy stream releases these blocks, when compute and the copies so far have come so far."""
        if blocks:
            out = self._streams[0]
            self.writer.wait(self.writer.signal(), out)
            self.writer.code[out].release(blocks, DEVICE)
            self._last_free[:] = [blocks[-1]]
            self._free_at[blocks[-1]] = self.writer.signal(out)

    def _form(self, place: int) -> int:
        return len(self._graph.blocks) + place

    def _wait(self, places: Iterable[int], events: Mapping[int, int]) -> None:
        """Compute waits for these copies, each once."""
        for place in places:
            if (event := events[place]) not in self._waited:
                self._waited.add(event)
                self.writer.wait(event)

    def _copy_out(self, place: int) -> None:
        out = self._streams[0]
        self.writer.wait(self.writer.signal(), out)
        self.writer.code[out].acquire((self._form(place),), HOST)
        self.writer.code[out].copy(self._first[place].block, DEVICE, HOST, self._form(place))
        self._left_at[place] = self.writer.signal(out)

    def _fetch(self, place: int) -> None:
        """Compute requests the memory, and the copy back begins when it has come so far."""
        schedule, form = self._copies[place].schedule, self._form(place)
        out, back = self._streams
        if not schedule.buffered:
            self.writer.acquire((form,))
        if schedule.dropped is None:
            self.writer.release_after(form, self._unused(place))
        self.writer.wait(self.writer.signal(), back)
        if back != out and schedule.awaited is None:
            self.writer.wait(self._left_at[place], back)
        self.writer.code[back].copy(form, HOST, DEVICE)
        if schedule.dropped is None:
            self.writer.code[back].release((form,), HOST)
        self._arrived_at[place] = self.writer.signal(back)

    def _unused(self, place: int) -> int:
        """The kernel after which the last operator of backward has ended that used the copy."""
        return max(self._ends[n] for n in self._copies[place].numbers)

    def _drop(self, places: Sequence[int]) -> None:
        """Compute drops fetched tensors, on the device and on the host."""
        self._wait(places, self._arrived_at)
        forms = [self._form(place) for place in places]
        self.writer.release(forms)
        self.writer.release(forms, HOST)
