"""The predicted memory of ``simgpu record --gpu``."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simgpu.explain.allocations import explain_allocations
from simgpu.hardware.spec import GpuSpec
from simgpu.io.atomic import atomic_file
from simgpu.memory.caching.requested import snapshot_document
from simgpu.memory.caching.settings import PYTORCH_VERSIONS
from simgpu.recorder.requests import DEFAULT_ITERATIONS, record_requests
from simgpu.units import format_bytes


def predict(
    model: str | Callable[..., Any],
    gpu: GpuSpec,
    snapshot: Path | None,
    say: Callable[[str], None],
    **arguments: Any,
) -> list[tuple[str, str]]:
    """What a training loop of the model needs on the GPU, and what helps where that is too much, as labels and values.

    snapshot: the file for the allocations, None for none. arguments: as in `record_requests`.
    """
    program = record_requests(model, gpu=gpu, progress=say, **arguments)
    say("placing its allocations")
    capacity = gpu.allocatable
    report = explain_allocations(program, capacity)
    if snapshot is not None:
        with atomic_file(snapshot) as file:
            file.write_bytes(pickle.dumps(snapshot_document(program, capacity), protocol=4))
    iterations = arguments.get("iterations", DEFAULT_ITERATIONS)
    steps = f"{iterations} iterations" if iterations > 1 else "one iteration"
    what = f"{steps}, by PyTorch's allocator as in versions {PYTORCH_VERSIONS}, with its default settings"
    context = "not known, counted as 0" if gpu.context_memory is None else format_bytes(gpu.context_memory)
    facts = [("memory", f"predicted for {gpu.name}: {what}"), *report.facts()[1:]]
    facts.append(
        ("CUDA context", f"{context}, already subtracted from the capacity" if gpu.context_memory else context)
    )
    parts = arguments["micro_batches"]
    batch = arguments["batch"] // parts // 2 * parts
    if report.failure is not None and batch:
        say(f"trying batch {batch}")
        smaller = explain_allocations(record_requests(model, gpu=gpu, progress=say, **(arguments | {"batch": batch})))
        verdict = "fits" if smaller.failure is None else "out of memory"
        peak = format_bytes(smaller.reserved)
        facts.append((f"batch {batch}", f"{verdict}; peak reserved {peak} without a limit"))
    return facts
