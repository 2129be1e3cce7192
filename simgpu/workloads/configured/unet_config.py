"""`UNet` describes a diffusion U-Net, and `unet` reads one from diffusers' ``config.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any

from simgpu.workloads.configured.keys import MOST, MOST_WIDTH, REMEDY, Keys

#: The value of ``_class_name``.
UNET = "UNet2DConditionModel"
#: Kinds of blocks, and whether each has transformers.
_DOWN = {"CrossAttnDownBlock2D": True, "DownBlock2D": False}
_UP = {"CrossAttnUpBlock2D": True, "UpBlock2D": False}
#: Keys with the values whose weights and kernels are modelled; the first is the default.
_ONLY: dict[str, tuple[object, ...]] = {
    "mid_block_type": ("UNetMidBlock2DCrossAttn",),
    "act_fn": ("silu", "swish"),
    "downsample_padding": (1,),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "center_input_sample": (False,),
    "only_cross_attention": (False,),
    "mid_block_only_cross_attention": (None, False),
    "dual_cross_attention": (False,),
    "reverse_transformer_layers_per_block": (None,),
    "encoder_hid_dim": (None,),
    "encoder_hid_dim_type": (None,),
    "num_attention_heads": (None,),
    "class_embed_type": (None,),
    "num_class_embeds": (None,),
    "class_embeddings_concat": (False,),
    "addition_embed_type": (None, "text_time"),
    "resnet_time_scale_shift": ("default",),
    "resnet_skip_time_act": (False,),
    "time_embedding_type": ("positional",),
    "time_embedding_act_fn": (None,),
    "timestep_post_act": (None,),
    "time_cond_proj_dim": (None,),
    "attention_type": ("default",),
    "cross_attention_norm": (None,),
}
#: Side of latent images where a configuration has none: that of images of 512 x 512, as Stable Diffusion's.
LATENT_SIDE = 64
#: Values of the pooled text that SDXL adds (OpenCLIP ViT-bigG/14's ``text_embeds``).
POOLED_TEXT = 1280
_MOST_LEVELS = 16


@dataclass(frozen=True, slots=True)
class Level:
    """The blocks of one size of the image.

    channels: of the results. heads: of attention. down, up: layers of each transformer in the block of either path, one
    after each residual block; 0 for blocks without transformers. layers: residual blocks of the path down.
    """

    channels: int
    heads: int
    layers: int
    down: int
    up: int


@dataclass(frozen=True, slots=True)
class Added:
    """What SDXL adds to the timestep: a pooled text, and numbers (sizes and crops) as sines and cosines.

    pooled: values of the text. numbers: of each sample. width: sines and cosines of a number.
    """

    pooled: int
    numbers: int
    width: int


@dataclass(frozen=True, slots=True)
class UNet:
    """A U-Net that predicts the noise of a latent image, from a timestep and a text (Stable Diffusion).

    levels: from the largest image to the smallest. middle: layers of the transformer between both paths.
    channels, results: of the latent image and of the prediction. side: of the square latent image.
    text: width of the text's tokens. groups: of each group normalization. times: width of the timestep's embedding.
    flipped: whether the cosines of a timestep precede its sines. linear: whether products instead of convolutions
    surround the layers of a transformer. dropout: rate in residual blocks. upcast: whether attention that is not fused
    multiplies queries and keys in float32.
    """

    name: str
    levels: tuple[Level, ...]
    middle: int
    channels: int
    results: int
    side: int
    text: int
    groups: int
    times: int
    flipped: bool
    linear: bool
    dropout: float
    upcast: bool
    added: Added | None

    @property
    def family(self) -> str:
        """What the model is."""
        return "unet"

    @property
    def head_widths(self) -> set[int]:
        """Widths of the heads of all transformers."""
        has_any = [level for level in self.levels if level.down or level.up]
        return {level.channels // level.heads for level in (*has_any, self.levels[-1])}


def unet(keys: Keys, name: str) -> UNet:
    """The model that a configuration describes; defaults are diffusers' own. Problems are added to `keys`."""
    for key, known in _ONLY.items():
        value = keys.values.get(key, known[0])
        if not any(value is each or (type(value) is type(each) and value == each) for each in known):
            keys.refuse(key, f"{value!r:.40} is not modelled", f"give {' or '.join(map(dumps, known))}")
    levels, middle = _levels(keys)
    return UNet(
        name=name,
        levels=levels,
        middle=middle,
        channels=keys.number("in_channels", 4),
        results=keys.number("out_channels", 4),
        side=keys.number("sample_size", LATENT_SIDE, nullable=True),
        text=_same(keys, "cross_attention_dim", 1280),
        groups=keys.number("norm_num_groups", 32),
        times=keys.number("time_embedding_dim", 4 * levels[0].channels, nullable=True),
        flipped=keys.flag("flip_sin_to_cos", True),
        linear=keys.flag("use_linear_projection", False),
        dropout=keys.fraction("dropout", 0.0),
        upcast=keys.flag("upcast_attention", False),
        added=_added(keys),
    )


