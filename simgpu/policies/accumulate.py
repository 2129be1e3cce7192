"""`accumulate`: gradient accumulation over micro-batches, as a training loop in PyTorch does it.

    for x, y in zip(inputs.chunk(k), labels.chunk(k)):
        (loss_fn(model(x), y) / k).backward()
    optimizer.step()

The batch is split into k equal micro-batches. Each runs forward and backward under the policy `inside`, whose
activations are freed before the next begins; the optimizer runs once. `simgpu.graph.accumulation` has PyTorch's rules:
the first micro-batch writes the gradients of weights, each later one adds to them in place, one kernel a gradient.

* A micro-batch holds its inputs to its end, where the recording holds those of the batch.
* Kernels of a micro-batch take the time that they take at that batch (`simgpu.workloads.rescale`), as moDNN's
  sub-batches do. The kernel that adds a gradient is elementwise: by the time model of the trace's GPU or, without one,
  as fast as the elementwise kernels of the recorded optimizer.
* A batch norm sees one micro-batch at a time: its statistics are those of fewer samples, and the running ones change k
  times. So unlike other policies, this one changes what is computed where a model has batch norms.
* The division of the loss by k, and autocast's cached casts of weights, are not modelled.
* Without a number the smallest that fits is taken, by trial runs; one that no number fits runs one sample at a time.
  One micro-batch is the plain step under the policy `inside`.

No lower bound on the step time holds, since those bounds are for the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.accumulation import Accumulate, add_ns, divisors, micro_batch, summed_gradients
from simgpu.graph.bounds import first_reason
from simgpu.graph.split import end_of_backward
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.transfer import NANO
from simgpu.policies.base import PlanContext, Policy, Trial, no_progress, parameter, require_one_stream
from simgpu.policies.calling import planned
from simgpu.policies.common.inside import Outer
from simgpu.policies.common.sub_batches import on_batch_norms, on_times, samples_text
from simgpu.policies.registry import policy_inside
from simgpu.program.data_parallel import elementwise_rate
from simgpu.program.instructions import Program
from simgpu.program.lowering import require_reads
from simgpu.trace.model import Block, Kernel, Phase, Trace
from simgpu.units import format_time
from simgpu.workloads.rescale.entry import shipped_gpu
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import OperationKind


@dataclass(frozen=True)
class GradientAccumulation(Outer):
    """Forward and backward of one micro-batch after the other, gradients summed in place, one optimizer step."""

    name = "accumulate"
    summary = "gradient accumulation: micro-batches under another policy, gradients summed, one optimizer step"
    source = "PyTorch, gradient accumulation in a training loop; torch/csrc/autograd/functions/accumulate_grad.h"
    splits_batch = True

    micro_batches: int = parameter(0, "number of equal micro-batches; 0: the smallest number that fits")
    inside: str | Mapping[str, object] = parameter(
        "none", "policy of each micro-batch, as a scenario has it: a name, or {name: {parameter: value}}"
    )

    @property
    def inner(self) -> Policy:
        """The policy of each micro-batch."""
        inner = policy_inside(self.inside)
        if inner.splits_batch:
            what = f"{inner.name} splits the batch itself"
            raise InputError.single("", "parameters.inside", what, "choose a policy of the whole batch, such as vdnn")
        return inner

    def plan(self, context: PlanContext) -> Program:
        """The program of all micro-batches.

        Raises `InputError` for a number that does not divide the batch and for a trace that cannot be split: it has
        several compute streams, or its optimizer does not come last. Where the number is to be chosen, such a trace
        runs as one micro-batch.
        """
        if self.micro_batches:
            return self._program(context, self.micro_batches)
        return self._smallest(context)

    def _smallest(self, context: PlanContext) -> Program:
        """The program with the fewest micro-batches that fits; with one sample each where none does."""
        program: Program | None = None
        lacking: OutOfMemoryError | None = None
        for count in divisors(context.graph.trace.info.batch):
            context.progress(f"trying {count} micro-batches")
            try:
                program = self._program(context, count)
                context.trial(program)
            except OutOfMemoryError as error:
                lacking = error
            except InputError as error:
                if program is None:
                    raise
                return replace(program, notes=(*program.notes, f"the batch is not split: {first_reason(error)}"))
            else:
                return replace(program, notes=(*program.notes, "no smaller number fits")) if count > 1 else program
        if program is None:
            assert lacking is not None, "a batch has at least one sample"
            raise lacking
        return program

    def _program(self, context: PlanContext, count: int) -> Program:
        """The program in this number of micro-batches."""
        inner, graph = self.inner, context.graph
        samples = micro_batch(graph, count)
        if count == 1:
            return planned(inner, context)
        how = _how(graph, context.node, count)
        split = transformed(graph, (how,))

        def in_micro_batches(program: Program) -> Program:
            return replace(program, transforms=(how, *program.transforms))

        def trial(program: Program) -> Trial:
            return context.trial(in_micro_batches(program))

        # What is decided about blocks of the split graph is of no use to who asked for those of the whole batch.
        program = planned(inner, replace(context, graph=split, trial=trial, chosen=no_progress))
        notes = (
            f"{count} micro-batches of {samples_text(samples)}; {_on_adds(graph, how)}",
            *on_times(graph, samples, "micro-batches"),
            *on_batch_norms(graph.trace, samples),
        )
        return replace(in_micro_batches(program), notes=(*notes, *program.notes))


def _how(graph: TaskGraph, node: NodeSpec, count: int) -> Accumulate:
    """The micro-batches of a graph that can be split, and the rate at which their gradients are added."""
    require_one_stream(graph, GradientAccumulation.name)
    require_reads(graph)
    if graph.exchanged:
        what = "accumulate does what PyTorch does on one GPU, not on several that train together"
        raise InputError.single(graph.trace.name, "policy", what, "run it on one GPU, or choose vdnn+ or modnn")
    if not summed_gradients(graph, end_of_backward(graph, partitioned=True)):
        return Accumulate(count, NANO)
    return Accumulate(count, *adding_rate(graph.trace, node))


def adding_rate(trace: Trace, node: NodeSpec) -> tuple[int, int]:
    """Bytes per second of a kernel that adds one gradient to another, and its fixed time (ns).

    Raises `InputError` where neither the trace's GPU, nor its optimizer, nor the node's DRAM gives it.
    """
    is_of_node = node.gpu.is_called(trace.info.device) and node.gpu.architecture
    if (gpu := node.gpu if is_of_node else shipped_gpu(trace.info.device)) is not None:
        return elementwise_rate(gpu)
    return _recorded_rate(trace) or elementwise_rate(node.gpu)


def _recorded_rate(trace: Trace) -> tuple[int, int] | None:
    """The line of least squares through bytes and times of the optimizer's elementwise kernels, None without any.

    Where the line has no positive slope and fixed time, times are in proportion to bytes.
    """
    kernels = [k for k in trace.kernels if k.phase is Phase.OPTIMIZER and kind_of(k.op) is OperationKind.ELEMENTWISE]
    blocks = trace.block_by_id
    points = [(moved, kernel.duration_ns) for kernel in kernels if (moved := _moved(blocks, kernel))]
    n, x, y = len(points), sum(size for size, _ in points), sum(ns for _, ns in points)
    if not y:
        return None
    across = n * sum(size * ns for size, ns in points) - x * y
    spread = n * sum(size * size for size, _ in points) - x * x
    fixed = y * spread - x * across
    if across > 0 and fixed >= 0:
        return max(spread * NANO // across, 1), fixed // (n * spread)
    return max(x * NANO // y, 1), 0


def _moved(blocks: Mapping[str, Block], kernel: Kernel) -> int:
    """Bytes that an elementwise kernel reads and writes."""
    return sum(blocks[name].bytes for names in (kernel.reads, kernel.writes) for name in dict.fromkeys(names))


def _on_adds(graph: TaskGraph, how: Accumulate) -> str:
    """The kernels that add gradients, in a few words. graph: of the whole batch."""
    sizes = [graph.sizes[b] for b in summed_gradients(graph, end_of_backward(graph, partitioned=True))]
    times = how.micro_batches - 1
    if not sizes:
        return "no gradients of weights to add"
    took = format_time(times * sum(add_ns(size, how) for size in sizes))
    return f"{len(sizes)} gradients of weights are added {'once' if times == 1 else f'{times} times'}, {took} in all"
