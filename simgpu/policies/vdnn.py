"""`vdnn`: virtualized DNN, after Rhu et al., MICRO 2016 (sections III-B and III-C; figures 7 and 10).

In forward, a layer's input feature map is offloaded to the host while the layer's last reader computes; the layer ends
when both have ended. In backward, while one layer computes, the offloaded feature maps of the next layer that needs any
are prefetched, and the layer ends when the copy has ended. The search for that next layer stops at the first
convolution (the paper's bounded search window), so that no feature map is prefetched too early.

Where the published text is open, this implementation decides:

* A feature map with several readers is offloaded with the last of them in forward, as the paper's reference count has
  it; mode *conv* looks at that reader's layer.
* A feature map whose last forward and first backward reader are neighbouring layer steps stays: no layer lies between
  them whose computation could overlap the copies. On a chain this keeps the last layer's input (CSWAP figure 2).
* The first layer's input is treated like any other. Weights, gradients and other saved tensors stay.
* Classifier layers, which the published system left to the framework, are layers like any other in mode *all*, as
  cDMA (section VI) and moDNN (section 1) describe vDNN.
* A layer with several inputs (a join) offloads and prefetches them together; one layer's inputs are prefetched per
  layer step.
* The search looks for the layer that needs an input first in backward. Where that is not the layer that offloaded it,
  the input is prefetched later than by the published search, which looks for the offloading layer.
* A feature map that the very first backward step needs is prefetched during the last forward step.
* Mode *dynamic* adopts the first trial that fits, as published, not the fastest of all.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

from simgpu.errors import OutOfMemoryError
from simgpu.garbage import no_collection
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithAlgorithms, algorithm_choices, transformed
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.trace.model import BlockKind, Phase

#: The convolution algorithm of a kernel, by the kernel's position.
Algorithms = dict[int, str]

#: Kinds of blocks that are never offloaded.
_RESIDENT = {
    BlockKind.WEIGHT,
    BlockKind.WEIGHT_GRADIENT,
    BlockKind.OPTIMIZER_STATE,
    BlockKind.GRADIENT,
    BlockKind.WORKSPACE,
    BlockKind.LABEL,
}

_NO_WINDOW = (
    "the network has no convolution, which would end vDNN's search window: feature maps are prefetched far ahead of "
    "their use"
)


@dataclass(frozen=True)
class Vdnn(Policy):
    """Offload layer inputs in forward, prefetch them in backward, one layer at a time."""

    name = "vdnn"
    summary = "offload layer inputs in forward, prefetch them in backward, synchronised at every layer"
    source = "Rhu et al., MICRO 2016, sections III-B and III-C"

    mode: Literal["all", "conv", "dynamic"] = parameter(
        "all",
        "offloaded layer inputs: those of all layers, of convolutions only, or as many as trial runs need",
    )
    algorithms: Literal["recorded", "fastest", "fitting", "smallest"] = parameter(
        "recorded",
        "convolution algorithms in modes all and conv (dynamic chooses its own), where the trace offers a choice: "
        "as recorded, the fastest (the paper's p), the fastest that fit, downgraded one by one as in mode dynamic, or "
        "those with the least workspace (the paper's m)",
    )

    def swaps(self, graph: TaskGraph) -> tuple[Swap, ...]:
        """The offloads and prefetches of modes all and conv, for policies that change how vDNN's copies travel."""
        return _swaps(graph, convolutions_only=self.mode == "conv")

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps. Raises `InputError` for a trace with several compute streams."""
        require_one_stream(context.graph, self.name)
        if self.mode == "dynamic":
            return _dynamic(context)
        if self.algorithms == "fitting":
            return _fitting(context, self.mode)
        return offloading(context.graph, self.mode, _algorithms(context.graph, self.algorithms))


def _algorithms(graph: TaskGraph, which: str) -> Algorithms:
    """The algorithm of every kernel with a choice: fastest or smallest; none where they run as recorded."""
    if which == "recorded":
        return {}
    choices = algorithm_choices(graph)
    if which == "fastest":
        return {k: own[0].algorithm for k, own in choices.items()}
    return {k: min(own, key=lambda choice: choice.workspace_bytes).algorithm for k, own in choices.items()}


def offloading(graph: TaskGraph, mode: str, algorithms: Algorithms) -> Program:
    """The program that offloads the inputs of all, conv or none of the layers and runs these algorithms."""
    transforms = (WithAlgorithms(tuple(sorted(algorithms.items()))),) if algorithms else ()
    chosen = transformed(graph, transforms)
    notes = (_NO_WINDOW,) if mode == "all" and not any(chosen.layers.convolution) else ()
    swaps = () if mode == "none" else _swaps(chosen, convolutions_only=mode == "conv")
    program = lower(chosen, Placement(swaps, layer_barrier=True))
    return replace(program, transforms=transforms, notes=(*program.notes, *notes))


@no_collection()
def _swaps(graph: TaskGraph, *, convolutions_only: bool) -> tuple[Swap, ...]:
    """Which layer inputs are offloaded, and with which layer step each is prefetched."""
    layers = graph.layers
    # By the layer step that needs them in backward: block, last reader in forward, next use.
    pending: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for b, block in enumerate(graph.blocks):
        if block.bytes == 0 or block.kind in _RESIDENT or (block.persistent and block.kind is not BlockKind.INPUT):
            continue
        reader = _last_forward_reader(graph, b)
        if reader is None or (convolutions_only and not layers.convolution[layers.of_kernel[reader]]):
            continue
        before = graph.next_use(b, reader)
        if before is not None and layers.step_of[before] - layers.step_of[reader] > 1:
            pending[layers.step_of[before]].append((b, reader, before))
    offloaded_by = {step: max(layers.step_of[reader] for _, reader, _ in needed) for step, needed in pending.items()}
    prefetch_step = _search_windows(graph, offloaded_by)
    return tuple(
        Swap(b, reader, before, layers.steps[prefetch_step[step]].first)
        for step, needed in sorted(pending.items())
        for b, reader, before in needed
    )


def _last_forward_reader(graph: TaskGraph, b: int) -> int | None:
    """The last forward kernel that uses a block; None if the block gets its value only in that kernel's layer step."""
    forward = [k for k in graph.uses[b] if graph.is_forward[k]]
    if not forward:
        return None
    step = graph.layers.steps[graph.layers.step_of[forward[-1]]]
    birth = graph.births[b]
    if (birth is not None and birth >= step.first) or any(k >= step.first and b in graph.writes[k] for k in forward):
        return None
    return forward[-1]


