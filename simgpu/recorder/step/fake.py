"""Gives a model, an optimizer and a batch that exist fake tensors for one step, and takes them back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from simgpu.errors import InputError
from simgpu.recorder.modelled.fake_tensors import FakeTensors

_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class Stand:
    """The fake tensors that stand for real ones; each real tensor has one, as long as this exists."""

    def __init__(self, mode: FakeTensors) -> None:
        self._mode = mode
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._real: dict[int, torch.Tensor] = {}

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor for a real one, with its values if it is a small one of integers; a fake tensor itself."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._pairs:
            self._keep(tensor, self._like(tensor))
        return self._pairs[id(tensor)][1]

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """The real tensor that a fake one stands for; the fake tensor itself if there is none."""
        return self._real.get(id(tensor), tensor)

    def parameter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake parameter or buffer for a real one, with its gradient, if any."""
        if id(tensor) not in self._pairs:
            fake = self.without_values(tensor)
            if isinstance(tensor, nn.Parameter):
                with self._mode:
                    fake = nn.Parameter(fake, tensor.requires_grad)
            if tensor.grad is not None:
                fake.grad = self.without_values(tensor.grad)
            self._keep(tensor, fake)
        return self._pairs[id(tensor)][1]

    def without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new fake tensor like a real one, which may be on any device, ``meta`` too; nothing keeps it alive."""
        with self._mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        self._mode.known.forget([fake])
        return fake

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad and tensor.is_leaf:
            what = f"a parameter of shape {tuple(tensor.shape)} belongs neither to the model nor to the optimizer"
            remedy = "give record_step the module that contains it"
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


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Creates on the CPU what the step creates on CUDA, because only some builds of PyTorch have CUDA."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        args, named = tree_map(_on_cpu, (args, kwargs or {}))
        return func(*args, **named)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


@contextmanager
def fake_parts(stand: Stand, module: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Inside the context, the module and the optimizers have fake tensors; afterwards they are as they were."""
    own = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    groups = [[list(group["params"]) for group in each.param_groups] for each in optimizers]
    states = [each.state for each in optimizers]
    try:
        for part, parameters, buffers in own:
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
        for part, parameters, buffers in own:
            for name, parameter in parameters.items():
                if parameter is not None:
                    setattr(part, name, parameter)
            part._buffers.update(buffers)
        for each, lists, state in zip(optimizers, groups, states, strict=True):
            each.state = state
            for group, params in zip(each.param_groups, lists, strict=True):
                group["params"] = params


def _buffer(stand: Stand, buffer: torch.Tensor) -> torch.Tensor:
    """A buffer may hold small constants, such as positions; its values are known, those of a parameter are not."""
    return stand.parameter(buffer) if buffer.device.type != "cpu" else stand.fake(buffer)


def _fake_state(stand: Stand, optimizer: Optimizer) -> None:
    state: defaultdict[Any, Any] = defaultdict(dict)
    for parameter, values in optimizer.state.items():
        state[stand.parameter(parameter)] = tree_map_only(torch.Tensor, stand.without_values, values)
    for group in optimizer.param_groups:
        group["params"] = [stand.parameter(parameter) for parameter in group["params"]]
    optimizer.state = state
