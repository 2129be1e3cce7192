"""Blocks of a U-Net as diffusers builds them: residual blocks with a timestep, and transformers of pixels and a text.

What variables of diffusers' code hold until a module returns is kept: it sets the peak of a U-Net's forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simgpu.workloads.configured.image_attention import Attention, Heads
from simgpu.workloads.configured.image_layers import Convolution, GroupNorm
from simgpu.workloads.configured.parts import LayerNorm, Linear, Weights
from simgpu.workloads.configured.unet_config import Level, UNet
from simgpu.workloads.eager.pointwise import activation, add, dropout, mul, scale
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, permute, reshape, split, unsqueeze


@dataclass(frozen=True, slots=True)
class ResidualBlock:
    """``ResnetBlock2D``: two convolutions, each after a normalization, with the timestep added between them."""

    build: Weights
    name: str
    dropout: float
    norms: tuple[GroupNorm, GroupNorm]
    convolutions: tuple[Convolution, Convolution]
    time: Linear
    shortcut: Convolution | None

    @classmethod
    def create(cls, build: Weights, name: str, sizes: UNet, inputs: int, outputs: int) -> ResidualBlock:
        """Creates the weights. inputs, outputs: channels."""
        with build.session.layer(name):
            first_norm = GroupNorm.create(build, "norm1", inputs, sizes.groups)
            first = Convolution.create(build, "conv1", (inputs, outputs), 3, padding=1)
            time = Linear.create(build, "time_emb_proj", sizes.times, outputs, bias=True)
            second_norm = GroupNorm.create(build, "norm2", outputs, sizes.groups)
            second = Convolution.create(build, "conv2", (outputs, outputs), 3, padding=1)
            shortcut = Convolution.create(build, "conv_shortcut", (inputs, outputs), 1) if inputs != outputs else None
        return cls(build, name, sizes.dropout, (first_norm, second_norm), (first, second), time, shortcut)

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        """time: the embedding, (batch, width)."""
        session, given = self.build.session, x
        with session.layer(self.name):
            active = _activated(session, self.norms[0](x))
            hidden = self.convolutions[0](active)
            session.keep((active,))
            change = self.time(_activated(session, time))
            hidden = add(session, hidden, unsqueeze(session, unsqueeze(session, change, 2), 3))
            hidden = _activated(session, self.norms[1](hidden))
            with session.layer("dropout"):
                hidden = dropout(session, hidden, self.dropout)
            hidden, active = self.convolutions[1](hidden), hidden
            session.keep((active,))
            if self.shortcut is not None:
                x = self.shortcut(x)
            result = scale(session, add(session, x, hidden), "div")
            session.keep((given, x, hidden, change))
            return result


def _activated(session: Session, x: Tensor) -> Tensor:
    with session.layer("nonlinearity"):
        return activation(session, "silu", x)


@dataclass(frozen=True, slots=True)
class Transformer:
    """``Transformer2DModel``: the pixels of an image as tokens, each layer with attention to them and to a text."""

    build: Weights
    name: str
    norm: GroupNorm
    first: Convolution | Linear
    layers: tuple[_Layer, ...]
    last: Convolution | Linear

    @classmethod
    def create(
        cls, build: Weights, name: str, sizes: UNet, level: Level, layers: int, fused: Mapping[int, str | None]
    ) -> Transformer:
        """Creates the weights. layers: their number. fused: the operator of attention by the width of its heads, or
        None."""
        width = level.channels
        with build.session.layer(name):
            norm = GroupNorm.create(build, "norm", width, sizes.groups)
            first = _around(build, "proj_in", width, sizes)
            heads = Heads(width // level.heads, fused[width // level.heads], sizes.upcast)
            created = tuple(
                _Layer.create(build, f"transformer_blocks.{number}", (width, sizes.text), heads)
                for number in range(layers)
            )
            return cls(build, name, norm, first, created, _around(build, "proj_out", width, sizes))

    def __call__(self, x: Tensor, text: Tensor) -> Tensor:
        session, (batch, width, rows, columns) = self.build.session, x.shape
        tokens, image = (batch, rows * columns, width), (batch, rows, columns, width)
        with session.layer(self.name):
            hidden = self.norm(x)
            if isinstance(self.first, Convolution):
                hidden = reshape(session, permute(session, self.first(hidden), (0, 2, 3, 1)), tokens)
            else:
                hidden = self.first(reshape(session, permute(session, hidden, (0, 2, 3, 1)), tokens))
            for layer in self.layers:
                hidden = layer(hidden, text)
            tokens_held = hidden
            if isinstance(self.last, Linear):
                hidden = self.last(hidden)
            hidden = contiguous(session, permute(session, reshape(session, hidden, image), (0, 3, 1, 2)))
            if isinstance(self.last, Convolution):
                hidden = self.last(hidden)
            result = add(session, hidden, x)
            session.keep((tokens_held, hidden))
            return result


def _around(build: Weights, name: str, width: int, sizes: UNet) -> Convolution | Linear:
    """The layer before or after those of a transformer."""
    if sizes.linear:
        return Linear.create(build, name, width, width, bias=True)
    return Convolution.create(build, name, (width, width), 1)


@dataclass(frozen=True, slots=True)
class _Layer:
    """``BasicTransformerBlock``: attention to the image, attention to the text, and a gated feed-forward part."""

    build: Weights
    name: str
    norms: tuple[LayerNorm, LayerNorm, LayerNorm]
    attentions: tuple[Attention, Attention]
    inner: tuple[Linear, Linear]

    @classmethod
    def create(cls, build: Weights, name: str, widths: tuple[int, int], heads: Heads) -> _Layer:
        """widths: of the image's tokens and of the text's."""
        width = widths[0]
        with build.session.layer(name):
            first = LayerNorm.create(build, "norm1", width)
            own = Attention.create(build, "attn1", (width, width), heads, bias=False)
            second = LayerNorm.create(build, "norm2", width)
            cross = Attention.create(build, "attn2", widths, heads, bias=False)
            third = LayerNorm.create(build, "norm3", width)
            with build.session.layer("ff"):
                up = Linear.create(build, "net.0.proj", width, 8 * width, bias=True)
                down = Linear.create(build, "net.2", 4 * width, width, bias=True)
        return cls(build, name, (first, second, third), (own, cross), (up, down))

    def __call__(self, x: Tensor, text: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            given, normal = x, self.norms[0](x)
            attended = self.attentions[0](normal, normal)
            x = add(session, attended, x)
            normal, before = self.norms[1](x), normal
            session.keep((before,))
            attended, before = self.attentions[1](normal, text), attended
            session.keep((before,))
            x = add(session, attended, x)
            normal, before = self.norms[2](x), normal
            session.keep((before,))
            inner = self._gated(normal)
            result = add(session, inner, x)
            session.keep((given, attended, normal, inner))
            return result

    def _gated(self, x: Tensor) -> Tensor:
        """``FeedForward`` with ``GEGLU``."""
        session, (up, down) = self.build.session, self.inner
        with session.layer("ff"):
            both = up(x)
            with session.layer("net.0"):
                hidden, gate = split(session, both, [both.shape[-1] // 2] * 2)
                hidden = mul(session, hidden, activation(session, "gelu", gate))
            return down(hidden)
