"""T5 from a configuration without PyTorch: parameters, memory, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.trace.check import check_trace
from simgpu.workloads.configured.config import model_of
from simgpu.workloads.configured.encoder_decoder import EncoderDecoder
from simgpu.workloads.configured.modelled import ModelledIteration
from simgpu.workloads.configured.modelled_t5 import encoder_decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.sets import slow_except

SMALL = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 100}


def _sizes(width: int, inner: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    sizes = {"d_model": width, "d_ff": inner, "num_layers": layers, "num_heads": heads}
    return {"model_type": "t5", **sizes, **others}


_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
#: The config.json of each repository on huggingface.co, and its number of trained weights, shared ones counted once.
PUBLISHED = {
    "google-t5/t5-small": ({"model_type": "t5"}, 60_506_624),
    "google-t5/t5-base": (_sizes(768, 3072, 12, 12), 222_903_552),
    "google-t5/t5-large": (_sizes(1024, 4096, 24, 16), 737_668_096),
    "google-t5/t5-3b": (_sizes(1024, 16384, 24, 32, d_kv=128), 2_851_598_336),
    "google-t5/t5-11b": (_sizes(1024, 65536, 24, 128, d_kv=128), 11_307_321_344),
    "google/flan-t5-small": (_sizes(512, 1024, 8, 6, **_GATED), 76_961_152),
    "google/flan-t5-base": (_sizes(768, 2048, 12, 12, **_GATED), 247_577_856),
    "google/flan-t5-xl": (_sizes(2048, 5120, 24, 32, **_GATED), 2_849_757_184),
    "google/mt5-small": ({"model_type": "mt5"}, 300_176_768),
    "google/mt5-base": ({**_sizes(768, 2048, 12, 12), "model_type": "mt5"}, 582_401_280),
    "google/mt5-large": ({**_sizes(1024, 2816, 24, 16), "model_type": "mt5"}, 1_229_581_312),
}


def built(values: dict[str, Any], length: int = 32, **options: Any) -> ModelledIteration:
    model = model_of(values)
    assert isinstance(model, EncoderDecoder)
    given = {name: options.pop(name) for name in ("batch", "gpu", "target_length") if name in options}
    given = {"batch": 2, "length": options.pop("length", length), "gpu": load_node("h100").gpu, **given}
    return encoder_decoder_iteration(model, **given, options=TrainingOptions(**{"attention": "eager"} | options))


@pytest.mark.parametrize("name", slow_except(PUBLISHED, "google-t5/t5-small", "google/mt5-small"))
def test_parameters_are_those_published(name: str) -> None:
    values, parameters = PUBLISHED[name]
    assert built(values).parameters == parameters


def test_trace_is_valid_and_scores_grow_with_the_square_of_the_length() -> None:
    check_trace(built(SMALL).trace)
    first, second, third = (built(SMALL, length).saved_bytes for length in (128, 256, 384))
    scores = 3 * 2 * 2 * 4  # attentions in both stacks' layers, samples, heads
    softmax, weights, mask = 4, 2, 1  # bytes of a score: in float32, dropped out in bfloat16, and the mask of dropout
    of_buckets = 2 * 8
    per_pair = scores * (softmax + weights + mask) + of_buckets
    assert (third - second) - (second - first) == per_pair * (384**2 - 2 * 256**2 + 128**2)


def test_encoder_may_have_more_layers_than_decoder() -> None:
    even, uneven = built(SMALL), built({**SMALL, "num_decoder_layers": 1})
    cross, own, inner, norms = (4 * 64 * 64, 4 * 64 * 64, 2 * 64 * 128, 3 * 64)
    assert even.parameters - uneven.parameters == cross + own + inner + norms


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers: 0 is not a whole number from 1 to 1000"),
        ({"feed_forward_proj": "gated-x"}, "feed_forward_proj: 'gated-x' is not a supported feed-forward part"),
        ({"feed_forward_proj": 3}, "feed_forward_proj: 3 is not a supported feed-forward part"),
        ({"dropout_rate": 2}, "dropout_rate: 2 is not a number from 0 to 1"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not modelled"),
    ],
)
def test_unsupported_values_of_a_configuration_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_of({**SMALL, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length: 1 is not a number from 2"),
        ({"batch": 0}, "batch: 0 is not a number from 1"),
        ({"dtype": "float16"}, "T5 in float16, where transformers limits values"),
        ({"dtype": "float8"}, "dtype: unknown value 'float8'"),
        ({"attention": "sdpa"}, "T5 has no sdpa attention"),
        ({"optimizer": "lion"}, "optimizer: unknown value 'lion'"),
        ({"length": 2**39}, "more bytes or operations than a trace can hold"),
    ],
)
def test_values_that_cannot_be_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(SMALL, **options)
