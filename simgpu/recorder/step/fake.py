"""Gives a model, an optimizer and a batch that exist fake tensors for one step, and takes them back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from simgpu.errors import InputError
from simgpu.recorder.modelled.fake_tensors import FakeTensors

#: Functions that create a tensor, on the default device unless another is given.
_FACTORIES = frozenset(_device_constructors())
#: Functions that read a tensor's values.
_READING = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__)
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class Stand:
    """The fake tensors that stand for real ones. Each real tensor has one, as long as this exists; a buffer, as long as
    the module refers to it.

    on_host: called with the fake tensor of a real one that is on the host.
    """

    def __init__(self, mode: FakeTensors) -> None:
        self._mode = mode
        self._fakes: dict[int, Callable[[], torch.Tensor | None]] = {}
        self._kept: list[torch.Tensor] = []
        self._real = WeakIdKeyDictionary()
        self.on_host: Callable[[torch.Tensor], None] = lambda _: None

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor for a real one, with its values if it is a small one of integers; a fake tensor itself."""
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self._found(tensor)
        if fake is None:
            fake = self._pair(tensor, self._like(tensor))
            if tensor.device.type == "cpu":
                self.on_host(fake)
        return fake

    def replaced(self, value: Any) -> Any:
        """The fake parameter for a real one, to which a variable of the loop still refers; other values as they are."""
        fake = self._found(value) if isinstance(value, nn.Parameter) else None
        return value if fake is None else fake

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """The real tensor that a fake one stands for; the fake tensor itself if there is none."""
        real: torch.Tensor = self._real.get(tensor, tensor)
        return real

    def parameter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake parameter for a real one, with its gradient, if any."""
        fake = self._found(tensor)
        if fake is None:
            if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
                what = f"a parameter of shape {tuple(tensor.shape)} has a hook, which would not run"
                raise InputError.single("record_step", "model", what, "remove it, or leave out gpu")
            fake = self.without_values(tensor)
            if isinstance(tensor, nn.Parameter):
                with self._mode:
                    fake = nn.Parameter(fake, tensor.requires_grad)
            if tensor.grad is not None:
                fake.grad = self.without_values(tensor.grad)
            self._pair(tensor, fake)
        return fake

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake buffer for a real one, which may hold small constants, such as positions: these keep their values.

        It dies when the module replaces it, as the real one would.
        """
        fake = self._found(tensor)
        if fake is None:
            like = self._like(tensor) if tensor.device.type == "cpu" else self.without_values(tensor)
            fake = self._pair(tensor, like, keeps=False)
        return fake

    def state(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor for one of an optimizer's state; a single number, such as a count of steps, keeps its value."""
        fake = self.without_values(tensor)
        return self._mode.known.copied(tensor, fake) if not tensor.dim() and tensor.device.type == "cpu" else fake

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside the context, random numbers have values: those of the host exist."""
        known = self._mode.known
        could, known.can_draw = known.can_draw, True
        try:
            yield
        finally:
            known.can_draw = could

    def read(self, func: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Calls a function on a real tensor with the values of a fake one; those that do not exist are one."""
        with _disable_current_modes():
            return func(self._mode.assumed(tensor), *args, **kwargs)

    def without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new fake tensor like a real one, which may be on any device, ``meta`` too; nothing keeps it alive."""
        with self._mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        self._mode.known.forget([fake])
        return fake

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad and not torch.is_grad_enabled():
            return self.without_values(tensor)  # an average of weights, or a teacher
        if tensor.requires_grad and tensor.is_leaf:
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "tensor that requires gradients"
            what = f"a {kind} of shape {tuple(tensor.shape)} belongs neither to the model nor to the optimizer"
            remedy = "give record_step a module that contains it, such as nn.ModuleList([model, other])"
            raise InputError.single("record_step", "model", what, remedy)
        if tensor.device.type != "cpu":
            return self.parameter(tensor)
        fake: torch.Tensor = self._mode.from_tensor(tensor)
        return fake if tensor.is_floating_point() else self._mode.known.copied(tensor, fake)

    def _found(self, tensor: torch.Tensor) -> torch.Tensor | None:
        find = self._fakes.get(id(tensor))
        return None if find is None else find()

    def _pair(self, tensor: torch.Tensor, fake: torch.Tensor, keeps: bool = True) -> torch.Tensor:
        self._kept.append(tensor)  # no other tensor gets its id
        if keeps:
            self._kept.append(fake)
        self._fakes[id(tensor)] = TensorWeakRef(fake)
        self._real[fake] = tensor
        return fake


class RealArguments(TorchDispatchMode):
    """Replaces real tensors among the arguments of operators; enter it last, so that other passes see the fake ones."""

    def __init__(self, stand: Stand) -> None:
        super().__init__()
        self._stand = stand

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: otherwise PyTorch would not run compiled code while this mode is active."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _LIFTS:
            return func(*args, **(kwargs or {}))
        args, named = tree_map_only(torch.Tensor, self._stand.fake, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, self._stand.real, func(*args, **named))


class LoopOnCpu(TorchFunctionMode):
    """Runs on the CPU what the loop runs on CUDA, because only some builds of PyTorch have CUDA.

    Real parameters, to which the loop may refer by names of its own, are replaced. A loop that names CUDA means
    the host by ``"cpu"``; for one that never does, the CPU is the device. to_device, to_host: return a copy there.
    """

    def __init__(
        self,
        stand: Stand,
        to_device: Callable[[torch.Tensor], torch.Tensor],
        to_host: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()
        self._stand = stand
        self._to_device, self._to_host = to_device, to_host
        self._names_cuda = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, named = tree_map(self._stand.replaced, (args, kwargs or {}))
        is_to_cuda = func is torch.Tensor.cuda or any(map(_is_cuda, tree_leaves((args, named))))
        self._names_cuda |= is_to_cuda
        if func is torch.device and is_to_cuda:
            return torch.device("cpu")
        if func is torch.Tensor.cuda:
            return self._to_device(self._stand.fake(args[0]))
        if func is torch.Tensor.cpu:
            return self._to_host(self._stand.fake(args[0]))
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func in _READING and isinstance(args[0], FakeTensor):
            return self._stand.read(func, args[0], *args[1:], **named)
        is_to_host = self._names_cuda and any(map(_is_host, tree_leaves((args[1:], named))))
        is_host_made = func in _FACTORIES and (is_to_host or _is_on_default_device(args, named))
        args, named = tree_map(_on_cpu, (args, named))
        with self._stand.drawing() if is_host_made else nullcontext():
            returned = func(*args, **named)
        if func is torch.Tensor.to and is_to_cuda:
            return self._to_device(self._stand.fake(returned))
        if func is torch.Tensor.to and is_to_host:
            return self._to_host(self._stand.fake(returned))
        if is_host_made and isinstance(returned, FakeTensor):
            self._stand.on_host(returned)
        return returned


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and value.partition(":")[0] == "cuda"


def _is_host(value: Any) -> bool:
    """Returns whether this is the CPU by name; the object `torch.device` may be the device of a fake tensor."""
    return isinstance(value, str) and value == "cpu"


def _is_on_default_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a factory such as ``torch.randint`` creates a tensor on the host: neither it nor PyTorch's
    defaults give it another device.
    """
    copies = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args))
    return not copies and kwargs.get("device") is None and torch.get_default_device().type == "cpu"


