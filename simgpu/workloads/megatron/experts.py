"""The feed-forward parts of Megatron-LM's layers: one for all tokens, or experts that are divided among GPUs.

Sources: ``core/transformer/mlp.py``, ``core/transformer/moe/moe_layer.py``, ``experts.py`` (``TEGroupedMLP``) and
``shared_experts.py`` (not overlapped) of Megatron-LM at 23e00ed0 (0.14); TransformerEngine 2.11,
``pytorch/module/grouped_linear.py``. Each expert's result is scaled by the router's weights between its two products
(``core/fusions/fused_bias_swiglu.py``), so that un-permuting needs no weights. GPUs that share an expert gather all
their rows and scatter the sums (``--expert-tensor-parallel-size``, by default as many as share a layer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.workloads.configured.decoder import Decoder, Experts, NormKind
from simgpu.workloads.eager.pointwise import add, only
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.work import gemm
from simgpu.workloads.megatron.dispatch import exchanged, of_all_parts, permuted, reordered, sum_of_parts, unpermuted
from simgpu.workloads.megatron.layers import Parts, biased_gelu, gated, norm_product, normalized, row_product
from simgpu.workloads.megatron.router import capacity, routed
from simgpu.workloads.timemodel.operation import Direction, GemmShape, Operation

_Grads = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class DensePart:
    """A gated feed-forward part, or a plain one with biases, with the normalization before it.

    bias: of the first product, if it has one. output_bias: of the second, which is added with the layer's input.
    """

    parts: Parts
    norm: tuple[Tensor, ...]
    up: Tensor
    down: Tensor
    bias: Tensor | None
    output_bias: Tensor | None

    @property
    def norms(self) -> tuple[Tensor, ...]:
        """Weights of the normalization and the result's bias, of which all GPUs of a group have a copy."""
        return self.norm if self.output_bias is None else (*self.norm, self.output_bias)

    @classmethod
    def create(cls, parts: Parts, decoder: Decoder) -> DensePart:
        """Creates this GPU's parts of the weights."""
        width, inner = decoder.width, decoder.inner // parts.group.ranks
        with parts.session.layer("mlp"):
            norm = parts.norm("linear_fc1.layer_norm_", width, layer=decoder.norm_kind is NormKind.LAYER)
            up = parts.matrix("linear_fc1.weight", inner if decoder.inner_bias else 2 * inner, width)
            bias = parts.vector("linear_fc1.bias", inner) if decoder.inner_bias else None
            down = parts.matrix("linear_fc2.weight", width, inner)
            output_bias = parts.vector("linear_fc2.bias", width) if decoder.inner_bias else None
            return cls(parts, norm, up, down, bias, output_bias)

    def __call__(self, x: Tensor) -> Tensor:
        with self.parts.session.layer("mlp"):
            both = norm_product(self.parts, x, self.norm, self.up)
            inner = gated(self.parts, both) if self.bias is None else biased_gelu(self.parts, both, self.bias)
            return row_product(self.parts, inner, self.down)


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """A router, this GPU's experts, and the products of shared ones, if any."""

    parts: Parts
    sizes: Experts
    norm: Tensor
    router: Tensor
    ups: tuple[Tensor, ...]
    downs: tuple[Tensor, ...]
    shared: tuple[Tensor, Tensor] | None
    output_bias: None = None

    @property
    def norms(self) -> tuple[Tensor, ...]:
        """The weights of normalization and router, of which all GPUs of a group have a copy."""
        return (self.norm, self.router)

    @classmethod
    def create(cls, parts: Parts, decoder: Decoder, sizes: Experts) -> RoutedExperts:
        """Creates the weights of the router, this GPU's experts and the shared ones."""
        session, width, local = parts.session, decoder.width, sizes.count // parts.experts.ranks
        norm, inner = parts.vector("pre_mlp_layernorm.weight", width), sizes.inner // parts.of_expert.ranks
        with session.layer("mlp"):
            with session.layer("router"):
                router = session.weight("weight", (sizes.count, width), "bfloat16")
            with session.layer("experts"):
                ups, downs = (
                    tuple(parts.matrix(f"{name}.weight{number}", *shape) for number in range(local))
                    for name, shape in (("linear_fc1", (2 * inner, width)), ("linear_fc2", (width, inner)))
                )
            parts.of_experts.update(weight.block for weight in (*ups, *downs))
            shared = None
            if sizes.shared:
                with session.layer("shared_experts"):
                    up = parts.matrix("linear_fc1.weight", 2 * sizes.shared, width)
                    shared = up, parts.matrix("linear_fc2.weight", width, sizes.shared)
        return cls(parts, sizes, norm, router, ups, downs, shared)

    def __call__(self, x: Tensor) -> Tensor:
        parts, session, local = self.parts, self.parts.session, len(self.ups)
        with session.layer("pre_mlp_layernorm"):
            normal = normalized(parts, x, self.norm)
        with session.layer("mlp"):
            with session.layer("router"):
                routing = routed(parts, normal, self.router, self.sizes)
            rows = self.sizes.count * capacity(self.sizes, x.shape[0])
            sent, weights, places = permuted(session, normal, routing, rows)
            received, weights = exchanged(parts, sent), exchanged(parts, weights)
            shared = self._shared(normal)
            whole, weights = of_all_parts(parts, received), of_all_parts(parts, weights)
            ordered, weights = reordered(parts, whole, local), reordered(parts, weights, local)
            with session.layer("experts"):
                inner = _weighted(parts, grouped_product(parts, ordered, self.ups), weights)
                result = grouped_product(parts, inner, self.downs)
            returned = sum_of_parts(parts, reordered(parts, result, local))
            session.keep((result,))  # by a local variable of ``MoELayer.experts_compute``
            total = unpermuted(session, exchanged(parts, returned), places)
            if shared is not None:
                total = add(session, total, shared)
            session.keep((sent, received, returned))  # by local variables of ``MoELayer.forward``
            return total

    def _shared(self, normal: Tensor) -> Tensor | None:
        if self.shared is None:
            return None
        with self.parts.session.layer("shared_experts"):
            inner = gated(self.parts, row_product(self.parts, normal, self.shared[0]))
            return row_product(self.parts, inner, self.shared[1])


