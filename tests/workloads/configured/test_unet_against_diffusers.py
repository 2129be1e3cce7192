"""U-Nets compared with diffusers' own module on fake tensors: parameters, saved tensors, kernels, peaks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("diffusers", reason="diffusers, whose module is compared, is not installed")

from simgpu.trace.model import BlockKind
from simgpu.units import ITEMSIZE
from tests.workloads.configured.diffusers_models import compare, recorded
from tests.workloads.configured.test_unet import PUBLISHED, SMALL, SMALL_XL, built

#: Importing diffusers' model alone takes seconds.
pytestmark = pytest.mark.slow
BATCH = 2
#: Small models with every option that changes kernels.
CASES: dict[str, dict[str, Any]] = {
    "convolutions": SMALL,
    "text-and-sizes": SMALL_XL,
    "odd-size": {**SMALL, "sample_size": 11, "dropout": 0.1, "flip_sin_to_cos": False, "attention_head_dim": [1, 2]},
    "linear": {**SMALL, "use_linear_projection": True, "in_channels": 9, "transformer_layers_per_block": 2},
    "one-level": {
        **SMALL,
        "block_out_channels": [32],
        "down_block_types": ["CrossAttnDownBlock2D"],
        "up_block_types": ["UpBlock2D"],
        "layers_per_block": 3,
        "time_embedding_dim": 96,
    },
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_saved_tensors_and_peaks_equal_those_of_pytorch(name: str, dtype: str) -> None:
    """Every kernel in order, with the bytes it reads and writes and its modelled duration; the peak in bytes."""
    compare(built(CASES[name], batch=BATCH, dtype=dtype).trace, recorded(CASES[name], BATCH, dtype))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_equal_those_of_pytorch(name: str) -> None:
    values, parameters = PUBLISHED[name]
    theirs = recorded(values, 1, "bfloat16")
    compare(built(values, batch=1).trace, theirs)
    weights = sum(block.bytes for block in theirs.blocks if block.kind is BlockKind.WEIGHT)
    assert weights == parameters * ITEMSIZE["bfloat16"]
