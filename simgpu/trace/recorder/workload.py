"""What is run: a module with its inputs, labels and loss, and how a factory makes one.

Lives here: `Workload` and finding, calling and checking a factory. Does not live here: running the iteration.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from simgpu.errors import InputError, did_you_mean
from simgpu.trace.recorder.catalogue import BUILT_IN_MODELS, factory_path

_PLACE = "factory"
_CONVENTION = (
    "return an nn.Module that classifies 3x32x32 images, or the tuple (module, inputs, labels, loss) "
    "with inputs and labels a tensor or a tuple of tensors"
)


class Workload(NamedTuple):
    """One training step's ingredients: ``loss(module(*inputs), *labels)`` is a single value to differentiate.

    The first input's first dimension is the batch. data: what inputs and labels are, in words.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    labels: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]
    data: str = "the factory's own data"

    def to(self, device: torch.device) -> Workload:
        """The same workload on a device, its module in training mode."""
        inputs = tuple(tensor.to(device) for tensor in self.inputs)
        labels = tuple(tensor.to(device) for tensor in self.labels)
        loss = self.loss.to(device) if isinstance(self.loss, nn.Module) else self.loss
        return Workload(self.module.to(device).train(), inputs, labels, loss, self.data)


def find_factory(name: str) -> Callable[..., Any]:
    """The callable behind a built-in model's name or ``module.path:attribute``.

    Raises `InputError` when the module cannot be imported or the attribute is missing or not callable.
    """
    path = factory_path(name) if name in BUILT_IN_MODELS else name
    module_path, colon, attribute = path.partition(":")
    if not colon or not module_path or not attribute:
        remedy = f"{did_you_mean(name, BUILT_IN_MODELS)}; or name your own as module.path:factory"
        raise InputError.single(name, _PLACE, f"{name!r} is neither a built-in model nor module.path:factory", remedy)
    found: Any = _import(name, module_path)
    for step in attribute.split("."):
        if not hasattr(found, step):
            known = [word for word in dir(found) if not word.startswith("_") and callable(getattr(found, word))]
            raise InputError.single(name, _PLACE, f"there is no {step!r} in it", did_you_mean(step, known))
        found = getattr(found, step)
    if not callable(found):
        what = f"{attribute!r} is not callable but a {type(found).__name__}"
        raise InputError.single(name, _PLACE, what, "name a function that makes the model")
    return found  # type: ignore[no-any-return]


def _import(name: str, module_path: str) -> Any:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        missing = error.name or module_path
        if module_path == missing or module_path.startswith(f"{missing}."):
            remedy = "check the spelling, and that its folder is on Python's path"
            raise InputError.single(name, _PLACE, f"there is no module {missing!r}", remedy) from error
        what = f"module {module_path!r} needs {missing!r}, which is not installed"
        raise InputError.single(name, _PLACE, what, f"install {missing}") from error
    except Exception as error:
        what = f"importing {module_path!r} raised {type(error).__name__}: {error}"
        raise InputError.single(name, _PLACE, what, "put the module right first") from error


def make_workload(name: str, factory: Callable[..., Any], batch: int) -> Workload:
    """Call a factory, with ``batch=`` if it has a parameter of that name, and check what it returns.

    Random inputs and labels come from torch's default generator. Raises `InputError` naming `name`.
    """
    try:
        made = factory(batch=batch) if _takes_batch(factory) else factory()
    except Exception as error:
        what = f"calling it raised {type(error).__name__}: {error}"
        remedy = "it is called with batch=N if it has a parameter 'batch', else with nothing"
        raise InputError.single(name, _PLACE, what, remedy) from error
    if isinstance(made, nn.Module):
        return _image_classifier(name, made, batch)
    parts = made[:4] if isinstance(made, Workload) else made
    if not isinstance(parts, tuple) or len(parts) != 4 or not isinstance(parts[0], nn.Module):
        raise InputError.single(name, _PLACE, f"it returned {_describe(made)}, not a module", _CONVENTION)
    module, inputs, labels, loss = parts
    workload = Workload(module, _tensors(name, "inputs", inputs), _tensors(name, "labels", labels), loss)
    if not callable(loss):
        raise InputError.single(name, "loss", f"it is {_describe(loss)}, not callable", _CONVENTION)
    _check_batch(name, workload.inputs, batch)
    return workload._replace(data=made.data) if isinstance(made, Workload) else workload


def _check_batch(name: str, inputs: tuple[torch.Tensor, ...], batch: int) -> None:
    remedy = f"give a first input whose first dimension is {batch}"
    if not inputs:
        raise InputError.single(name, "inputs", "there are none", remedy)
    shape = tuple(inputs[0].shape)
    if shape[:1] != (batch,):
        raise InputError.single(name, "inputs", f"the first one's shape {shape} is not of batch {batch}", remedy)


def _takes_batch(factory: Callable[..., Any]) -> bool:
    try:
        return "batch" in inspect.signature(factory).parameters
    except ValueError:
        return False


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(item).__name__ for item in value)})"
    return f"{type(value).__name__} {value!r}"


def _tensors(name: str, what: str, value: object) -> tuple[torch.Tensor, ...]:
    tensors = (value,) if isinstance(value, torch.Tensor) else value
    if not isinstance(tensors, tuple) or not all(isinstance(item, torch.Tensor) for item in tensors):
        raise InputError.single(name, what, f"they are {_describe(value)}", _CONVENTION)
    return tensors


def _image_classifier(name: str, module: nn.Module, batch: int) -> Workload:
    """Feed a module with random 3x32x32 images; its number of classes is what a trial run returns."""
    images = torch.randn(batch, 3, 32, 32)
    try:
        with torch.no_grad():
            scores = module.eval()(images)
    except Exception as error:
        what = f"the module raised {type(error).__name__} on {batch} images of 3x32x32: {error}"
        raise InputError.single(name, _PLACE, what, _CONVENTION) from error
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2 or scores.shape[0] != batch:
        shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        what = f"the module returned {shape} for {batch} images, not a row of scores for each"
        raise InputError.single(name, _PLACE, what, _CONVENTION)
    labels = torch.randint(scores.shape[1], (batch,))
    return Workload(module, (images,), (labels,), nn.functional.cross_entropy, "random images and labels")
