"""What a device did in one step, whichever kind of device it is."""

from __future__ import annotations

from collections.abc import Callable, Collection

from simgpu.errors import InputError
from simgpu.validation.devices import Device
from simgpu.validation.measured import MeasuredSpan

#: Of the step that tries the profiler.
_LAUNCHES = 64


def record_timeline(device: Device, step: Callable[[], object], words: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """What the streams of a device did in one step, in nanoseconds from the start of the first span.

    words: operators as the trace of the same model tells them; a kernel on the device is attributed to one of these
    where it can be. On a CUDA device the step runs twice, and the second counts; on a CPU once. Raises `InputError`
    where a CUDA device ran no kernel.
    """
    if device.kind == "cuda":
        from simgpu.validation.timelines.profiled import profiled_step

        return profiled_step(device, step, words)
    from simgpu.validation.timelines.dispatched import dispatched_step

    return dispatched_step(device, step, words)


def get_going(device: Device) -> None:
    """Watch a GPU once, before anything on it is timed; nothing to do on a CPU.

    What PyTorch's profiler loads for a GPU (CUPTI) stays in the process and makes launches slower from then on, unless
    the environment variable ``TEARDOWN_CUPTI`` is 1. So steps that are timed before the first timeline would be faster
    than those after it. Raises `InputError` where the profiler sees no kernel of the GPU, before hours are spent.
    """
    if device.kind != "cuda":
        return
    from simgpu.validation.timelines.profiled import profiled_step

    tensor = device.empty(4)

    def step() -> None:
        for _ in range(_LAUNCHES):
            tensor.add_(1)

    try:
        profiled_step(device, step, ())
    except InputError as error:
        what = f"PyTorch's profiler saw no kernel that ran there: {error.problems[0].what}"
        remedy = "end what else watches the GPU (nsys, ncu, dcgmi), and see that PyTorch finds CUPTI"
        raise InputError.single(device.name, "kernel timeline", what, remedy) from None
