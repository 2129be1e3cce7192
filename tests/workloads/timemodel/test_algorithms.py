"""Convolution algorithms: where each applies, and its workspace by hand on one layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.workloads.timemodel.algorithms import product_of, works
from simgpu.workloads.timemodel.model import time_model
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, Operation, OperationKind

#: 8 images of 16 channels, 14 x 14, to 32 channels by 3 x 3, stride 1, same size.
LAYER = ConvolutionShape(8, 16, (14, 14), 32, (3, 3), padding=(1, 1))
ALWAYS = {"implicit_gemm", "implicit_precomp_gemm", "gemm"}
FOURIER = {"fft", "fft_tiling"}


def names(shape: ConvolutionShape, direction: Direction = Direction.FORWARD) -> set[str]:
    return {work.name for work in works(shape, direction)}


def workspace(name: str, shape: ConvolutionShape = LAYER) -> int:
    return next(work.workspace_bytes for work in works(shape, Direction.FORWARD) if work.name == name)


def test_workspaces_match_values_computed_by_hand() -> None:
    assert workspace("implicit_gemm") == 0
    assert workspace("implicit_precomp_gemm") == 4 * (16 * 9 + 8 * 14 * 14)
    assert workspace("gemm") == 4 * (16 * 9) * (8 * 14 * 14)
    assert workspace("winograd") == 4 * 16 * 16 * 32
    tiles = 8 * 4 * 4  # 14 = 3.5 tiles of 4
    assert workspace("winograd_nonfused") == 4 * 36 * (tiles * (16 + 32) + 16 * 32)
    planes = 8 * 16 + 8 * 32 + 16 * 32
    assert workspace("fft") == 8 * (16 * 9) * planes  # 14 + 2 fill 16 x 16; 16 x (16 / 2 + 1) frequencies
    assert workspace("fft_tiling") == 8 * (32 * 17) * planes  # a tile of 32 holds the image


def test_the_winograd_workspace_matches_a_published_one() -> None:
    """LBANN pull request 437: cuDNN's Winograd needs 256 KiB for ResNet-50's res2a_branch2b, 64 to 64 channels."""
    layer = ConvolutionShape(32, 64, (56, 56), 64, (3, 3), padding=(1, 1))
    assert workspace("winograd", layer) == 256 * 1024


def test_the_arithmetic_saving_of_winograd_depends_on_its_tiles() -> None:
    even = replace(LAYER, in_size=(16, 16))
    products = {work.name: work.product_flops for work in works(even, Direction.FORWARD)}
    assert products["implicit_gemm"] == 2 * even.macs
    assert products["winograd"] * 2.25 == 2 * even.macs
    assert products["winograd_nonfused"] * 4 == 2 * even.macs


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ALWAYS | FOURIER | {"winograd", "winograd_nonfused"}),
        ({"stride": (2, 2)}, ALWAYS),
        ({"dilation": (2, 2)}, ALWAYS),
        ({"groups": 2}, ALWAYS | FOURIER | {"winograd", "winograd_nonfused"}),
        ({"groups": 2, "stride": (2, 2)}, ALWAYS),
        ({"kernel": (5, 5), "padding": (2, 2)}, ALWAYS | FOURIER),
        ({"kernel": (1, 7), "padding": (0, 3)}, ALWAYS | FOURIER),
        ({"kernel": (1, 1), "padding": (0, 0)}, ALWAYS),
        ({"in_size": (255, 255)}, ALWAYS | {"fft_tiling", "winograd", "winograd_nonfused"}),
        ({"in_size": (254, 254)}, ALWAYS | FOURIER | {"winograd", "winograd_nonfused"}),
        ({"in_size": (64, 64), "kernel": (33, 33), "padding": (16, 16)}, ALWAYS | {"fft"}),
    ],
)
def test_algorithms_apply_only_to_supported_convolutions(change: dict[str, object], expected: set[str]) -> None:
    assert names(replace(LAYER, **change)) == expected


def test_transform_algorithms_reuse_one_workspace_for_all_groups() -> None:
    half = replace(LAYER, in_channels=8, out_channels=16)
    both = {work.name: work for work in works(replace(LAYER, groups=2), Direction.FORWARD)}
    one = {work.name: work for work in works(half, Direction.FORWARD)}
    for name in FOURIER | {"winograd", "winograd_nonfused"}:
        assert both[name].workspace_bytes == one[name].workspace_bytes
        assert (both[name].kernels, both[name].product_flops) == (2 * one[name].kernels, 2 * one[name].product_flops)


def test_fused_winograd_does_not_support_weight_gradients() -> None:
    assert "winograd" in names(LAYER, Direction.BACKWARD_DATA)
    assert "winograd" not in names(LAYER, Direction.BACKWARD_WEIGHTS)
    assert "winograd_nonfused" in names(LAYER, Direction.BACKWARD_WEIGHTS)


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_matrix_products_of_all_three_directions_have_the_flops_of_the_convolution(stride: tuple[int, int]) -> None:
    shape = replace(LAYER, stride=stride)
    forward, data, weights = (product_of(shape, direction) for direction in Direction)
    assert forward.macs == weights.macs == shape.macs
    assert shape.macs <= data.macs < shape.macs + data.m * data.n


def test_algorithms_come_fastest_first_and_only_for_convolutions() -> None:
    model = time_model(load_node("v100").gpu)
    moved = 4 * (8 * 16 * 196 + 8 * 32 * 196 + 16 * 32 * 9)
    operation = Operation(OperationKind.CONVOLUTION, 2 * LAYER.macs, moved, 8 * 32 * 196, convolution=LAYER)
    result = model.algorithms(operation)
    assert {each.name for each in result} == names(LAYER)
    assert list(result) == sorted(result, key=lambda each: (each.duration_ns, each.workspace_bytes, each.name))
    assert model.duration_ns(operation) == result[0].duration_ns
    assert model.algorithms(Operation(OperationKind.COPY, 0, 8, 1)) == ()


def test_excluded_algorithms_are_not_used() -> None:
    gpu = load_node("titan-x-maxwell").gpu
    shape = ConvolutionShape(64, 256, (56, 56), 256, (3, 3), padding=(1, 1))
    moved = 4 * (2 * 64 * 256 * 56**2 + 9 * 256**2)
    operation = Operation(OperationKind.CONVOLUTION, 2 * shape.macs, moved, 64 * 256 * 56**2, convolution=shape)
    old, new = time_model(gpu, without=["winograd", "winograd_nonfused"]), time_model(gpu)
    assert "winograd" in new.algorithms(operation)[0].name
    assert not any("winograd" in each.name for each in old.algorithms(operation))
    assert old.duration_ns(operation) > new.duration_ns(operation)


def test_an_algorithm_that_needs_more_workspace_than_allowed_is_not_used() -> None:
    gpu = load_node("v100").gpu
    shape = ConvolutionShape(128, 64, (224, 224), 64, (3, 3), padding=(1, 1))  # VGG-16's second, batch 128
    moved = 4 * (2 * 128 * 64 * 224**2 + 9 * 64**2)
    operation = Operation(OperationKind.CONVOLUTION, 2 * shape.macs, moved, 128 * 64 * 224**2, convolution=shape)
    assert workspace("winograd_nonfused", shape) > 2**32
    usual, generous, none = (
        {each.name for each in model.algorithms(operation)}
        for model in (time_model(gpu), time_model(gpu, workspace_limit=2**40), time_model(gpu, workspace_limit=0))
    )
    assert "winograd_nonfused" not in usual
    assert generous == names(shape)
    assert none == {"implicit_gemm"}
