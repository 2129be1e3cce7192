"""Configurations of mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE and DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simgpu.workloads.configured.decoder import Experts, Groups, HeadNorms, Latent, Rotation
from simgpu.workloads.configured.keys import MOST, REMEDY, Keys, common_sizes, equal_heads, head_width, key_heads

#: Most experts of a layer and of all layers, above those published (256 and 15,616): more would take minutes to build.
_MOST_EXPERTS, _MOST_IN_ALL = 4_096, 32_768


def mixtral(keys: Keys) -> dict[str, Any]:
    """Sizes of a Mixtral decoder."""
    defaults = {"layers": 32, "width": 4096, "heads": 32, "inner": 14336, "vocabulary": 32000}
    sizes = common_sizes(keys, defaults, positions=131072)
    head = head_width(keys, sizes)
    if keys.values.get("router_jitter_noise"):
        keys.refuse("router_jitter_noise", "noise before the router is not modelled", "give 0.0")
    return {
        **sizes,
        **_common(keys, sizes, 8, head),
        "window": keys.window(None),
        "experts": _experts(keys, sizes, "num_local_experts", 8, 2, sizes["inner"], normalized=True),
    }


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


def deepseek_v3(keys: Keys) -> dict[str, Any]:
    """Sizes of a DeepSeek-V3 decoder. ``q_lora_rank`` may be null as in later versions of transformers (Moonlight)."""
    defaults = {"layers": 61, "width": 7168, "heads": 128, "inner": 18432, "vocabulary": 129280}
    sizes = common_sizes(keys, defaults, positions=4096)
    bias = keys.flag("attention_bias", False)
    rotary, plain = keys.number("qk_rope_head_dim", 64), keys.number("qk_nope_head_dim", 128)
    if key_heads(keys, sizes, 128 if "num_key_value_heads" not in keys.values else None) != sizes["heads"]:
        what = f"keys and values of {keys.value('num_key_value_heads')} heads for queries of {sizes['heads']}"
        keys.refuse("num_key_value_heads", what, "give the number of query heads, for each of which keys are computed")
    without = "layers of multi-token prediction, which transformers does not build"
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
        "experts": _grouped(keys, sizes),
        "without": without if keys.values.get("num_nextn_predict_layers") else "",
    }


def _latent(keys: Keys) -> Latent:
    is_narrow = keys.value("q_lora_rank", 1536) is not None
    queries = keys.number("q_lora_rank", 1536) if is_narrow else None
    return Latent(queries, keys.number("kv_lora_rank", 512), keys.number("v_head_dim", 128))


def _grouped(keys: Keys, sizes: dict[str, Any]) -> Experts:
    """DeepSeek-V3's experts: of the shared ones, the widths together."""
    inner = keys.number("moe_intermediate_size", 2048)
    shared = inner * keys.number("n_shared_experts", 1, _MOST_EXPERTS)
    experts = _experts(keys, sizes, "n_routed_experts", 256, 8, inner, shared=shared, by_default=True)
    groups = Groups(keys.number("n_group", 8, _MOST_EXPERTS), keys.number("topk_group", 4, _MOST_EXPERTS))
    if experts.count % groups.count or experts.count < 2 * groups.count:
        what = f"{experts.count} experts do not divide into {groups.count} groups of two or more"
        keys.refuse("n_group", what, REMEDY)
    if groups.chosen > groups.count:
        keys.refuse("topk_group", f"{groups.chosen} groups for each token, but only {groups.count} exist", REMEDY)
    first = min(keys.number("first_k_dense_replace", 3, MOST["layers"], least=0), sizes["layers"])
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
    count: int,
    chosen: int,
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
    return Experts(count, chosen, inner, shared, normalized, step, _dense(keys, layers))


def _dense(keys: Keys, layers: int) -> frozenset[int]:
    """``mlp_only_layers``: numbers of layers."""
    value = keys.values.get("mlp_only_layers")
    if value is None:
        return frozenset()
    if not isinstance(value, Sequence) or not all(isinstance(each, int) and 0 <= each < layers for each in value):
        what = f"{value!r:.40} is not a list of numbers of layers from 0 to {layers - 1}"
        keys.refuse("mlp_only_layers", what, REMEDY)
        return frozenset()
    return frozenset(value)
