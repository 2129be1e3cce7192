"""Compares a plan for a compiled model with what PyTorch does: its graphs run operator by operator, in both cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from simgpu.errors import InputError
from simgpu.plans.candidate import plain_trail
from simgpu.plans.comparing import NOT_REPEATABLE, Check
from simgpu.plans.compiled.iteration import CompiledIteration
from simgpu.plans.compiled.partitions import Joint
from simgpu.plans.outcome import Finding, PlanCheck
from simgpu.plans.rebuilt import check_iteration
from simgpu.plans.recorded import recorded
from simgpu.recorder.layers import LOSS
from simgpu.torch.applying import check_model
from simgpu.torch.graphs import GraphOperator, graph_applied, graphs_applied, usual
from simgpu.torch.types import tensor_type
from simgpu.trace.model import Trace
from simgpu.units import format_bytes


class CompiledCheck(Check):
    """The comparisons of a plan for a compiled model."""

    def plain(self) -> AbstractContextManager[None]:
        """The compiled model without the plan."""
        return graphs_applied(self.workload.module, usual, is_unfused=True)

    def applied(self) -> AbstractContextManager[None]:
        """The plan around the model."""
        graph, made = self.plan.graph, self.plan.made_for
        return graph_applied(made.model, graph, self.workload.module, is_unfused=True)

    def run(self) -> PlanCheck:
        """All comparisons."""
        check_model(self.plan, self.workload.module)
        findings, notes = list(self.gradients()), []
        if findings[0].agrees is None:
            notes.append(NOT_REPEATABLE)
        joint = Joint()
        with graphs_applied(self.workload.module, joint.settings, is_unfused=True):
            plain = self._recorded()
        try:
            check_iteration(self.plan, plain)
        except InputError as error:
            notes += self.limits(error)
        else:
            with self.applied():
                actual = self._recorded()
            iteration = CompiledIteration(plain, joint.usual(), self.workload.micro_batches)
            findings += self._compiled(iteration, joint, actual)
        return PlanCheck((*findings, *self.times()), tuple(notes))

    def _recorded(self) -> Trace:
        return recorded(self.workload, self.optimizer, self.device, self.info)

    def _compiled(self, iteration: CompiledIteration, joint: Joint, actual: Trace) -> Iterator[Finding]:
        """What the recordings show: saved tensors, operators, peak memory."""
        graph = self.plan.graph
        assert graph is not None
        split = iteration.split
        if graph.is_planned:
            known = joint.split(())[1].known
            again = {GraphOperator(each.module, each.op, each.number) for each in graph.again}
            split = joint.split([node for node, each in known.items() if each in again])[0]
        planned = iteration.planned(split)
        rows = sorted(kind for kind, _ in split.saved_types * self.workload.micro_batches)
        own = sorted(tensor_type(row.dtype or "", row.shape or ()) for row in actual.saved if row.layer != LOSS)
        planned_rows = graph.saved_tensors * self.workload.micro_batches
        yield Finding("saved tensors", f"{planned_rows}", f"{len(own)}", rows == own)
        ops, ran = ([kernel.op for kernel in each.kernels] for each in (planned.trace, actual))
        predicted = self.plan.predicted.recomputed_kernels
        added = len(ran) - len(ops) + len(planned.again) * self.workload.micro_batches
        yield Finding("operators run again", f"{predicted}", f"{added}", ops == ran and predicted == added)
        peak, live = self.plan.predicted.peak_bytes, plain_trail(actual).peak
        yield Finding("peak memory", format_bytes(peak), format_bytes(live), peak == live)
