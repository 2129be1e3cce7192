"""The layers of Megatron-LM's GPT model that one stage of a pipeline has, and its loss.

Source: Megatron-LM 0.20, ``core/models/gpt/gpt_model.py``, ``core/transformer/transformer_layer.py``,
``core/models/common/embeddings/language_model_embedding.py`` and ``core/tensor_parallel/layers.py``, with
TransformerEngine's layers (`simgpu.workloads.megatron.layers`). The embedding and the layer of the logits are divided
by words, whose number is padded to a multiple of 128 for each GPU of a group. Trained positions are on each GPU whole.
The layer of the logits gathers its input in a buffer that stays (``get_global_memory_buffer``). The loss is
TransformerEngine 2.11's ``parallel_cross_entropy``, which replaces the logits by their gradient
(``--cross-entropy-loss-fusion --cross-entropy-fusion-impl te``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.hardware.collectives import Collective, Group
from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.decoder import Decoder, NormKind
from simgpu.workloads.eager.pointwise import add, dropout, only, scale
from simgpu.workloads.eager.products import embedding, product
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.work import work_of
from simgpu.workloads.megatron.attention import JointAttention, LatentSelfAttention
from simgpu.workloads.megatron.experts import DensePart, RoutedExperts
from simgpu.workloads.megatron.layers import Parts, add_product, biased_sum, normalized

#: ``--make-vocab-size-divisible-by``, for each GPU of a group.
_WORDS = 128

_Grads = Sequence[Tensor | None]


def padded_words(vocabulary: int, tensor: int) -> int:
    """The rows of the embedding of all GPUs that share it.

    >>> padded_words(128256, 4)
    128512
    """
    step = _WORDS * tensor
    return -(-vocabulary // step) * step


class Stage:
    """The weights of a stage, created in the order of Megatron-LM's modules. first, last: of the pipeline's stages."""

    def __init__(self, parts: Parts, decoder: Decoder, layers: range, *, first: bool, last: bool) -> None:
        self.parts, self.decoder, self.first, self.last = parts, decoder, first, last
        self.words = padded_words(decoder.vocabulary, parts.group.ranks) // parts.group.ranks
        session = parts.session
        if first:
            with session.layer("embedding"):
                self.table = session.weight("word_embeddings.weight", (self.words, decoder.width), "bfloat16")
                if not decoder.rotary_width:
                    shape = decoder.positions, decoder.width
                    self.positions = session.weight("position_embeddings.weight", shape, "bfloat16")
        with session.layer("decoder"):
            self.layers = [_Layer.create(parts, decoder, number) for number in layers]
            if last:
                with session.layer("final_layernorm"):
                    self.scale = parts.norm("", decoder.width, layer=decoder.norm_kind is NormKind.LAYER)
        if last:
            with session.layer("output_layer"):
                tied = first and decoder.tied
                self.output = parts.as_matrix(self.table) if tied else parts.matrix("weight", self.words, decoder.width)

    def embedded(self, tokens: Tensor) -> Tensor:
        """The rows of this GPU's part of the tokens."""
        session, group = self.parts.session, self.parts.group
        with session.layer("embedding"):
            rows = self._looked_up(tokens)
            if not self.decoder.rotary_width:
                return self._dropped(self._with_positions(rows, tokens))
            result = self.parts.exchanges.scattered(rows, group)
            if result is not rows:

                def backward(grads: _Grads) -> _Grads:
                    return (self.parts.exchanges.gathered(only(grads), group),)

                session.record((result,), (rows,), backward, in_python=True)
            return self._dropped(result)

    def _dropped(self, x: Tensor) -> Tensor:
        with self.parts.session.layer("embedding_dropout"):
            return dropout(self.parts.session, x, self.decoder.embedding_dropout)

    def _with_positions(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """The rows with those of their positions. Of several GPUs each adds up all, and copies its part then."""
        session, group = self.parts.session, self.parts.group
        self.parts.exchanges.in_place(Collective.ALL_REDUCE, [rows], group)
        places = session.constant("position_ids", tokens.shape, "int64", BlockKind.INPUT).seen((tokens.count,))
        whole = add(session, rows, embedding(session, places, self.positions))
        if tokens.shape[0] > 1:
            whole = _in_order_of_tokens(session, whole)
        if group.ranks == 1:
            return whole
        part = whole.part(0, 0, tokens.count // group.ranks)
        (result,) = session.run("clone", (part,), ((part.shape, part.dtype),))

        def backward(grads: _Grads) -> _Grads:
            return (self.parts.exchanges.gathered(only(grads), group),)

        session.record((result,), (whole,), backward, in_python=True)
        return result

    def _looked_up(self, tokens: Tensor) -> Tensor:
        """Rows of the table; with several GPUs, zeros for the words of others."""
        session, is_shared = self.parts.session, self.parts.group.ranks > 1
        flat = tokens.seen((tokens.count,))
        if is_shared:
            (mask,) = session.run("bitwise_or", (flat,), (((tokens.count,), "bool"),))
            (flat,) = session.run("sub", (flat, mask), (((tokens.count,), "int64"),))
        (rows,) = session.run("embedding", (self.table, flat), (((tokens.count, self.decoder.width), "bfloat16"),))
        if is_shared:
            session.run_in_place("index_put_", rows, (mask,))

        def backward(grads: _Grads) -> _Grads:
            return session.run("embedding_dense_backward", (only(grads), flat), ((self.table.shape, "bfloat16"),))

        session.record((rows,), (self.table,), backward, (flat,))
        return rows

    def through_layers(self, x: Tensor, samples: int) -> Tensor:
        """What the stage's layers make of the rows."""
        with self.parts.session.layer("decoder"):
            for layer in self.layers:
                x = layer(x, samples)
        return x

    def loss(self, x: Tensor, labels: Tensor, micro_batches: int) -> Tensor:
        """The mean loss of a micro-batch, divided by their number."""
        session = self.parts.session
        with session.layer("decoder"), session.layer("final_layernorm"):
            normal = normalized(self.parts, x, *self.scale)
        with session.layer("output_layer"):
            logits = self._logits(normal)
        with session.layer("loss"):
            each = self._cross_entropies(logits, labels)
            (total,) = session.run("sum", (each,), (((), "float32"),))

            def backward(grads: _Grads) -> _Grads:
                return session.run("mul", (only(grads), each), ((each.shape, "float32"),))

            session.record((total,), (each,), backward)
            mean = scale(session, total, "div")
            return mean if micro_batches == 1 else scale(session, mean, "div")

    def _logits(self, normal: Tensor) -> Tensor:
        parts, weight = self.parts, self.output
        width = weight.shape[1]
        whole = self._gathered(normal)
        result = product(parts.session, "mm", whole, weight.seen((width, self.words), (1, width)))

        def backward(grads: _Grads) -> _Grads:
            grad = only(grads)
            whole = self._gathered(normal)
            of_whole = product(parts.session, "mm", grad, weight)
            of_normal = parts.exchanges.scattered(of_whole, parts.group)
            add_product(parts, weight, whole, grad)
            return (of_normal,)

        parts.session.record((result,), (normal,), backward, (normal, weight), in_python=True)
        return result

    def _gathered(self, normal: Tensor) -> Tensor:
        """All rows, in a buffer that stays. The next use of the buffer replaces them."""
        parts = self.parts
        if parts.group.ranks == 1:
            return normal
        shape = (normal.shape[0] * parts.group.ranks, normal.shape[1])
        buffer = parts.session.constant("mpu_buffer", shape, "bfloat16", BlockKind.OTHER)
        parts.exchanges.into(buffer, normal, parts.group)
        return buffer

    def _cross_entropies(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row. The logits' gradient takes the place of the logits."""
        parts, session, rows = self.parts, self.parts.session, logits.shape[0]
        losses, sums = session.run("zeros", (), (((rows,), "float32"), ((3 * rows,), "float32")))
        session.run_in_place("online_softmax_kernel", sums, (logits, labels))
        all_sums = parts.exchanges.gathered(sums, parts.group)
        changed = (logits, losses)
        work = work_of("cross_entropy_kernel", (*changed, labels, all_sums), changed, backward=False)
        reads = [each.block for each in (*changed, labels, all_sums)]
        session.tape.launch_blocks("cross_entropy_kernel", (work,), reads, [each.block for each in changed], pure=False)
        session.keep((sums,))

        def backward(grads: _Grads) -> _Grads:
            session.run_in_place("element_mul_kernel", logits, (only(grads),))
            return (logits,)

        session.record((losses,), (logits,), backward, (logits,), in_python=True)
        return losses


@dataclass(frozen=True, slots=True)
class _Layer:
    """One transformer layer."""

    parts: Parts
    name: str
    attention: JointAttention | LatentSelfAttention
    inner: DensePart | RoutedExperts
    dropout: float

    @classmethod
    def create(cls, parts: Parts, decoder: Decoder, number: int) -> _Layer:
        name, latent, experts = f"layers.{number}", decoder.latent, decoder.experts
        with parts.session.layer(name):
            if latent is None:
                attention: JointAttention | LatentSelfAttention = JointAttention.create(parts, decoder)
            else:
                attention = LatentSelfAttention.create(parts, decoder, latent)
            if experts is None or not decoder.has_experts(number):
                inner: DensePart | RoutedExperts = DensePart.create(parts, decoder)
            else:
                inner = RoutedExperts.create(parts, decoder, experts)
        return cls(parts, name, attention, inner, decoder.dropout)

    def __call__(self, x: Tensor, samples: int) -> Tensor:
        with self.parts.session.layer(self.name):
            x = self._sum(x, self.attention(x, samples), self.attention.output_bias)
            return self._sum(x, self.inner(x), self.inner.output_bias)

    def _sum(self, x: Tensor, result: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return add(self.parts.session, x, result)
        return biased_sum(self.parts, result, bias, x, self.dropout)


def _in_order_of_tokens(session: Session, x: Tensor) -> Tensor:
    """Rows of the first token of each sample, then of the second, a copy."""
    (result,) = session.run("clone", (x,), ((x.shape, x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return (only(grads),)

    session.record((result,), (x,), backward)
    return result


def all_reduced_norms(stage: Stage) -> list[Tensor]:
    """The gradients of normalizations and of biases of sums: each GPU of a group has those of its tokens."""
    gradients = stage.parts.gradients
    weights = [norm for layer in stage.layers for norm in (*layer.attention.norms, *layer.inner.norms)]
    weights += stage.scale if stage.last else ()
    return [gradients[weight.block] for weight in weights]


def reduce_norms(stage: Stage, group: Group) -> None:
    """Adds them up (``_allreduce_non_tensor_model_parallel_grads``)."""
    stage.parts.exchanges.in_place(Collective.ALL_REDUCE, all_reduced_norms(stage), group)
