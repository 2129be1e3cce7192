"""Lowering without a layer barrier: kernels and copies wait only for what they need.

A copy out is issued at the start of a kernel (`Swap.out_with`) or after the block's last use, and releases the block's
memory when both the copy and that use have ended. Copies out are issued in the order of these uses. A fetch is
triggered by the compute stream, which waits until the block has been offloaded (HOME section 3.7), acquires memory for
it, and overlaps the copy with the following kernels (section 2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.code import CodeWriter
from simgpu.program.instructions import COMPUTE, HOST_CORES
from simgpu.program.placement import Placement, Swap
from simgpu.program.schedule import ScheduledLaunch, schedule
from simgpu.program.streams import StreamOrder, compute_stream
from simgpu.program.swaps import SwapWriter


class Kernels:
    """Writes kernels one after another, with memory for the blocks that begin with them; no block moves."""

    def __init__(
        self,
        graph: TaskGraph,
        births: Sequence[Sequence[int]],
        deaths: Sequence[Sequence[int]],
        order: StreamOrder,
        writer: SwapWriter,
    ) -> None:
        self.graph = graph
        self.births, self.deaths = births, deaths
        self.order = order
        self.writer = writer
        self.written_by_host = graph.written_by_host

    def kernel(self, k: int) -> None:
        """Kernel k."""
        code = self.begin(k)
        self.launch(code, k, self.births[k])
        self.release(code, k, self.deaths[k])

    def begin(self, k: int) -> CodeWriter:
        """Kernel k's stream, after it has waited for kernels of other streams."""
        code = self.writer.code[compute_stream(self.graph.streams[k])]
        for event in self.order.before[k]:
            code.wait(event)
        return code

    def launch(self, code: CodeWriter, k: int, takes: Sequence[int]) -> None:
        """Kernel k's first run, with the memory for it and the values that the host initializes."""
        if takes:
            code.acquire(takes)
            if not self.written_by_host.isdisjoint(takes):
                code.initialize([b for b in takes if b in self.written_by_host])
        code.launch(k)

    def release(self, code: CodeWriter, k: int, blocks: Sequence[int]) -> None:
        """Release what ends with kernel k, at once or when other compute streams have finished with it."""
        shared, events = self.order.shared[k]
        if own := [b for b in blocks if b not in shared] if shared else blocks:
            code.release(own)
        if k in self.order.signals:
            code.signal(self.order.signals[k])
        if shared:
            for event in events:
                self.writer.code[HOST_CORES].wait(event)
            self.writer.code[HOST_CORES].release(shared)


class Asynchronous(Kernels):
    """Writes kernels and the moves of their blocks with true dependencies only."""

    def __init__(
        self,
        graph: TaskGraph,
        placement: Placement,
        births: Sequence[Sequence[int]],
        deaths: Sequence[Sequence[int]],
        order: StreamOrder,
        writer: SwapWriter,
    ) -> None:
        super().__init__(graph, births, deaths, order, writer)
        plan = schedule(graph, placement, births, deaths)
        self.steps, self.first = plan.steps, (*plan.first, len(plan.steps))
        self.copied_out_after: defaultdict[int, list[Swap]] = defaultdict(list)
        self.copied_out_with: defaultdict[int, list[Swap]] = defaultdict(list)
        self.fetched_at: defaultdict[int, list[Swap]] = defaultdict(list)
        self.started: dict[Swap, int] = {}
        for swap in sorted(placement.swaps, key=lambda s: (s.before, s.after, s.block)):
            self.copied_out_after[swap.after].append(swap)
            if swap.out_with is not None:
                self.copied_out_with[swap.out_with].append(swap)
        needed = sorted(plan.needed, key=lambda s: (plan.needed[s], s.before, s.after, s.block))
        for swap in needed:
            self.fetched_at[trigger(graph, swap, plan.needed[swap])].append(swap)

    def kernel(self, k: int) -> None:
        """Kernel k with the recomputations before it, and the copies that begin with it."""
        code = self.begin(k)
        if k in self.copied_out_with:
            begun = self._event()
            code.signal(begun)
            self.started |= dict.fromkeys(self.copied_out_with[k], begun)
        for swap in self.fetched_at.get(k, ()):
            self.writer.fetch(swap)
        for step in self.steps[self.first[k] : self.first[k + 1]]:
            for swap in step.fetched:
                self.writer.wait_for_copy_in(swap)
                self.writer.decode(swap)
            if step.again:
                self._relaunch(code, step)
            else:
                self.launch(code, k, step.takes)
                self.release(code, k, step.gives)
        if k in self.copied_out_after:
            self._copy_out(k)

    def _relaunch(self, code: CodeWriter, step: ScheduledLaunch) -> None:
        if step.takes:
            code.acquire(step.takes)
        code.relaunch(step.kernel, step.makes)
        if step.gives:
            code.release(step.gives)

    def _copy_out(self, k: int) -> None:
        """Copy out what kernel k uses for the last time before its swap."""
        code, leaving = self.writer.code[COMPUTE], self.copied_out_after[k]
        for swap in leaving:
            self.writer.encode(swap)
            if swap.encoded_by_gpu:
                code.release((swap.block,))
        ended = self._event()
        code.signal(ended)
        for swap in leaving:
            self.writer.copy_d2h(swap, self.started.get(swap, ended), release=True, free=ended)

    def _event(self) -> int:
        self.writer.events = max(self.writer.events, self.order.events)
        return self.writer.event()


def trigger(graph: TaskGraph, swap: Swap, needed: int) -> int:
    """The kernel that triggers a block's fetch if kernel `needed` is the first that needs it.

    The number of layer steps between fetch and need is that of the swap's own next use.
    """
    if needed == swap.before:
        return swap.fetch_with
    layers = graph.layers
    ahead = layers.step_of[swap.before] - layers.step_of[swap.fetch_with]
    return max(layers.steps[max(layers.step_of[needed] - ahead, 0)].first, swap.after + 1)
