"""The search for the fastest plan within a budget that PyTorch can run operator by operator.

It solves an integer program that bounds memory at a few moments (`simgpu.plans.rows`), builds the iteration that
PyTorch would run, and looks where that exceeds the budget; these moments are added, until none exceeds it. What the
program knows of memory is exact where nothing is offloaded, so its last answer is then the best: with fewer moments
nothing can be slower. Offloading costs time that an integer program cannot know exactly, so several plans are found,
each with another assumption about the link, and simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from simgpu.errors import OutOfMemoryError
from simgpu.hardware.spec import NodeSpec
from simgpu.plans.bound import Bound, run_again
from simgpu.plans.candidate import Candidate, Trail
from simgpu.plans.choices import Choices
from simgpu.plans.milp import Answers, IntegerProgram, Solution, at_most_one, solve
from simgpu.plans.regions import Region
from simgpu.plans.repeats import ties
from simgpu.plans.rows import Chosen, Memory, Moment, Rows

#: Programs that are solved for one assumption about the link before it is given up.
_ROUNDS = 60
#: Moments that are added at a time.
_MOMENTS = 8
#: What is assumed of offloads: the share of the link's bandwidth that they have, the share of the budget that copies
#: under way may take, and into how many groups equal layers are divided, each with the same choices.
_SHARES = ((1.0, 0.04, 8), (0.7, 0.04, 4), (0.4, 0.04, 8))
#: Numbers of blocks that are fetched ahead, and that may still be under way to the host, tried with each plan.
_AHEAD = ((1, 1), (2, 2), (4, 4), (8, 4), (8, 8), (8, 16), (16, 16))
#: The part of a copy's time that counts although it overlaps with compute, so that nothing is offloaded without need.
_NEEDLESS = 0.001
#: A smallest peak is looked for until it is this close to what an integer program says.
_SMALLEST_GAP = 0.002


class _Assumed(NamedTuple):
    """The share of the link's bandwidth that offloads have, that of the budget that copies under way may take, the
    choices that are tied, and whether the program is to be a lower bound: it then allows all that plans can do."""

    share: float = 0.0
    under_way: float = 0.0
    tied: Mapping[Chosen, Chosen] = {}
    is_bound: bool = False

    def __str__(self) -> str:
        link = f"with {self.share:.0%} of the link for offloads" if self.share else "without offloads"
        return f"{link}, equal layers in groups" if self.tied else link


class Found(NamedTuple):
    """candidate: the best one. time_ns: its simulated step time. peak: bytes. bound_ns: no plan of these choices within
    the budget is faster, as far as HiGHS has proved. tried: simulated plans."""

    candidate: Candidate
    time_ns: int
    peak: int
    bound_ns: int
    tried: int


class Smallest(NamedTuple):
    """The peak of device memory, in bytes, and the candidate that has it."""

    peak: int
    candidate: Candidate


@dataclass
class Search:
    """progress: receives a line of text at a time."""

    choices: Choices
    node: NodeSpec
    budget: int
    progress: Callable[[str], None] = lambda text: None
    rows: Rows = field(init=False)
    resident: Rows = field(init=False)
    moments: dict[Moment, int] = field(default_factory=dict)
    tried: int = 0
    answers: Answers = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = Rows(self.choices)
        self.resident = Rows(replace(self.choices, offload=False))
        self._memory: dict[tuple[Moment, bool], Memory] = {}

    def run(self) -> Found | None:
        """The best plan; None if no plan fits."""
        best: tuple[int, int, Candidate] | None = None
        for assumed in self._assumptions():
            self.progress(f"planning, {assumed}")
            for candidate in self._fitting(assumed):
                best = min((each for each in (best, *self.timed(candidate)) if each), key=_cost, default=None)
        if best is None:
            best = min(self.timed(smallest(self.choices, self.node).candidate), key=_cost, default=None)
        if best is None:
            return None
        time_ns, peak, candidate = best
        # The solver's tolerance may put the bound of the best plan a few nanoseconds above it.
        return Found(candidate, time_ns, peak, min(self.lower_bound(), time_ns), self.tried)

    def lower_bound(self) -> int:
        """No plan within the budget is faster.

        Memory is linear in what is recomputed, and looked at where plans exceeded the budget (`bound.py`: where tensors
        may be offloaded).
        """
        self.progress("planning, for a lower bound")
        least = self.choices.steps.trace.compute_ns
        if self.choices.offloadable:
            plain = self.choices.candidate({}).trail(self.node).bytes
            bound = Bound(
                self._choices_only(_Assumed()), Rows(self.choices, is_bound=True), self.node.link, self.budget
            )
            solved = solve(bound.add(plain).relaxed())
        else:
            solved = solve(self._program(_Assumed(is_bound=True)), self.answers)
        return least if solved is None else max(int(solved.bound), least)

    def least_peak(self) -> Smallest:
        """The plan with the smallest peak; of networks with many choices, of those that were looked at."""
        plain = self.choices.candidate({})
        best = Smallest(plain.trail(self.node).peak, plain)
        for _ in range(_ROUNDS):
            program = self._choices_only(_Assumed(share=1.0))
            most = program.number("most")
            program.cost = {most: 1.0}
            for moment in self.moments:
                program.most(most, self._memory_at(moment, offload=True), self.budget, self._unless(moment))
            solution = solve(program, self.answers)
            if solution is None:
                break
            candidate = self._candidate(solution)
            trail = candidate.trail(self.node)
            best = min(best, Smallest(trail.peak, candidate), key=lambda each: each.peak)
            limit = int(solution.value * self.budget * (1 + _SMALLEST_GAP))
            known = len(self.moments)
            self._add_moments(candidate, trail, limit)
            if trail.peak <= limit or len(self.moments) == known:
                break
        return best

    def _assumptions(self) -> Iterator[_Assumed]:
        yield _Assumed()
        if self.choices.offloadable:
            for share, under_way, groups in _SHARES:
                yield _Assumed(share, under_way, ties(self.choices, groups))

    def timed(self, candidate: Candidate) -> Iterator[tuple[int, int, Candidate]]:
        """A candidate with several numbers of copies under way: step time, peak and candidate."""
        for prefetch, stash in _AHEAD if candidate.offloaded else _AHEAD[:1]:
            tried = replace(candidate, prefetch=prefetch, stash=stash)
            self.tried += 1
            try:
                result = tried.run(self.node, self.budget)
            except OutOfMemoryError:
                continue
            yield result.iteration_ns, result.metrics.device_peak_bytes, tried

    def _fitting(self, assumed: _Assumed) -> Iterator[Candidate]:
        """The plan of least time that fits; nothing if none fits."""
        for _ in range(_ROUNDS):
            # Without a moment that is too large, choosing nothing is best.
            nothing = Solution(frozenset(), float(self.choices.steps.trace.compute_ns), 0.0)
            solution = solve(self._program(assumed), self.answers) if self.moments else nothing
            if solution is None:
                return
            candidate = self._candidate(solution)
            trail = candidate.trail(self.node)
            if trail.peak <= self.budget:
                yield candidate
                return
            self._add_moments(candidate, trail, self.budget)

    def _candidate(self, solution: Solution) -> Candidate:
        regions: dict[int, set[int]] = {each.number: set() for each in solution.chosen if each.kind == "region"}
        for each in solution.chosen:
            if each.kind == "keep":
                regions[each.number].add(each.kernel)
        offloaded = tuple(sorted(each.number for each in solution.chosen if each.kind == "offload"))
        return self.choices.candidate({r: frozenset(keeps) for r, keeps in regions.items()}, offloaded)

    def _add_moments(self, candidate: Candidate, trail: Trail, limit: int) -> None:
        """Adds the moments at which a candidate exceeds a limit most, one for each time that it does so."""
        used = {each.region for each in candidate.regions}
        chosen = [r for r, region in enumerate(self.choices.regions) if region in used]
        tops = []
        for over, group in groupby(enumerate(trail.bytes), lambda each: each[1] > limit):
            if over:
                tops.append(max(group, key=lambda each: each[1]))
        tops.sort(key=lambda each: -each[1])
        for place, bytes_ in tops[:_MOMENTS]:
            entry = candidate.planned.order[place]
            moment = Moment(entry.kernel, None if entry.region is None else chosen[entry.region])
            # Known already, so the program does not count all of it: copies under way.
            more = bytes_ - limit if moment in self.moments else 0
            self.moments[moment] = self.moments.get(moment, 0) + more

    def _program(self, assumed: _Assumed) -> IntegerProgram:
        program, trace = self._choices_only(assumed), self.choices.steps.trace
        for r in range(len(self.choices.regions)):
            region = Chosen("region", r)
            # A nanosecond for each region and result, so that nothing is chosen without need.
            priced = () if assumed.is_bound else (region, *(Chosen("keep", r, k) for k in self.choices.keepable[r]))
            for choice in priced:
                program.cost[program.binary(choice)] = program.cost.get(program.binary(choice), 0.0) + 1.0
        again = run_again(program, self.rows, range(len(self.choices.regions)))
        if assumed.share:
            self._add_link(program, assumed, again)
        else:
            program.constant = trace.compute_ns
            for column, less in again.items():
                program.cost[column] = program.cost.get(column, 0.0) - less
        budget = int(self.budget * (1 - assumed.under_way))
        for moment, more in self.moments.items():
            memory = self._memory_at(moment, offload=bool(assumed.share))
            program.within(memory, budget - (0 if assumed.is_bound else more), self._unless(moment))
        return program

    def _choices_only(self, assumed: _Assumed) -> IntegerProgram:
        """Regions that overlap exclude each other, and only a region that is checkpointed keeps results."""
        program, regions = IntegerProgram(tied=assumed.tied), self.choices.regions
        for r, region in enumerate(regions):
            own = program.binary(Chosen("region", r))
            for k in self.choices.keepable[r]:
                program.row({own: 1.0, program.binary(Chosen("keep", r, k)): -1.0}, 0.0)
            if not any(n != r and _contains(region, other) for n, other in enumerate(regions)):
                around = (n for n, other in enumerate(regions) if _contains(other, region))
                at_most_one(program, (Chosen("region", n) for n in around))
        return program

    def _memory_at(self, moment: Moment, offload: bool) -> Memory:
        key = moment, offload
        if key not in self._memory:
            self._memory[key] = (self.rows if offload else self.resident).memory(moment)
        return self._memory[key]

    def _unless(self, moment: Moment) -> Chosen | None:
        """The region without which a moment does not exist."""
        return None if moment.region is None else Chosen("region", moment.region)

    def _add_link(self, program: IntegerProgram, assumed: _Assumed, again: Mapping[int, float]) -> None:
        """Forward and backward take the time of their kernels, and at least that of the link for their copies."""
        link, trace = self.node.link, self.choices.steps.trace
        blocks, phases = trace.blocks, zip(trace.kernels, self.choices.steps.is_forward, strict=True)
        forward = sum(kernel.duration_ns for kernel, is_forward in phases if is_forward)
        first, second = program.number("forward"), program.number("backward")
        program.cost |= {first: 1.0, second: 1.0}
        program.row({first: 1.0}, forward)
        program.row({second: 1.0, **again}, trace.compute_ns - forward)
        for column, bandwidth in ((first, link.d2h_bandwidth), (second, link.h2d_bandwidth)):
            row = defaultdict(float, {column: 1.0})
            for b in self.choices.offloadable:
                choice, time_ns = program.binary(Chosen("offload", b)), blocks[b].bytes * 1e9 / bandwidth
                row[choice] -= time_ns / assumed.share
                program.cost[choice] = program.cost.get(choice, 0.0) + 1.0 + time_ns * _NEEDLESS
            program.row(row, 0.0)


def _contains(outer: Region, inner: Region) -> bool:
    """Whether a region contains another, or is it."""
    return outer.first <= inner.first and inner.stop <= outer.stop


def _cost(timed: tuple[int, int, Candidate]) -> tuple[int, int]:
    """Step time, then peak memory."""
    return timed[:2]


def smallest(choices: Choices, node: NodeSpec) -> Smallest:
    """The plan with the smallest peak; of networks with many choices, of those that were looked at."""
    plain = choices.candidate({}).trail(node).peak
    return Search(choices, node, plain).least_peak()
