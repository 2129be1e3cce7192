"""The predicted memory of ``simgpu record --gpu``."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simgpu.explain.allocations import AllocationReport, explain_allocations
from simgpu.hardware.spec import GpuSpec
from simgpu.io.atomic import atomic_file
from simgpu.memory.caching.requested import snapshot_document
from simgpu.memory.caching.settings import PYTORCH_VERSIONS
from simgpu.recorder.requests import DEFAULT_ITERATIONS, record_requests
from simgpu.units import format_bytes

#: The allocator's setting that is tried where memory runs out.
_TRIED = "expandable_segments:True"


def predict(
    model: str, gpu: GpuSpec, snapshot: Path | None, say: Callable[[str], None], **arguments: Any
) -> list[tuple[str, str]]:
    """What a training loop of the model needs on the GPU, and what helps where that is too much, as labels and values.

    snapshot: the file for the allocations, None for none. arguments: as in `record_requests`.
    """
    program = record_requests(model, gpu=gpu, progress=say, **arguments)
    say("placing its allocations")
    capacity = gpu.allocatable
    report = explain_allocations(program, capacity, (_TRIED,))
    if snapshot is not None:
        with atomic_file(snapshot) as file:
            file.write_bytes(pickle.dumps(snapshot_document(program, capacity), protocol=4))
    iterations = arguments.get("iterations", DEFAULT_ITERATIONS)
    steps = f"{iterations} iterations" if iterations > 1 else "one iteration"
    what = f"{steps}, by PyTorch's allocator as in versions {PYTORCH_VERSIONS}, with its default settings"
    context = "not known, counted as 0" if gpu.context_memory is None else format_bytes(gpu.context_memory)
    facts = [("memory", f"predicted for {gpu.name}: {what}"), *report.facts()[1:]]
    facts.append(("CUDA context", f"{context}, not in the capacity" if gpu.context_memory else context))
    if report.failure is not None:
        batch = arguments["batch"]
        facts += _remedies(report, batch, lambda: _half(model, gpu, capacity, batch, say, arguments))
    return facts


def _half(
    model: str, gpu: GpuSpec, capacity: int, batch: int, say: Callable[[str], None], arguments: dict[str, Any]
) -> AllocationReport:
    say(f"trying batch {batch // 2}")
    smaller = record_requests(model, gpu=gpu, progress=say, **(arguments | {"batch": batch // 2}))
    return explain_allocations(smaller, capacity, ())


def _remedies(report: AllocationReport, batch: int, half: Callable[[], AllocationReport]) -> Iterator[tuple[str, str]]:
    """What was tried, and whether it fits."""
    trial = next(trial for trial in report.trials if trial.settings == _TRIED)
    verdict = "fits" if trial.failed is None else "out of memory"
    yield "tried", f"{_TRIED}: {verdict}, peak reserved {format_bytes(trial.reserved)} without a limit"
    if batch > 1:
        smaller = half()
        verdict = "fits" if smaller.failure is None else "out of memory"
        yield "", f"batch {batch // 2}: {verdict}, peak reserved {format_bytes(smaller.reserved)} without a limit"
