"""Fake tensors, which have shapes and storages but no memory, so a model runs without computing anything.

Small tensors also have values, because a constructor may read drop rates from ``torch.linspace`` or layer widths from
``torch.arange``. Operators on tensors of at most `LIMIT` bytes also run on real tensors. Their values are stored by the
storage of the fake result, so views and in-place operators use them too.
"""

from __future__ import annotations

import copy
import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
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
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.modelled.balanced_routing import Mixtures
from simgpu.recorder.modelled.finite_checks import FiniteChecks
from simgpu.recorder.operators import access
from simgpu.recorder.unsupported import raised_at
from simgpu.recorder.workload import Workload


class FakeTensors(FakeTensorMode):
    """Fake tensor mode for models: a factory may use real data, copy layers and change their number format."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.finite = FiniteChecks()
        #: Whether an optimizer runs a step, whether the loop around the model runs, and whether one of them read an
        #: unknown value, which is then one. Yes-no values decide what runs, so only an optimizer may read these.
        self.is_stepping = False
        self.is_outside_model: Callable[[], bool] = lambda: False
        self.took_as_one = False
        self.known = KnownValues()
        #: Which tokens experts get.
        self.mixtures = Mixtures()
        #: Whether operators have the form that they have on CUDA, whose layer normalization saves float32 statistics
        #: also for half-precision inputs (``layer_norm_kernel.cu``); on a CPU they have the input's format.
        self.as_on_gpu = False

    def __deepcopy__(self, memo: object) -> FakeTensors:
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            found = self.finite.result_of_scaler(args[0])
            if found is None:
                found = self.known.value(args[0])
            if found is None:
                found = self.finite.result(args[0])
            if found is not None:
                return found
            if self._may_assume(args[0]):
                return self._unknown(args[0])
        if func is torch.ops.aten.nonzero.default and self.known.real(args[0]) is None:
            with self:
                places = self.mixtures.nonzero(args[0])
            if places is not None:
                return self._numbered(places) if args[0].dim() == 1 else places
        returned = self.known.run(
            func, args, kwargs or {}, partial(super().__torch_dispatch__, func, types, args, kwargs), self.from_tensor
        )
        if func is torch.ops.aten.native_layer_norm.default and self.as_on_gpu:
            with self:
                returned = returned[0], *(statistic.float() for statistic in returned[1:])
        if isinstance(func, torch._ops.OpOverload) and func.namespace == "aten":
            self.finite.note(func, args, returned)
        if self.allow_non_fake_inputs:
            # ``module.half()`` swaps weights, which fails while the mode holds weak references to them. The references
            # map each real tensor to one fake; `settle` does that here.
            self.fake_tensor_converter.meta_converter.tensor_memo.clear()
        return returned

    @contextmanager
    def watching(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Inside the context, the optimizer may read values in its steps."""
        begin = optimizer.register_step_pre_hook(lambda *_: setattr(self, "is_stepping", True))
        end = optimizer.register_step_post_hook(lambda *_: setattr(self, "is_stepping", False))
        try:
            yield
        finally:
            begin.remove()
            end.remove()

    def assumed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a real tensor with the values of a fake one; those that are not known are one.

        Raises `DataDependentOutputException` where unknown values may not be assumed.
        """
        real = self.known.real(tensor)
        if real is not None:
            return real
        if not self._may_assume(tensor):
            raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)
        self.took_as_one = True
        return torch.ones((), dtype=tensor.dtype).expand(tensor.shape)

    def _may_assume(self, tensor: torch.Tensor) -> bool:
        return self.is_stepping or (tensor.dtype is not torch.bool and self.is_outside_model())

    def _unknown(self, tensor: torch.Tensor) -> Any:
        """Returns one, as the value of a single number that is not known."""
        self.took_as_one = True
        return True if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else 1

    def _numbered(self, places: torch.Tensor) -> torch.Tensor:
        """Places of all experts, one a row, with their values: transformers 4.55 calls each by its number."""
        with _disable_current_modes():
            numbers = torch.arange(len(places))[None].mT  # in the order of memory of the places
        return self.known.copied(numbers, places)

    def settle(self, workload: Workload) -> Workload:
        """Called after the factory: returns the workload in training mode, with a fake tensor for every real one.

        From now on, real tensors raise an error, because each use of one would count as new memory.
        """
        fakes: dict[int, torch.Tensor] = {}

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, FakeTensor):
                return tensor
            if id(tensor) not in fakes:
                fakes[id(tensor)] = self.known.copied(tensor, self.from_tensor(tensor))
            return fakes[id(tensor)]

        def faked(part: Any) -> Any:
            """Returns a module with fake tensors; a copy if it has real ones, which are not changed."""
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
        given = (*settled.input_tensors().values(), *settled.labels)
        self.known.forget(tensor for tensor in given if tensor.is_floating_point())
        self.mixtures.watch(settled.module)
        self.allow_non_fake_inputs = False
        return settled


@contextmanager
def fake_tensors(name: str) -> Iterator[FakeTensors]:
    """Makes every tensor created in the context fake. Raises `InputError` naming `name` if a value is needed."""
    try:
        with _one_draw(), _no_log(), FakeTensors() as mode, closing(mode.mixtures), warnings.catch_warnings():
            # Copying a layer (copy.deepcopy) reads the address of each weight.
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
            yield mode
    except SimgpuError as error:
        raise _refusal(name, _place(mode, error.__cause__), error.__cause__) or error from error.__cause__
    except Exception as error:
        raise _refusal(name, _place(mode, error), error) or error from error


def _place(mode: FakeTensors, error: BaseException | None) -> str:
    """Returns where an error was raised: in the factory or the iteration, and the line of user code, if any."""
    part = "factory" if mode.allow_non_fake_inputs else "iteration"
    line = raised_at(error) if error is not None else ""
    return f"{part}, {line}" if line else part


@contextmanager
def _no_log() -> Iterator[None]:
    """Disables PyTorch's log of the traceback of a failing operator, because the error reports it."""
    log = logging.getLogger(FakeTensorMode.__module__)
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


