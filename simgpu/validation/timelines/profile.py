"""Reads the kernels and copies of one step from a profile by PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from simgpu.errors import InputError
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.iteration import iterations, launched_at
from simgpu.importers.kineto.profile import GpuWork
from simgpu.validation.measured import MeasuredKind, MeasuredSpan, copy_span, from_first_start
from simgpu.validation.timelines.matching import same_work

_WAYS = {"DtoH": MeasuredKind.COPY_D2H, "HtoD": MeasuredKind.COPY_H2D}
_COPY = "aten::copy_"


def spans_of_profile(path: Path, operators: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """Kernels and copies of the last step that a profile marks; of the entire profile if it marks no step.

    operators: names of operators in the trace. A kernel belongs to the outermost of these (in place or not) around its
    launch, since a recorder sees the operators that autograd dispatches, and none inside them. Without such an
    operator it belongs to the innermost operator; without any, to its own name. Memory fills and copies within the
    device are kernels of their operator. Calls are numbered in the order of their first launch.

    An offloaded tensor is copied inside the operator that saves it. Kernels that make it contiguous for the copy belong
    to the copy (``aten::copy_``), not to that operator.
    Raises `InputError` if the profile cannot be read or has no kernels.
    """
    for profile, iteration in iterations(path, None, tuple):
        others = [event for event in profile.left_out if iteration.contains(launched_at(event, profile))]
        work = sorted((*iteration.kernels, *others), key=lambda event: (event.start, event.number))
        attribution = Attribution(profile, replace(iteration, kernels=tuple(work)))
        return from_first_start(_spans(attribution, frozenset(map(same_work, operators))))
    raise InputError.single(path, "", "marks steps, but none has kernels", "record it again")


def _spans(attribution: Attribution, operators: frozenset[str]) -> Iterator[MeasuredSpan]:
    kernels, launched = attribution.iteration.kernels, attribution.launched
    ways = [_way(kernel) for kernel in kernels]
    copying = {
        around
        for way, launch in zip(ways, launched, strict=True)
        if way is not None
        for around in attribution.operators(launch.op)
        if attribution.ops[around].name == _COPY
    }
    calls: dict[tuple[str, int], int] = {}
    for position in attribution.launch_order:
        kernel, way = kernels[position], ways[position]
        if way is not None:
            yield copy_span(way, kernel.name, kernel.start, kernel.end, kernel.bytes)
            continue
        op = _operator(attribution, launched[position].op, operators, copying)
        name, owner = (attribution.ops[op].name, ("operator", op)) if op >= 0 else (kernel.name, ("kernel", position))
        call = calls.setdefault(owner, len(calls))
        yield MeasuredSpan("compute", MeasuredKind.KERNEL, kernel.name, name, call, kernel.start, kernel.end)


def _way(kernel: GpuWork) -> MeasuredKind | None:
    """The direction of a copy over the link; None for other work."""
    return None if kernel.is_kernel else next((kind for mark, kind in _WAYS.items() if mark in kernel.name), None)


def _operator(attribution: Attribution, op: int, operators: frozenset[str], copying: Collection[int]) -> int:
    """The operator, among those around a kernel's launch, to which the kernel belongs."""
    outermost_first = list(attribution.operators(op))[::-1]
    copies = (around for around in outermost_first if around in copying)
    named = (around for around in outermost_first if same_work(attribution.ops[around].name) in operators)
    return next(copies, next(named, op))
