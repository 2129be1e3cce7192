"""`Mixtures`: the tokens of each expert where fake tensors have no values that a router could choose by.

Modules of transformers ask with ``nonzero`` which tokens are an expert's, one expert after another, and some first ask
which experts have any. Here all have some: each gets tokens x chosen / experts, the first ones one more if these do not
divide, as in `simgpu.workloads.configured.experts`. Only the module that has the experts is answered: the same mask
elsewhere in the model needs values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import nn

from simgpu.torch.patching import Hook

#: Attributes of transformers' configurations with the number of a layer's experts.
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass
class BalancedRouting:
    """experts: of a layer. chosen: of them for each token."""

    experts: int
    chosen: int
    _calls: count[int] = field(default_factory=count)

    @classmethod
    def of(cls, module: nn.Module) -> BalancedRouting | None:
        """The routing of a model of transformers, by its configuration; None for a model without experts."""
        config: Any = getattr(module, "config", None)
        if hasattr(config, "get_text_config"):
            with suppress(Exception):  # one of another library may need arguments
                config = config.get_text_config()
        numbers = [getattr(config, name, None) for name in _COUNTS]
        experts = next((number for number in numbers if type(number) is int), 0)
        chosen = getattr(config, "num_experts_per_tok", None)
        return cls(experts, chosen) if type(chosen) is int and 0 < chosen <= experts else None

    def nonzero(self, mask: torch.Tensor) -> torch.Tensor | None:
        """The places in a mask of an expert's tokens, (choices, tokens) or (tokens, choices), or in one of experts.

        They have the order of memory that ``nonzero`` gives them. None for another mask.
        """
        rows = self._rows(mask.shape)
        return None if rows is None else mask.new_empty_strided((rows, mask.dim()), (1, rows), dtype=torch.int64)

    def _rows(self, shape: Sequence[int]) -> int | None:
        if [*shape] == [self.experts]:
            return self.experts
        if len(shape) != 2 or self.chosen not in shape:
            return None
        each, rest = divmod(shape[0] * shape[1], self.experts)
        return each + (next(self._calls) % self.experts < rest)


class Mixtures:
    """The mixtures of a model: its modules that have a part ``experts``, and that part, which may do their work.

    is_used: whether one has asked for an expert's tokens.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._running: list[BalancedRouting | None] = []
        self._handles: list[Any] = []

    def watch(self, model: nn.Module) -> None:
        """From now on, the mixtures of this model are answered, and no others. Called before the model runs."""
        self.close()
        self._find(model, None, set())

    def close(self) -> None:
        """Removes all hooks of the model."""
        while self._handles:
            self._handles.pop().remove()

    def nonzero(self, mask: torch.Tensor) -> torch.Tensor | None:
        """As `BalancedRouting.nonzero` for the innermost module that runs; None if it is no mixture."""
        routing = self._running[-1] if self._running else None
        places = None if routing is None else routing.nonzero(mask)
        self.is_used = self.is_used or places is not None
        return places

    def _find(self, module: nn.Module, routing: BalancedRouting | None, seen: set[nn.Module]) -> None:
        """routing: by the configuration of a module around this one; its own one comes first."""
        if module in seen:
            return
        seen.add(module)
        routing = BalancedRouting.of(module) or routing
        experts = getattr(module, "experts", None)
        if routing is not None and isinstance(experts, nn.Module):
            own = (module, experts)
            for part in own:
                self._follow(part, routing)
            for part in {child: None for each in own for child in each.children() if child not in own}:
                self._follow(part, None)
        for child in module.children():
            self._find(child, routing, seen)

    def _follow(self, module: nn.Module, routing: BalancedRouting | None) -> None:
        begin = partial(self._begin, routing)
        self._handles.append(module.register_forward_pre_hook(Hook(begin)))
        self._handles.append(module.register_forward_hook(Hook(self._end), always_call=True))

    def _begin(self, routing: BalancedRouting | None, *_: Any) -> None:
        self._running.append(routing)

    def _end(self, *_: Any) -> None:
        self._running.pop()
