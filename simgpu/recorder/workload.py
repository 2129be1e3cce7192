"""The workload to record (module, inputs, labels, loss), and how it is built from a user's factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.arguments import (
    Arguments,
    arguments,
    ask_for_inputs,
    call,
    described,
    forward_of,
    moved,
    named_tensors,
    random_arguments,
)
from simgpu.recorder.catalogue import BUILT_IN_MODELS, factory_path, find_callable
from simgpu.recorder.inputs import InputSpec
from simgpu.recorder.unsupported import check_module

_PLACE = "factory"
_CONVENTION = (
    "return an nn.Module, or the tuple (module, inputs), (module, inputs, labels, loss) or (module, inputs, labels, "
    "loss, batches) with inputs a tensor, a tuple of arguments or a mapping of keywords, and labels a tensor or a tuple"
)


class Workload(NamedTuple):
    """The parts of a training step, in which ``loss(module(*inputs), *labels)`` is the scalar to differentiate.

    inputs: positional arguments, or a dict of keyword arguments; the first tensor's first dimension is the batch.
    batches: the data of an epoch, a ``DataLoader`` or list of pairs (inputs, labels), or of mappings of inputs if there
        are no labels; None for training on the single batch.
    data: description of the inputs and labels.
    hold_output: whether the loop references the module's output through backward and the optimizer step; else only
        autograd references it after the loss is computed.
    scaler: gradient scaler; None for none.
    micro_batches: how often an iteration runs forward and backward before the optimizer steps; the loss is divided by
        it. Each micro-batch has the same inputs.
    """

    module: nn.Module
    inputs: Arguments
    labels: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]
    batches: Iterable[Any] | None = None
    data: str = "the factory's own data"
    hold_output: bool = False
    scaler: torch.amp.GradScaler | None = None
    micro_batches: int = 1

    def output(self) -> Any:
        """Returns the module's output for the inputs."""
        return call(self.module, self.inputs)

    def input_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the input tensors by name: ``input``, ``input.1``, ``input.mask``."""
        return named_tensors("input", self.inputs)

    def to(self, device: torch.device) -> Workload:
        """Returns the workload on a device, with its module in training mode."""
        inputs = moved(self.inputs, device)
        labels = tuple(tensor.to(device) for tensor in self.labels)
        loss = self.loss.to(device) if isinstance(self.loss, nn.Module) else self.loss
        return self._replace(module=self.module.to(device).train(), inputs=inputs, labels=labels, loss=loss)

    def steps(self, device: torch.device) -> Iterator[Workload]:
        """Yields the steps of one epoch, each a copy of this workload with its own batch on the device.

        Raises `InputError` if a batch is neither a pair (inputs, labels) nor a mapping of inputs.
        """
        if self.batches is None:
            yield self
            return
        for number, batch in enumerate(self.batches):
            where = f"batch {number} of an epoch"
            pair = (batch, ()) if isinstance(batch, Mapping) else batch
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                remedy = "give pairs (inputs, labels), or mappings of inputs if the module computes the loss"
                raise InputError.single("record", where, f"it is {_describe(batch)}", remedy)
            inputs, labels = arguments("record", where, pair[0]), _tensors("record", where, pair[1])
            yield self._replace(inputs=moved(inputs, device), labels=tuple(tensor.to(device) for tensor in labels))


def find_factory(name: str) -> Callable[..., Any]:
    """Returns the factory of a built-in model or ``module.path:attribute``.

    Raises `InputError` if the module cannot be imported or the attribute is missing or not callable.
    """
    known = {built_in: factory_path(built_in) for built_in in BUILT_IN_MODELS}
    return find_callable(name, known, kind="a built-in model", place=_PLACE)


def make_workload(
    name: str,
    factory: Callable[..., Any],
    batch: int,
    specs: Mapping[str, InputSpec] | None = None,
    meets: Callable[[nn.Module], None] = lambda module: None,
) -> Workload:
    """Calls a factory, with ``batch=`` if it has that parameter, and builds a workload from the checked result.

    specs: inputs by name, for a factory that returns only a module. meets: called with the module before it runs.
    Random inputs and labels come from torch's default generator. Raises `InputError` naming `name`.
    """
    created = _called(name, factory, batch)
    parts = (created,) if isinstance(created, nn.Module) else created
    known = isinstance(created, Workload | nn.Module) or (isinstance(created, tuple) and len(created) in (2, 4, 5))
    if not known or not isinstance(parts[0], nn.Module):
        raise InputError.single(name, _PLACE, f"it returned {_describe(created)}, not a module", _CONVENTION)
    check_module(name, parts[0])
    meets(parts[0])
    if specs and len(parts) > 1:
        remedy = "leave out --input (inputs in Python), or return only the module"
        raise InputError.single(name, "inputs", "the factory already returns inputs", remedy)
    if len(parts) > 2:
        workload = _checked(name, created if isinstance(created, Workload) else Workload(*parts), batch)
    else:
        workload = _without_loss(name, parts, batch, specs)
    _check_batches(name, workload.batches)
    return workload


def _called(name: str, factory: Callable[..., Any], batch: int) -> Any:
    try:
        return factory(batch=batch) if _takes_batch(factory) else factory()
    except SimgpuError:
        raise
    except Exception as error:
        what = f"calling it raised {type(error).__name__}: {error}"
        remedy = "it is called with batch=N if it has a parameter 'batch', else without arguments"
        raise InputError.single(name, _PLACE, what, remedy) from error


def _checked(name: str, workload: Workload, batch: int) -> Workload:
    """Returns the factory's workload with inputs and labels in their standard form."""
    workload = workload._replace(
        inputs=arguments(name, "inputs", workload.inputs),
        labels=_tensors(name, "labels", workload.labels),
        loss=own_loss if workload.loss is None else workload.loss,
    )
    if not callable(workload.loss):
        raise InputError.single(name, "loss", f"it is {_describe(workload.loss)}, not callable", _CONVENTION)
    _check_batch(name, workload.inputs, batch)
    return workload


