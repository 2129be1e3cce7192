"""What compiled graphs save, next to PyTorch's own partitioner on the modules of transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("transformers", reason="transformers, whose modules are compared, is not installed")

from simgpu.hardware.nodes import load_node
from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.workloads.compiled.partitioned import VOCABULARY, partitioned
from tests.workloads.configured.four_bit_modules import in_four_bits
from tests.workloads.configured.transformers_models import adapted

_BATCH, _LENGTH = 2, 32
_GATED = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}
_PLAIN = {**_GATED, "intermediate_size": 256, "num_key_value_heads": 4}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 256, "attn_pdrop": 0.0}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": _GATED,
    "mistral": {**_GATED, "sliding_window": None},
    "qwen2": _GATED,
    "qwen3": {**_GATED, "head_dim": 16},
    "phi3": {**_GATED, "pad_token_id": 0},
    "gemma": {**_GATED, "head_dim": 16},
    "gemma2": {**_GATED, "head_dim": 16},
    "gpt2": _GPT2,
    "gpt_neox": _PLAIN,
    "phi": _PLAIN,
    "gemma3_text": {**_GATED, "head_dim": 16, "sliding_window": 16, "sliding_window_pattern": 2},
    "olmo2": _GATED,
    "granite": _GATED,
    "starcoder2": {**_GATED, "residual_dropout": 0.0, "embedding_dropout": 0.0},
    "stablelm": _GATED,
}
#: GPT-2's own class adds a mask where it is compiled as a whole, which takes another kernel for attention.
WHOLE = ("llama", "qwen3", "phi3", "gpt_neox", "phi", "olmo2", "granite", "starcoder2", "stablelm")


def modelled(values: dict[str, Any], *, whole: bool, autocast: bool, **chosen: Any) -> list[int]:
    """The bytes of each tensor that the first layer, or the whole model, saves, weights and random states aside."""
    form = "model" if whole else "layers"
    given = {**chosen, "compile": form, "autocast": "bfloat16" if autocast else None}
    options = TrainingOptions.of(given)
    gpu = load_node("h100").gpu
    trace = decoder_iteration(decoder_of(values), batch=_BATCH, length=_LENGTH, gpu=gpu, options=options).trace
    blocks = trace.block_by_id
    ends = {row.packed_after for row in trace.saved if "layers.0." in f"{row.layer}." or ".h.0." in f"{row.layer}."}
    rows = [row for row in trace.saved if whole or row.packed_after in ends]
    kept = [row for row in rows if blocks[row.block].kind is not BlockKind.WEIGHT and "inv_freq" not in row.block]
    return sorted(row.bytes for row in kept if not ("attention#" in row.block and row.dtype in ("int64", "uint64")))


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_compiled_layer_saves_what_the_partitioner_saves(family: str, autocast: bool) -> None:
    values = {"model_type": family, **CONFIGURATIONS[family]}
    expected = partitioned(values, _BATCH, _LENGTH, whole=False, autocast=autocast)
    assert modelled(values, whole=False, autocast=autocast) == expected


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("family", WHOLE)
def test_compiled_model_saves_what_the_partitioner_saves(family: str, autocast: bool) -> None:
    values = {"model_type": family, **CONFIGURATIONS[family]}
    expected = partitioned(values, _BATCH, _LENGTH, whole=True, autocast=autocast)
    assert modelled(values, whole=True, autocast=autocast) == expected


_TARGETS = ("q_proj", "v_proj", "down_proj")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "whole", "autocast", "form", "rate"),
    [
        ("llama", False, False, None, 0.1),
        ("llama", True, True, None, 0.1),
        ("llama", False, False, "nf4-double", 0.0),
        ("llama", True, False, "nf4-double", 0.1),
        ("llama", False, True, "nf4", 0.0),
        ("llama", True, True, "nf4-double", 0.0),
        ("qwen2", False, False, "nf4", 0.1),
    ],
)
def test_compiled_adapters_save_what_the_partitioner_saves(
    family: str, whole: bool, autocast: bool, form: str | None, rate: float
) -> None:
    """Of four bits, also the matrices in half precision, which forward and backward share in a graph."""
    values = {"model_type": family, **CONFIGURATIONS[family]}
    packed = None if form is None else in_four_bits(8, _TARGETS, nested=form == "nf4-double", rate=rate)
    changed = packed or adapted(8, _TARGETS, rate=rate)
    expected = partitioned(values, _BATCH, _LENGTH, whole=whole, autocast=autocast, changed=changed)
    options: dict[str, Any] = {"lora": 8, "lora_targets": _TARGETS, "lora_dropout": rate, "four_bit": form}
    assert modelled(values, whole=whole, autocast=autocast, **options) == expected
    if form is not None and not whole:
        assert 2 * values["hidden_size"] * values["intermediate_size"] in expected
