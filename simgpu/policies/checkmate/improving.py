"""A faster schedule from a given one: what is kept for each stage is improved for a few values at a time.

With all other values as they are, the best way to keep a few is a shortest path, which
`simgpu.policies.checkmate.compiled_stages` finds. The few are drawn at random. In turns with that,
the kernels' times are changed at random for a while, so that the search leaves a schedule that no few values improve;
the fastest schedule of all is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simgpu.policies.checkmate.stage_costs import MOST_CHOSEN, Ints, KeptFlags, StageCosts
from simgpu.policies.common.node_schedule import NodeSchedule, written

#: Numbers of such choices, for each value and at most, by the kernels' own times and by times that are off by up to a
#: part of them; the two take turns.
_OWN_TIMES, _OTHER_TIMES, _OFF = (10, 300), (2, 60), 0.6
#: A search ends when it has found nothing faster for so many turns.
_PATIENCE = 20
#: A search that is slower than the fastest schedule by this part of the iteration begins again from that.
_TOO_SLOW = 0.01


def improved(
    values: StageCosts,
    starts: Sequence[KeptFlags],
    evaluations: int,
    rng: np.random.Generator,
    report: Callable[[int], None],
) -> NodeSchedule:
    """The fastest schedule that a search finds from some others; it may be over the budget where they are.

    evaluations: stages whose time and memory are computed at most. Half of them are for all starts alike, half for the
    best of these. report: called with the number of starts that the search has begun with.
    """
    search = _Search(values, rng)
    found = []
    for number, each in enumerate(starts, start=1):
        report(number)
        found.append(search.run(each, evaluations // 2 // len(starts)))
    best = search.run(min(found, key=values.cost), evaluations // 2)
    # What is kept for nothing is left out by `of`.
    return values.schedule(values.of(written(values.nodes, values.schedule(best))))


@dataclass
class _Search:
    values: StageCosts
    rng: np.random.Generator
    #: Stages that may still be computed.
    left: int = 0

    def run(self, best: KeptFlags, evaluations: int) -> KeptFlags:
        """The fastest schedule that is found from one, which does not change."""
        cost, best, turns, self.left = self.values.cost, best.copy(), 0, evaluations
        self._sweep(best)
        now = best.copy()
        while self.left > 0 and turns < _PATIENCE and len(self.values.blocks) > 1 and cost(best) > 0:
            turns += 1
            self._choose(now, self.values.rows, _OWN_TIMES)
            if cost(now) < cost(best):
                best, turns = now.copy(), 0
            elif cost(now) > cost(best) + _TOO_SLOW * self.values.price:
                now = best.copy()
            self._choose(now, self._off(), _OTHER_TIMES)
        return best

    def _sweep(self, kept: KeptFlags) -> None:
        """Chooses for each value alone, in random order."""
        for v in self.rng.permutation(len(self.values.blocks)):
            if self.left > 0:
                self.left -= self.values.keep_best(kept, [int(v)])

    def _off(self) -> Ints:
        """The nodes with times that are off."""
        return self.values.rows_with_times(1 + self.rng.uniform(-_OFF, _OFF, len(self.values.rows)))

    def _choose(self, kept: KeptFlags, rows: Ints, number: tuple[int, int]) -> None:
        """Chooses for a few values at a time."""
        count = len(self.values.blocks)
        for _ in range(min(number[0] * count, number[1])):
            if self.left <= 0:
                return
            chosen = self.rng.choice(count, min(MOST_CHOSEN, count), replace=False)
            self.left -= self.values.keep_best(kept, np.sort(chosen), rows)
