"""moDNN's prefetches, its choice of algorithms and its defragmentation, read back from its plans (sections 5.2,
3.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from simgpu.graph.transforms import WithAlgorithms
from simgpu.papers.checks.found import rule
from simgpu.papers.checks.modnn_by_hand import BrokenPlanError, Round, walked
from simgpu.papers.checks.modnn_gains_by_hand import gains, stand_before_choice
from simgpu.papers.checks.modnn_networks import Case, at_random, on_networks
from simgpu.program.instructions import Instruction, Launch

_GB = 10**9
#: Budgets in which something leaves and comes back.
_PREFETCHING = {"VGG-16": (12 * _GB // 10,), "VGG-101": (12 << 30,), "FCN-32s": (4 * _GB,)}
_CHOOSING = {"VGG-16": (12 * _GB // 10, 2 * _GB, 12 << 30), "FCN-32s": (12 * _GB // 10, 4 * _GB, 12 << 30)}
_RANDOM = 150


def prefetches() -> dict[str, Any]:
    """Equation 9: each prefetch begins before the first task after which it would be late, and none is left out."""
    return {"equation_9": read_back(chain(on_networks(_PREFETCHING), at_random(_RANDOM, 9)), prefetches_of)}


def algorithms() -> dict[str, Any]:
    """Equation 10: of each convolution the algorithm of most gain is taken."""
    return {"equation_10": read_back(chain(on_networks(_CHOOSING), at_random(_RANDOM, 10)), algorithms_of)}


def defragmentation() -> dict[str, Any]:
    """Section 3.3: nothing but what the next task touches is in memory after it was cleared."""
    return {"defragment": read_back(chain(on_networks(_PREFETCHING), at_random(_RANDOM, 33)), cleared_of)}


def read_back(cases: Iterable[Case], look: Callable[[Case], Iterator[str]]) -> dict[str, Any]:
    """A rule held on plans. look: yields what it has tried, raises `BrokenPlanError` where that is not as it should."""
    tried: Counter[str] = Counter()
    plans = 0
    for case in cases:
        plans += 1
        try:
            tried.update(look(case))
        except BrokenPlanError as error:
            return rule(False, f"{case.told}: {error}")
    told = ", ".join(f"{count} {what}" for what, count in sorted(tried.items()))
    return rule(bool(tried), f"{told or 'nothing met'} in {plans} plans, of networks and of random ones")


def prefetches_of(case: Case) -> Iterator[str]:
    """Every prefetch of a plan, and every task before which none begins."""
    for part in case.rounds():
        while (coming := part.next()) is not None:
            if isinstance(coming, Launch):
                yield from _before(part, coming.kernel)
            part.step(0)


def _before(part: Round, k: int) -> Iterator[str]:
    """The prefetches that begin before kernel k, by equation 9 and the guess of section 5.2.2, and their end."""
    duration = part.graph.durations[k]
    group: list[int] = []
    for b in part.prefetches():
        if b in group:
            continue
        found = part.lacking(k)
        if found is None or b not in found[1]:
            raise BrokenPlanError(f"{part.named(b)} is fetched though another task needs something earlier")
        later, group = found
        if not part.due(k, later, group, duration):
            raise BrokenPlanError(f"{part.named(b)} is fetched earlier than equation 9 asks")
        if not part.will_fit(k, later):
            raise BrokenPlanError(f"{part.named(b)} is fetched though memory will be cleared before its use")
        yield "prefetches that begin"
    found = part.lacking(k)
    if found is None:
        return
    later, missing = found
    if not part.due(k, later, missing, duration):
        yield "prefetches that can wait"
    elif part.will_fit(k, later):
        _must_lack_room(part, k, later, [*missing, *group])
        yield "prefetches without room"


def _must_lack_room(part: Round, k: int, later: int, blocks: list[int]) -> None:
    """Raise `BrokenPlanError` where each of the blocks absent finds a hole or an offloading scheme."""
    between = range(part.kernels.index(k), part.kernels.index(later) + 1)
    needed = {b for at in between for b in part.data[part.kernels[at]]}
    absent = [b for b in blocks if b not in part.at]
    if all(part.has_hole(part.size(b)) or part.schemes(part.size(b), needed) for b in absent):
        raise BrokenPlanError(f"{part.named(absent[0])} is due by equation 9, finds room, and is not fetched")


def algorithms_of(case: Case) -> Iterator[str]:
    """Every choice among several algorithms of a plan."""
    (ways,) = (each for each in case.plan.program.transforms if isinstance(each, WithAlgorithms))
    chosen = dict(ways.chosen)
    for part in case.rounds():
        for k in part.kernels:
            if part.ways[k]:
                stand_before_choice(part, k)
                found = gains(part, k)
                best = min(found, key=lambda way: (-found[way], way[1], way[2]))[2]
                if chosen.get(k, "") != best:
                    name = part.graph.kernels[k].id
                    raise BrokenPlanError(f"kernel {name} runs by {chosen.get(k, '')!r}, of most gain is {best!r}")
                yield "choices among algorithms" if len(found) > 1 else "convolutions with one way to run"
            while part.next() != Launch(k):
                part.step(0)
            for _ in part.prefetches():
                pass
            part.step(0)


def cleared_of(case: Case) -> Iterator[str]:
    """Every task before which memory was cleared: what was in memory when it had its inputs and outputs."""
    for part, schedule in zip(case.rounds(), case.plan.schedules, strict=True):
        stands: dict[int, set[int]] = {}
        _note_memory(part, stands)
        for k in (part.kernels[index] for index in schedule.defragmented):
            left = stands[k] - part.stays - set(part.data[k])
            if left:
                raise BrokenPlanError(f"{part.named(min(left))} is in memory after it was cleared")
            yield "tasks before which memory was cleared"


def _note_memory(part: Round, stands: dict[int, set[int]]) -> None:
    """Walk a round; by kernel, the blocks in memory right before it begins, its workspace apart."""

    def look(coming: Instruction) -> None:
        if isinstance(coming, Launch):
            stands[coming.kernel] = {b for b in part.at if not part.is_scratch(b)}

    walked(part, look)
