"""`EncoderDecoder` describes a T5 model, and `t5` reads one from the keys of its configuration."""

from __future__ import annotations

from dataclasses import dataclass

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


def t5(keys: Keys, name: str) -> EncoderDecoder:
    """The model that a configuration of T5, T5 1.1 or FLAN-T5 describes; problems are added to `keys`."""
    layers = keys.number("num_layers", 6, MOST["layers"])
    activation, gated = _feed_forward(keys)
    heads = keys.number("num_heads", 8, MOST["heads"])
    decoder = Decoder(
        family="t5",
        name=name,
        layers=keys.number("num_decoder_layers", layers, MOST["layers"]),
        width=keys.number("d_model", 512),
        heads=heads,
        key_heads=heads,
        head_width=keys.number("d_kv", 64),
        inner=keys.number("d_ff", 2048),
        vocabulary=keys.number("vocab_size", 32128, MOST["vocabulary"]),
        positions=keys.number("n_positions", 512, MOST["positions"]),
        activation=activation,
        tied=keys.flag("tie_word_embeddings", True),
        dropout=keys.fraction("dropout_rate", 0.1),
    )
    buckets = keys.number("relative_attention_num_buckets", 32)
    return EncoderDecoder(decoder, layers, buckets, gated)


def _feed_forward(keys: Keys) -> tuple[str, bool]:
    """``feed_forward_proj``: an activation, and whether there is a gate. transformers reads gelu as gelu_new then."""
    value = keys.values.get("feed_forward_proj", "relu")
    activation = value.removeprefix("gated-") if isinstance(value, str) else ""
    if activation not in ACTIVATIONS:
        known = f"give one of {', '.join(ACTIVATIONS)}, or gated- and one of them"
        keys.refuse("feed_forward_proj", f"{value!r:.40} is not a supported feed-forward part", known)
        return "relu", False
    if value == "gated-gelu":
        return "gelu_new", True
    return ACTIVATIONS[activation], value != activation
