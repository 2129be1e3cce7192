"""Lists built-in models and optimizers, and finds callables by ``module.path:attribute``; imports no PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from simgpu.errors import InputError, SimgpuError, did_you_mean

#: Name and description of each built-in model.
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

#: Name and description of each built-in optimizer.
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


#: Modules of the factories that are not in `simgpu.recorder.models`, by prefix of the model's name.
_MODULES = {
    "photos-": "photo_models",
    "words-": "language_models",
    **dict.fromkeys(("vgg16", "resnet50", "gpt2-small"), "large_models"),
}


def factory_path(name: str) -> str:
    """Returns the factory of a built-in model as ``module:attribute``.

    >>> factory_path("vgg11")
    'simgpu.recorder.models:vgg11'
    """
    module = next((module for begin, module in _MODULES.items() if name.startswith(begin)), "models")
    return f"simgpu.recorder.{module}:{name.replace('-', '_')}"


def optimizer_path(name: str) -> str:
    """Returns the factory of a built-in optimizer as ``module:attribute``.

    >>> optimizer_path("plain-sgd")
    'simgpu.recorder.optimizers:plain_sgd'
    """
    return f"simgpu.recorder.optimizers:{name.replace('-', '_')}"


def find_callable(name: str, known: Mapping[str, str], *, kind: str, place: str) -> Callable[..., Any]:
    """Returns the callable for a known name or ``module.path:attribute``.

    known: references by name. kind, place: what the callable is, and the option that names it, for error messages.
    Raises `InputError` if the module cannot be imported or the attribute is missing or not callable.

    >>> find_callable("root", {"root": "math:sqrt"}, kind="a function", place="function")(9)
    3.0
    """
    module_path, colon, attribute = known.get(name, name).partition(":")
    if not colon or not module_path or not attribute:
        what = f"{name!r} is neither {kind} nor module.path:factory"
        remedy = f"{did_you_mean(name, known)}; or give your own as module.path:factory"
        raise InputError.single(name, place, what, remedy)
    result: Any = _import(name, place, module_path)
    for step in attribute.split("."):
        if not hasattr(result, step):
            near = [word for word in dir(result) if not word.startswith("_") and callable(getattr(result, word))]
            raise InputError.single(name, place, f"there is no {step!r} in it", did_you_mean(step, near))
        result = getattr(result, step)
    if not callable(result):
        what = f"{attribute!r} is not callable; it is a {type(result).__name__}"
        raise InputError.single(name, place, what, "name a function or a class")
    found: Callable[..., Any] = result
    return found


def _import(name: str, place: str, module_path: str) -> Any:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        missing = error.name or module_path
        if module_path == missing or module_path.startswith(f"{missing}."):
            remedy = "check the spelling, and that its folder is on PYTHONPATH"
            raise InputError.single(name, place, f"there is no module {missing!r}", remedy) from error
        what = f"module {module_path!r} needs {missing!r}, which is not installed"
        raise InputError.single(name, place, what, f"install {missing}") from error
    except SimgpuError:
        raise
    except Exception as error:
        what = f"importing {module_path!r} raised {type(error).__name__}: {error}"
        raise InputError.single(name, place, what, "fix the module first") from error