def _levels(keys: Keys) -> tuple[tuple[Level, ...], int]:
    """The levels, and the layers of the transformer between both paths."""
    down = _kinds(keys, "down_block_types", [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"], _DOWN)
    up = _kinds(keys, "up_block_types", ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3], _UP)
    count = len(down)
    channels = _numbers(keys, "block_out_channels", [320, 640, 1280, 1280], count, MOST_WIDTH)
    heads = _numbers(keys, "attention_head_dim", 8, count, MOST["heads"])
    layers = _numbers(keys, "layers_per_block", 2, count, MOST["layers"])
    depths = _numbers(keys, "transformer_layers_per_block", 1, count, MOST["layers"])
    if len(up) != count:
        keys.refuse("up_block_types", f"has {len(up)} blocks, and down_block_types {count}", REMEDY)
        up = [False] * count
    total = sum(n * (1 + depth) for n, depth in zip(layers, depths, strict=True))
    if total > MOST["layers"]:
        keys.refuse("layers_per_block", f"{total} layers are more than {MOST['layers']}", REMEDY)
    groups = keys.values.get("norm_num_groups", 32)
    for width, number in zip(channels, heads, strict=True):
        if isinstance(groups, int) and groups > 0 and width % groups:
            keys.refuse("block_out_channels", f"{width} channels do not divide into {groups} groups", REMEDY)
        if width % number or width % 2:
            keys.refuse("attention_head_dim", f"{width} channels do not divide into {number} heads", REMEDY)
    of_down, of_up = (
        [depth * has_transformers for depth, has_transformers in zip(depths, kinds, strict=True)]
        for kinds in (down, up[::-1])
    )
    return tuple(map(Level, channels, heads, layers, of_down, of_up)), depths[-1]


def _kinds(keys: Keys, key: str, default: list[str], known: dict[str, bool]) -> list[bool]:
    """Whether each block of a path has transformers."""
    value = keys.values.get(key, default)
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MOST_LEVELS:
        keys.refuse(key, f"{value!r:.60} is not a list of 1 to {_MOST_LEVELS} blocks", REMEDY)
        return [False]
    for each in value:
        if not isinstance(each, str) or each not in known:
            keys.refuse(key, f"{each!r:.40} is not modelled", f"give {' or '.join(known)}")
    return [isinstance(each, str) and known.get(each, False) for each in value]


def _numbers(keys: Keys, key: str, default: Any, count: int, most: int) -> list[int]:
    """A whole number for each level, or one for all."""
    value = keys.values.get(key, default)
    each = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(each) != count:
        keys.refuse(key, f"has {len(each)} numbers, and down_block_types {count} blocks", REMEDY)
        return [1] * count
    before = len(keys.problems)
    numbers = [Keys({key: x}, keys.source, keys.problems).number(key, None, most) for x in each]
    return numbers if len(keys.problems) == before else [1] * count


def _same(keys: Keys, key: str, default: int) -> int:
    """A whole number, or a list of equal ones."""
    value = keys.values.get(key, default)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
        if any(each != value[0] for each in value):
            keys.refuse(key, f"{value!r:.40} has different numbers", "give one number")
        return Keys({key: value[0]}, keys.source, keys.problems).number(key, default)
    return keys.number(key, default)


def _added(keys: Keys) -> Added | None:
    if keys.values.get("addition_embed_type") != "text_time":
        return None
    width = keys.number("addition_time_embed_dim", None)
    total = keys.number("projection_class_embeddings_input_dim", None)
    numbers, rest = divmod(total - POOLED_TEXT, width)
    if rest or numbers < 1 or width % 2:
        what = f"{total} is not {POOLED_TEXT} values of a text and {width} for each number"
        keys.refuse("projection_class_embeddings_input_dim", what, REMEDY)
        return None
    return Added(POOLED_TEXT, numbers, width)
