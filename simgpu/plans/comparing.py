"""The comparisons of a plan with what PyTorch does: gradients, saved tensors, operators, copies, memory, times."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from simgpu.errors import InputError, Problem
from simgpu.plans.candidate import Candidate, plain_trail
from simgpu.plans.outcome import Finding, PlanCheck
from simgpu.plans.rebuilt import candidate_of
from simgpu.plans.recorded import recorded
from simgpu.recorder.iteration import NoWatcher, as_it_was, run_gradients, run_iteration
from simgpu.recorder.workload import Workload
from simgpu.torch.applying import applied, check_model
from simgpu.torch.plan import Plan
from simgpu.torch.transfers import Copied, Tally
from simgpu.trace.model import Origin, Trace, TraceInfo
from simgpu.units import format_bytes, format_time

#: Timed steps, and those before them.
_TIMED, _WARM_UP = 5, 2
#: The operator that allocates memory without writing it.
_ALLOCATES = "aten::empty"


NOT_COMPARED = "Saved tensors, operators, copied bytes and peak memory depend on the device, and are not compared"
NOT_REPEATABLE = (
    "Two plain steps from the same weights, data and random numbers give other gradients, so nothing can be said about "
    "those with the plan. If forward counts its calls or draws from a generator of its own, a module that runs again "
    "gives other values, and training with the plan differs."
)


class Gradients(NamedTuple):
    """The loss, and the gradient of each parameter by its name."""

    loss: torch.Tensor
    of: dict[str, torch.Tensor]

    def equals(self, other: Gradients) -> bool:
        """Whether all values are the same bits."""
        return not self.differing(other) and torch.equal(self.loss, other.loss)

    def differing(self, other: Gradients) -> list[str]:
        """The parameters whose gradients differ."""
        names = sorted(self.of.keys() | other.of.keys())
        return [name for name in names if not _equal(self.of.get(name), other.of.get(name))]


class Check:
    """The comparisons of a plan, on a device."""

    def __init__(
        self, plan: Plan, workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, name: str
    ) -> None:
        self.plan = plan
        self.workload = workload
        self.optimizer = optimizer
        self.device = device
        self.tally = Tally()
        made = plan.made_for
        self.info = TraceInfo(name, made.batch, str(device), made.format, Origin.RECORDED, "torch")

    def plain(self) -> AbstractContextManager[None]:
        """The model without the plan."""
        return nullcontext()

    def applied(self) -> AbstractContextManager[None]:
        """The plan around the model."""
        return applied(self.plan, self.workload.module, self.tally)

    def run(self) -> PlanCheck:
        """All comparisons."""
        check_model(self.plan, self.workload.module)
        plain = recorded(self.workload, self.optimizer, self.device, self.info)
        candidate, notes = self._candidate(plain)
        findings = list(self._gradients_of(candidate))
        if findings[0].agrees is None:
            notes.append(NOT_REPEATABLE)
        # A recording of saved tensors takes the place of their offload.
        resident = self.plan.model_copy(update={"offload": ()})
        with applied(resident, self.workload.module):
            saved = recorded(self.workload, self.optimizer, self.device, self.info)
        with self.applied():
            self.tally.take()
            actual = recorded(self.workload, self.optimizer, self.device, self.info, saves=False)
            copied = self.tally.take()
        # Recording runs two iterations.
        copied = Copied(copied.d2h_bytes // 2, copied.h2d_bytes // 2)
        findings += self._copies(copied, is_compared=candidate is not None)
        if candidate is not None:
            findings += self._structure(candidate, actual, saved)
        findings += self.times()
        return PlanCheck(tuple(findings), tuple(notes))

    def _candidate(self, plain: Trace) -> tuple[Candidate | None, list[str]]:
        """The plan's candidate of the iteration that runs here, or what limits the check where there is none."""
        try:
            return candidate_of(self.plan, plain), []
        except InputError as error:
            return None, self.limits(error)

    def limits(self, error: InputError) -> list[str]:
        """What limits the check because the plan is for another iteration than the one that runs here.

        Raises the error where the plan was recorded on this kind of device, and so is for another model.
        """
        made, is_cpu = self.plan.made_for, self.device.type == "cpu"
        if made.origin == Origin.RECORDED and made.device.startswith("CPU") == is_cpu:
            raise error
        notes = [f"{NOT_COMPARED}: {error.problems[0].what}."]
        if self.workload.micro_batches > 1:
            count = self.workload.micro_batches
            notes.append(f"A step ran as {count} equal micro-batches, which may not be the loop that was planned for.")
        return notes

    def _gradients_of(self, candidate: Candidate | None) -> Iterator[Finding]:
        """The comparison of gradients. Of a plan for another device it may not be possible to run the plan."""
        try:
            yield from self.gradients()
        except InputError as error:
            if candidate is not None:
                raise
            made = self.plan.made_for
            what = f"it cannot run on {self.device}, where the step saves other tensors than on {made.device}"
            remedy = "check it on a GPU, or make a plan for this machine with --here"
            raise InputError([Problem(f"plan for {made.model}", "made_for", what, remedy), *error.problems]) from error

    def gradients(self) -> Iterator[Finding]:
        plain, again = self._of_step(self.plain()), self._of_step(self.plain())
        with_plan = self._of_step(self.applied())
        if not plain.equals(again):
            yield Finding("loss and gradients", "those of a plain step", "unknown: two plain steps differ", None)
            return
        differing = plain.differing(with_plan)
        found = "the same bits" if plain.equals(with_plan) else f"differ: {', '.join(differing[:3]) or 'the loss'}"
        yield Finding("loss and gradients", "those of a plain step", found, plain.equals(with_plan))

    def _of_step(self, around: AbstractContextManager[None]) -> Gradients:
        """Loss and gradients of one step, from the same weights, statistics and random numbers each time."""
        self.optimizer.zero_grad(set_to_none=True)
        with as_it_was(self.workload.module, self.device):
            for seeded in (torch.manual_seed, random.seed, np.random.seed):
                seeded(1)
            with around:
                _, loss = run_gradients(self.workload, NoWatcher())
            parameters = self.workload.module.named_parameters()
            gradients = {name: each.grad.clone() for name, each in parameters if each.grad is not None}
        self.optimizer.zero_grad(set_to_none=True)
        return Gradients(loss.detach().clone(), gradients)

    def _copies(self, copied: Copied, is_compared: bool) -> Iterator[Finding]:
        predicted = self.plan.predicted
        for what, planned, found in (
            ("device-to-host", predicted.d2h_bytes, copied.d2h_bytes),
            ("host-to-device", predicted.h2d_bytes, copied.h2d_bytes),
        ):
            agrees = planned == found if is_compared else None
            yield Finding(what, format_bytes(planned), format_bytes(found), agrees)

    def _structure(self, candidate: Candidate, actual: Trace, saved: Trace) -> Iterator[Finding]:
        """What the recordings show: saved tensors, operators, peak memory."""
        planned = candidate.planned.trace
        rows, own = _saved_rows(planned), _saved_rows(saved)
        yield Finding("saved tensors", f"{len(rows)}", f"{len(own)}", rows == own)
        again, ran = _operators(planned), _operators(actual)
        plain = len(_operators(candidate.steps.trace))
        yield Finding("operators run again", f"{len(again) - plain}", f"{len(ran) - plain}", again == ran)
        peak, live = self.plan.predicted.peak_bytes, plain_trail(actual).peak
        yield Finding("peak memory", format_bytes(peak), format_bytes(live), peak == live)

    def times(self) -> Iterator[Finding]:
        predicted = self.plan.predicted
        for what, planned, around in (
            ("step time, plain", predicted.plain_step_ns, self.plain()),
            ("step time, with the plan", predicted.step_ns, self.applied()),
        ):
            with around:
                found = self._timed()
            yield Finding(what, format_time(planned), format_time(found), None)

    def _timed(self) -> int:
        times = []
        for _ in range(_WARM_UP + _TIMED):
            begin = time.perf_counter_ns()
            run_iteration(self.workload, self.optimizer, NoWatcher())
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            times.append(time.perf_counter_ns() - begin)
        return int(median(times[_WARM_UP:]))


def _operators(trace: Trace) -> list[str]:
    """The operators of an iteration, in order. Allocations are left out: an offload makes more of them."""
    return [kernel.op for kernel in trace.kernels if kernel.op != _ALLOCATES]


def _saved_rows(trace: Trace) -> list[tuple[object, ...]]:
    """The saved tensors of an iteration, with kernels as positions."""
    place: dict[str | None, object] = {kernel.id: number for number, kernel in enumerate(trace.kernels)}
    return [
        (row.layer, row.dtype, row.shape, *map(place.get, (row.packed_after, row.unpacked_before, row.freed_after)))
        for row in trace.saved
    ]


def _equal(one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
    return one is not None and two is not None and torch.equal(one, two)
