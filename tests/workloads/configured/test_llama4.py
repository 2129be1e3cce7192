"""Llama 4 from configurations, without PyTorch: saved bytes by a closed form, its text part, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.workloads.configured.config import decoder_of
from tests.workloads.configured.test_decoder_iteration import built

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "intermediate_size_mlp": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "num_local_experts": 8,
    "attention_chunk_size": 128,
}
SMALL = {"model_type": "llama4_text", **TEXT}


def test_experts_save_bytes_of_all_tokens_by_closed_form() -> None:
    """Of each token: its input, the number of its expert and what the shared expert saves; and for every expert its
    copy before and after the weight, the weight in two formats and the number of a row, and the feed-forward part's
    two products together, its activation and the product of both."""
    width, count, inner, tokens = 64, 8, 32, 2 * 64
    of_expert = 2 * 2 * width + (2 + 4 + 8) + (4 + 2 + 2) * inner
    of_token = 2 * width + 8 + 4 * 2 * inner + count * of_expert
    saved = built(SMALL, length=64).saved
    found = sum(each.block.bytes for each in saved if f"{each.layer}.".startswith("model.layers.1.feed_forward."))
    assert found == tokens * of_token


def test_layers_with_experts_are_those_that_the_configuration_names() -> None:
    by_step, by_list = (
        decoder_of({**SMALL, **names}) for names in ({"interleave_moe_layer_step": 2}, {"moe_layers": [1, 3]})
    )
    for decoder in (by_step, by_list):
        assert [decoder.has_experts(layer) for layer in range(4)] == [False, True, False, True]


def test_llama_4_with_images_is_its_text_part() -> None:
    classes = {"architectures": ["Llama4ForConditionalGeneration"], "vision_config": {"hidden_size": 32}}
    whole = decoder_of({"model_type": "llama4", "text_config": TEXT, **classes}, name="llama-4")
    assert replace(whole, without="") == decoder_of(SMALL, name="llama-4")
    notes = built({"model_type": "llama4", "text_config": TEXT}).trace.info.notes
    assert "Each expert multiplies all tokens" in notes and "balanced routing" not in notes
    assert notes.endswith("Not modelled: the vision tower and its projector.")


def test_lengths_beyond_a_chunk_are_refused_but_for_the_package_which_ignores_chunks() -> None:
    with pytest.raises(InputError, match=r"length: 129 tokens are more than a chunk of 128, .*; give at most 128"):
        built(SMALL, length=129)
    assert built(SMALL, length=129, attention="flash_attention_2").saved_bytes > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moe_layers": [4]}, "moe_layers: .* is not a list of numbers of layers from 0 to 3"),
        ({"moe_layers": "all"}, "moe_layers: 'all' is not a list of numbers"),
        ({"num_experts_per_tok": 9}, "9 experts for each token, but only 8 exist"),
        ({"router_jitter_noise": 0.1}, "router_jitter_noise: noise before the router is not modelled"),
        ({"head_dim": 15}, "15 of 15 values of a head cannot be rotated in pairs"),
    ],
)
def test_unsupported_values_name_their_key_and_a_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder_of({**SMALL, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile": "layers"}, "compile: experts are not modelled; leave it out"),
        ({"float8": "tensorwise"}, "float8: float8 of experts is not modelled; leave it out"),
    ],
)
def test_options_that_are_not_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(SMALL, **options)
