"""The modules of transformers 4.51 on fake tensors; tests that import this are skipped with another version."""

from __future__ import annotations

import pytest

from tests.workloads.configured.fake_models import (
    Adapted,
    Expected,
    InBackward,
    adapted,
    autocasting,
    expected,
    model,
    recorded,
    transformers,
)

__all__ = ["Adapted", "Expected", "InBackward", "adapted", "autocasting", "expected", "model", "recorded"]

if not transformers.__version__.startswith("4.51."):
    pytest.skip(
        f"transformers {transformers.__version__} is installed, and the modules of 4.51 are compared",
        allow_module_level=True,
    )
