"""The predicted memory of ``simgpu record --gpu``."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simgpu.explain.allocations import AllocationReport, Holder, explain_allocations
from simgpu.hardware.spec import GpuSpec
from simgpu.io.atomic import atomic_file
from simgpu.memory.caching.requested import snapshot_document
from simgpu.memory.caching.settings import PYTORCH_VERSIONS
from simgpu.recorder.requests import DEFAULT_ITERATIONS, record_requests
from simgpu.units import format_bytes


def predict(
    model: str, gpu: GpuSpec, snapshot: Path | None, say: Callable[[str], None], **arguments: Any
) -> list[tuple[str, str]]:
    """What a training loop of the model needs on the GPU, as labels and values.

    snapshot: the file for the allocations, None for none. arguments: as in `record_requests`.
    """
    program = record_requests(model, gpu=gpu, progress=say, **arguments)
    say("placing its allocations")
    report = explain_allocations(program, gpu.memory, ())
    if snapshot is not None:
        with atomic_file(snapshot) as file:
            file.write_bytes(pickle.dumps(snapshot_document(program, gpu.memory), protocol=4))
    return list(_facts(report, gpu, arguments.get("iterations", DEFAULT_ITERATIONS)))


def _facts(report: AllocationReport, gpu: GpuSpec, iterations: int) -> Iterator[tuple[str, str]]:
    steps = f"{iterations} iterations" if iterations > 1 else "one iteration"
    yield "predicted memory", f"{steps} with PyTorch's allocator, as in versions {PYTORCH_VERSIONS}, default settings"
    yield "peak allocated", format_bytes(report.allocated)
    yield "peak reserved", f"{format_bytes(report.reserved)}, if memory were unlimited"
    yield "at the peak" if report.failure is None else "when it failed", "; ".join(_held(report.contents))
    yield f"on {gpu.name}", _verdict(report, gpu)


def _held(contents: tuple[Holder, ...]) -> Iterator[str]:
    for holder in contents:
        yield f"{holder.where} {format_bytes(holder.bytes)}"


def _verdict(report: AllocationReport, gpu: GpuSpec) -> str:
    memory = format_bytes(gpu.memory)
    if report.failure is None:
        return f"fits in {memory}"
    request = format_bytes(report.failure.request)
    return f"out of memory: {request} requested, {format_bytes(report.failure.free)} of {memory} not reserved"
