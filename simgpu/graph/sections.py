"""Checkpointed sections of forward: where it can be cut, and which kernels of a section run again.

A section that `torch.utils.checkpoint` can wrap is a module, or a run of consecutive modules of a chain. Layer tags are
module paths, so modules follow from the tags. `default_sections` chooses among them:

* A *list of blocks* is a module that does nothing of its own and whose children, two or more, all have children of
  their own, follow one another, and are not bypassed: no activation from before a child is read by a later sibling.
  The children of the innermost such lists are sections: residual blocks, transformer layers, stages. The parts of such
  a block are bypassed by its shortcut, so no section begins or ends within it.
* The whole network counts as such a list in any case, or the one module that contains all of it. A module whose kernels
  do not follow one another is replaced by its children.
* A module of numbered single layers (`nn.Sequential`) with over half of the network's layers is cut into about the
  square root of their number, as `torch.utils.checkpoint.checkpoint_sequential` does, where a single tensor passes.
* Without module tags, the whole network is cut in this way.
* A last section that no kernel with weights follows is left out, because it would run again at once.

An activation is what is computed from a weight, if the trace has weights: a mask that all transformer blocks read is
none.

A section runs again up to the last kernel before the last tensor that was saved inside it. A kernel that may not run
again (`simgpu.graph.recompute`), or whose inputs have changed, does not: its results are retained, and so is whatever
can only be recomputed from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import Saved
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind, Phase

#: How sections are called that are no modules, with their number behind it.
NUMBERED = "section "


class Sections(NamedTuple):
    """Which layers are checkpointed together. of_layer: for each such layer the name of its section. how: what the
    sections are, in a few words."""

    of_layer: dict[str, str]
    how: str


def default_sections(graph: TaskGraph) -> Sections:
    """Modules where the tags give any, else parts between points that a single tensor passes.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> made = chain([5] * 4, [10] * 4, [100] * 4)
    >>> default_sections(TaskGraph.of(made)).of_layer
    {'L1': 'section 1', 'L2': 'section 1'}
    >>> names = {"L1": "stem", "L2": "block1.conv", "L3": "block1.relu", "L4": "head"}
    >>> tagged = replace(made, kernels=tuple(replace(k, layer=names[k.layer]) for k in made.kernels))
    >>> default_sections(TaskGraph.of(tagged))
    Sections(of_layer={'block1.conv': 'block1', 'block1.relu': 'block1'}, how='modules')
    """
    modules = _Modules(graph)
    paths = [] if graph.layers.derived else list(modules.sections(modules.start))
    if paths:
        how = "modules"
        result = [section for path in paths for section in _of_module(graph, modules, path)]
    else:
        how = "parts that one tensor enters, as tags name no modules"
        result = [(f"{NUMBERED}{n}", part) for n, part in enumerate(_parts(graph, modules.layers), start=1)]
    if result and _is_last(graph, result[-1][1]):
        result.pop()
    return Sections({layer: name for name, layers in result for layer in layers}, how)


def _of_module(graph: TaskGraph, modules: _Modules, path: str) -> list[tuple[str, list[str]]]:
    """A module's sections and their layers: itself, or slices of a long sequence, named as in Python."""
    layers = modules.layers_in(path)
    if 2 * len(layers) <= len(modules.layers) or not modules.is_sequential(path):
        return [(path, layers)]
    parts = _parts(graph, layers)
    begins = [int(part[0].rpartition(".")[2]) for part in parts]
    ends = [*begins[1:], int(layers[-1].rpartition(".")[2]) + 1]
    return [(f"{path}[{begin}:{end}]", part) for begin, end, part in zip(begins, ends, parts, strict=True)]


