"""DiT compared with diffusers' own module on fake tensors: parameters, saved tensors, kernels, peaks."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.trace.model import Phase, Trace
from simgpu.trace.stats import trace_stats
from tests.workloads.decoders.test_against_transformers import signature
from tests.workloads.decoders.test_dit import PUBLISHED, SMALL, built

pytest.importorskip("diffusers", reason="diffusers, whose module is compared, is not installed")

import torch
from diffusers.utils import import_utils
from torch.nn import functional

from simgpu.recorder import record
from simgpu.recorder.workload import Workload

#: The model reads no files of images, and torchvision may be built for another PyTorch.
import_utils._torchvision_available = False
#: Importing diffusers' model alone takes seconds.
pytestmark = pytest.mark.slow
BATCH = 2
#: Small models with every option that changes kernels.
CASES: dict[str, dict[str, Any]] = {
    "with-variances": SMALL,
    "without-variances": {**SMALL, "out_channels": 4},
    "dropout": {**SMALL, "dropout": 0.1, "attention_bias": False, "activation_fn": "gelu"},
    "large-patches": {**SMALL, "patch_size": 4, "in_channels": 8, "out_channels": None, "attention_head_dim": 24},
}


def recorded(values: dict[str, Any], batch: int, dtype: str) -> Trace:
    """One training iteration with AdamW and the loss of diffusers' training scripts, followed for an H100."""
    from diffusers import DiTTransformer2DModel

    options = {key: value for key, value in values.items() if key != "_class_name"}

    def loss(output: Any, noise: torch.Tensor) -> torch.Tensor:
        predicted = output.sample
        if predicted.shape[1] == 2 * noise.shape[1]:
            predicted, _ = torch.chunk(predicted, 2, dim=1)
        return functional.mse_loss(predicted.float(), noise.float())

    def workload() -> Workload:
        module = DiTTransformer2DModel(**options).to(getattr(torch, dtype)).train()
        config = module.config
        shape = (batch, config.in_channels, config.sample_size, config.sample_size)
        image, noise = (torch.zeros(shape, dtype=getattr(torch, dtype)) for _ in range(2))
        times, classes = (torch.zeros(batch, dtype=torch.int64) for _ in range(2))
        inputs = {"hidden_states": image, "timestep": times, "class_labels": classes}
        return Workload(module, inputs, (noise,), loss)

    def optimizer(weights: Any) -> Any:
        return torch.optim.AdamW(weights, lr=1e-4)

    return record(workload, batch=batch, gpu="h100", optimizer=optimizer, hold_output=True)


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
            "" if row.layer in (None, "DiTTransformer2DModel") else row.layer,
        )
        for row in trace.saved
        if row.shape
    )


def compare(mine: Trace, theirs: Trace) -> None:
    for phase in Phase:
        kernels = [
            [signature(kernel, trace) for kernel in trace.kernels if kernel.phase is phase] for trace in (mine, theirs)
        ]
        assert kernels[0] == kernels[1], phase
    peaks = [trace_stats(trace).peak_recorded for trace in (mine, theirs)]
    assert peaks[0] is not None and peaks[1] is not None
    assert peaks[0].bytes == peaks[1].bytes
    assert saved(mine) == saved(theirs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_saved_tensors_and_peaks_equal_those_of_pytorch(name: str, dtype: str) -> None:
    """Every kernel in order, with the bytes it reads and writes and its modelled duration; the peak in bytes."""
    compare(built(CASES[name], batch=BATCH, dtype=dtype).trace, recorded(CASES[name], BATCH, dtype))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_equal_those_of_pytorch(name: str) -> None:
    compare(built(PUBLISHED[name][0], batch=BATCH).trace, recorded(PUBLISHED[name][0], BATCH, "bfloat16"))
