"""Which saved tensors a plan offloads: each by its type, and how many of that type were saved before it in the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from simgpu.errors import InputError, Problem, shortened
from simgpu.torch.types import tensor_type


class Listed:
    """Chooses the listed tensors.

    listed: by type (`tensor_type`) and the number of earlier saved tensors of that type in a step, the module that
    saves the tensor. `check` raises `InputError` for what a step did not save. A step of another batch size, which
    saves none of them, is allowed once another step has saved them.
    """

    def __init__(self, listed: Mapping[tuple[str, int], str]) -> None:
        self._listed = listed
        self._seen: Counter[str] = Counter()
        self._matched = False

    def begin(self) -> None:
        """A new step."""
        self._seen.clear()

    def _is_another_batch(self) -> bool:
        """Whether a step saved none of the listed tensors, after steps that did: an epoch's last batch is smaller."""
        missing = all(self._seen[kind] <= number for kind, number in self._listed)
        self._matched = self._matched or not missing
        return missing and self._matched

    def end(self) -> None:
        """Nothing to do."""

    def chooses(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is listed; what is saved while backward runs does not count."""
        kind = tensor_type(str(tensor.dtype).removeprefix("torch."), tensor.shape)
        if torch._C._current_graph_task_id() != -1:
            return False
        number = self._seen[kind]
        self._seen[kind] += 1
        return (kind, number) in self._listed

    def check(self) -> None:
        """Raises `InputError` with every listed tensor that the step did not save."""
        if not self._seen or self._is_another_batch():
            return
        problems = [
            Problem(
                module,
                "offloaded tensor",
                f"the step saved {self._seen[kind]} tensors of type {kind}; the plan offloads number {number + 1}",
                "make the plan anew for this model and this batch",
            )
            for (kind, number), module in self._listed.items()
            if self._seen[kind] <= number
        ]
        if problems:
            raise InputError(shortened(problems))
