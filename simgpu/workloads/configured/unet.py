"""A U-Net as diffusers builds it (`UNet2DConditionModel`): a path down, a middle, and a path up with what it kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simgpu.workloads.configured.image_layers import Convolution, GroupNorm
from simgpu.workloads.configured.parts import Weights
from simgpu.workloads.configured.timesteps import TimeEmbedding, waves
from simgpu.workloads.configured.unet_blocks import ResidualBlock, Transformer
from simgpu.workloads.configured.unet_config import Level, UNet
from simgpu.workloads.eager.convolution import upsampled
from simgpu.workloads.eager.pointwise import activation, add, cast, cat
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape

#: Modules of the convolutions to the next size of the image.
_DOWN, _UP = "downsamplers.0", "upsamplers.0"


class UNetModel:
    """The weights of the model, created in the order of diffusers' modules; calling it computes the prediction."""

    def __init__(self, build: Weights, sizes: UNet, fused: Mapping[int, str | None]) -> None:
        self.build, self.sizes = build, sizes
        levels, wide = sizes.levels, sizes.levels[0].channels
        self.first = Convolution.create(build, "conv_in", (sizes.channels, wide), 3, padding=1)
        self.times = TimeEmbedding.create(build, "time_embedding", wide, sizes.times)
        self.added = None
        if sizes.added is not None:
            inputs = sizes.added.pooled + sizes.added.numbers * sizes.added.width
            self.added = TimeEmbedding.create(build, "add_embedding", inputs, sizes.times)
        count = range(len(levels))
        self.down = [_down(sizes, number).created(build, sizes, fused) for number in count]
        self.up = [_up(sizes, number).created(build, sizes, fused) for number in count]
        self.middle = _middle(sizes).created(build, sizes, fused)
        self.norm = GroupNorm.create(build, "conv_norm_out", wide, sizes.groups)
        self.last = Convolution.create(build, "conv_out", (wide, sizes.results), 3, padding=1)

    def __call__(self, image: Tensor, timesteps: Tensor, text: Tensor, added: tuple[Tensor, Tensor] | None) -> Tensor:
        """The predicted noise of (batch, channels, side, side). added: SDXL's pooled text and numbers."""
        session = self.build.session
        time, held = self._time(image.dtype, timesteps, added)
        x = self.first(image)
        kept = [x]
        for block in self.down:
            x = block.down(x, time, text, kept)
        x = self.middle.through(x, time, text)
        latest = kept[: len(self.up[-1].residuals)]
        for block in self.up:
            x = block.up(x, time, text, kept)
        x = self.norm(x)
        with session.layer("conv_act"):
            x = activation(session, "silu", x)
        result = self.last(x)
        session.keep((time, x), held, latest)  # diffusers' variables
        return result

    def _time(
        self, dtype: str, timesteps: Tensor, added: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The embedding of the timestep and of what is added to it, (batch, width); and other values that are held."""
        session, sizes = self.build.session, self.sizes
        with session.layer("time_proj"):
            time = waves(session, timesteps, sizes.levels[0].channels, flipped=sizes.flipped)
        time = cast(session, time, dtype)
        held, time = (time,), self.times(time)
        if self.added is None or sizes.added is None or added is None:
            return time, held
        pooled, numbers = added
        with session.layer("add_time_proj"):
            seen = waves(session, numbers, sizes.added.width, flipped=sizes.flipped)
        shape = (pooled.shape[0], sizes.added.numbers * sizes.added.width)
        both = cat(session, (pooled, reshape(session, seen, shape)))
        change = self.added(cast(session, both, time.dtype))
        return add(session, time, change), (*held, change)


@dataclass(frozen=True, slots=True)
class _Block:
    """Residual blocks, each with a transformer or none of them, and a convolution to the next size of the image."""

    build: Weights
    name: str
    residuals: tuple[ResidualBlock, ...]
    transformers: tuple[Transformer, ...]
    resampler: Convolution | None

    def down(self, x: Tensor, time: Tensor, text: Tensor, kept: list[Tensor]) -> Tensor:
        """Appends the result of each part to `kept`."""
        session = self.build.session
        with session.layer(self.name):
            for number, residual in enumerate(self.residuals):
                x = self._transformed(number, residual(x, time), text)
                kept.append(x)
            if self.resampler is not None:
                with session.layer(_DOWN):
                    x = self.resampler(x)
                kept.append(x)
        return x

    def through(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Between both paths: a residual block, a transformer, and a residual block."""
        first, second = self.residuals
        with self.build.session.layer(self.name):
            return second(self._transformed(0, first(x, time), text), time)

    def up(self, x: Tensor, time: Tensor, text: Tensor, kept: list[Tensor]) -> Tensor:
        """Joins the latest value of `kept` with the input of each residual block, and removes it."""
        session, held = self.build.session, [x, *kept[-len(self.residuals) :]]  # by the caller's variables
        with session.layer(self.name):
            for number, residual in enumerate(self.residuals):
                x = cat(session, (x, kept.pop()), 1)
                x = self._transformed(number, residual(x, time), text)
            if self.resampler is not None:
                with session.layer(_UP):
                    x, small = self.resampler(upsampled(session, x, kept[-1].shape[2:])), x
                session.keep((small,))
        session.keep(held)
        return x

    def _transformed(self, number: int, x: Tensor, text: Tensor) -> Tensor:
        return self.transformers[number](x, text) if self.transformers else x


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one block contains. inputs: channels before each residual block. depth: layers of each transformer; 0 for
    none. transformers: their number. resampler: its module; "" for none."""

    name: str
    level: Level
    inputs: list[int]
    depth: int
    transformers: int
    resampler: str = ""

    def created(self, build: Weights, sizes: UNet, fused: Mapping[int, str | None]) -> _Block:
        """The block: its transformers are created before its residual blocks."""
        width = self.level.channels
        with build.session.layer(self.name):
            transformers = tuple(
                Transformer.create(build, f"attentions.{number}", sizes, self.level, self.depth, fused)
                for number in range(self.transformers if self.depth else 0)
            )
            residuals = tuple(
                ResidualBlock.create(build, f"resnets.{number}", sizes, channels, width)
                for number, channels in enumerate(self.inputs)
            )
            resampler = None
            if self.resampler:
                stride = 2 if self.resampler.startswith("down") else 1
                with build.session.layer(self.resampler):
                    resampler = Convolution.create(build, "conv", (width, width), 3, stride=stride, padding=1)
        return _Block(build, self.name, residuals, transformers, resampler)


def _down(sizes: UNet, number: int) -> _Plan:
    """The block of one level of the path down; levels are counted from the largest image."""
    level, wider = sizes.levels[number], sizes.levels[max(number - 1, 0)].channels
    inputs = [wider, *[level.channels] * (level.layers - 1)]
    sampler = _DOWN if number < len(sizes.levels) - 1 else ""
    return _Plan(f"down_blocks.{number}", level, inputs, level.down, level.layers, sampler)


def _up(sizes: UNet, number: int) -> _Plan:
    """The block of one level of the path up; levels are counted from the smallest image."""
    place = len(sizes.levels) - 1 - number
    level, below = sizes.levels[place], sizes.levels[min(place + 1, len(sizes.levels) - 1)].channels
    own, above = level.channels, sizes.levels[max(place - 1, 0)].channels
    before, kept = [below, *[own] * level.layers], [*[own] * level.layers, above]
    inputs = [sum(pair) for pair in zip(before, kept, strict=True)]
    return _Plan(f"up_blocks.{number}", level, inputs, level.up, level.layers + 1, _UP if place else "")


def _middle(sizes: UNet) -> _Plan:
    level = sizes.levels[-1]
    return _Plan("mid_block", level, [level.channels] * 2, sizes.middle, 1)
