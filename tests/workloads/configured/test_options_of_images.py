"""Training options of DiT and U-Nets compared with PyTorch's own on fake tensors: autocast, micro-batches, LoRA."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("diffusers", reason="diffusers, whose module is compared, is not installed")

from tests.workloads.configured import test_dit, test_unet
from tests.workloads.configured.diffusers_models import compare, recorded
from tests.workloads.configured.transformers_models import adapted, autocasting

#: Importing diffusers' models alone takes seconds.
pytestmark = pytest.mark.slow
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dit": (test_dit, {**test_dit.SMALL, "dropout": 0.1}),
    "unet": (test_unet, test_unet.SMALL),
    "unet-of-sdxl": (test_unet, test_unet.SMALL_XL),
}
_LORA = {"lora": 4, "lora_targets": ("to_q", "to_v", "to_out.0")}
OPTIONS: dict[str, dict[str, Any]] = {
    "autocast": {"autocast": "bfloat16"},
    "autocast-to-float16-in-micro-batches": {"autocast": "float16", "micro_batches": 2},
    "micro-batches": {"micro_batches": 2},
    "lora": _LORA,
    "lora-under-autocast": {**_LORA, "autocast": "bfloat16", "micro_batches": 2},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_saved_tensors_and_peaks_equal_those_of_pytorch(name: str, options: str) -> None:
    (module, values), given = MODELS[name], OPTIONS[options]
    autocast, dtype = given.get("autocast"), "float32" if "autocast" in given else "bfloat16"

    def changed(model: Any) -> Any:
        if "lora" in given:
            model = adapted(given["lora"], given["lora_targets"])(model)
        return model if autocast is None else autocasting(autocast)(model)

    mine = module.built(values, batch=2, dtype=dtype, **given).trace
    steps = {"micro_batches": given["micro_batches"]} if "micro_batches" in given else {}
    compare(mine, recorded(values, 2, dtype, inputs=autocast, changed=changed, **steps))
