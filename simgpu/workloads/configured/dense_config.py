"""Configurations of Llama, OLMo 2, Granite, SmolLM3, Starcoder2, StableLM, GLM and Cohere."""

from __future__ import annotations

from typing import Any

from simgpu.workloads.configured.decoder import HeadNorms, NormKind, Norms, Rotation
from simgpu.workloads.configured.keys import MOST, Keys, common_sizes, equal_heads, head_width, key_heads


def _usual(keys: Keys, defaults: dict[str, int], positions: int, *, tied: bool) -> dict[str, Any]:
    """What Llama, OLMo 2 and Cohere have in common. tied: by default."""
    sizes = common_sizes(keys, defaults, positions=positions)
    head, bias = head_width(keys, sizes), keys.flag("attention_bias", False)
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes),
        "head_width": head,
        "rotary_width": head,
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", tied),
        "query_bias": bias,
        "output_bias": bias,
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def llama(keys: Keys) -> dict[str, Any]:
    """Sizes of a Llama decoder."""
    defaults = {"layers": 32, "width": 4096, "heads": 32, "inner": 11008, "vocabulary": 32000}
    return {**_usual(keys, defaults, 2048, tied=False), "inner_bias": keys.flag("mlp_bias", False)}


def olmo2(keys: Keys) -> dict[str, Any]:
    """Sizes of an OLMo 2 decoder."""
    defaults = {"layers": 32, "width": 4096, "heads": 32, "inner": 11008, "vocabulary": 50304}
    return {**_usual(keys, defaults, 2048, tied=False), "norms": Norms.AFTER, "head_norms": HeadNorms.TOKEN}


def granite(keys: Keys) -> dict[str, Any]:
    """Sizes of a Granite decoder."""
    # The four numbers that multiply values decide neither sizes nor kernels.
    return {**llama(keys), "multiplied": True, "logits_by": "div"}


def smollm3(keys: Keys) -> dict[str, Any]:
    """Sizes of a SmolLM3 decoder, of whose layers some do not rotate queries and keys."""
    defaults = {"layers": 36, "width": 2048, "heads": 16, "inner": 11008, "vocabulary": 128256}
    sizes = _usual(keys, defaults, 32768, tied=True)
    if keys.flag("use_sliding_window", False):
        keys.refuse("use_sliding_window", "windows of SmolLM3's attention are not modelled", "give false")
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes, 4 if "num_key_value_heads" not in keys.values else None),
        "inner_bias": keys.flag("mlp_bias", False),
        "unrotated": _unrotated(keys, sizes["layers"]),
    }


def _unrotated(keys: Keys, layers: int) -> frozenset[int]:
    """``no_rope_layers``: a zero for each layer without a rotation; by default every fourth layer."""
    step, given = keys.number("no_rope_layer_interval", 4, MOST["layers"]), keys.value("no_rope_layers")
    if given is None:
        return frozenset(range(step - 1, layers, step))
    if not isinstance(given, list) or len(given) != layers or not all(each in (0, 1) for each in given):
        what = f"{given!r:.40} is not a list with 0 or 1 for each of {layers} layers"
        keys.refuse("no_rope_layers", what, "give 0 for a layer that does not rotate queries and keys")
        return frozenset()
    return frozenset(number for number, rotates in enumerate(given) if not rotates)


def starcoder2(keys: Keys) -> dict[str, Any]:
    """Sizes of a Starcoder2 decoder."""
    defaults = {"layers": 30, "width": 3072, "heads": 24, "inner": 12288, "vocabulary": 49152}
    sizes = common_sizes(keys, defaults, positions=4096)
    head, bias = head_width(keys, sizes), keys.flag("use_bias", True)
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes, 2),
        "head_width": head,
        "rotary_width": head,
        "activation": keys.activation("hidden_act", "gelu_pytorch_tanh"),
        "tied": keys.flag("tie_word_embeddings", True),
        "query_bias": bias,
        "output_bias": bias,
        "inner_bias": bias,
        "norm_kind": NormKind.LAYER,
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "embedding_dropout": keys.fraction("embedding_dropout", 0.0),
        "dropout": keys.fraction("residual_dropout", 0.0),
        "window": keys.window(None),
    }


def stablelm(keys: Keys) -> dict[str, Any]:
    """Sizes of a StableLM decoder. Its heads together are as wide as the model."""
    defaults = {"layers": 32, "width": 2560, "heads": 32, "inner": 6912, "vocabulary": 50304}
    sizes = common_sizes(keys, defaults, positions=4096)
    head, is_parallel = equal_heads(keys, sizes), keys.flag("use_parallel_residual", False)
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes, 32),
        "head_width": head,
        "rotary_width": int(head * keys.rotary_part("partial_rotary_factor", 0.25)),
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", False),
        "query_bias": keys.flag("use_qkv_bias", False),
        "norms": Norms.SHARED if is_parallel else Norms.BEFORE,
        "norm_kind": NormKind.LAYER,
        "head_norms": HeadNorms.APART if keys.flag("qk_layernorm", False) else None,
        "parallel": is_parallel,
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "inner_dropout": keys.fraction("hidden_dropout", 0.0),
    }


def glm(keys: Keys) -> dict[str, Any]:
    """Sizes of a GLM decoder."""
    defaults = {"layers": 40, "width": 4096, "heads": 32, "inner": 13696, "vocabulary": 151552}
    sizes = common_sizes(keys, defaults, positions=131072)
    head = head_width(keys, sizes, 128)
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes, 2),
        "head_width": head,
        "rotary_width": int(head * keys.rotary_part("partial_rotary_factor", 0.5)),
        "rotation": Rotation.NEIGHBOURS,
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", False),
        "query_bias": keys.flag("attention_bias", True),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def glm4(keys: Keys) -> dict[str, Any]:
    """Sizes of a GLM-4 decoder."""
    return {**glm(keys), "norms": Norms.AROUND}


def cohere(keys: Keys) -> dict[str, Any]:
    """Sizes of a Cohere decoder (Command R, Aya)."""
    defaults = {"layers": 40, "width": 8192, "heads": 64, "inner": 22528, "vocabulary": 256000}
    return {
        **_usual(keys, defaults, 8192, tied=True),
        "rotation": Rotation.WIDE,
        "norms": Norms.SHARED,
        "norm_kind": NormKind.CENTRED,
        "head_norms": HeadNorms.APART if keys.flag("use_qk_norm", False) else None,
        "parallel": True,
        "logits_by": "mul",
    }
