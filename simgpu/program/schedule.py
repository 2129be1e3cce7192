"""The order of a compute stream in which dropped blocks are recomputed.

Before a kernel, all dropped blocks that it needs are recomputed together: each of their missing ancestors is recomputed
once, in the order of a depth-first walk over the inputs. Blocks on the host that a recomputation reads or writes are
fetched for it. An ancestor with a later use of its own is kept for it. All others, and every workspace or additional
result of a recomputation, are released when the recomputations that read them have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from simgpu.errors import ProgramError
from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.placement import Placement, Recompute, Swap


@dataclass(slots=True)
class ScheduledLaunch:
    """One launch on the compute stream.

    serves: the kernel of the trace before which it runs, itself for a first run. makes: for a recomputation, the blocks
    that it writes. takes, gives: blocks whose device memory is acquired before it, and released after it. fetched:
    swaps whose blocks it needs first.
    """

    kernel: int
    serves: int
    again: bool = False
    makes: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    gives: tuple[int, ...] = ()
    fetched: tuple[Swap, ...] = ()


@dataclass(frozen=True, slots=True)
class ComputeSchedule:
    """steps: in compute order. first[k]: the first step that serves kernel k. needed[swap]: the kernel that needs the
    fetched block first, itself or for a recomputation before it."""

    steps: tuple[ScheduledLaunch, ...]
    first: tuple[int, ...]
    needed: dict[Swap, int]


class _State(IntEnum):
    RESIDENT = 0
    OFFLOADED = 1
    DROPPED = 2
    RELEASED = 3


def schedule(
    graph: TaskGraph, placement: Placement, births: Sequence[Sequence[int]], deaths: Sequence[Sequence[int]]
) -> ComputeSchedule:
    """The compute order of a placement. births[k], deaths[k]: as in `Lifetimes`.

    Raises `ProgramError` for a block that cannot be recomputed, with the reason.

    >>> from simgpu.program.placement import Recompute
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> dropped = Placement(recomputes=(Recompute(graph.block("x2"), after=1, before=4),))
    >>> births = [[b for b in writes if graph.births[b] == k] for k, writes in enumerate(graph.writes)]
    >>> deaths = [[b for b, last in enumerate(graph.needed_releases) if last == k] for k in range(6)]
    >>> [graph.kernels[step.kernel].id for step in schedule(graph, dropped, births, deaths).steps]
    ['F1', 'F2', 'F3', 'B3', 'F1', 'B2', 'B1']
    """
    return _Scheduling(graph, placement, births, deaths).run()


class _Scheduling:
    def __init__(
        self,
        graph: TaskGraph,
        placement: Placement,
        births: Sequence[Sequence[int]],
        deaths: Sequence[Sequence[int]],
    ) -> None:
        self.graph = graph
        self.ancestry = Ancestry.of(graph)
        self.births, self.deaths = births, deaths
        self.state = [_State.RELEASED] * len(graph.sizes)
        for b, birth in enumerate(graph.births):
            if birth is not None and birth < 0:
                self.state[b] = _State.RESIDENT
        self.steps: list[ScheduledLaunch] = []
        self.needed: dict[Swap, int] = {}
        self.leaving: defaultdict[int, list[Swap]] = defaultdict(list)
        self.swap_of: dict[int, Swap] = {}
        for swap in placement.swaps:
            self.leaving[swap.after].append(swap)
        self.dropped: defaultdict[int, list[int]] = defaultdict(list)
        # Blocks that were offloaded or dropped and have not been used since.
        self.left: set[int] = set()
        for each in placement.recomputes:
            if why := self._why_not(each):
                raise ProgramError(f"block {graph.blocks[each.block].id} cannot be recomputed: {why}")
            self.dropped[each.after].append(each.block)

    def _why_not(self, each: Recompute) -> str | None:
        """Why a block cannot be dropped and recomputed as requested, None where it can."""
        ancestry, kernels = self.ancestry, self.graph.kernels
        if why := ancestry.why_not(each.block):
            return why
        if each.after < (last := ancestry.writers[each.block][-1]):
            return f"kernel {kernels[last].id} writes it later"
        if each.before > ancestry.latest[each.block]:
            until = "its inputs are only guaranteed until its first use after forward"
            return f"{until}, not for kernel {kernels[each.before].id}"
        return None

    def run(self) -> ComputeSchedule:
        """All kernels in order."""
        first = []
        for k in range(len(self.graph.kernels)):
            first.append(len(self.steps))
            self._kernel(k)
        return ComputeSchedule(tuple(self.steps), tuple(first), self.needed)

    def _kernel(self, k: int) -> None:
        state, births = self.state, self.births[k]
        touched = self.graph.reads[k] + self.graph.writes[k]
        offloaded, dropped = _State.OFFLOADED, _State.DROPPED
        away: list[int] = []
        if not self.left.isdisjoint(touched):
            self.left.difference_update(touched)
            away = [b for b in touched if state[b] is offloaded or state[b] is dropped]
            self._recompute_all(away, k)
        step = ScheduledLaunch(k, k, takes=tuple(births))
        for b in births:
            state[b] = _State.RESIDENT
        for b in away:
            if state[b] is offloaded:
                self._fetch(b, step)
        deaths, leaving = self.deaths[k], self.dropped.get(k)
        step.gives = tuple(dict.fromkeys((*deaths, *leaving))) if leaving else tuple(deaths)
        for b in deaths:
            state[b] = _State.RELEASED
        for b in leaving or ():
            state[b] = dropped
            self.left.add(b)
        for swap in self.leaving.get(k, ()):
            state[swap.block] = offloaded
            self.left.add(swap.block)
            self.swap_of[swap.block] = swap
        self.steps.append(step)

    def _fetch(self, b: int, step: ScheduledLaunch) -> None:
        swap = self.swap_of[b]
        self.needed[swap] = step.serves
        step.fetched += (swap,)
        self.state[b] = _State.RESIDENT

    def _recompute_all(self, targets: Iterable[int], k: int) -> None:
        """Recompute dropped targets and their missing ancestors, and release blocks that only they needed."""
        temporary: dict[int, int] = {}
        for b in targets:
            if self.state[b] is _State.DROPPED:
                self._ensure(b, k, temporary)
        for b, last in temporary.items():
            self.steps[last].gives += (b,)
            self.state[b] = _State.RELEASED

    def _ensure(self, target: int, k: int, temporary: dict[int, int]) -> None:
        """Append the launches that recompute a block and its missing ancestors.

        temporary: blocks without a later use of their own, and the last launch that uses each.
        """
        state, writers, inputs_of = self.state, self.ancestry.writers, self.ancestry.inputs
        missing = _State.DROPPED, _State.RELEASED
        # Each entry: a block being recomputed, the index of its current writer, and of that writer's next input.
        stack = [(target, 0, 0)]
        while stack:
            b, writer, position = stack.pop()
            if writer == len(writers[b]):
                continue
            kernel = writers[b][writer]
            inputs = inputs_of[kernel]
            while position < len(inputs):
                r = inputs[position]
                position += 1
                if r != b and state[r] in missing:
                    stack += [(b, writer, position), (r, 0, 0)]
                    break
            else:
                self._recompute(kernel, b, k, temporary)
                stack.append((b, writer + 1, 0))

    def _recompute(self, kernel: int, b: int, k: int, temporary: dict[int, int]) -> None:
        """Run a kernel again for block b. Its other results need memory too, acquired or fetched."""
        state = self.state
        here = len(self.steps)
        step = ScheduledLaunch(kernel, k, again=True)
        for r in self.ancestry.inputs[kernel]:
            if state[r] is _State.OFFLOADED:
                self._fetch(r, step)
            if r in temporary:
                temporary[r] = here
        takes = []
        for other in self.ancestry.outputs[kernel]:
            if state[other] is _State.OFFLOADED:
                self._fetch(other, step)
            if state[other] not in (_State.DROPPED, _State.RELEASED):
                continue
            takes.append(other)
            if other != b and len(self.ancestry.writers[other]) > 1:
                # One writer alone does not restore its value: it is only scratch memory.
                step.gives += (other,)
                continue
            if state[other] is _State.RELEASED:
                temporary[other] = here
            state[other] = _State.RESIDENT
        step.takes = tuple(takes)
        step.makes = (b, *(other for other in takes if other != b))
        self.steps.append(step)
