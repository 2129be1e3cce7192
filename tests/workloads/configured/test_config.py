"""Reading a decoder from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.workloads.configured.config import FAMILIES, decoder_of, model_of, read_decoder
from simgpu.workloads.configured.modelled import decoder_iteration

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_file_and_its_folder_give_the_same_decoder_named_after_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    decoder = read_decoder(folder)
    assert decoder == read_decoder(folder / "config.json")
    assert decoder.name == "Llama-small"


def test_name_in_the_configuration_is_preferred() -> None:
    assert decoder_of({**SMALL, "_name_or_path": "org/Other-7B"}, name="folder").name == "Other-7B"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_defaults_of_its_class(family: str) -> None:
    decoder = decoder_of({"model_type": family})
    assert decoder.family == family
    assert decoder.layers > 10 and decoder.width % decoder.value_width == 0


def test_keys_of_text_generation_are_ignored() -> None:
    assert decoder_of({**SMALL, "bos_token_id": 1, "architectures": ["X"], "temperature": 1.0}) == decoder_of(SMALL)


@pytest.mark.parametrize(("family", "key"), [("phi", "partial_rotary_factor"), ("gpt_neox", "rotary_pct")])
def test_the_rotated_part_of_a_head_is_read_where_transformers_5_writes_it(family: str, key: str) -> None:
    earlier = decoder_of({"model_type": family, key: 0.75})
    inside = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    assert decoder_of({"model_type": family, "rope_parameters": inside}) == earlier
    assert earlier.rotary_width == earlier.head_width * 3 // 4


TEXT = {key: value for key, value in SMALL.items() if key != "model_type"}


def test_gemma_3_with_images_is_its_text_part() -> None:
    classes = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"hidden_size": 32}}
    whole = decoder_of({"model_type": "gemma3", "text_config": TEXT, **classes}, name="gemma-3")
    text = decoder_of({"model_type": "gemma3_text", **TEXT}, name="gemma-3")
    assert replace(whole, without="") == text
    notes = decoder_iteration(whole, batch=1, length=8, gpu=load_node("h100").gpu).trace.info.notes
    assert notes.endswith("Not modelled: the vision tower and its projector.")


def test_windows_of_gemma_3_are_read_as_later_versions_write_them() -> None:
    types = ["sliding_attention", "full_attention"]
    own, later = (
        decoder_of({**SMALL, "model_type": "gemma3_text", **names})
        for names in ({"sliding_window_pattern": 2}, {"_sliding_window_pattern": 2, "layer_types": types})
    )
    assert own == later and [own.window_of(layer) for layer in range(2)] == [4096, None]


def test_longrope_has_earlier_names_in_phi_3_alone() -> None:
    kinds = {
        (family, kind): decoder_of({**SMALL, "model_type": family, "rope_scaling": {"type": kind}}).longrope
        for family, kind in (("phi3", "longrope"), ("phi3", "su"), ("phi3", "yarn"), ("llama", "yarn"))
    }
    assert [name for name, is_longrope in kinds.items() if not is_longrope] == [("llama", "yarn")]


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "gpt2", "n_inner": None},
        {"model_type": "llama", "num_key_value_heads": None, "head_dim": None},
        {"model_type": "qwen3", "max_window_layers": None},
        {"model_type": "t5", "num_decoder_layers": None},
        {"_class_name": "DiTTransformer2DModel", "out_channels": None},
        {"_class_name": "UNet2DConditionModel", "sample_size": None, "time_embedding_dim": None},
    ],
)
def test_null_is_the_default_where_the_models_class_takes_it_so(keys: dict[str, Any]) -> None:
    assert model_of(keys) == model_of({key: value for key, value in keys.items() if value is not None})


def test_misspelt_keys_are_refused_together() -> None:
    """Their values would not count: the sizes would be the defaults of the family."""
    given = {**SMALL, "hiden_size": SMALL["hidden_size"], "num_hidden_layer": 2, "use_cache": True}
    del given["hidden_size"], given["num_hidden_layers"]
    with pytest.raises(InputError) as caught:
        decoder_of(given)
    assert [problem.remedy for problem in caught.value.problems] == [
        "did you mean 'hidden_size'?",
        "did you mean 'num_hidden_layers'?",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type: 'mamba' is not supported"),
        ({"model_type": None}, "model_type: is missing; give one of llama"),
        ({"model_type": ["llama"]}, "model_type: .* is not supported"),
        ({"hidden_size": -1}, "hidden_size: -1 is not a whole number from 1 to 1048576"),
        ({"hidden_size": 10**30}, "hidden_size: 10* is not a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers: True is not a whole number"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers: 2.0 is not a whole number"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: 1000000 is not a whole number from 1 to 1000"),
        ({"vocab_size": None}, "vocab_size: is null; give a number, or remove the key for the default, 32000"),
        ({"hidden_act": None}, "hidden_act: None is not a supported activation"),
        ({"model_type": "stablelm", "num_key_value_heads": None}, "num_key_value_heads: is null"),
        ({"num_key_value_heads": 3}, "4 query heads are no multiple of 3 key heads"),
        ({"num_attention_heads": 64}, "1 of 1 values of a head cannot be rotated in pairs"),
        ({"hidden_act": "swiglu"}, "hidden_act: 'swiglu' is not a supported activation"),
        ({"attention_dropout": 2}, "attention_dropout: 2 is not a number from 0 to 1"),
        ({"attention_bias": "yes"}, "attention_bias: 'yes' is not true or false"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: 'dynamic' is not a supported type"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters: 'dynamic' is not a supported type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification is no language model"),
        (
            {"architectures": ["LlamaModel"]},
            "LlamaModel is no language model; remove the key to model a language model",
        ),
        ({"model_type": "gemma3"}, "text_config: is missing; give the keys of the decoder, or model_type gemma3_text"),
        ({"model_type": "gemma3", "text_config": 4}, "text_config: 4 is not a JSON object"),
        ({"model_type": "gemma3", "text_confg": TEXT}, "text_confg: is not read; did you mean 'text_config'"),
        (
            {"model_type": "gemma3", "text_config": {**TEXT, "hidden_size": -1}},
            "text_config.hidden_size: -1 is not a whole number",
        ),
        (
            {"model_type": "gemma3", "text_config": {"hiden_size": 64}},
            "text_config.hiden_size: is not read; did you mean 'hidden_size'",
        ),
        ({"model_type": "gemma3_text", "sliding_window_patern": 2}, "did you mean 'sliding_window_pattern'"),
        (
            {"model_type": "gemma3_text", "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types: is not full_attention in every 6th layer and sliding_attention in all others; give",
        ),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            "rope_parameters.full_attention: 'dynamic' is not a supported type",
        ),
        (
            {"model_type": "gemma3_text", "use_bidirectional_attention": True},
            "attention to later tokens is not modelled",
        ),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling: 'su' is not a supported type"),
        ({"rope_scaling": 4}, "rope_scaling: 4 is not a supported type"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not modelled"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm: normalized queries and keys are not modelled"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "9 experts for each token, but only 8 exist"),
        ({"model_type": "mixtral", "router_jitter_noise": 0.1}, "noise before the router is not modelled"),
        ({"model_type": "olmoe", "output_router_logits": True}, "the loss that balances the experts is not modelled"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv: limited queries"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [2]}, "is not a list of numbers of layers from 0 to 1"),
        ({"model_type": "qwen2_moe", "num_hidden_layers": 999}, "60 experts in each of 999 layers are more than"),
        ({"model_type": "gpt2", "n_head": 7}, "768 values do not divide into 7 heads"),
    ],
)
def test_unsupported_values_name_their_key_and_a_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder_of({**SMALL, **change})


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InputError) as raised:
        decoder_of({**SMALL, "hidden_size": 0, "vocab_size": "many", "hidden_act": "x"})
    assert {problem.place for problem in raised.value.problems} == {"hidden_size", "vocab_size", "hidden_act"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is not a JSON object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "too many digits"),
        (" " * (2**20 + 1), "the limit for a configuration"),
    ],
)
def test_damaged_and_hostile_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_decoder(tmp_path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_decoder(tmp_path)
