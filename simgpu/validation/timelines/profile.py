"""What a GPU did in one step, from a profile of it."""

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


def spans_of_profile(path: Path, words: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """Kernels and copies of the last step that a profile marks, or of all of it where it marks none.

    words: operators in the words of a trace. Of the operators around the launch of a kernel, the outermost of these is
    its operator, in place or not, since a recorder sees operators where autograd hands them on, and none inside them;
    where there is none, the innermost operator; without any, the kernel's own name. Fills of memory and copies within
    the device are kernels of their operator. Calls are numbered in the order of their first launch.

    A saved tensor that is offloaded is copied inside the operator that saves it. Kernels that put it in order for the
    copy are the copy's (``aten::copy_``), not that operator's.
    Raises `InputError` where the profile cannot be read or has no kernels.
    """
    for profile, iteration in iterations(path, None, tuple):
        others = [each for each in profile.left_out if iteration.contains(launched_at(each, profile))]
        work = sorted((*iteration.kernels, *others), key=lambda each: (each.start, each.number))
        attribution = Attribution(profile, replace(iteration, kernels=tuple(work)))
        return from_first_start(_spans(attribution, frozenset(map(same_work, words))))
    raise InputError.single(path, "", "marks steps, but none has kernels", "record it again")


def _spans(attribution: Attribution, words: frozenset[str]) -> Iterator[MeasuredSpan]:
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
        op = _operator(attribution, launched[position].op, words, copying)
        name, whose = (attribution.ops[op].name, ("operator", op)) if op >= 0 else (kernel.name, ("kernel", position))
        call = calls.setdefault(whose, len(calls))
        yield MeasuredSpan("compute", MeasuredKind.KERNEL, kernel.name, name, call, kernel.start, kernel.end)


def _way(kernel: GpuWork) -> MeasuredKind | None:
    """Which way a copy over the link goes; None for what is none."""
    return None if kernel.is_kernel else next((kind for word, kind in _WAYS.items() if word in kernel.name), None)


def _operator(attribution: Attribution, op: int, words: frozenset[str], copying: Collection[int]) -> int:
    """The operator that a kernel counts for, of those around its launch."""
    outermost_first = list(attribution.operators(op))[::-1]
    copies = (each for each in outermost_first if each in copying)
    named = (each for each in outermost_first if same_work(attribution.ops[each].name) in words)
    return next(copies, next(named, op))
