"""The time model: its limits in closed form, its invariants, and its errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node, node_names
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import Phase
from simgpu.workloads.calibration.recorded_samples import operations_by_phase
from simgpu.workloads.timemodel.formats import model_notes
from simgpu.workloads.timemodel.model import Tf32, TimeModel, time_model
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, GemmShape, Operation, OperationKind
from simgpu.workloads.timemodel.parameters import load_parameters

V100 = load_node("v100").gpu
A100 = load_node("a100").gpu
PARAMETERS = load_parameters()
GPUS = [
    load_node(name).gpu
    for name in (
        "k40",
        "titan-x-maxwell",
        "titan-xp",
        "p100",
        "v100",
        "2080ti",
        "a100",
        "rtx4090",
        "h200",
        "gb200",
        "mi300x",
    )
]


def gemm(m: int, n: int, k: int, direction: Direction = Direction.FORWARD, dtype: str = "float32") -> Operation:
    shape = GemmShape(m, n, k)
    return Operation(
        OperationKind.GEMM, 2 * shape.macs, 4 * (m * k + k * n + m * n), m * n, direction, gemm=shape, dtype=dtype
    )


def relu(values: int) -> Operation:
    return Operation(OperationKind.ELEMENTWISE, values, 8 * values, values)


def convolution(batch: int, direction: Direction = Direction.FORWARD, **changes: object) -> Operation:
    shape = replace(ConvolutionShape(batch, 64, (56, 56), 128, (3, 3), padding=(1, 1)), **changes)
    source = batch * shape.in_channels * shape.in_size[0] * shape.in_size[1]
    result = batch * shape.out_channels * shape.out_size[0] * shape.out_size[1]
    weights = shape.macs // (batch * shape.out_size[0] * shape.out_size[1])
    moved = 4 * (source + result + weights)
    return Operation(OperationKind.CONVOLUTION, 2 * shape.macs, moved, result, direction, convolution=shape)


def test_a_huge_product_runs_at_its_share_of_the_peak_rate() -> None:
    side = 1 << 20
    share = PARAMETERS.architectures["volta"].compute
    expected = 2 * side**3 / (V100.fp32_rate * share) * 1e9
    assert time_model(V100).duration_ns(gemm(side, side, side)) == pytest.approx(expected, rel=1e-6)


def test_a_huge_elementwise_kernel_runs_at_its_share_of_the_bandwidth() -> None:
    values = 10**12
    share = PARAMETERS.architectures["volta"].memory * PARAMETERS.kinds[OperationKind.ELEMENTWISE].forward
    expected = 8 * values / (V100.dram_bandwidth * share) * 1e9
    assert time_model(V100).duration_ns(relu(values)) == pytest.approx(expected, rel=1e-4)


def test_an_empty_kernel_takes_launch_time_and_memory_latency() -> None:
    volta = PARAMETERS.architectures["volta"]
    filling = PARAMETERS.in_flight * V100.multiprocessors / (V100.dram_bandwidth * volta.memory) * 1e9
    assert 0 <= time_model(V100).duration_ns(Operation(OperationKind.COPY, 0, 0, 0)) - volta.launch - filling < 1


def test_a_product_of_an_empty_batch_takes_launch_time() -> None:
    assert time_model(V100).duration_ns(gemm(0, 256, 64)) == PARAMETERS.architectures["volta"].launch


@pytest.mark.parametrize("depth", [27, 4096])
def test_few_outputs_of_a_convolution_leave_multiprocessors_idle(depth: int) -> None:
    """By the formulas in the module's docstring; long sums are split, and their parts count as results."""
    model, halves = time_model(V100, without=["winograd", "winograd_nonfused", "fft", "fft_tiling"]), PARAMETERS.halves
    few = convolution(1, in_channels=depth, in_size=(16, 16), kernel=(1, 1), padding=(0, 0))
    parts = max(1, depth / PARAMETERS.split_depth)
    idle = (1 + (halves.results * V100.multiprocessors / (256 * 128 * parts)) ** 2) ** 0.5
    padding = (1 + halves.rows / 256) * (1 + halves.columns / 128) * (1 + halves.depth * parts / depth)
    full = few.flops / (V100.fp32_rate * model.architecture.compute) * 1e9
    assert abs(model.duration_ns(few) - full * idle * padding - model.architecture.launch) <= 1
    assert model.duration_ns(few) > 2 * full