def _parts(graph: TaskGraph, layers: Sequence[str]) -> list[list[str]]:
    """The layers in about the root of the number of parts into which points that one tensor passes cut them."""
    cuts = _behind_cuts(graph)
    units: list[list[str]] = []
    for name in layers:
        if not units or name in cuts:
            units.append([])
        units[-1].append(name)
    count = max(isqrt(len(units)), 1)
    size = len(units) // count
    ends = [*(n * size for n in range(1, count)), len(units)]
    return [
        [layer for unit in units[begin:end] for layer in unit] for begin, end in pairwise([0, *ends]) if end > begin
    ]


def _is_last(graph: TaskGraph, layers: Sequence[str]) -> bool:
    """Whether no kernel of forward behind these layers reads a weight or, where no weight is known, follows at all."""
    forward = [k for k, kernel in enumerate(graph.kernels) if kernel.phase is Phase.FORWARD]
    behind = forward[1 + max(n for n, k in enumerate(forward) if graph.layers.name_of(k) in layers) :]
    weights = _weights(graph)
    return not any(not weights or weights.intersection(graph.reads[k]) for k in behind)


def _weights(graph: TaskGraph) -> frozenset[int]:
    return frozenset(b for b, block in enumerate(graph.blocks) if block.kind is BlockKind.WEIGHT)


def _behind_cuts(graph: TaskGraph) -> frozenset[str]:
    """The layers before whose first kernel exactly one activation is passed on, in the version that stays, and before
    which every layer that has begun has ended."""
    forward = [k for k, kernel in enumerate(graph.kernels) if kernel.phase is Phase.FORWARD]
    last_of_layer = {graph.layers.name_of(k): k for k in forward}
    flows = activations(graph)
    written: dict[int, int] = {}
    needed: dict[int, int] = {}
    for k in forward:
        written |= dict.fromkeys(graph.writes[k], k)
        needed |= dict.fromkeys((*graph.reads[k], *graph.writes[k]), k)
    begun: set[str] = set()
    passing: set[int] = set()
    until = -1
    result: set[str] = set()
    for k in forward:
        name = graph.layers.name_of(k)
        passing = {b for b in passing if needed[b] >= k}
        if name not in begun and until < k and len(passing) == 1 and all(written[b] < k for b in passing):
            result.add(name)
        begun.add(name)
        until = max(until, last_of_layer[name])
        for b in graph.writes[k]:
            if b in flows:
                passing.add(b)
    return frozenset(result)


def activations(graph: TaskGraph) -> frozenset[int]:
    """What forward makes of a weight, directly or by way of other kernels; all that it makes where no weight is known.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> sorted(graph.blocks[b].id for b in activations(graph))
    ['x2', 'x3']
    """
    weights = _weights(graph)
    flows: set[int] = set()
    for k, kernel in enumerate(graph.kernels):
        if kernel.phase is Phase.FORWARD and (
            not weights or any(b in weights or b in flows for b in (*graph.reads[k], *graph.writes[k]))
        ):
            flows.update(b for b in graph.writes[k] if not graph.blocks[b].persistent)
    return frozenset(flows)


