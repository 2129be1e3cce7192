"""Where steps begin in a training loop: at calls of the model, as many of them as the planned step has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from simgpu.torch.modules import parts_of
from simgpu.torch.patching import Hook

#: What happens when a step begins. Its argument: whether the step before it ran whole.
Begin = Callable[[bool], None]


class Loop:
    """Follows a loop's calls of a model with gradients.

    groups: the modules that the loop calls in a step; after each group, an optimizer of the model steps. A step in
    which it does so earlier, as at the end of an epoch, goes on with the next group; one in which it does not step, as
    where a gradient scaler finds infinity, goes on after as many calls as the group has. A call of the first module
    where another is next begins a step, as after an exception; other calls out of turn do not count.
    """

    def __init__(self, groups: Sequence[Sequence[str]], begin: Begin) -> None:
        self._groups = [tuple(group) for group in groups]
        self._begin = begin
        self._group, self._called = 0, 0
        self._depth = 0
        self._is_counted = False
        self._has_stepped = False
        self._is_short = False
        #: Whether the last step has called all modules, and none failed.
        self.is_whole = False

    @contextmanager
    def followed(self, model: nn.Module) -> Iterator[None]:
        """Follows the calls inside the context."""
        modules, own = parts_of(model), set(model.parameters())

        def stepped(optimizer: Optimizer, *_: Any) -> None:
            if any(parameter in own for group in optimizer.param_groups for parameter in group["params"]):
                self._has_stepped = True

        with ExitStack() as stack:
            for path in dict.fromkeys(path for group in self._groups for path in group):
                stack.callback(modules[path].register_forward_pre_hook(Hook(partial(self._enter, path))).remove)
                stack.callback(modules[path].register_forward_hook(Hook(self._returned)).remove)
                stack.callback(modules[path].register_forward_hook(Hook(self._leave), always_call=True).remove)
            if len(self._groups) > 1 or len(self._groups[0]) > 1:
                stack.callback(register_optimizer_step_post_hook(stepped).remove)
            yield

    def _enter(self, path: str, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            # Backward runs forward again where the model itself checkpoints.
            self._is_counted = torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
            if self._is_counted:
                self._call(path)

    def _returned(self, *_: Any) -> None:
        if self._depth == 1 and self._is_counted:
            self._called += 1
            is_last = self._group == len(self._groups) - 1 and self._called == len(self._groups[-1])
            self.is_whole = is_last and not self._is_short

    def _leave(self, *_: Any) -> None:
        self._depth -= 1

    def _call(self, path: str) -> None:
        count = len(self._groups[self._group])
        if self._called and (self._has_stepped or self._called == count):
            self._is_short = self._is_short or self._called < count
            self._group, self._called = (self._group + 1) % len(self._groups), 0
        self._has_stepped = False
        if self._groups[self._group][self._called] != path:
            if self._groups[0][0] != path:
                self._is_counted = False
                return
            self._group = self._called = 0
        if not self._group and not self._called:
            self._begin(self.is_whole)
            self.is_whole = self._is_short = False
