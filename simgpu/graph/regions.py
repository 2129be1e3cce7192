"""Parts of forward that are checkpointed: which kernels they are, what is saved inside, and what of them runs again.

A region runs again up to the last kernel before the last tensor that was saved inside it. A kernel that may not run
again (`simgpu.graph.recompute`), or would not find what it found the first time, does not: what it made then counts as
kept, and so does whatever can only be made again by way of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import Saved
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind, Phase


class Region(NamedTuple):
    """Consecutive forward kernels of one section, from `first` up to `stop`."""

    section: str
    first: int
    stop: int


class Rerun(NamedTuple):
    """How a region runs again. runs: its kernels in order, each with the blocks that it makes. kept: blocks made in the
    region that stay instead. left_out: kernels that do not run again, for all that the region does."""

    runs: tuple[tuple[int, tuple[int, ...]], ...]
    kept: frozenset[int]
    left_out: tuple[int, ...]


def regions_of(graph: TaskGraph, section_of: Mapping[str, str]) -> tuple[Region, ...]:
    """The regions of forward, in order; a section that runs several times, or is interrupted, has several.

    section_of: for each layer that belongs to a section, that section.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> regions_of(graph, {"L1": "a", "L2": "a"})
    (Region(section='a', first=0, stop=2),)
    """
    found: list[Region] = []
    for k, kernel in enumerate(graph.kernels):
        section = section_of.get(graph.layers.name_of(k)) if kernel.phase is Phase.FORWARD else None
        if section is None:
            continue
        if found and found[-1].section == section and found[-1].stop == k:
            found[-1] = found[-1]._replace(stop=k + 1)
        else:
            found.append(Region(section, k, k + 1))
    return tuple(found)


def saved_inside(
    graph: TaskGraph, regions: Sequence[Region], section_of: Mapping[str, str], tensors: Iterable[Saved]
) -> list[list[Saved]]:
    """For each region the tensors that were saved inside it.

    What is saved between the last kernel of one region and the first kernel behind it may have been made by the one or
    be about to be read by the other: the layer whose backward takes it back tells, and where it does not, whether the
    kernel behind reads it.
    """
    within = {k: number for number, region in enumerate(regions) for k in range(region.first, region.stop)}
    forward = [k for k, kernel in enumerate(graph.kernels) if kernel.phase is Phase.FORWARD]
    following = dict(zip([-1, *forward], forward, strict=False))
    found: list[list[Saved]] = [[] for _ in regions]
    for tensor in tensors:
        behind = following.get(tensor.after)
        sides = (within.get(tensor.after), None if behind is None else within.get(behind))
        inside = sides[0]
        if sides[0] != sides[1]:
            section = section_of.get(graph.layers.name_of(tensor.before))
            matching = [side for side in sides if (regions[side].section if side is not None else None) == section]
            if len(matching) == 1:
                inside = matching[0]
            elif behind is not None and tensor.block in graph.reads[behind]:
                inside = sides[1]
        if inside is not None:
            found[inside].append(tensor)
    return found


def rerun_of(
    graph: TaskGraph, ancestry: Ancestry, region: Region, saved: Sequence[Saved], held: Collection[int]
) -> Rerun:
    """How a region runs again before the first kernel that takes one of its saved tensors back.

    held: blocks made in the region that are on the device then all the same.
    """
    return _Rerunning(graph, ancestry, region, saved, set(held)).found()


@dataclass
class _Rerunning:
    """kept: what is known so far to stay. Whatever turns out to be missing is added, and all is looked at anew."""

    graph: TaskGraph
    ancestry: Ancestry
    region: Region
    saved: Sequence[Saved]
    kept: set[int]

    def __post_init__(self) -> None:
        graph, region = self.graph, self.region
        self.start = min(tensor.before for tensor in self.saved)
        last = max(tensor.after for tensor in self.saved)
        self.kernels = range(region.first, min(region.stop, last + 1))
        births = graph.births
        self.inside = {b for b, birth in enumerate(births) if birth is not None and region.first <= birth < region.stop}
        self.kept |= {b for b in self.inside if graph.blocks[b].born is not None}
        for k in self.kernels:
            self.kept.update(self.ancestry.kept[k])

    def found(self) -> Rerun:
        """The kernels that run again, once nothing is missing any more."""
        while True:
            before = len(self.kept)
            runs, made = self._attempt()
            self.kept.update(b for b in self.inside - self.kept if self._is_missed(b, made))
            if len(self.kept) == before:
                left_out = set(self.kernels) - {k for k, _ in runs}
                return Rerun(tuple(runs), frozenset(self.kept & self.inside), tuple(sorted(left_out)))

    def _attempt(self) -> tuple[list[tuple[int, tuple[int, ...]]], dict[int, int]]:
        """The kernels that can run again with what is kept, and the versions that they leave."""
        made: dict[int, int] = {}
        runs = []
        for k in self.kernels:
            outputs = self.ancestry.outputs[k]
            makes = tuple(b for b in outputs if b in self.inside and b not in self.kept)
            if outputs and not makes and all(b in self.kept for b in outputs):
                continue
            if self._can_run(k, made):
                runs.append((k, makes))
                versions = dict(zip(self.graph.writes[k], self.graph.write_versions[k], strict=True))
                made.update((b, versions[b]) for b in makes)
            else:
                self.kept.update(b for b in makes if self._is_needed(b, k))
        return runs, made

    def _can_run(self, k: int, made: dict[int, int]) -> bool:
        graph, ancestry = self.graph, self.ancestry
        if not ancestry.repeatable(k):
            return False
        for b in ancestry.outputs[k]:
            changed = b in graph.reads[k]
            if (b not in self.inside and not graph.blocks[b].persistent) or (changed and b in self.kept):
                return False
        found = dict(zip(graph.writes[k], graph.write_versions[k], strict=True))
        found |= dict(zip(graph.reads[k], graph.read_versions[k], strict=True))
        return all(self._version_there(b, made) == found[b] for b in ancestry.inputs[k])

    def _version_there(self, b: int, made: dict[int, int]) -> int | None:
        """The version of a block that is on the device while the region runs again, None if none is."""
        if b in self.inside and b not in self.kept:
            return made.get(b)
        return sum(b in self.graph.writes[u] for u in self.graph.uses[b] if u < self.start)

    def _is_needed(self, b: int, k: int) -> bool:
        """Whether what kernel k makes is used by anything after it."""
        return self.graph.blocks[b].kind is not BlockKind.WORKSPACE and self.graph.uses[b][-1] > k

    def _is_missed(self, b: int, made: dict[int, int]) -> bool:
        """Whether backward needs a block in a version that does not come of the rerun."""
        graph = self.graph
        for u in graph.uses[b]:
            if u >= self.start:
                if b in graph.reads[u]:
                    return made.get(b) != graph.read_versions[u][graph.reads[u].index(b)]
                return False
        return False
