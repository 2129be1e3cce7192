"""The models and optimizers of the measured runs: torchvision's and Hugging Face's, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn, optim

from simgpu.recorder.model_packages import torchvision_models, transformers_package

_SIDE, _CLASSES, _TOKENS = 86, 10, 128


def _vision(create: Callable[[Any], nn.Module]) -> Callable[..., Any]:
    def factory(batch: int) -> tuple[Any, ...]:
        model = create(torchvision_models())
        labels = torch.randint(_CLASSES, (batch,))
        return model, (torch.randn(batch, 3, _SIDE, _SIDE),), (labels,), nn.functional.cross_entropy

    return factory


def _mobilenet_v3_large(models: Any) -> nn.Module:
    blocks, _ = models.mobilenetv3._mobilenet_v3_conf("mobilenet_v3_large")
    created: nn.Module = models.MobileNetV3(blocks, last_channel=1280, num_classes=_CLASSES)
    return created


def _language(model: str, config: str, attention: str, **sizes: Any) -> Callable[..., Any]:
    """A factory of a Hugging Face model: its class, that of its configuration, its attention, and its sizes."""

    def factory(batch: int) -> tuple[Any, ...]:
        transformers = transformers_package()
        configured = getattr(transformers, config)(**sizes)
        configured._attn_implementation = attention
        tokens = torch.randint(100, (batch, _TOKENS))
        # Only the longest text of a batch needs no padding.
        mask = torch.ones(batch, _TOKENS, dtype=torch.int64)
        mask[1:, -1] = 0
        inputs = {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}
        return getattr(transformers, model)._from_config(configured), inputs, (), None  # the model's own loss

    return factory


#: Factories by the name of the model, with the sizes of its published configuration.
NETWORKS: dict[str, Callable[..., Any]] = {
    "convnext-base": _vision(lambda models: models.convnext_base()),
    "mnasnet": _vision(lambda models: models.MNASNet(1.0, num_classes=_CLASSES)),
    "mobilenet-v3-l": _vision(_mobilenet_v3_large),
    "regnet-y-400mf": _vision(lambda models: models.regnet_y_400mf()),
    "resnet152": _vision(lambda models: models.resnet152()),
    "vgg16": _vision(lambda models: models.vgg16()),
    "gpt-neo-125m": _language(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        "eager",
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        attention_types=[[["global", "local"], 6]],
        attention_dropout=0,
        embed_dropout=0,
        resid_dropout=0,
    ),
    "t5-small": _language("T5ForConditionalGeneration", "T5Config", "eager", decoder_start_token_id=0),
    "cerebras-111m": _language(
        "GPT2LMHeadModel",
        "GPT2Config",
        "sdpa",
        n_layer=10,
        n_inner=3072,
        n_positions=2048,
        activation_function="gelu",
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    ),
    "opt-125m": _language("OPTForCausalLM", "OPTConfig", "sdpa"),
    "qwen2-1.5b": _language(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        "sdpa",
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        use_cache=False,
    ),
    "gemma-2-2b": _language("Gemma2ForCausalLM", "Gemma2Config", "sdpa"),
}


def _adafactor(parameters: Any) -> optim.Optimizer:
    from transformers import Adafactor

    created: optim.Optimizer = Adafactor(parameters, lr=1e-3, relative_step=False)
    return created


#: Factories by the name of the optimizer: PyTorch's defaults; Adafactor is Hugging Face's.
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": partial(optim.SGD, lr=1e-3),
    "adam": partial(optim.Adam, lr=1e-3),
    "adamw": partial(optim.AdamW, lr=1e-3),
    "rmsprop": partial(optim.RMSprop, lr=1e-3),
    "adagrad": partial(optim.Adagrad, lr=1e-3),
    "adafactor": _adafactor,
}
