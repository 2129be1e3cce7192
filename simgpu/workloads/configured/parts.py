"""Parts that several decoders share: normalization, activations, rotary positions, attention of separate heads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from simgpu.workloads.configured.adapters import OF_LOGITS, Adapter, Lora
from simgpu.workloads.configured.decoder import Decoder, NormKind
from simgpu.workloads.configured.options import Float8Form, FourBitForm
from simgpu.workloads.configured.package_attention import package_attended
from simgpu.workloads.configured.places import Places
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.collectives import PeerGroup, as_distributed, scattered
from simgpu.workloads.eager.float8 import float8_linear
from simgpu.workloads.eager.four_bit import FourBitWeight, four_bit_linear
from simgpu.workloads.eager.normalization import layer_norm, softmax
from simgpu.workloads.eager.pointwise import (
    activation,
    add,
    add_number,
    cast,
    clone,
    dropout,
    elementwise,
    mean,
    mul,
    power,
    relu,
    rsqrt,
    scale,
    tanh,
)
from simgpu.workloads.eager.products import batched_product, linear
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, expand, reshape, transpose, unsqueeze

#: Families whose mask has a sliding window, and that fill it in another way.
_WINDOWED = frozenset(("mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "starcoder2"))
#: Linear layers of which each GPU of a group has some columns of the weight, and so a part of each sum.
_BY_ROWS = ("o_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What creates the weights of one model.

    dtype: of the weights and, without autocast, of what is computed from them.
    lora: None to train all weights. float8: how linear layers multiply float8; None for none of them. four_bit: how the
    frozen linear layers are stored in four bits; None for none of them. made_in: the format that those are made in for
    products (``bnb_4bit_compute_dtype``), and of their biases.
    group: the GPUs that share the model; None if one has it whole.
    linear, in_float8: names of the linear layers, and of those that multiply float8, as they are created.
    """

    session: Session
    dtype: str
    lora: Lora | None = None
    linear: set[str] = field(default_factory=set)
    float8: Float8Form | None = None
    in_float8: set[str] = field(default_factory=set)
    four_bit: FourBitForm | None = None
    made_in: str = "bfloat16"
    group: PeerGroup | None = None

    def weight(self, name: str, *shape: int, dtype: str = "") -> Tensor:
        """A weight of the current layer. dtype: empty for that of the model."""
        result = self.session.weight(name, shape, dtype or self.dtype, trained=self.lora is None)
        if self.group is not None and result.node is not None:
            result.node.adds_in_place = False
        return result

    def packed(self, *shape: int) -> FourBitWeight | None:
        """A matrix of the current layer in four bits; None without these."""
        if self.four_bit is None:
            return None
        rows, width = shape
        nested = self.four_bit == FourBitForm.NF4_DOUBLE
        return FourBitWeight.create(self.session, (rows, width), self.made_in, nested=nested)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build(Weights):
    """What the parts of one transformer share.

    fused: the operator for attention, a result of `simgpu.workloads.eager.attention.fused_kernel`; None for products
    and softmax one after another. of_package: whether it is that of the package flash-attn.
    """

    decoder: Decoder
    fused: str | None
    of_package: bool = False


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer whose weights exist. group: GPUs over which its result is summed and scattered; None for none."""

    build: Weights
    name: str
    weight: Tensor
    bias: Tensor | None = None
    adapter: Adapter | None = None
    float8: Float8Form | None = None
    packed: FourBitWeight | None = None
    group: PeerGroup | None = None

    @classmethod
    def create(cls, build: Weights, name: str, inputs: int, outputs: int, bias: bool) -> Linear:
        """Creates the weights, (outputs, inputs) and (outputs,), and those of an adapter.

        Float8 needs sides that are multiples of 16, and torchtitan leaves out the layer of the logits. So does
        transformers with four bits.
        """
        build.linear.add(name)
        float8 = build.float8 if inputs % 16 == outputs % 16 == 0 and name not in OF_LOGITS else None
        if float8 is not None:
            build.in_float8.add(name)
        session, lora = build.session, build.lora
        is_adapted = lora is not None and lora.adapts(name)
        with session.layer(name):
            with session.layer("base_layer") if is_adapted else nullcontext():
                packed = build.packed(outputs, inputs) if name not in OF_LOGITS else None
                weight = build.weight("weight", outputs, inputs) if packed is None else packed.packed
                added = build.weight("bias", outputs, dtype=packed.dtype if packed else "") if bias else None
            adapter = Adapter.create(session, lora, inputs, outputs) if lora is not None and is_adapted else None
        return cls(build, name, weight, added, adapter, float8, packed, build.group if name in _BY_ROWS else None)

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            if self.float8 is not None:
                is_compiled = self.float8 == Float8Form.TENSORWISE_COMPILED
                return float8_linear(session, x, self.weight, self.bias, compiled=is_compiled)
            if self.group is not None:
                return scattered(session, self.group, self._own(x))
            if self.adapter is None:
                return self._own(x)
            with session.layer("base_layer"):
                result = self._own(x)
            if self.packed is not None:
                result = clone(session, result)  # peft's lora/bnb.py
            return self.adapter(session, x, result, in_four_bits=self.packed is not None)

    def _own(self, x: Tensor) -> Tensor:
        """The product without an adapter."""
        session = self.build.session
        if self.packed is not None:
            return four_bit_linear(session, x, self.packed, self.bias)
        return linear(session, x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Normalization by the root mean square in float32, as each model's own module computes it.

    Gemma's scales by one plus the weight in float32, before it returns to the weight's format.
    """

    build: Build
    name: str
    weight: Tensor

    @classmethod
    def create(cls, build: Build, name: str, width: int) -> RmsNorm:
        """Creates the weight."""
        with build.session.layer(name):
            weight = build.weight("weight", width)
        if build.group is not None:
            build.group.whole.add(weight.block)
        return cls(build, name, weight)

    def __call__(self, x: Tensor) -> Tensor:
        session, is_distributed = self.build.session, self.build.group is not None
        with session.layer(self.name), session.distributed(is_distributed):
            if is_distributed:
                x = as_distributed(session, x)
            wide = cast(session, x, "float32")
            variance = mean(session, power(session, wide))
            normal = mul(session, wide, rsqrt(session, add_number(session, variance)))
            if self.build.decoder.norm_kind == NormKind.WIDE:
                return cast(session, mul(session, self.weight, normal), x.dtype)
            if self.build.decoder.norm_kind == NormKind.BEHIND:
                return mul(session, cast(session, normal, x.dtype), self.weight)
            if self.build.decoder.norm_kind != NormKind.ADDED_ONE:
                return mul(session, self.weight, cast(session, normal, x.dtype))
            factor = add_number(session, cast(session, self.weight, "float32"))
            return cast(session, mul(session, normal, factor), x.dtype)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer normalization with weight and bias."""

    build: Weights
    name: str
    weight: Tensor
    bias: Tensor

    @classmethod
    def create(cls, build: Weights, name: str, width: int) -> LayerNorm:
        """Creates weight and bias."""
        with build.session.layer(name):
            return cls(build, name, build.weight("weight", width), build.weight("bias", width))

    def __call__(self, x: Tensor) -> Tensor:
        with self.build.session.layer(self.name):
            return layer_norm(self.build.session, x, self.weight, self.bias)


def activated(build: Build, name: str, x: Tensor) -> Tensor:
    """The activation function of the feed-forward part. name: of its module."""
    session = build.session
    with session.layer(name):
        match build.decoder.activation:
            case "gelu_new":
                return _gelu_new(session, x)
            case "gelu_fast":
                return _gelu_fast(session, x)
            case "relu":
                return relu(session, x)
            case one_kernel:
                return activation(session, one_kernel, x)


def _gelu_new(session: Session, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(a (x + b x^3))), one kernel for each operation."""
    half = scale(session, x)
    inner = scale(session, add(session, x, scale(session, power(session, x))))
    return mul(session, half, add_number(session, tanh(session, inner)))


