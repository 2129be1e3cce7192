"""What takes time in a step of Hugging Face's Trainer of January 2022 (version 4.15), besides forward and backward.

Its own AdamW (`optimization.py`) or Adafactor without scaled parameters, parameter by parameter; gradients clipped to a
norm of 1 as in PyTorch's `nn/utils/clip_grad.py`; gradients set to zero in place, to which backward adds. After each
backward pass it looks whether the loss is a number (`logging_nan_inf_filter`), for which the host waits. Checked
with copies of `trainer.py` and `optimization.py` in other repositories; that version itself was not at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch

from simgpu.recorder.model_packages import transformers_package
from simgpu.trace.model import Phase, Trace

_NORM = 1.0


class _AdamW(torch.optim.Optimizer):
    """AdamW without weight decay, the Trainer's default; without bias correction, which runs on the host."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 5e-5})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of each parameter."""
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    self._update(parameter, parameter.grad, group["lr"])

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
        state["square"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = state["square"].sqrt().add_(1e-8)
        parameter.addcdiv_(state["mean"], root, value=-rate)


class TrainerOptimizer(torch.optim.Optimizer):
    """An optimizer with what the Trainer does around its step. adafactor: instead of AdamW."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, adafactor: bool) -> None:
        listed = list(parameters)
        super().__init__(listed, {"lr": 5e-5})
        self._inner: torch.optim.Optimizer = _adafactor(listed) if adafactor else _AdamW(listed)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clips the gradients, then updates the parameters."""
        _clip([each.grad for group in self.param_groups for each in group["params"]])
        return self._inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets gradients to zero in place, whatever the loop says."""
        super().zero_grad(set_to_none=False)


def _adafactor(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    adafactor = transformers_package().Adafactor
    created: torch.optim.Optimizer = adafactor(parameters, lr=5e-5, scale_parameter=False, relative_step=False)
    return created


def _clip(gradients: list[torch.Tensor]) -> None:
    with torch.no_grad():
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
        scale = torch.clamp(_NORM / (norm + 1e-6), max=1.0)
        for each in gradients:
            each.mul_(scale)


def waits(trace: Trace) -> set[int]:
    """The numbers of the kernels for which the host waits: the last of each backward pass, and what it reads."""
    both = enumerate(pairwise(trace.kernels))
    ends = {n for n, (one, after) in both if one.phase is Phase.BACKWARD and after.phase is not Phase.BACKWARD}
    return ends | {n for n, kernel in enumerate(trace.kernels) if kernel.op == "aten::_local_scalar_dense"}
