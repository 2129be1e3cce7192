"""Memory of the forms of the loss by closed form, and the errors of options that are not supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.experiments.fit.workloads import workload_of
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import BlockKind, Trace
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions

WIDTH, VOCABULARY, BATCH, LENGTH = 64, 1000, 2, 260
TOKENS = BATCH * LENGTH
SMALL = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": VOCABULARY,
}
GEMMA = {**SMALL, "model_type": "gemma2", "num_key_value_heads": 2}


def built(values: dict[str, Any] = SMALL, length: int = LENGTH, **options: Any) -> Trace:
    gpu = load_node("h100").gpu
    chosen = TrainingOptions(**options)
    return decoder_iteration(decoder_of(values), batch=BATCH, length=length, gpu=gpu, options=chosen).trace


def logits_peak(trace: Trace) -> int:
    """The most bytes that logits, and what is computed from them, have at once."""
    number = {kernel.id: place for place, kernel in enumerate(trace.kernels)}
    first = {name: place for place, kernel in reversed(list(enumerate(trace.kernels))) for name in kernel.writes}
    live = [0] * len(trace.kernels)
    for block in trace.blocks:
        if block.shape and block.shape[-1] == VOCABULARY and block.kind is not BlockKind.WEIGHT:
            for place in range(first[block.id], number.get(block.release or "", len(live) - 1) + 1):
                live[place] += block.bytes
    return max(live)


def test_logits_of_the_eager_loss_take_12_bytes_a_value_or_14_where_the_loop_holds_them() -> None:
    """In backward: their logarithms in float32 and two gradients; the logits have 2 bytes."""
    for held, size in ((False, 12), (True, 14)):
        assert logits_peak(built(hold_output=held)) == size * TOKENS * VOCABULARY


def test_logits_of_the_chunked_loss_take_the_logarithms_and_two_gradients_of_a_chunk() -> None:
    rows = TOKENS - BATCH  # without the last token of each sample
    chunk = rows // 8  # backward begins with the last chunk, a short one
    assert rows % 8
    assert logits_peak(built(loss="chunked")) == (4 * rows + 2 * 4 * chunk) * VOCABULARY


def test_logits_of_the_compiled_chunked_loss_take_2_bytes_a_value_and_the_gradient_of_a_chunk() -> None:
    rows = TOKENS - BATCH
    assert logits_peak(built(loss="chunked-compiled")) == (2 * rows + 2 * (rows // 8)) * VOCABULARY


def test_a_compiled_chunk_takes_less_time_and_the_same_products() -> None:
    eager, compiled = (built(loss=loss) for loss in ("chunked", "chunked-compiled"))
    products = [[kernel for kernel in trace.kernels if kernel.op == "mm"] for trace in (eager, compiled)]
    assert len(products[0]) == len(products[1]) and compiled.compute_ns < eager.compute_ns


def test_logits_of_the_fused_loss_take_two_chunks() -> None:
    """Liger's chunk: tokens over vocabulary / width, rounded up to a power of two; Python holds the one before."""
    trace = built(loss="fused")
    assert -(-TOKENS // 16) == 33
    assert logits_peak(trace) == 2 * 64 * VOCABULARY * 2
    saved = [row.bytes for row in trace.saved if row.layer == "loss"]
    assert saved == [2 * TOKENS * WIDTH, 2 * VOCABULARY * WIDTH]  # both gradients, and no logits


def test_options_that_are_not_supported_are_errors() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (SMALL, {"loss": "liger"}, "loss: unknown value 'liger'"),
        (
            SMALL,
            {"loss": "chunked-compiled", "autocast": "bfloat16", "dtype": "float32"},
            "torchtune, which has no autocast, .* give eager, chunked or fused, or no autocast",
        ),
        ({"model_type": "gpt2"}, {"loss": "fused"}, "no fused loss for gpt2; give eager or chunked"),
        (GEMMA, {"loss": "chunked"}, "the limited logits of gemma2 is not modelled"),
        ({**SMALL, "model_type": "granite"}, {"loss": "chunked"}, "the scaled logits of granite is not modelled"),
        ({**SMALL, "model_type": "granite"}, {"loss": "fused"}, "no fused loss for granite; give eager$"),
        (SMALL, {"grad_scaler": True}, "give autocast float16, or leave it out"),
        (
            SMALL,
            {"grad_scaler": True, "autocast": "float16", "dtype": "float32", "optimizer": "adamw-fused"},
            "grad_scaler: fused AdamW, .* give the optimizer adamw",
        ),
        (SMALL, {"loss": "chunked", "length": 4}, "6 tokens with a next one are too few for 8 chunks"),
    ]
    for values, options, message in cases:
        with pytest.raises(InputError, match=message):
            built(values, **options)


@pytest.mark.slow
def test_fit_answers_with_the_fused_loss_where_logits_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "vocab_size": 128256}))
    assert workload_of(tmp_path, {}).options["loss"] == "eager"
    result = simgpu.fit(tmp_path, "rtx4090", batch=1, length=2048, budget="1.2 GiB")
    assert result.best is not None
    assert result.best.candidate.build["loss"] == "fused"
