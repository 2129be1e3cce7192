"""Configurations of Gemma 1 to 3."""

from __future__ import annotations

from typing import Any

from simgpu.workloads.configured.decoder import HeadNorms, NormKind, Norms
from simgpu.workloads.configured.keys import MOST, Keys, common_sizes, head_width, key_heads


def gemma(keys: Keys) -> dict[str, Any]:
    """Sizes of a Gemma decoder."""
    # transformers 4.51 reads the older key, whatever hidden_activation says.
    sizes = common_sizes(
        keys, {"layers": 28, "width": 3072, "heads": 16, "inner": 24576, "vocabulary": 256000}, positions=8192
    )
    return {**sizes, **_common(keys, sizes, 16, "hidden_act")}


def gemma2(keys: Keys) -> dict[str, Any]:
    """Sizes of a Gemma 2 decoder."""
    sizes = common_sizes(keys, {**_SECOND, "vocabulary": 256000}, positions=8192)
    return {
        **sizes,
        **_common(keys, sizes, 4, "hidden_activation"),
        "norms": Norms.AROUND,
        "window": keys.number("sliding_window", 4096, 2**40),
        "whole_step": 2,
        "capped_scores": keys.values.get("attn_logit_softcapping", 50.0) is not None,
        "capped_logits": keys.values.get("final_logit_softcapping", 30.0) is not None,
    }


def gemma3_text(keys: Keys) -> dict[str, Any]:
    """Sizes of a Gemma 3 decoder. Its attention ignores ``attn_logit_softcapping``."""
    sizes = common_sizes(keys, {**_SECOND, "vocabulary": 262208}, positions=131072)
    if keys.flag("use_bidirectional_attention", False):
        keys.refuse("use_bidirectional_attention", "attention to later tokens is not modelled", "give false")
    return {
        **sizes,
        **_common(keys, sizes, 4, "hidden_activation"),
        "norms": Norms.AROUND,
        "head_norms": HeadNorms.TURNED,
        "window": keys.number("sliding_window", 4096, 2**40),
        "whole_step": _whole_step(keys, sizes["layers"]),
        "capped_logits": keys.value("final_logit_softcapping") is not None,
    }


_SECOND = {"layers": 26, "width": 2304, "heads": 8, "inner": 9216}


def _common(keys: Keys, sizes: dict[str, Any], key_count: int, activation: str) -> dict[str, Any]:
    """What all versions have. key_count: default heads of keys. activation: the key that names the activation."""
    head, bias = head_width(keys, sizes, 256), keys.flag("attention_bias", False)
    return {
        "key_heads": key_heads(keys, sizes, key_count),
        "head_width": head,
        "rotary_width": head,
        "activation": keys.activation(activation, "gelu_pytorch_tanh"),
        "tied": keys.flag("tie_word_embeddings", True),
        "query_bias": bias,
        "output_bias": bias,
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "norm_kind": NormKind.ADDED_ONE,
    }


def _whole_step(keys: Keys, layers: int) -> int:
    """Every how many layers one has no window. Later versions of transformers write the key with an underscore, and the
    type of each layer, which must agree with it."""
    later = "_sliding_window_pattern"
    step = keys.number(later if later in keys.values else "sliding_window_pattern", 6, MOST["layers"])
    keys.refuse_layer_types(layers, step, "give sliding_window_pattern, or remove the key")
    return step
