"""`configured_model` makes the factory of a model of transformers or diffusers from its ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.input_files import parse_json, read_text
from simgpu.recorder.configured_diffusion import (
    diffusion_data,
    diffusion_model,
    diffusion_problems,
    is_diffusion,
    loss_of_noise,
)
from simgpu.workloads.configured.config import model_name

if TYPE_CHECKING:
    import torch

#: Number formats of weights and activations.
DTYPES = ("float32", "bfloat16", "float16")
#: Implementations of attention in transformers that need no other package.
ATTENTION = ("sdpa", "eager")
#: Endings of classes with one label for each token, and with one for each sample.
_OF_TOKENS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification")
_OF_SAMPLES = ("ForSequenceClassification",)
_LIMIT = 2**20  # bytes; published files have a few kB
_REMEDY = "copy the model's config.json again"
_LONGEST = 2**31 - 1


def configured_model(
    path: str | Path,
    *,
    length: int | None = None,
    sample_size: int | None = None,
    dtype: str = "bfloat16",
    attention: str | None = None,
) -> Callable[[int], tuple[Any, ...]]:
    """The factory, for `simgpu.record` and `simgpu.record_requests`, of a model with random weights.

    path: a ``config.json`` of Hugging Face, or its folder. The class is the one that the file names in
    ``architectures``, or the causal language model of its ``model_type``. length: tokens in each sample, and in its
    labels where each token has one; there is no padding. dtype: of weights and activations, one of `DTYPES`, without
    autocast. attention: one of `ATTENTION`; by default sdpa, or eager where the model has no other. Keys and values are
    not cached (``use_cache=False``). These defaults are those of
    `simgpu.workloads.configured.options.TrainingOptions`, whose optimizer is AdamW; that of `simgpu.record` is SGD.
    Of diffusers, a U-Net or a DiT, which learns to predict noise as in diffusers' training scripts. length: tokens of a
    U-Net's text, by default 77. sample_size: side of a U-Net's latent images, by default the configuration's.

    Raises `InputError` for values that are not supported. The factory raises `MissingExtraError` without the package.

    >>> configured_model("Llama-3.1-8B/config.json", length=0, dtype="int8")
    Traceback (most recent call last):
    simgpu.errors.InputError: dtype: unknown value 'int8'; known: bfloat16, float16, float32
    length: 0 is not a number from 1 to 2147483647; give the number of tokens in a sample
    """
    problems = [
        Problem("", place, f"unknown value {value!r}", did_you_mean(value, known))
        for place, value, known in (("dtype", dtype, DTYPES), ("attention", attention, ATTENTION))
        if value is not None and value not in known
    ]
    for place, number, what in (("length", length, "tokens"), ("sample_size", sample_size, "values of each side")):
        if number is not None and not 1 <= number <= _LONGEST:
            wrong = f"{number} is not a number from 1 to {_LONGEST}"
            problems.append(Problem("", place, wrong, f"give the number of {what} in a sample"))
    if problems:
        raise InputError(problems)
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    values = parse_json(read_text(file, "a configuration (JSON text file)", _REMEDY, _LIMIT), file, _REMEDY)
    if not isinstance(values, dict):
        raise InputError.single(file, "", "is not a JSON object with the keys of a configuration", _REMEDY)
    if is_diffusion(values):
        problems = diffusion_problems(values, file, length=length, sample_size=sample_size, attention=attention)
    elif length is None:
        problems.append(Problem("", "length", "is missing", "give the number of tokens per sample, as 2048"))
    if sample_size is not None and not is_diffusion(values):
        problems.append(Problem("", "sample_size", "applies to U-Nets only", "leave it out"))
    if problems:
        raise InputError(problems)
    architecture = "" if is_diffusion(values) else _architecture(values, file)

    def images(batch: int) -> tuple[Any, ...]:
        import torch

        model = diffusion_model(values, file, dtype)
        inputs, labels = diffusion_data(model, batch, getattr(torch, dtype), length, sample_size)
        return model, inputs, labels, loss_of_noise

    def tokens(batch: int) -> tuple[Any, ...]:
        import torch

        model: Any = _model(values, architecture, file, dtype, attention)
        vocabulary = model.config.get_text_config().vocab_size
        classes = model.config.num_labels if "Classification" in architecture else vocabulary
        of_each = (batch,) if architecture.endswith(_OF_SAMPLES) else (batch, length)
        inputs = {"input_ids": torch.randint(vocabulary, (batch, length)), "labels": torch.randint(classes, of_each)}
        return model, inputs, (), None  # the model's own loss

    factory = images if is_diffusion(values) else tokens
    factory.__qualname__ = model_name(file) or architecture
    return factory


def _architecture(values: Mapping[str, Any], file: Path) -> str:
    """The class's name; "" for the causal language model of the configuration's type."""
    names = values.get("architectures")
    if not names:
        return ""
    name = names[0] if isinstance(names, list) else names
    if isinstance(name, str) and name.endswith((*_OF_TOKENS, *_OF_SAMPLES)):
        return name
    what = f"{name!r:.80} is not a class of known inputs and labels"
    remedy = f"give one that ends with {', '.join((*_OF_TOKENS, *_OF_SAMPLES))}, or record a factory of your own"
    raise InputError.single(file, "architectures", what, remedy)


def _model(
    values: Mapping[str, Any], architecture: str, file: Path, dtype: str, attention: str | None
) -> torch.nn.Module:
    import torch

    from simgpu.recorder.model_packages import transformers_package

    transformers = transformers_package()
    family = values.get("model_type")
    if family not in transformers.models.auto.CONFIG_MAPPING:
        what = f"transformers {transformers.__version__} does not know {family!r:.80}"
        raise InputError.single(file, "model_type", what, "install the version of transformers that the model needs")
    options = {key: value for key, value in values.items() if key not in ("model_type", "torch_dtype", "dtype")}
    try:
        config = transformers.AutoConfig.for_model(family, **(options | {"use_cache": False}))
        automatic = transformers.AutoModelForCausalLM
        create = getattr(transformers, architecture)._from_config if architecture else automatic.from_config
        model: torch.nn.Module = create(config, torch_dtype=getattr(torch, dtype), attn_implementation=attention)
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, ZeroDivisionError, RuntimeError) as error:
        named = f"transformers {transformers.__version__}"
        if attention != "eager" and "scaled_dot_product_attention" in str(error):
            what = f"{named} has no {attention} attention of a {family}"
            raise InputError.single(file, "", what, "give attention eager (--attention eager)") from error
        what = f"{named} does not build it: {error!s:.300}"
        raise InputError.single(file, "", what, _REMEDY) from error
    return model
