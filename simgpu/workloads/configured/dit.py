"""DiT as diffusers builds it (`DiTTransformer2DModel`): patches, blocks scaled by timestep and class, a prediction."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.diffusion import DiffusionTransformer
from simgpu.workloads.configured.image_attention import Attention, Heads
from simgpu.workloads.configured.image_layers import Convolution
from simgpu.workloads.configured.parts import Build, Linear
from simgpu.workloads.configured.timesteps import TimeEmbedding, waves
from simgpu.workloads.eager.normalization import layer_norm
from simgpu.workloads.eager.pointwise import activation, add, add_number, cast, dropout, elementwise, mul
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
            self.patches = Convolution.create(build, "proj", (sizes.channels, width), patch, stride=patch)
        self.blocks = [_Block.create(build, number) for number in range(build.decoder.layers)]
        self.scaling = Linear.create(build, "proj_out_1", width, 2 * width, bias=True)
        self.output = Linear.create(build, "proj_out_2", width, patch * patch * sizes.results, bias=True)

    def __call__(self, image: Tensor, timesteps: Tensor, classes: Tensor) -> Tensor:
        """The predicted noise of (batch, channels, side, side), and variances where the model has them."""
        session, width = self.build.session, self.build.decoder.width
        x = self._patches(image)
        for block in self.blocks:
            x = block(x, timesteps, classes)
        condition = self.blocks[0].embedded(timesteps, classes, x.dtype)
        condition = self.scaling(activation(session, "silu", condition))
        shift, factor = split(session, condition, [width] * 2)
        with session.layer("norm_out"):
            normal = layer_norm(session, x)
        moved = _moved(session, normal, factor, shift)
        session.keep((x,))  # diffusers' variable
        return self._image(self.output(moved))

    def _patches(self, image: Tensor) -> Tensor:
        """(batch, patches, width), with their positions added."""
        session = self.build.session
        with session.layer("pos_embed"):
            x = self.patches(image)
            x = reshape(session, x, (*x.shape[:2], self.build.decoder.positions))
            return cast(session, add(session, transpose(session, x, 1, 2), self.places), x.dtype)

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
    times: TimeEmbedding
    table: Tensor

    @classmethod
    def create(cls, build: Build) -> _Condition:
        session, width = build.session, build.decoder.width
        with session.layer("emb"):
            times = TimeEmbedding.create(build, "timestep_embedder", _WAVES, width)
            with session.layer("class_embedder"), session.layer("embedding_table"):
                return cls(build, times, build.weight("weight", build.decoder.vocabulary, width))

    def __call__(self, timesteps: Tensor, classes: Tensor, dtype: str) -> Tensor:
        """dtype: of the sines and cosines, that of the patches."""
        session = self.build.session
        with session.layer("emb"):
            with session.layer("time_proj"):
                of_time = waves(session, timesteps, _WAVES)
            of_time = self.times(cast(session, of_time, dtype))
            return add(session, of_time, self._of_class(classes))

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
    attention: Attention
    inner: tuple[Linear, Linear]

    @classmethod
    def create(cls, build: Build, number: int) -> _Block:
        name, session, decoder = f"transformer_blocks.{number}", build.session, build.decoder
        width = decoder.width
        with session.layer(name):
            with session.layer("norm1"):
                condition = _Condition.create(build)
                scaling = Linear.create(build, "linear", width, 6 * width, bias=True)
            assert build.fused is not None
            heads = Heads(decoder.head_width, build.fused)
            attention = Attention.create(build, "attn1", (width, width), heads, bias=decoder.query_bias)
            with session.layer("ff"):
                up = Linear.create(build, "net.0.proj", width, decoder.inner, bias=True)
                down = Linear.create(build, "net.2", decoder.inner, width, bias=True)
        return cls(build, name, condition, scaling, attention, (up, down))

    def embedded(self, timesteps: Tensor, classes: Tensor, dtype: str) -> Tensor:
        """The embedding alone, which the last layer computes again from the first block's weights."""
        session = self.build.session
        with session.layer(self.name), session.layer("norm1"):
            return self.condition(timesteps, classes, dtype)

    def __call__(self, x: Tensor, timesteps: Tensor, classes: Tensor) -> Tensor:
        session, width = self.build.session, self.build.decoder.width
        given, condition = x, self.embedded(timesteps, classes, x.dtype)
        with session.layer(self.name):
            with session.layer("norm1"):
                with session.layer("silu"):
                    condition = activation(session, "silu", condition)
                parts = split(session, self.scaling(condition), [width] * 6)
                shift, factor, gate, inner_shift, inner_factor, inner_gate = parts
                with session.layer("norm"):
                    normal = layer_norm(session, x)
                moved = _moved(session, normal, factor, shift)
            attended = self.attention(moved, moved, self.build.decoder.dropout)
            attended = mul(session, unsqueeze(session, gate, 1), attended)
            x = add(session, attended, x)
            with session.layer("norm3"):
                normal = layer_norm(session, x)
            session.keep((moved,))  # diffusers' variables, here and at the end of the block
            moved = _moved(session, normal, inner_factor, inner_shift)
            session.keep((normal,))
            inner = mul(session, unsqueeze(session, inner_gate, 1), self._inner(moved))
            result = add(session, inner, x)
            session.keep((given, *parts, attended, moved, inner))
            return result

    def _inner(self, x: Tensor) -> Tensor:
        session, (up, down) = self.build.session, self.inner
        with session.layer("ff"):
            hidden = up(x)
            with session.layer("net.0"):
                hidden = activation(session, "gelu", hidden)
            with session.layer("net.1"):
                hidden = dropout(session, hidden, self.build.decoder.dropout)
            return down(hidden)
