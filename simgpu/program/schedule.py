"""The order of a compute stream in which blocks that were let go are made again.

Before a kernel, all blocks that it needs and that were let go are made again together: each of their ancestors that is
not there is made once, in the order in which a walk over the inputs from the first to the last finds them. What a
relaunch reads or writes and is on the host is fetched for it. An ancestor
that has a later use of its own stays for it. One that has none, and a workspace or another result that a relaunch makes
beside, is released when its readers among these relaunches are done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from simgpu.errors import ProgramError
from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.placement import Placement, Recompute, Swap


@dataclass(slots=True)
class ScheduledLaunch:
    """One launch on the compute stream.

    serves: the kernel of the trace before which it happens, itself for a first run. makes: for a relaunch, the blocks
    that it writes. takes, gives: blocks that take device memory before it, and give it back after it. fetched: swaps
    whose blocks it needs first.
    """

    kernel: int
    serves: int
    again: bool = False
    makes: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    gives: tuple[int, ...] = ()
    fetched: list[Swap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ComputeSchedule:
    """steps: in compute order. first[k]: the first step that serves kernel k. needed[swap]: the kernel that needs the
    fetched block first, itself or for what is made again before it."""

    steps: tuple[ScheduledLaunch, ...]
    first: tuple[int, ...]
    needed: dict[Swap, int]


class _Is(IntEnum):
    HERE = 0
    AWAY = 1
    DROPPED = 2
    GONE = 3


def schedule(
    graph: TaskGraph, placement: Placement, births: Sequence[Sequence[int]], deaths: Sequence[Sequence[int]]
) -> ComputeSchedule:
    """The compute order of a placement. births[k], deaths[k]: blocks that come to life with kernel k, and end with it.

    Raises `ProgramError` for a block that cannot be made again, with the reason.

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
        self.ancestry = Ancestry(graph)
        self.births, self.deaths = births, deaths
        self.state = [_Is.GONE] * len(graph.sizes)
        for b, birth in enumerate(graph.births):
            if birth is not None and birth < 0:
                self.state[b] = _Is.HERE
        self.steps: list[ScheduledLaunch] = []
        self.needed: dict[Swap, int] = {}
        self.leaving: defaultdict[int, list[Swap]] = defaultdict(list)
        self.swap_of: dict[int, Swap] = {}
        for swap in placement.swaps:
            self.leaving[swap.after].append(swap)
        self.dropped: defaultdict[int, list[int]] = defaultdict(list)
        for each in placement.recomputes:
            if why := self._why_not(each):
                raise ProgramError(f"block {graph.blocks[each.block].id} cannot be made again: {why}")
            self.dropped[each.after].append(each.block)

    def _why_not(self, each: Recompute) -> str | None:
        """Why a block cannot be let go of and made again as asked, None where it can."""
        ancestry, kernels = self.ancestry, self.graph.kernels
        if why := ancestry.why_not(each.block):
            return why
        if each.after < (last := ancestry.writers[each.block][-1]):
            return f"kernel {kernels[last].id} is still to write it"
        if each.before > ancestry.latest[each.block]:
            return f"that is sure until its first use after forward only, not for kernel {kernels[each.before].id}"
        return None

    def run(self) -> ComputeSchedule:
        """All kernels in order."""
        first = []
        for k in range(len(self.graph.kernels)):
            first.append(len(self.steps))
            self._kernel(k)
        return ComputeSchedule(tuple(self.steps), tuple(first), self.needed)

    def _kernel(self, k: int) -> None:
        graph, state = self.graph, self.state
        births = self.births[k]
        touched = [b for b in dict.fromkeys((*graph.reads[k], *graph.writes[k])) if b not in births]
        if missing := [b for b in touched if state[b] is _Is.DROPPED]:
            self._make_again(missing, k)
        step = ScheduledLaunch(k, k, takes=tuple(births))
        for b in births:
            state[b] = _Is.HERE
        for b in touched:
            if state[b] is _Is.AWAY:
                self._have_back(b, step)
        gone = tuple(dict.fromkeys((*self.deaths[k], *self.dropped[k])))
        step.gives = gone
        for b in self.deaths[k]:
            state[b] = _Is.GONE
        for b in self.dropped[k]:
            state[b] = _Is.DROPPED
        for swap in self.leaving[k]:
            state[swap.block] = _Is.AWAY
            self.swap_of[swap.block] = swap
        self.steps.append(step)

    def _have_back(self, b: int, step: ScheduledLaunch) -> None:
        swap = self.swap_of[b]
        self.needed[swap] = step.serves
        step.fetched.append(swap)
        self.state[b] = _Is.HERE

    def _make_again(self, targets: Iterable[int], k: int) -> None:
        """Relaunches for the targets and their ancestors, and the release of what served only them."""
        passing: dict[int, int] = {}
        for b in targets:
            if self.state[b] is _Is.DROPPED:
                self._ensure(b, k, passing)
        for b, last in passing.items():
            self.steps[last].gives += (b,)
            self.state[b] = _Is.GONE

    def _ensure(self, target: int, k: int, passing: dict[int, int]) -> None:
        """Append the relaunches that make a block and those ancestors that are missing.

        passing: blocks without a later use of their own, and the last step that uses each.
        """
        # Each entry: a block that is being made, its writer at hand, and that writer's next input to look at.
        stack = [(target, 0, 0)]
        while stack:
            b, writer, position = stack.pop()
            if writer == len(self.ancestry.writers[b]):
                continue
            kernel = self.ancestry.writers[b][writer]
            inputs = self.ancestry.inputs[kernel]
            while position < len(inputs):
                r = inputs[position]
                position += 1
                if r != b and self.state[r] in (_Is.DROPPED, _Is.GONE):
                    stack += [(b, writer, position), (r, 0, 0)]
                    break
            else:
                self._relaunch(kernel, b, k, passing)
                stack.append((b, writer + 1, 0))

    def _relaunch(self, kernel: int, b: int, k: int, passing: dict[int, int]) -> None:
        """One relaunch, on the way to block b. What else it writes has memory too: taken for it, or fetched if away."""
        state = self.state
        here = len(self.steps)
        step = ScheduledLaunch(kernel, k, again=True)
        for r in self.ancestry.inputs[kernel]:
            if state[r] is _Is.AWAY:
                self._have_back(r, step)
            if r in passing:
                passing[r] = here
        takes = []
        for other in self.ancestry.outputs[kernel]:
            if state[other] is _Is.AWAY:
                self._have_back(other, step)
            if state[other] not in (_Is.DROPPED, _Is.GONE):
                continue
            takes.append(other)
            if other != b and len(self.ancestry.writers[other]) > 1:
                # After one of its writers it is not what its readers want: scratch, and no more.
                step.gives += (other,)
                continue
            if state[other] is _Is.GONE:
                passing[other] = here
            state[other] = _Is.HERE
        step.takes = tuple(takes)
        step.makes = (b, *(other for other in takes if other != b))
        self.steps.append(step)
