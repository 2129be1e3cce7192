"""A step on a CUDA device, watched by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile, schedule

from simgpu.validation.measured import MeasuredSpan
from simgpu.validation.timelines.profile import spans_of_profile

if TYPE_CHECKING:
    from simgpu.validation.devices import Device


def profiled_step(device: Device, step: Callable[[], object], words: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """The kernels and copies of a step. It runs twice: getting the profiler going would distort the first time."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        write_profile(device, step, file, (ProfilerActivity.CPU, ProfilerActivity.CUDA))
        return spans_of_profile(file, words)


def write_profile(device: Device, step: Callable[[], object], file: Path, activities: Collection[Any]) -> None:
    """A profile of the second of two steps. Each ends when all its work on the device has."""
    device.synchronize()
    with profile(
        activities=list(activities),
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda watching: watching.export_chrome_trace(str(file)),
    ) as watching:
        for _ in range(2):
            step()
            device.synchronize()
            watching.step()
