"""Fused attention: its operations, its limits, and its law next to the products'."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec
from simgpu.workloads.timemodel.attention import FlashVersion
from simgpu.workloads.timemodel.model import time_model
from simgpu.workloads.timemodel.operation import AttentionShape, Direction, GemmShape, Operation, OperationKind
from simgpu.workloads.timemodel.parameters import load_parameters

LONG = AttentionShape(heads=64, rows=8192, keys=8192, width=128, values=128)
GPUS = [load_node(name).gpu for name in ("v100", "a100-80gb", "rtx4090", "h100", "gb200", "mi300x")]


def attention(shape: AttentionShape, direction: Direction = Direction.FORWARD, dtype: str = "bfloat16") -> Operation:
    values = shape.heads * (shape.rows * shape.width + shape.keys * shape.width)
    moved = (2 if direction is Direction.FORWARD else 4) * 2 * values
    kind, flops = OperationKind.ATTENTION, shape.flops(direction)
    return Operation(kind, flops, moved, values, direction, dtype=dtype, attention=shape)


@pytest.mark.parametrize(("rows", "keys"), [(5, 5), (3, 7), (7, 3)])
def test_a_causal_mask_keeps_the_scores_up_to_the_diagonal(rows: int, keys: int) -> None:
    kept = sum(key <= row for row in range(rows) for key in range(keys))
    assert AttentionShape(2, rows, keys, 4, 4, causal=True).scores == 2 * kept


@given(rows=st.integers(1, 12), window=st.integers(0, 12))
def test_a_window_keeps_the_last_scores_up_to_the_diagonal(rows: int, window: int) -> None:
    kept = sum(row - window <= key <= row for row in range(rows) for key in range(rows))
    shape = AttentionShape(2, rows, rows, 4, 4, causal=True, window=window)
    assert shape.scores == 2 * kept


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD_DATA])
def test_a_window_saves_time_in_proportion_to_its_scores(direction: Direction) -> None:
    prices = time_model(load_node("h100").gpu)
    whole = AttentionShape(32, 32768, 32768, 128, 128, causal=True)
    times = {w: prices.duration_ns(attention(replace(whole, window=w), direction)) for w in (1023, 4095, 32767)}
    assert times[32767] == prices.duration_ns(attention(whole, direction))
    for window in (1023, 4095):
        saved = replace(whole, window=window).scores / whole.scores
        assert saved < times[window] / times[32767] < 1.35 * saved


@pytest.mark.parametrize("flash", list(FlashVersion))
def test_the_law_of_a_long_kernel_is_products_plus_softmax(flash: FlashVersion) -> None:
    """By the formula in the module's docstring."""
    gpu, table = load_node("h100").gpu, load_parameters()
    hopper, common = table.architectures["hopper"], table.attention
    sustained = gpu.tensor_rate * hopper.half_products
    versions = {
        FlashVersion.TWO: (hopper.attention, common.flash2, sustained),
        FlashVersion.THREE: (hopper.flash3, common.flash3, sustained),
        FlashVersion.CUDNN: (hopper.cudnn, common.cudnn, gpu.tensor_rate),
    }
    shares, version, whole = versions[flash]
    rate = whole * shares.backward
    blocks = 64 * 8192 / 128
    filling = (1 + version.keys.backward / 8192) * (1 + (132 / blocks) ** 2) ** 0.5
    products = 10 * 64 * 8192**2 * 128 / rate * filling
    softmax = 64 * 8192**2 * common.softmax.backward / gpu.fp32_rate
    expected = hopper.launch + (products + softmax) * 1e9
    modelled = time_model(gpu, flash=flash).duration_ns(attention(LONG, Direction.BACKWARD_DATA))
    assert modelled == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD_DATA])
