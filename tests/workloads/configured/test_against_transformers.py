"""Decoders compared with transformers' own modules on fake tensors: parameters, saved tensors, kernels, peaks.

The oracle is PyTorch: its dispatcher, its autograd and its saved-tensor hooks. It shares no code with the decoders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import decoder_of
from tests.sets import slow_except
from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built
from tests.workloads.configured.published import PUBLISHED
from tests.workloads.configured.transformers_models import expected, recorded

_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "pad_token_id": 0,
}
_DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    **_SIZES,
    "num_key_value_heads": 8,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "moe_intermediate_size": 128,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
_LLAMA4: dict[str, Any] = {
    "model_type": "llama4_text",
    **_SIZES,
    "intermediate_size": 128,
    "intermediate_size_mlp": 512,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 256,
}
#: Small decoders of every family, with every option that changes kernels.
SMALL: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES},
    "llama-biased": {
        "model_type": "llama",
        **_SIZES,
        "num_key_value_heads": 8,
        "attention_bias": True,
        "mlp_bias": True,
        "attention_dropout": 0.1,
        "tie_word_embeddings": True,
    },
    "mistral": {"model_type": "mistral", **_SIZES},
    "mistral-window": {"model_type": "mistral", **_SIZES, "sliding_window": 100},
    "qwen2": {"model_type": "qwen2", **_SIZES},
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 64},
    "gemma": {"model_type": "gemma", **_SIZES, "num_key_value_heads": 1, "head_dim": 64},
    "gemma2": {"model_type": "gemma2", **_SIZES, "head_dim": 64, "sliding_window": 100},
    "gemma3": {
        "model_type": "gemma3_text",
        **_SIZES,
        "head_dim": 64,
        "sliding_window": 100,
        "sliding_window_pattern": 2,
    },
    "gemma3-text-part": {
        "model_type": "gemma3",
        "text_config": {
            **_SIZES,
            "num_key_value_heads": 8,
            "sliding_window": 200,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "attention_dropout": 0.1,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    },
    "olmo2": {"model_type": "olmo2", **_SIZES},
    "olmo2-biased": {
        "model_type": "olmo2",
        **_SIZES,
        "num_key_value_heads": 8,
        "attention_bias": True,
        "attention_dropout": 0.1,
        "tie_word_embeddings": True,
    },
    "granite": {"model_type": "granite", **_SIZES, "residual_multiplier": 0.22, "tie_word_embeddings": True},
    "granite-biased": {"model_type": "granite", **_SIZES, "attention_bias": True, "mlp_bias": True},
    "starcoder2": {"model_type": "starcoder2", **_SIZES, "residual_dropout": 0.1, "embedding_dropout": 0.1},
    "starcoder2-window": {"model_type": "starcoder2", **_SIZES, "use_bias": False, "sliding_window": 100},
    "stablelm": {"model_type": "stablelm", **_SIZES, "hidden_dropout": 0.1},
    "stablelm-parallel": {
        "model_type": "stablelm",
        **_SIZES,
        "use_parallel_residual": True,
        "qk_layernorm": True,
        "use_qkv_bias": True,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "partial_rotary_factor": 1.0,
    },
    "cohere": {"model_type": "cohere", **_SIZES},
    "cohere-normalized": {
        "model_type": "cohere",
        **_SIZES,
        "use_qk_norm": True,
        "attention_bias": True,
        "attention_dropout": 0.1,
        "tie_word_embeddings": False,
    },
    "glm": {"model_type": "glm", **_SIZES, "head_dim": 32, "partial_rotary_factor": 1.0, "attention_bias": False},
    "glm4": {"model_type": "glm4", **_SIZES, "head_dim": 32},
    "phi3": {"model_type": "phi3", **_SIZES, "resid_pdrop": 0.1},
    "phi3-partly-rotated": {"model_type": "phi3", **_SIZES, "partial_rotary_factor": 0.5},
    "phi3-longrope": {
        "model_type": "phi3",
        **_SIZES,
        "original_max_position_embeddings": 100,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
    },
    "phi": {"model_type": "phi", **_SIZES, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "phi-gelu-fast": {"model_type": "phi", **_SIZES, "hidden_act": "gelu_fast"},
    "gpt_neox": {"model_type": "gpt_neox", **_SIZES, "hidden_dropout": 0.1},
    "gpt_neox-sequential": {"model_type": "gpt_neox", **_SIZES, "use_parallel_residual": False, "rotary_pct": 1.0},
    "mixtral": {"model_type": "mixtral", **_SIZES, "num_local_experts": 3},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **_SIZES,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 192,
    },
    "qwen2_moe-window": {
        "model_type": "qwen2_moe",
        **_SIZES,
        "num_experts": 4,
        "decoder_sparse_step": 2,
        "norm_topk_prob": True,
        "qkv_bias": False,
        "use_sliding_window": True,
        "sliding_window": 200,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_SIZES,
        "num_experts": 9,
        "moe_intermediate_size": 128,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
        "head_dim": 64,
    },
    "olmoe": {"model_type": "olmoe", **_SIZES, "num_experts": 3, "num_experts_per_tok": 2, "attention_bias": True},
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v3-not-normalized": {
        **_DEEPSEEK,
        "rope_interleave": False,
        "norm_topk_prob": False,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 2,
        "attention_bias": True,
        "attention_dropout": 0.1,
        "v_head_dim": 48,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64},
    },
    "llama4": _LLAMA4,
    "llama4-plain": {
        **_LLAMA4,
        "num_key_value_heads": 8,
        "use_qk_norm": False,
        "attn_temperature_tuning": 0,
        "num_experts_per_tok": 2,
        "attention_dropout": 0.1,
        "moe_layers": [0, 3],
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 8, "vocab_size": 1000},
}
_WINDOWED = ("mistral-window", "gemma2", "gemma3", "gemma3-text-part", "starcoder2-window")
_STABLELM = ("stablelm", "stablelm-parallel")
CASES = [
    (name, dtype, attention)
    for name in SMALL
    for dtype, attention in (("bfloat16", "sdpa"), ("bfloat16", "eager"), ("bfloat16", "flash_attention_2"))
] + [("llama", "float32", "sdpa"), ("qwen3", "float32", "sdpa"), ("gemma3", "float32", "sdpa")]
CASES += [("gpt2", "float32", "sdpa")]
#: These run in every test run; the others take a minute together.
QUICK = {
    ("llama", "bfloat16", "sdpa"),
    ("gpt2", "float32", "sdpa"),
    ("qwen2_moe", "bfloat16", "sdpa"),
}


@pytest.mark.parametrize(
    ("name", "dtype", "attention"),
    [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES],
)
def test_kernels_and_peaks_equal_those_of_pytorch(name: str, dtype: str, attention: str) -> None:
    """Every kernel in order, with the bytes it reads and writes and its modelled duration.

    The number by which Gemma scales its embedding is on the host, and counts as device memory on fake tensors.
    PyTorch's copy of the package's kernels has no window, so that their times differ.
    """
    mine = built(SMALL[name], dtype=dtype, attention=attention).trace
    theirs = recorded(SMALL[name], BATCH, LENGTH, dtype, attention)
    if attention == "flash_attention_2" and name in _WINDOWED:
        mine, theirs = (_without_time_of_attention(trace) for trace in (mine, theirs))
    assert_equal(mine, theirs)


def _without_time_of_attention(trace: Trace) -> Trace:
    kernels = (replace(kernel, duration_ns=1) if "attention" in kernel.op else kernel for kernel in trace.kernels)
    return replace(trace, kernels=tuple(kernels))


def test_a_loop_that_holds_the_output_needs_the_logits_more() -> None:
    values = {**SMALL["llama"], "vocab_size": 8000}  # so that the peak is at the loss
    held, theirs = built(values, hold_output=True).trace, recorded(values, BATCH, LENGTH, hold_output=True)
    assert_equal(held, theirs)
    assert held.info.output == theirs.info.output
    peaks = [trace_stats(trace).peak_recorded for trace in (held, built(values).trace)]
    assert peaks[0] and peaks[1] and peaks[0].bytes - peaks[1].bytes == 2 * BATCH * LENGTH * values["vocab_size"]


@pytest.mark.parametrize("name", slow_except(("llama", "gemma", "gemma3", "deepseek_v3", *_STABLELM), "llama"))
def test_saved_tensors_are_saved_and_freed_where_pytorch_does(name: str) -> None:
    assert_saved_alike(built(SMALL[name]).trace, recorded(SMALL[name], BATCH, LENGTH))


def layer_of(path: str) -> str:
    """The decoder layer of a module; the module itself for those outside the layers."""
    parts = path.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return path if number is None else ".".join(parts[: number + 1])


def by_layer(saved: list[tuple[str, int]]) -> dict[str, list[int]]:
    """Bytes of the saved tensors of each layer, sorted; what the whole model saves, such as the loss, under ''."""
    result: dict[str, list[int]] = {}
    for path, size in saved:
        result.setdefault(layer_of("" if path == "loss" else path), []).append(size)
    return {layer: sorted(sizes) for layer, sizes in result.items()}


def compare(values: dict[str, Any], length: int = LENGTH) -> None:
    mine, theirs = built(values, length), expected(values, BATCH, length)
    assert mine.parameters == theirs.parameters
    assert by_layer([(each.layer, each.block.bytes) for each in mine.saved]) == by_layer(theirs.saved)
    assert mine.saved_bytes == sum(size for _, size in theirs.saved)


@pytest.mark.parametrize(
    "name", ["openai-community/gpt2", "meta-llama/Llama-3.1-8B", "google/gemma-2b", "mistralai/Mixtral-8x7B-v0.1"]
)
def test_saved_tensors_of_two_layers_of_published_configurations_equal_those_of_autograd(name: str) -> None:
    layers = "n_layer" if PUBLISHED[name].values["model_type"] == "gpt2" else "num_hidden_layers"
    compare({**PUBLISHED[name].values, layers: 2})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (values, _) in PUBLISHED.items() if not decoder_of(values).is_later])
def test_parameters_and_saved_tensors_of_published_configurations_equal_those_of_autograd(name: str) -> None:
    """All layers, each saved tensor of each layer; of DeepSeek-V3 three layers without and two with 256 experts."""
    values = PUBLISHED[name].values
    compare({**values, "num_hidden_layers": 5} if values["model_type"] == "deepseek_v3" else values, 1024)
