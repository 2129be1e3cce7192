"""`EncoderDecoder` describes a T5 or mT5 model; `encoder_decoder` reads one from the keys of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.keys import ACTIVATIONS, MOST, Keys


@dataclass(frozen=True, slots=True)
class EncoderDecoder:
    """An encoder, and a decoder whose layers also attend to the encoder's result.

    decoder: what both have in common, and the decoder's number of layers. encoder_layers: of the encoder.
    buckets: rows of each table of relative positions. gated: whether the feed-forward part has a gate.
    """

    decoder: Decoder
    encoder_layers: int
    buckets: int
    gated: bool

    @property
    def name(self) -> str:
        """Of the model, for traces."""
        return self.decoder.name


#: Values of ``model_type``, with the defaults in which they differ.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "t5": {"layers": 6, "heads": 8, "inner": 2048, "vocabulary": 32128, "tied": True, "part": "relu"},
    "mt5": {"layers": 8, "heads": 6, "inner": 1024, "vocabulary": 250112, "tied": False, "part": "gated-gelu"},
}
ENCODER_DECODERS = tuple(_DEFAULTS)


def encoder_decoder(keys: Keys, family: str, name: str) -> EncoderDecoder:
    """The model that a configuration of T5, T5 1.1, FLAN-T5 or mT5 describes; problems are added to `keys`.

    family: one of `ENCODER_DECODERS`.
    """
    defaults = _DEFAULTS[family]
    layers = keys.number("num_layers", defaults["layers"], MOST["layers"])
    activation, gated = _feed_forward(keys, defaults["part"])
    heads = keys.number("num_heads", defaults["heads"], MOST["heads"])
    decoder = Decoder(
        family=family,
        name=name,
        layers=keys.number("num_decoder_layers", layers, MOST["layers"], nullable=True),
        width=keys.number("d_model", 512),
        heads=heads,
        key_heads=heads,
        head_width=keys.number("d_kv", 64),
        inner=keys.number("d_ff", defaults["inner"]),
        vocabulary=keys.number("vocab_size", defaults["vocabulary"], MOST["vocabulary"]),
        positions=keys.number("n_positions", 512, MOST["positions"], nullable=True),
        activation=activation,
        tied=keys.flag("tie_word_embeddings", defaults["tied"]),
        dropout=keys.fraction("dropout_rate", 0.1),
    )
    buckets = keys.number("relative_attention_num_buckets", 32)
    return EncoderDecoder(decoder, layers, buckets, gated)


def _feed_forward(keys: Keys, default: str) -> tuple[str, bool]:
    """``feed_forward_proj``: an activation, and whether there is a gate. transformers reads gelu as gelu_new then."""
    value = keys.values.get("feed_forward_proj", default)
    activation = value.removeprefix("gated-") if isinstance(value, str) else ""
    if activation not in ACTIVATIONS:
        known = f"give one of {', '.join(ACTIVATIONS)}, or gated- and one of them"
        keys.refuse("feed_forward_proj", f"{value!r:.40} is not a supported feed-forward part", known)
        return "relu", False
    if value == "gated-gelu":
        return "gelu_new", True
    return ACTIVATIONS[activation], value != activation