def _gelu_fast(session: Session, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(a x (1 + b x x))), one kernel for each operation."""
    half = scale(session, x)
    first = scale(session, x)
    second = add_number(session, mul(session, scale(session, x), x))
    return mul(session, half, add_number(session, tanh(session, mul(session, first, second))))


def token_positions(build: Build, length: int) -> Tensor:
    """The numbers of the tokens, (1, length), counted in every iteration."""
    (numbers,) = build.session.run("arange", (), (((length,), "int64"),))
    return numbers.seen((1, length))


def heads_of(session: Session, x: Tensor, width: int, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """(batch, tokens, heads x width) as (batch, heads, tokens, width), each head normalized if `norm` is given."""
    heads = separated(session, x, width)
    return transpose(session, heads if norm is None else norm(heads), 1, 2)


def separated(session: Session, x: Tensor, width: int) -> Tensor:
    """(batch, tokens, heads x width) as (batch, tokens, heads, width)."""
    batch, tokens, total = x.shape
    return reshape(session, x, (batch, tokens, total // width, width))


def attended(build: Build, query: Tensor, key: Tensor, value: Tensor, places: Places) -> Tensor:
    """Causal attention of heads: (batch, tokens, heads x width). Keys and values are repeated for each query head, but
    in transformers 4.55 not for flash attention.

    Without a fused operator, products and softmax run one after another, as in ``eager_attention_forward`` of
    transformers 4.51; else one operator, whose inputs are copied to be contiguous, as in ``sdpa_attention_forward``.
    """
    session, rate = build.session, build.decoder.attention_dropout
    if build.of_package:
        result = package_attended(session, query, key, value, rate, places)
    else:
        if not (build.decoder.is_later and build.fused in ("flash", "cudnn")):
            key, value = (repeated(session, x, build.decoder.groups) for x in (key, value))
        if build.fused is None:
            assert places.mask is not None
            result = _products(build, query, key, value, places.mask)
        else:
            query, key, value = (contiguous(session, x) for x in (query, key, value))
            result = attention(session, build.fused, query, key, value, rate, places.mask)
    return joined_heads(session, result)


def joined_heads(session: Session, x: Tensor) -> Tensor:
    """Results of heads, (batch, heads, tokens, width), as (batch, tokens, heads x width)."""
    batch, heads, tokens, width = x.shape
    joined = contiguous(session, transpose(session, x, 1, 2))
    return reshape(session, joined, (batch, tokens, heads * width))


def _products(build: Build, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention by a product, a mask that is added, a softmax in float32 and another product."""
    session = build.session
    is_llama4 = build.decoder.family == "llama4_text"
    op = "div" if is_llama4 else "mul"
    scores = scale(session, batched_product(session, query, transpose(session, key, 2, 3)), op)
    scores = capped(session, scores) if build.decoder.capped_scores else scores
    scores = add(session, scores, mask)
    scores = cast(session, scores, "float32") if is_llama4 else scores
    weights = cast(session, softmax(session, scores, dtype="float32"), query.dtype)
    weights = dropout(session, weights, build.decoder.attention_dropout)
    return batched_product(session, weights, value)


