"""diffusers' modules on fake tensors: training iterations, and how they are compared with modelled ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simgpu.trace.model import Phase, Trace
from simgpu.trace.stats import trace_stats
from tests.workloads.configured.comparison import signature

pytest.importorskip("diffusers", reason="diffusers, whose module is compared, is not installed")

import torch

from simgpu.recorder import record
from simgpu.recorder.configured_diffusion import diffusion_data, diffusion_model, loss_of_noise
from simgpu.recorder.workload import Workload

#: diffusers' classes, whose own layers have their name.
CLASSES = ("DiTTransformer2DModel", "UNet2DConditionModel")


def recorded(
    values: dict[str, Any],
    batch: int,
    dtype: str,
    *,
    inputs: str | None = None,
    changed: Callable[[Any], Any] = lambda module: module,
    **options: Any,
) -> Trace:
    """One training iteration with AdamW and the loss of diffusers' training scripts, followed for an H100.

    inputs: number format of images and texts, by default that of the weights. changed: returns the model to train.
    options: of `simgpu.recorder.record`.
    """
    samples = batch // options.get("micro_batches", 1)

    def workload() -> Workload:
        module = diffusion_model(values, Path("config.json"), dtype)
        named, labels = diffusion_data(module, samples, getattr(torch, inputs or dtype))
        return Workload(changed(module), named, labels, loss_of_noise)

    def optimizer(weights: Any) -> Any:
        return torch.optim.AdamW(weights, lr=1e-4)

    return record(workload, batch=batch, gpu="h100", optimizer=optimizer, **options)


def saved(trace: Trace) -> list[tuple[object, ...]]:
    """Each saved tensor: size, where it is saved, used and freed, and its layer; the root module's without a layer."""
    number = {kernel.id: place for place, kernel in enumerate(trace.kernels)}
    return sorted(
        (
            number.get(row.packed_after or "", -1),
            number[row.unpacked_before or ""],
            row.bytes,
            row.shape,
            number[row.unused_after or ""],
            number[row.freed_after or ""],
            "" if row.layer in (None, *CLASSES) else row.layer,
        )
        for row in trace.saved
        if row.shape
    )


def compare(mine: Trace, theirs: Trace) -> None:
    """Every kernel with its bytes and duration, the peak, and every saved tensor."""
    for phase in Phase:
        kernels = [
            [signature(kernel, trace) for kernel in trace.kernels if kernel.phase is phase] for trace in (mine, theirs)
        ]
        assert kernels[0] == kernels[1], phase
    peaks = [trace_stats(trace).peak_recorded for trace in (mine, theirs)]
    assert peaks[0] is not None and peaks[1] is not None
    assert peaks[0].bytes == peaks[1].bytes
    assert saved(mine) == saved(theirs)
