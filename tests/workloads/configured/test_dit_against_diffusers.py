"""DiT compared with diffusers' own module on fake tensors: parameters, saved tensors, kernels, peaks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.configured.diffusers_models import compare, recorded
from tests.workloads.configured.test_dit import PUBLISHED, SMALL, built

#: Importing diffusers' model alone takes seconds.
pytestmark = pytest.mark.slow
BATCH = 2
#: Small models with every option that changes kernels.
CASES: dict[str, dict[str, Any]] = {
    "with-variances": SMALL,
    "without-variances": {**SMALL, "out_channels": 4},
    "dropout": {**SMALL, "dropout": 0.1, "attention_bias": False, "activation_fn": "gelu"},
    "large-patches": {**SMALL, "patch_size": 4, "in_channels": 8, "out_channels": None, "attention_head_dim": 24},
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_saved_tensors_and_peaks_equal_those_of_pytorch(name: str, dtype: str) -> None:
    """Every kernel in order, with the bytes it reads and writes and its modelled duration; the peak in bytes."""
    compare(built(CASES[name], batch=BATCH, dtype=dtype).trace, recorded(CASES[name], BATCH, dtype))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_equal_those_of_pytorch(name: str) -> None:
    compare(built(PUBLISHED[name][0], batch=BATCH).trace, recorded(PUBLISHED[name][0], BATCH, "bfloat16"))
