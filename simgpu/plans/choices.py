"""What a search can choose: which regions are checkpointed, which results they keep, which blocks are offloaded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from simgpu.plans.candidate import Candidate
from simgpu.plans.iteration import Checkpointed
from simgpu.plans.regions import Region, Steps
from simgpu.trace.model import BlockKind


@dataclass(frozen=True)
class Choices:
    """The choices that a trace allows, if PyTorch runs it operator by operator.

    offload: whether blocks may be offloaded. keep: whether regions may keep single results.
    """

    steps: Steps
    offload: bool = True
    keep: bool = True

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """Calls of modules that can be checkpointed; of several with the same kernels the outermost."""
        seen: set[tuple[int, int, int, int]] = set()
        result = []
        for region in self.steps.regions():
            key = (region.first, region.stop, region.saved_first, region.saved_stop)
            if key not in seen and not self.steps.why_not(region):
                seen.add(key)
                result.append(region)
        return tuple(result)

    @cached_property
    def keepable(self) -> tuple[tuple[int, ...], ...]:
        """For each region the kernels whose results it may keep: those that take time."""
        if not self.keep:
            return tuple(() for _ in self.regions)
        kernels = self.steps.trace.kernels
        return tuple(tuple(k for k in self.steps.keepable(each) if kernels[k].duration_ns) for each in self.regions)

    @cached_property
    def offloadable(self) -> tuple[int, ...]:
        """The blocks that may be offloaded: saved by forward, made by it, and not changed after they are saved."""
        if not self.offload:
            return ()
        saved: defaultdict[int, int] = defaultdict(lambda: self.steps.count)
        for each in self.steps.saved:
            saved[each.block] = min(saved[each.block], each.after)
        for region in self.regions:
            for b in region.inputs:
                saved[b] = min(saved[b], region.first - 1)
        result = []
        for b, after in sorted(saved.items()):
            block = self.steps.trace.blocks[b]
            made = not block.persistent and block.host_write is None and block.kind is not BlockKind.WORKSPACE
            if made and block.bytes and all(k <= after for k in self.steps.writers.get(b, ())):
                result.append(b)
        return tuple(result)

    def candidate(
        self, regions: dict[int, frozenset[int]], offloaded: tuple[int, ...] = (), prefetch: int = 1, stash: int = 1
    ) -> Candidate:
        """A candidate. regions: the kernels that each chosen region keeps, by its number. offloaded: blocks."""
        chosen = tuple(Checkpointed(self.regions[r], keeps) for r, keeps in sorted(regions.items()))
        names = tuple(self.steps.trace.blocks[b].id for b in offloaded)
        return Candidate(self.steps, chosen, names, prefetch, stash)