def grouped_product(parts: Parts, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Equal numbers of rows times one weight each, in one launch; adds up the weights' gradients itself."""
    session, (columns, width) = parts.session, weights[0].shape
    rows = x.shape[0] // len(weights)
    shape = x.shape[0], columns
    read = sum(weight.bytes for weight in weights)
    forward = GemmShape(rows, columns, width, len(weights))
    work = _work(forward, x.bytes + read + 2 * shape[0] * columns, Direction.FORWARD)
    (result,) = session.run("_grouped_mm", (x, *weights), ((shape, x.dtype),), operations=(work,))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        to_x = GemmShape(rows, width, columns, len(weights))
        work = _work(to_x, grad.bytes + read + x.bytes, Direction.BACKWARD_DATA)
        of_x = session.run("_grouped_mm", (grad, *weights), ((x.shape, x.dtype),), operations=(work,))
        totals = [parts.gradients[weight.block].block for weight in weights]
        to_weights = GemmShape(columns, width, rows, len(weights))
        work = _work(to_weights, grad.bytes + x.bytes + 4 * read, Direction.BACKWARD_WEIGHTS)
        session.tape.launch_blocks("_grouped_mm", (work,), [grad.block, x.block, *totals], totals, pure=False)
        return of_x

    session.record((result,), (x,), backward, (x, *weights), in_python=True)
    return result


def _work(shape: GemmShape, moved: int, direction: Direction) -> Operation:
    return gemm(shape, moved, shape.count * shape.m * shape.n, "bfloat16", direction)


def _weighted(parts: Parts, x: Tensor, weights: Tensor) -> Tensor:
    """SiLU of the first half of the columns times the second and each row's weight, in one kernel."""
    session, (rows, width) = parts.session, x.shape
    (result,) = session.run("weighted_swiglu", (x, weights), (((rows, width // 2), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        shapes = [(each.shape, each.dtype) for each in (x, weights)]
        return session.run("weighted_swiglu_backward", (only(grads), x, weights), shapes)

    session.record((result,), (x, weights), backward, (x, weights), in_python=True)
    return result
