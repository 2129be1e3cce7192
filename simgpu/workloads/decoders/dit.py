"""DiT as diffusers builds it (`DiTTransformer2DModel`): patches, blocks scaled by timestep and class, a prediction."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.decoders.diffusion import DiffusionTransformer
from simgpu.workloads.decoders.parts import Build, Linear, heads_of
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.convolution import patches
from simgpu.workloads.eager.normalization import layer_norm
from simgpu.workloads.eager.pointwise import activation, add, add_number, cast, cat, dropout, elementwise, mul, scale
from simgpu.workloads.eager.products import embedding
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import permute, reshape, split, transpose, unsqueeze

#: Sines and cosines of a timestep (``CombinedTimestepLabelEmbeddings``).
_WAVES = 256


class DitModel:
    """The weights of the model, created in the order of diffusers' modules; calling it computes the prediction."""

    def __init__(self, build: Build, sizes: DiffusionTransformer) -> None:
        self.build, self.sizes = build, sizes
        session, width, patch = build.session, build.decoder.width, sizes.patch
        with session.layer("pos_embed"):
            places = (1, build.decoder.positions, width)
            self.places = session.constant("pos_embed.pos_embed", places, build.dtype, BlockKind.OTHER)
            with session.layer("proj"):
                self.filter = build.weight("weight", width, sizes.channels, patch, patch)
                self.bias = build.weight("bias", width)
        self.blocks = [_Block.create(build, number) for number in range(build.decoder.layers)]
        self.scaling = Linear.create(build, "proj_out_1", width, 2 * width, bias=True)
        self.output = Linear.create(build, "proj_out_2", width, patch * patch * sizes.results, bias=True)

    def __call__(self, image: Tensor, timesteps: Tensor, classes: Tensor) -> Tensor:
        """The predicted noise of (batch, channels, side, side), and variances where the model has them."""
        session, width = self.build.session, self.build.decoder.width
        x = self._patches(image)
        for block in self.blocks:
            x = block(x, timesteps, classes)
        condition = self.blocks[0].embedded(timesteps, classes)
        condition = self.scaling(activation(session, "silu", condition))
        shift, factor = split(session, condition, [width] * 2)
        with session.layer("norm_out"):
            normal = layer_norm(session, x)
        return self._image(self.output(_moved(session, normal, factor, shift)))

    def _patches(self, image: Tensor) -> Tensor:
        """(batch, patches, width), with their positions added."""
        session = self.build.session
        with session.layer("pos_embed"):
            with session.layer("proj"):
                x = patches(session, image, self.filter, self.bias)
            x = reshape(session, x, (*x.shape[:2], self.build.decoder.positions))
            return add(session, transpose(session, x, 1, 2), self.places)

    def _image(self, x: Tensor) -> Tensor:
        """Patches (batch, patches, values) put together to an image."""
        session, batch, patch, results = self.build.session, x.shape[0], self.sizes.patch, self.sizes.results
        rows = self.sizes.side // patch
        x = reshape(session, x, (batch, rows, rows, patch, patch, results))
        x = permute(session, x, (0, 5, 1, 3, 2, 4))
        return reshape(session, x, (batch, results, self.sizes.side, self.sizes.side))


