"""diffusers' modules on fake tensors: training iterations, and how they are compared with modelled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simgpu.trace.model import Phase, Trace
from simgpu.trace.stats import trace_stats
from tests.workloads.configured.test_against_transformers import signature

pytest.importorskip("diffusers", reason="diffusers, whose module is compared, is not installed")

import torch
from diffusers.utils import import_utils
from torch.nn import functional

from simgpu.recorder import record
from simgpu.recorder.workload import Workload

#: The model reads no files of images, and torchvision may be built for another PyTorch.
import_utils._torchvision_available = False
#: Tokens of a U-Net's text.
TEXT = 77
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
    import diffusers

    given = {key: value for key, value in values.items() if key != "_class_name"}
    weights, data = getattr(torch, dtype), getattr(torch, inputs or dtype)
    samples = batch // options.get("micro_batches", 1)

    def loss(output: Any, noise: torch.Tensor) -> torch.Tensor:
        predicted = output.sample
        if predicted.shape[1] == 2 * noise.shape[1]:
            predicted, _ = torch.chunk(predicted, 2, dim=1)
        return functional.mse_loss(predicted.float(), noise.float())

    def workload() -> Workload:
        module = getattr(diffusers, values["_class_name"])(**given).to(weights).train()
        config = module.config
        shape = (samples, config.in_channels, config.sample_size, config.sample_size)
        image, noise = (torch.zeros(shape, dtype=data) for _ in range(2))
        times = torch.zeros(samples, dtype=torch.int64)
        if values["_class_name"] == CLASSES[0]:
            named = {"hidden_states": image, "timestep": times, "class_labels": times.clone()}
        else:
            named = {"sample": image, "timestep": times, **_texts(config, samples, data)}
            noise = noise[:, : config.out_channels].clone()
        return Workload(changed(module), named, (noise,), loss)

    def optimizer(weights: Any) -> Any:
        return torch.optim.AdamW(weights, lr=1e-4)

    return record(workload, batch=batch, gpu="h100", optimizer=optimizer, hold_output=True, **options)


def _texts(config: Any, samples: int, dtype: torch.dtype) -> dict[str, Any]:
    """Texts, and SDXL's pooled texts and numbers."""
    width = config.cross_attention_dim if isinstance(config.cross_attention_dim, int) else config.cross_attention_dim[0]
    texts = {"encoder_hidden_states": torch.zeros((samples, TEXT, width), dtype=dtype)}
    if config.addition_embed_type is None:
        return texts
    numbers = (config.projection_class_embeddings_input_dim - 1280) // config.addition_time_embed_dim
    pooled, sizes = (torch.zeros((samples, count), dtype=dtype) for count in (1280, numbers))
    return {**texts, "added_cond_kwargs": {"text_embeds": pooled, "time_ids": sizes}}


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
