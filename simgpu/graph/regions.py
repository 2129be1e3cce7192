"""Regions of forward that run again: the kernels of checkpointed sections, and what is saved inside them.

A section runs again up to the last kernel before the last tensor that was saved inside it. A kernel that may not run
again (`simgpu.graph.recompute`), or whose inputs have changed, does not: its results are retained, and so is whatever
can only be recomputed from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import Saved
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.trace.model import BlockKind, Phase


class Region(NamedTuple):
    """Consecutive forward kernels of one section, from `first` up to `stop`."""

    section: str
    first: int
    stop: int


class Rerun(NamedTuple):
    """How a region runs again. runs: its kernels in order, each with the blocks that it writes. retained: blocks of the
    region that stay in memory instead. left_out: kernels of the region that do not run again."""

    runs: tuple[tuple[int, tuple[int, ...]], ...]
    retained: frozenset[int]
    left_out: tuple[int, ...]


def regions_of(graph: TaskGraph, section_of: Mapping[str, str]) -> tuple[Region, ...]:
    """The regions of forward, in order; a section that runs several times, or is interrupted, has several.

    section_of: for each layer that belongs to a section, that section.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> regions_of(graph, {"L1": "a", "L2": "a"})
    (Region(section='a', first=0, stop=2),)
    """
    regions: list[Region] = []
    for k, kernel in enumerate(graph.kernels):
        section = section_of.get(graph.layers.name_of(k)) if kernel.phase is Phase.FORWARD else None
        if section is None:
            continue
        if regions and regions[-1].section == section and regions[-1].stop == k:
            regions[-1] = regions[-1]._replace(stop=k + 1)
        else:
            regions.append(Region(section, k, k + 1))
    return tuple(regions)


def saved_inside(
    graph: TaskGraph, regions: Sequence[Region], section_of: Mapping[str, str], tensors: Iterable[Saved]
) -> list[list[Saved]]:
    """For each region the tensors that were saved inside it.

    A tensor saved between the last kernel of one region and the next kernel belongs to either. The layer whose backward
    takes it back decides; where it does not, the tensor belongs to the next kernel if that reads it.
    """
    within = {k: number for number, region in enumerate(regions) for k in range(region.first, region.stop)}
    rounds = [(part.first - 1, _forward(graph, part)) for part in graph.rounds]
    following = {k: behind for before, own in rounds for k, behind in zip([before, *own], own, strict=False)}
    sections = _with_modules(section_of)
    saved: list[list[Saved]] = [[] for _ in regions]
    for tensor in tensors:
        behind = following.get(tensor.after)
        sides = (within.get(tensor.after), None if behind is None else within.get(behind))
        inside = sides[0]
        if sides[0] != sides[1]:
            section = sections.get(graph.layers.name_of(tensor.before))
            matching = [side for side in sides if (regions[side].section if side is not None else None) == section]
            if len(matching) == 1:
                inside = matching[0]
            elif behind is not None and tensor.block in graph.reads[behind]:
                inside = sides[1]
        if inside is not None:
            saved[inside].append(tensor)
    return saved


def rerun_of(
    graph: TaskGraph,
    ancestry: Ancestry,
    region: Region,
    saved: Sequence[Saved],
    held: Collection[int],
    *,
    start: int,
    to_end: bool = False,
) -> Rerun:
    """How a region runs again before kernel `start`, at the latest the first one that takes a saved tensor of it back.

    held: blocks written in the region that are still on the device then. to_end: whether all of the region runs again,
    and not only up to the last kernel before its last saved tensor.
    """
    return _Rerunning(graph, ancestry, region, saved, set(held), start, to_end).result()


@dataclass
class _Rerunning:
    """retained: blocks known so far to stay. Each attempt adds the missing ones, until none is missing."""

    graph: TaskGraph
    ancestry: Ancestry
    region: Region
    saved: Sequence[Saved]
    retained: set[int]
    start: int
    to_end: bool

    def __post_init__(self) -> None:
        graph, region = self.graph, self.region
        last = max(tensor.after for tensor in self.saved)
        self.kernels = range(region.first, region.stop if self.to_end else min(region.stop, last + 1))
        births = graph.births
        self.inside = {b for b, birth in enumerate(births) if birth is not None and region.first <= birth < region.stop}
        self.retained |= {b for b in self.inside if graph.blocks[b].host_write is not None}
        for k in self.kernels:
            self.retained.update(self.ancestry.reread[k])

    def result(self) -> Rerun:
        """The kernels that run again, once no block is missing."""
        while True:
            before = len(self.retained)
            runs, rebuilt = self._attempt()
            self.retained.update(b for b in self.inside - self.retained if self._is_missed(b, rebuilt))
            if len(self.retained) == before:
                left_out = set(self.kernels) - {k for k, _ in runs}
                return Rerun(tuple(runs), frozenset(self.retained & self.inside), tuple(sorted(left_out)))

    def _attempt(self) -> tuple[list[tuple[int, tuple[int, ...]]], dict[int, int]]:
        """The kernels that can run again with the retained blocks, and the versions that they write."""
        rebuilt: dict[int, int] = {}
        runs = []
        for k in self.kernels:
            outputs = self.ancestry.outputs[k]
            makes = tuple(b for b in outputs if b in self.inside and b not in self.retained)
            if outputs and not makes and all(b in self.retained for b in outputs):
                continue
            if self._can_run(k, rebuilt):
                runs.append((k, makes))
                versions = dict(zip(self.graph.writes[k], self.graph.write_versions[k], strict=True))
                rebuilt.update((b, versions[b]) for b in makes)
            else:
                self.retained.update(b for b in makes if self._is_needed(b, k))
        return runs, rebuilt

    def _can_run(self, k: int, rebuilt: dict[int, int]) -> bool:
        graph, ancestry = self.graph, self.ancestry
        if not ancestry.repeatable(k):
            return False
        for b in ancestry.outputs[k]:
            changed = b in graph.reads[k]
            if (b not in self.inside and not graph.blocks[b].persistent) or (changed and b in self.retained):
                return False
        needed = dict(zip(graph.writes[k], graph.write_versions[k], strict=True))
        needed |= dict(zip(graph.reads[k], graph.read_versions[k], strict=True))
        return all(self._version_there(b, rebuilt) == needed[b] for b in ancestry.inputs[k])

    def _version_there(self, b: int, rebuilt: dict[int, int]) -> int | None:
        """The version of a block that is on the device while the region runs again, None if none is."""
        if b in self.inside and b not in self.retained:
            return rebuilt.get(b)
        return sum(b in self.graph.writes[u] for u in self.graph.uses[b] if u < self.start)

    def _is_needed(self, b: int, k: int) -> bool:
        """Whether a kernel after k uses block b."""
        return self.graph.blocks[b].kind is not BlockKind.WORKSPACE and self.graph.uses[b][-1] > k

    def _is_missed(self, b: int, rebuilt: dict[int, int]) -> bool:
        """Whether backward needs a block in a version that the rerun does not write."""
        graph = self.graph
        for u in graph.uses[b]:
            if u >= self.start:
                if b in graph.reads[u]:
                    return rebuilt.get(b) != graph.read_versions[u][graph.reads[u].index(b)]
                return False
        return False


def _forward(graph: TaskGraph, part: Round) -> list[int]:
    """The kernels of forward in a round."""
    return [k for k in range(part.first, part.stop) if graph.kernels[k].phase is Phase.FORWARD]


def _with_modules(section_of: Mapping[str, str]) -> dict[str, str]:
    """The section of each layer, and of each module that has layers in one section alone.

    A kernel of backward may be tagged with a module that in forward only its parts run, as a compiled layer with LoRA.
    """
    of_module: dict[str, set[str]] = {}
    for layer, section in section_of.items():
        parts = layer.split(".")
        for count in range(1, len(parts)):
            of_module.setdefault(".".join(parts[:count]), set()).add(section)
    return {name: next(iter(found)) for name, found in of_module.items() if len(found) == 1} | {**section_of}
