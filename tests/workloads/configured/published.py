"""Published configurations, from the ``config.json`` of each repository on huggingface.co, and their parameters.

Only the keys that differ from the defaults of transformers' configuration classes, or that decide sizes. The number of
parameters is that of trained weights; a table that embedding and output layer share counts once.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """A configuration and its number of parameters; of Gemma 3 with images, those of the text part."""

    values: dict[str, Any]
    parameters: int


def _sizes(
    kind: str, width: int, inner: int, layers: int, heads: int, vocabulary: int, **others: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        **others,
    }


def _gemma3(width: int, inner: int, layers: int, whole: int, **others: Any) -> Published:
    """Gemma 3 with images. whole: parameters of the whole model; its vision tower (SigLIP, without a head) has
    416,866,032, and the projector a matrix and a norm for its 1,152 values."""
    text = _sizes("gemma3_text", width, inner, layers, others.pop("heads", 8), 262208, sliding_window=1024, **others)
    text["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    return Published({"model_type": "gemma3", "text_config": text}, whole - 416_866_032 - 1152 * (width + 1))


def _llama4(whole: int, **others: Any) -> Published:
    """Llama 4's text part. whole: parameters of the whole model; its vision tower has 850,960,896 with its adapter, and
    the projector a matrix of 4,096 x 5,120."""
    sizes = _sizes("llama4_text", 5120, 8192, 48, 40, 202048, num_key_value_heads=8, rope_scaling=_LLAMA3, **others)
    return Published(sizes, whole - 850_960_896 - 4096 * 5120)


def _gpt_oss(layers: int, experts: int, parameters: int) -> Published:
    """GPT-OSS, whose weights of experts are stored in MXFP4."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    sizes = _sizes("gpt_oss", 2880, 2880, layers, 64, 201088, num_key_value_heads=8, head_dim=64, rope_scaling=yarn)
    sizes["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
    others = {"num_local_experts": experts, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True}
    return Published({**sizes, **others, "quantization_config": {"quant_method": "mxfp4"}}, parameters)


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

#: The factors themselves are not those published: they change no kernel.
_LONG = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}

