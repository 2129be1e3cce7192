"""The hybrid policy of Capuchin as published: swap if the copies overlap fully, else the cheaper of swap and recompute.

Public summaries and re-implementations (see the package) agree on this:

* Swap time = bytes / bandwidth. Free time FT = (back access - swap in) - (evicted access + swap out): how long a block
  could stay on the host without a wait. Candidates are taken by free time, largest first, until enough bytes are saved.
* A swap is fully overlapped if an access can trigger its fetch: the last one from which it still ends in time (the
  in-trigger). A trigger may not fall into the memory peak.
* Copies of one direction exclude each other, so each swap reduces the link time left to the others.
* Other candidates are swapped on demand or, if that costs less, the candidate with the largest memory saving per second
  (MSPS, bytes / recomputation time) is recomputed. Recomputation is on demand.
* A recomputed map is no longer a source. Maps that had it as a source use its sources instead; remaining candidates add
  its time to theirs. A candidate that is a source of recomputed maps would be recomputed again for each of them, which
  counts as overhead.
* Feedback: a block that is still being fetched at its back access is triggered earlier, by another 5 % of the swap
  time.

Where they are open or differ, this implementation decides:

* A device-to-host copy takes the first free interval of the link after its evicted access that is long enough, a fully
  overlapped host-to-device copy the last one before its back access; a fetch on demand takes none. (Re-implementations
  reject or delay overlapping copies.)
* A swap on demand costs its full fetch, and the rest of its offload if that has not ended. (One re-implementation.)
* MSPS divides by the full cost of a recomputation, with its repetitions for others; re-implementations differ.
* The repetitions of a candidate are the recomputed maps that have it as a source now, not a count carried from decision
  to decision; a map that reaches another by two paths counts once.
* A candidate that was passed over because another one was recomputed is considered again after all others.
* A recomputed map may have swapped sources; the cost of fetching them earlier is not counted.

Candidates are accessed more than once, and memory is short at some moment in their gap (public summaries say: an access
in the period of peak memory). They are HOME's feature maps (`simgpu.graph.saved`); Capuchin's tensors are more, but of
the same kind. A source must be resident at the back access: a block whose last use is earlier must be recomputed too,
with its own time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import Activation, activations
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import copy_ns, sending_rate
from simgpu.policies.capuchin.passive import Accesses


def candidates_of(
    accesses: Accesses, node: NodeSpec, budget: int
) -> tuple[dict[int, Activation], tuple[Candidate, ...]]:
    """Feature maps whose gap covers a kernel at which memory exceeds `budget` bytes, and their candidates.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> from simgpu.policies.capuchin.passive import demand
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> starts, ends = (0, 5, 12, 21, 39, 53), (5, 12, 21, 39, 53, 63)
    >>> accesses = Accesses(graph, starts, ends, demand(graph), swapping_ns=0)
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("bus", 10**10, 10**10))
    >>> _, (x2,) = candidates_of(accesses, node, budget=500)
    >>> x2.number, x2.evicted_ns, x2.back_ns, x2.in_ns, x2.recompute_ns
    (1, 12, 39, 20, 5)
    """
    graph = accesses.graph
    ancestry = Ancestry.of(graph)
    short = [k for k, held in enumerate(accesses.demand) if held > budget]
    maps = {each.block: each for each in activations(graph) if any(each.after < k < each.before for k in short)}
    candidates = []
    for b, each in maps.items():
        kernels, sources = _recomputation(graph, ancestry, each, maps)
        out_ns, in_ns = (_copy_ns(graph, node, b, rate) for rate in (node.link.d2h_bandwidth, node.link.h2d_bandwidth))
        candidate = Candidate(
            number=b,
            bytes=aligned(graph.sizes[b], node.gpu.alignment),
            evicted_ns=accesses.ends_ns[each.after],
            back_ns=accesses.starts_ns[each.before],
            out_ns=out_ns,
            in_ns=in_ns,
            recompute_ns=None if ancestry.why_not(b) else sum(graph.durations[k] for k in kernels),
            sources=sources,
            kernels=kernels,
        )
        candidates.append(candidate)
    return maps, tuple(candidates)


def _copy_ns(graph: TaskGraph, node: NodeSpec, b: int, rate: int) -> int:
    """Time of a copy on an idle link."""
    size, raw = graph.copy_sizes[b], graph.blocks[b].bytes
    kernel_bandwidth = node.gpu.cdma.kernel_bandwidth if node.gpu.cdma is not None else 0
    return copy_ns(size, sending_rate(node.gpu, kernel_bandwidth, size, raw, rate), node.link.latency_ns)


def situation_of(accesses: Accesses) -> Situation:
    """The start of each kernel, which stands for its accesses, and the memory peak."""
    return Situation(accesses.starts_ns, accesses.peak.start_ns, accesses.peak.end_ns)


def _recomputation(
    graph: TaskGraph, ancestry: Ancestry, each: Activation, maps: dict[int, Activation]
) -> tuple[frozenset[int], frozenset[int]]:
    """The kernels that recompute a feature map, and the other candidates that they need."""
    kernels: set[int] = set()
    sources: set[int] = set()
    seen = {each.block}
    waiting = [each.block]
    while waiting:
        for k in ancestry.writers[waiting.pop()]:
            kernels.add(k)
            for r in ancestry.inputs[k]:
                if r in seen:
                    continue
                seen.add(r)
                released = graph.needed_releases[r]
                if released is not None and released < each.before:
                    waiting.append(r)
                elif r in maps:
                    sources.add(r)
    return frozenset(kernels), frozenset(sources)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A feature map that may be evicted between two accesses.

    number: its block. bytes: of device memory. evicted_ns: end of the access before the eviction; back_ns: start of the
    next access. out_ns, in_ns: its copies on an idle link. recompute_ns: time to recompute it from resident sources,
    None where it cannot be recomputed. sources: numbers of the candidates that it is recomputed from; kernels: the
    kernels that recompute it.

    >>> Candidate(0, 100, evicted_ns=10, back_ns=100, out_ns=20, in_ns=30).free_ns
    40
    """

    number: int
    bytes: int
    evicted_ns: int
    back_ns: int
    out_ns: int
    in_ns: int
    recompute_ns: int | None = None
    sources: frozenset[int] = frozenset()
    kernels: frozenset[int] = frozenset()

    @property
    def free_ns(self) -> int:
        """FT: how long it could stay on the host; negative where its copies take longer than its gap."""
        return (self.back_ns - self.in_ns) - (self.evicted_ns + self.out_ns)


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Swap it. trigger: position of the access that issues its fetch, None for its back access."""

    trigger: int | None


@dataclass(frozen=True, slots=True)
class RecomputeBlock:
    """Release it, and recompute it at its back access."""


Decision = SwapOut | RecomputeBlock


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts common to all candidates.

    accesses_ns: start of every access of the iteration, ascending. peak_start_ns, peak_end_ns: the memory peak.
    """

    accesses_ns: Sequence[int]
    peak_start_ns: int
    peak_end_ns: int


