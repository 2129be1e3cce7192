"""`vdnn`: virtualized DNN, after Rhu et al., MICRO 2016 (sections III-B and III-C; figures 7 and 10).

In forward, the input feature map of a layer leaves for the host while the layer's last reader computes, and the layer
ends when both have ended. In backward, while one layer computes, the feature maps of the next layer that misses some
are fetched; the search for it ends at the first convolution (the paper's bounded search window, so that nothing comes
back too early). The layer ends when the copy has ended.

Readings of what the published text leaves open:

* A feature map with several readers leaves with the last of them in forward, as the paper's reference count has it;
  mode *conv* looks at that reader's layer.
* Feature maps whose last forward and first backward reader are neighbouring layer steps stay: there is nothing
  to hide behind. On a chain this keeps the last layer's input (CSWAP figure 2).
* The first layer's input is treated like any other; weights, gradients and what is saved beside the inputs stay.
* Classifier layers, which the published system left to the framework, are layers like any other in mode *all*, as
  cDMA (section VI) and moDNN (section 1) describe vDNN.
* A layer with several inputs (a join) sends and fetches them together; one layer is fetched beside one layer step.
* The search looks for the layer that needs an input first in backward. Where that is not the layer with which the
  input left, it comes back later than the published search, which looks for the sender, would bring it.
* A feature map that is needed by the very first backward step has no backward step to be fetched beside; it is
  fetched beside the last forward step.
* Mode *dynamic* adopts the first trial that fits, as published, not the fastest of all.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithAlgorithms, algorithm_choices, transformed
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.trace.model import BlockKind, Phase

#: Convolution algorithm by kernel position.
Algorithms = dict[int, str]

_STAYING = {
    BlockKind.WEIGHT,
    BlockKind.WEIGHT_GRADIENT,
    BlockKind.OPTIMIZER_STATE,
    BlockKind.GRADIENT,
    BlockKind.WORKSPACE,
    BlockKind.LABEL,
}


_NO_WINDOW = (
    "the network has no convolution, at which vDNN's search for what to fetch would end: "
    "feature maps come back far ahead of their use"
)


@dataclass(frozen=True)
class Vdnn(Policy):
    """Offload layer inputs in forward, prefetch them in backward, one layer at a time."""

    name = "vdnn"
    summary = "offload layer inputs in forward, prefetch them in backward, synchronised at every layer"
    source = "Rhu et al., MICRO 2016, sections III-B and III-C"

    mode: Literal["all", "conv", "dynamic"] = parameter(
        "all",
        "which inputs leave: those of all layers, of convolutions only, or what trial runs show to be needed",
    )
    algorithms: Literal["recorded", "fastest", "smallest"] = parameter(
        "recorded",
        "convolution algorithms in modes all and conv (dynamic chooses its own), where the trace offers a choice: "
        "as recorded, the fastest (the paper's p) or those with the least workspace (the paper's m)",
    )

    def swaps(self, graph: TaskGraph) -> tuple[Swap, ...]:
        """Which layer inputs are offloaded, and with which layer step each is prefetched; of modes all and conv."""
        return _swaps(graph, convolutions_only=self.mode == "conv")

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps. Raises `InputError` for a trace with several compute streams."""
        require_one_stream(context.graph, self.name)
        if self.mode == "dynamic":
            return _Dynamic(context).program()
        return offloading(context.graph, self.mode, _chosen(context.graph, self.algorithms))


def _chosen(graph: TaskGraph, which: str) -> Algorithms:
    """Algorithms of every kernel that has a choice; none for the recorded ones."""
    if which == "recorded":
        return {}
    choices = algorithm_choices(graph)
    if which == "fastest":
        return {k: found[0].algorithm for k, found in choices.items()}
    return {k: min(found, key=lambda c: c.workspace_bytes).algorithm for k, found in choices.items()}


def offloading(graph: TaskGraph, mode: str, algorithms: Algorithms) -> Program:
    """vDNN's program with inputs of `mode` layers (all, conv or none) offloaded, run by these algorithms."""
    transforms = (WithAlgorithms(tuple(sorted(algorithms.items()))),) if algorithms else ()
    chosen = transformed(graph, transforms)
    notes = (_NO_WINDOW,) if mode == "all" and not any(chosen.layers.convolution) else ()
    swaps = () if mode == "none" else _swaps(chosen, convolutions_only=mode == "conv")
    program = lower(chosen, Placement(swaps, layer_barrier=True))
    return replace(program, transforms=transforms, notes=(*program.notes, *notes))


