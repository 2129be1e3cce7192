"""T5 compared with transformers' own modules on fake tensors: parameters, saved tensors, kernels, peaks."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.trace.model import Phase, Trace
from simgpu.trace.stats import trace_stats
from tests.workloads.configured.comparison import signature
from tests.workloads.configured.test_against_transformers import by_layer
from tests.workloads.configured.test_t5 import PUBLISHED, built
from tests.workloads.configured.transformers_models import adapted, autocasting, expected, recorded

BATCH, LENGTH = 2, 128
_SIZES = {
    "model_type": "t5",
    "d_model": 256,
    "d_kv": 32,
    "d_ff": 512,
    "num_layers": 2,
    "num_heads": 8,
    "vocab_size": 1000,
    "decoder_start_token_id": 0,
}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SMALL: dict[str, dict[str, Any]] = {
    "t5": _SIZES,
    "t5-1.1": {**_SIZES, **_GATED, "num_decoder_layers": 1, "d_kv": 64},
    "mt5": {**_SIZES, "model_type": "mt5", "num_layers": 1, "num_decoder_layers": 2},
    "t5-without-dropout": {**_SIZES, "feed_forward_proj": "gated-silu", "dropout_rate": 0.0},
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (name, dtype) == ("t5", "bfloat16") else [pytest.mark.slow])
        for name in SMALL
        for dtype in ("bfloat16", "float32")
    ],
)
def test_kernels_and_peaks_of_t5_equal_those_of_pytorch(name: str, dtype: str) -> None:
    """Every kernel in order, with the bytes it reads and writes and its modelled duration; the peak in bytes."""
    compare(
        built(SMALL[name], LENGTH, batch=BATCH, dtype=dtype).trace,
        recorded(SMALL[name], BATCH, LENGTH, dtype, "eager"),
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


#: Options of training, with the number format of the weights.
OPTIONS: dict[str, dict[str, Any]] = {
    "autocast": {"dtype": "float32", "autocast": "bfloat16"},
    "micro-batches": {"dtype": "bfloat16", "micro_batches": 2},
    "autocast-in-micro-batches": {"dtype": "float32", "autocast": "bfloat16", "micro_batches": 2},
    "lora": {"dtype": "bfloat16", "lora": 8, "lora_targets": ("q", "v")},
    "lora-with-dropout": {"dtype": "bfloat16", "lora": 8, "lora_targets": ("q", "v"), "lora_dropout": 0.1},
    "lora-under-autocast": {"dtype": "float32", "autocast": "bfloat16", "lora": 8, "lora_targets": ("q", "o")},
    "short-labels": {"dtype": "bfloat16", "target_length": 48},
    "long-labels": {"dtype": "float32", "target_length": 160},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in SMALL for options in OPTIONS],
)
def test_options_of_training_run_what_pytorch_does(name: str, options: str) -> None:
    given = OPTIONS[options]
    autocast, micro_batches = given.get("autocast"), given.get("micro_batches", 1)

    def changed(model: Any) -> Any:
        if "lora" in given:
            model = adapted(given["lora"], given["lora_targets"], rate=given.get("lora_dropout", 0.0))(model)
        return model if autocast is None else autocasting(autocast)(model)

    # Frozen weights have no gradients, and Python holds some values longer in forward: the peak is to be at the loss.
    values = {**SMALL[name], "vocab_size": 4000} if "lora" in given else SMALL[name]
    mine = built(values, LENGTH, batch=BATCH, **given).trace
    loop = {"targets": given.get("target_length"), "changed": changed}
    if micro_batches > 1:
        loop["micro_batches"] = micro_batches
    compare(mine, recorded(values, BATCH, LENGTH, given["dtype"], "eager", **loop))


def block_of(path: str) -> str:
    """The block of the encoder or the decoder that a module belongs to; the module itself outside of them."""
    parts = path.split(".")
    return ".".join(parts[:3]) if "block" in parts else path


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_saved_tensors_of_published_t5_equal_those_of_autograd(name: str) -> None:
    values = {**PUBLISHED[name][0], "decoder_start_token_id": 0}
    mine, theirs = built(values, LENGTH, batch=BATCH), expected(values, BATCH, LENGTH, attention="eager")
    assert mine.parameters == theirs.parameters
    whole_model = ("loss", "shift_right")
    rows = [
        by_layer([("" if layer in whole_model else block_of(layer), size) for layer, size in each])
        for each in ([(each.layer, each.block.bytes) for each in mine.saved], theirs.saved)
    ]
    assert rows[0] == rows[1]