@dataclass(frozen=True, slots=True)
class LinkReservations:
    """One direction of the link: disjoint reserved intervals, ascending (ns).

    >>> link = LinkReservations().reserving((10, 20)).reserving((30, 40))
    >>> link.first(5, 10), link.first(5, 11), link.last(35, 10), link.last(100, 60)
    ((20, 30), (40, 51), (20, 30), (40, 100))
    """

    reserved: tuple[tuple[int, int], ...] = ()

    def reserving(self, time: tuple[int, int]) -> LinkReservations:
        """These reservations and one more."""
        return LinkReservations(tuple(sorted((*self.reserved, time)))) if time[1] > time[0] else self

    def first(self, from_ns: int, length: int) -> tuple[int, int]:
        """The first free interval that begins at `from_ns` or later."""
        for start, end in self.reserved:
            if start >= from_ns + length:
                break
            from_ns = max(from_ns, end)
        return from_ns, from_ns + length

    def last(self, until_ns: int, length: int) -> tuple[int, int]:
        """The last free interval that ends at `until_ns` or earlier; it may begin before the iteration."""
        for start, end in reversed(self.reserved):
            if end <= until_ns - length:
                break
            until_ns = min(until_ns, start)
        return until_ns - length, until_ns


def in_trigger(candidate: Candidate, situation: Situation, out_end_ns: int, in_start_ns: int) -> int | None:
    """The last access that can issue a fetch to begin at `in_start_ns`; None where there is none.

    It may not be before the end of the offload, nor before the end of the memory peak unless the block is accessed
    again before the peak begins. Of several accesses at one instant it is the last.

    >>> shared = Situation((0, 10, 20, 30, 40, 50), peak_start_ns=20, peak_end_ns=30)
    >>> one = Candidate(0, 1, evicted_ns=10, back_ns=50, out_ns=5, in_ns=10)
    >>> in_trigger(one, shared, out_end_ns=15, in_start_ns=40), in_trigger(one, shared, out_end_ns=15, in_start_ns=29)
    (4, None)
    """
    earliest = out_end_ns
    if candidate.back_ns > situation.peak_start_ns:
        earliest = max(earliest, situation.peak_end_ns)
    place = bisect_right(situation.accesses_ns, in_start_ns) - 1
    return place if place >= 0 and situation.accesses_ns[place] >= earliest else None


def decide(candidates: Sequence[Candidate], situation: Situation, to_save: int) -> dict[int, Decision]:
    """Decisions by candidate that save `to_save` bytes, in the order of deciding.

    If all candidates together save less, all are evicted.

    >>> shared = Situation(tuple(range(0, 200, 10)), peak_start_ns=90, peak_end_ns=100)
    >>> far = Candidate(0, 100, evicted_ns=10, back_ns=190, out_ns=20, in_ns=20)
    >>> near = Candidate(1, 100, 80, 110, 20, 20, recompute_ns=5, sources=frozenset({0}))
    >>> decide([far, near], shared, 100)
    {0: SwapOut(trigger=17)}
    >>> decide([far, near], shared, 200)
    {0: SwapOut(trigger=17), 1: RecomputeBlock()}
    """
    return _Hybrid(candidates, situation, to_save).run()


