"""Checkpointed sections of forward: where it can be cut, and which kernels of a section run again.

A section that `torch.utils.checkpoint` can wrap is a module, or a run of consecutive modules of a chain. Layer tags are
module paths, so modules follow from the tags. `default_sections` chooses among them:

* A *list of blocks* is a module that does nothing of its own and whose children, two or more, all have children of
  their own, follow one another, and are not bypassed: no activation from before a child is read by a later sibling.
  The children of the innermost such lists are sections: residual blocks, transformer layers, stages. The parts of such
  a block are bypassed by its shortcut, so no section begins or ends within it.
* The network, or the one module that contains all of it, always counts as such a list. A module whose kernels do not
  follow one another is replaced by its children.
* A module of numbered single layers (`nn.Sequential`) with over half of the network's layers is cut into about the
  square root of their number, as `torch.utils.checkpoint.checkpoint_sequential` does, where a single tensor passes.
* Without module tags, the full network is cut in this way.
* A last section that no kernel with weights follows is left out, because it would run again at once.

If the trace has weights, only blocks computed from a weight count as activations: a mask that all transformer blocks
read does not.

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
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.trace.model import BlockKind, Phase

#: Prefix of the names of sections that are not modules; their number follows.
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
    >>> trace = chain([5] * 4, [10] * 4, [100] * 4)
    >>> default_sections(TaskGraph.of(trace)).of_layer
    {'L1': 'section 1', 'L2': 'section 1'}
    >>> names = {"L1": "stem", "L2": "block1.conv", "L3": "block1.relu", "L4": "head"}
    >>> tagged = replace(trace, kernels=tuple(replace(k, layer=names[k.layer]) for k in trace.kernels))
    >>> default_sections(TaskGraph.of(tagged))
    Sections(of_layer={'block1.conv': 'block1', 'block1.relu': 'block1'}, how='modules')
    """
    modules = _Modules(graph)
    paths = [] if graph.layers.derived else list(modules.sections(modules.start))
    if paths:
        how = "modules"
        sections = [section for path in paths for section in _of_module(graph, modules, path)]
    else:
        how = "parts that one tensor enters, as tags name no modules"
        sections = [(f"{NUMBERED}{n}", part) for n, part in enumerate(_parts(graph, modules.layers), start=1)]
    if sections and _is_last(graph, sections[-1][1]):
        sections.pop()
    return Sections({layer: name for name, layers in sections for layer in layers}, how)


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
    """The layers cut where a single tensor passes, joined to about the square root of the number of these parts."""
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
    forward = _once(graph)
    behind = forward[1 + max(n for n, k in enumerate(forward) if graph.layers.name_of(k) in layers) :]
    weights = _weights(graph)
    return not any(not weights or weights.intersection(graph.reads[k]) for k in behind)


def _forward(graph: TaskGraph, part: Round) -> list[int]:
    """The kernels of forward in a round."""
    return [k for k in range(part.first, part.stop) if graph.kernels[k].phase is Phase.FORWARD]


def _once(graph: TaskGraph) -> list[int]:
    """The kernels of forward that have all layers once: those of the first round, where the batch is split.

    Of a layer that runs in several forward passes, as in recorded micro-batches, only those of the first one.
    """
    kernels: list[int] = []
    earlier: set[str] = set()
    current: set[str] = set()
    for k in range(graph.rounds[0].first, graph.rounds[0].stop):
        if graph.kernels[k].phase is not Phase.FORWARD:
            earlier |= current
            current.clear()
        elif (name := graph.layers.name_of(k)) not in earlier:
            kernels.append(k)
            current.add(name)
    return kernels


def _weights(graph: TaskGraph) -> frozenset[int]:
    return frozenset(b for b, block in enumerate(graph.blocks) if block.kind is BlockKind.WEIGHT)


def _behind_cuts(graph: TaskGraph) -> frozenset[str]:
    """The layers at whose start exactly one activation is live, in its final version, and all earlier layers have
    ended."""
    forward = _once(graph)
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
    behind: set[str] = set()
    for k in forward:
        name = graph.layers.name_of(k)
        passing = {b for b in passing if needed[b] >= k}
        if name not in begun and until < k and len(passing) == 1 and all(written[b] < k for b in passing):
            behind.add(name)
        begun.add(name)
        until = max(until, last_of_layer[name])
        for b in graph.writes[k]:
            if b in flows:
                passing.add(b)
    return frozenset(behind)


