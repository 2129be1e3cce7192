"""Decoders that transformers 4.51 does not have, compared with the modules of 4.55 on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built
from tests.workloads.configured.test_deepseek import SMALL as DEEPSEEK

from tests.workloads.configured.fake_models import adapted, autocasting, recorded, transformers  # isort: skip  # needs PyTorch

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
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": "float32", "autocast": "bfloat16"}])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
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
