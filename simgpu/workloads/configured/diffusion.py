"""`DiffusionTransformer` describes a DiT, and `diffusion_transformer` reads one from diffusers' ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.errors import did_you_mean
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.keys import MOST, REMEDY, Keys
from simgpu.workloads.configured.unet_config import UNET

#: Values of ``_class_name``. diffusers reads the second, an earlier name, as the first if ``norm_type`` is `_NORM`.
CLASSES = ("DiTTransformer2DModel", "Transformer2DModel")
#: Forms of the feed-forward part: both are one kernel.
_ACTIVATIONS = ("gelu-approximate", "gelu")
_NORM = "ada_norm_zero"
#: Keys of other models that have the earlier name; any value other than null or false adds weights.
_ABSENT = ("cross_attention_dim", "num_vector_embeds", "double_self_attention", "only_cross_attention")


@dataclass(frozen=True, slots=True)
class DiffusionTransformer:
    """A transformer that predicts the noise of a latent image, from a timestep and a class (Peebles and Xie, DiT).

    decoder: sizes that it has in common with other transformers; its vocabulary is the table of classes with one more
    row for samples without a class, its positions the number of patches.
    channels, results: of the latent image and of the prediction. side: of the square latent image. patch: of a patch.
    """

    decoder: Decoder
    channels: int
    results: int
    side: int
    patch: int

    @property
    def name(self) -> str:
        """Of the model, for traces."""
        return self.decoder.name

    @property
    def family(self) -> str:
        """What the model is."""
        return self.decoder.family


def diffusion_transformer(keys: Keys, name: str) -> DiffusionTransformer:
    """The model that a configuration describes; defaults are diffusers' own. Problems are added to `keys`."""
    if (given := keys.values.get("_class_name")) not in CLASSES:
        keys.refuse("_class_name", f"{given!r:.60} is not supported", did_you_mean(str(given), [*CLASSES, UNET]))
    _refuse_other_models(keys, is_earlier=given == CLASSES[1])
    heads, width = keys.number("num_attention_heads", 16, MOST["heads"]), keys.number("attention_head_dim", 72)
    channels, side, patch = (
        keys.number(key, default) for key, default in (("in_channels", 4), ("sample_size", 32), ("patch_size", 2))
    )
    results = keys.number("out_channels", channels, nullable=True)
    if results not in (channels, 2 * channels):
        what = f"{results} is neither in_channels ({channels}) nor twice as many (with variances)"
        keys.refuse("out_channels", what, REMEDY)
    if side % patch:
        keys.refuse("sample_size", f"{side} is no multiple of patch_size ({patch})", REMEDY)
    decoder = Decoder(
        family="dit",
        name=name,
        layers=keys.number("num_layers", 28, MOST["layers"]),
        width=heads * width,
        heads=heads,
        key_heads=heads,
        head_width=width,
        inner=4 * heads * width,
        vocabulary=keys.number("num_embeds_ada_norm", 1000, MOST["vocabulary"]) + 1,
        positions=(side // patch) ** 2,
        activation="gelu",
        tied=False,
        query_bias=keys.flag("attention_bias", True),
        dropout=keys.fraction("dropout", 0.0),
    )
    return DiffusionTransformer(decoder, channels, results, side, patch)


def _refuse_other_models(keys: Keys, *, is_earlier: bool) -> None:
    """Adds a problem for each option with other weights or kernels than a DiT's."""
    norm = keys.values.get("norm_type", "layer_norm" if is_earlier else _NORM)
    if norm != _NORM:
        keys.refuse("norm_type", f"{norm!r:.40} is not modelled", f"give {_NORM}, which a DiT has")
    activation = keys.values.get("activation_fn", _ACTIVATIONS[0])
    if activation not in _ACTIVATIONS:
        known = f"give one of {', '.join(_ACTIVATIONS)}"
        keys.refuse("activation_fn", f"{activation!r:.40} is not a supported activation", known)
    if keys.flag("norm_elementwise_affine", False):
        keys.refuse("norm_elementwise_affine", "normalization with weights is not modelled", "give false")
    for key in _ABSENT:
        if keys.values.get(key):
            keys.refuse(key, f"{keys.values[key]!r:.40} is not modelled", "give a DiT's configuration, without it")
