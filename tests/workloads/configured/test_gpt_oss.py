"""GPT-OSS from configurations, without PyTorch: saved bytes by closed forms, windows, MXFP4, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.entry import SampleSizes, options_of
from simgpu.workloads.configured.modelled import ModelledIteration
from simgpu.workloads.megatron.entry import megatron_of
from tests.workloads.configured.test_decoder_iteration import built

SMALL: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
}
BATCH, LENGTH = 2, 32


def eager(values: dict[str, Any] = SMALL, **options: Any) -> ModelledIteration:
    return built(values, LENGTH, batch=BATCH, attention="eager", **options)


def saved_in(part: str) -> int:
    """Bytes that a layer's part of this path saves in bfloat16, for all tokens."""
    return sum(each.block.bytes for each in eager().saved if f"{each.layer}.".startswith(f"model.layers.1.{part}."))


def test_experts_save_bytes_by_closed_form() -> None:
    """Of each token in the router: its input, and of each choice a number and a share. Of each expert's token: its
    place, input, gate and up together, five values of the feed-forward part, result, weight, and the product of these.
    Of each expert: copies of both matrices, and its number."""
    width, inner, experts, chosen, tokens = 64, 32, 8, 2, BATCH * LENGTH
    of_token = 2 * width + chosen * (8 + 2)
    of_choice = 16 + 2 * width + 2 * 2 * inner + 5 * 2 * inner + 2 * width + 2 + 2 * width
    of_expert = 2 * (width * 2 * inner + inner * width) + 8
    assert saved_in("mlp") == tokens * (of_token + chosen * of_choice) + experts * of_expert


def test_attention_saves_shares_of_all_keys_and_the_sink_and_the_place_of_the_largest_score() -> None:
    """Of each token: its input; queries, keys and values with one head of keys for each of queries, and the result of
    each head; and of each head its shares, and the place of the largest score."""
    width, heads, head, tokens = 64, 4, 16, BATCH * LENGTH
    assert saved_in("self_attn") == tokens * (2 * width + heads * (4 * 2 * head + 2 * (LENGTH + 1) + 8))


def test_every_second_layer_has_no_window() -> None:
    decoder = decoder_of({**SMALL, "layer_types": ["sliding_attention", "full_attention"]})
    assert decoder == decoder_of(SMALL)
    assert [decoder.window_of(layer) for layer in range(2)] == [8, None]


def test_attention_is_eager_by_default_as_in_transformers() -> None:
    assert options_of(decoder_of(SMALL), {}).attention == "eager"


def test_weights_in_mxfp4_are_converted_and_notes_say_so() -> None:
    packed = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    full, converted = eager(), eager({**SMALL, **packed})
    assert converted.trace.kernels == full.trace.kernels
    assert "MXFP4" in converted.trace.info.notes and "MXFP4" not in full.trace.info.notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention"] * 2}, "layer_types: is not full_attention in every second layer"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights are not modelled"),
        ({"sliding_window": None, "num_experts_per_tok": 9}, "9 experts for each token, but only 8 exist"),
        ({"output_router_logits": True}, "the loss that balances the experts is not modelled"),
    ],
)
def test_unsupported_values_name_their_key_and_a_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder_of({**SMALL, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "sdpa"}, "^attention: transformers has no sdpa attention of gpt_oss, .*; give eager$"),
        ({"attention": "flash_attention_2"}, "^attention: the package flash-attn .*; give eager$"),
        ({"compile": "layers"}, "^compile: attention with sinks, and experts, .* are not modelled; leave it out$"),
        ({"float8": "tensorwise"}, "^float8: float8 of experts is not modelled; leave it out$"),
        ({"tensor_parallel": 2}, "tensor_parallel: is modelled for llama, mistral, qwen2, qwen3, not for gpt_oss"),
    ],
)
def test_options_that_are_not_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        eager(SMALL, **options) if "attention" not in options else built(SMALL, LENGTH, **options)


def test_jobs_of_megatron_refuse_the_family_not_its_attention() -> None:
    model, sizes = decoder_of(SMALL), SampleSizes(length=LENGTH)
    with pytest.raises(InputError, match=r"^megatron: gpt_oss of the family gpt_oss as Megatron-LM's GPT"):
        megatron_of(model, sizes, "dp8", None, batch=1, node=load_node("h100-x8"), options=options_of(model, {}))
