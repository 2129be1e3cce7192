"""T5 compared with transformers' own modules on fake tensors: parameters, saved tensors, kernels, peaks."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.trace.model import Phase
from simgpu.trace.stats import trace_stats
from tests.workloads.decoders.test_against_transformers import by_layer, signature
from tests.workloads.decoders.test_t5 import PUBLISHED, built
from tests.workloads.decoders.transformers_models import expected, recorded

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
    mine = built(SMALL[name], LENGTH, batch=BATCH, dtype=dtype).trace
    theirs = recorded(SMALL[name], BATCH, LENGTH, dtype, "eager")
    for phase in Phase:
        kernels = [
            [signature(kernel, trace) for kernel in trace.kernels if kernel.phase is phase] for trace in (mine, theirs)
        ]
        assert kernels[0] == kernels[1], phase
    peaks = [trace_stats(trace).peak_recorded for trace in (mine, theirs)]
    assert peaks[0] is not None and peaks[1] is not None
    assert peaks[0].bytes == peaks[1].bytes


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
