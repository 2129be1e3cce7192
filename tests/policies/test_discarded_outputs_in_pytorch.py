"""Norms that discard their output as Megatron-LM's `CheckpointWithoutOutput` does, in PyTorch on a CPU and simulated.

PyTorch's memory are the bytes of all storages that are alive when an operator has ended. As in
megatron/core/tensor_parallel/random.py at commit d98e8a64, the norm runs without autograd, its output is discarded when
the hook module has ended, and a hook on the gradient of that module's result runs the norm again. There, the output
takes over the recomputed storage; here it gets a copy, and the recomputed one is not counted.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.recorder import record
from simgpu.trace.model import Phase, Trace
from tests.policies.framework_runs import run, used, work

LAYERS, TOKENS, HIDDEN = 3, 256, 32


class Live(TorchDispatchMode):
    """The bytes that are alive when each operator has ended, with its arguments."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.bytes: list[int] = []
        self.uncounted: set[int] = set()
        self._weak: dict[int, Any] = {}
        self._add(known)

    def _add(self, values: Any) -> None:
        for value in torch.utils._pytree.tree_leaves(values):
            if isinstance(value, torch.Tensor):
                weak = value.untyped_storage()._weak_ref()
                self._weak[weak] = weak

    def now(self) -> int:
        """The bytes that are alive."""
        storages = {weak: torch.UntypedStorage._new_with_weak_ptr(weak) for weak in self._weak}
        self._weak = {weak: weak for weak, storage in storages.items() if storage is not None}
        return sum(s.nbytes() for weak, s in storages.items() if s is not None and weak not in self.uncounted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._add(result)
        self.bytes.append(self.now())
        return result


class Norm(nn.Module):
    """A root mean square norm of single operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Node(torch.autograd.Function):
    """The autograd node of a norm whose output is discarded; it holds what is recomputed until it has ended."""

    @staticmethod
    def forward(ctx: Any, owner: Discarding, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        owner.node = ctx
        with torch.no_grad():
            return owner.norm(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        torch.autograd.backward(ctx.output, gradient)
        ctx.output = None
        gradient, ctx.input = ctx.input.grad, None
        return None, gradient, None


class Discarding:
    """One call of a norm without its output."""

    def __init__(self, norm: Norm, live: Live) -> None:
        self.norm, self.live = norm, live

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.output = Node.apply(self, x, self.norm.weight)
        return self.output

    def discard(self, hooked: torch.Tensor) -> None:
        self.size = self.output.untyped_storage().nbytes()
        self.output.untyped_storage().resize_(0)
        hooked.register_hook(self._again)

    def _again(self, _: torch.Tensor) -> None:
        self.node.input = self.node.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            self.node.output = self.norm(self.node.input)
        again, output = self.node.output.untyped_storage(), self.output.untyped_storage()
        output.resize_(self.size)
        output.copy_(again)
        self.live.uncounted.add(again._weak_ref())
        self.node = self.output = None


class Attention(nn.Module):
    """Attention of one head, in single operators."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(self.q(x), self.k(x).transpose(1, 2))
        return self.o(torch.bmm(torch.softmax(scores, -1), self.v(x)))


class Mlp(nn.Module):
    """Two products with an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False), nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.up(x)))


class Layer(nn.Module):
    """A layer whose norms discard their output if `live` is set."""

    live: Live | None = None

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention, self.mlp = Norm(), Norm(), Attention(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._half(self._half(x, self.norm1, self.attention), self.norm2, self.mlp)

    def _half(self, x: torch.Tensor, norm: Norm, module: nn.Module) -> torch.Tensor:
        if self.live is None:
            return x + module(norm(x))
        discarding = Discarding(norm, self.live)
        result = module(discarding(x))
        discarding.discard(result)
        return x + result


class Stack(nn.Module):
    """The layers, and a result without memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum((1, 2))


def made(batch: int) -> tuple[Any, ...]:
    return Stack(), torch.randn(batch, TOKENS, HIDDEN), torch.randn(batch), nn.MSELoss()


def in_pytorch(discards: bool) -> tuple[int, int]:
    """The bytes alive when backward begins, and the most at once."""
    torch.manual_seed(0)
    stack, x, y, loss = made(1)
    for parameter in stack.parameters():
        parameter.grad = torch.zeros_like(parameter)
    live = Live(x, y, *stack.parameters(), *(p.grad for p in stack.parameters()))
    for layer in stack.layers:
        layer.live = live if discards else None
    with live:
        result = loss(stack(x), y)
        forward = live.now()
        result.backward()
    return forward, max(live.bytes)


def simulated(trace: Trace, policy: str, **parameters: object) -> tuple[int, int]:
    """The same of a simulated iteration: until the optimizer begins."""
    result = run(trace, policy, **parameters)
    phase = {k.id: k.phase for k in trace.kernels}
    ran = [(start, phase.get(name)) for name, start, _ in work(result)]
    begins = {each: min(start for start, of in ran if of is each) for each in Phase}
    moments = [used(result, start) for start, _ in ran if start < begins[Phase.OPTIMIZER]]
    return used(result, begins[Phase.BACKWARD] - 1), max(moments)


@pytest.mark.slow
def test_the_memory_that_discarded_outputs_spare_is_what_pytorch_spares() -> None:
    trace = record(made, batch=1, gpu="h100")
    plain, without = in_pytorch(discards=False), in_pytorch(discards=True)
    there = simulated(trace, "none"), simulated(trace, "checkpoint", modules=["layernorm"], blocks=["layers.*"])
    assert [a - b for a, b in zip(plain, without, strict=True)] == [a - b for a, b in zip(*there, strict=True)]