@dataclass(frozen=True)
class _Modules:
    """The modules that the tags of forward name; "" is the network."""

    graph: TaskGraph

    @cached_property
    def layers(self) -> list[str]:
        """The layers of forward, in order."""
        return [name for name in dict.fromkeys(self._names.values()) if not name.startswith("(")]

    @cached_property
    def start(self) -> str:
        """The network, or the module in which all of its modules are, where that is more than one block of layers."""
        start = ""
        while True:
            inner = self._with_children(start)
            if len(inner) != 1 or all(self._is_bypassed(child, inner[0]) for child in self._with_children(inner[0])):
                return start
            start = inner[0]

    def sections(self, path: str) -> Iterator[str]:
        """The sections in a module, in order."""
        for child in self._with_children(path):
            if self._has_list(child) or not self._is_run(child):
                yield from self.sections(child)
            else:
                yield child

    def layers_in(self, path: str) -> list[str]:
        """The layers of a module, its own among them."""
        return [name for name in self.layers if name == path or name.startswith(f"{path}.")]

    def is_sequential(self, path: str) -> bool:
        """Whether a module is a sequence of single layers that are called by their numbers."""
        numbers = [name.removeprefix(f"{path}.") for name in self.layers_in(path)]
        return all(number.isdecimal() for number in numbers)

    @cached_property
    def _names(self) -> dict[int, str]:
        kernels = self.graph.kernels
        return {k: self.graph.layers.name_of(k) for k, each in enumerate(kernels) if each.phase is Phase.FORWARD}

    @cached_property
    def _kernels(self) -> dict[str, list[int]]:
        """For each module the kernels in it."""
        result: dict[str, list[int]] = {"": []}
        for k, name in self._names.items():
            if not name.startswith("("):
                parts = name.split(".")
                for n in range(len(parts) + 1):
                    result.setdefault(".".join(parts[:n]), []).append(k)
        return result

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        """For each module those in it, in order."""
        result: dict[str, list[str]] = {path: [] for path in self._kernels}
        for path in self._kernels:
            if path:
                result[path.rpartition(".")[0]].append(path)
        return {path: sorted(inner, key=lambda each: self._kernels[each][0]) for path, inner in result.items()}

    def _with_children(self, path: str) -> list[str]:
        return [child for child in self._children[path] if self._children[child]]

    def _is_run(self, path: str) -> bool:
        """Whether the kernels of a module follow one another in forward."""
        return (
            len(self._kernels[path]) == self._place[self._kernels[path][-1]] - self._place[self._kernels[path][0]] + 1
        )

    @cached_property
    def _place(self) -> dict[int, int]:
        return {k: place for place, k in enumerate(self._names)}

    def _has_list(self, path: str) -> bool:
        """Whether a module is a list of blocks, or one lies in it that nothing passes by."""
        inner = [child for child in self._with_children(path) if not self._is_bypassed(child, path)]
        is_list = len(inner) == len(self._children[path]) > 1 and path not in self._names.values()
        return (is_list and all(map(self._is_run, inner))) or any(map(self._has_list, inner))

    def _is_bypassed(self, child: str, path: str) -> bool:
        """Whether a later kernel of the module reads an activation that was made before the child in it."""
        first, last = self._kernels[child][0], self._kernels[child][-1]
        return any(created < first for k in self._kernels[path] if k > last for created in self._needed_for[k])

    @cached_property
    def _needed_for(self) -> dict[int, list[int]]:
        """For each kernel of forward those that made the activations that it reads."""
        graph, flows = self.graph, activations(self.graph)
        maker: dict[tuple[int, int], int] = {}
        result = {}
        for k in self._names:
            read = zip(graph.reads[k], graph.read_versions[k], strict=True)
            result[k] = [maker[each] for each in read if each in maker]
            written = zip(graph.writes[k], graph.write_versions[k], strict=True)
            maker |= {each: k for each in written if each[0] in flows}
        return result


class Region(NamedTuple):
    """Consecutive forward kernels of one section, from `first` up to `stop`."""

    section: str
    first: int
    stop: int


