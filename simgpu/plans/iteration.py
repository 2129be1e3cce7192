"""The iteration that PyTorch runs when calls of modules are checkpointed: a trace with the kernels that run again.

It follows `torch.utils.checkpoint` with ``use_reentrant=False`` and `create_selective_checkpoint_contexts`, operator by
operator, as in PyTorch's own source:

* A region holds its inputs, and the results that it keeps. Everything else that its operators saved is dropped where
  the last other reference is.
* When backward first reads a tensor that was saved inside a region, the region's forward runs again, without the
  operators whose results it kept, up to the last tensor that was saved (the early stop). What it makes are new blocks:
  one that is still in memory, such as the region's output, then exists twice.
* In the rerun, references of Python are dropped as in forward, at the latest when it stops. A tensor that was saved is
  held until the operator of backward that reads it has freed it, a kept result also until the rerun takes it.
* The inputs are held until all tensors that were saved inside the region are freed.

The result has the tensors that are saved outside of regions, and the inputs of regions, as its saved tensors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from simgpu.plans.regions import Region, Steps, Unsaved
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase, SavedTensor, Trace

#: Mark of what a region makes again, behind a kernel's or block's name.
AGAIN = "~again"
#: The block that counts the batches of batch normalization when a region runs again (`simgpu.torch`).
SCRATCH = "plan.batches"


class Checkpointed(NamedTuple):
    """A region that is checkpointed. keeps: the kernels whose results it keeps."""

    region: Region
    keeps: frozenset[int] = frozenset()


class Entry(NamedTuple):
    """A kernel of the planned iteration. region: the number of the region that it runs again for, None for none."""

    kernel: int
    region: int | None


class Planned(NamedTuple):
    """trace: the planned iteration. order: its kernels, by their positions in the original trace. reruns: for each
    region, in order, the kernels that run again."""

    trace: Trace
    order: tuple[Entry, ...]
    reruns: tuple[tuple[int, ...], ...]


def planned(steps: Steps, regions: Sequence[Checkpointed]) -> Planned:
    """The iteration with these regions checkpointed; regions must not overlap, and `Steps.why_not` must be empty.

    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 7], [10, 14], [100, 200])
    >>> planned(Steps(trace), []).trace.kernels == trace.kernels
    True
    """
    writing = _Planning(steps, sorted(regions, key=lambda each: each.region.first))
    return Planned(writing.trace(), tuple(writing.order), tuple(map(tuple, writing.reruns)))


class _Planning:
    def __init__(self, steps: Steps, regions: Sequence[Checkpointed]) -> None:
        self.steps = steps
        self.regions = regions
        #: By saved tensor, the number of its region.
        self.region_of = {
            n: r for r, each in enumerate(regions) for n in range(each.region.saved_first, each.region.saved_stop)
        }
        self.starts = [steps.rerun_before(each.region) for each in regions]
        self.reruns = [
            [] if start is None else [k for k in steps.rerun_range(each.region) if k not in each.keeps]
            for each, start in zip(regions, self.starts, strict=True)
        ]
        self.order = list(self._order())
        self.position = {entry: place for place, entry in enumerate(self.order)}
        self.ids = [self._kernel_id(entry) for entry in self.order]
        self.made_again = [self._made_again(r) for r in range(len(regions))]

    def _order(self) -> Iterator[Entry]:
        at: defaultdict[int, list[int]] = defaultdict(list)
        for r, start in enumerate(self.starts):
            if start is not None:
                at[start].insert(0, r)
        for k in range(self.steps.count):
            for r in at[k]:
                yield from (Entry(again, r) for again in self.reruns[r])
            yield Entry(k, None)

    def _made_again(self, r: int) -> frozenset[int]:
        """The blocks that a region's rerun makes: those that begin in the region and that a kernel writes again."""
        inside = range(self.regions[r].region.first, self.regions[r].region.stop)
        births = self.steps.births
        written = {b for k in self.reruns[r] for b in self.steps.writes[k] if births[b] in inside}
        read = {b for k in self.reruns[r] for b in self.steps.reads[k] if births[b] in inside}
        return frozenset(written | {b for b in read if self.steps.trace.blocks[b].host_write is not None})

    # Names

    def _kernel_id(self, entry: Entry) -> str:
        name = self.steps.trace.kernels[entry.kernel].id
        return name if entry.region is None else f"{name}{AGAIN}"

    def _block_id(self, b: int, r: int | None) -> str:
        name = self.steps.trace.blocks[b].id
        return name if r is None or b not in self.made_again[r] else f"{name}{AGAIN}"

    # Ends, as positions in the planned order; the length of the order is the iteration's end

    def _ended(self, k: int) -> int:
        """Where an original kernel is in the planned order."""
        return len(self.order) if k >= self.steps.count else self.position[Entry(k, None)] if k >= 0 else 0

    def _freed(self, tensor: Unsaved) -> int:
        return self._ended(tensor.freed)

    def _unused(self, tensor: Unsaved) -> int:
        """Where a tensor saved in a region is dropped: by its operator of backward, else with autograd's graph."""
        return self._ended(tensor.freed if tensor.before is None else tensor.unused)

    def _region_ends(self, r: int) -> int:
        """Where the region's inputs are dropped."""
        region = self.regions[r].region
        return max(self._freed(each) for each in self.steps.saved[region.saved_first : region.saved_stop])

    def _in_rerun(self, r: int, k: int) -> int:
        """Where a rerun drops what forward dropped after kernel k."""
        until = [again for again in self.reruns[r] if again <= k]
        # What is dropped before the first kernel of the rerun is gone when that begins.
        return self.position[Entry(until[-1], r)] if until else self.position[Entry(self.reruns[r][0], r)] - 1

    def trace(self) -> Trace:
        """The planned trace."""
        original, steps = self.steps.trace, self.steps
        dropped = self.steps.dropped
        blocks: list[Block] = []
        for b, block in enumerate(original.blocks):
            if steps.births[b] >= 0:
                block = replace(block, release=self._end_id(self._release(b, dropped[b])))
            blocks.append(block)
        for r in range(len(self.regions)):
            for b in sorted(self.made_again[r]):
                blocks.append(self._copy(r, b, dropped[b]))
        kernels = tuple(self._kernel(place) for place in range(len(self.order)))
        if any(SCRATCH in kernel.reads for kernel in kernels):
            blocks.append(Block(SCRATCH, 8, BlockKind.OTHER, True, release=RELEASED_AT_END, shape=(), dtype="int64"))
        saved = tuple(self._saved(dropped))
        return replace(
            original,
            kernels=kernels,
            blocks=tuple(blocks),
            saved=saved,
            modules=(),
            algorithms=(),
            sparsity=(),
            compressibility=(),
            accesses=(),
        )

    def _release(self, b: int, dropped: int) -> int:
        """Where an original block is freed."""
        ends = [self._held(b, dropped)]
        for n, tensor in self._saved_of(b):
            r = self.region_of.get(n)
            if r is None:
                ends.append(self._freed(tensor))
            elif b not in self.made_again[r] and self.starts[r] is not None:  # kept, or an input
                ends.append(self._unused(tensor))
        for r, each in enumerate(self.regions):
            if b in each.region.inputs:
                ends.append(self._region_ends(r))
        return max(ends)

    def _held(self, b: int, dropped: int) -> int:
        """Where the last reference to a block is dropped that is neither autograd's nor an input of a region."""
        ends, made_by = [self._ended(dropped)], self.steps.births[b]
        for r, each in enumerate(self.regions):
            if made_by in each.keeps and self.steps.trace.blocks[b].kind is not BlockKind.WORKSPACE:
                ends.append(self._kept_until(r, made_by, dropped))
                ends += [self._unused(tensor) for n, tensor in self._saved_of(b) if self.region_of.get(n) == r]
        return max(ends)

    def _kept_until(self, r: int, k: int, dropped: int) -> int:
        """Where a region drops the kept result of kernel k: after the rerun took it, and Python dropped it again."""
        if not self.reruns[r]:
            start = self.starts[r]
            return self._region_ends(r) if start is None else max(self._ended(start) - 1, 0)
        return self._in_rerun(r, max(k, dropped))

    def _copy(self, r: int, b: int, dropped: int) -> Block:
        """A block that region r makes again."""
        block = self.steps.trace.blocks[b]
        if block.kind is BlockKind.WORKSPACE:
            end = self._in_rerun(r, self.steps.births[b])
        else:
            inside = (tensor for n, tensor in self._saved_of(b) if self.region_of.get(n) == r)
            end = max([self._in_rerun(r, dropped), *map(self._unused, inside)])
        host_write = block.host_write
        if host_write is not None:
            later = next(k for k in self.reruns[r] if k >= self.steps.births[b])
            host_write = self.ids[self.position[Entry(later, r)]]
        return replace(block, id=self._block_id(b, r), release=self._end_id(end), host_write=host_write)

    def _saved_of(self, b: int) -> list[tuple[int, Unsaved]]:
        return self._saves.get(b, [])

    @property
    def _saves(self) -> dict[int, list[tuple[int, Unsaved]]]:
        if not hasattr(self, "_saves_"):
            saves: defaultdict[int, list[tuple[int, Unsaved]]] = defaultdict(list)
            for n, tensor in enumerate(self.steps.saved):
                saves[tensor.block].append((n, tensor))
            self._saves_ = dict(saves)
        return self._saves_

    def _end_id(self, place: int) -> str:
        return RELEASED_AT_END if place >= len(self.order) else self.ids[place]

    def _kernel(self, place: int) -> Kernel:
        entry = self.order[place]
        kernel = self.steps.trace.kernels[entry.kernel]
        r = entry.region
        if r is not None:
            reads = tuple(self._named(b, r) for b in self.steps.reads[entry.kernel])
            writes = tuple(self._named(b, r) for b in self.steps.writes[entry.kernel])
            return replace(kernel, id=self.ids[place], phase=Phase.BACKWARD, reads=reads, writes=writes)
        if self.steps.is_forward[entry.kernel]:
            return kernel
        reads = tuple(self._block_id(b, self._reader(b, entry.kernel)) for b in self.steps.reads[entry.kernel])
        writes = tuple(self._block_id(b, self._reader(b, entry.kernel)) for b in self.steps.writes[entry.kernel])
        return replace(kernel, reads=reads, writes=writes)

    def _named(self, b: int, r: int) -> str:
        block = self.steps.trace.blocks[b]
        if block.persistent and block.id.endswith("num_batches_tracked"):
            return SCRATCH
        return self._block_id(b, r)

    def _reader(self, b: int, k: int) -> int | None:
        """The region whose copy of block b kernel k of backward reads, None for the original."""
        for n, tensor in self._saved_of(b):
            r = self.region_of.get(n)
            if r is not None and tensor.before is not None and tensor.before <= k <= tensor.freed:
                return r
        return None

    def _saved(self, dropped: Sequence[int]) -> Iterator[SavedTensor]:
        """The tensors saved outside of regions, and the inputs of regions, in the order of saving."""
        begins = {each.region.saved_first: r for r, each in enumerate(self.regions)}
        for n, row in enumerate(self.steps.trace.saved):
            if n in begins:
                yield from self._inputs(begins[n], dropped)
            if n not in self.region_of:
                yield replace(row, released_after=self._dropped_id(self.steps.block[row.block], dropped))

    def _inputs(self, r: int, dropped: Sequence[int]) -> Iterator[SavedTensor]:
        region, start = self.regions[r].region, self.starts[r]
        after = self.steps.trace.kernels[region.first - 1].id if region.first else None
        first = None
        if start is not None:
            first = self.ids[self.position[Entry(self.reruns[r][0], r) if self.reruns[r] else Entry(start, None)]]
        for b, (dtype, shape) in zip(region.inputs, region.types, strict=True):
            yield SavedTensor(
                self.steps.trace.blocks[b].id,
                prod(shape) * _itemsize(dtype),
                packed_after=after,
                unpacked_before=first,
                released_after=self._dropped_id(b, dropped),
                freed_after=self._end_id(self._region_ends(r)),
                layer=region.module,
                shape=shape,
                dtype=dtype,
            )

    def _dropped_id(self, b: int, dropped: Sequence[int]) -> str:
        if self.steps.trace.blocks[b].persistent:
            return RELEASED_AT_END
        return self._end_id(self._held(b, dropped[b]))


def _itemsize(dtype: str) -> int:
    """Bytes of a value; formats are named by their bits, except truth values.

    >>> _itemsize("bfloat16"), _itemsize("bool")
    (2, 1)
    """
    bits = re.search(r"[0-9]+", dtype)
    return int(bits.group()) // 8 if bits else 1
