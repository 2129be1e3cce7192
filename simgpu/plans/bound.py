"""The lower bound of plans that may offload: an integer program that every plan within the budget satisfies.

It has the times at which some kernels begin, and for each of some moments the parts of blocks that are absent then.

* From one kernel to the next it takes at least the time of the kernels between them, with what runs again there.
* While a kernel runs, memory is within the budget, so enough of what is saved is absent.
* What is absent has been copied to the host by the kernel's end, and not before it was made: from the begin of any
  kernel on, at least the time of copies of what was made since.
* It is copied back after the kernel's begin, and before backward needs it: up to any kernel, at least the time of
  copies of what is needed by then.

How much of a block is absent may differ between moments, and copies of different moments are not added up. What is left
out makes plans slower only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from simgpu.hardware.spec import Duplex, LinkSpec
from simgpu.plans.milp import IntegerProgram
from simgpu.plans.rows import ABSENT, Chosen, Moment, Rows, absent_at

#: Kernels whose memory is looked at besides the one that needs most, and others whose begin is a time of the program.
_MOMENTS, _TIMES = 4, 8


def spread(values: Sequence[int], count: int) -> list[int]:
    """Some of these values: the first, the last, and others between them at equal distances.

    >>> spread(range(100), 4), spread([3, 5], 4)
    ([0, 33, 66, 99], [3, 5])
    """
    if len(values) <= count:
        return list(values)
    return [values[place * (len(values) - 1) // (count - 1)] for place in range(count)]


def run_again(program: IntegerProgram, rows: Rows, regions: Iterable[int]) -> dict[int, float]:
    """Less the time in which regions run again, as a part of a row."""
    kernels = rows.steps.trace.kernels
    row: defaultdict[int, float] = defaultdict(float)
    for r in regions:
        row[program.binary(Chosen("region", r))] -= sum(kernels[k].duration_ns for k in rows.ranges[r])
        for k in rows.choices.keepable[r]:
            row[program.binary(Chosen("keep", r, k))] += kernels[k].duration_ns
    return row


@dataclass
class Bound:
    """program: with the choices and what they exclude. rows: of blocks that may be offloaded, for a bound."""

    program: IntegerProgram
    rows: Rows
    link: LinkSpec
    budget: int
    _until: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._times = [kernel.duration_ns for kernel in self.rows.steps.trace.kernels]
        self._until = [0, *accumulate(self._times)]

    def add(self, plain: Sequence[int]) -> IntegerProgram:
        """The program, whose least cost is the bound, in nanoseconds. plain: memory at each kernel without a plan."""
        exceeding = [k for k, bytes_ in enumerate(plain) if bytes_ > self.budget]
        moments = dict.fromkeys([max(range(len(plain)), key=plain.__getitem__), *spread(exceeding, _MOMENTS)])
        places = sorted({0, *moments, *spread(range(len(self._times)), _TIMES)})
        for one, two in pairwise([*places, len(self._times)]):
            between = run_again(
                self.program, self.rows, (r for r, start in enumerate(self.rows.starts) if one < start <= two)
            )
            step = {self._begin(two): 1.0, self._begin(one): -1.0}
            self.program.row({**step, **between}, self._until[two] - self._until[one])
        for k in moments:
            self._absent(k, places)
        self.program.cost = {self._begin(len(self._times)): 1.0}
        return self.program

    def _begin(self, k: int) -> int:
        """The column of the time at which a kernel begins; for the number of kernels, of the end."""
        return self.program.number(("begin", k))

    def _absent(self, k: int, places: Sequence[int]) -> None:
        """Requires that enough is absent while kernel k runs, and time for its copies."""
        memory = absent_at(self.rows.memory(Moment(k)), k)
        self.program.within(memory, self.budget)
        absent = {v for held in memory.held for terms, _ in held.reasons for v, _ in terms if v.kind == ABSENT}
        out, back = self._bandwidths()
        births, needed = self.rows.steps.births, self.rows.needed
        for place in places:
            if place <= k:
                row = {self._begin(k): 1.0, self._begin(place): -1.0} if place < k else {}
                made = (each for each in absent if births[each.number] >= place)
                self.program.row({**row, **self._copies(made, out)}, -self._times[k])
            else:
                wanted = (each for each in absent if needed[each.number] <= place)
                row = {self._begin(place): 1.0, self._begin(k): -1.0}
                self.program.row({**row, **self._copies(wanted, back)}, 0.0)

    def _copies(self, absent: Iterable[Chosen], bandwidth: int) -> dict[int, float]:
        """Less the time in which these are copied."""
        blocks = self.rows.steps.trace.blocks
        return {self.program.binary(each): -blocks[each.number].bytes * 1e9 / bandwidth for each in sorted(absent)}

    def _bandwidths(self) -> tuple[int, int]:
        """To the host and back; each direction of a half-duplex link may have all of it."""
        both = self.link.d2h_bandwidth, self.link.h2d_bandwidth
        return both if self.link.duplex is Duplex.FULL else (max(both), max(both))