class Rerun(NamedTuple):
    """How a region runs again. runs: its kernels in order, each with the blocks that it makes. kept: blocks made in the
    region that stay instead. left_out: kernels that do not run again, for all that the region does."""

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

    What is saved between the last kernel of one region and the first kernel behind it may have been made by the one or
    be about to be read by the other: the layer whose backward takes it back tells, and where it does not, whether the
    kernel behind reads it.
    """
    within = {k: number for number, region in enumerate(regions) for k in range(region.first, region.stop)}
    forward = [k for k, kernel in enumerate(graph.kernels) if kernel.phase is Phase.FORWARD]
    following = dict(zip([-1, *forward], forward, strict=False))
    result: list[list[Saved]] = [[] for _ in regions]
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
            result[inside].append(tensor)
    return result


def rerun_of(
    graph: TaskGraph, ancestry: Ancestry, region: Region, saved: Sequence[Saved], held: Collection[int]
) -> Rerun:
    """How a region runs again before the first kernel that takes one of its saved tensors back.

    held: blocks made in the region that are on the device then all the same.
    """
    return _Rerunning(graph, ancestry, region, saved, set(held)).rerun()


@dataclass
class _Rerunning:
    """kept: what is known so far to stay. Whatever turns out to be missing is added, and all is looked at anew."""

    graph: TaskGraph
    ancestry: Ancestry
    region: Region
    saved: Sequence[Saved]
    retained: set[int]

    def __post_init__(self) -> None:
        graph, region = self.graph, self.region
        self.start = min(tensor.before for tensor in self.saved)
        last = max(tensor.after for tensor in self.saved)
        self.kernels = range(region.first, min(region.stop, last + 1))
        births = graph.births
        self.inside = {b for b, birth in enumerate(births) if birth is not None and region.first <= birth < region.stop}
        self.retained |= {b for b in self.inside if graph.blocks[b].host_write is not None}
        for k in self.kernels:
            self.retained.update(self.ancestry.retained[k])

    def rerun(self) -> Rerun:
        """The kernels that run again, once nothing is missing any more."""
        while True:
            before = len(self.retained)
            runs, makers = self._attempt()
            self.retained.update(b for b in self.inside - self.retained if self._is_missed(b, makers))
            if len(self.retained) == before:
                left_out = set(self.kernels) - {k for k, _ in runs}
                return Rerun(tuple(runs), frozenset(self.retained & self.inside), tuple(sorted(left_out)))

    def _attempt(self) -> tuple[list[tuple[int, tuple[int, ...]]], dict[int, int]]:
        """The kernels that can run again with what is kept, and the versions that they leave."""
        makers: dict[int, int] = {}
        runs = []
        for k in self.kernels:
            outputs = self.ancestry.outputs[k]
            makes = tuple(b for b in outputs if b in self.inside and b not in self.retained)
            if outputs and not makes and all(b in self.retained for b in outputs):
                continue
            if self._can_run(k, makers):
                runs.append((k, makes))
                versions = dict(zip(self.graph.writes[k], self.graph.write_versions[k], strict=True))
                makers.update((b, versions[b]) for b in makes)
            else:
                self.retained.update(b for b in makes if self._is_needed(b, k))
        return runs, makers

    def _can_run(self, k: int, makers: dict[int, int]) -> bool:
        graph, ancestry = self.graph, self.ancestry
        if not ancestry.repeatable(k):
            return False
        for b in ancestry.outputs[k]:
            changed = b in graph.reads[k]
            if (b not in self.inside and not graph.blocks[b].persistent) or (changed and b in self.retained):
                return False
        result = dict(zip(graph.writes[k], graph.write_versions[k], strict=True))
        result |= dict(zip(graph.reads[k], graph.read_versions[k], strict=True))
        return all(self._version_there(b, makers) == result[b] for b in ancestry.inputs[k])

    def _version_there(self, b: int, makers: dict[int, int]) -> int | None:
        """The version of a block that is on the device while the region runs again, None if none is."""
        if b in self.inside and b not in self.retained:
            return makers.get(b)
        return sum(b in self.graph.writes[u] for u in self.graph.uses[b] if u < self.start)

    def _is_needed(self, b: int, k: int) -> bool:
        """Whether what kernel k makes is used by anything after it."""
        return self.graph.blocks[b].kind is not BlockKind.WORKSPACE and self.graph.uses[b][-1] > k

    def _is_missed(self, b: int, makers: dict[int, int]) -> bool:
        """Whether backward needs a block in a version that does not come of the rerun."""
        graph = self.graph
        for u in graph.uses[b]:
            if u >= self.start:
                if b in graph.reads[u]:
                    return makers.get(b) != graph.read_versions[u][graph.reads[u].index(b)]
                return False
        return False
