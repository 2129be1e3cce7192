"""Decoders that transformers 4.51 does not have, compared with the modules of 4.55 on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built
from tests.workloads.configured.test_deepseek import SMALL as DEEPSEEK

from tests.workloads.configured.fake_models import autocasting, recorded, transformers  # isort: skip  # needs PyTorch

if not transformers.__version__.startswith("4.55."):
    pytest.skip(
        f"transformers {transformers.__version__} is installed, and the modules of 4.55 are compared",
        allow_module_level=True,
    )

SMALL: dict[str, dict[str, Any]] = {
    "deepseek_v3-plain-queries": {**DEEPSEEK, "q_lora_rank": None, "pad_token_id": 0},
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