def _without_loss(name: str, parts: tuple[Any, ...], batch: int, specs: Mapping[str, InputSpec] | None) -> Workload:
    """Returns the workload of a module without a loss, with the factory's inputs or those specified by name."""
    module = parts[0]
    if len(parts) == 2:
        inputs, data = arguments(name, "inputs", parts[1]), "the factory's own inputs"
        given = described(inputs)
    elif specs:
        inputs = random_arguments(name, module, specs, batch)
        given = ", ".join(f"{key}={spec}" for key, spec in specs.items())
        data = f"random inputs ({given})"
    else:
        raise ask_for_inputs(name, module)
    _check_batch(name, inputs, batch)
    labels, loss = find_loss(name, module, inputs, batch, given)
    return Workload(
        module, inputs, labels, loss, data=f"{data} and random labels (loss: cross-entropy)" if labels else data
    )


def _check_batches(name: str, batches: object) -> None:
    remedy = "give a DataLoader, or a list of pairs (inputs, labels) or of mappings of inputs"
    if batches is None:
        return
    if not isinstance(batches, Iterable):
        raise InputError.single(name, "batches", f"they are {_describe(batches)}", remedy)
    if isinstance(batches, Iterator):
        raise InputError.single(name, "batches", "they can be iterated only once", remedy)


def _check_batch(name: str, inputs: Arguments, batch: int) -> None:
    remedy = f"give a first input whose first dimension is {batch}"
    tensors = list(named_tensors("input", inputs).values())
    if not tensors:
        raise InputError.single(name, "inputs", "they contain no tensor", remedy)
    shape = tuple(tensors[0].shape)
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
    if not isinstance(tensors, tuple | list) or not all(isinstance(item, torch.Tensor) for item in tensors):
        raise InputError.single(name, what, f"they are {_describe(value)}", _CONVENTION)
    return tuple(tensors)


_REMEDY = (
    "return (module, inputs, labels, loss) from the factory, where loss(module(*inputs), *labels) is a scalar, "
    "or give {module} the inputs from which it computes its own loss"
)


def own_loss(output: Any, *_: torch.Tensor) -> torch.Tensor:
    """Returns the key or attribute ``loss`` of a module's output; raises `InputError` if there is none.

    >>> own_loss({"loss": torch.tensor(2.0), "logits": torch.ones(1)})
    tensor(2.)
    """
    loss = _carried(output)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"the module returned {_described(output)}, which contains no scalar loss"
        raise InputError.single("record", "loss", what, _REMEDY.format(module="the module"))
    return loss


def cross_entropy_of_scores(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy over samples or tokens; the last dimension of the scores is the classes."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def find_loss(
    name: str, module: nn.Module, inputs: Arguments, batch: int, given: str
) -> tuple[tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Returns labels and loss of a module, according to the output of a trial run without gradients.

    An output with a loss needs no labels. Scores, one row per sample or token, get random labels.
    given: description of the inputs. Raises `InputError` naming `name` if the run fails or returns neither.
    """
    try:
        with torch.no_grad():
            output = call(module.eval(), inputs)
    except SimgpuError:
        raise
    except Exception as error:
        what = f"{type(module).__name__} raised {type(error).__name__} on {given}: {error}"
        remedy = f"give inputs with the shapes, types and (for integers) bounds that {forward_of(module)} expects"
        raise InputError.single(name, "inputs", what, remedy) from error
    if isinstance(_carried(output), torch.Tensor):
        return (), own_loss
    if _is_scores(output) and output.shape[0] == batch:
        return (torch.randint(output.shape[-1], output.shape[:-1]),), cross_entropy_of_scores
    what = f"the module returned {_described(output)} on {given}, neither a loss nor a row of scores per sample"
    raise InputError.single(name, "loss", what, _REMEDY.format(module=forward_of(module)))


def _carried(output: Any) -> Any:
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)


def _is_scores(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and output.is_floating_point() and output.dim() in (2, 3)


def _described(output: Any) -> str:
    if isinstance(output, torch.Tensor):
        return f"a tensor {tuple(output.shape)} of {str(output.dtype).removeprefix('torch.')}"
    keys = f" of {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    return f"{type(output).__name__}{keys}"
