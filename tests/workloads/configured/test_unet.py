"""A U-Net from a configuration without PyTorch: parameters, memory, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.config import model_of
from simgpu.workloads.configured.modelled import ModelledIteration
from simgpu.workloads.configured.modelled_diffusion import diffusion_iteration
from simgpu.workloads.configured.options import TrainingOptions
from simgpu.workloads.configured.unet_config import UNet
from tests.sets import slow_except

_CLASS = {"_class_name": "UNet2DConditionModel"}
SMALL: dict[str, Any] = {
    **_CLASS,
    "block_out_channels": [32, 64],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "layers_per_block": 1,
    "cross_attention_dim": 48,
    "norm_num_groups": 8,
    "attention_head_dim": 4,
    "sample_size": 16,
}
#: A small one with SDXL's options.
SMALL_XL: dict[str, Any] = {
    **SMALL,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 2,
    "attention_head_dim": [2, 4],
    "transformer_layers_per_block": [1, 2],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 16,
    "projection_class_embeddings_input_dim": 1280 + 6 * 16,
}
#: What differs from diffusers' defaults in ``unet/config.json`` of each repository on huggingface.co, and parameters.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "stable-diffusion-v1-5/stable-diffusion-v1-5": (
        {**_CLASS, "attention_head_dim": 8, "cross_attention_dim": 768, "sample_size": 64},
        859_520_964,
    ),
    "stabilityai/stable-diffusion-2-1": (
        {
            **_CLASS,
            "attention_head_dim": [5, 10, 20, 20],
            "cross_attention_dim": 1024,
            "sample_size": 96,
            "use_linear_projection": True,
            "upcast_attention": True,
        },
        865_910_724,
    ),
    "stabilityai/stable-diffusion-xl-base-1.0": (
        {
            **_CLASS,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "attention_head_dim": [5, 10, 20],
            "block_out_channels": [320, 640, 1280],
            "cross_attention_dim": 2048,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "projection_class_embeddings_input_dim": 2816,
            "sample_size": 128,
            "transformer_layers_per_block": [1, 2, 10],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            "use_linear_projection": True,
        },
        2_567_463_684,
    ),
}


def built(values: dict[str, Any], **options: Any) -> ModelledIteration:
    model = model_of(values)
    assert isinstance(model, UNet)
    if "side" in options:
        model = replace(model, side=options.pop("side"))
    given = {name: options.pop(name) for name in ("batch", "gpu", "length") if name in options}
    given = {"batch": 2, "gpu": load_node("h100").gpu, **given}
    return diffusion_iteration(model, **given, options=TrainingOptions(**options))


@pytest.mark.parametrize("name", slow_except(PUBLISHED, "stable-diffusion-v1-5/stable-diffusion-v1-5"))
def test_parameters_are_those_published(name: str) -> None:
    values, parameters = PUBLISHED[name]
    assert built(values, batch=1, side=8).parameters == parameters


def test_trace_is_valid_and_every_weight_is_trained() -> None:
    trace = built(SMALL_XL).trace
    check_trace(trace)
    weights, gradients = (
        {block.id: block.bytes for block in trace.blocks if block.kind is kind}
        for kind in (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT)
    )
    assert {f"{name}.grad": size for name, size in weights.items()} == gradients


def test_another_residual_block_saves_what_follows_from_its_sizes() -> None:
    """In the smaller half of the image; one more block on the way down, and one with a skipped value on the way up."""
    one, two = (built({**SMALL, "layers_per_block": [1, count]}).saved_bytes for count in (1, 2))
    pixels, wide, half, samples, times, groups = 8 * 8, 64, 2, 2, 128, 8
    inside = 4 * wide  # the sum, and before, after and between normalization and convolution of the second half
    down = half * samples * pixels * (3 * wide + inside - wide)
    up = half * samples * pixels * (3 * 2 * wide + inside - wide)
    statistics = half * samples * groups * 4
    assert two - one == down + up + 2 * (statistics + half * samples * times)


def test_attention_to_a_text_saves_keys_and_values_of_its_tokens() -> None:
    """The small model has three transformers on the way down and up, and a wider one in the middle."""
    short, long = (built(SMALL, length=length).saved_bytes for length in (77, 78))
    of_text = 2 * 2 * (2 * (3 * 32 + 64) + 48)
    assert long - short == of_text
    short, long = (built(SMALL, length=length, attention="eager").saved_bytes for length in (77, 78))
    assert long - short == of_text + 2 * 2 * 4 * (3 * 16 * 16 + 8 * 8), "and a share of it for each pixel and head"


def test_eager_attention_holds_the_scores_and_an_empty_tensor_of_their_size() -> None:
    """``AttnProcessor`` gives ``baddbmm`` a tensor that it does not read, which is as large as the result."""
    trace = built(SMALL, attention="eager").trace
    check_trace(trace)
    sizes = {block.id: block.bytes for block in trace.blocks}
    scores = [kernel for kernel in trace.kernels if kernel.op == "baddbmm"]
    assert len(scores) == 2 * 4, "attention to the image and to the text in each of four transformers"
    largest = 2 * 4 * (16 * 16) ** 2 * 2
    assert max(sizes[kernel.reads[0]] for kernel in scores) == largest
    assert all(sizes[kernel.reads[0]] == sizes[kernel.writes[0]] for kernel in scores)
    assert {kernel.duration_ns for kernel in trace.kernels if kernel.op == "empty"} == {0}


@pytest.mark.slow
def test_latent_image_may_have_any_size() -> None:
    sizes = [built(SMALL, side=side).saved_bytes for side in (11, 16)]
    assert sizes == sorted(sizes)
    check_trace(built(SMALL, side=11).trace)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mid_block_type": None}, 'mid_block_type: None is not modelled; give "UNetMidBlock2DCrossAttn"'),
        (
            {"down_block_types": ["AttnDownBlock2D", "DownBlock2D"]},
            "down_block_types: 'AttnDownBlock2D' is not modelled",
        ),
        ({"down_block_types": []}, r"down_block_types: \[\] is not a list of 1 to 16 blocks"),
        ({"up_block_types": ["UpBlock2D"]}, "up_block_types: has 1 blocks, and down_block_types 2"),
        ({"block_out_channels": [32]}, "block_out_channels: has 1 numbers, and down_block_types 2 blocks"),
        ({"block_out_channels": [32, "a"]}, "block_out_channels: 'a' is not a whole number from 1"),
        ({"block_out_channels": [32, 60]}, "block_out_channels: 60 channels do not divide into 8 groups"),
        ({"attention_head_dim": 5}, "attention_head_dim: 32 channels do not divide into 5 heads"),
        ({"attention_head_dim": None}, "attention_head_dim: is null"),
        ({"layers_per_block": [900, 900]}, "layers_per_block: 3600 layers are more than 1000"),
        ({"class_embed_type": "timestep"}, "class_embed_type: 'timestep' is not modelled; give null"),
        ({"addition_embed_type": "image"}, "addition_embed_type: 'image' is not modelled"),
        ({"addition_embed_type": "text_time"}, "addition_time_embed_dim: is missing"),
        ({"cross_attention_dim": [48, 64]}, r"cross_attention_dim: \[48, 64\] has different numbers"),
        ({"only_cross_attention": [True, False]}, r"only_cross_attention: \[True, False\] is not modelled"),
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
        ({"length": 0}, "length: 0 is not a number from 1"),
        ({"side": 0}, "side: 0 is not a number from 1"),
        ({"attention": "flash_attention_2"}, "flash_attention_2 attention of unet is not modelled; give sdpa, or"),
        ({"loss": "fused"}, "loss: the fused loss is modelled for decoders only, not for unet; leave it out"),
        ({"gpu": load_node("v100").gpu}, "has no fused attention for bfloat16 and heads of 8 values"),
        ({"side": 2**30}, "more bytes or operations than a trace can hold; give a smaller batch"),
    ],
)
def test_values_that_cannot_be_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(SMALL, **options)
