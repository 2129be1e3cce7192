"""Equal layers and micro-batches: which choices are the same choice, made for several of them at once.

A network of many equal layers has more choices than a solver can tell apart. Tied together in groups of neighbours, a
good plan is found quickly; that the best plan may treat neighbours differently is left to the search without ties.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from simgpu.plans.choices import Choices
from simgpu.plans.regions import Region, Steps
from simgpu.plans.rows import Chosen
from simgpu.torch.types import WHOLE

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
    """For each choice in one of several equal layers or micro-batches, the choice that stands for it.

    groups: into how many groups of neighbours the layers of a list are divided.
    """
    same, layers = _same(choices.steps), _places(choices, groups)
    first: dict[object, Chosen] = {}
    tied: dict[Chosen, Chosen] = {}

    def tie(key: object, chosen: Chosen) -> None:
        if (other := first.setdefault(key, chosen)) != chosen:
            tied[chosen] = other

    for r, region in enumerate(choices.regions):
        begin, end = same.get(region.first, region.first), same.get(region.stop - 1, region.stop - 1)
        in_layer = begin in layers and end in layers and layers[begin][:2] == layers[end][:2]
        places: Mapping[int, object] = layers if in_layer else {}
        ends = places.get(begin, begin), places.get(end, end)
        tie(("region", ends), Chosen("region", r))
        for k in choices.keepable[r]:
            kernel = same.get(k, k)
            tie(("keep", ends, places.get(kernel, kernel)), Chosen("keep", r, k))
    for b in choices.offloadable:
        k = choices.steps.births[b]
        kernel = same.get(k, k)
        tie(("offload", layers.get(kernel, kernel), choices.steps.writes[k].index(b)), Chosen("offload", b))
    return tied


def _same(steps: Steps) -> dict[int, int]:
    """For each kernel of a later call of the whole model, the same kernel of the first call, where the calls are equal.

    So they are in micro-batches. The loss, which follows a call, counts to it.
    """
    calls = [region for region in steps.regions() if region.module == WHOLE]
    begins = [each.first for each in calls[1:]]
    forwards = [_forward(steps, each, stop) for each, stop in zip(calls, [*begins, steps.count], strict=False)]
    ops = [[steps.trace.kernels[k].op for k in each] for each in forwards]
    return {
        k: first
        for each, own in zip(forwards[1:], ops[1:], strict=True)
        if own == ops[0]
        for k, first in zip(each, forwards[0], strict=True)
    }


def _forward(steps: Steps, call: Region, stop: int) -> range:
    """The kernels of a call, and those after it until backward or the next call begins."""
    after = (k for k in range(call.stop, stop) if not steps.is_forward[k])
    return range(call.first, next(after, stop))


def _places(choices: Choices, groups: int) -> dict[int, _Place]:
    """The places of the kernels in equal layers, as the step calls them first."""
    places: dict[int, _Place] = {}
    for path, equal in _lists(choices.steps):
        if any(k in places for k in range(equal[0].first, equal[0].stop)):
            continue
        size = -(-len(equal) // groups)
        for number, layer in enumerate(equal):
            for k in range(layer.first, layer.stop):
                places[k] = _Place(path, number // size, k - layer.first)
    return places


def equal_layers(steps: Steps) -> tuple[Region, ...]:
    """The equal layers of the list that runs most kernels, and that can all run again; empty if there is none."""
    for _, equal in _lists(steps):
        if not any(steps.why_not(layer) for layer in equal):
            return tuple(equal)
    return ()


def why_no_layers(steps: Steps) -> str:
    """Why there are no `equal_layers`."""
    for path, equal in _lists(steps):
        reasons = (f"{layer.module} {why}" for layer in equal if (why := steps.why_not(layer)))
        if first := next(reasons, ""):
            return f"the equal layers of {path or 'the model'} cannot all run again: {first}"
    return f"the model has no list of {_FEWEST} or more equal layers"


def _lists(steps: Steps) -> list[tuple[str, list[Region]]]:
    """The lists of modules with equal layers: their paths and these layers, in order of the size of a layer."""
    lists: defaultdict[str, list[Region]] = defaultdict(list)
    for region in steps.regions():
        numbered = _NUMBERED.fullmatch(region.module)
        if numbered is not None and region.call == 0:
            lists[numbered[1]].append(region)
    result = []
    for path, layers in lists.items():
        equal = [each for each in layers if _operators(steps, each) == _operators(steps, layers[0])]
        if len(equal) >= _FEWEST:
            result.append((path, equal))
    # The longest layers first: those that are in no other layer.
    return sorted(result, key=lambda each: each[1][0].first - each[1][0].stop)


def _operators(steps: Steps, region: Region) -> list[str]:
    return [kernel.op for kernel in steps.trace.kernels[region.first : region.stop]]
