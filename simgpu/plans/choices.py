"""What a search can choose: which regions are checkpointed, which results they keep, which blocks are offloaded."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from simgpu.graph.saved import SMALLEST_PART as SMALLEST_PART_OF_BYTES
from simgpu.plans.candidate import Candidate
from simgpu.plans.iteration import Checkpointed
from simgpu.plans.regions import Region, Steps
from simgpu.torch.types import WHOLE
from simgpu.trace.model import BlockKind

#: Kernels that take a smaller part of a step are not worth a decision of their own.
SMALLEST_PART = 20_000


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
        """Calls of modules whose checkpointing frees memory; of several with the same kernels the outermost.

        A linear layer frees none: it saves its input, which it also keeps as a region. Nor does a whole model that is
        called once in a step: it is whole again when backward begins.
        """
        calls = [each.module for each in self.steps.regions()]
        seen: set[tuple[int, int, int, int]] = set()
        result = []
        for region in self.steps.regions():
            key = (region.first, region.stop, region.saved_first, region.saved_stop)
            if region.module == WHOLE and calls.count(WHOLE) == 1:
                continue
            if key not in seen and self._frees(region) and not self.steps.why_not(region):
                seen.add(key)
                result.append(region)
        return tuple(result)

    def why_none(self) -> str:
        """The commonest reason why no module can run again; empty if one can."""
        if self.regions:
            return ""
        freeing = (each for each in self.steps.regions() if self._frees(each))
        reasons = Counter(why for each in freeing if (why := self.steps.why_not(each)))
        return next((why for why, _ in reasons.most_common(1)), "")

    def _frees(self, region: Region) -> bool:
        """Whether a tensor that is saved in a region is made in it."""
        saved = self.steps.saved[region.saved_first : region.saved_stop]
        made = (each.block for each in saved if region.first <= self.steps.births[each.block] < region.stop)
        return any(self.steps.trace.blocks[b].bytes for b in made)

    @cached_property
    def keepable(self) -> tuple[tuple[int, ...], ...]:
        """For each region the kernels whose results it may keep: those that take a noticeable part of the step."""
        if not self.keep:
            return tuple(() for _ in self.regions)
        kernels, least = self.steps.trace.kernels, max(self.steps.trace.compute_ns // SMALLEST_PART, 1)
        return tuple(
            tuple(k for k in self.steps.keepable(each) if kernels[k].duration_ns >= least) for each in self.regions
        )

    @cached_property
    def offloadable(self) -> tuple[int, ...]:
        """The blocks that may be offloaded: made and saved by forward, not changed after they are saved, not tiny."""
        if not self.offload:
            return ()
        saved: defaultdict[int, int] = defaultdict(lambda: self.steps.count)
        for each in self.steps.saved:
            saved[each.block] = min(saved[each.block], each.after)
        for region in self.regions:
            for b in region.inputs:
                saved[b] = min(saved[b], region.first - 1)
        least = sum(self.steps.trace.blocks[b].bytes for b in saved) // SMALLEST_PART_OF_BYTES
        result = []
        for b, after in sorted(saved.items()):
            block = self.steps.trace.blocks[b]
            made = not block.persistent and block.host_write is None and block.kind is not BlockKind.WORKSPACE
            if made and block.bytes > least and all(k <= after for k in self.steps.writers.get(b, ())):
                result.append(b)
        return tuple(result)

    def candidate(
        self, regions: dict[int, frozenset[int]], offloaded: tuple[int, ...] = (), prefetch: int = 1, stash: int = 1
    ) -> Candidate:
        """A candidate. regions: the kernels that each chosen region keeps, by its number. offloaded: blocks."""
        chosen = tuple(Checkpointed(self.regions[r], keeps) for r, keeps in sorted(regions.items()))
        names = tuple(self.steps.trace.blocks[b].id for b in offloaded)
        return Candidate(self.steps, chosen, names, prefetch, stash)
