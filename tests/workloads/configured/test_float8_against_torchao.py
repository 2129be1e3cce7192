"""Decoders in float8 compared with torchao's own layers on fake tensors: kernels, durations, peaks, saved tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built
from tests.workloads.configured.test_against_transformers import SMALL
from tests.workloads.configured.transformers_models import autocasting, recorded

torchao = pytest.importorskip("torchao", reason="torchao, whose layers are compared, is not installed")
float8 = pytest.importorskip("torchao.float8")
if not torchao.__version__.startswith("0.14."):
    pytest.skip(
        f"torchao {torchao.__version__} is installed, and the layers of 0.14 are compared", allow_module_level=True
    )


def _in_float8(layer: Any, path: str) -> bool:
    """torchtitan's filter with the name of the output layer."""
    return path not in ("lm_head", "embed_out") and layer.in_features % 16 == layer.out_features % 16 == 0


def converted(autocast: str | None) -> Callable[[Any], Any]:
    """Returns a function that converts a model's linear layers, and runs it under autocast if that is chosen."""

    def changed(module: Any) -> Any:
        float8.convert_to_float8_training(module, module_filter_fn=_in_float8)
        return autocasting(autocast)(module) if autocast else module

    return changed


#: With a small vocabulary, the conversions of backward set the peak.
ONE_LAYER = {"num_hidden_layers": 1, "vocab_size": 64}


@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("llama", "bfloat16", {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama-biased", "float32", {"autocast": "bfloat16", "micro_batches": 2}),
                ("phi", "bfloat16", {}),
                ("gpt_neox", "float32", {}),
                ("phi3", "bfloat16", {"attention": "eager"}),
                ("gemma2", "bfloat16", {}),
                ("gemma3", "bfloat16", {}),
                ("qwen3", "float32", {"autocast": "float16"}),
            )
        ),
    ],
)
def test_float8_layers_run_and_save_what_torchao_does(name: str, dtype: str, options: dict[str, Any]) -> None:
    values = {**SMALL[name], **ONE_LAYER}
    mine = built(values, dtype=dtype, float8="tensorwise", **options).trace
    shared = {key: value for key, value in options.items() if key != "autocast"}
    theirs = recorded(values, BATCH, LENGTH, dtype, changed=converted(options.get("autocast")), **shared)
    assert_equal(mine, theirs)
    if name.startswith("llama"):
        assert_saved_alike(mine, theirs)