@pytest.mark.parametrize("causal", [False, True])
def test_an_operator_of_cudnn_has_its_law_whatever_the_version_of_flash_attention(
    direction: Direction, causal: bool
) -> None:
    """On GPUs without a rate of cuDNN's attention it has that of flash attention."""
    flash = replace(LONG, causal=causal)
    for name, version in (("h100", FlashVersion.CUDNN), ("gb200", FlashVersion.CUDNN), ("l4", FlashVersion.TWO)):
        gpu = load_node(name).gpu
        expected = time_model(gpu, flash=version).duration_ns(attention(flash, direction))
        assert time_model(gpu).duration_ns(attention(replace(flash, cudnn=True), direction)) == expected
    efficient = attention(replace(flash, efficient=True), direction)
    of_cudnn = time_model(load_node("h100").gpu, flash=FlashVersion.CUDNN)
    assert of_cudnn.duration_ns(efficient) == time_model(load_node("h100").gpu).duration_ns(efficient)


def test_flash_attention_3_needs_hopper() -> None:
    with pytest.raises(InputError, match="has no FlashAttention-3, which is for Hopper; give a GPU such as h100"):
        time_model(load_node("rtx4090").gpu, flash=FlashVersion.THREE)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@given(
    heads=st.integers(1, 256),
    rows=st.integers(1, 4096),
    width=st.sampled_from([64, 128, 256]),
    direction=st.sampled_from([Direction.FORWARD, Direction.BACKWARD_DATA]),
    causal=st.booleans(),
    efficient=st.booleans(),
)
def test_attention_never_exceeds_the_peak_rate_or_the_memory_bandwidth(
    gpu: GpuSpec, heads: int, rows: int, width: int, direction: Direction, causal: bool, efficient: bool
) -> None:
    shape = AttentionShape(heads, rows, rows, width, width, causal, efficient)
    operation = attention(shape, direction, "float16")
    duration = time_model(gpu).duration_ns(operation)
    assert duration >= operation.flops / gpu.tensor_rate * 1e9
    assert duration >= operation.bytes / gpu.dram_bandwidth * 1e9


@pytest.mark.parametrize("gpu", GPUS[1:], ids=lambda gpu: gpu.name)
def test_a_causal_mask_saves_time_but_less_than_half_forward(gpu: GpuSpec) -> None:
    full, causal = (time_model(gpu).duration_ns(attention(replace(LONG, causal=each))) for each in (False, True))
    assert full / 2 < causal < full


def test_narrow_heads_reach_a_smaller_rate() -> None:
    wide, narrow = LONG, replace(LONG, heads=128, width=64, values=64)
    assert wide.flops(Direction.FORWARD) == narrow.flops(Direction.FORWARD)
    durations = [time_model(load_node("a100-80gb").gpu).duration_ns(attention(each)) for each in (wide, narrow)]
    assert durations[0] < durations[1] < 1.3 * durations[0]


@pytest.mark.parametrize("name", ["v100", "a100"])
def test_attention_in_single_precision_is_priced_as_its_products(name: str) -> None:
    """One kernel, so one launch, and its traffic is counted once; the scores do not reach memory."""
    model, shape = time_model(load_node(name).gpu), replace(LONG, heads=4, rows=512, keys=512)
    products = [GemmShape(512, 512, 128, 4), GemmShape(512, 128, 512, 4)]
    parts = [Operation(OperationKind.GEMM, 2 * each.macs, 0, 1, gemm=each) for each in products]
    filling = model.parameters.in_flight * model.multiprocessors / model._bandwidth(parts[0]) * 1e9
    expected = sum(model.duration_ns(part) - filling for part in parts) - model.architecture.launch
    assert abs(model.duration_ns(attention(shape, dtype="float32")) - expected) <= 2


def test_attention_of_an_empty_batch_takes_launch_time() -> None:
    model = time_model(load_node("h100").gpu)
    assert model.duration_ns(attention(replace(LONG, heads=0))) == model.architecture.launch


def test_attention_in_unsupported_formats_is_refused() -> None:
    with pytest.raises(InputError, match="no rate for products of"):
        time_model(load_node("h100").gpu).duration_ns(attention(LONG, dtype="float64"))
