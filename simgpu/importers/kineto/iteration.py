"""Which iteration of a recording becomes the trace.

A recording without such marks is one iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simgpu.errors import InputError
from simgpu.importers.kineto.marks import marked_steps
from simgpu.importers.kineto.profile import Kernel, Profile, Span
from simgpu.importers.kineto.reading import read_profile

#: Of some steps, the last one first, those that are worth reading.
Choice = Callable[[Sequence[Span]], Sequence[Span]]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: its mark, None where the recording has none, and from when to when it ran (ns, end excluded).

    kernels: those launched in it, in the order they ran. marks: how many iterations the recording marks.
    """

    number: int | None
    begin: int
    end: int
    kernels: tuple[Kernel, ...]
    marks: int = 0

    def contains(self, at: int) -> bool:
        return self.begin <= at < self.end


def launched_at(kernel: Kernel, profile: Profile) -> int:
    """When the CPU launched a kernel; when it ran, where its launch was not recorded."""
    launch = profile.launches.get(kernel.correlation)
    return kernel.start if launch is None else launch[1]


def iterations(path: Path, wanted: int | None, choose: Choice) -> Iterator[tuple[Profile, Iteration]]:
    """Iterations with kernels, the last one first, each with what the recording holds of it; only the wanted, if any.

    Each one reads the file, since no other is kept. choose: which steps are worth reading after the first.
    Raises `InputError` where the recording has no kernels, several devices, or not the wanted iteration, and for an
    event that cannot be read.
    """
    profile = _read_last(path, wanted)
    _require_one_device(profile)
    steps = _latest_first(profile.steps, wanted)
    if not profile.steps:
        yield profile, _unmarked(profile, wanted)
    elif not steps:
        numbers = sorted(_number(step.name) for step in profile.steps)
        what = f"has no iteration {wanted}"
        raise InputError.single(path, "", what, f"it has {', '.join(map(str, numbers))}")
    for step, part in _read_each(profile, steps, choose):
        iteration = _iteration(part, step)
        if iteration.kernels:
            yield part, iteration
        elif wanted is not None:
            raise InputError.single(path, step.name, "launches no kernels", "choose another iteration")


def _read_each(profile: Profile, steps: Sequence[Span], choose: Choice) -> Iterator[tuple[Span, Profile]]:
    """Each step with what the recording holds of it, but for those in which nothing can have been launched.

    profile: of the first of them. A step that began after the last launch before a later step had no kernels.
    """
    if not steps:
        return
    read, *others = steps
    yield read, profile
    for step in choose(others) if others else ():
        if step.end <= read.start and (profile.before is None or profile.before < step.start):
            continue
        read, profile = step, read_profile(profile.path, step)
        yield step, profile


def _read_last(path: Path, wanted: int | None) -> Profile:
    """What the recording holds of the last of its iterations, or of the wanted one; all, where it marks none."""
    steps = marked_steps(path)
    while True:
        profile = read_profile(path, next(iter(_latest_first(steps, wanted) or steps), None))
        if profile.steps == steps:
            return profile
        steps = profile.steps


def _latest_first(steps: Sequence[Span], wanted: int | None) -> list[Span]:
    found = [step for step in steps if wanted is None or _number(step.name) == wanted]
    return sorted(found, key=lambda step: step.start, reverse=True)


def _unmarked(profile: Profile, wanted: int | None) -> Iteration:
    """All of a recording as one iteration."""
    if wanted is not None:
        what = f"marks no iterations, so there is no iteration {wanted}"
        raise InputError.single(profile.path, "", what, "leave the number out: the recording is one iteration")
    first = min(kernel.start for kernel in profile.kernels)
    launches = [launched_at(kernel, profile) for kernel in profile.kernels]
    begin = min([first, *launches, *(op.start for op in profile.ops)])
    end = max([*launches, *(op.end for op in profile.ops)]) + 1
    return Iteration(None, begin, end, _in_order(profile.kernels))


def _iteration(profile: Profile, step: Span) -> Iteration:
    inside = [kernel for kernel in profile.kernels if step.start <= launched_at(kernel, profile) < step.end]
    return Iteration(_number(step.name), step.start, step.end, _in_order(inside), len(profile.steps))


def _in_order(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """In the order they ran."""
    return tuple(sorted(kernels, key=lambda kernel: (kernel.start, kernel.number)))


def _number(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdecimal() else -1


def _require_one_device(profile: Profile) -> None:
    if not profile.gpus:
        remedy = "record with ProfilerActivity.CUDA on a machine with a GPU, and let the window cover an iteration"
        raise InputError.single(profile.path, "", "has no GPU kernels", remedy)
    if len(profile.gpus) > 1:
        what = f"has kernels of several GPUs ({', '.join(map(str, sorted(profile.gpus)))})"
        remedy = "a trace is one GPU: record each rank by itself and import one of them"
        raise InputError.single(profile.path, "", what, remedy)
