"""What is run: a module with its inputs, labels and loss, and how a factory makes one.

Lives here: `Workload` and finding, calling and checking a factory. Does not live here: running the iteration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from simgpu.errors import InputError, SimgpuError
from simgpu.trace.recorder.catalogue import BUILT_IN_MODELS, factory_path
from simgpu.trace.recorder.references import find_callable
from simgpu.trace.recorder.unsupported import check_module

_PLACE = "factory"
_CONVENTION = (
    "return an nn.Module that classifies 3x32x32 images, or the tuple (module, inputs, labels, loss) or "
    "(module, inputs, labels, loss, batches) with inputs and labels a tensor or a tuple of tensors"
)


class Workload(NamedTuple):
    """One training step's ingredients: ``loss(module(*inputs), *labels)`` is a single value to differentiate.

    The first input's first dimension is the batch. batches: what an epoch of training walks through, pairs of inputs
    and labels, each a tensor or a tuple of tensors (a ``DataLoader`` or a list of such pairs); None where there is only
    the one batch. data: what inputs and labels are, in words.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    labels: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]
    batches: Iterable[Any] | None = None
    data: str = "the factory's own data"

    def to(self, device: torch.device) -> Workload:
        """The same workload on a device, its module in training mode."""
        inputs = tuple(tensor.to(device) for tensor in self.inputs)
        labels = tuple(tensor.to(device) for tensor in self.labels)
        loss = self.loss.to(device) if isinstance(self.loss, nn.Module) else self.loss
        return Workload(self.module.to(device).train(), inputs, labels, loss, self.batches, self.data)

    def steps(self, device: torch.device) -> Iterator[Workload]:
        """The steps of one epoch, each this workload with its own batch on the device.

        Raises `InputError` where a batch is no pair of inputs and labels.
        """
        if self.batches is None:
            yield self
            return
        for number, batch in enumerate(self.batches):
            where = f"batch {number} of an epoch"
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                remedy = "give pairs (inputs, labels), each a tensor or a tuple of tensors"
                raise InputError.single("record", where, f"it is {_describe(batch)}", remedy)
            inputs, labels = (_tensors("record", where, part) for part in batch)
            yield self._replace(
                inputs=tuple(tensor.to(device) for tensor in inputs),
                labels=tuple(tensor.to(device) for tensor in labels),
            )


def find_factory(name: str) -> Callable[..., Any]:
    """The callable behind a built-in model's name or ``module.path:attribute``.

    Raises `InputError` when the module cannot be imported or the attribute is missing or not callable.
    """
    known = {built_in: factory_path(built_in) for built_in in BUILT_IN_MODELS}
    return find_callable(name, known, kind="a built-in model", place=_PLACE)


def make_workload(name: str, factory: Callable[..., Any], batch: int) -> Workload:
    """Call a factory, with ``batch=`` if it has a parameter of that name, and check what it returns.

    Random inputs and labels come from torch's default generator. Raises `InputError` naming `name`.
    """
    try:
        made = factory(batch=batch) if _takes_batch(factory) else factory()
    except SimgpuError:
        raise
    except Exception as error:
        what = f"calling it raised {type(error).__name__}: {error}"
        remedy = "it is called with batch=N if it has a parameter 'batch', else with nothing"
        raise InputError.single(name, _PLACE, what, remedy) from error
    if isinstance(made, nn.Module):
        check_module(name, made)
        return _image_classifier(name, made, batch)
    if not _is_workload(made) or not isinstance(made[0], nn.Module):
        raise InputError.single(name, _PLACE, f"it returned {_describe(made)}, not a module", _CONVENTION)
    check_module(name, made[0])
    workload = made if isinstance(made, Workload) else Workload(*made)
    workload = workload._replace(
        inputs=_tensors(name, "inputs", workload.inputs), labels=_tensors(name, "labels", workload.labels)
    )
    if not callable(workload.loss):
        raise InputError.single(name, "loss", f"it is {_describe(workload.loss)}, not callable", _CONVENTION)
    _check_batch(name, workload.inputs, batch)
    _check_batches(name, workload.batches)
    return workload


def _is_workload(made: object) -> bool:
    return isinstance(made, Workload) or (isinstance(made, tuple) and len(made) in (4, 5))


def _check_batches(name: str, batches: object) -> None:
    remedy = "give a DataLoader, or a list of pairs (inputs, labels)"
    if batches is None:
        return
    if not isinstance(batches, Iterable):
        raise InputError.single(name, "batches", f"they are {_describe(batches)}", remedy)
    if isinstance(batches, Iterator):
        raise InputError.single(name, "batches", "they can be walked through only once", remedy)


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
    return Workload(module, (images,), (labels,), nn.functional.cross_entropy, data="random images and labels")
