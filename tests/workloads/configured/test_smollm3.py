"""SmolLM3 from configurations, without PyTorch: published size, layers without a rotation, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.workloads.configured.config import decoder_of
from tests.workloads.configured.test_decoder_iteration import SMALL, built

SMOLLM3 = {**SMALL, "model_type": "smollm3", "num_key_value_heads": 2, "no_rope_layer_interval": 2}


@pytest.mark.slow
def test_parameters_of_smollm3_3b_are_those_published() -> None:
    """HuggingFaceTB/SmolLM3-3B: the defaults of its class."""
    assert built({"model_type": "smollm3"}).parameters == 3_075_098_624


def test_layers_without_a_rotation_run_fewer_kernels_and_save_no_angles() -> None:
    """Of each of queries and keys: two products, a sum, a negative and a join in forward. Cosines and sines are those
    of the first layer that rotates."""
    with_one, without = (built({**SMOLLM3, "no_rope_layers": given}) for given in ([1, 0], [0, 0]))
    forward = [
        [kernel for kernel in each.trace.kernels if kernel.phase.value == "forward"] for each in (with_one, without)
    ]
    assert len(forward[0]) - len(forward[1]) == 2 * 5
    assert with_one.saved_bytes - without.saved_bytes == 2 * 32 * 16 * 2
    assert built(SMOLLM3).saved_bytes == with_one.saved_bytes


def test_flash_attention_saves_keys_and_values_of_their_own_heads() -> None:
    """transformers 4.55 gives it fewer heads of keys; of two layers with 2 x 32 tokens, 4 of 4 heads in Llama."""
    llama = built({**SMOLLM3, "model_type": "llama", "tie_word_embeddings": True}).saved_bytes
    assert llama - built({**SMOLLM3, "no_rope_layers": [1, 1]}).saved_bytes == 2 * 2 * 2 * 2 * 32 * 16 * 2


def test_notes_name_the_version_of_transformers() -> None:
    assert "transformers 4.55, given a mask of padding that has none, without" in built(SMOLLM3).trace.info.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "flash_attention_2"}, "attention: the package flash-attn as transformers 4.55 calls it"),
        ({"dtype": "float32"}, "attention: PyTorch has no fused attention of query heads that share keys for float32"),
        ({"compile": "layers"}, "compile: the mask of smollm3 in transformers 4.55, for which a graph ends"),
        ({"gpu": load_node("v100").gpu}, "no fused attention for bfloat16"),
    ],
)
def test_options_that_are_not_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(SMOLLM3, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"no_rope_layers": [1]}, "no_rope_layers: .* is not a list with 0 or 1 for each of 2 layers"),
        ({"no_rope_layers": "all"}, "no_rope_layers: 'all' is not a list with 0 or 1"),
        ({"use_sliding_window": True}, "use_sliding_window: windows of SmolLM3's attention are not modelled"),
    ],
)
def test_unsupported_values_name_their_key_and_a_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder_of({**SMOLLM3, **change})
