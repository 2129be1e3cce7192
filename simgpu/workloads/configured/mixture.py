"""Configurations of mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, DeepSeek-V3, Llama 4 and GPT-OSS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simgpu.workloads.configured.decoder import Experts, Groups, HeadNorms, Latent, NormKind, Rotation
from simgpu.workloads.configured.keys import MOST, REMEDY, Keys, common_sizes, equal_heads, head_width, key_heads

#: Most experts of a layer and of all layers, above those published (256 and 15,616): more would take minutes to build.
_MOST_EXPERTS, _MOST_IN_ALL = 4_096, 32_768


def mixtral(keys: Keys) -> dict[str, Any]:
    """Sizes of a Mixtral decoder."""
    defaults = {"layers": 32, "width": 4096, "heads": 32, "inner": 14336, "vocabulary": 32000}
    sizes = common_sizes(keys, defaults, positions=131072)
    head = head_width(keys, sizes)
    _refuse_noise(keys)
    return {
        **sizes,
        **_common(keys, sizes, 8, head),
        "window": keys.window(None),
        "experts": _experts(keys, sizes, "num_local_experts", 8, 2, sizes["inner"], normalized=True),
    }


def _refuse_noise(keys: Keys) -> None:
    if keys.values.get("router_jitter_noise"):
        keys.refuse("router_jitter_noise", "noise before the router is not modelled", "give 0.0")


def qwen2_moe(keys: Keys) -> dict[str, Any]:
    """Sizes of a Qwen2-MoE decoder. Its heads together are as wide as the model."""
    defaults = {"layers": 24, "width": 2048, "heads": 16, "inner": 5632, "vocabulary": 151936}
    sizes = common_sizes(keys, defaults, positions=32768)
    inner = keys.number("moe_intermediate_size", 1408)
    shared = keys.number("shared_expert_intermediate_size", 5632)
    return {
        **sizes,
        **_common(keys, sizes, 16, equal_heads(keys, sizes)),
        "query_bias": keys.flag("qkv_bias", True),
        "window": _window(keys),
        "windowed_from": keys.windowed_from(sizes["layers"]),
        "experts": _experts(keys, sizes, "num_experts", 60, 4, inner, shared=shared, choosable=True),
    }


def qwen3_moe(keys: Keys) -> dict[str, Any]:
    """Sizes of a Qwen3-MoE decoder."""
    defaults = {"layers": 24, "width": 2048, "heads": 32, "inner": 6144, "vocabulary": 151936}
    sizes = common_sizes(keys, defaults, positions=32768)
    bias, inner = keys.flag("attention_bias", False), keys.number("moe_intermediate_size", 768)
    return {
        **sizes,
        **_common(keys, sizes, 4, head_width(keys, sizes)),
        "query_bias": bias,
        "output_bias": bias,
        "head_norms": HeadNorms.HEAD,
        "window": _window(keys),
        "windowed_from": keys.windowed_from(sizes["layers"]),
        "experts": _experts(keys, sizes, "num_experts", 128, 8, inner, choosable=True),
    }


def olmoe(keys: Keys) -> dict[str, Any]:
    """Sizes of an OLMoE decoder. Its heads together are as wide as the model."""
    defaults = {"layers": 16, "width": 2048, "heads": 16, "inner": 2048, "vocabulary": 50304}
    sizes = common_sizes(keys, defaults, positions=4096)
    bias = keys.flag("attention_bias", False)
    if keys.values.get("clip_qkv") is not None:
        keys.refuse("clip_qkv", "limited queries, keys and values are not modelled", "give null")
    return {
        **sizes,
        **_common(keys, sizes, None, equal_heads(keys, sizes)),
        "query_bias": bias,
        "output_bias": bias,
        "experts": _experts(keys, sizes, "num_experts", 64, 8, sizes["inner"]),
    }


#: Defaults of DeepSeek's keys in transformers. Those of V2 name no number of experts for a token, and no groups.
_V3 = {"layers": 61, "width": 7168, "heads": 128, "inner": 18432, "vocabulary": 129280}
_V3_EXPERTS = {"count": 256, "chosen": 8, "inner": 2048, "shared": 1, "first": 3}
_V2 = {"layers": 32, "width": 4096, "heads": 32, "inner": 11008, "vocabulary": 32000}
_V2_EXPERTS = {"count": 64, "chosen": None, "inner": 1407, "shared": 2, "first": 0}


def deepseek_v3(keys: Keys) -> dict[str, Any]:
    """Sizes of a DeepSeek-V3 decoder. ``q_lora_rank`` may be null as in later versions of transformers (Moonlight)."""
    sizes = common_sizes(keys, _V3, positions=4096)
    groups = Groups(keys.number("n_group", 8, _MOST_EXPERTS), keys.number("topk_group", 4, _MOST_EXPERTS))
    without = "layers of multi-token prediction, which transformers does not build"
    return {
        **_with_latent(keys, sizes, 128),
        "experts": _grouped(keys, sizes, groups, _V3_EXPERTS, normalized=True),
        "without": without if keys.values.get("num_nextn_predict_layers") else "",
    }


def deepseek_v2(keys: Keys) -> dict[str, Any]:
    """Sizes of a DeepSeek-V2 decoder, which jobs of Megatron-LM have. Without groups, all experts are one."""
    sizes = common_sizes(keys, _V2, positions=2048)
    groups = Groups(1, 1)
    if keys.value("topk_method", "greedy") == "group_limited_greedy":
        groups = Groups(keys.number("n_group", None, _MOST_EXPERTS), keys.number("topk_group", None, _MOST_EXPERTS))
    return {
        **_with_latent(keys, sizes, None),
        "experts": _grouped(keys, sizes, groups, _V2_EXPERTS, normalized=False),
    }


def _with_latent(keys: Keys, sizes: dict[str, Any], heads: int | None) -> dict[str, Any]:
    """What DeepSeek's decoders share. heads: default number of heads of keys and values; None for that of queries."""
    bias = keys.flag("attention_bias", False)
    rotary, plain = keys.number("qk_rope_head_dim", 64), keys.number("qk_nope_head_dim", 128)
    if key_heads(keys, sizes, heads if "num_key_value_heads" not in keys.values else None) != sizes["heads"]:
        what = f"keys and values of {keys.value('num_key_value_heads')} heads for queries of {sizes['heads']}"
        keys.refuse("num_key_value_heads", what, "give the number of query heads, for each of which keys are computed")
    return {
        **sizes,
        "key_heads": sizes["heads"],
        "head_width": plain + rotary,
        "rotary_width": rotary,
        "latent": _latent(keys),
        "rotation": Rotation.GATHERED if keys.flag("rope_interleave", True) else Rotation.HALVES,
        "query_bias": bias,
        "output_bias": bias,
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", False),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def llama4_text(keys: Keys) -> dict[str, Any]:
    """Sizes of a Llama 4 decoder. In transformers 4.51, every fourth layer does not rotate, whatever the keys say."""
    defaults = {"layers": 48, "width": 5120, "heads": 40, "inner": 8192, "vocabulary": 202048}
    sizes = common_sizes(keys, defaults, positions=131072)
    _refuse_noise(keys)
    inner = sizes["inner"]
    experts = _experts(keys, sizes, "num_local_experts", 16, 1, inner, shared=inner, normalized=True)
    step = keys.number("interleave_moe_layer_step", 1, MOST["layers"])
    given = _layers(keys, "moe_layers", sizes["layers"])
    dense = frozenset() if given is None else frozenset(range(sizes["layers"])) - given
    return {
        **sizes,
        **_common(keys, sizes, 8, head_width(keys, sizes, 128)),
        "inner": keys.number("intermediate_size_mlp", 16384),
        "norm_kind": NormKind.BEHIND,
        "head_norms": HeadNorms.HEAD if keys.flag("use_qk_norm", True) else None,
        "unrotated": frozenset(range(3, sizes["layers"], 4)),
        "tempered": bool(keys.value("attn_temperature_tuning", 4)),
        "chunk": keys.number("attention_chunk_size", 8192, MOST["positions"]),
        "experts": replace(experts, step=1 if given is not None else step, dense=dense),
    }


def gpt_oss(keys: Keys) -> dict[str, Any]:
    """Sizes of a GPT-OSS decoder. Every second layer has no window."""
    defaults = {"layers": 36, "width": 2880, "heads": 64, "inner": 2880, "vocabulary": 201088}
    sizes = common_sizes(keys, defaults, positions=131072)
    keys.refuse_layer_types(sizes["layers"], 2, "remove the key")
    bias = keys.flag("attention_bias", True)
    return {
        **sizes,
        **_common(keys, sizes, 8, head_width(keys, sizes, 64)),
        "query_bias": bias,
        "output_bias": bias,
        "rotation": Rotation.APART,
        "norm_kind": NormKind.WIDE,
        "window": keys.number("sliding_window", 128, 2**40),
        "whole_step": 2,
        "experts": _experts(keys, sizes, "num_local_experts", 128, 4, sizes["inner"], normalized=True),
        "dequantized": keys.value("quantization_config") is not None,
    }


def _latent(keys: Keys) -> Latent:
    is_narrow = keys.value("q_lora_rank", 1536) is not None
    queries = keys.number("q_lora_rank", 1536) if is_narrow else None
    return Latent(queries, keys.number("kv_lora_rank", 512), keys.number("v_head_dim", 128))


def _grouped(
    keys: Keys, sizes: dict[str, Any], groups: Groups, defaults: Mapping[str, int | None], *, normalized: bool
) -> Experts:
    """DeepSeek's experts: of the shared ones, the widths together. normalized: the default."""
    inner = keys.number("moe_intermediate_size", defaults["inner"])
    shared = inner * keys.number("n_shared_experts", defaults["shared"], _MOST_EXPERTS)
    numbers = defaults["count"], defaults["chosen"]
    experts = _experts(keys, sizes, "n_routed_experts", *numbers, inner, shared=shared, by_default=normalized)
    if experts.count % groups.count or experts.count < 2 * groups.count:
        what = f"{experts.count} experts do not divide into {groups.count} groups of two or more"
        keys.refuse("n_group", what, REMEDY)
    if groups.chosen > groups.count:
        keys.refuse("topk_group", f"{groups.chosen} groups for each token, but only {groups.count} exist", REMEDY)
    first = min(keys.number("first_k_dense_replace", defaults["first"], MOST["layers"], least=0), sizes["layers"])
    return replace(experts, dense=frozenset(range(first)), groups=groups)


def _common(keys: Keys, sizes: dict[str, Any], heads: int | None, head: int) -> dict[str, Any]:
    """What all have. heads: default number of heads of keys and values; head: width of one."""
    absent = "num_key_value_heads" not in keys.values
    if keys.flag("output_router_logits", False):
        keys.refuse("output_router_logits", "the loss that balances the experts is not modelled", "give false")
    return {
        "key_heads": key_heads(keys, sizes, heads if absent else None),
        "head_width": head,
        "rotary_width": head,
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", False),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def _window(keys: Keys) -> int | None:
    return keys.window(4096) if keys.flag("use_sliding_window", False) else None


def _experts(
    keys: Keys,
    sizes: dict[str, Any],
    key: str,
    count: int | None,
    chosen: int | None,
    inner: int,
    *,
    shared: int = 0,
    normalized: bool = False,
    by_default: bool = False,
    choosable: bool = False,
) -> Experts:
    """Experts of a layer. key, count, chosen: the key of their number, and defaults.

    normalized: whether the router's weights are, whatever the configuration says. by_default: whether they are where it
    does not say. choosable: whether the configuration names layers without experts.
    """
    layers = int(sizes["layers"])
    count, chosen = keys.number(key, count, _MOST_EXPERTS), keys.number("num_experts_per_tok", chosen, _MOST_EXPERTS)
    if chosen > count:
        keys.refuse("num_experts_per_tok", f"{chosen} experts for each token, but only {count} exist", REMEDY)
    if count * layers > _MOST_IN_ALL:
        keys.refuse(key, f"{count} experts in each of {layers} layers are more than {_MOST_IN_ALL}", REMEDY)
    normalized = normalized or keys.flag("norm_topk_prob", by_default)
    if not choosable:
        return Experts(count, chosen, inner, shared, normalized)
    step = keys.number("decoder_sparse_step", 1, MOST["layers"])
    return Experts(
        count, chosen, inner, shared, normalized, step, _layers(keys, "mlp_only_layers", layers) or frozenset()
    )


def _layers(keys: Keys, key: str, layers: int) -> frozenset[int] | None:
    """Numbers of layers, such as ``mlp_only_layers``; None where the key is absent."""
    value = keys.value(key)
    if value is None:
        return None
    if not isinstance(value, Sequence) or not all(isinstance(each, int) and 0 <= each < layers for each in value):
        what = f"{value!r:.40} is not a list of numbers of layers from 0 to {layers - 1}"
        keys.refuse(key, what, REMEDY)
        return frozenset()
    return frozenset(value)
