"""Regions of an iteration: calls of modules that keep only their inputs and run again in backward, and which can."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from simgpu.trace.model import RELEASED_AT_END, BlockKind, Phase, Trace

#: The operator that reads a number for the program.
_READS_VALUE = "aten::_local_scalar_dense"


class Region(NamedTuple):
    """One call of a module.

    module: its path, `WHOLE` for the whole model. call: how many calls of it came before. first, stop: its kernels,
    positions from `first` up to `stop`. saved_first, saved_stop: the tensors saved inside it, positions in the trace's
    list. inputs: for each tensor that it was given, the position of its block; types: its number format and shape.
    is_compiled: whether compiled code runs in it.
    """

    module: str
    call: int
    first: int
    stop: int
    saved_first: int
    saved_stop: int
    inputs: tuple[int, ...]
    types: tuple[tuple[str, tuple[int, ...]], ...]
    is_compiled: bool = False


class Unsaved(NamedTuple):
    """Kernels as positions: when a saved tensor was saved, unpacked, dropped by all but autograd, unused, and freed.

    after: the kernel that had run last when it was saved, -1 for none. before: the first after it was unpacked, None if
    it never was. dropped: None where that is unknown. unused: the kernel after which the operator that unpacked it had
    dropped it. A tensor that is held to the end has the number of kernels. is_reread: whether more than one run of
    backward unpacked it.
    """

    block: int
    after: int
    before: int | None
    dropped: int | None
    unused: int
    freed: int
    is_reread: bool


@dataclass(frozen=True)
class Steps:
    """A trace by positions of its kernels and blocks."""

    trace: Trace
    kernel: dict[str, int] = field(init=False)
    block: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", {kernel.id: place for place, kernel in enumerate(self.trace.kernels)})
        object.__setattr__(self, "block", {block.id: place for place, block in enumerate(self.trace.blocks)})

    @cached_property
    def count(self) -> int:
        """The number of kernels."""
        return len(self.trace.kernels)

    @cached_property
    def reads(self) -> list[tuple[int, ...]]:
        """For each kernel the blocks that it reads."""
        return [tuple(self.block[name] for name in kernel.reads) for kernel in self.trace.kernels]

    @cached_property
    def writes(self) -> list[tuple[int, ...]]:
        """For each kernel the blocks that it writes."""
        return [tuple(self.block[name] for name in kernel.writes) for kernel in self.trace.kernels]

    @cached_property
    def births(self) -> list[int]:
        """For each block the kernel that it begins with, -1 if it exists before the iteration."""
        first: dict[int, int] = {}
        for k in range(self.count):
            for b in (*self.reads[k], *self.writes[k]):
                first.setdefault(b, k)
        births = []
        for b, block in enumerate(self.trace.blocks):
            if block.persistent:
                births.append(-1)
            elif block.host_write is not None:
                births.append(self.kernel[block.host_write])
            else:
                births.append(first.get(b, -1))
        return births

    @cached_property
    def releases(self) -> list[int]:
        """For each block the kernel after whose end it was freed; the number of kernels for one held to the end."""
        return [self.place(block.release) for block in self.trace.blocks]

    @cached_property
    def dropped(self) -> list[int]:
        """For each block the kernel after which only autograd holds it; as `releases` for one that is not saved."""
        dropped = list(self.releases)
        for each in self.saved:
            if each.dropped is not None and not self.trace.blocks[each.block].persistent:
                dropped[each.block] = each.dropped
        return dropped

    @cached_property
    def writers(self) -> dict[int, list[int]]:
        """For each written block the kernels that write it."""
        writers: defaultdict[int, list[int]] = defaultdict(list)
        for k, writes in enumerate(self.writes):
            for b in writes:
                writers[b].append(k)
        return dict(writers)

    @cached_property
    def saved(self) -> list[Unsaved]:
        """The tensors that autograd saved."""
        return [
            Unsaved(
                self.block[each.block],
                -1 if each.packed_after is None else self.kernel[each.packed_after],
                None if each.unpacked_before is None else self.kernel[each.unpacked_before],
                None if each.released_after is None else self.place(each.released_after),
                self.place(each.unused_after),
                self.place(each.freed_after),
                each.is_reread,
            )
            for each in self.trace.saved
        ]

    @cached_property
    def is_forward(self) -> list[bool]:
        """For each kernel whether it runs in forward."""
        return [kernel.phase is Phase.FORWARD for kernel in self.trace.kernels]

    def place(self, kernel: str | None) -> int:
        """The position of a kernel after which something ends; the number of kernels for the iteration's end."""
        return self.count if kernel is None or kernel == RELEASED_AT_END else self.kernel[kernel]

    def regions(self) -> tuple[Region, ...]:
        """All calls of modules, in order."""
        calls: Counter[str] = Counter()
        result = []
        for each in self.trace.modules:
            first, stop = (0 if name is None else self.kernel[name] + 1 for name in (each.after, each.until))
            inputs = tuple(self.block[name] for name in each.inputs)
            stops = each.saved_before + each.saved
            start = each.saved_before
            call = calls[each.module]
            types = tuple(map(_type, each.input_types))
            result.append(Region(each.module, call, first, stop, start, stops, inputs, types, each.is_compiled))
            calls[each.module] += 1
        return tuple(result)

    def loop(self) -> tuple[tuple[str, ...], ...]:
        """The modules that the loop calls in a step, in groups: after each group, weights are updated."""
        updated = {b for b, block in enumerate(self.trace.blocks) if block.kind is BlockKind.WEIGHT}
        updates = [k for k in range(self.count) if updated.intersection(self.writes[k])]
        groups: defaultdict[int, list[str]] = defaultdict(list)
        outer: Region | None = None
        for region in self.regions():
            if outer is None or region.stop > outer.stop or region.saved_stop > outer.saved_stop:
                outer = region
                groups[bisect_left(updates, region.first)].append(region.module)
        return tuple(tuple(groups[update]) for update in sorted(groups))

    def rerun_range(self, region: Region) -> range:
        """The kernels up to which a region runs again: PyTorch stops at the last tensor that was saved inside it."""
        tensors = self.saved[region.saved_first : region.saved_stop]
        last = max((each.after for each in tensors), default=region.first - 1)
        return range(region.first, max(min(last + 1, region.stop), region.first))

    def rerun_before(self, region: Region) -> int | None:
        """The kernel before which a region runs again, where backward first reads a tensor saved inside it."""
        tensors = self.saved[region.saved_first : region.saved_stop]
        return min((each.before for each in tensors if each.before is not None), default=None)

    def why_not(self, region: Region) -> str:
        """Why `torch.utils.checkpoint` cannot run a region again with the same values; empty if it can."""
        if not region.stop > region.first:
            return "runs no kernel"
        if any(each.is_reread for each in self.saved[region.saved_first : region.saved_stop]):
            return "saves what more than one run of backward reads"
        start = self.rerun_before(region)
        if start is None:
            return "saves nothing that backward reads"
        for k in range(region.first, region.stop):
            for b in self.writes[k]:
                if self.births[b] < region.first and not self.trace.blocks[b].persistent:
                    return f"changes {self.trace.blocks[b].id} in place, which existed before it"
        again = self.rerun_range(region)
        # The kernel behind the last saved tensor does not run, but its operator begins, and saves what it was given.
        reading = range(again.start, min(again.stop + 1, region.stop))
        reasons = (*(self._cannot_write(k) for k in again), *(self._cannot_read(region, start, k) for k in reading))
        return next(filter(None, reasons), "")

    def _cannot_write(self, k: int) -> str:
        """Why a kernel cannot write again what it wrote."""
        for b in self.writes[k]:
            if self.trace.blocks[b].persistent and not self._is_statistic(k, b):
                return f"changes {self.trace.blocks[b].id}, which would change twice"
        return ""

    def _cannot_read(self, region: Region, start: int, k: int) -> str:
        """Why a kernel of a region, which runs again before kernel `start`, cannot read again what it read."""
        for b in self.reads[k]:
            block = self.trace.blocks[b]
            if block.persistent and self.releases[b] < self.count:
                return f"reads {block.id}, which the step replaces"
            if block.id.endswith("num_batches_tracked") and self.trace.kernels[k].op == _READS_VALUE:
                return f"averages its statistics over {block.id} batches"
            if self.births[b] >= region.first:
                continue
            if not block.persistent and b not in region.inputs:
                return f"reads {block.id}, which is none of its inputs"
            if any(region.first <= w < start and not self._is_statistic(w, b) for w in self.writers.get(b, ())):
                return f"reads {block.id}, which is changed in place before backward"
        return ""

    def _is_statistic(self, k: int, b: int) -> bool:
        """Whether a kernel updates running statistics, which a rerun leaves as they are (`simgpu.torch.regions`)."""
        return "batch_norm" in self.trace.kernels[k].op or self.trace.blocks[b].id.endswith("num_batches_tracked")

    def keepable(self, region: Region) -> Iterator[int]:
        """The kernels of a region whose results PyTorch can keep while the others run again.

        Their results are new and not changed in place later, and they draw no random numbers: a draw that is not
        repeated would change later ones. PyTorch does not see the operators of compiled code.
        """
        if region.is_compiled:
            return
        for k in self.rerun_range(region):
            kernel, writes = self.trace.kernels[k], self.writes[k]
            blocks = [self.trace.blocks[b] for b in writes]
            results = [b for b, block in zip(writes, blocks, strict=True) if block.kind is not BlockKind.WORKSPACE]
            fresh = all(self.births[b] == k and b not in self.reads[k] for b in results)
            if results and kernel.pure and fresh and all(self.writers[b] == [k] for b in results):
                yield k


def disjoint(regions: Collection[Region]) -> bool:
    """Whether no region overlaps with another.

    >>> one, two = Region("a", 0, 0, 4, 0, 2, (), ()), Region("a.b", 0, 1, 2, 0, 1, (), ())
    >>> disjoint([one]), disjoint([one, two])
    (True, False)
    """
    ordered = sorted((each.first, each.stop) for each in regions)
    return all(one[1] <= two[0] for one, two in pairwise(ordered))


def _type(text: str) -> tuple[str, tuple[int, ...]]:
    dtype, _, shape = text.partition(":")
    return dtype, () if shape == "scalar" else tuple(map(int, shape.split("x")))
