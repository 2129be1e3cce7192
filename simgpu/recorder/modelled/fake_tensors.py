"""Tensors that have shapes and storages but no memory: a model runs on them without computing anything."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.modelled.known_values import KnownValues
from simgpu.recorder.places import raised_at
from simgpu.recorder.workload import Workload


class FakeTensors(FakeTensorMode):  # type: ignore[misc]
    """Fake tensors for whole models: a factory may use real data, copy layers and change their number format."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        #: Whether a gradient scaler asked for the result of its check, which is that all gradients are finite.
        self.took_as_finite = False
        self._checks = WeakIdKeyDictionary()
        self.known = KnownValues()

    def __deepcopy__(self, memo: object) -> FakeTensors:
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._checks[args[1]] = True
        elif func is torch.ops.aten._local_scalar_dense.default and args[0] in self._checks:
            self.took_as_finite = True
            return 0.0
        returned = self.known.run(
            func, args, kwargs or {}, partial(super().__torch_dispatch__, func, types, args, kwargs), self.from_tensor
        )
        if self.allow_non_fake_inputs:
            # ``module.half()`` swaps weights, which is refused while the mode knows them by weak references. Those
            # are there to make one fake of one real tensor, which `settle` sees to.
            self.fake_tensor_converter.meta_converter.tensor_memo.clear()
        return returned

    def settle(self, workload: Workload) -> Workload:
        """The factory is done: its module in training mode, every tensor of it and of the data fake, once.

        From here on a real tensor is an error: each use of it would be a new piece of memory.
        """
        fakes: dict[int, torch.Tensor] = {}

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, FakeTensor):
                return tensor
            return fakes.setdefault(id(tensor), self.from_tensor(tensor))

        def faked(part: Any) -> Any:
            """A module with fake tensors; a copy where it came with real ones, which stay as they are."""
            tensors = [*part.parameters(), *part.buffers()] if isinstance(part, nn.Module) else []
            real = {id(tensor): fake(tensor) for tensor in tensors if not isinstance(tensor, FakeTensor)}
            return copy.deepcopy(part, real) if real else part

        settled = workload._replace(
            module=faked(workload.module).train(),
            inputs=tree_map_only(torch.Tensor, fake, workload.inputs),
            labels=tuple(fake(tensor) for tensor in workload.labels),
            loss=faked(workload.loss),
        )
        self.known.can_draw = False
        parts = [part for part in (settled.module, settled.loss) if isinstance(part, nn.Module)]
        self.known.forget(parameter for part in parts for parameter in part.parameters())
        self.known.forget((*settled.input_tensors().values(), *settled.labels))
        self.allow_non_fake_inputs = False
        return settled


@contextmanager
def fake_tensors(name: str) -> Iterator[FakeTensors]:
    """Every tensor made within is fake. Raises `InputError` naming `name` where a value would be needed."""
    try:
        with _one_draw(), _no_log(), FakeTensors() as mode, warnings.catch_warnings():
            # Copying a layer (copy.deepcopy) asks each weight for its address.
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
            yield mode
    except SimgpuError as error:
        raise _refusal(name, _place(mode, error.__cause__), error.__cause__) or error from error.__cause__
    except Exception as error:
        raise _refusal(name, _place(mode, error), error) or error from error


def _place(mode: FakeTensors, error: BaseException | None) -> str:
    """Where an error was raised: in the factory or the iteration, and the user's line if it is one of theirs."""
    part = "factory" if mode.allow_non_fake_inputs else "iteration"
    line = raised_at(error) if error is not None else ""
    return f"{part}, {line}" if line else part


@contextmanager
def _no_log() -> Iterator[None]:
    """Within, PyTorch does not log the traceback of an operator that fails: the error says what is wrong."""
    log = logging.getLogger(FakeTensorMode.__module__)
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


@contextmanager
def _one_draw() -> Iterator[None]:
    """Within, ``trunc_normal_`` draws once: PyTorch's own (from 2.13) draws until it likes all of the values."""

    def draw(tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> torch.Tensor:
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator).clamp_(a, b)

    own = nn.init._no_grad_trunc_normal_
    nn.init._no_grad_trunc_normal_ = draw
    try:
        yield
    finally:
        nn.init._no_grad_trunc_normal_ = own


def _refusal(name: str, place: str, error: BaseException | None) -> InputError | None:
    """What a failure under fake tensors means, where it is theirs."""
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        what = f"{error.func} needs the values of a tensor, which do not exist where nothing runs"
        remedy = "record this model on a device, or let it decide from shapes, or from small constants, alone"
    elif isinstance(error, UnsupportedFakeTensorException):
        what, remedy = f"PyTorch has no fake tensors for this: {error}", "record this model on a device"
    elif isinstance(error, AssertionError) and "convert all Tensors to FakeTensors" in str(error):
        what = "the model uses a tensor that was made outside the factory and is neither a weight nor a buffer"
        remedy = "make it in the factory, or register it as a buffer"
    else:
        return None
    return InputError.single(name, place, what, remedy)