def test_the_three_directions_of_a_convolution_have_different_durations() -> None:
    """Of one with as many input as output channels, whose products have the same arithmetic in all directions."""
    model = time_model(V100, without=["winograd", "winograd_nonfused", "fft", "fft_tiling"])
    wide = {"in_channels": 1024, "out_channels": 1024, "kernel": (1, 1), "padding": (0, 0)}
    forward, data, weights = (model.duration_ns(convolution(64, direction, **wide)) for direction in Direction)
    shares = PARAMETERS.directions
    assert forward < data
    assert forward < weights
    assert data / forward == pytest.approx(shares[Direction.FORWARD] / shares[Direction.BACKWARD_DATA], rel=1e-2)


#: On 304 multiprocessors, the laws for partly filled tiles and for idle multiprocessors make the smallest convolutions
#: up to 0.6% faster with twice the samples.
_FILLED = [gpu for gpu in GPUS if gpu.name != "Instinct MI300X"]


@pytest.mark.parametrize("gpu", _FILLED, ids=lambda gpu: gpu.name)
@given(batch=st.integers(1, 512), direction=st.sampled_from(Direction), kernel=st.sampled_from([1, 3, 5]))
def test_more_samples_never_take_less_time(gpu: GpuSpec, batch: int, direction: Direction, kernel: int) -> None:
    model = time_model(gpu)
    one, more = (
        convolution(count, direction, kernel=(kernel, kernel), padding=(kernel // 2, kernel // 2))
        for count in (batch, batch + 1)
    )
    assert model.duration_ns(one) <= model.duration_ns(more)


@given(flops=st.integers(0, 10**15), bytes=st.integers(0, 10**12), more=st.integers(0, 10**12))
def test_more_arithmetic_or_traffic_never_takes_less_time(flops: int, bytes: int, more: int) -> None:
    model = time_model(V100)
    smallest = model.duration_ns(Operation(OperationKind.ELEMENTWISE, flops, bytes, 1))
    assert smallest <= model.duration_ns(Operation(OperationKind.ELEMENTWISE, flops + more, bytes, 1))
    assert smallest <= model.duration_ns(Operation(OperationKind.ELEMENTWISE, flops, bytes + more, 1))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@given(m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000))
def test_no_product_exceeds_the_peak_rate_or_the_memory_bandwidth(gpu: GpuSpec, m: int, n: int, k: int) -> None:
    operation = gemm(m, n, k)
    duration = time_model(gpu, tf32=Tf32.NONE).duration_ns(operation)
    assert duration >= operation.flops / gpu.fp32_rate * 1e9
    assert duration >= operation.bytes / gpu.dram_bandwidth * 1e9


@given(batch=st.integers(1, 256), direction=st.sampled_from(Direction))
def test_no_algorithm_exceeds_the_peak_rate_on_its_own_arithmetic(batch: int, direction: Direction) -> None:
    """Winograd's saving is bounded: 4 for F(4x4, 3x3); tiles of 32 x 32 save at most 9 x 900 / (4 x 544)."""
    operation = convolution(batch, direction)
    saving = {"winograd": 2.25, "winograd_nonfused": 4.0, "fft": 9 / 2, "fft_tiling": 9 / 2}
    for algorithm in time_model(V100).algorithms(operation):
        smallest = operation.flops / saving.get(algorithm.name, 1.0) / V100.fp32_rate * 1e9
        assert algorithm.duration_ns >= smallest


def test_tf32_is_the_default_for_convolutions_only() -> None:
    product, conv = gemm(8192, 8192, 8192), convolution(128, in_channels=512, out_channels=512)
    none, usual, everything = (time_model(A100, tf32=tf32) for tf32 in Tf32)
    assert usual.duration_ns(product) == none.duration_ns(product) > everything.duration_ns(product)
    assert usual.duration_ns(conv) == everything.duration_ns(conv) < none.duration_ns(conv)
    assert everything.duration_ns(product) >= product.flops / (A100.tensor_rate / 2) * 1e9
    assert time_model(V100, tf32=Tf32.ALL).duration_ns(product) == time_model(V100).duration_ns(product)


def halved(operation: Operation) -> Operation:
    return replace(operation, dtype="bfloat16", bytes=operation.bytes // 2)


def test_large_half_precision_products_sustain_the_rate_that_the_board_states() -> None:
    """The L4 states it, as measured with matrices of 8192 x 8192; without it, the architecture's share holds."""
    gpu, product = load_node("l4").gpu, halved(gemm(8192, 8192, 8192))
    stated = time_model(gpu).duration_ns(product)
    assert product.flops / stated * 1e9 == pytest.approx(gpu.sustained_tensor_rate, rel=2e-3)
    share = PARAMETERS.architectures["ada"].half_products
    default = time_model(replace(gpu, sustained_tensor_rate=None)).duration_ns(product)
    assert product.flops / default * 1e9 == pytest.approx(gpu.tensor_rate * share, rel=2e-3)


@pytest.mark.parametrize("name", ["a100", "rtx4090", "h100", "gb200", "mi300x"])
def test_products_of_matrices_run_at_one_rate_in_all_directions(name: str) -> None:
    """Those of backward are products of other sides, by the same kernels."""
    model = time_model(load_node(name).gpu)
    products = [gemm(4096, 4096, 4096, direction) for direction in Direction]
    assert len({model.duration_ns(product) for product in products}) == 1
    assert len({model.duration_ns(halved(product)) for product in products}) == 1


def test_half_precision_products_of_unaligned_rows_reach_half_their_rate() -> None:
    model, aligned = time_model(load_node("a100").gpu), gemm(8192, 50304, 768)
    assert aligned.gemm is not None
    unaligned = replace(aligned, gemm=replace(aligned.gemm, aligned=False))
    whole, half = (halved(each) for each in (aligned, unaligned))
    assert model.duration_ns(half) / model.duration_ns(whole) == pytest.approx(2, rel=0.01)
    assert model.duration_ns(unaligned) == model.duration_ns(aligned)  # in single precision


def test_the_sustained_rate_does_not_change_other_kernels() -> None:
    gpu = load_node("l4").gpu
    with_rate, without = time_model(gpu), time_model(replace(gpu, sustained_tensor_rate=None))
    for operation in (gemm(4096, 4096, 4096), relu(10**6), convolution(8), replace(convolution(8), dtype="float16")):
        assert with_rate.duration_ns(operation) == without.duration_ns(operation)


def test_half_precision_uses_the_matrix_units() -> None:
    half = gemm(8192, 8192, 8192, dtype="float16")
    assert time_model(V100).duration_ns(half) < time_model(V100).duration_ns(gemm(8192, 8192, 8192)) / 2
    titan = load_node("titan-x-maxwell").gpu
    assert time_model(titan).duration_ns(half) == time_model(titan).duration_ns(gemm(8192, 8192, 8192))


@pytest.mark.parametrize("name", ["v100", "2080ti"])
def test_bfloat16_before_ampere_multiplies_in_single_precision(name: str) -> None:
    """Volta's and Turing's matrix units take float16 alone, so the arithmetic is that of float32 to the nanosecond."""
    model, single = time_model(load_node(name).gpu), gemm(8192, 8192, 8192)
    brain, half = (replace(single, dtype=dtype, bytes=single.bytes // 2) for dtype in ("bfloat16", "float16"))
    assert model.duration_ns(brain) == model.duration_ns(single) > model.duration_ns(half)
    # A single row is bound by its matrix, which has half the bytes.
    row = gemm(1 << 24, 64, 16)
    assert model.duration_ns(replace(row, dtype="bfloat16", bytes=row.bytes // 2)) < model.duration_ns(row)


@pytest.mark.parametrize("name", ["a100", "rtx3090", "rtx4090", "h200", "gb200", "mi300x"])
def test_bfloat16_from_ampere_on_runs_at_the_rate_of_float16(name: str) -> None:
    model, half = time_model(load_node(name).gpu), gemm(8192, 8192, 8192, dtype="float16")
    assert model.duration_ns(replace(half, dtype="bfloat16")) == model.duration_ns(half)


def test_a_bfloat16_convolution_before_ampere_unfolds_images_one_by_one() -> None:
    """8 images of 3136 results, 576 taps, 128 channels; for each image one launch to unfold and one to multiply."""
    model, shape = time_model(V100), replace(convolution(8), dtype="bfloat16", bytes=convolution(8).bytes // 2)
    (only,) = model.algorithms(shape)
    assert (only.name, only.workspace_bytes) == ("gemm", 2 * 576 * 3136)
    assert [each.name for each in model.algorithms(replace(shape, dtype="float16"))] != ["gemm"]
    one = GemmShape(3136, 128, 576)
    share = PARAMETERS.algorithms["gemm"]
    slowed = model._padding(one) * model._idle(one)
    arithmetic = 8 * 2 * one.macs * slowed / (V100.fp32_rate * share)
    arithmetic /= model.architecture.compute
    moved = 8 * 2 * 2 * 576 * 3136 / (V100.dram_bandwidth * model.architecture.memory)
    assert abs(only.duration_ns - 16 * model.architecture.launch - (arithmetic + moved) * 1e9) <= 1


@pytest.mark.parametrize("name", ["k40", "titan-x-maxwell", "p100"])
def test_bfloat16_products_before_volta_are_refused(name: str) -> None:
    gpu = load_node(name).gpu
    for operation in (gemm(64, 64, 64, dtype="bfloat16"), replace(convolution(2), dtype="bfloat16")):
        with pytest.raises(InputError, match=r"no products of 'bfloat16'.*give float16 or float32"):
            time_model(gpu).duration_ns(operation)


@pytest.mark.parametrize("name", ["h100", "rtx4090", "l4", "mi300x"])
def test_float8_multiplies_at_twice_the_rate_times_the_share_of_its_products(name: str) -> None:
    """Of a board with a measured rate in half precision (the L4), twice that rate."""
    gpu = load_node(name).gpu
    model, half = time_model(gpu), gemm(8192, 8192, 8192, dtype="float16")
    eight = replace(half, dtype="float8_e4m3fn", bytes=4 * 8192**2)
    of = model.architecture
    ratio = 2 * (of.float8_products or of.half_products) / of.half_products
    other = of.launch + PARAMETERS.in_flight * model.multiprocessors / model._bandwidth(half) * 1e9
    assert model.duration_ns(eight) - other == pytest.approx((model.duration_ns(half) - other) / ratio, abs=1)
    assert model.duration_ns(replace(eight, dtype="float8_e5m2")) == model.duration_ns(eight)


@pytest.mark.parametrize("name", ["p100", "v100", "a100", "rtx3090"])
def test_float8_products_before_ada_and_hopper_are_refused(name: str) -> None:
    gpu = load_node(name).gpu
    with pytest.raises(InputError, match=rf"{gpu.name} \({gpu.architecture}\) has no .* float8, .*rtx4090 or h100"):
        time_model(gpu).duration_ns(gemm(64, 64, 64, dtype="float8_e4m3fn"))


@pytest.mark.parametrize(
    ("name", "dtypes", "notes"),
    [
        ("v100", ["float32", "float16"], []),
        ("a100", ["bfloat16"], []),
        (
            "v100",
            ["bfloat16"],
            ["Products of bfloat16 are priced in single precision with 2-byte values, convolutions"],
        ),
        (
            "k40",
            ["float16"],
            ["Products of float16 are priced in single precision with 2-byte values: Tesla K40 has no"],
        ),
        ("h200", ["float32"], ["The time model's hopper was fitted to H100, not to H200 SXM."]),
        ("rtx3090", ["float32"], ["The time model's ampere was fitted to A100, not to GeForce RTX 3090."]),
        ("l4", ["bfloat16"], ["The time model's ada is chosen from published figures, not fitted to a GPU."]),
    ],
)
def test_unusual_pricing_of_dtypes_is_noted(name: str, dtypes: list[str], notes: list[str]) -> None:
    result = model_notes(load_node(name).gpu, dtypes)
    assert len(result) == len(notes)
    assert all(note.startswith(start) for note, start in zip(result, notes, strict=True))


def test_durations_are_deterministic_integer_nanoseconds() -> None:
    answers = {time_model(V100).duration_ns(convolution(32)) for _ in range(3)}
    assert len(answers) == 1
    assert all(type(answer) is int for answer in answers)


@pytest.mark.parametrize("name", node_names())
def test_every_shipped_gpu_that_states_its_rates_has_a_model(name: str) -> None:
    gpu = load_node(name).gpu
    stated = (gpu.architecture, gpu.multiprocessors, gpu.fp32_rate, gpu.dram_bandwidth)
    if None in stated:
        with pytest.raises(InputError, match="is not stated"):
            time_model(gpu)
    else:
        assert isinstance(time_model(gpu), TimeModel)


def test_all_missing_figures_of_a_gpu_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        time_model(GpuSpec("bare", memory=1, architecture="voltta"), without=["winogrd", "implicit_gemm"])
    description = [str(problem) for problem in caught.value.problems]
    assert [text.split(": ")[1] for text in description[:4]] == [
        "gpu.multiprocessors",
        "gpu.fp32_rate",
        "gpu.dram_bandwidth",
        "gpu.architecture",
    ]
    assert "did you mean 'volta'?" in description[3]
    assert "did you mean 'winograd'?" in description[4]
    assert "always applies" in description[5]


@pytest.mark.parametrize("operation", [gemm(2, 2, 2, dtype="float64"), replace(convolution(1), dtype="int8")])
def test_products_of_unsupported_dtypes_are_refused(operation: Operation) -> None:
    with pytest.raises(InputError, match="no rate for products of"):
        time_model(V100).duration_ns(operation)


def test_normalization_reads_its_input_more_than_once() -> None:
    """Forward reads its input twice: 3 passes instead of the 2 counted; the rest is the factor of the architecture."""
    work = Operation(OperationKind.NORMALIZATION, 10**11, 8 * 10**11, 10**11)
    plain = replace(work, kind=OperationKind.ELEMENTWISE)
    ratio = time_model(V100).duration_ns(work) / time_model(V100).duration_ns(plain)
    assert ratio == pytest.approx(1.5 / PARAMETERS.architectures["volta"].normalization, rel=1e-3)


def test_a_bias_costs_one_more_pass_over_the_result() -> None:
    model, plain = time_model(V100), convolution(128)
    values = plain.results
    with_bias = replace(plain, added_bytes=8 * values)
    assert model.duration_ns(with_bias) - model.duration_ns(plain) == model.duration_ns(relu(values))
    for biased, bare in zip(model.algorithms(with_bias), model.algorithms(plain), strict=True):
        assert (biased.name, biased.workspace_bytes) == (bare.name, bare.workspace_bytes)


@pytest.mark.parametrize(("network", "has_bias"), [("vgg16", True), ("resnet50", False)])
def test_zoo_convolutions_are_priced_with_their_bias(network: str, has_bias: bool) -> None:
    forward = operations_by_phase(network, 2)[Phase.FORWARD]
    convolutions = [operation for _, operation in forward if operation.kind is OperationKind.CONVOLUTION]
    assert convolutions
    for operation in convolutions:
        assert operation.convolution is not None
        result = 4 * operation.results
        assert operation.added_bytes == (2 * result + 4 * operation.convolution.out_channels if has_bias else 0)