PUBLISHED = {
    "openai-community/gpt2": Published({"model_type": "gpt2"}, 124_439_808),
    "EleutherAI/pythia-410m": Published(_sizes("gpt_neox", 1024, 4096, 24, 16, 50304), 405_334_016),
    "Qwen/Qwen2.5-0.5B": Published(
        _sizes(
            "qwen2", 896, 4864, 24, 14, 151936, num_key_value_heads=2, tie_word_embeddings=True, sliding_window=32768
        ),
        494_032_768,
    ),
    "Qwen/Qwen3-0.6B": Published(
        _sizes(
            "qwen3",
            1024,
            3072,
            28,
            16,
            151936,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
            sliding_window=None,
        ),
        596_049_920,
    ),
    "meta-llama/Llama-3.2-1B": Published(
        _sizes(
            "llama",
            2048,
            8192,
            16,
            32,
            128256,
            num_key_value_heads=8,
            head_dim=64,
            tie_word_embeddings=True,
            rope_scaling={**_LLAMA3, "factor": 32.0},
        ),
        1_235_814_400,
    ),
    "google/gemma-2b": Published(
        _sizes("gemma", 2048, 16384, 18, 8, 256000, num_key_value_heads=1, head_dim=256), 2_506_172_416
    ),
    "google/gemma-2-2b": Published(
        _sizes("gemma2", 2304, 9216, 26, 8, 256000, num_key_value_heads=4, head_dim=256), 2_614_341_888
    ),
    "google/gemma-3-1b-pt": Published(
        _sizes("gemma3_text", 1152, 6912, 26, 4, 262144, num_key_value_heads=1, head_dim=256, sliding_window=512),
        999_885_952,
    ),
    "google/gemma-3-4b-pt": _gemma3(2560, 10240, 34, 4_300_079_472),
    "google/gemma-3-12b-pt": _gemma3(3840, 15360, 48, 12_187_325_040, heads=16, num_key_value_heads=8),
    "google/gemma-3-27b-pt": _gemma3(
        5376, 21504, 62, 27_432_406_640, heads=32, num_key_value_heads=16, head_dim=128, query_pre_attn_scalar=168
    ),
    "allenai/OLMo-2-0425-1B": Published(_sizes("olmo2", 2048, 8192, 16, 16, 100352), 1_484_916_736),
    "allenai/OLMo-2-1124-7B": Published(_sizes("olmo2", 4096, 11008, 32, 32, 100352), 7_298_617_344),
    "allenai/OLMo-2-1124-13B": Published(_sizes("olmo2", 5120, 13824, 40, 40, 100352), 13_716_198_400),
    "allenai/OLMo-2-0325-32B": Published(
        _sizes("olmo2", 5120, 27648, 64, 40, 100352, num_key_value_heads=8), 32_234_279_936
    ),
    "ibm-granite/granite-3.1-2b-instruct": Published(
        _sizes("granite", 2048, 8192, 40, 32, 49155, num_key_value_heads=8, tie_word_embeddings=True), 2_533_531_648
    ),
    "ibm-granite/granite-3.3-8b-instruct": Published(
        _sizes("granite", 4096, 12800, 40, 32, 49159, num_key_value_heads=8, tie_word_embeddings=True), 8_170_864_640
    ),
    "bigcode/starcoder2-3b": Published(
        _sizes("starcoder2", 3072, 12288, 30, 24, 49152, num_key_value_heads=2, sliding_window=4096), 3_030_371_328
    ),
    "stabilityai/stablelm-3b-4e1t": Published(_sizes("stablelm", 2560, 6912, 32, 32, 50304), 2_795_443_200),
    "stabilityai/stablelm-2-1_6b": Published(
        _sizes("stablelm", 2048, 5632, 24, 32, 100352, use_qkv_bias=True), 1_644_515_328
    ),
    "CohereForAI/aya-expanse-8b": Published(
        _sizes("cohere", 4096, 14336, 32, 32, 256000, num_key_value_heads=8, logit_scale=0.125), 8_028_033_024
    ),
    "THUDM/GLM-4-9B-0414": Published(
        _sizes("glm4", 4096, 13696, 40, 32, 151552, num_key_value_heads=2, head_dim=128), 9_400_279_040
    ),
    "microsoft/phi-2": Published(
        _sizes("phi", 2560, 10240, 32, 32, 51200, partial_rotary_factor=0.4, resid_pdrop=0.1), 2_779_683_840
    ),
    "microsoft/Phi-3-mini-4k-instruct": Published(
        _sizes("phi3", 3072, 8192, 32, 32, 32064, num_key_value_heads=32, sliding_window=2047), 3_821_079_552
    ),
    "microsoft/Phi-3.5-mini-instruct": Published(
        _sizes("phi3", 3072, 8192, 32, 32, 32064, num_key_value_heads=32, sliding_window=262144, rope_scaling=_LONG),
        3_821_079_552,
    ),
    "microsoft/Phi-4-mini-instruct": Published(
        _sizes(
            "phi3",
            3072,
            8192,
            32,
            24,
            200064,
            num_key_value_heads=8,
            partial_rotary_factor=0.75,
            tie_word_embeddings=True,
            sliding_window=262144,
            rope_scaling=_LONG,
        ),
        3_836_021_760,
    ),
    "mistralai/Mistral-7B-v0.1": Published(
        _sizes("mistral", 4096, 14336, 32, 32, 32000, num_key_value_heads=8, sliding_window=4096), 7_241_732_096
    ),
    "meta-llama/Llama-3.1-8B": Published(
        _sizes("llama", 4096, 14336, 32, 32, 128256, num_key_value_heads=8, rope_scaling=_LLAMA3), 8_030_261_248
    ),
    "Qwen/Qwen3-8B": Published(
        _sizes("qwen3", 4096, 12288, 36, 32, 151936, num_key_value_heads=8, head_dim=128, sliding_window=None),
        8_190_735_360,
    ),
    "meta-llama/Llama-2-13b-hf": Published(_sizes("llama", 5120, 13824, 40, 40, 32000), 13_015_864_320),
    "mistralai/Mixtral-8x7B-v0.1": Published(
        _sizes("mixtral", 4096, 14336, 32, 32, 32000, num_key_value_heads=8), 46_702_792_704
    ),
    "allenai/OLMoE-1B-7B-0924": Published(_sizes("olmoe", 2048, 1024, 16, 16, 50304), 6_919_161_856),
    "Qwen/Qwen1.5-MoE-A2.7B": Published(_sizes("qwen2_moe", 2048, 5632, 24, 16, 151936), 14_315_784_192),
    "Qwen/Qwen3-30B-A3B": Published(
        _sizes("qwen3_moe", 2048, 6144, 48, 32, 151936, num_key_value_heads=4, head_dim=128, norm_topk_prob=True),
        30_532_122_624,
    ),
    "meta-llama/Llama-4-Scout-17B-16E": _llama4(108_641_793_536),
    "meta-llama/Llama-4-Maverick-17B-128E": _llama4(
        401_583_781_376, num_local_experts=128, interleave_moe_layer_step=2, use_qk_norm=False
    ),
    # Without the layer of multi-token prediction; and without the numbers by which 58 layers correct the scores of 256
    # experts, which are not trained.
    "deepseek-ai/DeepSeek-V3": Published(
        _sizes("deepseek_v3", 7168, 18432, 61, 128, 129280, num_key_value_heads=128), 671_026_419_200 - 58 * 256
    ),
    "openai/gpt-oss-20b": _gpt_oss(24, 32, 20_914_757_184),
    "openai/gpt-oss-120b": _gpt_oss(36, 128, 116_829_156_672),
    "meta-llama/Llama-3.1-70B": Published(
        _sizes("llama", 8192, 28672, 80, 64, 128256, num_key_value_heads=8, rope_scaling=_LLAMA3), 70_553_706_496
    ),
}
