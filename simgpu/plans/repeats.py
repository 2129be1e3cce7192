"""Equal layers of a model: which choices are the same choice, made for several layers at once.

A network of many equal layers has more choices than a solver can tell apart. Tied together in groups of neighbours, a
good plan is found quickly; that the best plan may treat neighbours differently is left to the search without ties.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from simgpu.plans.choices import Choices
from simgpu.plans.regions import Region
from simgpu.plans.rows import Chosen

#: A module in a list: the list's path, its number.
_NUMBERED = re.compile(r"(.*?)\.?([0-9]+)")
#: Layers that are fewer than this are not tied.
_FEWEST = 4


class _Place(NamedTuple):
    """Where a kernel is: the list of layers, the number of its group there, and its place in the layer."""

    layers: str
    group: int
    offset: int


def ties(choices: Choices, groups: int) -> dict[Chosen, Chosen]:
    """For each choice in one of several equal layers, the choice that stands for it.

    groups: into how many groups of neighbours the layers of a list are divided.
    """
    places = _places(choices, groups)
    first: dict[object, Chosen] = {}
    tied: dict[Chosen, Chosen] = {}

    def tie(key: object, chosen: Chosen) -> None:
        tied[chosen] = first.setdefault(key, chosen)

    for r, region in enumerate(choices.regions):
        begin, end = places.get(region.first), places.get(region.stop - 1)
        if begin is None or end is None or begin[:2] != end[:2]:
            continue
        tie(("region", begin, end), Chosen("region", r))
        for k in choices.keepable[r]:
            tie(("keep", begin, end, places[k]), Chosen("keep", r, k))
    for b in choices.offloadable:
        k = choices.steps.births[b]
        if k in places:
            tie(("offload", places[k], choices.steps.writes[k].index(b)), Chosen("offload", b))
    return tied


def _places(choices: Choices, groups: int) -> dict[int, _Place]:
    """The places of the kernels in equal layers."""
    lists: defaultdict[str, list[tuple[int, Region]]] = defaultdict(list)
    for region in choices.steps.regions():
        numbered = _NUMBERED.fullmatch(region.module)
        if numbered is not None and region.call == 0:
            lists[numbered[1]].append((int(numbered[2]), region))
    places: dict[int, _Place] = {}
    # The longest layers first: those that are in no other layer.
    for path, layers in sorted(lists.items(), key=lambda each: each[1][0][1].first - each[1][0][1].stop):
        equal = [(n, each) for n, each in layers if _operators(choices, each) == _operators(choices, layers[0][1])]
        if len(equal) < _FEWEST or any(k in places for k in range(equal[0][1].first, equal[0][1].stop)):
            continue
        size = -(-len(equal) // groups)
        for number, (_, region) in enumerate(equal):
            for k in range(region.first, region.stop):
                places[k] = _Place(path, number // size, k - region.first)
    return places


def _operators(choices: Choices, region: Region) -> list[str]:
    return [kernel.op for kernel in choices.steps.trace.kernels[region.first : region.stop]]
