"""Float32 copies of weights compared with an optimizer of PyTorch on fake tensors, written after Megatron-LM's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, built
from tests.workloads.configured.test_against_transformers import SMALL
from tests.workloads.configured.transformers_models import recorded

import torch  # isort: skip  # after the check that it is installed


class WithCopies(torch.optim.Optimizer):
    """AdamW of float32 copies, whose state includes them: ``Float16OptimizerWithFloat16Params`` in bfloat16."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {})
        for weight in self.weights:
            self.state[weight]["main"] = weight.detach().float()

    @property
    def weights(self) -> list[Any]:
        return self.param_groups[0]["params"]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        mains = [self.state[weight].pop("main") for weight in self.weights]
        for weight, main in zip(self.weights, mains, strict=True):
            main.grad = getattr(weight, "main_grad", weight.grad).float()
            weight.grad = None
        inner = torch.optim.AdamW(mains, lr=1e-4, foreach=True)
        inner.state = defaultdict(dict, zip(mains, (self.state[weight] for weight in self.weights), strict=True))
        inner.step()
        for weight, main in zip(self.weights, mains, strict=True):
            weight.copy_(main)
            self.state[weight]["main"] = main

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for weight in self.weights:
            self.state[weight]["main"].grad = None


def with_main_gradients(micro_batches: int) -> Callable[[Any], Any]:
    """Returns a function that lets backward add gradients up in float32, which the first micro-batch sets to zero."""
    return lambda module: _with_main_gradients(module, micro_batches)


def _with_main_gradients(module: Any, micro_batches: int) -> Any:
    for place, weight in enumerate(module.parameters()):
        module.register_buffer(f"main_grad_{place}", torch.zeros(weight.shape, dtype=torch.float32))
        weight.main_grad = getattr(module, f"main_grad_{place}")
        weight.register_post_accumulate_grad_hook(add_to_main)
    forward, calls = module.forward, count()

    def zeroing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) % micro_batches == 0:
            for weight in module.parameters():
                weight.main_grad.zero_()
        return forward(*args, **kwargs)

    module.forward = zeroing
    return module


def add_to_main(weight: Any) -> None:
    weight.main_grad.add_(weight.grad.data)
    weight.grad = None


@pytest.mark.parametrize(
    ("form", "name", "micro_batches"),
    [
        ("copied", "llama", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("main-grad", "llama", 2),
                ("copied", "llama-biased", 2),
                ("main-grad", "llama-biased", 1),
                ("main-grad", "gpt2", 1),
            )
        ),
    ],
)
def test_master_weights_run_what_pytorch_does(form: str, name: str, micro_batches: int) -> None:
    mine = built(SMALL[name], master_weights=form, micro_batches=micro_batches).trace
    changed = with_main_gradients(micro_batches) if form == "main-grad" else unchanged
    options = {"micro_batches": micro_batches, "optimizer": WithCopies}
    assert_equal(mine, recorded(SMALL[name], BATCH, LENGTH, changed=changed, **options))


def unchanged(module: Any) -> Any:
    return module
