"""`Decoder` describes a decoder-only transformer, by what decides its weights, kernels and memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Norms(StrEnum):
    """Where a layer normalizes each of its two parts, attention and the feed-forward part."""

    BEFORE = "before"
    AROUND = "before and after"  # Gemma 2 and 3, GLM-4
    AFTER = "after"  # OLMo 2
    SHARED = "once, before both"  # Cohere


class NormKind(StrEnum):
    """How values are normalized."""

    RMS = "root mean square"
    ADDED_ONE = "root mean square, scaled by one plus a weight"  # Gemma
    BEHIND = "root mean square, scaled by a weight as the second factor"  # Llama 4
    WIDE = "root mean square, scaled by a weight in float32"  # GPT-OSS
    LAYER = "layer"  # torch.nn.LayerNorm
    CENTRED = "layer, without a bias, operator by operator"  # Cohere


class HeadNorms(StrEnum):
    """What of queries and keys is normalized together."""

    HEAD = "head"  # the values of a head
    APART = "head, apart"  # the same, with a weight for each head, after all products (Cohere)
    TURNED = "turned"  # the same, in the order of heads and then tokens (Gemma 3)
    TOKEN = "token"  # all heads of a token (OLMo 2)


class Rotation(StrEnum):
    """Which values of a head the rotary embedding rotates as a pair."""

    HALVES = "halves"  # those half a width apart
    APART = "halves, apart"  # the same, each half on its own, by angles of half a width (GPT-OSS)
    NEIGHBOURS = "neighbours"  # neighbours; each layer repeats cosines and sines (GLM)
    WIDE = "neighbours in float32"  # neighbours, in float32 (Cohere)
    GATHERED = "neighbours, moved half a width apart first"  # DeepSeek-V3


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek): narrow vectors of a token from which those of its heads are computed.

    queries: width of the vector of queries; None where they are computed from the token itself. keys: width of that of
    keys and values. values: width of a head's values, which that of queries and keys may differ from.
    """

    queries: int | None
    keys: int
    values: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Routing that is limited to some groups of experts (DeepSeek-V3). count: of all groups. chosen: for each token."""

    count: int
    chosen: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward parts of which a router chooses some for each token.

    count: in each layer. chosen: for each token. inner: width of each.
    shared: width of one that every token passes; 0 for none.
    normalized: whether the weights of those chosen are divided by their sum.
    step: every how many layers there are experts. dense: numbers of other layers without them.
    groups: what the router chooses from, by sigmoid scores (DeepSeek-V3), in jobs of Megatron-LM by a softmax; None for
        a softmax over all experts.
    """

    count: int
    chosen: int
    inner: int
    shared: int = 0
    normalized: bool = True
    step: int = 1
    dense: frozenset[int] = frozenset()
    groups: Groups | None = None

    def rows(self, tokens: int) -> tuple[int, ...]:
        """Tokens of each expert if the router balances them: the remainder is given to the first experts, one each.

        >>> Experts(count=8, chosen=2, inner=64).rows(9)
        (3, 3, 2, 2, 2, 2, 2, 2)
        """
        each, rest = divmod(tokens * self.chosen, self.count)
        return (each + 1,) * rest + (each,) * (self.count - rest)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder-only transformer; `simgpu.workloads.configured.config.read_decoder` reads one from a file.

    family: ``model_type`` of its configuration. name: of the model, for traces.
    layers, width, heads, key_heads, head_width, inner, vocabulary: sizes; inner: of the feed-forward part.
    positions: rows of a trained position table, or the length that the model was made for; not a limit then.
    activation: name of transformers' activation function.
    tied: whether the output layer uses the table of the embedding.
    query_bias, output_bias, inner_bias: of the products for queries, keys and values; for attention's result; and of
        the feed-forward part.
    rotary_width: values of a head that are rotated; 0 for trained positions.
    longrope: whether each iteration looks up the length, by which the angles are chosen (Phi-3's 128k tokens).
    rotation: which values are rotated as a pair. unrotated: numbers of layers that rotate none (SmolLM3).
    norms, norm_kind: where layers normalize, and how.
    head_norms: how queries and keys are normalized; None for not at all.
    multiplied: whether numbers multiply the embedding and the results of both parts (Granite).
    logits_by: the operator by which a number scales the logits, mul or div; None for none.
    parallel: whether attention and feed-forward part read the same value.
    embedding_dropout, attention_dropout, dropout, inner_dropout: rates; dropout: after attention and after the
        feed-forward part; inner_dropout: after the latter alone (StableLM).
    window: tokens from which on transformers adds a mask for a sliding window; None for never.
    windowed_from: the first layer in which the package flash-attn has that window.
    whole_step: every how many layers one has no window, where masks have windows in all others, as Gemma 2's and 3's
        and GPT-OSS's; 0 where masks are the same in all layers.
    chunk: tokens of the chunks in which most layers attend (Llama 4); None for all tokens.
    tempered: whether queries that are not rotated grow with their position (Llama 4).
    experts: what replaces the feed-forward part in a mixture of experts.
    latent: widths of multi-head latent attention, in which the last `rotary_width` of a head's `head_width` values are
        rotated, and all heads share those of the keys; None for other attention.
    capped_scores, capped_logits: whether a tanh limits the scores of eager attention, and the logits.
    dequantized: whether the file describes weights in MXFP4, which are converted to be trained (GPT-OSS).
    without: what of the whole model is not modelled, for notes; empty for nothing.
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
    longrope: bool = False
    rotation: Rotation = Rotation.HALVES
    unrotated: frozenset[int] = frozenset()
    norms: Norms = Norms.BEFORE
    norm_kind: NormKind = NormKind.RMS
    head_norms: HeadNorms | None = None
    multiplied: bool = False
    logits_by: str | None = None
    parallel: bool = False
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    dropout: float = 0.0
    inner_dropout: float = 0.0
    window: int | None = None
    windowed_from: int = 0
    whole_step: int = 0
    capped_scores: bool = False
    capped_logits: bool = False
    chunk: int | None = None
    tempered: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    dequantized: bool = False
    without: str = ""

    @property
    def groups(self) -> int:
        """Number of query heads for each head of keys and values."""
        return self.heads // self.key_heads

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.head_width if self.latent is None else self.latent.values

    @property
    def is_later(self) -> bool:
        """Whether transformers 4.51 does not build this decoder, but 4.55 does."""
        has_plain_queries = self.latent is not None and self.latent.queries is None
        return has_plain_queries or self.family in ("smollm3", "gpt_oss")

    @property
    def has_sinks(self) -> bool:
        """Whether the scores of each head include a trained one of no token, as in no fused operator of PyTorch."""
        return self.family == "gpt_oss"

    def has_experts(self, layer: int) -> bool:
        """Whether the layer of this number, from 0, has experts instead of one feed-forward part."""
        experts = self.experts
        return experts is not None and layer not in experts.dense and (layer + 1) % experts.step == 0

    def window_of(self, layer: int) -> int | None:
        """The window of the layer of this number, from 0; None for none.

        >>> sizes = dict(layers=6, width=64, heads=4, key_heads=4, head_width=16, inner=64, vocabulary=100)
        >>> decoder = Decoder("gemma3_text", "", **sizes, positions=64, activation="gelu", tied=True, window=8,
        ...     whole_step=6)
        >>> [decoder.window_of(layer) for layer in range(6)]
        [8, 8, 8, 8, 8, None]
        """
        slides = (layer + 1) % self.whole_step != 0 if self.whole_step else layer >= self.windowed_from
        return self.window if slides else None

    def needs_mask(self, length: int) -> bool:
        """Whether transformers adds a mask to fused attention of samples of this many tokens."""
        return self.chunk is not None or self.whole_step > 0 or (self.window is not None and length >= self.window)