def capped(session: Session, x: Tensor) -> Tensor:
    """Values limited by a tanh: divided, limited, multiplied."""
    return scale(session, tanh(session, scale(session, x, "div")))


def window_mask(session: Session, mask: Tensor) -> Tensor:
    """The causal mask without what is outside a sliding window, computed in each layer that has one (Gemma 2, 3)."""
    (ones,) = session.run("ones_like", (), ((mask.shape, "bool"),))
    outside = elementwise(session, "tril", ones)
    (least,) = session.run("scalar_tensor", (), (((), mask.dtype),))
    return elementwise(session, "where", outside, least, mask, dtype=mask.dtype)


def causal_mask(build: Build, batch: int, positions: Tensor) -> Tensor | None:
    """The mask (batch, 1, tokens, tokens) that is added to scores, filled in every iteration.

    None for fused attention that needs none, or has no masks. The mask has one column more than tokens, the length of a
    cache that does not exist, but for Gemma 2 and 3; and one for each token of a chunk in Llama 4. Models with a
    sliding window mask what is outside it too.
    """
    session, tokens = build.session, positions.shape[1]
    if build.of_package or (build.fused is not None and not build.decoder.needs_mask(tokens)):
        return None
    width = tokens if build.decoder.whole_step else tokens + 1
    if build.decoder.chunk is not None:
        width = build.decoder.chunk
        _look_up_chunk(session, positions)
    (mask,) = session.run("full", (), (((tokens, width), build.dtype),))
    has_window = build.decoder.family in _WINDOWED
    if tokens > 1 and not has_window:
        mask = elementwise(session, "triu", mask)
    rows = positions.seen((tokens, 1))
    (columns,) = session.run("arange", (), (((width,), "int64"),))
    hidden = elementwise(session, "gt", columns, rows, dtype="bool")
    if build.decoder.window is not None and has_window:
        (columns,) = session.run("arange", (), (((width,), "int64"),))
        outside = elementwise(session, "le", columns, elementwise(session, "sub", rows), dtype="bool")
        session.run_in_place("bitwise_or_", hidden, (outside,))
    session.run_in_place("mul_", mask, (hidden,))
    session.keep((hidden, columns))
    size = tokens * width
    return mask.seen((batch, 1, tokens, tokens), (0 if batch > 1 else size, size, width, 1))


def _look_up_chunk(session: Session, positions: Tensor) -> None:
    """Compares the first token with the size of a chunk; without a cache, nothing depends on it (Llama 4)."""
    first = positions.seen((), ())
    elementwise(session, "ge", first, dtype="bool")
    before = elementwise(session, "lt", first, dtype="bool")
    beyond = elementwise(session, "gt", elementwise(session, "add", first), dtype="bool")
    elementwise(session, "bitwise_and", before, beyond)


def repeated(session: Session, x: Tensor, times: int) -> Tensor:
    """Heads of keys or values (batch, heads, tokens, width), each repeated for several query heads."""
    if times == 1:
        return x
    batch, heads, tokens, width = x.shape
    shape: Sizes = (batch, heads, times, tokens, width)
    return reshape(session, expand(session, unsqueeze(session, x, 2), shape), (batch, heads * times, tokens, width))
