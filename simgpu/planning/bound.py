"""Lower bounds on the step time and the peak memory of all placements.

They hold for every vector of the tables' decisions where the evaluator is exact (its `why_not` is None): each feature
map is kept, swapped or recomputed by one of its options, first runs keep their order, and copies wait only for their
dependencies. Other programs, such as those with a barrier at each layer or with encoding on the host, are not bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from itertools import accumulate, pairwise

from simgpu.planning.bound_facts import BoundFacts
from simgpu.planning.bound_links import Links
from simgpu.planning.bound_program import Unit
from simgpu.planning.bound_rows import Rows
from simgpu.planning.columns import DURATION
from simgpu.planning.tables import Tables
from simgpu.units import format_bytes

#: The most kernels with a memory row, and the most rounds of link rows; more would take longer.
PRESSURE = 32
ROUNDS = 8

#: Rounds end when one raises the bound by less than this part (1/n) of the kernels' time.
_WORTH = 5_000


#: With more feature maps the linear program takes minutes.
MOST_MAPS = 400


@dataclass(frozen=True)
class Bound:
    """Lower bounds for all placements.

    ns: lower bound of the step time of those that fit. compute_ns: total kernel time, also a lower bound. least_peak:
    memory lower bound in bytes, set by `kernel`; if it exceeds the budget, none fits. pressure: kernels with a memory
    row. how: the method, as text.
    """

    ns: int
    compute_ns: int
    peak_lower_bound: int
    kernel: int | None
    fits: bool
    pressure: tuple[int, ...]
    how: str


def peak_lower_bound(tables: Tables) -> tuple[int, int | None]:
    """The memory lower bound in bytes, and the kernel that sets it (None without kernels).

    It counts the kernel's own blocks, always resident blocks, and feature maps that no option frees at that kernel.

    >>> from simgpu.planning.evaluator import Evaluator
    >>> from simgpu.planning.options import Decisions
    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**10, 10**10))
    >>> peak_lower_bound(Evaluator(graph, node, node.budget, Decisions.of(graph)).tables)
    (800, 2)
    """
    facts = BoundFacts(tables)
    needs = [live - sum(_most_freed(facts, f, k) for f in range(len(facts.gaps))) for k, live in enumerate(facts.live)]
    if not needs:
        return int(tables.limits[0] + tables.limits[1]), None
    kernel = max(range(len(needs)), key=lambda k: needs[k])
    return needs[kernel], kernel


def _most_freed(facts: BoundFacts, f: int, k: int) -> int:
    """The most bytes of a feature map that can be freed while kernel k runs."""
    gap = facts.gaps[f]
    if not gap.after < k < gap.before:
        return 0
    freed = [gap.size] if gap.recomputable else []
    for way in gap.ways:
        stays = k >= facts.trigger(f, gap.before, way.aheads[0])
        freed.append(gap.size - (way.device_bytes if stays else 0))
    return max(0, *freed) if freed else 0


def lower_bound(tables: Tables) -> Bound:
    """Lower bound of the step time of all placements that fit the budget, by a linear program.

    HiGHS computes the multipliers; the bound that they prove is computed in integers, independent of its tolerances.
    Raises `MissingExtraError` without SciPy, which `quick_bound` does not need. With too many feature maps the result
    is that of `quick_bound`.

    >>> from simgpu.planning.evaluator import Evaluator
    >>> from simgpu.planning.options import Decisions
    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**10, 10**10))
    >>> evaluator = Evaluator(graph, node, 850, Decisions.of(graph))
    >>> lower_bound(evaluator.tables).ns, evaluator.costs([[1, 1], [1, 2], [2, 1]]).score.min()
    (94, np.int64(112))
    """
    quick, facts = quick_bound(tables), BoundFacts(tables)
    if len(tables.maps) > MOST_MAPS:
        return replace(quick, how=f"{quick.how}; {len(tables.maps)} feature maps are too many for a linear program")
    pressure = pressure_kernels(facts)
    if not quick.fits or not pressure:
        return quick
    rows = Rows(facts, pressure)
    links = Links(rows)
    links.begin()
    program = rows.program
    program.scales = {
        Unit.NS: max(quick.compute_ns // 100, 1),
        Unit.BYTES: max(quick.peak_lower_bound, 1),
        Unit.PART: 1,
    }
    best, begun = quick.ns, len(program.rows)
    for _ in range(ROUNDS):
        solved = program.solve()
        if solved is None:
            break
        before, best = best, max(best, -(-program.proven(solved) // 1))
        if len(program.rows) > begun and best - before < quick.compute_ns // _WORTH:
            break
        if not links.cut(solved, quick.compute_ns / 10**5):
            break
    how = f"linear program, memory at {len(pressure)} kernels, {len(program.rows)} rows; multipliers checked exactly"
    if best == quick.ns:
        return quick
    return Bound(best, quick.compute_ns, quick.peak_lower_bound, quick.kernel, True, pressure, how)


def pressure_kernels(facts: BoundFacts) -> tuple[int, ...]:
    """Kernels at which some feature map must be offloaded or dropped: the peaks between changes of what can be.

    If they are too many, an even selection of them, and the highest peak.
    """
    changes = {0}
    for f, gap in enumerate(facts.gaps):
        changes |= {gap.after + 1, gap.before, *(facts.trigger(f, gap.before, way.aheads[0]) for way in gap.ways)}
    cuts = [*sorted(change for change in changes if change < facts.kernels), facts.kernels]
    budget = int(facts.tables.limits[2])
    tops = [max(range(a, b), key=lambda k: facts.live[k]) for a, b in pairwise(cuts) if a < b]
    kernels = [k for k in tops if facts.live[k] > budget]
    if len(kernels) > PRESSURE:
        top = max(kernels, key=lambda k: facts.live[k])
        kernels = sorted({kernels[len(kernels) * i // PRESSURE] for i in range(PRESSURE)} | {top})
    return tuple(kernels)


def quick_bound(tables: Tables) -> Bound:
    """A weaker bound without a linear program.

    At each kernel with more live bytes than the budget, enough bytes are offloaded or dropped. Offloaded bytes were
    copied out since the first offload could begin and are copied in before the first next use; dropped ones are
    recomputed in addition to all kernels. The bound is the shortest time in which both can free enough bytes, with
    fractions of feature maps allowed.
    """
    facts = BoundFacts(tables)
    compute, (bytes_, kernel) = facts.worked[-1], peak_lower_bound(tables)
    budget = int(tables.limits[2])
    if bytes_ > budget:
        how = (
            f"a kernel needs {format_bytes(bytes_)} with all else offloaded, above the budget of {format_bytes(budget)}"
        )
        return Bound(compute, compute, bytes_, kernel, False, () if kernel is None else (kernel,), how)
    own = _own_ns(facts)
    pressure = pressure_kernels(facts)
    ns = max((_time_bound(facts, own, k) for k in pressure), default=compute)
    how = "time of the kernels" if ns == compute else "one kernel at a time, without a linear program"
    if find_spec("scipy") is None:
        how += "; a tighter bound needs SciPy: install it, or simgpu with its extra 'calibrate'"
    return Bound(max(ns, compute), compute, bytes_, kernel, True, pressure, how)


def _own_ns(facts: BoundFacts) -> list[int]:
    """Time of the kernels that recompute only one feature map, by feature map."""
    users: dict[int, list[int]] = {}
    for f, ancestors in enumerate(facts.ancestors):
        for j in ancestors.kernels:
            users.setdefault(j, []).append(f)
    times = [0] * len(facts.gaps)
    for j, mine in users.items():
        if len(mine) == 1:
            times[mine[0]] += int(facts.tables.kernels[j, DURATION])
    return times


def _time_bound(facts: BoundFacts, own: Sequence[int], k: int) -> int:
    """The shortest time in which enough bytes can be offloaded or dropped at kernel k."""
    compute = facts.worked[-1]
    missing = facts.live[k] - int(facts.tables.limits[2])
    candidates = [f for f, gap in enumerate(facts.gaps) if gap.after < k < gap.before and _most_freed(facts, f, k)]
    gaps = [facts.gaps[f] for f in candidates]
    copies = [(gap.size, min(way.out_ns + way.in_ns for way in gap.ways)) for gap in gaps if gap.ways]
    recomputes = [(facts.gaps[f].size, own[f]) for f in candidates if facts.gaps[f].recomputable]
    begins = min((way.begins for f in candidates for way in facts.gaps[f].ways), default=0)
    last = max((facts.gaps[f].before for f in candidates), default=k + 1)
    fixed = facts.worked[begins // 2] + facts.work(2 * k + 1, 2 * k + 2) + facts.work(2 * last + 1, 2 * facts.kernels)

    copied, recomputed = Filling(by_rate(copies)), Filling(by_rate(recomputes))

    def enough(ns: int) -> bool:
        return copied.most_bytes(ns - fixed) + recomputed.most_bytes(ns - compute) >= missing

    return smallest(enough, compute, compute + fixed + copied.ns + recomputed.ns)


def by_rate(items: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Items (bytes, time), those first that free the most bytes in a time."""
    return sorted(items, key=lambda item: Fraction(item[1], item[0]))


class Filling:
    """What items (bytes, time) can free in a time, the first ones first; fractions of an item are allowed.

    >>> [Filling([(10, 1), (10, 4)]).most_bytes(ns) for ns in (0, 1, 3, 9)]
    [0, 10, 15, 20]
    """

    def __init__(self, items: Sequence[tuple[int, int]]) -> None:
        self._items = items
        self._bytes = [0, *accumulate(size for size, _ in items)]
        self._ns = [0, *accumulate(ns for _, ns in items)]

    @property
    def ns(self) -> int:
        """The time that all items take."""
        return self._ns[-1]

    def most_bytes(self, ns: int) -> int:
        """The most bytes freed in `ns`, rounded up."""
        if ns < 0:
            return 0
        whole = bisect_right(self._ns, ns) - 1
        if whole == len(self._items):
            return self._bytes[whole]
        size, each = self._items[whole]
        return self._bytes[whole] - (-size * (ns - self._ns[whole]) // each)


def smallest(enough: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest time from `low` to `high` that is enough."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
