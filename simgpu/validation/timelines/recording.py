"""What a device did in one step, whichever kind of device it is.

Lives here: which way a device is watched. Does not live here: the ways (`profiled`, `dispatched`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from simgpu.validation.devices import Device
from simgpu.validation.measured import MeasuredSpan


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