def _moved(session: Session, x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """x (1 + factor) + shift, with one factor and shift for each sample and channel."""
    scaled = mul(session, x, add_number(session, unsqueeze(session, factor, 1)))
    return add(session, scaled, unsqueeze(session, shift, 1))


@dataclass(frozen=True, slots=True)
class _Condition:
    """The sum of the embeddings of timestep and class. Each block has its own, other than in DiT's first code."""

    build: Build
    first: Linear
    second: Linear
    table: Tensor

    @classmethod
    def create(cls, build: Build) -> _Condition:
        session, width = build.session, build.decoder.width
        with session.layer("emb"):
            with session.layer("timestep_embedder"):
                first = Linear.create(build, "linear_1", _WAVES, width, bias=True)
                second = Linear.create(build, "linear_2", width, width, bias=True)
            with session.layer("class_embedder"), session.layer("embedding_table"):
                table = build.weight("weight", build.decoder.vocabulary, width)
        return cls(build, first, second, table)

    def __call__(self, timesteps: Tensor, classes: Tensor) -> Tensor:
        session = self.build.session
        with session.layer("emb"):
            waves = cast(session, self._waves(timesteps), self.build.dtype)
            with session.layer("timestep_embedder"):
                hidden = self.first(waves)
                with session.layer("act"):
                    hidden = activation(session, "silu", hidden)
                of_time = self.second(hidden)
            return add(session, of_time, self._of_class(classes))

    def _waves(self, timesteps: Tensor) -> Tensor:
        """``get_timestep_embedding``: one kernel for each operation, in float32; the cosines are moved to the front."""
        session, (batch,), half = self.build.session, timesteps.shape, _WAVES // 2
        with session.layer("time_proj"):
            (exponents,) = session.run("arange", (), (((half,), "float32"),))
            for op in ("mul", "div", "exp"):
                exponents = elementwise(session, op, exponents)
            times = cast(session, timesteps.seen((batch, 1)), "float32")
            angles = elementwise(session, "mul", times, exponents.seen((1, half)))
            angles = elementwise(session, "mul", angles)
            waves = cat(session, [elementwise(session, op, angles) for op in ("sin", "cos")])
            sines, cosines = (waves.seen((batch, half), waves.strides) for _ in range(2))
            cosines.offset = half
            return cat(session, (cosines, sines))

    def _of_class(self, classes: Tensor) -> Tensor:
        """The class's row of the table, or with the rate of classifier-free guidance the last one."""
        session = self.build.session
        with session.layer("class_embedder"):
            (drawn,) = session.run("rand", (), ((classes.shape, "float32"),), pure=False)
            dropped = elementwise(session, "lt", drawn, dtype="bool")
            (no_class,) = session.run("scalar_tensor", (), (((), classes.dtype),))
            chosen = elementwise(session, "where", dropped, no_class, classes, dtype=classes.dtype)
            with session.layer("embedding_table"):
                return embedding(session, chosen, self.table)


@dataclass(frozen=True, slots=True)
class _Block:
    """Attention and the feed-forward part, each scaled, moved and gated by timestep and class (adaLN-Zero)."""

    build: Build
    name: str
    condition: _Condition
    scaling: Linear
    products: tuple[Linear, Linear, Linear]
    output: Linear
    inner: tuple[Linear, Linear]

    @classmethod
    def create(cls, build: Build, number: int) -> _Block:
        name, session, decoder = f"transformer_blocks.{number}", build.session, build.decoder
        width = decoder.width
        with session.layer(name):
            with session.layer("norm1"):
                condition = _Condition.create(build)
                scaling = Linear.create(build, "linear", width, 6 * width, bias=True)
            with session.layer("attn1"):
                query, key, value = (
                    Linear.create(build, f"to_{each}", width, width, bias=decoder.query_bias) for each in "qkv"
                )
                output = Linear.create(build, "to_out.0", width, width, bias=True)
            with session.layer("ff"):
                up = Linear.create(build, "net.0.proj", width, decoder.inner, bias=True)
                down = Linear.create(build, "net.2", decoder.inner, width, bias=True)
        return cls(build, name, condition, scaling, (query, key, value), output, (up, down))

    def embedded(self, timesteps: Tensor, classes: Tensor) -> Tensor:
        """The embedding alone, which the last layer computes again from the first block's weights."""
        session = self.build.session
        with session.layer(self.name), session.layer("norm1"):
            return self.condition(timesteps, classes)

    def __call__(self, x: Tensor, timesteps: Tensor, classes: Tensor) -> Tensor:
        session, width = self.build.session, self.build.decoder.width
        condition = self.embedded(timesteps, classes)
        with session.layer(self.name):
            with session.layer("norm1"):
                with session.layer("silu"):
                    condition = activation(session, "silu", condition)
                parts = split(session, self.scaling(condition), [width] * 6)
                shift, factor, gate, inner_shift, inner_factor, inner_gate = parts
                with session.layer("norm"):
                    normal = layer_norm(session, x)
                moved = _moved(session, normal, factor, shift)
            attended = self._attended(moved)
            x = add(session, mul(session, unsqueeze(session, gate, 1), attended), x)
            with session.layer("norm3"):
                normal = layer_norm(session, x)
            result = self._inner(_moved(session, normal, inner_factor, inner_shift))
            return add(session, mul(session, unsqueeze(session, inner_gate, 1), result), x)

    def _attended(self, x: Tensor) -> Tensor:
        """``AttnProcessor2_0``: fused attention of all patches to all; the result is divided by one."""
        session, decoder, fused = self.build.session, self.build.decoder, self.build.fused
        assert fused is not None
        with session.layer("attn1"):
            query, key, value = (heads_of(session, product(x), decoder.head_width) for product in self.products)
            result = transpose(session, attention(session, fused, query, key, value, 0.0, causal=False), 1, 2)
            result = self.output(reshape(session, result, x.shape))
            with session.layer("to_out.1"):
                result = dropout(session, result, decoder.dropout)
            return scale(session, result, "div")

    def _inner(self, x: Tensor) -> Tensor:
        session, (up, down) = self.build.session, self.inner
        with session.layer("ff"):
            hidden = up(x)
            with session.layer("net.0"):
                hidden = activation(session, "gelu", hidden)
            with session.layer("net.1"):
                hidden = dropout(session, hidden, self.build.decoder.dropout)
            return down(hidden)
