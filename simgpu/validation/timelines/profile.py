"""What a GPU did in one step, from a profile of it.

Lives here: a PyTorch profiler recording as spans. Does not live here: reading its events and attributing kernels to
operators (`simgpu.trace.importers.kineto`), or making the recording (`profiled`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from simgpu.errors import InputError
from simgpu.trace.importers.kineto.attribution import Attribution
from simgpu.trace.importers.kineto.iteration import Iteration, iterations, launched_at
from simgpu.trace.importers.kineto.profile import Kernel, Profile
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.timelines.calls import same_work
from simgpu.validation.timelines.spans import copy_span, from_first_start

_COPIES = {"DtoH": MeasuredKind.COPY_OUT, "HtoD": MeasuredKind.COPY_IN}


def spans_of_profile(path: Path, words: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """Kernels and copies of the last step that a profile marks, or of all of it where it marks none.

    words: operators in the words of a trace. Of the operators around the launch of a kernel, the outermost of these is
    its operator, in place or not, since a recorder sees operators where autograd hands them on, and none inside them;
    where there is none, the innermost operator; without any, the kernel's own name. Fills of memory and copies within
    the device are kernels of their operator. Calls are numbered in the order of their first launch.
    Raises `InputError` where the profile cannot be read or has no kernels.
    """
    for profile, iteration in iterations(path, None, tuple):
        kernels, copies = _work(profile, iteration)
        attribution = Attribution(profile, replace(iteration, kernels=kernels))
        return from_first_start([*_kernel_spans(attribution, frozenset(map(same_work, words))), *copies])
    raise InputError.single(path, "", "marks steps, but none has kernels", "record it again")


def _work(profile: Profile, iteration: Iteration) -> tuple[tuple[Kernel, ...], list[MeasuredSpan]]:
    """What runs on the compute stream, in the order it ran, and copies over the link."""
    kernels, copies = list(iteration.kernels), []
    for each in profile.left_out:
        if iteration.contains(launched_at(each, profile)):
            kind = next((kind for word, kind in _COPIES.items() if word in each.name), None)
            if kind is None:
                kernels.append(each)
            else:
                copies.append(copy_span(kind, each.name, each.start, each.end, each.bytes))
    kernels.sort(key=lambda kernel: (kernel.start, kernel.number))
    return tuple(kernels), copies


def _kernel_spans(attribution: Attribution, words: frozenset[str]) -> list[MeasuredSpan]:
    kernels, launched = attribution.iteration.kernels, attribution.launched
    calls: dict[tuple[str, int], int] = {}
    found = []
    for position in attribution.launch_order:
        kernel, op = kernels[position], _operator(attribution, launched[position].op, words)
        name, whose = (attribution.ops[op].name, ("operator", op)) if op >= 0 else (kernel.name, ("kernel", position))
        call = calls.setdefault(whose, len(calls))
        start, end = kernel.start, kernel.end
        found.append(MeasuredSpan("compute", MeasuredKind.KERNEL, kernel.name, name, call, start, end))
    return found


def _operator(attribution: Attribution, op: int, words: frozenset[str]) -> int:
    around = list(attribution.operators(op))
    return next((each for each in reversed(around) if same_work(attribution.ops[each].name) in words), op)