class _Hybrid:
    """One run of the policy.

    undecided: candidates without a decision, by free time. outward, inward: reservations of the link. recompute_ns,
    sources: of each candidate, updated by every recomputation. recomputed: numbers of the recomputed candidates.
    """

    def __init__(self, candidates: Sequence[Candidate], situation: Situation, to_save: int) -> None:
        ordered = sorted(candidates, key=lambda each: (-each.free_ns, -each.bytes, each.number))
        self.undecided = {each.number: each for each in ordered}
        self.outward, self.inward = LinkReservations(), LinkReservations()
        self.situation = situation
        self.lacking = to_save
        self.recompute_ns = {each.number: each.recompute_ns for each in candidates}
        self.sources = {each.number: each.sources for each in candidates}
        self.recomputed: list[int] = []
        self.decisions: dict[int, Decision] = {}

    def run(self) -> dict[int, Decision]:
        """Consider the undecided candidates until enough is saved; every pass decides at least one."""
        while self.undecided and self.lacking > 0:
            for candidate in list(self.undecided.values()):
                if self.lacking <= 0:
                    break
                if candidate.number in self.undecided:
                    self._consider(candidate)
        return self.decisions

    def _consider(self, candidate: Candidate) -> None:
        out = self.outward.first(candidate.evicted_ns, candidate.out_ns)
        back = self.inward.last(candidate.back_ns, candidate.in_ns)
        trigger = in_trigger(candidate, self.situation, out[1], back[0])
        cheapest = None if trigger is not None else self._most_saving()
        on_demand_ns = max(0, out[1] - candidate.back_ns) + candidate.in_ns
        if cheapest is not None and self._overhead_ns(cheapest.number) < on_demand_ns:
            self._settle(cheapest, RecomputeBlock())
            self._recompute(cheapest.number)
            return
        self._settle(candidate, SwapOut(trigger))
        self.outward = self.outward.reserving(out)
        if trigger is not None:
            self.inward = self.inward.reserving(back)

    def _settle(self, candidate: Candidate, decision: Decision) -> None:
        self.decisions[candidate.number] = decision
        self.lacking -= candidate.bytes
        del self.undecided[candidate.number]

    def _most_saving(self) -> Candidate | None:
        """The candidate with the largest MSPS; of equal ones the first by free time."""
        able = [each for each in self.undecided.values() if self.recompute_ns[each.number] is not None]
        return max(able, key=lambda each: Fraction(each.bytes, max(self._overhead_ns(each.number), 1)), default=None)

    def _overhead_ns(self, number: int) -> int:
        """The cost of recomputing: once for itself, and once for each recomputed map that has it as a source."""
        repetitions = sum(number in self.sources[each] for each in self.recomputed)
        return (self.recompute_ns[number] or 0) * (1 + repetitions)

    def _recompute(self, number: int) -> None:
        """Replace it as a source by its own sources, and add its time to those of the candidates that used it."""
        self.recomputed.append(number)
        own = self.sources[number]
        for each in (*self.recomputed, *self.undecided):
            if number in self.sources[each]:
                self.sources[each] = (self.sources[each] - {number}) | own
                time = self.recompute_ns[each]
                if time is not None and each in self.undecided:
                    self.recompute_ns[each] = time + (self.recompute_ns[number] or 0)


def triggered_earlier(
    decisions: Mapping[int, Decision],
    candidates: Sequence[Candidate],
    situation: Situation,
    late: Mapping[int, int],
) -> dict[int, Decision]:
    """The decisions with earlier triggers for blocks that were late.

    late: by number, the runs so far in which the block was still being fetched at its back access. For each of them the
    fetch begins earlier by 5 % of its own time; a trigger without an earlier position stays.

    >>> shared = Situation((0, 10, 20, 30, 40, 50), peak_start_ns=0, peak_end_ns=0)
    >>> one = Candidate(0, 1, evicted_ns=5, back_ns=50, out_ns=5, in_ns=20)
    >>> [triggered_earlier({0: SwapOut(3)}, [one], shared, {0: times})[0].trigger for times in (0, 1, 11)]
    [3, 2, 1]
    """
    moved = dict(decisions)
    for each in candidates:
        decision = decisions.get(each.number)
        if isinstance(decision, SwapOut) and decision.trigger is not None and late.get(each.number):
            planned = min(situation.accesses_ns[decision.trigger], each.back_ns - each.in_ns)
            earlier = planned - -(-each.in_ns * late[each.number] // 20)
            trigger = in_trigger(each, situation, each.evicted_ns + each.out_ns, earlier)
            moved[each.number] = decision if trigger is None else SwapOut(trigger)
    return moved
