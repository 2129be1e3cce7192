"""The steps of one model under one method: warmed up, timed, measured and watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from simgpu.recorder.session import no_garbage_collection
from simgpu.recorder.workload import Workload
from simgpu.validation.devices import Device
from simgpu.validation.managed import managed
from simgpu.validation.measured import MeasuredRun, Method
from simgpu.validation.timelines.recording import record_timeline


def run_method(
    method: Method,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: Device,
    settings: Mapping[str, Any],
    *,
    warmup: int,
    repetitions: int,
    words: Collection[str],
) -> MeasuredRun:
    """What came of a model's iteration under a method.

    warmup: steps before those timed. words: operators of the model's trace, for the timeline. The steps that measure
    memory and that are watched come after those timed, so that they slow none of them down. Garbage collection is off,
    as while the trace is recorded, so that what is held does not depend on when it happens to run.
    """
    with managed(method, workload, device, settings) as run, no_garbage_collection():

        def step() -> None:
            run.step(optimizer)

        for _ in range(warmup):
            step()
        times = tuple(_timed(device, step) for _ in range(repetitions))
        run.take_copied()
        peak = device.peak_of(step)
        d2h_bytes, h2d_bytes = run.take_copied()
        spans = record_timeline(device, step, words)
    return MeasuredRun(
        method, dict(settings), times, peak.peak_bytes, peak.held_bytes, d2h_bytes, h2d_bytes, tuple(spans)
    )


def _timed(device: Device, step: Callable[[], None]) -> int:
    """Host time of a step, from when the device has nothing to do to when it has nothing to do again."""
    device.synchronize()
    begin = time.perf_counter_ns()
    step()
    device.synchronize()
    return time.perf_counter_ns() - begin
