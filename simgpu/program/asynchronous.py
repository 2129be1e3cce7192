"""Kernels and copies that wait only for what they need: the lowering without a layer barrier.

A copy out is issued at the start of a kernel (`Swap.out_with`) or after the block's last use, and gives the block's
memory back when both the copy and that use have ended. Copies out leave in the order of these uses. A fetch is
triggered by the compute stream: there it waits until the block has left (HOME section 3.7: a tensor that is not yet out
is waited for), takes the memory for it, and lets the copy run beside the kernels to come (section 2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import COMPUTE, HOST, Acquire, Await, Initialize, Instruction, Launch, Release, Signal
from simgpu.program.placement import Placement, Swap
from simgpu.program.schedule import ScheduledLaunch, schedule
from simgpu.program.streams import StreamOrder, compute_stream
from simgpu.program.travel import Travel


class Asynchronous:
    """Writes kernels one after another with true dependencies only."""

    def __init__(
        self,
        graph: TaskGraph,
        placement: Placement,
        births: Sequence[Sequence[int]],
        deaths: Sequence[Sequence[int]],
        order: StreamOrder,
        travel: Travel,
    ) -> None:
        self.graph = graph
        self.order = order
        self.travel = travel
        plan = schedule(graph, placement, births, deaths)
        self.steps, self.first = plan.steps, (*plan.first, len(plan.steps))
        self.leaving: defaultdict[int, list[Swap]] = defaultdict(list)
        self.issued: defaultdict[int, list[Swap]] = defaultdict(list)
        self.triggered: defaultdict[int, list[Swap]] = defaultdict(list)
        self.begun: dict[Swap, int] = {}
        for swap in sorted(placement.swaps, key=lambda s: (s.before, s.after, s.block)):
            self.leaving[swap.after].append(swap)
            if swap.out_with is not None:
                self.issued[swap.out_with].append(swap)
        needed = sorted(plan.needed, key=lambda s: (plan.needed[s], s.before, s.after, s.block))
        for swap in needed:
            self.triggered[trigger(graph, swap, plan.needed[swap])].append(swap)

    def kernel(self, k: int) -> None:
        """Kernel k with what is made again before it, and the copies that begin with it."""
        code = self.travel.code[compute_stream(self.graph.streams[k])]
        code += [Await(event) for event in self.order.before[k]]
        if self.issued[k]:
            begun = self._event()
            code.append(Signal(begun))
            self.begun |= dict.fromkeys(self.issued[k], begun)
        for swap in self.triggered[k]:
            self.travel.fetch(swap)
        for step in self.steps[self.first[k] : self.first[k + 1]]:
            for swap in step.fetched:
                self.travel.wait_for_copy_in(swap)
                self.travel.decode(swap)
            code += launch(self.graph, step)
            if step.again and step.gives:
                code.append(Release(step.gives))
        self._give_back(k, self.steps[self.first[k + 1] - 1])
        self._leave(k)

    def _give_back(self, k: int, step: ScheduledLaunch) -> None:
        """Memory of what ends with kernel k, at once or when other compute streams are done with it."""
        code = self.travel.code[compute_stream(self.graph.streams[k])]
        shared, events = self.order.shared[k]
        if own := tuple(b for b in step.gives if b not in shared):
            code.append(Release(own))
        if k in self.order.signals:
            code.append(Signal(self.order.signals[k]))
        if shared:
            self.travel.code[HOST] += [*(Await(event) for event in events), Release(shared)]

    def _leave(self, k: int) -> None:
        """Copies out of what is used by kernel k for the last time."""
        code, leaving = self.travel.code[COMPUTE], self.leaving[k]
        for swap in leaving:
            self.travel.encode(swap)
            if swap.encoded_by_gpu:
                code.append(Release((swap.block,)))
        if leaving:
            ended = self._event()
            code.append(Signal(ended))
            for swap in leaving:
                self.travel.out(swap, self.begun.get(swap, ended), release=True, free=ended)

    def _event(self) -> int:
        self.travel.events = max(self.travel.events, self.order.events)
        return self.travel.event()


def launch(graph: TaskGraph, step: ScheduledLaunch) -> list[Instruction]:
    """A step's memory, values that the host gives, and the launch."""
    code: list[Instruction] = []
    if step.takes:
        code.append(Acquire(step.takes))
        if not step.again and (given := tuple(b for b in step.takes if graph.blocks[b].born is not None)):
            code.append(Initialize(given))
    code.append(Launch(step.kernel, step.again, step.makes))
    return code


def trigger(graph: TaskGraph, swap: Swap, needed: int) -> int:
    """The kernel with which a block is fetched that kernel `needed` is the first to need.

    Where that is not the swap's own next use, it is as many layer steps ahead as the swap asks for its own.
    """
    if needed == swap.before:
        return swap.fetch_with
    layers = graph.layers
    ahead = layers.step_of[swap.before] - layers.step_of[swap.fetch_with]
    return max(layers.steps[max(layers.step_of[needed] - ahead, 0)].first, swap.after + 1)
