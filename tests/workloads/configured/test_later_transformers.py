"""Decoders that transformers 4.51 does not have, compared with the modules of 4.55 on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built
from tests.workloads.configured.published import PUBLISHED
from tests.workloads.configured.test_deepseek import SMALL as DEEPSEEK

from tests.workloads.configured.fake_models import adapted, autocasting, recorded, transformers  # isort: skip  # needs PyTorch
from tests.workloads.configured.four_bit_modules import in_four_bits  # isort: skip
from tests.workloads.configured.loss_modules import with_loss  # isort: skip

if not transformers.__version__.startswith("4.55."):
    pytest.skip(
        f"transformers {transformers.__version__} is installed, and the modules of 4.55 are compared",
        allow_module_level=True,
    )

_SMOLLM3 = {
    "model_type": "smollm3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "no_rope_layer_interval": 2,
}
_GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
}
SMALL: dict[str, dict[str, Any]] = {
    "deepseek_v3-plain-queries": {**DEEPSEEK, "q_lora_rank": None, "pad_token_id": 0},
    "smollm3": _SMOLLM3,
    "smollm3-biased": {
        **_SMOLLM3,
        "num_key_value_heads": 8,
        "no_rope_layers": [0, 1],
        "attention_bias": True,
        "mlp_bias": True,
        "attention_dropout": 0.1,
        "tie_word_embeddings": False,
    },
    "gpt_oss": _GPT_OSS,
    "gpt_oss-uneven": {
        **_GPT_OSS,
        "num_hidden_layers": 3,
        "num_key_value_heads": 8,
        "num_local_experts": 6,
        "num_experts_per_tok": 4,
        "attention_bias": False,
        "attention_dropout": 0.1,
        "tie_word_embeddings": True,
    },
}
_ATTENTION = [(name, "sdpa") for name in SMALL if not name.startswith("gpt_oss")] + [(name, "eager") for name in SMALL]


@pytest.mark.parametrize(("name", "attention"), _ATTENTION)
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": "float32", "autocast": "bfloat16"}])
def test_kernels_saved_tensors_and_peaks_equal_those_of_pytorch(
    name: str, options: dict[str, Any], attention: str
) -> None:
    mine = built(SMALL[name], attention=attention, **options).trace
    changed = {} if "autocast" not in options else {"changed": autocasting(options["autocast"])}
    theirs = recorded(SMALL[name], BATCH, LENGTH, options["dtype"], attention, padding=True, **changed)
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)


def test_adapters_of_micro_batches_run_and_save_what_pytorch_does() -> None:
    targets, values = ("q_proj", "v_proj", "down_proj"), SMALL["smollm3"]
    mine = built(values, lora=8, lora_targets=targets, micro_batches=2).trace
    theirs = recorded(values, BATCH, LENGTH, changed=adapted(8, targets), padding=True, micro_batches=2)
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)


@pytest.mark.parametrize("form", [None, "nf4"])
def test_adapters_next_to_experts_run_and_save_what_pytorch_does(form: str | None) -> None:
    """Experts' weights are no linear layers: neither adapted nor stored in four bits."""
    targets, values = ("q_proj", "k_proj", "v_proj", "o_proj"), SMALL["gpt_oss"]
    options: dict[str, Any] = {"lora": 8, "lora_targets": ("all-linear",), "attention": "eager", "four_bit": form}
    mine = built(values, **options, micro_batches=2).trace
    changed = adapted(8, targets) if form is None else in_four_bits(8, targets, nested=False)
    theirs = recorded(values, BATCH, LENGTH, attention="eager", changed=changed, padding=True, micro_batches=2)
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)


def test_the_fused_loss_of_gpt_oss_runs_and_saves_what_pytorch_does() -> None:
    mine = built(SMALL["gpt_oss"], loss="fused", attention="eager").trace
    theirs = recorded(SMALL["gpt_oss"], BATCH, LENGTH, attention="eager", changed=with_loss("fused"), padding=True)
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)


@pytest.mark.slow
def test_two_layers_of_gpt_oss_in_full_width_equal_those_of_pytorch() -> None:
    values = {**PUBLISHED["openai/gpt-oss-20b"].values, "num_hidden_layers": 2}
    del values["layer_types"], values["quantization_config"]
    mine = built(values, 1024, attention="eager").trace
    theirs = recorded(values, BATCH, 1024, attention="eager", padding=True)
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)
