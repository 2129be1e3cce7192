"""DeepSeek-V3 without PyTorch: saved bytes by closed forms, published sizes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.workloads.configured.config import decoder_of
from tests.workloads.configured.test_decoder_iteration import built

SMALL: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
#: Of the layers with experts of Moonlight-16B-A3B, whose queries have no narrow vector.
MOONLIGHT = {
    **SMALL,
    "hidden_size": 2048,
    "intermediate_size": 11264,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 163840,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
}
BATCH, LENGTH = 2, 64


def saved_in(values: dict[str, Any], part: str) -> int:
    """Bytes that a layer's part of this path saves in bfloat16, for all tokens."""
    result = built(values, batch=BATCH, length=LENGTH)
    return sum(each.block.bytes for each in result.saved if f"{each.layer}.".startswith(f"model.layers.{part}."))


def test_attention_saves_bytes_by_closed_form() -> None:
    """Of each token: its input; of both narrow vectors, the normalization's input in float32, its result before and
    after the weight, and an inverse root; queries, keys, values, results in two layouts and a sum in float32 of each
    head; and two random numbers, 8 bytes each. The first layer also saves cosines and sines, which all share."""
    width, heads, narrow, head, value, rotary = 64, 4, (24, 16), 24, 16, 8
    of_token = 2 * width + sum(8 * each + 4 for each in narrow) + heads * (2 * (2 * head + 3 * value) + 4)
    assert saved_in(SMALL, "1.self_attn") == BATCH * LENGTH * of_token + 16
    assert saved_in(SMALL, "0.self_attn") == saved_in(SMALL, "1.self_attn") + LENGTH * 2 * 2 * rotary
    plain = {**SMALL, "q_lora_rank": None}
    assert saved_in(SMALL, "1.self_attn") - saved_in(plain, "1.self_attn") == BATCH * LENGTH * (8 * 24 + 4)


def test_experts_save_bytes_by_closed_form() -> None:
    """Of each token in the router: its input and scores in float32, and of each choice a number and a weight before and
    a sum; of each expert's token: its place, input, four values of the feed-forward part, result, weight, and the
    product of these in float32; what the shared experts save; and the router's weights in float32."""
    width, count, chosen, inner = 64, 8, 2, 32
    of_router = 4 * width + 4 * count + chosen * (8 + 4) + 4
    of_choice = 16 + 2 * width + 4 * 2 * inner + 2 * width + 4 + 4 * width
    of_shared = 2 * width + 4 * 2 * (2 * inner)
    of_token = of_router + chosen * of_choice + of_shared
    assert saved_in(SMALL, "1.mlp") == BATCH * LENGTH * of_token + 4 * count * width


@pytest.mark.slow
def test_moonlight_has_its_published_parameters() -> None:
    """15.29 B without the embedding and the output layer (MoonshotAI/Moonlight, README)."""
    parameters = built(MOONLIGHT, batch=1, length=64).parameters
    assert f"{(parameters - 2 * 163_840 * 2048) / 1e9:.2f}" == "15.29"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_group": 3}, "n_group: 8 experts do not divide into 3 groups of two or more"),
        ({"n_group": 8}, "n_group: 8 experts do not divide into 8 groups of two or more"),
        ({"topk_group": 5}, "topk_group: 5 groups for each token, but only 4 exist"),
        ({"num_experts_per_tok": 9}, "9 experts for each token, but only 8 exist"),
        ({"num_key_value_heads": 2}, "num_key_value_heads: keys and values of 2 heads for queries of 4"),
        ({"qk_rope_head_dim": 7}, "7 of 23 values of a head cannot be rotated in pairs"),
        ({"kv_lora_rank": None, "v_head_dim": 0}, "v_head_dim: 0 is not a whole number"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder_of({**SMALL, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "flash_attention_3"}, "attention: FlashAttention-3 with values of another width than queries"),
        ({"lora": 4}, "lora_targets: the model has no linear layer 'q_proj'; did you mean 'q_b_proj'"),
        ({"compile": "layers"}, "compile: experts, whose numbers of tokens end a graph, are not modelled"),
        ({"float8": "tensorwise"}, "float8: float8 of experts"),
        (
            {"four_bit": "nf4", "lora": 4, "lora_targets": ("o_proj",), "autocast": "bfloat16", "dtype": "float32"},
            "four_bit: under autocast gives experts float32 results, .*; give dtype bfloat16 instead of autocast",
        ),
    ],
)
def test_options_that_are_not_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built({**SMALL, "v_head_dim": 8}, **options)


def test_notes_name_the_layers_that_transformers_does_not_build() -> None:
    notes = built({**SMALL, "num_nextn_predict_layers": 1}).trace.info.notes
    assert notes.endswith("Not modelled: layers of multi-token prediction, which transformers does not build.")
