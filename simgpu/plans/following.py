"""The decisions of a placing policy as a plan: which modules run again and what is offloaded, and what is lost.

A policy decides about single blocks: it keeps, offloads or recomputes each. PyTorch recomputes calls of modules, and
offloads what is saved outside of them. So a call is recomputed if the policy recomputes blocks that are made and saved
in it, and offloads none of these; it keeps the results that the policy keeps. Of calls inside each other those are
taken that recompute most of the policy's bytes. A saved tensor is offloaded if the policy offloads its block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.spec import NodeSpec
from simgpu.plans.candidate import Candidate
from simgpu.plans.choices import Choices
from simgpu.plans.regions import Region, Steps
from simgpu.plans.search import Search
from simgpu.program.instructions import DEVICE, Copy, Launch
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_time

#: How often a policy is asked, and the least part of the budget by which it is asked for less.
_TRIES, _LESS = 8, 50


class Decided(NamedTuple):
    """The blocks that a policy recomputes and those that it offloads."""

    recomputed: frozenset[int]
    offloaded: frozenset[int]


class Followed(NamedTuple):
    """candidate: what PyTorch can do of a policy's decisions. notes: what the policy costs, and what is lost."""

    candidate: Candidate
    notes: tuple[str, ...]


def follow(choices: Choices, policy: str, node: NodeSpec, budget: int, progress: Callable[[str], None]) -> Followed:
    """Follows a policy's decisions within a budget, with the fastest number of copies under way.

    What is lost takes memory, so where the candidate does not fit, the policy is asked again with a smaller budget.

    Raises `InputError` for a policy that does more than place blocks, and if no candidate fits; `OutOfMemoryError` if
    the policy itself does not fit.
    """
    trace, search, given = choices.steps.trace, Search(choices, node, budget), budget
    need: list[int] = []
    while len(need) < _TRIES and given > 0:
        progress(f"running policy {policy} with {format_bytes(given)}")
        try:
            result = simulate(trace, node, policy, budget=given)
        except OutOfMemoryError:
            if not need:
                raise
            break
        decided = decisions(result, trace)
        candidate = candidate_of(choices, decided)
        timed = min(search.timed(candidate), key=lambda each: each[:2], default=None)
        if timed is not None:
            return Followed(timed[2], (_own_cost(result), *lost(timed[2], decided)))
        need.append(candidate.trail(node).peak)
        given -= max(need[-1] - budget, budget // _LESS)
    least, limit = format_bytes(min(need)), format_bytes(budget)
    what = f"as a plan, the decisions of {policy} need {least}, more than the budget, {limit}"
    raise InputError.single("plan", "policy", what, "give a larger budget, or leave out the policy")


def _own_cost(result: Result) -> str:
    own = f"whose own step takes {format_time(result.iteration_ns)} with {format_bytes(result.budget)}"
    return f"follows policy {result.policy}, {own}"


def decisions(result: Result, trace: Trace) -> Decided:
    """What a policy's program does with the blocks of a trace.

    Raises `InputError` if it changes the iteration in another way.
    """
    program = result.program
    if program.transforms or program.residency is not None or program.unlimited_memory:
        what = f"{result.policy} does more than to keep, offload and recompute blocks"
        raise InputError.single("plan", "policy", what, "give a placing policy, such as vdnn, superneurons or capuchin")
    recomputed: set[int] = set()
    offloaded: set[int] = set()
    for segment in program.segments:
        for instructions in segment.streams.values():
            for each in instructions:
                if isinstance(each, Copy) and each.src == DEVICE:
                    offloaded.add(each.block)
                elif isinstance(each, Launch) and each.recompute:
                    recomputed.update(each.makes or result.graph.writes[each.kernel])
    place = {block.id: b for b, block in enumerate(trace.blocks)}
    names = result.graph.blocks
    return Decided(*(frozenset(place[names[b].id] for b in each) for each in (recomputed, offloaded)))


def candidate_of(choices: Choices, decided: Decided) -> Candidate:
    """What PyTorch can do of these decisions."""
    dropped = [_dropped(choices.steps, region, decided) for region in choices.regions]
    sizes = [sum(choices.steps.trace.blocks[b].bytes for b in blocks) for blocks in dropped]
    regions = {r: _kept(choices.steps, choices.regions[r], decided) for r in _largest(choices.regions, sizes)}
    return choices.candidate(regions, tuple(b for b in choices.offloadable if b in decided.offloaded))


def _own(steps: Steps, region: Region) -> set[int]:
    """The blocks that are made in a region and saved in it."""
    saved = steps.saved[region.saved_first : region.saved_stop]
    return {each.block for each in saved if region.first <= steps.births[each.block] < region.stop}


def _held(steps: Steps, region: Region) -> set[int]:
    """The blocks that are saved outside of a region."""
    return {each.block for each in (*steps.saved[: region.saved_first], *steps.saved[region.saved_stop :])}


def _dropped(steps: Steps, region: Region, decided: Decided) -> set[int]:
    """The blocks that a policy recomputes and that a region drops; none if it holds one that the policy offloads."""
    own = _own(steps, region)
    return set() if own & decided.offloaded else (own & decided.recomputed) - _held(steps, region)


def _kept(steps: Steps, region: Region, decided: Decided) -> frozenset[int]:
    """The kernels of a region whose results the policy keeps, as far as PyTorch can."""
    own = _own(steps, region)
    again = {steps.births[b] for b in own & decided.recomputed}
    return frozenset(steps.keepable(region)) & ({steps.births[b] for b in own} - again)


def _largest(regions: Sequence[Region], sizes: Sequence[int]) -> list[int]:
    """Regions of which none is inside another, with the largest sum of sizes; inner ones where sums are equal.

    >>> one, two = Region("a", 0, 0, 4, 0, 2, (), ()), Region("a.b", 0, 1, 2, 0, 1, (), ())
    >>> _largest([one, two], [5, 5]), _largest([one, two], [6, 5]), _largest([one, two], [0, 0])
    ([1], [0], [])
    """
    best: dict[int, tuple[int, list[int]]] = {}
    outer: list[int] = []
    for r in sorted(range(len(regions)), key=lambda r: regions[r].stop - regions[r].first):
        region = regions[r]
        inner = [n for n in outer if region.first <= regions[n].first and regions[n].stop <= region.stop]
        within = sum(best[n][0] for n in inner)
        best[r] = (sizes[r], [r]) if sizes[r] > within else (within, [one for n in inner for one in best[n][1]])
        outer = [*(n for n in outer if n not in inner), r]
    return sorted(r for n in outer for r in best[n][1])


def lost(candidate: Candidate, decided: Decided) -> list[str]:
    """The bytes of each decision that a candidate does not follow."""
    steps = candidate.steps
    names = {steps.block[name] for name in candidate.offloaded}
    again = {
        b
        for each, rerun in zip(candidate.regions, candidate.planned.reruns, strict=True)
        for b in _own(steps, each.region) - _held(steps, each.region)
        if steps.births[b] in rerun
    }

    def size(blocks: Collection[int]) -> str:
        return format_bytes(sum(steps.trace.blocks[b].bytes for b in blocks))

    lines = []
    for what, wanted, done in (("recompute", decided.recomputed, again), ("offload", decided.offloaded, names)):
        if wanted - done:
            lines.append(f"does not {what} {size(wanted - done)} of the {size(wanted)} that the policy {what}s")
    if more := again - decided.recomputed:
        lines.append(f"recomputes {size(more)} that the policy keeps or offloads")
    return lines
