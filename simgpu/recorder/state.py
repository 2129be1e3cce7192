"""The tensors of an optimizer's state, with the names of their weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def state_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields (name of the weight, key, tensor). names: by weight; state of others counts as that of ``state``."""
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield names.get(parameter, "state"), key, value
