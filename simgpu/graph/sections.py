"""Checkpointed sections of forward: where it can be cut. What runs again: `simgpu.graph.regions`.

A section that `torch.utils.checkpoint` can wrap is a module, or a run of consecutive modules of a chain. Layer tags are
module paths, so modules follow from the tags. `default_sections` chooses among them:

* A *list of blocks* is a module that does nothing of its own and whose children, two or more, all have children of
  their own, follow one another, and are not bypassed: no activation from before a child is read by a later sibling.
  The children of the innermost such lists are sections: residual blocks, transformer layers, stages. The parts of such
  a block are bypassed by its shortcut, so no section begins or ends within it.
* In a numbered list, what all blocks read bypasses none: an encoder's output, relative positions, the time of a
  diffusion step. Where such blocks are alike, so that the layers of one are among those of the other, a list of unlike
  parts in each block is not searched further: T5's blocks have two or three.
* The network, or the one module that contains all of it, always counts as such a list. A module whose kernels do not
  follow one another is replaced by its children, unless it is one of a numbered list.
* A module of numbered single layers (`nn.Sequential`) with over half of the network's layers is cut into about the
  square root of their number, as `torch.utils.checkpoint.checkpoint_sequential` does, where a single tensor passes.
* Without module tags, the full network is cut in this way.
* A last section that no kernel with weights follows is left out, because it would run again at once.

If the trace has weights, only blocks computed from a weight count as activations: a mask that all transformer blocks
read does not, nor does a weight's copy in another number format, which autocast keeps for later uses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from math import isqrt
from operator import itemgetter
from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind, Phase

#: Prefix of the names of sections that are not modules; their number follows.
NUMBERED = "section "
_KEPT = ("default sections",)
#: Operators that convert a tensor to another number format.
_CASTS = ("_to_copy", "aten::_to_copy")


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
    known: Sections | None = graph.kept.get(_KEPT)
    if known is None:
        known = graph.kept[_KEPT] = _default_sections(graph)
    return Sections({**known.of_layer}, known.how)


def _default_sections(graph: TaskGraph) -> Sections:
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
    layers = modules.layers_in[path]
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
    weights = set(_weights(graph))
    known = bool(weights)
    flows: set[int] = set()
    for k, kernel in enumerate(graph.kernels):
        if kernel.phase is not Phase.FORWARD:
            continue
        written = [b for b in graph.writes[k] if not graph.blocks[b].persistent]
        if kernel.op in _CASTS and weights.issuperset(graph.reads[k]):
            weights.update(written)
        elif not known or any(b in weights or b in flows for b in (*graph.reads[k], *graph.writes[k])):
            flows.update(written)
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
            if len(inner) != 1 or self._bypassed.issuperset(self._with_children(inner[0])):
                return start
            start = inner[0]

    def sections(self, path: str) -> Iterator[str]:
        """The sections in a module, in order."""
        is_list = self._is_numbered(path) and self._is_list(path)
        alike = self._is_numbered(path) and self._are_alike(path)
        for child in self._with_children(path):
            if self._has_list(child, alike=alike) or not (self._is_run(child) or is_list):
                yield from self.sections(child)
            else:
                yield child

    @cached_property
    def layers_in(self) -> dict[str, list[str]]:
        """For each module its layers, including the module itself."""
        layers: dict[str, list[str]] = {path: [] for path in self._kernels}
        for name in self.layers:
            parts = name.split(".")
            for n in range(len(parts) + 1):
                layers[".".join(parts[:n])].append(name)
        return layers

    def is_sequential(self, path: str) -> bool:
        """Whether a module is a sequence of single layers named by numbers."""
        numbers = [name.removeprefix(f"{path}.") for name in self.layers_in[path]]
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

    def _has_list(self, path: str, *, alike: bool) -> bool:
        """Whether a module is a list of blocks, which are alike where that is needed, or contains one that is not
        bypassed."""
        inner = [child for child in self._with_children(path) if child not in self._bypassed]
        suits = self._are_alike(path) or not alike
        return (suits and self._is_list(path)) or any(self._has_list(child, alike=alike) for child in inner)

    def _is_list(self, path: str) -> bool:
        """Whether a module is a list of blocks that follow one another.

        In a numbered list, some may run a part again later, as DiT's first block does.
        """
        inner = [child for child in self._with_children(path) if child not in self._bypassed]
        if not len(inner) == len(self._children[path]) > 1 or path in self._names.values():
            return False
        enough = len(inner) // 2 + 1 if self._is_numbered(path) else len(inner)
        return sum(map(self._is_run, inner)) >= enough

    def _is_numbered(self, path: str) -> bool:
        return all(child.rpartition(".")[2].isdecimal() for child in self._children[path])

    def _are_alike(self, path: str) -> bool:
        """Whether the layers of a block in a module are among those of another."""
        inner = {
            frozenset(name.removeprefix(child) for name in self.layers_in[child]) for child in self._with_children(path)
        }
        one_for_all = len(inner) < len(self._with_children(path))
        return one_for_all or any(one <= other or other <= one for one, other in combinations(inner, 2))

    @cached_property
    def _bypassed(self) -> frozenset[str]:
        """The modules after which a kernel of the same outer module reads an activation from before them."""
        bypassed: set[str] = set()
        for path, inner in self._children.items():
            spans = [(child, self._kernels[child][0], self._kernels[child][-1]) for child in inner]
            shared = self._shared(path) if len(inner) > 1 else frozenset()
            for k in self._kernels[path] if inner else ():
                for producer in self._producers[k] - shared:
                    first = bisect_right(spans, producer, key=itemgetter(1))
                    last = bisect_left(spans, k, key=itemgetter(1))
                    bypassed.update(child for child, _, stop in spans[first:last] if stop < k)
        return frozenset(bypassed)

    def _shared(self, path: str) -> frozenset[int]:
        """The kernels that write what all later blocks of a numbered list read, and no other kernel of the list."""
        if not self._is_numbered(path) or path in self.layers:
            return frozenset()
        blocks = [self._kernels[child] for child in self._children[path]]
        read = [frozenset().union(*(self._producers[k] for k in kernels)) for kernels in blocks]
        return frozenset(
            producer
            for producer in frozenset().union(*read)
            if all(producer in one for kernels, one in zip(blocks, read, strict=True) if kernels[0] > producer)
        )

    @cached_property
    def _producers(self) -> dict[int, frozenset[int]]:
        """For each kernel of forward, the kernels that wrote the activations it reads."""
        graph, flows = self.graph, activations(self.graph)
        producer: dict[tuple[int, int], int] = {}
        producers = {}
        for k in self._names:
            read = zip(graph.reads[k], graph.read_versions[k], strict=True)
            producers[k] = frozenset(producer[each] for each in read if each in producer)
            written = zip(graph.writes[k], graph.write_versions[k], strict=True)
            producer |= {each: k for each in written if each[0] in flows}
        return producers
