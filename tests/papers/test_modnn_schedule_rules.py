"""The rules of moDNN's prefetches, choice of algorithms and defragmentation, read back from its plans (sections 5.2 and
3.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import pytest

from simgpu.graph.transforms import WithAlgorithms
from simgpu.policies.modnn import schedule
from simgpu.program.instructions import Instruction, Launch
from tests.papers.modnn_cases import Case, at_random, on_networks
from tests.papers.modnn_gains import gains, stand_before_choice
from tests.papers.modnn_plans import BrokenPlanError, Round, walked

_GB = 10**9
#: Budgets in which blocks are offloaded and prefetched.
_PREFETCHING = {"VGG-16": (12 * _GB // 10,), "VGG-101": (12 << 30,), "FCN-32s": (4 * _GB,)}
_CHOOSING = {"VGG-16": (12 * _GB // 10, 2 * _GB, 12 << 30), "FCN-32s": (12 * _GB // 10, 4 * _GB, 12 << 30)}
_RANDOM = 150


@pytest.mark.rule
@pytest.mark.slow
def test_prefetches_begin_when_equation_9_asks_and_memory_is_not_cleared_before_their_use() -> None:
    """Each begins before the first task after which it would be late, and none is left out."""
    seen = read_back(chain(on_networks(_PREFETCHING), at_random(_RANDOM, 9)), prefetches_of)
    assert seen.keys() == {"prefetches that begin", "prefetches that can wait", "prefetches that find no hole"}


@pytest.mark.rule
@pytest.mark.slow
def test_the_algorithm_with_the_largest_gain_by_equation_10_is_chosen() -> None:
    seen = read_back(chain(on_networks(_CHOOSING), at_random(_RANDOM, 10)), algorithms_of)
    assert seen["choices among algorithms"] > 0


@pytest.mark.slow
@pytest.mark.rule
def test_defragmentation_keeps_only_the_next_tasks_blocks() -> None:
    seen = read_back(chain(on_networks(_PREFETCHING), at_random(_RANDOM, 33)), cleared_of)
    assert seen["tasks before which memory was cleared"] > 0


def read_back(cases: Iterable[Case], look: Callable[[Case], Iterator[str]]) -> Counter[str]:
    """What a rule was tried on in plans. look: yields each trial, raises `BrokenPlanError` where the rule is broken."""
    seen: Counter[str] = Counter()
    for case in cases:
        try:
            seen.update(look(case))
        except BrokenPlanError as error:
            raise BrokenPlanError(f"{case.name}: {error}") from error
    return seen


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
        lacking = part.lacking(k)
        if lacking is None or b not in lacking[1]:
            raise BrokenPlanError(f"{part.named(b)} is fetched though another task needs something earlier")
        later, group = lacking
        if not part.due(k, later, group, duration):
            raise BrokenPlanError(f"{part.named(b)} is fetched earlier than equation 9 asks")
        if not part.will_fit(k, later):
            raise BrokenPlanError(f"{part.named(b)} is fetched though memory will be cleared before its use")
        yield "prefetches that begin"
    lacking = part.lacking(k)
    if lacking is None:
        return
    later, missing = lacking
    if not part.due(k, later, missing, duration):
        yield "prefetches that can wait"
    elif part.will_fit(k, later):
        _must_find_no_hole(part, k, later, [*missing, *group])
        yield "prefetches that find no hole"


def _must_find_no_hole(part: Round, k: int, later: int, blocks: list[int]) -> None:
    """Raise `BrokenPlanError` where each of the blocks absent finds a hole or an offloading scheme."""
    between = range(part.kernels.index(k), part.kernels.index(later) + 1)
    needed = {b for at in between for b in part.data[part.kernels[at]]}
    absent = [b for b in blocks if b not in part.at]
    if all(part.has_hole(part.size(b)) or part.schemes(part.size(b), needed) for b in absent):
        raise BrokenPlanError(f"{part.named(absent[0])} is due by equation 9, finds a hole, and is not fetched")


def algorithms_of(case: Case) -> Iterator[str]:
    """Every choice among several algorithms of a plan."""
    (ways,) = (each for each in case.plan.program.transforms if isinstance(each, WithAlgorithms))
    chosen = dict(ways.chosen)
    for part in case.rounds():
        for k in part.kernels:
            if part.ways[k]:
                stand_before_choice(part, k)
                gained = gains(part, k)
                best = min(gained, key=lambda way: (-gained[way], way[1], way[2]))[2]
                if chosen.get(k, "") != best:
                    name = part.graph.kernels[k].id
                    raise BrokenPlanError(f"kernel {name} runs by {chosen.get(k, '')!r}, of most gain is {best!r}")
                yield "choices among algorithms" if len(gained) > 1 else "convolutions with one way to run"
            while part.next() != Launch(k):
                part.step(0)
            for _ in part.prefetches():
                pass
            part.step(0)


def cleared_of(case: Case) -> Iterator[str]:
    """Every task before which memory was cleared: what was in memory when it had its inputs and outputs."""
    for part, planned in zip(case.rounds(), case.plan.schedules, strict=True):
        stands: dict[int, set[int]] = {}
        _note_memory(part, stands)
        for k in (part.kernels[index] for index in planned.defragmented):
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


# --- the tests above fail where the planner is another --------------------------------------------------------

LOOKS = {"prefetches": prefetches_of, "algorithms": algorithms_of, "clearing": cleared_of}


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_plans_of_random_networks_keep_to_the_rules(look: Callable[[Case], Iterator[str]]) -> None:
    assert read_back(at_random(40, 1), look)


@pytest.mark.parametrize("begins", [True, False])
def test_prefetches_that_begin_always_or_never_break_equation_9(monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    monkeypatch.setattr(schedule, "should_start", lambda *_: begins)
    with pytest.raises(BrokenPlanError) as caught:
        read_back(at_random(40, 1), prefetches_of)
    assert ("earlier than equation 9" in str(caught.value)) == begins


def test_prefetches_of_no_use_break_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "will_fit", lambda *_: True)
    with pytest.raises(BrokenPlanError, match="memory will be cleared before its use"):
        read_back(at_random(150, 9), prefetches_of)


def test_the_fastest_algorithm_always_breaks_equation_10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "best", _fastest)
    with pytest.raises(BrokenPlanError, match="of most gain is"):
        read_back(at_random(40, 1), algorithms_of)


def _fastest(candidates: Iterable[Any], base_ns: int) -> Any:
    return min((each.choice for each in candidates), key=lambda choice: choice.duration_ns, default=None)


def test_a_block_upon_another_is_a_broken_plan() -> None:
    (part, *_) = next(at_random(1, 1)).rounds()
    part.at[max(part.at, default=0)] = (0, part.budget)
    with pytest.raises(BrokenPlanError, match="lies upon block"):
        while part.next() is not None:
            part.step(0)