def activations(graph: TaskGraph) -> frozenset[int]:
    """Blocks that forward computes from a weight, directly or through other kernels; all of them without known weights.

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
        """The network, or the module that contains all of its modules, if that is more than one block of layers."""
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
        """The layers of a module, including the module itself."""
        return [name for name in self.layers if name == path or name.startswith(f"{path}.")]

    def is_sequential(self, path: str) -> bool:
        """Whether a module is a sequence of single layers named by numbers."""
        numbers = [name.removeprefix(f"{path}.") for name in self.layers_in(path)]
        return all(number.isdecimal() for number in numbers)

    @cached_property
    def _names(self) -> dict[int, str]:
        graph = self.graph
        return {k: graph.layers.name_of(k) for k in _once(graph)}

    @cached_property
    def _kernels(self) -> dict[str, list[int]]:
        """For each module the kernels in it."""
        kernels: dict[str, list[int]] = {"": []}
        for k, name in self._names.items():
            if not name.startswith("("):
                parts = name.split(".")
                for n in range(len(parts) + 1):
                    kernels.setdefault(".".join(parts[:n]), []).append(k)
        return kernels

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        """For each module those in it, in order."""
        children: dict[str, list[str]] = {path: [] for path in self._kernels}
        for path in self._kernels:
            if path:
                children[path.rpartition(".")[0]].append(path)
        return {path: sorted(inner, key=lambda each: self._kernels[each][0]) for path, inner in children.items()}

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
        """Whether a module is a list of blocks, or contains one that is not bypassed.

        The blocks follow one another; in a numbered list, some may run a part again later, as DiT's first block does.
        """
        inner = [child for child in self._with_children(path) if not self._is_bypassed(child, path)]
        is_list = len(inner) == len(self._children[path]) > 1 and path not in self._names.values()
        is_numbered = all(child.rpartition(".")[2].isdecimal() for child in inner)
        enough = len(inner) // 2 + 1 if is_numbered else len(inner)
        return (is_list and sum(map(self._is_run, inner)) >= enough) or any(map(self._has_list, inner))

    def _is_bypassed(self, child: str, path: str) -> bool:
        """Whether a kernel of the module after the child reads an activation written before the child."""
        first, last = self._kernels[child][0], self._kernels[child][-1]
        return any(producer < first for k in self._kernels[path] if k > last for producer in self._producers[k])

    @cached_property
    def _producers(self) -> dict[int, list[int]]:
        """For each kernel of forward, the kernels that wrote the activations it reads."""
        graph, flows = self.graph, activations(self.graph)
        producer: dict[tuple[int, int], int] = {}
        producers = {}
        for k in self._names:
            read = zip(graph.reads[k], graph.read_versions[k], strict=True)
            producers[k] = [producer[each] for each in read if each in producer]
            written = zip(graph.writes[k], graph.write_versions[k], strict=True)
            producer |= {each: k for each in written if each[0] in flows}
        return producers


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
    saved: list[list[Saved]] = [[] for _ in regions]
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
            saved[inside].append(tensor)
    return saved


def rerun_of(
    graph: TaskGraph,
    ancestry: Ancestry,
    region: Region,
    saved: Sequence[Saved],
    held: Collection[int],
    *,
    to_end: bool = False,
) -> Rerun:
    """How a region runs again before the first kernel that takes one of its saved tensors back.

    held: blocks written in the region that are still on the device then. to_end: whether all of the region runs again,
    and not only up to the last kernel before its last saved tensor.
    """
    return _Rerunning(graph, ancestry, region, saved, set(held), to_end).result()


@dataclass
class _Rerunning:
    """retained: blocks known so far to stay. Each attempt adds the missing ones, until none is missing."""

    graph: TaskGraph
    ancestry: Ancestry
    region: Region
    saved: Sequence[Saved]
    retained: set[int]
    to_end: bool

    def __post_init__(self) -> None:
        graph, region = self.graph, self.region
        self.start = min(tensor.before for tensor in self.saved)
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