@contextmanager
def _one_draw() -> Iterator[None]:
    """Makes ``trunc_normal_`` draw once: PyTorch (from 2.13) redraws until all values are within bounds."""

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
    """Returns the error for a failure caused by fake tensors; None for any other failure."""
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        what = f"{error.func} needs the values of a tensor, which do not exist in a modelled iteration"
        remedy = "record this model on a device, or make its decisions depend only on shapes or small constants"
    elif isinstance(error, UnsupportedFakeTensorException):
        what, remedy = f"PyTorch has no fake tensors for this: {error}", "record this model on a device"
    elif isinstance(error, AssertionError) and "convert all Tensors to FakeTensors" in str(error):
        what = "the model uses a tensor that was created outside the factory and is neither a weight nor a buffer"
        remedy = "create it in the factory, or register it as a buffer"
    else:
        return None
    return InputError.single(name, place, what, remedy)


#: Bytes of the largest tensor with known values: a table of some thousand numbers, such as positions in a window; for
#: integers and yes-no values, also the tokens and masks of a batch.
LIMIT, INTEGER_LIMIT = 64 * 1024, 4 * 2**20


class KnownValues:
    """Real memory of small fake tensors, by storage.

    can_draw: whether operators that draw random numbers also run on real tensors: True in a factory, whose random state
    is seeded; False in an iteration, where numbers drawn on the GPU are unknown. A single number is drawn there too: it
    decides whether a layer runs (``layerdrop``), and is drawn on the host.
    """

    def __init__(self) -> None:
        self.can_draw = True
        self._is_inside = False
        self._memory: dict[int, torch.UntypedStorage | None] = {}  # None: a real tensor whose values are outdated

    def run(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run_fake: Callable[[], Any],
        as_fake: Callable[[torch.Tensor], torch.Tensor],
    ) -> Any:
        """Returns the result of `func` on fake tensors; its values are known if those of all arguments are.

        run_fake: calls it on the fake tensors. as_fake: converts a real tensor to a fake one. An operator whose result
        depends on values (``item``, ``nonzero``) uses the known values, or raises the error of `run_fake`.
        """
        if self._is_inside or not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
            return run_fake()
        self._is_inside = True  # operators called by the fake operator compute no values
        try:
            return self._run(func, args, kwargs, run_fake, as_fake)
        finally:
            self._is_inside = False

    def _run(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run_fake: Callable[[], Any],
        as_fake: Callable[[torch.Tensor], torch.Tensor],
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        real = self._real_tensors(tensors) if torch.Tag.inplace_view not in func.tags else None
        try:
            returned = run_fake()
        except (DataDependentOutputException, DynamicOutputShapeException):
            if real is None:
                raise
            return self._answer(_call(func, args, kwargs, real), as_fake)
        if real is not None and _is_small(returned) and self._may_draw(func, returned):
            try:
                values = _call(func, args, kwargs, real)
            except Exception:  # it has no CPU implementation, so its values are unknown
                self._forget_written(func, args, kwargs, returned)
                return returned
            if "empty" in func._schema.name:
                tree_map_only(torch.Tensor, torch.Tensor.zero_, values)  # instead of uninitialized memory
            self._remember(tree_leaves(returned), tree_leaves(values), real.values(), tensors)
        elif any(not isinstance(tensor, FakeTensor) or _key(tensor) in self._memory for tensor in tensors):
            self._forget_written(func, args, kwargs, returned)
        return returned

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Drop the values of these tensors, and of all tensors that share memory with them."""
        for tensor in tensors:
            if isinstance(tensor, FakeTensor):
                self._memory.pop(_key(tensor), None)
            else:
                self._keep(tensor, None)

    def copied(self, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        """Returns the fake tensor, with a copy of the real one's values if it is small."""
        if real.layout is torch.strided and _is_small(real):
            with _disable_current_modes():
                values = real.detach().clone()
            self._remember([fake], [values])
        return fake

    def _forget_written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> None:
        done = access(func, args, kwargs, returned)
        self.forget([*done.overwritten, *done.changed])

    def value(self, tensor: torch.Tensor) -> Any:
        """Returns a single number; None if its value is unknown."""
        real = self.real(tensor)
        return None if real is None else real.item()

    def _may_draw(self, func: Any, returned: Any) -> bool:
        if self.can_draw or torch.Tag.nondeterministic_seeded not in func.tags:
            return True
        return isinstance(returned, torch.Tensor) and returned.numel() == 1

    def _real_tensors(self, tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor] | None:
        """Returns a real tensor for each, by its id; None if the values of any are unknown."""
        result = {}
        for tensor in tensors:
            real = self.real(tensor)
            if real is None:
                return None
            result[id(tensor)] = real
        return result

    def real(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a real tensor with the known values; None if they are unknown."""
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not _is_small(tensor):
            return None
        is_fake = isinstance(tensor, FakeTensor)
        memory = self._memory.get(_key(tensor), None if is_fake else tensor.untyped_storage())
        if memory is None or tensor.is_conj() or tensor.is_neg():
            return None
        if not is_fake:
            return tensor
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _answer(self, values: Any, as_fake: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Returns the result of an operator that needs values, with fake tensors."""

        def known(real: torch.Tensor) -> torch.Tensor:
            fake = as_fake(real)
            self._remember([fake], [real])
            return fake

        return tree_map_only(torch.Tensor, known, values)

    def _remember(
        self,
        fakes: list[Any],
        reals: list[Any],
        arguments: Iterable[torch.Tensor] = (),
        given: Iterable[torch.Tensor] = (),
    ) -> None:
        """Store the memory of real results for the fake ones, unless their memory is already known.

        arguments: the real tensors that the operator ran on. given: the operator's original arguments; fake results are
        no views of real ones among them, which have been copied to fake memory.
        """
        own, taken = {_key(tensor) for tensor in given}, {_key(tensor) for tensor in arguments}
        for fake, real in zip(fakes, reals, strict=True):
            if not isinstance(fake, FakeTensor) or _key(fake) in self._memory:
                continue
            memory = real.untyped_storage()
            alike = (_layout(fake), fake.untyped_storage().nbytes()) == (_layout(real), memory.nbytes())
            if alike and memory._cdata in own:
                memory = memory.clone()
            if alike and memory._cdata not in taken:
                self._keep(fake, memory)

    def _keep(self, tensor: torch.Tensor, memory: torch.UntypedStorage | None) -> None:
        key = _key(tensor)
        if key not in self._memory:
            weakref.finalize(tensor.untyped_storage(), self._memory.pop, key, None).atexit = False
        self._memory[key] = memory


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], real: dict[int, torch.Tensor]) -> Any:
    in_place = tree_map_only(torch.Tensor, lambda tensor: real[id(tensor)], (args, kwargs))
    return func(*in_place[0], **in_place[1])


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _is_small(value: Any) -> bool:
    """Returns whether all tensors in `value`, and their storages, are within the limit."""
    return all(
        max(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes())
        <= (LIMIT if leaf.is_floating_point() or leaf.is_complex() else INTEGER_LIMIT)
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    )