def _on_cpu(value: Any) -> Any:
    if not _is_cuda(value):
        return value
    return "cpu" if isinstance(value, str) else torch.device("cpu")


@contextmanager
def fake_parts(stand: Stand, module: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Inside the context, the module and the optimizers have fake tensors; afterwards they are as they were."""
    own = [(part, dict(part._parameters), dict(part._buffers), _attributes(part)) for part in module.modules()]
    groups = [[dict(group) for group in each.param_groups] for each in optimizers]
    lists = [[group["params"] for group in each.param_groups] for each in optimizers]
    states = [each.state for each in optimizers]
    try:
        for part, parameters, buffers, _ in own:
            for name, parameter in parameters.items():
                if parameter is not None:
                    setattr(part, name, stand.parameter(parameter))
            for name, buffer in buffers.items():
                if buffer is not None:
                    part._buffers[name] = stand.buffer(buffer)
        for each in optimizers:
            _fake_state(stand, each)
        yield
    finally:
        for part, parameters, buffers, attributes in own:
            for name, parameter in parameters.items():
                if parameter is not None:
                    setattr(part, name, parameter)
            part._buffers.clear()
            part._buffers.update(buffers)
            _drop_fakes(part, attributes)
        for each, before, params, state in zip(optimizers, groups, lists, states, strict=True):
            each.state = state
            for group, values, own_params in zip(each.param_groups, before, params, strict=False):
                group.clear()
                group.update(values, params=own_params)


def _attributes(part: nn.Module) -> dict[str, tuple[Any, Any]]:
    """The module's own attributes, each with a copy of its content if it is a list or dictionary."""
    return {
        name: (value, value.copy() if isinstance(value, list | dict) else None)
        for name, value in vars(part).items()
        if name not in ("_parameters", "_buffers", "_modules")
    }


def _drop_fakes(part: nn.Module, attributes: dict[str, tuple[Any, Any]]) -> None:
    """Gives attributes that hold fake tensors, such as a cached mask, the values that they had before."""
    for name, value in list(vars(part).items()):
        if name in ("_parameters", "_buffers", "_modules") or not _has_fakes(value):
            continue
        if name not in attributes:
            del part.__dict__[name]
            continue
        before, content = attributes[name]
        if isinstance(before, list):
            before[:] = content
        elif isinstance(before, dict):
            before.clear()
            before.update(content)
        part.__dict__[name] = before


def _has_fakes(value: Any) -> bool:
    return any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(value))


def _fake_state(stand: Stand, optimizer: Optimizer) -> None:
    state: defaultdict[Any, Any] = defaultdict(dict)
    for parameter, values in optimizer.state.items():
        state[stand.parameter(parameter)] = tree_map_only(torch.Tensor, stand.state, values)
    for group in optimizer.param_groups:
        group["params"] = [stand.parameter(parameter) for parameter in group["params"]]
    optimizer.state = state
