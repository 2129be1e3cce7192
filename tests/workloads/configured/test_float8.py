"""Linear layers in float8: kernels, bytes, memory and what they save, by closed forms; what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.compiled.fused import fused_durations
from simgpu.workloads.configured.config import model_of
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of
from simgpu.workloads.eager.engine import run_backward
from simgpu.workloads.eager.float8 import float8_linear
from simgpu.workloads.eager.session import Session
from simgpu.workloads.lowering.tape import TapeKernel
from simgpu.workloads.timemodel.model import time_model
from simgpu.workloads.timemodel.operation import GemmShape
from tests.workloads.configured.published import PUBLISHED
from tests.workloads.configured.test_decoder_iteration import MIXTURE, SMALL, built

ROWS, WIDTH, FEATURES = 48, 64, 32
LAYERS, LINEAR = 2, 7  # of SMALL: four of attention, three of the feed-forward part


def layer(compiled: bool) -> tuple[Session, int]:
    """Forward and backward of one layer, and the number of kernels of forward. The loss is the sum of its results."""
    session = Session()
    with session.layer("layer"):
        weight = session.weight("weight", (FEATURES, WIDTH), "bfloat16")
        x = session.weight("x", (ROWS, WIDTH), "bfloat16")
        result = float8_linear(session, x, weight, compiled=compiled)
    count = len(session.tape.kernels)
    run_backward(session, result, {})
    return session, count


def moved(kernels: list[TapeKernel]) -> int:
    """Bytes that kernels other than products read and write; those of single numbers alone do not count."""
    operations = [work for kernel in kernels for work in kernel.operations if work.gemm is None]
    return sum(work.bytes for work in operations if work.bytes > 64)


#: Bytes of a value in all kernels of a conversion: abs 2 + 2, max 2, to float32 2 + 4, times the scale 4 + 4, limited
#: 4 + 4, to float8 4 + 1. Compiled: max 2, to float8 2 + 1. And of numbers: the largest magnitude and the scale.
BY_CONVERSION = {False: (33, 2 + 4), True: (5, 4 + 4)}


@pytest.mark.parametrize("compiled", [False, True])
def test_conversions_move_bytes_by_closed_form(compiled: bool) -> None:
    """Forward converts input and weight. Backward converts both and, twice, the gradient, and copies three of them.

    Compiled, backward converts in the layout of its products: 3 bytes of input and weight, 2 + 2 + 2 of the gradient.
    """
    session, count = layer(compiled)
    kernels = session.tape.kernels
    of_input, of_weight, of_gradient = ROWS * WIDTH, FEATURES * WIDTH, ROWS * FEATURES
    each, numbers = BY_CONVERSION[compiled]
    assert moved(kernels[:count]) == each * (of_input + of_weight) + 2 * numbers
    first = 2 * of_gradient  # ones, from which backward starts
    if compiled:
        backward = 3 * (of_input + of_weight) + 6 * of_gradient + numbers + 2 * 4
    else:
        copies = 2 * (of_input + of_weight + of_gradient)
        backward = each * (of_input + of_weight + 2 * of_gradient) + copies + 4 * numbers
    assert moved(kernels[count:]) == first + backward


@pytest.mark.parametrize("compiled", [False, True])
def test_products_are_three_and_multiply_float8(compiled: bool) -> None:
    session, _ = layer(compiled)
    products = [work for kernel in session.tape.kernels for work in kernel.operations if work.gemm is not None]
    assert [work.gemm for work in products] == [
        GemmShape(ROWS, FEATURES, WIDTH),
        GemmShape(ROWS, WIDTH, FEATURES),
        GemmShape(FEATURES, WIDTH, ROWS),
    ]
    assert [work.dtype for work in products] == ["float8_e4m3fn", "float8_e5m2", "float8_e5m2"]


def test_a_conversion_holds_two_float32_copies() -> None:
    """When the weight is converted: it in float32 twice and in float8, and the input in float8."""
    session, count = layer(compiled=False)
    kernels = session.tape.kernels
    last = max(place for place, kernel in enumerate(kernels[:count]) if kernel.op == "_to_copy")
    begin = {block: place for place, kernel in reversed(list(enumerate(kernels))) for block in kernel.writes}
    live = [
        block
        for block, place in begin.items()
        if place <= last and not block.persistent and (block.release is None or block.release >= last)
    ]
    scales = 2 * 4
    assert sum(block.bytes for block in live) == (4 + 4 + 1) * FEATURES * WIDTH + ROWS * WIDTH + scales


@pytest.mark.parametrize(("form", "scales"), [("tensorwise", 0), ("tensorwise-compiled", 2 * 4 * LAYERS * LINEAR)])
def test_layers_save_what_those_in_bfloat16_save(form: str, scales: int) -> None:
    plain, mine = built(SMALL), built(SMALL, float8=form)
    assert mine.saved_bytes - plain.saved_bytes == scales
    assert mine.parameters == plain.parameters
    ops = [kernel.op for kernel in mine.trace.kernels]
    assert ops.count("_scaled_mm") == 3 * LAYERS * LINEAR
    assert ops.count("mm") == 3  # of the logits
    check_trace(mine.trace)
    assert "torchao's tensorwise recipe" in mine.trace.info.notes


def test_layers_with_other_sides_than_multiples_of_16_stay_as_they_are() -> None:
    values = {**SMALL, "intermediate_size": 120}
    ops = [kernel.op for kernel in built(values, float8="tensorwise").trace.kernels]
    assert (ops.count("_scaled_mm"), ops.count("mm")) == (3 * LAYERS * 4, 3 * (LAYERS * 3 + 1))
    with pytest.raises(InputError, match=r"float8: .* has no linear layer with sides that are multiples of 16"):
        built({**SMALL, "hidden_size": 40, "num_attention_heads": 5}, float8="tensorwise")


def test_large_compiled_layers_are_faster_than_bfloat16_and_others_slower() -> None:
    """A layer of Llama 3.1 8B with 8,192 tokens: compiled it gains, one kernel a step it loses, as torchao says."""
    values = {**SMALL, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    forms = (None, "tensorwise", "tensorwise-compiled")
    plain, eager, compiled = (
        sum(kernel.duration_ns for kernel in built(values, 8192, batch=1, float8=form).trace.kernels) for form in forms
    )
    assert compiled < plain < eager


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "published", "error"), [(1, 7689.5 / 6150, 5), (2, 8532 / 6667, 4)])
def test_gains_of_compiled_steps_are_a_few_percent_above_those_published(
    batch: int, published: float, error: int
) -> None:
    """Llama 3.1 8B with 8,192 tokens on an H100, all of forward and backward compiled, in tokens per second.

    torchao's documents (1 sequence) and torchtitan's ``llama3_h100_202412_torchtitan.md`` (2), both with FSDP on eight
    GPUs, float8 all-gather and selective checkpointing, which are not here. Attention is FlashAttention-2, which
    PyTorch preferred in 2024. Nothing is fitted to these figures.
    """
    gpu = load_node("h100").gpu
    prices, times = time_model(gpu), []
    for float8 in (None, "tensorwise-compiled"):
        options = {"optimizer": "adamw-fused", "float8": float8, "attention": "flash_attention_2"}
        trace = built(PUBLISHED["meta-llama/Llama-3.1-8B"].values, 8192, batch=batch, gpu=gpu, **options).trace
        durations = fused_durations(trace, prices, lambda kernel: None if kernel.phase is Phase.OPTIMIZER else "model")
        steps = zip(durations, trace.kernels, strict=True)
        times.append(sum(ns for ns, kernel in steps if kernel.phase is not Phase.OPTIMIZER))
    assert round(100 * (times[0] / times[1] / published - 1)) == error


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (
            SMALL,
            {"gpu": load_node("a100").gpu},
            r"A100 PCIe 40GB \(ampere\) has no .* float8.*; give a GPU such as",
        ),
        (SMALL, {"gpu": load_node("rtx3090").gpu}, r"GeForce RTX 3090 \(ampere\) has no matrix units for float8"),
        (SMALL, {"length": 33}, "66 tokens of a micro-batch are not a multiple of 16"),
        (SMALL, {"lora": 8}, "float8 of frozen layers next to LoRA's adapters is not modelled"),
        (MIXTURE, {}, "float8 of experts, whose numbers of tokens are not multiples of 16"),
        ({"model_type": "gpt2", "n_layer": 1}, {}, "GPT-2's Conv1D layers are not"),
        (SMALL, {"float8": "tensorwize"}, "float8: unknown value 'tensorwize'; did you mean 'tensorwise'"),
    ],
)
def test_what_float8_does_not_support_is_refused(values: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(values, **{"float8": "tensorwise", **options})


def test_other_models_than_decoders_refuse_float8() -> None:
    model, gpu = model_of({"model_type": "t5"}), load_node("h100").gpu
    with pytest.raises(InputError, match="float8: float8 is modelled for decoders only, not for t5; leave it out"):
        model_iteration(model, SampleSizes(32), batch=1, gpu=gpu, options=options_of(model, {"float8": "tensorwise"}))


def test_kinds_of_float8_blocks_are_those_of_other_values() -> None:
    blocks = built(SMALL, float8="tensorwise").trace.blocks
    kinds = {block.kind for block in blocks if (block.dtype or "").startswith("float8")}
    assert kinds == {BlockKind.ACTIVATION, BlockKind.GRADIENT}
