"""The built-in models and optimizers by name, known without importing PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Name of each built-in model and what it is, as shown to people.
BUILT_IN_MODELS: Mapping[str, str] = MappingProxyType(
    {
        "vgg11": "VGG-11 for 32x32 images: eight convolutions with in-place ReLU, three linear layers with dropout",
        "resnet20": "ResNet-20 for 32x32 images (He et al. 2016, section 4.2): batch norm, parameter-free shortcuts",
        "mlp": "three linear layers with ReLU on 32x32 images",
        "transformer": "two-layer transformer encoder that labels each of 64 tokens, 4 heads, width 128",
        "digits-cnn": "four convolutions and three linear layers on scikit-learn's handwritten digits, real images",
        "photos-vgg": "seven convolutions and three linear layers on patches of two real photographs, 64x64",
        "photos-resnet": "three residual blocks with batch norm on the same patches",
        "photos-squeezenet": "four fire modules, whose branches are joined, on the same patches",
        "words-lstm": "a recurrent language model with projection, on the text of Python's reference",
        "vgg16": "VGG-16 for 224x224 images, 138 million weights: thirteen convolutions, three linear layers, dropout",
        "resnet50": "ResNet-50 for 224x224 images, 26 million weights: sixteen bottlenecks with batch norm",
        "gpt2-small": "GPT-2 small on rows of 1024 tokens, 124 million weights: twelve layers, 12 heads, width 768",
    }
)

#: Name of each built-in optimizer and what it is, as shown to people.
BUILT_IN_OPTIMIZERS: Mapping[str, str] = MappingProxyType(
    {
        "sgd": "learning rate 0.01, momentum 0.9",
        "plain-sgd": "learning rate 0.01, no momentum, so no state",
        "adam": "learning rate 0.001",
        "adamw": "learning rate 0.001, weight decay 0.01",
        "rmsprop": "learning rate 0.001",
        "adagrad": "learning rate 0.01",
    }
)


#: Modules of those whose factories stand beside `simgpu.recorder.models`, by how their names begin.
_MODULES = {
    "photos-": "photo_models",
    "words-": "language_models",
    **dict.fromkeys(("vgg16", "resnet50", "gpt2-small"), "large_models"),
}


def factory_path(name: str) -> str:
    """Where the factory of a built-in model stands, as ``module:attribute``.

    >>> factory_path("vgg11")
    'simgpu.recorder.models:vgg11'
    """
    module = next((module for begin, module in _MODULES.items() if name.startswith(begin)), "models")
    return f"simgpu.recorder.{module}:{name.replace('-', '_')}"


def optimizer_path(name: str) -> str:
    """Where the factory of a built-in optimizer stands, as ``module:attribute``.

    >>> optimizer_path("plain-sgd")
    'simgpu.recorder.optimizers:plain_sgd'
    """
    return f"simgpu.recorder.optimizers:{name.replace('-', '_')}"
