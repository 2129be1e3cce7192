"""U-Nets whose attention is not fused, compared with diffusers' ``AttnProcessor`` on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("diffusers", reason="diffusers, whose module is compared, is not installed")

from diffusers.models.attention_processor import AttnProcessor

from tests.workloads.configured.diffusers_models import compare, recorded
from tests.workloads.configured.test_unet import SMALL, SMALL_XL, built
from tests.workloads.configured.transformers_models import adapted, autocasting

#: Importing diffusers' models alone takes seconds.
pytestmark = pytest.mark.slow
_LORA = {"lora": 4, "lora_targets": ("to_q", "to_v", "to_out.0")}
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "half": (SMALL, "bfloat16", {}),
    "of-sdxl-in-single-precision": (SMALL_XL, "float32", {}),
    "heads-of-one": ({**SMALL, "attention_head_dim": [1, 2], "sample_size": 11}, "float16", {}),
    "products-in-float32": ({**SMALL, "upcast_attention": True}, "bfloat16", {}),
    "autocast": (SMALL, "float32", {"autocast": "bfloat16"}),
    "products-in-float32-under-autocast": ({**SMALL, "upcast_attention": True}, "float32", {"autocast": "bfloat16"}),
    "lora": (SMALL_XL, "bfloat16", _LORA),
    "lora-under-autocast": ({**SMALL, "upcast_attention": True}, "float32", {**_LORA, "autocast": "float16"}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_saved_tensors_and_peaks_equal_those_of_pytorch(case: str) -> None:
    values, dtype, options = CASES[case]

    def changed(model: Any) -> Any:
        model.set_attn_processor(AttnProcessor())
        if "lora" in options:
            model = adapted(options["lora"], options["lora_targets"])(model)
        return autocasting(options["autocast"])(model) if "autocast" in options else model

    mine = built(values, batch=2, dtype=dtype, attention="eager", **options).trace
    compare(mine, recorded(values, 2, dtype, inputs=options.get("autocast"), changed=changed))
