"""Gives a model, an optimizer and a batch that exist fake tensors for one step, and takes them back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from simgpu.errors import InputError
from simgpu.recorder.modelled.fake_tensors import FakeTensors

_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class Stand:
    """The fake tensors that stand for real ones; each real tensor has one, as long as this exists.

    on_host: called with the fake tensor of a real one that is on the host.
    """

    def __init__(self, mode: FakeTensors) -> None:
        self._mode = mode
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._real: dict[int, torch.Tensor] = {}
        self.on_host: Callable[[torch.Tensor], None] = lambda _: None

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor for a real one, with its values if it is a small one of integers; a fake tensor itself."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._pairs:
            self._keep(tensor, self._like(tensor))
            if tensor.device.type == "cpu":
                self.on_host(self._pairs[id(tensor)][1])
        return self._pairs[id(tensor)][1]

    def replaced(self, value: Any) -> Any:
        """The fake parameter for a real one, to which a variable of the loop still refers; other values as they are."""
        if isinstance(value, nn.Parameter) and id(value) in self._pairs:
            return self._pairs[id(value)][1]
        return value

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """The real tensor that a fake one stands for; the fake tensor itself if there is none."""
        return self._real.get(id(tensor), tensor)

    def parameter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake parameter or buffer for a real one, with its gradient, if any."""
        if id(tensor) not in self._pairs:
            if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
                what = f"a parameter of shape {tuple(tensor.shape)} has a hook, which would not run"
                raise InputError.single("record_step", "model", what, "remove it, or leave out gpu")
            fake = self.without_values(tensor)
            if isinstance(tensor, nn.Parameter):
                with self._mode:
                    fake = nn.Parameter(fake, tensor.requires_grad)
            if tensor.grad is not None:
                fake.grad = self.without_values(tensor.grad)
            self._keep(tensor, fake)
        return self._pairs[id(tensor)][1]

    def state(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor for one of an optimizer's state; a single number, such as a count of steps, keeps its value."""
        fake = self.without_values(tensor)
        return self._mode.known.copied(tensor, fake) if not tensor.dim() and tensor.device.type == "cpu" else fake

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

    def _keep(self, tensor: torch.Tensor, fake: torch.Tensor) -> None:
        self._pairs[id(tensor)] = (tensor, fake)
        self._real[id(fake)] = tensor


class RealArguments(TorchDispatchMode):  # type: ignore[misc]
    """Replaces real tensors among the arguments of operators; enter it last, so that other passes see the fake ones."""

    def __init__(self, stand: Stand) -> None:
        super().__init__()
        self._stand = stand

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _LIFTS:
            return func(*args, **(kwargs or {}))
        args, named = tree_map_only(torch.Tensor, self._stand.fake, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, self._stand.real, func(*args, **named))


class LoopOnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Runs on the CPU what the loop runs on CUDA, because only some builds of PyTorch have CUDA.

    Real parameters, to which the loop may refer by names of its own, are replaced. to_device, to_host: return a copy of
    a tensor there.
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

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, named = tree_map(self._stand.replaced, (args, kwargs or {}))
        if func is torch.device and any(map(_is_cuda, args)):
            return torch.device("cpu")
        if func is torch.Tensor.cuda:
            return self._to_device(self._stand.fake(args[0]))
        if func is torch.Tensor.cpu:
            return self._to_host(self._stand.fake(args[0]))
        goes_to_cuda = func is torch.Tensor.to and any(map(_is_cuda, tree_leaves((args[1:], named))))
        args, named = tree_map(_on_cpu, (args, named))
        returned = func(*args, **named)
        return self._to_device(self._stand.fake(returned)) if goes_to_cuda else returned


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and value.partition(":")[0] == "cuda"


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
                    part._buffers[name] = _buffer(stand, buffer)
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


def _buffer(stand: Stand, buffer: torch.Tensor) -> torch.Tensor:
    """A buffer may hold small constants, such as positions; its values are known, those of a parameter are not."""
    return stand.parameter(buffer) if buffer.device.type != "cpu" else stand.fake(buffer)


def _fake_state(stand: Stand, optimizer: Optimizer) -> None:
    state: defaultdict[Any, Any] = defaultdict(dict)
    for parameter, values in optimizer.state.items():
        state[stand.parameter(parameter)] = tree_map_only(torch.Tensor, stand.state, values)
    for group in optimizer.param_groups:
        group["params"] = [stand.parameter(parameter) for parameter in group["params"]]
    optimizer.state = state
