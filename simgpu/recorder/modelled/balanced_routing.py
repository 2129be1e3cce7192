"""`BalancedRouting`: the tokens of each expert where fake tensors have no values that a router could choose by.

Modules of transformers ask with ``nonzero`` which tokens are an expert's, one expert after another, and some first ask
which experts have any. Here all have some: each gets tokens x chosen / experts, the first ones one more if these do not
divide, as in `simgpu.workloads.configured.experts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import nn

#: Attributes of transformers' configurations with the number of a layer's experts.
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass
class BalancedRouting:
    """experts: of a layer. chosen: of them for each token. is_used: whether a module has asked."""

    experts: int
    chosen: int
    is_used: bool = False
    _calls: count[int] = field(default_factory=count)

    @classmethod
    def of(cls, module: nn.Module) -> BalancedRouting | None:
        """The routing of a model of transformers, or of the first within a module; None without experts."""
        return next((found for part in module.modules() if (found := cls._of_config(part)) is not None), None)

    @classmethod
    def _of_config(cls, module: nn.Module) -> BalancedRouting | None:
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
        if rows is None:
            return None
        self.is_used = True
        return mask.new_empty_strided((rows, mask.dim()), (1, rows), dtype=torch.int64)

    def _rows(self, shape: Sequence[int]) -> int | None:
        if [*shape] == [self.experts]:
            return self.experts
        if len(shape) != 2 or self.chosen not in shape:
            return None
        each, rest = divmod(shape[0] * shape[1], self.experts)
        return each + (next(self._calls) % self.experts < rest)
