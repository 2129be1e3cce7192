"""`Decoder` describes a decoder-only transformer, by what decides its weights, kernels and memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder-only transformer; `simgpu.workloads.decoders.config.read_decoder` reads one from a file.

    family: ``model_type`` of its configuration. name: of the model, for traces.
    layers, width, heads, key_heads, head_width, inner, vocabulary: sizes; inner: of the feed-forward part.
    positions: rows of a trained position table, or the length that the model was made for; not a limit then.
    activation: name of transformers' activation function.
    tied: whether the output layer uses the table of the embedding.
    query_bias, output_bias, inner_bias: of the products for queries, keys and values; for attention's result; and of
        the feed-forward part.
    rotary_width: values of a head that are rotated; 0 for trained positions.
    normalized_heads: whether queries and keys are normalized.
    parallel: whether attention and feed-forward part read the same value.
    embedding_dropout, attention_dropout, dropout: rates; the last: after attention and after the feed-forward part.
    window: tokens from which on transformers adds a mask for a sliding window; None for never. Gemma 2 always adds one.
    capped_scores, capped_logits: whether a tanh limits the scores of eager attention, and the logits.
    """

    family: str
    name: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    vocabulary: int
    positions: int
    activation: str
    tied: bool
    query_bias: bool = False
    output_bias: bool = False
    inner_bias: bool = False
    rotary_width: int = 0
    normalized_heads: bool = False
    parallel: bool = False
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    dropout: float = 0.0
    window: int | None = None
    capped_scores: bool = False
    capped_logits: bool = False

    @property
    def groups(self) -> int:
        """Number of query heads for each head of keys and values."""
        return self.heads // self.key_heads

    def needs_mask(self, length: int) -> bool:
        """Whether transformers adds a mask to fused attention of samples of this many tokens."""
        return self.family == "gemma2" or (self.window is not None and length >= self.window)
