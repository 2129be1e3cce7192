"""Which iteration of a recording becomes the trace.

Lives here: steps as the profiler marks them (ProfilerStep#N) and the kernels launched in each. A recording without
such marks is one iteration. Does not live here: whether an execution trace covers it (`join`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simgpu.errors import InputError
from simgpu.trace.importers.kineto.profile import Kernel, Profile


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


def iterations(profile: Profile, wanted: int | None = None) -> Iterator[Iteration]:
    """Iterations with kernels, the last one first; only the wanted one, if any.

    Raises `InputError` where the recording has no kernels, several devices, or not the wanted iteration.
    """
    _require_one_device(profile)
    ran = sorted(profile.kernels, key=lambda kernel: (kernel.start, kernel.number))
    if not profile.steps:
        if wanted is not None:
            what = f"marks no iterations, so there is no iteration {wanted}"
            raise InputError.single(profile.path, "", what, "leave the number out: the recording is one iteration")
        first = min(kernel.start for kernel in ran)
        launches = [launched_at(kernel, profile) for kernel in ran]
        ops = [op.start for op in profile.ops]
        begin, end = min([first, *launches, *ops]), max([*launches, *(op.end for op in profile.ops)]) + 1
        yield Iteration(None, begin, end, tuple(ran))
        return
    steps = sorted(profile.steps, key=lambda step: step.start, reverse=True)
    numbers = [_number(step.name) for step in steps]
    if wanted is not None and wanted not in numbers:
        what = f"has no iteration {wanted}"
        raise InputError.single(profile.path, "", what, f"it has {', '.join(map(str, sorted(numbers)))}")
    for step, number in zip(steps, numbers, strict=True):
        if wanted is not None and number != wanted:
            continue
        inside = tuple(kernel for kernel in ran if step.start <= launched_at(kernel, profile) < step.end)
        if inside:
            yield Iteration(number, step.start, step.end, inside, len(steps))
        elif wanted is not None:
            raise InputError.single(profile.path, step.name, "launches no kernels", "choose another iteration")


def _number(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdecimal() else -1


def _require_one_device(profile: Profile) -> None:
    if not profile.kernels:
        remedy = "record with ProfilerActivity.CUDA on a machine with a GPU, and let the window cover an iteration"
        raise InputError.single(profile.path, "", "has no GPU kernels", remedy)
    devices = sorted({kernel.device for kernel in profile.kernels})
    if len(devices) > 1:
        what = f"has kernels of several GPUs ({', '.join(map(str, devices))})"
        remedy = "a trace is one GPU: record each rank by itself and import one of them"
        raise InputError.single(profile.path, "", what, remedy)