def _search_windows(graph: TaskGraph, offloaded_by: dict[int, int]) -> dict[int, int]:
    """For each layer step that needs offloaded blocks, the step during which they are prefetched.

    offloaded_by: for each such step, the last forward step that offloads any of its blocks. Every step after forward
    searches the steps ahead of it, up to the next convolution, for the first whose blocks are still on the host. Blocks
    that no search finds in time, those of the very first backward step, are prefetched one step ahead.
    """
    layers = graph.layers
    prefetch = {step: step - 1 for step in offloaded_by}
    window_end = [0] * len(layers.steps)
    next_convolution = len(layers.steps)
    for index in reversed(range(len(layers.steps))):
        window_end[index] = next_convolution
        if layers.convolution[layers.steps[index].layer]:
            next_convolution = index
    waiting = sorted(offloaded_by)
    position = 0
    for index, step in enumerate(layers.steps):
        while position < len(waiting) and waiting[position] <= index:
            position += 1
        if position == len(waiting):
            break
        needing = waiting[position]
        if step.phase is not Phase.FORWARD and offloaded_by[needing] < index and needing <= window_end[index]:
            prefetch[needing] = index
            position += 1
    return prefetch


def _dynamic(context: PlanContext) -> Program:
    """The first trial that fits, in the published order; else what offloads most with the least workspace."""
    graph = context.graph
    smallest, fastest = _algorithms(graph, "smallest"), _algorithms(graph, "fastest")
    last_resort = offloading(graph, "all", smallest)
    if not _fits(context, last_resort):
        return replace(last_resort, notes=("trial: offload all, smallest algorithms: does not fit",))
    notes = ["trial: offload all, smallest algorithms: fits"]
    for mode in ("none", "conv", "all"):
        program = offloading(graph, mode, fastest)
        fits = _fits(context, program)
        notes.append(f"trial: offload {mode}, fastest algorithms: {'fits' if fits else 'does not fit'}")
        if fits:
            return replace(program, notes=tuple(notes))
    for mode in ("conv", "all"):
        downgraded = _downgraded(context, mode, dict(fastest))
        outcome = "fits" if downgraded else "does not fit"
        notes.append(f"trial: offload {mode}, algorithms downgraded one by one: {outcome}")
        if downgraded:
            return replace(downgraded, notes=tuple(notes))
    return replace(last_resort, notes=(*notes, "adopted: offload all, smallest algorithms"))


def _fitting(context: PlanContext, mode: str) -> Program:
    """Fastest algorithms, those that run out of memory downgraded; the smallest ones where nothing else fits."""
    downgraded = _downgraded(context, mode, dict(_algorithms(context.graph, "fastest")))
    return downgraded or offloading(context.graph, mode, _algorithms(context.graph, "smallest"))


def _downgraded(context: PlanContext, mode: str, algorithms: Algorithms) -> Program | None:
    """Give the kernel that runs out of memory its next smaller algorithm, until all fits or none is left."""
    choices = algorithm_choices(context.graph)
    while True:
        program = offloading(context.graph, mode, algorithms)
        error = _out_of_memory(context, program)
        if error is None:
            return program
        k = context.graph.kernel_number.get(error.kernel)
        if k is None or k not in algorithms:
            return None
        present = next(choice for choice in choices[k] if choice.algorithm == algorithms[k])
        smaller = [choice for choice in choices[k] if choice.workspace_bytes < present.workspace_bytes]
        if not smaller:
            return None
        algorithms[k] = smaller[0].algorithm


def _fits(context: PlanContext, program: Program) -> bool:
    return _out_of_memory(context, program) is None


def _out_of_memory(context: PlanContext, program: Program) -> OutOfMemoryError | None:
    """How a trial run of the program ran out of memory; None where it fits."""
    try:
        context.trial(program)
    except OutOfMemoryError as error:
        return error
    return None
