"""Groups of saved tensors that are offloaded together: those of a layer, or of a module of each layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simgpu.graph.passes import Pass
from simgpu.graph.regions import saved_inside
from simgpu.graph.saved import Saved, backward_ends
from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.common.layer_parts import Module, regions_of_modules
from simgpu.trace.model import Phase


class SavedGroup(NamedTuple):
    """Saved tensors of one module in one forward pass.

    name: of the module; of modules of several layers that are alike, the same. start, commit: the first and the last
    kernel of forward that belongs to it. begin, end: the first and the last kernel of its backward. numbers: its saved
    tensors in the order of saving, those that stay on the device too.
    """

    name: str
    start: int
    commit: int
    begin: int
    end: int
    numbers: tuple[int, ...]


def groups_of(
    graph: TaskGraph, part: Pass, modules: Mapping[int, Module], tensors: Sequence[Saved]
) -> dict[Module, SavedGroup]:
    """The groups of a pass, in the order in which forward begins them. modules: of each kernel of forward."""
    regions, section_of = regions_of_modules(graph, modules, range(*part))
    of_key = {module.key: module for module in modules.values()}
    number = {id(tensor): n for n, tensor in enumerate(tensors)}
    own = [tensor for tensor in tensors if part.first - 1 <= tensor.after < part.stop and tensor.before < part.stop]
    saved: defaultdict[Module, list[Saved]] = defaultdict(list)
    spans: dict[Module, range] = {}
    for region, inside in zip(regions, saved_inside(graph, regions, section_of, own), strict=True):
        module = of_key[region.section]
        saved[module] += inside
        spans[module] = range(spans.get(module, range(region.first, 0)).start, region.stop)
    unused = dict(zip(map(id, own), backward_ends(graph, own), strict=True))
    backward = _backward(graph, part)
    groups = {}
    for module, span in spans.items():
        listed = sorted(saved[module], key=lambda tensor: number[id(tensor)])
        used = [k for tensor in listed for k in (tensor.before, unused[id(tensor)])]
        used += (k for tag in module.tags for k in backward.get(tag, ()))
        if used:
            numbers = tuple(number[id(tensor)] for tensor in listed)
            groups[module] = SavedGroup(module.name, span[0], span[-1], min(used), max(used), numbers)
    return groups


def _backward(graph: TaskGraph, part: Pass) -> dict[str, list[int]]:
    """The kernels of backward of each layer tag."""
    kernels: defaultdict[str, list[int]] = defaultdict(list)
    for k in range(part.first, part.stop):
        if graph.kernels[k].phase is Phase.BACKWARD:
            kernels[graph.layers.name_of(k)].append(k)
    return kernels
