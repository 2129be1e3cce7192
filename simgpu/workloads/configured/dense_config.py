"""Configurations of Llama, OLMo 2, Granite, Starcoder2, GLM and Cohere."""

from __future__ import annotations

from typing import Any

from simgpu.workloads.configured.decoder import HeadNorms, NormKind, Norms, Rotation
from simgpu.workloads.configured.keys import Keys, common_sizes, head_width, key_heads


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
