"""Layer steps that end when their kernels and the copies issued with them have ended: the lowering with vDNN's
barrier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.asynchronous import launch
from simgpu.program.instructions import COMPUTE, Await, Release, Signal
from simgpu.program.placement import Placement, Swap
from simgpu.program.schedule import Step
from simgpu.program.streams import StreamOrder, compute_stream
from simgpu.program.travel import Travel


class LayerSteps:
    """Writes kernels one after another in layer steps."""

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
        self.births, self.deaths = births, deaths
        self.order = order
        self.travel = travel
        self.leaving: defaultdict[int, list[Swap]] = defaultdict(list)
        self.fetched: defaultdict[int, list[Swap]] = defaultdict(list)
        self.awaited: defaultdict[int, list[Swap]] = defaultdict(list)
        for swap in sorted(placement.swaps, key=lambda s: (s.before, s.after, s.block)):
            self.leaving[self._step_start(swap.after)].append(swap)
            self.fetched[self._step_start(swap.fetch_with)].append(swap)
            self.awaited[self._step_start(swap.before)].append(swap)

    def _step_start(self, k: int) -> int:
        layers = self.graph.layers
        return layers.steps[layers.step_of[k]].first

    def kernel(self, k: int) -> None:
        """Kernel k: copies begin with its step's first kernel, the step ends with the last copy.

        Before the step's first kernel the GPU decodes what the step needs, and encodes what is to leave with it.
        """
        code = self.travel.code[compute_stream(self.graph.streams[k])]
        code += [Await(event) for event in self.order.before[k]]
        first = self._step_start(k)
        outs, ins = self.leaving.get(first, []), self.fetched.get(first, [])
        for swap in self.awaited[k]:
            self.travel.decode(swap)
        if k == first and (outs or ins):
            self._begin_step(outs, ins)
        code += launch(self.graph, Step(k, k, takes=tuple(self.births[k])))
        encoded = [swap.block for swap in outs if swap.encoded_by_gpu and swap.after == k]
        if gone := (*self.deaths[k], *encoded):
            code.append(Release(gone))
        layers = self.graph.layers
        if k + 1 == layers.steps[layers.step_of[k]].stop:
            for swap in outs:
                code.append(Await(self.travel.copied_out[swap]))
                if not swap.encoded_by_gpu:
                    code.append(Release((swap.block,)))
            code += [Await(self.travel.back[swap]) for swap in ins]

    def _begin_step(self, outs: list[Swap], ins: list[Swap]) -> None:
        """Issue the copies of a layer step: at once, or once the GPU has encoded what is to be copied."""
        code = self.travel.code[COMPUTE]
        begun = self.travel.event()
        code.append(Signal(begun))
        for swap in outs:
            if not swap.encoded_by_gpu:
                self.travel.out(swap, begun, release=False)
        for swap in ins:
            self.travel.into(swap, (begun,))
        for swap in outs:
            if swap.encoded_by_gpu:
                self.travel.encode(swap)
                encoded = self.travel.event()
                code.append(Signal(encoded))
                self.travel.out(swap, encoded, release=True)
