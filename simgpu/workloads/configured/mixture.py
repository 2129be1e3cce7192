"""Configurations of mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simgpu.workloads.configured.decoder import Experts, HeadNorms
from simgpu.workloads.configured.keys import MOST, REMEDY, Keys, common_sizes, head_width, key_heads

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
        **_common(keys, sizes, 16, _equal_heads(keys, sizes)),
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
        **_common(keys, sizes, None, _equal_heads(keys, sizes)),
        "query_bias": bias,
        "output_bias": bias,
        "experts": _experts(keys, sizes, "num_experts", 64, 8, sizes["inner"]),
    }


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


def _equal_heads(keys: Keys, sizes: dict[str, Any]) -> int:
    width, heads = int(sizes["width"]), int(sizes["heads"])
    if width % heads:
        keys.refuse("hidden_size", f"{width} values do not divide into {heads} heads", REMEDY)
    return max(1, width // heads)


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
    choosable: bool = False,
) -> Experts:
    """Experts of a layer. key, count, chosen: the key of their number, and defaults.

    normalized: whether the router's weights are, whatever the configuration says. choosable: whether the configuration
    names layers without experts.
    """
    layers = int(sizes["layers"])
    count, chosen = keys.number(key, count, _MOST_EXPERTS), keys.number("num_experts_per_tok", chosen, _MOST_EXPERTS)
    if chosen > count:
        keys.refuse("num_experts_per_tok", f"{chosen} experts for each token, but only {count} exist", REMEDY)
    if count * layers > _MOST_IN_ALL:
        keys.refuse(key, f"{count} experts in each of {layers} layers are more than {_MOST_IN_ALL}", REMEDY)
    normalized = normalized or keys.flag("norm_topk_prob", False)
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
