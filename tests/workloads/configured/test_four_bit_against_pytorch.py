"""Frozen layers of four bits, compared with PyTorch's operators for them on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built
from tests.workloads.configured.test_against_transformers import SMALL
from tests.workloads.configured.transformers_models import autocasting, recorded

from tests.workloads.configured.four_bit_modules import in_four_bits  # isort: skip  # needs PyTorch


@pytest.mark.parametrize(
    ("name", "form", "dtype", "autocast", "rate"),
    [
        ("llama", "nf4-double", "bfloat16", None, 0.1),
        *(
            pytest.param(*case, 0.0, marks=pytest.mark.slow)
            for case in (
                ("llama", "nf4-double", "float32", "bfloat16"),
                ("llama", "nf4", "bfloat16", None),
                ("qwen2", "nf4", "bfloat16", None),
                ("gemma3", "nf4", "bfloat16", None),
                ("deepseek_v3", "nf4", "bfloat16", None),
                ("llama", "nf4-double", "bfloat16", "bfloat16"),
                ("qwen2", "nf4", "float32", "bfloat16"),
            )
        ),
        pytest.param("llama", "nf4", "float32", "bfloat16", 0.1, marks=pytest.mark.slow),
    ],
)
def test_layers_of_four_bits_run_and_save_what_pytorch_does(
    name: str, form: str, dtype: str, autocast: str | None, rate: float
) -> None:
    """float32 weights next to them are what peft's ``prepare_model_for_kbit_training`` leaves."""
    targets = ("q_proj", "v_proj", "down_proj") if name != "deepseek_v3" else ("q_b_proj", "o_proj", "down_proj")
    options: dict[str, Any] = {"lora": 8, "lora_targets": targets, "four_bit": form, "dtype": dtype}
    options["lora_dropout"] = rate
    mine = built(SMALL[name], autocast=autocast, **options).trace
    packed = in_four_bits(8, targets, nested=form == "nf4-double", rate=rate)

    def changed(module: Any) -> Any:
        return packed(module) if autocast is None else autocasting(autocast)(packed(module))

    theirs = recorded(SMALL[name], BATCH, LENGTH, dtype, changed=changed)
    assert_equal(mine, theirs)
    if name == "llama":
        assert_saved_alike(mine, theirs)
