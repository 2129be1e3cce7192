"""The networks at their published size: as many weights, in modules that take one tensor and give one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.recorder import BUILT_IN_MODELS, record
from simgpu.recorder.large_models import gpt2_small, resnet50, vgg16
from simgpu.recorder.workload import Workload, find_factory
from tests.recorder.variants import SMALLER
from tests.sets import slow_except

LAYERS = {
    "vgg16": [*(f"stage{stage}" for stage in range(1, 6)), "classifier"],
    "resnet50": [
        "stem",
        *(f"layer{stage}.{place}" for stage, count in enumerate((3, 4, 6, 3), start=1) for place in range(count)),
        "head",
    ],
    "gpt2-small": ["embed", *(f"blocks.{place}" for place in range(12)), "head"],
}


def _on_no_device(factory: Callable[..., Any], **more: int) -> Workload:
    with torch.device("meta"):
        workload: Workload = factory(2, **more)
    return workload


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("factory", "published"), [(vgg16, 138_357_544), (resnet50, 25_557_032), (gpt2_small, 124_439_808)]
)
def test_weights_are_as_many_as_published(factory: Callable[..., Any], published: int) -> None:
    assert _count(_on_no_device(factory).module) == published


def test_weights_of_variants_are_those_of_the_formula() -> None:
    # VGG: 14,714,688 in convolutions; 512 features for each place of the last map; 32x32 pictures leave one place.
    assert _count(_on_no_device(vgg16, image=32, classes=10).module) == 14_714_688 + 512 * 4096 + 4096 + (
        4096 * 4096 + 4096 + 4096 * 10 + 10
    )
    # ResNet: only the last layer knows the classes.
    assert _count(_on_no_device(resnet50, classes=10).module) == 25_557_032 - 990 * (2048 + 1)
    # GPT: words and positions, 12 w^2 + 13 w in a layer, and the last norm; the head's weights are the embedding's.
    width = 32
    created = _on_no_device(gpt2_small, tokens=16, layers=2, width=width, heads=4, vocabulary=100).module
    assert _count(created) == (100 + 16) * width + 2 * (12 * width**2 + 13 * width) + 2 * width
    assert created.get_submodule("head.scores").weight is created.get_submodule("embed.words").weight


@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_a_chain_are_the_model(name: str) -> None:
    """Run one after the other by their paths, each with one tensor, they give what the model gives."""
    torch.manual_seed(1)
    workload = SMALLER[name](2, **({"layers": 12} if name == "gpt2-small" else {}))
    module = workload.module.eval()  # no dropout, and running statistics stay
    with torch.no_grad():
        (x,) = workload.inputs
        for path in LAYERS[name]:
            x = module.get_submodule(path)(x)
        assert torch.equal(x, module(*workload.inputs))
    assert set(LAYERS[name]) <= {path for path, _ in _on_no_device(find_factory(name)).module.named_modules()}


def test_each_resnet_stage_halves_height_and_width_in_its_first_3x3_convolution() -> None:
    module = _on_no_device(resnet50).module
    strided = {path for path, part in module.named_modules() if getattr(part, "stride", 1) in (2, (2, 2))}
    assert strided == {
        *("stem.conv", "stem.pool"),
        *(f"layer{stage}.0.conv2" for stage in (2, 3, 4)),
        *(f"layer{stage}.0.shortcut.conv" for stage in (2, 3, 4)),
    }


def test_a_token_knows_nothing_of_those_that_follow() -> None:
    torch.manual_seed(2)
    workload = SMALLER["gpt2-small"](1)
    tokens = workload.inputs[0]
    others = tokens.clone()
    others[0, 10:] = (others[0, 10:] + 1) % 100
    with torch.no_grad():
        one, two = workload.module(tokens), workload.module(others)
    assert torch.equal(one[0, :10], two[0, :10])
    assert not torch.allclose(one[0, 10:], two[0, 10:])


def test_the_label_of_a_token_is_the_next_one() -> None:
    workload = SMALLER["gpt2-small"](3)
    (tokens,), (following,) = workload.inputs, workload.labels
    assert torch.equal(tokens[:, 1:], following[:, :-1])
    scores = nn.functional.one_hot(following, 100).float() * 100
    assert workload.loss(scores, *workload.labels) < 1e-6


@pytest.mark.parametrize("name", slow_except(SMALLER, "gpt2-small"))
def test_kernels_of_large_models_have_their_layers(name: str) -> None:
    assert name in BUILT_IN_MODELS
    trace = record(SMALLER[name], batch=2, gpu="2080ti")
    ran = {kernel.layer for kernel in trace.kernels if kernel.phase == "forward"}
    has_two = name == "gpt2-small"  # the variant has the first two of twelve blocks
    expected = [*LAYERS[name][:3], LAYERS[name][-1]] if has_two else LAYERS[name]
    assert all(any(layer and f"{layer}.".startswith(f"{path}.") for layer in ran) for path in expected)
