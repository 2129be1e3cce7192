"""The linear program whose minimum is a lower bound of the step time of every placement that fits.

Variables: the time of each instant; for each feature map, whether it is swapped in each of its ways and whether it is
recomputed; for each pressure kernel k, whether the feature map is out of device memory when k starts.

Every row holds for the evaluation in `simgpu.planning.clocks` of every vector that fits:

* Compute. The time between two instants includes the kernels in between, encoding, decoding and recomputation.
* Memory. While a pressure kernel runs, the live bytes without decisions, minus those that are out, are within the
  budget. A block is out from the end of its offload until the kernel that triggers its fetch.
* Needs. A feature map is first needed by its own next use, or by a kernel before which another map is recomputed from
  it.
* Ancestors. The sources of a recomputed feature map stay resident until their own next use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from simgpu.planning.bound_facts import BoundFacts
from simgpu.planning.bound_program import LinearProgram, Unit, total
from simgpu.planning.columns import DURATION

Terms = list[tuple[int, int]]
Spent = list[tuple[int, int, int]]
Wide = list[tuple[int, list[int], int, int]]

#: The number of zones of backward, for maps that may be recomputed anywhere in it.
_ZONES = 16
#: Kernels that may first need a feature map get variables up to this many recomputed maps between.
_DEPTH = 2


class Rows:
    """A program with all rows except those of the links.

    times: the variable of each instant. swapped[f, w], recomputed[f]: whether feature map f is swapped in its way w, or
    recomputed. first: see `_need_rows`. out[f, w, k]: whether it is out while pressure kernel k runs.
    """

    def __init__(self, facts: BoundFacts, pressure: Sequence[int]) -> None:
        self.facts = facts
        self.pressure = tuple(pressure)
        self.program = LinearProgram()
        self.longest = self._longest()
        self.end = self.program.variable(facts.worked[-1], self.longest, Unit.NS)
        self.needs, self.complete = self._needs()
        self.instants = self._instants()
        self.times = {at: self._time(at) for at in self.instants}
        self.swapped: dict[tuple[int, int], int] = {}
        self.recomputed: dict[int, int] = {}
        self._choices()
        self.first: dict[tuple[int, int], dict[int, int]] = {}
        self._need_rows()
        self.out: dict[tuple[int, int, int], int] = {}
        for k in self.pressure:
            self._memory(k)
        self._compute()

    # --- variables ---

    def _longest(self) -> int:
        """An upper bound of the step time: all work in sequence."""
        facts = self.facts
        copies = sum(
            max((w.out_ns + w.in_ns + w.encode_ns + w.decode_ns for w in g.ways), default=0) for g in facts.gaps
        )
        return 4 * (facts.worked[-1] + copies) + 1

    def _instants(self) -> list[int]:
        facts = self.facts
        instants = {0, 2 * facts.kernels}
        for k in self.pressure:
            instants |= {2 * k + 1, 2 * k + 2}
        for f, gap in enumerate(facts.gaps):
            instants |= {2 * gap.after + 2, 2 * gap.before, 2 * gap.before + 1}
            for need in self.needs[f]:
                instants |= {2 * need, 2 * need + 1}
            for way in gap.ways:
                instants.add(way.begins)
                instants.add(2 * facts.trigger(f, gap.before, way.aheads[0]) + 1)
                for need in (*self.needs[f], facts.needs[f]):
                    instants.add(2 * facts.trigger(f, need, way.aheads[1]))
        return sorted(instants)

    def _time(self, at: int) -> int:
        if at == 2 * self.facts.kernels:
            return self.end
        return self.program.variable(self.facts.worked[at // 2], self.longest, Unit.NS)

    def _choices(self) -> None:
        """Add variables for the choice of each feature map: swapped in one way, recomputed, or neither."""
        for f, gap in enumerate(self.facts.gaps):
            for w in range(len(gap.ways)):
                self.swapped[f, w] = self.program.variable()
            if gap.recomputable:
                self.recomputed[f] = self.program.variable()
            mine = [self.swapped[f, w] for w in range(len(gap.ways))] + (
                [self.recomputed[f]] if gap.recomputable else []
            )
            if len(mine) > 1:
                self.program.row(dict.fromkeys(mine, -1), -1, Unit.PART)

    # --- needs ---

    def _needs(self) -> tuple[list[tuple[int, ...]], list[bool]]:
        """For each feature map, kernels that may be the first to need it, and whether the list is complete."""
        gaps, children = self.facts.gaps, self.facts.children
        levels = [[{gap.before} for gap in gaps]]
        while len(levels) < 2 or levels[-1] != levels[-2]:
            last = levels[-1]
            levels.append(
                [
                    {gap.before}.union(*({h for h in last[c] if h < gap.before} for c in children[f]))
                    for f, gap in enumerate(gaps)
                ]
            )
        some = levels[min(_DEPTH, len(levels) - 1)]
        return [tuple(sorted(each)) for each in some], [a == b for a, b in zip(some, levels[-1], strict=True)]

    def _need_rows(self) -> None:
        """Add first[f, w][h]: whether kernel h first needs feature map f, with f swapped in way w or recomputed (w=-1);
        h = -1 stands for all kernels without a variable of their own."""
        program, facts = self.program, self.facts
        chosen = dict(self.swapped) | {(f, -1): x for f, x in self.recomputed.items()}
        for (f, w), x in chosen.items():
            if self.needs[f] == (facts.gaps[f].before,) and self.complete[f]:
                self.first[f, w] = {facts.gaps[f].before: x}
                continue
            mine = self.first[f, w] = {h: program.variable() for h in self.needs[f]}
            if not self.complete[f]:
                mine[-1] = program.variable()
            program.row(total([(x, -1), *((n, 1) for n in mine.values())]), 0, Unit.PART)
            program.row(total([(x, 1), *((n, -1) for n in mine.values())]), 0, Unit.PART)
        for f in range(len(facts.gaps)):
            ways = [self.first[each] for each in chosen if each[0] == f]
            self._early_need_rows(f, ways)
            for c in facts.children[f]:
                if c in self.recomputed and f in facts.ancestors[c].resident:
                    self._resident_rows(f, ways, c)

    def _early_need_rows(self, f: int, ways: list[dict[int, int]]) -> None:
        """Add rows: f is needed before its next use only where another map is recomputed from it.

        Outputs of the same kernel cannot be each other's cause."""
        facts = self.facts
        own, gap = set(self.needs[f]), facts.gaps[f]
        together = {c for c in facts.children[f] if f in facts.children[c]}
        causes = {c for each in (f, *together) for c in facts.children[each]} - together - {f}
        for h in ways[0] if ways else ():
            if h == gap.before:
                continue
            terms: Terms = [
                (m, 1)
                for c in together
                for g, m in self.first.get((c, -1), {}).items()
                if g == facts.gaps[c].before and (g == h or (h < 0 and g not in own))
            ]
            for c in causes:
                for g, m in self.first.get((c, -1), {}).items():
                    if g in (h, -1) or (h == -1 and g not in own and g < gap.before):
                        terms.append((m, 1))
            self.program.row(total([*terms, *((each[h], -1) for each in ways)]), 0, Unit.PART)

    def _resident_rows(self, f: int, ways: list[dict[int, int]], c: int) -> None:
        """Add rows: f is resident from the recomputation of c on."""
        recomputed = self.first[c, -1]
        for until in recomputed:
            if 0 <= until < self.facts.gaps[f].before:
                last = until == self.facts.gaps[c].before
                early = [m for g, m in recomputed.items() if g <= until and (g >= 0 or last)]
                late = [n for each in ways for h, n in each.items() if h > until]
                self.program.row(total((n, -1) for n in (*early, *late)), -1, Unit.PART)

    # --- memory ---

    def _memory(self, k: int) -> None:
        """Add the memory row of kernel k: enough bytes are out or dropped while it runs."""
        facts, program = self.facts, self.program
        freed: Terms = []
        for f, gap in enumerate(facts.gaps):
            if not gap.after < k < gap.before:
                continue
            for w, way in enumerate(gap.ways):
                stays = min(way.device_bytes, gap.size)
                if way.encoded:
                    freed.append((self.swapped[f, w], gap.size - stays))
                if k < facts.trigger(f, gap.before, way.aheads[0]):
                    u = self.out[f, w, k] = program.variable()
                    first = self.first[f, w]
                    still = [n for h, n in first.items() if h < 0 or k < facts.trigger(f, h, way.aheads[0])]
                    program.row(total([(u, -1), *((n, 1) for n in still)]), 0, Unit.PART)
                    freed.append((u, stays))
            if gap.recomputable:
                freed += [(n, gap.size) for h, n in self.first[f, -1].items() if h < 0 or k < h]
        program.row(total(freed), facts.live[k] - int(facts.tables.limits[2]), Unit.BYTES)

    # --- compute ---

    def _compute(self) -> None:
        """Add rows between neighbouring instants, and between zones for work with an unknown instant."""
        facts = self.facts
        inner: Spent = []
        wide: Wide = []
        for f, gap in enumerate(facts.gaps):
            for w, way in enumerate(gap.ways):
                x = self.swapped[f, w]
                if way.encode_ns:
                    inner.append((2 * gap.after + 1, x, way.encode_ns))
                if way.decode_ns:
                    self._placed(f, self.first[f, w], way.decode_ns, inner, wide)
        by_kernel: defaultdict[int, list[int]] = defaultdict(list)
        for f, ancestors in enumerate(facts.ancestors):
            for j in ancestors.kernels:
                by_kernel[j].append(f)
        own: defaultdict[tuple[int, ...], int] = defaultdict(int)
        for j, users in sorted(by_kernel.items()):
            own[tuple(users)] += int(facts.tables.kernels[j, DURATION])
        for makes, ns in own.items():
            if len(makes) == 1:
                self._placed(makes[0], self.first[makes[0], -1], ns, inner, wide)
            else:
                wide.append(
                    (
                        min(facts.needs[f] for f in makes),
                        [self.recomputed[f] for f in makes],
                        ns,
                        max(facts.gaps[f].before for f in makes),
                    )
                )
        self._chain(inner)
        self._zones(inner, wide)

    def _placed(self, f: int, first: dict[int, int], ns: int, inner: Spent, wide: Wide) -> None:
        """Note time that is spent before the kernel that first needs a feature map."""
        for h, n in first.items():
            if h >= 0:
                inner.append((2 * h, n, ns))
            else:
                wide.append((self.facts.needs[f], [n], ns, self.facts.gaps[f].before))

    def _chain(self, inner: Spent) -> None:
        """Add rows: neighbouring instants differ by at least the time of the kernels and the known work in between."""
        facts = self.facts
        spent: defaultdict[int, Terms] = defaultdict(list)
        for at, x, ns in inner:
            spent[bisect_right(self.instants, at) - 1].append((x, -ns))
        for i in range(len(self.instants) - 1):
            a, b = self.instants[i], self.instants[i + 1]
            self.program.row(total([(self.times[b], 1), (self.times[a], -1), *spent[i]]), facts.work(a, b))

    def _zones(self, inner: Spent, wide: Wide) -> None:
        """Add the same rows between neighbouring zones; each part of `wide` is spent in some zone."""
        if not wide:
            return
        facts, program = self.facts, self.program
        starts = sorted({2 * facts.gaps[f].before for f in range(len(facts.gaps))})
        picked = sorted({starts[len(starts) * z // _ZONES] for z in range(_ZONES)})
        bounds = [*picked, 2 * facts.kernels]
        spent: defaultdict[int, Terms] = defaultdict(list)
        for at, x, ns in inner:
            if at >= bounds[0]:
                spent[bisect_right(bounds, at) - 1].append((x, -ns))
        for first, makes, ns, last in wide:
            low, high = bisect_right(bounds, 2 * first) - 1, bisect_right(bounds, 2 * last) - 1
            parts = [program.variable() for _ in range(low, high + 1)]
            for z, p in zip(range(low, high + 1), parts, strict=True):
                spent[z].append((p, -ns))
            for x in makes:
                program.row(total([*((p, 1) for p in parts), (x, -1)]), 0, Unit.PART)
        for z in range(len(bounds) - 1):
            a, b = bounds[z], bounds[z + 1]
            program.row(total([(self.times[b], 1), (self.times[a], -1), *spent[z]]), facts.work(a, b))
