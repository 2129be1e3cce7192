"""Observes a step that the user's own loop runs: its phases, its weights' gradients, its optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.recorder.autocast import replaced
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.loop.watch import LoopPass
from simgpu.recorder.operators import OperandAccess
from simgpu.recorder.saved import SaveNotes
from simgpu.recorder.scratch import ScratchMeter
from simgpu.recorder.step.saves import StepSaves
from simgpu.torch.patching import Hook
from simgpu.trace.model import BlockKind, Phase


class StepPass(LoopPass):
    """A structure pass that finds the phases by itself.

    Forward begins when the model or a part of it is called, backward when autograd runs. What runs between backward and
    the next forward, such as gradient clipping, counts as the optimizer's. ends: each step's optimizer, and the number
    of kernels until then.
    """

    def __init__(
        self,
        ledger: Ledger,
        tracker: LayerTracker,
        module: nn.Module,
        on_host: Callable[[Optimizer], list[torch.Tensor]],
        scratch: ScratchMeter,
        has_values: bool,
    ) -> None:
        super().__init__(ledger, tracker, module, on_host, scratch, has_values)
        self.ends: list[tuple[Optimizer, int]] = []
        self.saves = StepSaves(SaveNotes(ledger, tracker, lambda: not self._depth), ledger)
        self._depth = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Autograd makes a view of what hooks unpack, before it holds the tensor.
        if func is not torch.ops.aten.detach.default:
            self.saves.look()
        return super().__torch_dispatch__(func, types, args, kwargs)

    @contextmanager
    def watching(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        """Observes what runs inside the context."""
        handles = [part.register_forward_pre_hook(Hook(self._begin_forward)) for part in module.modules()]
        handles += [each.register_step_post_hook(lambda done, *_: self._stepped(done)) for each in optimizers]
        own = torch.autograd._engine_run_backward

        def run_backward(roots: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            with self._running_backward():
                return own(roots, *args, **kwargs)

        try:
            self._tracker.watcher = self.saves.notes
            with replaced(torch.autograd, "_engine_run_backward", run_backward), self.saves.watching(), self:
                yield
                self.saves.finish()
                self.finish()
        finally:
            self._tracker.watcher = None
            for handle in handles:
                handle.remove()

    @contextmanager
    def _running_backward(self) -> Iterator[None]:
        """Backward may run inside backward: checkpointing recomputes and differentiates a part."""
        if not self._depth:
            self.begin(Phase.BACKWARD)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth:
            self.begin(Phase.OPTIMIZER)

    def _begin_forward(self, *_: Any) -> None:
        if not self._depth and self._tracker.is_outermost:
            self.begin(Phase.FORWARD)

    def _stepped(self, optimizer: Optimizer) -> None:
        self.stepped(optimizer)
        self.ends.append((optimizer, len(self.kernels)))

    def _on_device(self, done: OperandAccess) -> OperandAccess:
        """An operator on host tensors runs on the host. With tensors of the device, it runs there, and so do they.

        Single numbers of the host may be operands on the device, too.
        """
        operands = [*done.read, *done.overwritten, *done.changed]
        on_host = [tensor for tensor in operands if self._ledger.is_on_host(tensor)]
        if on_host and len(on_host) == len(operands):
            for _, tensor in done.results:
                self._ledger.moved_to_host(tensor)
            return OperandAccess()
        for tensor in on_host:
            if tensor.numel() > 1:
                self._ledger.moved_to_device(tensor)
        return done.of(self._ledger.holds_memory)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device of a tensor on the host; a tensor of the device itself."""
        if not self._ledger.is_on_host(tensor):
            return tensor
        copied = tensor.clone()
        count = sum(block.kind is BlockKind.INPUT for block in self._ledger.blocks)
        self._ledger.receive(copied, BlockKind.INPUT, f"input.{count}" if count else "input")
        return copied

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host."""
        if self._ledger.is_on_host(tensor):
            return tensor
        with _disable_current_modes():
            copied = tensor.detach().clone()
        self._ledger.moved_to_host(copied)
        return copied

    def name_inputs(self) -> None:
        """Names the tensors from before the step that the model read first: its inputs."""
        count = sum(block.kind is BlockKind.INPUT for block in self._ledger.blocks)
        for block in self._ledger.blocks:
            if block.persistent and not block.name:
                block.kind = BlockKind.INPUT
                block.name = f"input.{count}" if count else "input"
                count += 1
