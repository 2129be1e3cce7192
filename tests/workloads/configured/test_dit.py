"""DiT from a configuration without PyTorch: parameters, memory, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.trace.check import check_trace
from simgpu.workloads.configured.config import model_of
from simgpu.workloads.configured.diffusion import DiffusionTransformer
from simgpu.workloads.configured.modelled import ModelledIteration
from simgpu.workloads.configured.modelled_diffusion import diffusion_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.sets import slow_except

_CLASS = {"_class_name": "DiTTransformer2DModel"}
SMALL: dict[str, Any] = {
    **_CLASS,
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "num_layers": 2,
    "sample_size": 16,
    "num_embeds_ada_norm": 10,
    "out_channels": 8,
}


def _size(layers: int, heads: int, head_width: int, patch: int, side: int = 32) -> dict[str, Any]:
    sizes = {"num_layers": layers, "num_attention_heads": heads, "attention_head_dim": head_width}
    return {**_CLASS, **sizes, "patch_size": patch, "sample_size": side, "out_channels": 8}


#: Sizes of table 1 of "Scalable Diffusion Models with Transformers" (Peebles and Xie, 2023), with latent images of
#: 32 x 32 (256 pixels) and 64 x 64 (512), and their millions of parameters: table 4 for patches of 2, 4 and 8.
PUBLISHED = {
    "DiT-S/2": (_size(12, 6, 64, 2), 33),
    "DiT-B/4": (_size(12, 12, 64, 4), 130),
    "DiT-L/8": (_size(24, 16, 64, 8), 459),
    "DiT-XL/2": (_size(28, 16, 72, 2), 675),
    "DiT-XL/2-512": (_size(28, 16, 72, 2, 64), 675),
}


def built(values: dict[str, Any], **options: Any) -> ModelledIteration:
    model = model_of(values)
    assert isinstance(model, DiffusionTransformer)
    given = {name: options.pop(name) for name in ("batch", "gpu") if name in options}
    given = {"batch": 2, "gpu": load_node("h100").gpu, **given}
    return diffusion_iteration(model, **given, options=TrainingOptions(**options))


def with_one_embedding(values: dict[str, Any]) -> int:
    """Trained parameters if all blocks shared one embedding of timestep and class, as in DiT's first code."""
    model = model_of(values)
    assert isinstance(model, DiffusionTransformer)
    width, layers = model.decoder.width, model.decoder.layers
    embedding = (256 + 1) * width + (width + 1) * width + 1001 * width
    return built(values, batch=1).parameters - (layers - 1) * embedding


@pytest.mark.parametrize("name", slow_except(PUBLISHED, "DiT-S/2", "DiT-L/8"))
def test_parameters_are_those_published_plus_an_embedding_in_each_block(name: str) -> None:
    values, millions = PUBLISHED[name]
    assert abs(with_one_embedding(values) - millions * 10**6) < 10**6


@pytest.mark.slow
def test_parameters_of_the_largest_model_equal_those_of_its_first_code() -> None:
    """There, the positions count as parameters that are not trained."""
    assert with_one_embedding(PUBLISHED["DiT-XL/2"][0]) + 256 * 1152 == 675_129_632


def test_trace_is_valid_and_what_a_block_saves_follows_from_its_sizes() -> None:
    check_trace(built(SMALL).trace)
    batch, patches, width, heads, half = 3, 64, 64, 4, 2
    one, two = (built({**SMALL, "num_layers": layers}, batch=batch).saved_bytes for layers in (1, 2))
    norms = 2 * (1 + 1 + 1)  # what is normalized, the normalized and the moved value
    attention = 3 + 1 + 1  # queries, keys and values, their result, and its product that is gated
    inner = 4 + 4 + 1
    per_patch = half * width * (norms + attention + inner) + 4 * (2 * 2 + heads)  # statistics and sums in float32
    condition = 1 + 1 + 1 + 1 + 6 + 2  # two of the timestep, the sum, its silu, six parts, two factors
    per_sample = half * (256 + width * condition) + 8
    seeds = 8 + 8
    assert two - one == batch * (patches * per_patch + per_sample) + seeds


def test_earlier_name_of_the_class_describes_the_same_model() -> None:
    earlier = {**SMALL, "_class_name": "Transformer2DModel", "norm_type": "ada_norm_zero", "cross_attention_dim": None}
    assert model_of(earlier) == model_of(SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_class_name": "UNet3DModel"}, "_class_name: 'UNet3DModel' is not supported"),
        ({"_class_name": 3}, "_class_name: 3 is not supported"),
        ({"_class_name": "Transformer2DModel"}, "norm_type: 'layer_norm' is not modelled; give ada_norm_zero"),
        ({"cross_attention_dim": 768}, "cross_attention_dim: 768 is not modelled"),
        ({"num_layers": 0}, "num_layers: 0 is not a whole number from 1 to 1000"),
        ({"sample_size": 15}, "sample_size: 15 is no multiple of patch_size"),
        ({"out_channels": 5}, "out_channels: 5 is neither in_channels"),
        ({"activation_fn": "geglu"}, "activation_fn: 'geglu' is not a supported activation"),
        ({"activation_fn": []}, r"activation_fn: \[\] is not a supported activation"),
        ({"norm_elementwise_affine": True}, "normalization with weights is not modelled"),
        ({"dropout": "some"}, "dropout: 'some' is not a number from 0 to 1"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not modelled"),
    ],
)
def test_unsupported_values_of_a_configuration_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_of({**SMALL, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch: 0 is not a number from 1"),
        ({"dtype": "float8"}, "dtype: unknown value 'float8'"),
        ({"attention": "eager"}, "eager attention of dit is not modelled; give sdpa"),
        ({"optimizer": "lion"}, "optimizer: unknown value 'lion'"),
        ({"gpu": load_node("v100").gpu}, "has no fused attention for bfloat16 and heads of 16 values"),
    ],
)
def test_values_that_cannot_be_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(SMALL, **options)


def test_batch_that_a_trace_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="more bytes or operations than a trace can hold; give a smaller batch"):
        built({**SMALL, "attention_head_dim": 256, "num_attention_heads": 64}, batch=2**40)
