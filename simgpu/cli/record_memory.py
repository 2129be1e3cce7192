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
    iterations = arguments.get("iterations", DEFAULT_ITERATIONS)
    steps = f"{iterations} iterations" if iterations > 1 else "one iteration"
    what = f"of {steps}, by PyTorch's allocator as in versions {PYTORCH_VERSIONS}, with its default settings"
    return [("memory", f"predicted for {gpu.name}: {what}"), *report.facts()[1:]]