def _swaps(graph: TaskGraph, *, convolutions_only: bool) -> tuple[Swap, ...]:
    """Which layer inputs are offloaded, and with which layer step each is prefetched."""
    layers = graph.layers
    pending: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for b, block in enumerate(graph.blocks):
        if block.bytes == 0 or block.kind in _STAYING or (block.persistent and block.kind is not BlockKind.INPUT):
            continue
        reader = _last_forward_reader(graph, b)
        if reader is None or (convolutions_only and not layers.convolution[layers.of_kernel[reader]]):
            continue
        before = graph.next_use(b, reader)
        if before is not None and layers.step_of[before] - layers.step_of[reader] > 1:
            pending[layers.step_of[before]].append((b, reader, before))
    left_by = {step: max(layers.step_of[reader] for _, reader, _ in needed) for step, needed in pending.items()}
    fetch_step = _search_windows(graph, left_by)
    return tuple(
        Swap(b, reader, before, layers.steps[fetch_step[step]].first)
        for step, needed in sorted(pending.items())
        for b, reader, before in needed
    )


def _last_forward_reader(graph: TaskGraph, b: int) -> int | None:
    """The last forward kernel that uses a block, if it had its value before that kernel's layer step began."""
    forward = [k for k in graph.uses[b] if graph.kernels[k].phase is Phase.FORWARD]
    if not forward:
        return None
    step = graph.layers.steps[graph.layers.step_of[forward[-1]]]
    birth = graph.births[b]
    if (birth is not None and birth >= step.first) or any(k >= step.first and b in graph.writes[k] for k in forward):
        return None
    return forward[-1]


def _search_windows(graph: TaskGraph, left_by: dict[int, int]) -> dict[int, int]:
    """For each step that needs offloaded blocks, the step beside which they are fetched.

    left_by: by needing step, the last step with which any of its blocks leaves. At every step after the forward pass
    the steps to come are searched in order for the first whose blocks are still away; a convolution ends the search.
    What no search can find in time (the blocks of the very first backward step) is fetched one step ahead.
    """
    layers = graph.layers
    fetch = {step: step - 1 for step in left_by}
    next_convolution = len(layers.steps)
    window_end = [0] * len(layers.steps)
    for index in reversed(range(len(layers.steps))):
        window_end[index] = next_convolution
        if layers.convolution[layers.steps[index].layer]:
            next_convolution = index
    waiting = sorted(left_by)
    position = 0
    for index, step in enumerate(layers.steps):
        while position < len(waiting) and waiting[position] <= index:
            position += 1
        if position == len(waiting):
            break
        found = waiting[position]
        if step.phase is not Phase.FORWARD and left_by[found] < index and found <= window_end[index]:
            fetch[found] = index
            position += 1
    return fetch


@dataclass
class _Dynamic:
    """The trial runs of mode *dynamic*, in the published order."""

    context: PlanContext

    def program(self) -> Program:
        """The first trial that fits, else what offloads most with the least workspace."""
        graph = self.context.graph
        smallest, fastest = _chosen(graph, "smallest"), _chosen(graph, "fastest")
        last_resort = offloading(graph, "all", smallest)
        notes = []
        passes = [("all", "smallest", smallest), ("none", "fastest", fastest), ("conv", "fastest", fastest)]
        passes.append(("all", "fastest", fastest))
        for number, (mode, which, algorithms) in enumerate(passes):
            program = offloading(graph, mode, algorithms)
            error = self._fails(program)
            notes.append(f"trial: offload {mode}, {which} algorithms: {'does not fit' if error else 'fits'}")
            if number == 0 and error:
                return replace(last_resort, notes=tuple(notes))
            if number > 0 and not error:
                return replace(program, notes=tuple(notes))
        for mode in ("conv", "all"):
            found = self._downgrade(mode, dict(fastest))
            notes.append(
                f"trial: offload {mode}, algorithms downgraded one by one: {'fits' if found else 'does not fit'}"
            )
            if found:
                return replace(found, notes=tuple(notes))
        return replace(last_resort, notes=(*notes, "adopted: offload all, smallest algorithms"))

    def _fails(self, program: Program) -> OutOfMemoryError | None:
        try:
            self.context.trial(program)
        except OutOfMemoryError as error:
            return error
        return None

    def _downgrade(self, mode: str, algorithms: Algorithms) -> Program | None:
        """Give the kernel that runs out of memory its next smaller algorithm until all fits or none is left."""
        graph = self.context.graph
        choices = algorithm_choices(graph)
        while True:
            program = offloading(graph, mode, algorithms)
            error = self._fails(program)
            if error is None:
                return program
            k = graph.kernel_number.get(error.kernel)
            if k is None or k not in algorithms:
                return None
            present = next(c for c in choices[k] if c.algorithm == algorithms[k])
            smaller = [c for c in choices[k] if c.workspace_bytes < present.workspace_bytes]
            if not smaller:
                return None
            algorithms[k] = smaller[0].algorithm
