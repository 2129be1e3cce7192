"""Models of diffusers from their ``config.json``, with the inputs and the loss of its training scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.workloads.configured.diffusion import CLASSES
from simgpu.workloads.configured.modelled_diffusion import TEXT_LENGTH
from simgpu.workloads.configured.unet_config import LATENT_SIDE, POOLED_TEXT, UNET

if TYPE_CHECKING:
    import torch

_DIT = CLASSES[0]
#: Timesteps of noise: the default of diffusers' schedulers (``num_train_timesteps``).
_TIMESTEPS = 1000


def is_diffusion(values: Mapping[str, Any]) -> bool:
    """Whether a configuration is of diffusers: it has a class and no type of transformers."""
    return "_class_name" in values and "model_type" not in values


def diffusion_problems(values: Mapping[str, Any], file: Path, **options: Any) -> list[Problem]:
    """What is wrong with a configuration's class, and with options of `configured_model` that it cannot have."""
    name, length, side = values["_class_name"], options["length"], options["sample_size"]
    if name not in (_DIT, UNET):
        remedy = f"{did_you_mean(str(name), [_DIT, UNET])}; or record a factory of your own"
        return [Problem(str(file), "_class_name", f"{name!r:.60} is not a class of known inputs", remedy)]
    problems = []
    if not isinstance(own := values.get("sample_size"), int | None):
        what = f"{own!r:.40} is not the side of square latent images"
        problems.append(Problem(str(file), "sample_size", what, "give one whole number"))
    if name == _DIT and length is not None:
        what = "does not apply to a diffusion transformer, whose sample_size decides it"
        problems.append(Problem("", "length", what, "leave it out"))
    if name == _DIT and side is not None:
        problems.append(Problem("", "sample_size", "applies to U-Nets only", "leave it out"))
    if options["attention"] not in (None, "sdpa"):
        problems.append(Problem("", "attention", "diffusers' models use sdpa", "leave it out"))
    return problems


def diffusion_model(values: Mapping[str, Any], file: Path, dtype: str) -> torch.nn.Module:
    """diffusers' module with random weights. Raises `InputError` for values that it does not take, `MissingExtraError`
    without diffusers."""
    import torch

    from simgpu.recorder.model_packages import diffusers_package

    diffusers = diffusers_package()
    try:
        model: torch.nn.Module = getattr(diffusers, values["_class_name"]).from_config(dict(values))
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, ZeroDivisionError, RuntimeError) as error:
        what = f"diffusers {diffusers.__version__} does not build it: {error!s:.300}"
        raise InputError.single(file, "", what, "copy the model's config.json again") from error
    return model.to(getattr(torch, dtype)).train()


def diffusion_data(
    model: Any, batch: int, dtype: torch.dtype, length: int | None = None, side: int | None = None
) -> tuple[dict[str, Any], tuple[torch.Tensor, ...]]:
    """Random inputs of diffusers' module by name, and the noise that it learns to predict.

    dtype: of images and texts. length: tokens of a U-Net's text, by default 77. side: of the latent images, by default
    the configuration's.
    """
    import torch

    config = model.config
    side = side or config.sample_size or LATENT_SIDE
    image = torch.randn((batch, config.in_channels, side, side), dtype=dtype)
    timestep = torch.randint(_TIMESTEPS, (batch,))
    if "num_embeds_ada_norm" in config:
        noise, classes = torch.randn_like(image), torch.randint(config.num_embeds_ada_norm, (batch,))
        return {"hidden_states": image, "timestep": timestep, "class_labels": classes}, (noise,)
    wide = config.cross_attention_dim
    text = (batch, TEXT_LENGTH if length is None else length, wide if isinstance(wide, int) else wide[0])
    named = {"sample": image, "timestep": timestep, "encoder_hidden_states": torch.randn(text, dtype=dtype)}
    if config.addition_embed_type == "text_time":
        numbers = (config.projection_class_embeddings_input_dim - POOLED_TEXT) // config.addition_time_embed_dim
        pooled, sizes = (torch.randn((batch, count), dtype=dtype) for count in (POOLED_TEXT, numbers))
        named["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": sizes}
    return named, (torch.randn((batch, config.out_channels, side, side), dtype=dtype),)


def loss_of_noise(output: Any, noise: torch.Tensor) -> torch.Tensor:
    """The mean squared error in float32; a model that also predicts variances is not trained on them."""
    from torch.nn import functional

    predicted = output.sample
    if predicted.shape[1] == 2 * noise.shape[1]:
        predicted = predicted.chunk(2, dim=1)[0]
    return functional.mse_loss(predicted.float(), noise.float())
